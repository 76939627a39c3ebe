package config

import (
	"fmt"
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"

	"github.com/postern-gateway/postern/internal/provider/declared"
	"github.com/postern-gateway/postern/internal/signature"
)

// checkPath rejects a text that is not a path, for example one with braces or with json: before it.
func (b *providerBuilder) checkPath(key, text string) {
	bare := strings.Trim(text, "{}")
	rest, isRef := strings.CutPrefix(bare, "json:")
	switch {
	case strings.ContainsAny(text, "{}") || isRef:
		b.fail(key, "%q is a reference, but a path is required: write %s", text, rest)
	case hasEmptyPart(strings.TrimPrefix(text, "root:")):
		b.fail(key, "%q is not a path: a part between its dots is empty", text)
	}
}

// hasEmptyPart reports whether a path has an empty part; "." means the whole value.
func hasEmptyPart(path string) bool {
	return path != "" && path != "." && slices.Contains(strings.Split(path, "."), "")
}

// checkRefPaths rejects references whose path has an empty part.
func (b *providerBuilder) checkRefPaths(key, text string, refs ...signature.Ref) {
	for _, r := range refs {
		if (r.Kind == signature.JSON || r.Kind == signature.Root) && hasEmptyPart(r.Name) {
			b.fail(key, "%q: %s is not a path: a part between its dots is empty", text, r.Name)
		}
	}
}

// checkBraces rejects a reference without braces, which would be plain text. A single word may be
// meant as text, except in keys.
func (b *providerBuilder) checkBraces(key, text string, allowed refKinds) {
	r, err := signature.ParseRef(text)
	if err == nil && slices.Contains(allowed, r.Kind) && (strings.Contains(text, ":") || key == "message" ||
		key == "key") {
		b.fail(key, "%q is plain text here: to use the value, write %q", text, "{"+text+"}")
	}
}

// checkReachable rejects patterns that never match an event: types where no type is read, and
// deletes that are not among the object's events.
func (b *providerBuilder) checkReachable(o *Object, events *declared.Events) {
	if len(events.Type) == 0 {
		typed := func(pattern string) bool { return strings.Trim(pattern, "*") != "" }
		if slices.ContainsFunc(slices.Concat(o.Events, o.Deletes), typed) {
			b.fail("events", "contains types, but events.type is not set, so no event has a type: set it, e.g. type: "+
				"'{json:type}', or leave events out")
		}
		return
	}
	for _, deleted := range o.Deletes {
		overlaps := func(pattern string) bool { return patternsOverlap(pattern, deleted) }
		if len(o.Events) > 0 && !slices.ContainsFunc(o.Events, overlaps) {
			b.fail("deletes", "%q is not among this object's events (%s), so it never deletes an object: add it to "+
				"events", deleted, strings.Join(o.Events, ", "))
		}
	}
}

// patternsOverlap reports whether some text matches both patterns, in which * matches any text.
func patternsOverlap(a, b string) bool {
	switch {
	case a == "" && b == "":
		return true
	case a != "" && a[0] == '*':
		return patternsOverlap(a[1:], b) || b != "" && patternsOverlap(a, b[1:])
	case b != "" && b[0] == '*':
		return patternsOverlap(b, a)
	}
	return a != "" && b != "" && a[0] == b[0] && patternsOverlap(a[1:], b[1:])
}

// unquotedRef returns the text of a mapping that was meant as a reference: YAML reads {json:id} as
// a mapping unless it is quoted.
func unquotedRef(node ast.Node) (string, bool) {
	if n, ok := node.(*ast.SequenceNode); ok {
		for _, element := range n.Values {
			if text, ok := unquotedRef(element); ok {
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

// closestName returns the known name within edit distance two of a misspelt one; "" for none.
func closestName(name string, known []string) string {
	best, least := "", 3
	for _, one := range known {
		if d := editDistance(strings.ToLower(name), one); d < least && d < len(one) {
			best, least = one, d
		}
	}
	return best
}

// editDistance returns how many letters are added, removed or changed between two words.
func editDistance(a, b string) int {
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

// unknownField returns the problem of a field that does not exist.
func unknownField(path []string, name string, known []string, line int) *Problem {
	text := fmt.Sprintf("unknown field %q", name)
	if one := closestName(name, known); one != "" {
		text += fmt.Sprintf("; did you mean %s?", one)
	} else {
		text += seeSettings
	}
	return &Problem{Path: strings.Join(append(slices.Clone(path), name), "."), Line: line, Msg: text}
}
