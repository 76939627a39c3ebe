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

// Text is a template: text in which {{ expression }} stands for a value. It is safe for concurrent
// use.
type Text struct {
	parts []part
}

// part is literal text or an expression.
type part struct {
	text string
	expr *Expression
}

// CompileText compiles a template. A text without {{ renders to itself.
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
		end := findClosing(inner)
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

// findClosing returns the index of the }} that ends the expression at the start of a text, outside
// of quotes and braces; -1 if there is none.
func findClosing(text string) int {
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

// IsConstant reports whether the template has no expression.
func (t *Text) IsConstant() bool {
	return !slices.ContainsFunc(t.parts, func(p part) bool { return p.expr != nil })
}

// Uses reports whether an expression of the template uses a name, such as new or event.id.
func (t *Text) Uses(what string) bool {
	return slices.ContainsFunc(t.parts, func(p part) bool { return p.expr != nil && p.expr.usedNames[what] })
}

// sampleKey is a key in the format of step keys.
var sampleKey = StepKey("sample", 1, 0, "sample", false)

// UsesStepKey reports whether an expression uses the step's key (used), and whether its value
// contains the whole key (unchanged). It evaluates the expression without an object, so that the
// result may be incomplete. A destination does not recognize the step by a part of the key or
// another form of it.
func (t *Text) UsesStepKey() (used, unchanged bool) {
	for _, p := range t.parts {
		if p.expr == nil || !p.expr.usedNames["step_key"] {
			continue
		}
		used = true
		got, err := p.expr.Eval(&TemplateData{StepKey: sampleKey})
		text, _ := formatValue(got)
		unchanged = unchanged || err != nil || strings.Contains(text, sampleKey)
	}
	return used, unchanged
}

// Render renders the template. It returns an error for null, so that no request goes to an empty
// target.
func (t *Text) Render(f *TemplateData) (string, error) {
	return t.render(f, func(s, _ string) (string, error) { return s, nil })
}

// RenderURL renders an address. Values are escaped, as path segments and after a ? as query values.
// A path value must not be empty and must not contain . or .. segments, because the path would then
// address another resource.
func (t *Text) RenderURL(f *TemplateData) (string, error) {
	var places []int
	out, err := t.render(f, func(s, before string) (string, error) {
		switch {
		case strings.Contains(before, "?"):
			return url.QueryEscape(s), nil
		case s == "":
			return "", errEmptySegment
		}
		places = append(places, len(before))
		return url.PathEscape(s), nil
	})
	if err != nil {
		return "", err
	}
	for _, at := range places {
		if segment := segmentAt(out, at); isTraversal(segment) {
			return "", fmt.Errorf("%q in %q: %w", segment, out, errTraversal)
		}
	}
	return out, nil
}

var (
	errEmptySegment = errors.New("is empty, so that the path would address another resource")
	errTraversal    = errors.New("contains a . or .. segment")
)

// segmentAt returns the path segment of an address at an offset.
func segmentAt(address string, at int) string {
	path, _, _ := strings.Cut(address, "?")
	segment, _, _ := strings.Cut(path[strings.LastIndexByte(path[:at], '/')+1:], "/")
	return segment
}

// isTraversal reports whether a segment contains . or .. after it is unescaped.
func isTraversal(segment string) bool {
	plain, err := url.PathUnescape(segment)
	if err != nil {
		return true
	}
	parts := strings.FieldsFunc(plain, func(c rune) bool { return c == '/' || c == '\\' })
	return slices.Contains(parts, ".") || slices.Contains(parts, "..")
}

func (t *Text) render(f *TemplateData, escape func(s, before string) (string, error)) (string, error) {
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
		s, err := formatValue(v)
		if err == nil {
			err = checkStorable(s)
		}
		if err == nil {
			s, err = escape(s, b.String())
		}
		if err != nil {
			return "", p.expr.wrapError(err)
		}
		b.WriteString(s)
	}
	return b.String(), nil
}

// RenderValue renders the template within a structure. A template that is one expression renders to
// the value itself, any other to text. Null from a captured value is an error, because a later step
// must not act on a missing value.
func (t *Text) RenderValue(f *TemplateData) (any, error) {
	if len(t.parts) == 1 && t.parts[0].expr != nil {
		return t.parts[0].expr.renderValue(f)
	}
	return t.Render(f)
}

func (e *Expression) renderValue(f *TemplateData) (any, error) {
	v, err := e.Eval(f)
	if err != nil {
		return nil, err
	}
	if v == nil && e.usesSteps {
		return nil, e.wrapError(errNull)
	}
	if s, ok := v.(string); ok {
		err = e.wrapError(checkStorable(s))
	}
	return v, err
}

// wrapError adds the text of the expression to an error.
func (e *Expression) wrapError(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", e.text, err)
}

var errNull = errors.New("is null; if null is expected, provide another value, as in {{ new.name ?? \"\" }}")

func formatValue(v any) (string, error) {
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

// Tree is a structure of maps, lists and values whose texts are templates; keys are literal.
type Tree struct {
	value any // map[string]*Tree, []*Tree, *Text, or a plain value
}

// CompileTree compiles a structure as YAML decodes it. An error begins with the path of the wrong
// value.
func CompileTree(v any, scope Scope) (*Tree, error) {
	switch v := v.(type) {
	case map[string]any:
		out := make(map[string]*Tree, len(v))
		for name, of := range v {
			sub, err := CompileTree(of, scope)
			if err != nil {
				return nil, prefixPath(name, err)
			}
			out[name] = sub
		}
		return &Tree{out}, nil
	case []any:
		out := make([]*Tree, len(v))
		for i, of := range v {
			sub, err := CompileTree(of, scope)
			if err != nil {
				return nil, prefixPath(strconv.Itoa(i), err)
			}
			out[i] = sub
		}
		return &Tree{out}, nil
	case string:
		t, err := CompileText(v, scope)
		if err != nil {
			return nil, &PathError{Err: err}
		}
		return &Tree{t}, nil
	}
	return &Tree{v}, nil
}

// PathError is an error within a structure.
type PathError struct {
	// Path is the path of the wrong value, names and indexes separated by dots; empty for the
	// structure itself.
	Path string
	Err  error
}

func (a *PathError) Error() string {
	if a.Path == "" {
		return a.Err.Error()
	}
	return a.Path + ": " + a.Err.Error()
}

func (a *PathError) Unwrap() error { return a.Err }

func prefixPath(name string, err error) error {
	var a *PathError
	if !errors.As(err, &a) {
		return &PathError{Path: name, Err: err}
	}
	if a.Path != "" {
		name += "." + a.Path
	}
	return &PathError{Path: name, Err: a.Err}
}

// Render renders the templates. A single expression keeps the type of its value, also null of a
// state.
func (t *Tree) Render(f *TemplateData) (any, error) {
	switch v := t.value.(type) {
	case map[string]*Tree:
		out := make(map[string]any, len(v))
		for name, of := range v {
			sub, err := of.Render(f)
			if err != nil {
				return nil, prefixPath(name, err)
			}
			out[name] = sub
		}
		return out, nil
	case []*Tree:
		out := make([]any, len(v))
		for i, of := range v {
			sub, err := of.Render(f)
			if err != nil {
				return nil, prefixPath(strconv.Itoa(i), err)
			}
			out[i] = sub
		}
		return out, nil
	case *Text:
		got, err := v.RenderValue(f)
		if err != nil {
			return nil, &PathError{Err: err}
		}
		return got, nil
	}
	return t.value, nil
}

// renderForm renders the values of a form, in the order of their names.
func renderForm(form map[string]*Text, f *TemplateData) (string, error) {
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
