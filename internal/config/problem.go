package config

import (
	"cmp"
	"errors"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/postern-gateway/postern/internal/settings"
)

// yamlPosition matches how the YAML library writes a line and a column.
var yamlPosition = regexp.MustCompile(`\[(\d+):\d+\]`)

// wrongType matches the YAML library's error for a value of another type: its type, and the
// expected one.
var wrongType = regexp.MustCompile(`cannot unmarshal (.+?) into Go (?:value|struct field \S+) of type (\S+)`)

// kindNames are the words for Go types in messages.
var kindNames = map[string]string{"string": "a text", "bool": "true or false", "int": "a whole number",
	"int32": "a whole number", "int64": "a whole number", "uint64": "a whole number", "float64": "a number",
	"map[string]interface {}": "a mapping", "[]interface {}": "a list"}

// syntaxProblem keeps a YAML error's message and line. It removes the excerpt of the file, which
// may show a secret. text is the file, or nil.
func syntaxProblem(err error, text []byte) error {
	var y yaml.Error
	if !errors.As(err, &y) {
		return &settings.Problem{Msg: nameKinds(err.Error())}
	}
	p := &settings.Problem{Msg: nameKinds(yamlPosition.ReplaceAllString(y.GetMessage(), "line $1"))}
	if tk := y.GetToken(); tk != nil && tk.Position != nil {
		p.Line = tk.Position.Line
	}
	switch {
	case strings.Contains(p.Msg, "value is not allowed in this context") && quoteMissing(text, p.Line):
		p.Msg += `; a text that begins with {, [ or * is quoted: "{timestamp}.{body}"`
	case strings.Contains(p.Msg, "value is not allowed in this context"):
		p.Msg += "; settings of one level begin in the same column: compare the indentation of this line and the " +
			"next with the lines around"
	case strings.Contains(p.Msg, "found character '\t'"):
		p.Msg = "YAML allows no tab here: indent with spaces only"
	case strings.Contains(p.Msg, "must be specified"), strings.Contains(p.Msg, "could not find flow"):
		p.Msg += "; write {a: 1, b: 2} with a comma between settings and a closing bracket, or one setting per line"
	}
	if strings.HasSuffix(p.Msg, "mapping is expected") {
		p.Msg += "; write settings as `name: value`, as `postern init` does"
	}
	if strings.HasSuffix(p.Msg, "sequence is expected") {
		p.Msg += "; begin each element with a dash, as in `- name: main`"
	}
	if strings.HasSuffix(p.Msg, "is a reserved character") {
		p.Msg += `; a text that begins with it is quoted: "@daily"`
	}
	var unknown *yaml.UnknownFieldError
	if errors.As(err, &unknown) {
		p.Msg += seeSettings
	}
	return p
}

// nameKinds replaces the names of Go types in a message of the YAML library.
func nameKinds(msg string) string {
	msg = wrongType.ReplaceAllStringFunc(msg, func(text string) string {
		found := wrongType.FindStringSubmatch(text)
		return cmp.Or(kindNames[found[1]], "this value") + " was used where " + cmp.Or(kindNames[found[2]], "a text") +
			" is expected"
	})
	return strings.Replace(msg, "does not implemented Unmarshaler", "a text is expected here", 1)
}

// quoteMissing reports whether the value on a line begins like a list, a mapping or an alias, but
// is a text.
func quoteMissing(text []byte, line int) bool {
	lines := strings.Split(string(text), "\n")
	if line < 1 || line > len(lines) {
		return false
	}
	return unquotedText.MatchString(lines[line-1])
}

var unquotedText = regexp.MustCompile(`(:|-)\s+(\*|\{[^{}]*\}[^\s,}\]]|\[[^\[\]]*\][^\s,}\]])`)

const seeSettings = "; docs/reference/configuration.md lists all settings"

// locator finds the line or variable of a setting.
type locator struct {
	file string
	root ast.Node
	env  map[string]string
}

// locate adds file, line and variable to each problem of err.
func (w *locator) locate(err error) error {
	if err == nil {
		return nil
	}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		var out []error
		for _, one := range joined.Unwrap() {
			out = append(out, w.locate(one))
		}
		return errors.Join(out...)
	}
	var p *settings.Problem
	if !errors.As(err, &p) {
		return err
	}
	p.File = w.file
	if variable, ok := w.env[p.Path]; ok {
		p.Env = variable
	} else if p.Line == 0 && p.Path != "" {
		p.Line = w.line(strings.Split(p.Path, "."))
	}
	return p
}

// findings collects the errors of all steps of a load.
type findings struct {
	locator
	errs []error
}

// add appends the errors of one step, except for lines for which an earlier step reported an error:
// the later error would only be a consequence.
func (f *findings) add(err error) {
	known := len(f.errs)
	for _, one := range flattenErrors(f.locate(err)) {
		if !f.alreadyReported(known, one) {
			f.errs = append(f.errs, one)
		}
	}
}

func (f *findings) alreadyReported(known int, err error) bool {
	var p, earlier *settings.Problem
	if !errors.As(err, &p) || p.Line == 0 {
		return false
	}
	return slices.ContainsFunc(f.errs[:known], func(other error) bool {
		return errors.As(other, &earlier) && earlier.Line == p.Line
	})
}

// err returns all errors, ordered by line; nil for none.
func (f *findings) err() error {
	line := func(err error) int {
		var p *settings.Problem
		if errors.As(err, &p) {
			return p.Line
		}
		return 0
	}
	slices.SortStableFunc(f.errs, func(a, b error) int { return cmp.Compare(line(a), line(b)) })
	return errors.Join(f.errs...)
}

// flattenErrors returns the joined errors, at any depth.
func flattenErrors(err error) []error {
	joined, ok := err.(interface{ Unwrap() []error })
	switch {
	case err == nil:
		return nil
	case !ok:
		return []error{err}
	}
	var out []error
	for _, one := range joined.Unwrap() {
		out = append(out, flattenErrors(one)...)
	}
	return out
}

// line returns the line of the deepest part of a path that the file has; 0 where it has none.
func (w *locator) line(path []string) int {
	line, node := 0, w.root
	for _, part := range path {
		at, next := findChild(node, part)
		if next == nil {
			return line
		}
		line, node = at, next
	}
	return line
}

// findChild returns a member of a mapping or an element of a list, and its line.
func findChild(node ast.Node, part string) (int, ast.Node) {
	switch n := node.(type) {
	case *ast.MappingNode:
		for _, v := range n.Values {
			if v.Key.GetToken().Value == part {
				return v.Key.GetToken().Position.Line, v.Value
			}
		}
	case *ast.MappingValueNode:
		if n.Key.GetToken().Value == part {
			return n.Key.GetToken().Position.Line, n.Value
		}
	case *ast.SequenceNode:
		if i, err := strconv.Atoi(part); err == nil && i >= 0 && i < len(n.Values) {
			return n.Values[i].GetToken().Position.Line, n.Values[i]
		}
	}
	return 0, nil
}
