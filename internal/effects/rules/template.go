package rules

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// Text is a template: text in which {{ expression }} stands for a value. It is for any number of goroutines.
type Text struct {
	parts []part
}

// part is literal text, or an expression.
type part struct {
	text string
	expr *Expression
}

// CompileText checks a template. A text without {{ is one that always renders as it is.
func CompileText(text string, scope Scope) (*Text, error) {
	t := &Text{}
	for rest := text; rest != ""; {
		before, inner, found := strings.Cut(rest, "{{")
		if before != "" {
			t.parts = append(t.parts, part{text: before})
		}
		if !found {
			break
		}
		end := closing(inner)
		if end < 0 {
			return nil, errors.New("a {{ has no }}")
		}
		e, err := Compile(strings.TrimSpace(inner[:end]), scope, false)
		if err != nil {
			return nil, fmt.Errorf("{{%s}}: %w", inner[:end], err)
		}
		t.parts, rest = append(t.parts, part{expr: e}), inner[end+2:]
	}
	return t, nil
}

// closing is where the expression that a text begins with ends: at the }} outside quotes and braces, -1 where there is none.
func closing(text string) int {
	var quote byte
	open := 0
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case quote != 0 && c == '\\' && quote != '`':
			i++
		case quote != 0:
			if c == quote {
				quote = 0
			}
		case c == '"' || c == '\'' || c == '`':
			quote = c
		case c == '{':
			open++
		case c == '}' && open > 0:
			open--
		case c == '}' && i+1 < len(text) && text[i+1] == '}':
			return i
		}
	}
	return -1
}

// Constant says that the template names nothing.
func (t *Text) Constant() bool {
	return !slices.ContainsFunc(t.parts, func(p part) bool { return p.expr != nil })
}

// Names says whether an expression of the template names something, as new, or event.id.
func (t *Text) Names(what string) bool {
	return slices.ContainsFunc(t.parts, func(p part) bool { return p.expr != nil && p.expr.names[what] })
}

// sampleKey is a key as steps have it.
var sampleKey = StepKey("sample", 1, 0, "sample", false)

// TellsKey says whether an expression of the template names the step's key, and whether what one gives has that in it as it is, as far as that can be said without an object: whoever is sent a part of it, or another form, does not know the step by it.
func (t *Text) TellsKey() (named, whole bool) {
	for _, p := range t.parts {
		if p.expr == nil || !p.expr.names["step_key"] {
			continue
		}
		named = true
		got, err := p.expr.Eval(&Facts{StepKey: sampleKey})
		text, _ := written(got)
		whole = whole || err != nil || strings.Contains(text, sampleKey)
	}
	return named, whole
}

// Render is the text of the template. What an expression gives must be something: null is an error, so that nothing is ever sent to nobody.
func (t *Text) Render(f *Facts) (string, error) {
	return t.render(f, func(s, _ string) (string, error) { return s, nil })
}

// RenderURL is Render for an address: what expressions give is escaped as a part of a path, and behind a ? as one of a query. In a path it must be something, and lead nowhere
// else: the path without it, or one above it, is that of another thing.
func (t *Text) RenderURL(f *Facts) (string, error) {
	var places []int
	out, err := t.render(f, func(s, before string) (string, error) {
		switch {
		case strings.Contains(before, "?"):
			return url.QueryEscape(s), nil
		case s == "":
			return "", errNoPlace
		}
		places = append(places, len(before))
		return url.PathEscape(s), nil
	})
	if err != nil {
		return "", err
	}
	for _, at := range places {
		if segment := segmentAt(out, at); leads(segment) {
			return "", fmt.Errorf("%q in %q: %w", segment, out, errLeads)
		}
	}
	return out, nil
}

var (
	errNoPlace = errors.New("is empty, so that the path would be that of another thing")
	errLeads   = errors.New("leads to another place")
)

// segmentAt is the segment of an address's path that a place is in.
func segmentAt(address string, at int) string {
	path, _, _ := strings.Cut(address, "?")
	segment, _, _ := strings.Cut(path[strings.LastIndexByte(path[:at], '/')+1:], "/")
	return segment
}

// leads says whether a segment, for whoever unescapes it first, has a part that is . or ..
func leads(segment string) bool {
	plain, err := url.PathUnescape(segment)
	if err != nil {
		return true
	}
	parts := strings.FieldsFunc(plain, func(c rune) bool { return c == '/' || c == '\\' })
	return slices.Contains(parts, ".") || slices.Contains(parts, "..")
}

