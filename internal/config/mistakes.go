package config

import (
	"fmt"
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"

	"github.com/postern-gateway/postern/internal/provider/declared"
	"github.com/postern-gateway/postern/internal/signature"
)

// plainPath refuses what is no path, in a setting that is one already: no braces and no json: before it.
func (b *builder) plainPath(key, text string) {
	bare := strings.Trim(text, "{}")
	rest, isRef := strings.CutPrefix(bare, "json:")
	switch {
	case strings.ContainsAny(text, "{}") || isRef:
		b.fail(key, "%q is written as a reference, and a path is wanted: write %s", text, rest)
	case emptyPart(strings.TrimPrefix(text, "root:")):
		b.fail(key, "%q is no path: between its dots is nothing", text)
	}
}

// emptyPart tells whether a path has a part without a name; "." is the whole.
func emptyPart(path string) bool {
	return path != "" && path != "." && slices.Contains(strings.Split(path, "."), "")
}

// references refuses paths without a name between their dots.
func (b *builder) references(key, text string, refs ...signature.Ref) {
	for _, r := range refs {
		if (r.Kind == signature.JSON || r.Kind == signature.Root) && emptyPart(r.Name) {
			b.fail(key, "%q: %s is no path: between its dots is nothing", text, r.Name)
		}
	}
}

// unbraced refuses a reference that lacks its braces, which would be plain text. A lone word may be meant as text, but for keys.
func (b *builder) unbraced(key, text string, allowed kinds) {
	r, err := signature.ParseRef(text)
	if err == nil && slices.Contains(allowed, r.Kind) && (strings.Contains(text, ":") || key == "message" || key == "key") {
		b.fail(key, "%q stands for itself here: where the value is meant, write %q", text, "{"+text+"}")
	}
}

// reachable refuses what no event can ever be: types where no type is read, and deletes that are not among the object's events.
func (b *builder) reachable(o *Object, events *declared.Events) {
	if len(events.Type) == 0 {
		typed := func(pattern string) bool { return strings.Trim(pattern, "*") != "" }
		if slices.ContainsFunc(slices.Concat(o.Events, o.Deletes), typed) {
			b.fail("events", "names types, and events.type is not set, so that no event has one: set it, e.g. type: '{json:type}', or leave events out")
		}
		return
	}
	for _, gone := range o.Deletes {
		meets := func(pattern string) bool { return meet(pattern, gone) }
		if len(o.Events) > 0 && !slices.ContainsFunc(o.Events, meets) {
			b.fail("deletes", "%q is none of this object's events (%s), so that nothing is ever deleted: add it to events", gone, strings.Join(o.Events, ", "))
		}
	}
}

// meet tells whether some text fits two patterns, in which * stands for any text.
func meet(a, b string) bool {
	switch {
	case a == "" && b == "":
		return true
	case a != "" && a[0] == '*':
		return meet(a[1:], b) || b != "" && meet(a, b[1:])
	case b != "" && b[0] == '*':
		return meet(b, a)
	}
	return a != "" && b != "" && a[0] == b[0] && meet(a[1:], b[1:])
}

// unquoted is the text of a mapping that was meant as a reference, {json:id}, which YAML reads as a mapping unless it is quoted.
func unquoted(node ast.Node) (string, bool) {
	if n, ok := node.(*ast.SequenceNode); ok {
		for _, element := range n.Values {
			if text, ok := unquoted(element); ok {
				return text, true
			}
		}
		return "", false
	}
	in := members(node)
	if len(in) != 1 {
		return "", false
	}
	text := in[0].Key.GetToken().Value
	switch value := in[0].Value.(type) {
	case *ast.NullNode:
	case ast.ScalarNode:
		text += ":" + value.GetToken().Value
	default:
		return "", false
	}
	_, err := signature.ParseRef(text)
	return "{" + text + "}", err == nil
}

// meant is the known name that is a slip or two from a misspelt one; "" for none.
func meant(name string, known []string) string {
	best, least := "", 3
	for _, one := range known {
		if d := distance(strings.ToLower(name), one); d < least && d < len(one) {
			best, least = one, d
		}
	}
	return best
}

// distance is how many letters are added, left out or changed between two words.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(row[j+1]+1, row[j]+1, change)
		}
	}
	return row[len(b)]
}

// unknownField is the problem of a field that there is not.
func unknownField(path []string, name string, known []string, line int) *Problem {
	text := fmt.Sprintf("unknown field %q", name)
	if one := meant(name, known); one != "" {
		text += fmt.Sprintf("; did you mean %s?", one)
	} else {
		text += seeSettings
	}
	return &Problem{Path: strings.Join(append(slices.Clone(path), name), "."), Line: line, Msg: text}
}
