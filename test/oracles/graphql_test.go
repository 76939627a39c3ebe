package oracles_test

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/vektah/gqlparser/v2/ast"
	"github.com/vektah/gqlparser/v2/parser"
	"github.com/vektah/gqlparser/v2/validator"
	"github.com/vektah/gqlparser/v2/validator/rules"
)

// typeRef is a type as introspection tells it
// (https://spec.graphql.org/October2021/#sec-Schema-Introspection).
type typeRef struct {
	Kind, Name string
	OfType     *typeRef
}

type inputValue struct {
	Name, Description string
	Type              typeRef
	DefaultValue      *string
}

type introspected struct {
	Data struct {
		Schema struct {
			QueryType struct{ Name string }
			Types     []struct {
				Kind, Name string
				Fields     []struct {
					inputValue
					Args []inputValue
				}
				InputFields               []inputValue
				EnumValues                []struct{ Name string }
				Interfaces, PossibleTypes []typeRef
			}
		} `json:"__schema"`
	}
}

func (r *typeRef) ast() *ast.Type {
	switch r.Kind {
	case "NON_NULL":
		out := r.OfType.ast()
		out.NonNull = true
		return out
	case "LIST":
		return ast.ListType(r.OfType.ast(), nil)
	}
	return ast.NamedType(r.Name, nil)
}

// read makes a schema of what introspection tells.
func (in *introspected) read() *ast.Schema {
	out := &ast.Schema{Types: map[string]*ast.Definition{}, PossibleTypes: map[string][]*ast.Definition{},
		Implements: map[string][]*ast.Definition{}}
	for _, t := range in.Data.Schema.Types {
		def := &ast.Definition{Kind: ast.DefinitionKind(t.Kind), Name: t.Name}
		out.Types[t.Name] = def
		for _, f := range t.Fields {
			field := &ast.FieldDefinition{Name: f.Name, Type: f.Type.ast()}
			for _, a := range f.Args {
				arg := &ast.ArgumentDefinition{Name: a.Name, Description: a.Description, Type: a.Type.ast()}
				if a.DefaultValue != nil { // which one, no rule asks
					arg.DefaultValue = &ast.Value{Raw: *a.DefaultValue}
				}
				field.Arguments = append(field.Arguments, arg)
			}
			def.Fields = append(def.Fields, field)
		}
		for _, f := range t.InputFields {
			def.Fields = append(def.Fields, &ast.FieldDefinition{Name: f.Name, Type: f.Type.ast()})
		}
		for _, v := range t.EnumValues {
			def.EnumValues = append(def.EnumValues, &ast.EnumValueDefinition{Name: v.Name})
		}
		if t.Kind == "OBJECT" {
			out.AddPossibleType(t.Name, def)
		}
		for _, i := range t.Interfaces {
			def.Interfaces = append(def.Interfaces, i.Name)
			out.AddPossibleType(i.Name, def)
			out.AddImplements(t.Name, &ast.Definition{Name: i.Name})
		}
	}
	out.Query = out.Types[in.Data.Schema.QueryType.Name]
	return out
}

// shopifyVersions are those of the Admin API whose schemas our queries are held against.
var shopifyVersions = []string{"2026-07", "2026-10"}

var loadShopify = sync.OnceValues(func() (map[string]*ast.Schema, error) {
	out := map[string]*ast.Schema{}
	for _, version := range shopifyVersions {
		data, err := description("admin_" + version + ".json.gz")
		if err != nil {
			return nil, err
		}
		r, err := gzip.NewReader(bytes.NewReader(data))
		if err != nil {
			return nil, err
		}
		in := &introspected{}
		if err := json.NewDecoder(r).Decode(in); err != nil {
			return nil, err
		}
		if out[version] = in.read(); out[version].Query == nil {
			return nil, fmt.Errorf("the schema of %s has no queries", version)
		}
	}
	return out, nil
})

// shopifySchemas are Shopify's schemas, by version.
func shopifySchemas(t *testing.T) map[string]*ast.Schema {
	t.Helper()
	all, err := loadShopify()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// graph is a query as it is sent.
type graph struct {
	Query     string         `json:"query"`
	Variables map[string]any `json:"variables"`
}

// against holds a query and its variables against a schema; what it searches for must be what the
// argument's description lists.
func (g *graph) against(s *ast.Schema) (*ast.OperationDefinition, error) {
	doc, err := parser.ParseQuery(&ast.Source{Input: g.Query})
	if err != nil {
		return nil, err
	}
	if wrong := validator.ValidateWithRules(s, doc, rules.NewDefaultRules()); len(wrong) > 0 {
		return nil, wrong
	}
	op := doc.Operations[0]
	for name := range g.Variables {
		if op.VariableDefinitions.ForName(name) == nil {
			return nil, fmt.Errorf("$%s is not declared", name)
		}
	}
	if _, err := validator.VariableValues(s, op, g.Variables); err != nil {
		return nil, err
	}
	return op, g.searches(op.SelectionSet)
}

// searches holds what is searched for against the table in the argument's description.
func (g *graph) searches(fields ast.SelectionSet) error {
	for _, s := range fields {
		f := s.(*ast.Field)
		if q := f.Arguments.ForName("query"); q != nil {
			text, _ := g.Variables[q.Value.Raw].(string)
			described := f.Definition.Arguments.ForName("query").Description
			for term := range strings.SplitSeq(text, " AND ") {
				if name, _, _ := strings.Cut(term, ":"); text != "" && !strings.Contains(described, "\n| "+name+" |") {
					return fmt.Errorf("%s cannot be searched by %q", f.Name, name)
				}
			}
		}
		if err := g.searches(f.SelectionSet); err != nil {
			return err
		}
	}
	return nil
}

// answered are the places where an answer is not what a schema has at a query's fields.
func answered(s *ast.Schema, fields ast.SelectionSet, value any, at string) (wrong []string) {
	object, ok := value.(map[string]any)
	if !ok {
		return []string{at + " is no object"}
	}
	if len(object) != len(fields) {
		wrong = append(wrong, fmt.Sprintf("%s has %d members, and %d were asked for", at, len(object), len(fields)))
	}
	for _, one := range fields {
		f := one.(*ast.Field)
		member, there := object[f.Alias]
		if !there {
			wrong = append(wrong, at+" has no "+f.Alias)
			continue
		}
		wrong = append(wrong, valued(s, f.Definition.Type, f.SelectionSet, member, at+"."+f.Alias)...)
	}
	return wrong
}

func valued(s *ast.Schema, of *ast.Type, fields ast.SelectionSet, value any, at string) (wrong []string) {
	if value == nil {
		if of.NonNull {
			return []string{at + " is never null"}
		}
		return nil
	}
	if of.Elem != nil {
		list, ok := value.([]any)
		if !ok {
			return []string{at + " is a list"}
		}
		for _, element := range list {
			wrong = append(wrong, valued(s, of.Elem, fields, element, at+"[]")...)
		}
		return wrong
	}
	if len(fields) > 0 {
		return answered(s, fields, value, at)
	}
	kinds := map[string][]string{"Boolean": {"bool"}, "Int": {"float64"}, "Float": {"float64"}}
	want := kinds[of.NamedType]
	if want == nil { // IDs, texts, times, numbers beyond Int, enumerations
		want = []string{"string"}
	}
	if kind := fmt.Sprintf("%T", value); !slices.Contains(want, kind) {
		return []string{fmt.Sprintf("%s is of type %s, not %s", at, of, kind)}
	}
	return nil
}
