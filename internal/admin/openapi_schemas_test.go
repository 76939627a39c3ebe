package admin

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/objectscan"
	"github.com/postern-gateway/postern/internal/operations"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/versioning"
)

// schemas writes the schemas of parameters and results. The comments and names of types are those
// of the reference.
type schemas struct {
	reference
	t *testing.T
	// all are the schemas of structs, by name.
	all object
	// meanings are those of members without a comment, by name.
	meanings map[string]string
}

// Patterns of parameters. The API accepts a little more, such as a duration with a sign.
const (
	timePattern = `^([0-9]{4}-[0-9]{2}-[0-9]{2}(T[0-9:.]+(Z|[+-][0-9]{2}:[0-9]{2}))?|` +
		`[0-9]+d|([0-9]+(h|m|s|ms|us|ns))+)?$`
	idsPattern       = `^[0-9]*([, ]+[0-9]+)*$`
	runNumberPattern = `^(live|[0-9]+)$`
	integerPattern   = `^-?[0-9]+$`
)

// param describes a parameter.
func (s *schemas) param(p operations.Param) object {
	t := p.Type
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch t {
	case reflect.TypeFor[operations.Time]():
		return object{"type": "string", "pattern": timePattern, "examples": []string{"2026-01-02T03:04:05Z", "7d"}}
	case reflect.TypeFor[operations.IDs]():
		return object{"type": "string", "pattern": idsPattern}
	case reflect.TypeFor[operations.RunNumber]():
		return object{"type": "string", "pattern": runNumberPattern}
	case reflect.TypeFor[json.RawMessage]():
		return object{"type": "object", "additionalProperties": true}
	}
	schema := s.of(t, "")
	switch {
	case p.Values != nil:
		schema["enum"] = p.Values
	case p.Max > 0:
		schema["minimum"], schema["maximum"] = p.Min, p.Max
	case schema["type"] == "integer":
		schema["minimum"] = 0
	}
	if p.Default > 0 {
		schema["default"] = p.Default
	}
	return schema
}

// fixedSets are the members of type string that have the words of a parameter, by type and field.
var fixedSets = map[reflect.Type]map[string]struct {
	params any
	name   string
}{
	reflect.TypeFor[runs.Run]():      {"Job": {operations.RunParams{}, "job"}},
	reflect.TypeFor[runs.Schedule](): {"Job": {operations.RunParams{}, "job"}},
	reflect.TypeFor[events.Item](): {"Status": {operations.EventFilter{}, "status"},
		"Origin": {operations.EventFilter{}, "origin"}},
	reflect.TypeFor[events.Outcome]():          {"Status": {operations.OutcomeParams{}, "status"}},
	reflect.TypeFor[events.Original]():         {"Status": {operations.OutcomeParams{}, "status"}},
	reflect.TypeFor[operations.HistoryEvent](): {"Status": {operations.OutcomeParams{}, "status"}},
	reflect.TypeFor[operations.FailureGroup](): {"Status": {operations.FailureParams{}, "status"}},
	reflect.TypeFor[objectscan.Difference](): {"Kind": {operations.DifferenceParams{}, "kind"},
		"Result": {operations.DifferenceParams{}, "result"}},
}

// orEmpty matches the comment of a member that may be empty.
var orEmpty = regexp.MustCompile(`""|\bempty\b`)

// enumOf returns the words of a member; nil if it has no fixed set. Those of a type of its own are
// its constants.
func (s *schemas) enumOf(in reflect.Type, f reflect.StructField) (words []string) {
	if of, ok := fixedSets[in][f.Name]; ok {
		all := operations.Params(of.params)
		words = all[slices.IndexFunc(all, func(p operations.Param) bool { return p.Name == of.name })].Values
	} else if f.Type.Kind() == reflect.String && f.Type.PkgPath() != "" {
		words = s.comments.of(s.t, f.Type).constants[f.Type.Name()]
	}
	if words != nil && orEmpty.MatchString(s.comments.field(s.t, in, f.Name)) {
		return slices.Concat(words, []string{""})
	}
	return words
}

// of describes a type as encoding/json writes it. option is the option of its JSON tag.
func (s *schemas) of(t reflect.Type, option string) object {
	omitted := strings.Contains(option, "omit")
	switch {
	case t.Kind() == reflect.Pointer && (omitted || t.Elem() == reflect.TypeFor[events.Instant]()):
		return s.of(t.Elem(), option)
	case t.Kind() == reflect.Pointer:
		return nullable(s.of(t.Elem(), option))
	case t == reflect.TypeFor[events.Instant]() && !omitted:
		return nullable(object{"type": "string", "format": "date-time"})
	case t == reflect.TypeFor[events.Instant](), t == reflect.TypeFor[time.Time]():
		return object{"type": "string", "format": "date-time"}
	case itemsOf.MatchString(t.Name()):
		return s.page(t)
	}
	switch t.Kind() {
	case reflect.String:
		return object{"type": "string"}
	case reflect.Bool:
		return object{"type": "boolean"}
	case reflect.Float32, reflect.Float64:
		return object{"type": "number"}
	case reflect.Slice:
		switch t.Elem().Kind() {
		case reflect.Uint8:
			if t == reflect.TypeFor[json.RawMessage]() {
				return object{}
			}
			panic(fmt.Sprintf("%s: the document describes no bytes", t))
		}
		return object{"type": "array", "items": s.of(t.Elem(), "")}
	case reflect.Map:
		return object{"type": "object", "additionalProperties": s.of(t.Elem(), "")}
	case reflect.Interface:
		return object{}
	case reflect.Struct:
		return s.structure(t)
	}
	if isInString(option) {
		return object{"type": "string", "pattern": integerPattern}
	}
	return object{"type": "integer", "format": "int64"}
}

