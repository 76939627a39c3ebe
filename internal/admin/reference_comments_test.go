package admin

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/postern-gateway/postern/internal/testkit"
)

// comments are the comments of the fields of structs, by package, struct and field.
type comments map[string]map[string]map[string]string

// field returns the comment of a field, with the JSON names of the struct's fields.
func (c comments) field(t *testing.T, of reflect.Type, name string) string {
	t.Helper()
	dir := filepath.Join("../..", strings.TrimPrefix(of.PkgPath(), "github.com/postern-gateway/postern/"))
	if c[dir] == nil {
		c[dir] = readComments(t, dir)
	}
	text := goNil.ReplaceAllString(c[dir][of.Name()][name], "null")
	for i := range of.NumField() {
		f := of.Field(i)
		if tag, _, _ := strings.Cut(f.Tag.Get("json"), ","); tag != "" && tag != "-" {
			text = nameMembers(text, f.Name, "`"+tag+"`")
		}
	}
	return text
}

var (
	goNil = regexp.MustCompile(`\bnil\b`)
	// asSubject follows a name that is the subject of a sentence.
	asSubject = `( (?:is|are|was|were|counts|says|describes?|reports|marks|includes|identifies|lists?|have|` +
		`still|means|bounds?|does|raised|orders|stops)\b|,| and [A-Z]|:)`
)

// nameMembers replaces the Go name of a field in a comment by its name in JSON. At the beginning of
// a sentence, a word that is also a name may be an ordinary word.
func nameMembers(text, goName, member string) string {
	text = regexp.MustCompile(`(^|[.;:] )`+goName+asSubject).ReplaceAllString(text, "${1}"+member+"${2}")
	return regexp.MustCompile(`([^.;:`+"`"+`] |\()`+goName+`\b`).ReplaceAllString(text, "${1}"+member)
}

// readComments reads the comments of the structs of a package.
func readComments(t *testing.T, dir string) map[string]map[string]string {
	t.Helper()
	structs := map[string]map[string]string{}
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	testkit.Must(t, err)
	for _, file := range files {
		tree, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments|parser.SkipObjectResolution)
		testkit.Must(t, err)
		ast.Inspect(tree, func(n ast.Node) bool {
			spec, ok := n.(*ast.TypeSpec)
			if !ok {
				return true
			}
			if of, ok := spec.Type.(*ast.StructType); ok && structs[spec.Name.Name] == nil {
				structs[spec.Name.Name] = fieldComments(of)
			}
			return true
		})
	}
	return structs
}

func fieldComments(of *ast.StructType) map[string]string {
	fields := map[string]string{}
	for _, f := range of.Fields.List {
		text := f.Doc.Text()
		if text == "" {
			text = f.Comment.Text()
		}
		for _, name := range f.Names {
			fields[name.Name] = strings.Join(strings.Fields(text), " ")
		}
	}
	return fields
}
