package config

import (
	"fmt"
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"

	"github.com/postern-gateway/postern/internal/settings"
	"github.com/postern-gateway/postern/internal/signature"
)

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
func unknownField(path []string, name string, known []string, line int) *settings.Problem {
	text := fmt.Sprintf("unknown field %q", name)
	if one := closestName(name, known); one != "" {
		text += fmt.Sprintf("; did you mean %s?", one)
	} else {
		text += seeSettings
	}
	return &settings.Problem{Path: strings.Join(append(slices.Clone(path), name), "."), Line: line, Msg: text}
}