// nullable adds null to a schema.
func nullable(schema object) object {
	if kind, ok := schema["type"].(string); ok {
		schema["type"] = []string{kind, "null"}
		return schema
	}
	return object{"oneOf": []object{schema, {"type": "null"}}}
}

// page describes a page of a list, which has an encoding of its own.
func (s *schemas) page(t reflect.Type) object {
	field, _ := t.FieldByName("Items")
	item := s.of(field.Type.Elem(), "")
	name := item["$ref"].(string)[len(refPrefix):] + "Page"
	s.all[name] = object{"type": "object", "required": []string{"items", "next_cursor"}, "properties": object{
		"items": object{"type": "array", "items": item},
		"next_cursor": object{"type": []string{"string", "null"},
			"description": "the parameter cursor of the next page; null on the last page"},
		"searched_back_to": object{"type": "string", "format": "date-time",
			"description": "the time until which a search of contents searched; left out if it is complete"}}}
	return object{"$ref": refPrefix + name}
}

const refPrefix = "#/components/schemas/"

// structure adds the schema of a struct, and returns a reference to it.
func (s *schemas) structure(t reflect.Type) object {
	name := s.nameOf(t)
	if s.all[name] == nil {
		members, required := object{}, map[string]bool{}
		s.all[name] = object{} // for a type that contains itself
		s.members(t, members, required)
		s.all[name] = object{"type": "object", "properties": members, "required": slices.Sorted(maps.Keys(required))}
	}
	ref := object{"$ref": refPrefix + name}
	if t == reflect.TypeFor[versioning.Version]() { // its encoding of no version is null
		return nullable(ref)
	}
	return ref
}

// nameOf returns the name of a struct, which no other has.
func (s *schemas) nameOf(t reflect.Type) string {
	name := cmp.Or(typeNames[t], strings.ToUpper(t.Name()[:1])+t.Name()[1:])
	if other, ok := s.used[name]; ok && other != t {
		panic(fmt.Sprintf("%s and %s have one name: add one to typeNames", t, other))
	}
	s.used[name] = t
	return name
}

// members adds the members of a struct, with those of embedded structs.
func (s *schemas) members(t reflect.Type, into object, required map[string]bool) {
	for f := range t.Fields() {
		if f.Anonymous && f.Tag.Get("json") == "" {
			embedded := f.Type
			if embedded.Kind() == reflect.Pointer {
				embedded = embedded.Elem()
			}
			s.members(embedded, into, required)
		}
	}
	for f := range t.Fields() {
		name, option, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "-" || name == "" || !f.IsExported() {
			continue
		}
		schema := s.of(f.Type, option)
		if words := s.enumOf(t, f); words != nil {
			schema["enum"] = words
		}
		text := s.comments.field(s.t, t, f.Name)
		if f.Type != reflect.TypeFor[json.RawMessage]() { // the state of an object is no state of its life
			text = cmp.Or(text, s.meanings[name])
		}
		if text != "" {
			schema["description"] = text
		}
		into[name] = schema
		delete(required, name)
		// omitempty has no effect on a struct
		if !strings.Contains(option, "omit") || option == "omitempty" && f.Type.Kind() == reflect.Struct {
			required[name] = true
		}
	}
}

// The patterns of parameters accept what the reference names, and nothing that the API rejects.
func TestOpenAPI_patterns_equalParsers(t *testing.T) {
	t.Parallel()
	type params struct {
		Time operations.Time      `json:"time"`
		IDs  operations.IDs       `json:"ids"`
		Run  operations.RunNumber `json:"run"`
	}
	for name, texts := range map[string]string{
		"time": "2026-01-02T03:04:05Z|2026-01-02T03:04:05.678+02:00|2026-01-02|15m|2h|7d|1h30m||soon|7|d|7w|2026-01",
		"ids":  "|17|17,18|17, 18|x|17;18|1.5",
		"run":  "live|0|17|x|-1|1.5",
	} {
		pattern := map[string]string{"time": timePattern, "ids": idsPattern, "run": runNumberPattern}[name]
		for text := range strings.SplitSeq(texts, "|") {
			err := operations.Parse(&params{}, map[string]string{name: text})
			if matches := regexp.MustCompile(pattern).MatchString(text); matches != (err == nil) {
				t.Errorf("%s %q matches: %t; the API: %v", name, text, matches, err)
			}
		}
	}
}
