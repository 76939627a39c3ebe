package rest

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/postern-gateway/postern/internal/provider"
)

// Template is a text with names in braces that stand for values: "/v1/things/{id}". A doubled brace
// stands for itself.
type Template struct {
	text  string
	parts []part
}

// part is either a literal or a name.
type part struct{ literal, name string }

// values maps names to their values.
type values map[string]string

// UnmarshalText reads a template. Spec.Check reports errors.
func (t *Template) UnmarshalText(text []byte) error {
	*t, _ = ParseTemplate(string(text), anyName)
	t.text = string(text)
	return nil
}

// MarshalText returns String.
func (t Template) MarshalText() ([]byte, error) { return []byte(t.text), nil }

// anyName allows every name.
const anyName = "*"

// ParseTemplate reads a template that may contain the allowed names.
func ParseTemplate(text string, allowed ...string) (Template, error) {
	t := Template{text: text}
	literal := ""
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case (c == '{' || c == '}') && i+1 < len(text) && text[i+1] == c:
			literal += text[i : i+1]
			i++
		case c == '{':
			name, _, closed := strings.Cut(text[i+1:], "}")
			if !closed {
				return Template{}, fmt.Errorf("%q: a { is not closed", text)
			}
			if !slices.Contains(allowed, name) && !slices.Contains(allowed, anyName) {
				return Template{}, unknownName(text, name, allowed)
			}
			t.parts = append(t.parts, part{literal: literal}, part{name: name})
			literal = ""
			i += len(name) + 1
		case c == '}':
			return Template{}, fmt.Errorf("%q: a } closes nothing; double it where it stands for itself", text)
		default:
			literal += text[i : i+1]
		}
	}
	if literal != "" {
		t.parts = append(t.parts, part{literal: literal})
	}
	return t, nil
}

func unknownName(text, name string, allowed []string) error {
	if slices.Contains([]string{"page", "offset", "skip", "start"}, name) {
		return fmt.Errorf("%q: pages cannot be requested by number or offset: if an object is created or deleted "+
			"meanwhile, the following ones move to other pages, and some would be skipped; page by a cursor, the last "+
			"id, a link or the time of change", text)
	}
	return fmt.Errorf("%q: {%s} is not allowed here; use %s", text, name, "{"+strings.Join(allowed, "}, {")+"}")
}

// String returns the template as it was written.
func (t Template) String() string { return t.text }

// Names reports whether the template contains a name.
func (t Template) Names(name string) bool {
	return slices.ContainsFunc(t.parts, func(p part) bool { return p.name == name })
}

// hasEmptyName reports whether a name in the template has no value.
func (t Template) hasEmptyName(v values) bool {
	return slices.ContainsFunc(t.parts, func(p part) bool { return p.name != "" && v[p.name] == "" })
}

func (t Template) expand(v values) string {
	return t.expandEscaped(v, func(s string) string { return s })
}

func (t Template) expandEscaped(v values, escape func(string) string) string {
	var out strings.Builder
	for _, p := range t.parts {
		out.WriteString(p.literal)
		if p.name != "" {
			out.WriteString(escape(v[p.name]))
		}
	}
	return out.String()
}

// Request is a call as a template: a path, and a query after a question mark.
type Request struct {
	text string
	// Path follows the base URL. Values are escaped, so that each stays within its path segment.
	Path Template
	// Query are the parameters. A parameter is left out if a name in it has no value.
	Query map[string]Template
}

// UnmarshalText reads a request. Spec.Check reports errors.
func (r *Request) UnmarshalText(text []byte) error {
	*r, _ = ParseRequest(string(text), anyName)
	return nil
}

// MarshalText returns the request as it was written.
func (r Request) MarshalText() ([]byte, error) { return []byte(r.text), nil }

// IsZero reports whether there is no request.
func (r Request) IsZero() bool { return r.text == "" }

// ParseRequest reads a request that may contain the allowed names.
func ParseRequest(text string, allowed ...string) (Request, error) {
	path, query, _ := strings.Cut(text, "?")
	r := Request{text: text, Query: map[string]Template{}}
	var err error
	if r.Path, err = ParseTemplate(path, allowed...); err != nil {
		return r, err
	}
	plain := r.Path.expandEscaped(nil, func(string) string { return "x" })
	if _, err := url.PathUnescape(plain); err != nil || !strings.HasPrefix(plain, "/") || hasDotSegments(plain) ||
		strings.ContainsAny(plain, "# ") || strings.Contains(plain, "//") {
		return r, fmt.Errorf("%q is not a path below base_url: write e.g. /v1/things/{id}", text)
	}
	fields, err := url.ParseQuery(query)
	if err != nil {
		return r, fmt.Errorf("%q: the part after ? is not a valid query", text)
	}
	for name, texts := range fields {
		if len(texts) != 1 {
			return r, fmt.Errorf("%q: %s is given twice", text, name)
		}
		if err := r.SetQuery(name, texts[0], allowed...); err != nil {
			return r, err
		}
	}
	return r, nil
}

// SetQuery adds a parameter.
func (r *Request) SetQuery(name, text string, allowed ...string) error {
	if _, there := r.Query[name]; there {
		return errors.New("is given twice")
	}
	t, err := ParseTemplate(text, allowed...)
	if err == nil {
		r.Query[name] = t
	}
	return err
}

// Names reports whether the path or the query contains a name.
func (r Request) Names(name string) bool {
	for _, t := range r.Query {
		if t.Names(name) {
			return true
		}
	}
	return r.Path.Names(name)
}

// call builds the request with these values. It returns false if a name in the path is empty, or a
// value would change the path (. or ..).
func (r Request) call(v values, account string) (provider.Call, bool) {
	c := provider.Call{Account: account, Path: r.Path.expandEscaped(v, url.PathEscape), Query: url.Values{}}
	if r.Path.hasEmptyName(v) || hasDotSegments(c.Path) {
		return provider.Call{}, false
	}
	for name, t := range r.Query {
		if !t.hasEmptyName(v) {
			c.Query.Set(name, t.expand(v))
		}
	}
	return c, true
}

// hasDotSegments reports whether a segment of a path is . or .., which servers resolve.
func hasDotSegments(path string) bool {
	return slices.ContainsFunc(strings.Split(path, "/"), func(part string) bool {
		part, _ = url.PathUnescape(part)
		return part == "." || part == ".."
	})
}