func (t *Text) render(f *Facts, escape func(s, before string) (string, error)) (string, error) {
	var b strings.Builder
	for _, p := range t.parts {
		if p.expr == nil {
			b.WriteString(p.text)
			continue
		}
		v, err := p.expr.Eval(f)
		if err != nil {
			return "", err
		}
		s, err := written(v)
		if err == nil {
			err = sound(s)
		}
		if err == nil {
			s, err = escape(s, b.String())
		}
		if err != nil {
			return "", p.expr.about(err)
		}
		b.WriteString(s)
	}
	return b.String(), nil
}

// Value is what the template stands for within a structure: the very value of an expression that stands alone, else its text. Null of what a step has captured is an error: what
// a later step acts on is there, or a person sees that it is not.
func (t *Text) Value(f *Facts) (any, error) {
	if len(t.parts) == 1 && t.parts[0].expr != nil {
		return t.parts[0].expr.value(f)
	}
	return t.Render(f)
}

func (e *Expression) value(f *Facts) (any, error) {
	v, err := e.Eval(f)
	if err != nil {
		return nil, err
	}
	if v == nil && e.steps {
		return nil, e.about(errNull)
	}
	if s, ok := v.(string); ok {
		err = e.about(sound(s))
	}
	return v, err
}

// about names the expression that an error is about.
func (e *Expression) about(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", e.text, err)
}

var errNull = errors.New("is null; where it may be, write another value for it, as in {{ new.name ?? \"\" }}")

func written(v any) (string, error) {
	switch v := v.(type) {
	case nil:
		return "", errNull
	case string:
		return v, nil
	case float64:
		return strconv.FormatFloat(v, 'f', -1, 64), nil
	case int, int64, bool:
		return fmt.Sprint(v), nil
	}
	b, err := json.Marshal(v)
	return string(b), err
}

// Tree is a structure of maps, lists and values whose texts are templates; keys are not.
type Tree struct {
	value any // map[string]*Tree, []*Tree, *Text, or a value as it is
}

// CompileTree checks a structure as YAML gives it. An error begins with the path to what is wrong.
func CompileTree(v any, scope Scope) (*Tree, error) {
	switch v := v.(type) {
	case map[string]any:
		out := make(map[string]*Tree, len(v))
		for name, of := range v {
			sub, err := CompileTree(of, scope)
			if err != nil {
				return nil, within(name, err)
			}
			out[name] = sub
		}
		return &Tree{out}, nil
	case []any:
		out := make([]*Tree, len(v))
		for i, of := range v {
			sub, err := CompileTree(of, scope)
			if err != nil {
				return nil, within(strconv.Itoa(i), err)
			}
			out[i] = sub
		}
		return &Tree{out}, nil
	case string:
		t, err := CompileText(v, scope)
		if err != nil {
			return nil, &At{Err: err}
		}
		return &Tree{t}, nil
	}
	return &Tree{v}, nil
}

// At is an error somewhere within a structure.
type At struct {
	// Path leads there, names and places between dots; empty: it is the structure itself.
	Path string
	Err  error
}

func (a *At) Error() string {
	if a.Path == "" {
		return a.Err.Error()
	}
	return a.Path + ": " + a.Err.Error()
}

func (a *At) Unwrap() error { return a.Err }

func within(name string, err error) error {
	var a *At
	if !errors.As(err, &a) {
		return &At{Path: name, Err: err}
	}
	if a.Path != "" {
		name += "." + a.Path
	}
	return &At{Path: name, Err: a.Err}
}

// Render fills the templates in. What stands alone keeps its type, null of a state too.
func (t *Tree) Render(f *Facts) (any, error) {
	switch v := t.value.(type) {
	case map[string]*Tree:
		out := make(map[string]any, len(v))
		for name, of := range v {
			sub, err := of.Render(f)
			if err != nil {
				return nil, within(name, err)
			}
			out[name] = sub
		}
		return out, nil
	case []*Tree:
		out := make([]any, len(v))
		for i, of := range v {
			sub, err := of.Render(f)
			if err != nil {
				return nil, within(strconv.Itoa(i), err)
			}
			out[i] = sub
		}
		return out, nil
	case *Text:
		got, err := v.Value(f)
		if err != nil {
			return nil, &At{Err: err}
		}
		return got, nil
	}
	return t.value, nil
}

// renderForm fills in the values of a form, in the order of their names.
func renderForm(form map[string]*Text, f *Facts) (string, error) {
	values := url.Values{}
	for name, of := range form {
		text, err := of.Render(f)
		if err != nil {
			return "", fmt.Errorf("form.%s: %w", name, err)
		}
		values.Set(name, text)
	}
	return values.Encode(), nil
}
