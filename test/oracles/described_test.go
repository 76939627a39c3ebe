package oracles_test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// description is a file that descriptions.txt names, by the end of its name.
func description(name string) ([]byte, error) {
	list, err := os.ReadFile("descriptions.txt")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(list)) {
		fields := strings.Fields(line)
		if len(fields) != 3 || !strings.HasSuffix(fields[1], "/"+name) {
			continue
		}
		path := filepath.Join("descriptions", fields[0], fields[1])
		data, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("%w: run `make prerequisites`, which says why if it cannot fetch %s", err, fields[0])
		}
		if sum := sha256.Sum256(data); hex.EncodeToString(sum[:]) != fields[2] {
			return nil, fmt.Errorf("%s is not what descriptions.txt says: delete it and run `make prerequisites`", path)
		}
		return data, nil
	}
	return nil, fmt.Errorf("descriptions.txt has no %s", name)
}

// openapi is a description of an API (https://spec.openapis.org/oas/v3.0.3), as far as it is read
// here.
type openapi struct {
	Paths      map[string]map[string]json.RawMessage
	Webhooks   map[string]struct{ Post operation } `json:"x-webhooks"`
	Components struct {
		Schemas    map[string]*schema
		Parameters map[string]parameter
	}
}

type operation struct {
	ID          string `json:"operationId"`
	Parameters  []parameter
	RequestBody content
	Responses   map[string]content
}

type parameter struct {
	Ref, Name, In string
	Schema        schema
}

type content struct {
	Content map[string]struct{ Schema *schema }
}

type schema struct {
	Ref                 string `json:"$ref"`
	Type, Format        string
	Nullable            bool
	Properties          map[string]*schema
	Items               *schema
	OneOf, AnyOf, AllOf []*schema
	Enum                []any
}

func (p *parameter) UnmarshalJSON(data []byte) error {
	type plain parameter
	var in struct {
		Ref string `json:"$ref"`
		plain
	}
	err := json.Unmarshal(data, &in)
	*p = parameter(in.plain)
	p.Ref = in.Ref
	return err
}

var loadGitHub = sync.OnceValues(func() (*openapi, error) {
	data, err := description("api.github.com.json")
	if err != nil {
		return nil, err
	}
	d := &openapi{}
	return d, json.Unmarshal(data, d)
})

// described is GitHub's description of its API and its webhooks.
func described(t *testing.T) *openapi {
	t.Helper()
	d, err := loadGitHub()
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// operation is what answers a method at a path, and the template of that path; nil where nothing
// does. Of several templates the one with the fewest names is meant.
func (d *openapi) operation(t *testing.T, method, path string) (*operation, string) {
	t.Helper()
	found := ""
	for template := range d.Paths {
		if fits(template, path) && d.Paths[template][method] != nil &&
			(found == "" || strings.Count(template, "{") < strings.Count(found, "{")) {
			found = template
		}
	}
	if found == "" {
		return nil, ""
	}
	op := &operation{}
	if err := json.Unmarshal(d.Paths[found][method], op); err != nil {
		t.Fatal(err)
	}
	return op, found
}

// fits tells whether a path is one of a template's.
func fits(template, path string) bool {
	these, those := strings.Split(template, "/"), strings.Split(path, "/")
	return slices.EqualFunc(these, those, func(part, is string) bool {
		return part == is || strings.HasPrefix(part, "{")
	})
}

// parameter is a parameter of a query.
func (d *openapi) parameter(op *operation, name string) *schema {
	for _, p := range op.Parameters {
		if p.Ref != "" {
			p = d.Components.Parameters[last(p.Ref)]
		}
		if p.In == "query" && p.Name == name {
			return d.flat(&p.Schema)
		}
	}
	return nil
}

// answers is the schema of what a good answer carries.
func (o *operation) answers() *schema { return o.Responses["200"].Content["application/json"].Schema }

func last(ref string) string { return ref[strings.LastIndexByte(ref, '/')+1:] }

// flat is a schema with what it refers to in its place: all that it demands together, and of
// alternatives the first, with the members of them all.
func (d *openapi) flat(s *schema) *schema {
	for s.Ref != "" {
		s = d.Components.Schemas[last(s.Ref)]
	}
	if len(s.AllOf)+len(s.OneOf)+len(s.AnyOf) == 0 {
		return s
	}
	out := *s
	out.AllOf, out.OneOf, out.AnyOf, out.Properties = nil, nil, nil, maps.Clone(s.Properties)
	for _, part := range slices.Concat(s.AllOf, s.OneOf, s.AnyOf) {
		part = d.flat(part)
		if out.Type == "" {
			out.Type, out.Format, out.Enum, out.Items = part.Type, part.Format, part.Enum, part.Items
		}
		if out.Properties == nil {
			out.Properties = map[string]*schema{}
		}
		for name, member := range part.Properties {
			if out.Properties[name] == nil {
				out.Properties[name] = member
			}
		}
	}
	return &out
}

// at is the schema of a dotted path, through the elements of lists; nil where there is none.
func (d *openapi) at(s *schema, path string) *schema {
	for name := range strings.SplitSeq(path, ".") {
		if s = d.flat(s); s.Type == "array" {
			s = d.flat(s.Items)
		}
		if s = s.Properties[name]; s == nil {
			return nil
		}
	}
	return s
}

// deepest bounds examples: some schemas hold themselves.
const deepest = 6

// example is a value that a schema describes, with all members that it may have.
func (d *openapi) example(s *schema, depth int) any {
	s = d.flat(s)
	switch {
	case len(s.Enum) > 0:
		return s.Enum[0]
	case s.Type == "array" && depth < deepest:
		return []any{d.example(s.Items, depth+1)}
	case s.Type == "array":
		return []any{}
	case s.Type == "object" || len(s.Properties) > 0:
		out := map[string]any{}
		for name, member := range s.Properties {
			if depth < deepest {
				out[name] = d.example(member, depth+1)
			}
			// of some times the description says only that they are texts
			if strings.HasSuffix(name, "_at") && out[name] == "seven" {
				out[name] = "2026-01-02T03:04:05Z"
			}
		}
		return out
	case s.Type == "integer", s.Type == "number":
		return 7
	case s.Type == "boolean":
		return false
	case s.Format == "date-time":
		return "2026-01-02T03:04:05Z"
	}
	return "seven"
}
