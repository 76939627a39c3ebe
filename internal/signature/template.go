package signature

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// Template is a text with references in braces: "{timestamp}.{body}". Text in brackets is omitted
// if a reference in it finds nothing: "[id:{query:id};]ts:{timestamp};". A doubled brace or bracket
// is the character itself.
type Template struct {
	text   string
	groups []group
}

type group struct {
	parts    []part
	optional bool
}

// part is a literal or a reference.
type part struct {
	literal []byte
	ref     Ref
}

// ParseTemplate parses a template.
func ParseTemplate(text string) (Template, error) {
	t := Template{text: text}
	var current group
	var literal []byte
	flush := func() {
		if len(literal) > 0 {
			current.parts = append(current.parts, part{literal: literal})
			literal = nil
		}
	}
	endGroup := func() {
		flush()
		if len(current.parts) > 0 {
			t.groups = append(t.groups, current)
		}
		current = group{}
	}
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case (c == '{' || c == '}' || c == '[' || c == ']') && i+1 < len(text) && text[i+1] == c:
			literal = append(literal, c)
			i++
		case c == '{':
			to := strings.IndexByte(text[i:], '}')
			if to < 0 {
				return Template{}, fmt.Errorf("%q: a { is not closed", text)
			}
			ref, err := ParseRef(text[i+1 : i+to])
			if err != nil {
				return Template{}, err
			}
			flush()
			current.parts = append(current.parts, part{ref: ref})
			i += to
		case c == '[' && !current.optional:
			endGroup()
			current.optional = true
		case c == ']' && current.optional:
			endGroup()
		case c == '[' || c == ']' || c == '}':
			return Template{}, fmt.Errorf("%q: %q at byte %d is unexpected; double it to write the character itself",
				text, c, i)
		default:
			literal = append(literal, c)
		}
	}
	if current.optional {
		return Template{}, fmt.Errorf("%q: a [ is not closed", text)
	}
	endGroup()
	return t, nil
}

// MustTemplate is ParseTemplate for constant templates.
func MustTemplate(text string) Template {
	t, err := ParseTemplate(text)
	if err != nil {
		panic(err)
	}
	return t
}

// UnmarshalText reads a template. It keeps a text that is not a template without its parts, which
// CheckFields reports.
func (t *Template) UnmarshalText(text []byte) error {
	parsed, _ := ParseTemplate(string(text))
	parsed.text = string(text)
	*t = parsed
	return nil
}

// MarshalText returns String.
func (t Template) MarshalText() ([]byte, error) { return []byte(t.text), nil }

// IsZero reports whether the template is empty.
func (t Template) IsZero() bool { return t.text == "" }

// String returns the template as it was written.
func (t Template) String() string { return t.text }

// escaped returns the template for messages, with its control characters escaped.
func (t Template) escaped() string {
	quoted := strconv.Quote(t.text)
	return quoted[1 : len(quoted)-1]
}

// Refs returns the references of a template, in order.
func (t Template) Refs() []Ref {
	var out []Ref
	for _, g := range t.groups {
		for _, p := range g.parts {
			if p.ref.Kind != None {
				out = append(out, p.ref)
			}
		}
	}
	return out
}

// usesKind reports whether a template has a reference of one of the kinds.
func (t Template) usesKind(kinds ...Kind) bool {
	for _, g := range t.groups {
		for _, p := range g.parts {
			if slices.Contains(kinds, p.ref.Kind) {
				return true
			}
		}
	}
	return false
}

// endsIn reports whether every expansion of the template ends with a reference of a kind.
func (t Template) endsIn(kind Kind) bool {
	if len(t.groups) == 0 || t.groups[len(t.groups)-1].optional {
		return false
	}
	parts := t.groups[len(t.groups)-1].parts
	return parts[len(parts)-1].ref.Kind == kind
}

// Expand replaces the references of a template with the values that a function returns. The error
// names a reference without a value.
func (t Template) Expand(find func(Ref) (string, bool)) (string, error) {
	var out strings.Builder
	err := t.expandTo(&out, func(r Ref) ([]byte, bool) {
		s, ok := find(r)
		return []byte(s), ok
	})
	return out.String(), err
}

// errNotFound: a reference has no value.
var errNotFound = errors.New("is missing")

// expandTo expands a template. After an error, a part of it may be written.
func (t Template) expandTo(w io.Writer, find func(Ref) ([]byte, bool)) error {
	for _, g := range t.groups {
		if g.optional && !g.isComplete(find) {
			continue
		}
		for _, p := range g.parts {
			text := p.literal
			if p.ref.Kind != None {
				var ok bool
				if text, ok = find(p.ref); !ok {
					return fmt.Errorf("%s %w", p.ref, errNotFound)
				}
			}
			if _, err := w.Write(text); err != nil {
				return err
			}
		}
	}
	return nil
}

// isComplete reports whether every reference of a group has a value.
func (g group) isComplete(find func(Ref) ([]byte, bool)) bool {
	for _, p := range g.parts {
		if p.ref.Kind == None {
			continue
		}
		if _, ok := find(p.ref); !ok {
			return false
		}
	}
	return true
}
