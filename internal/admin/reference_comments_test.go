package admin

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/postern-gateway/postern/internal/testkit"
)

// comments are what the code says about the types of packages, by folder.
type comments map[string]packageComments

// packageComments are the comments of fields, by struct and field, and the constants of types of
// strings, in their order.
type packageComments struct {
	fields    map[string]map[string]string
	constants map[string][]string
}

// of returns what the code says about the package of a type.
func (c comments) of(t *testing.T, of reflect.Type) packageComments {
	t.Helper()
	dir := filepath.Join("../..", strings.TrimPrefix(of.PkgPath(), "github.com/postern-gateway/postern/"))
	if _, ok := c[dir]; !ok {
		c[dir] = readComments(t, dir)
	}
	return c[dir]
}

// field returns the comment of a field, with the JSON names of the struct's fields.
func (c comments) field(t *testing.T, of reflect.Type, name string) string {
	t.Helper()
	text := goNil.ReplaceAllString(c.of(t, of).fields[of.Name()][name], "null")
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
		`still|differed|means|bounds?|does|raised|orders|stops|of them)\b|,| and [A-Z` + "`" + `]|:)`
)

// nameMembers replaces the Go name of a field in a comment by its name in JSON. At the beginning of
// a sentence, a word that is also a name may be an ordinary word.
func nameMembers(text, goName, member string) string {
	text = regexp.MustCompile(`(^|[.;:] )`+goName+asSubject).ReplaceAllString(text, "${1}"+member+"${2}")
	return regexp.MustCompile(`([^.;:`+"`"+`] |\()`+goName+`\b`).ReplaceAllString(text, "${1}"+member)
}

// readComments reads the types of a package.
func readComments(t *testing.T, dir string) packageComments {
	t.Helper()
	all := packageComments{map[string]map[string]string{}, map[string][]string{}}
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	testkit.Must(t, err)
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		tree, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments|parser.SkipObjectResolution)
		testkit.Must(t, err)
		ast.Inspect(tree, func(n ast.Node) bool {
			switch spec := n.(type) {
			case *ast.TypeSpec:
				if of, ok := spec.Type.(*ast.StructType); ok && all.fields[spec.Name.Name] == nil {
					all.fields[spec.Name.Name] = fieldComments(of)
				}
			case *ast.ValueSpec:
				name, ok := spec.Type.(*ast.Ident)
				for _, value := range spec.Values {
					if text, isText := value.(*ast.BasicLit); ok && isText && text.Kind == token.STRING {
						word, err := strconv.Unquote(text.Value)
						testkit.Must(t, err)
						all.constants[name.Name] = append(all.constants[name.Name], word)
					}
				}
			}
			return true
		})
	}
	return all
}

// fieldComments returns the comment of each field. A comment above several fields is about each of
// them: a field gets the sentences that name it.
func fieldComments(of *ast.StructType) map[string]string {
	fields := map[string]string{}
	var group []string
	var text string
	end := func() {
		shareSentences(fields, group, text)
		group, text = nil, ""
	}
	for _, f := range of.Fields.List {
		if len(f.Names) == 0 { // embedded: its comment is about no member
			end()
			continue
		}
		own := f.Doc.Text()
		if own == "" {
			own = f.Comment.Text()
		}
		if own != "" {
			end()
			text = strings.Join(strings.Fields(own), " ")
		}
		for _, name := range f.Names {
			group = append(group, name.Name)
		}
	}
	end()
	return fields
}

var (
	endOfPart = regexp.MustCompile(`;$`)
	// refersBack matches a sentence whose subject is in the one before.
	refersBack = regexp.MustCompile(`^(?:It|They|Both)\b`)
)

// shareSentences gives each sentence of a comment to the fields of the group that it names. One
// that names none is about the fields of the sentence before.
func shareSentences(fields map[string]string, group []string, text string) {
	if len(group) == 0 {
		return
	}
	about := group[:1]
	sentenceEnd := regexp.MustCompile(`\. |; (?:` + strings.Join(group, "|") + `) `)
	for text != "" {
		sentence := text
		if at := sentenceEnd.FindStringIndex(text); at != nil {
			sentence = text[:at[0]+1]
		}
		text = strings.TrimSpace(text[len(sentence):])
		var named []string
		for _, name := range group {
			if regexp.MustCompile(`\b` + name + `\b`).MatchString(sentence) {
				named = append(named, name)
			}
		}
		if named != nil && !refersBack.MatchString(sentence) {
			about = named
		}
		for _, name := range about {
			fields[name] = strings.TrimSpace(fields[name] + " " + endOfPart.ReplaceAllString(sentence, "."))
		}
	}
}
