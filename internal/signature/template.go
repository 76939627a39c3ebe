package signature

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// Template is a text with references in braces: "{timestamp}.{body}". What stands in brackets is left out where a reference in it
// finds nothing: "[id:{query:id};]ts:{timestamp};". Doubled, a brace or a bracket stands for itself.
type Template struct {
	text   string
	groups []group
}

type group struct {
	parts    []part
	optional bool
}

// part is a literal, or else a reference.
type part struct {
	literal []byte
	ref     Ref
}

// ParseTemplate reads a template.
func ParseTemplate(text string) (Template, error) {
	t := Template{text: text}
	var now group
	var literal []byte
	flush := func() {
		if len(literal) > 0 {
			now.parts = append(now.parts, part{literal: literal})
			literal = nil
		}
	}
	end := func() {
		flush()
		if len(now.parts) > 0 {
			t.groups = append(t.groups, now)
		}
		now = group{}
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
			now.parts = append(now.parts, part{ref: ref})
			i += to
		case c == '[' && !now.optional:
			end()
			now.optional = true
		case c == ']' && now.optional:
			end()
		case c == '[' || c == ']' || c == '}':
			return Template{}, fmt.Errorf("%q: %q at byte %d does not fit; double it where it stands for itself", text, c, i)
		default:
			literal = append(literal, c)
		}
	}
	if now.optional {
		return Template{}, fmt.Errorf("%q: a [ is not closed", text)
	}
	end()
	return t, nil
}

// MustTemplate is ParseTemplate for templates in the program's text.
func MustTemplate(text string) Template {
	t, err := ParseTemplate(text)
	if err != nil {
		panic(err)
	}
	return t
}

// String is the template as it was written.
func (t Template) String() string { return t.text }

// shown is the template for messages, with its control characters escaped.
func (t Template) shown() string {
	quoted := strconv.Quote(t.text)
	return quoted[1 : len(quoted)-1]
}

// Refs are the references of a template, in their order.
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

// uses tells whether a template holds a reference of one of the kinds.
func (t Template) uses(kinds ...Kind) bool {
	for _, g := range t.groups {
		for _, p := range g.parts {
			if slices.Contains(kinds, p.ref.Kind) {
				return true
			}
		}
	}
	return false
}

// endsIn tells whether a reference of a kind is the end of whatever the template becomes.
func (t Template) endsIn(kind Kind) bool {
	if len(t.groups) == 0 || t.groups[len(t.groups)-1].optional {
		return false
	}
	parts := t.groups[len(t.groups)-1].parts
	return parts[len(parts)-1].ref.Kind == kind
}

// Expand fills in a template by a function that finds values. The error names a reference that finds nothing.
func (t Template) Expand(find func(Ref) (string, bool)) (string, error) {
	var out strings.Builder
	err := t.write(&out, func(r Ref) ([]byte, bool) {
		s, ok := find(r)
		return []byte(s), ok
	})
	return out.String(), err
}

// errNothing says that a reference finds nothing.
var errNothing = errors.New("is not there")

// write fills in a template. After an error a part of it may be written.
func (t Template) write(w io.Writer, find func(Ref) ([]byte, bool)) error {
	for _, g := range t.groups {
		if g.optional && !g.complete(find) {
			continue
		}
		for _, p := range g.parts {
			text := p.literal
			if p.ref.Kind != None {
				var ok bool
				if text, ok = find(p.ref); !ok {
					return fmt.Errorf("%s %w", p.ref, errNothing)
				}
			}
			if _, err := w.Write(text); err != nil {
				return err
			}
		}
	}
	return nil
}

// complete tells whether every reference of a group finds something.
func (g group) complete(find func(Ref) ([]byte, bool)) bool {
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
