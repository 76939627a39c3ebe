package signature

import (
	"reflect"
	"slices"
	"strings"

	"github.com/postern-gateway/postern/internal/settings"
)

// CheckFields checks the fields of a struct by their tags. refs lists the allowed kinds of
// references, words the allowed words, and path marks a path. v is a pointer to the struct.
func CheckFields(c settings.Checker, v any) { checkStruct(c, reflect.ValueOf(v).Elem()) }

func checkStruct(c settings.Checker, v reflect.Value) {
	for i := range v.NumField() {
		field, f := v.Type().Field(i), v.Field(i)
		key, options, _ := strings.Cut(field.Tag.Get("yaml"), ",")
		if key == "-" || !field.IsExported() {
			continue
		}
		words, refs := strings.Fields(field.Tag.Get("words")), strings.Fields(field.Tag.Get("refs"))
		switch of := f.Interface().(type) {
		case Ref:
			if len(refs) > 0 {
				CheckRef(c, key, of, refs...)
			}
		case Template:
			checkTemplate(c, key, of, refs)
		case settings.List[Ref]:
			for _, r := range of {
				CheckRef(c, key, r, refs...)
			}
		case settings.List[Template]:
			for _, t := range of {
				checkTemplate(c, key, t, refs)
			}
		default:
			checkField(c, key, options, f, words, field.Tag.Get("path") != "")
		}
	}
}

// checkField checks a field that is neither a reference nor a template.
func checkField(c settings.Checker, key, options string, f reflect.Value, words []string, isPath bool) {
	switch {
	case f.Kind() == reflect.Slice && len(words) > 0:
		for i := range f.Len() {
			checkField(c, key, options, f.Index(i), words, isPath)
		}
	case f.Kind() == reflect.String && len(words) > 0 && f.Len() > 0 && !slices.Contains(words, f.String()):
		c.Fail(key, "%q is not a known value: write one of %s", f.String(), strings.Join(words, ", "))
	case f.Kind() == reflect.String && isPath:
		c.Path(key, f.String())
	case f.Kind() == reflect.Pointer && !f.IsNil():
		checkField(c, key, options, f.Elem(), words, isPath)
	case f.Kind() == reflect.Struct && options == "inline":
		checkStruct(c, f)
	case f.Kind() == reflect.Struct:
		checkStruct(c.Under(key), f)
	}
}

// refSyntax says how to write references of a kind, where it is not the kind's word.
var refSyntax = map[string]string{"header": "header:NAME", "json": "json:PATH", "form": "form:FIELD",
	"query": "query:NAME", "item": "item:KEY", "root": "root:PATH"}

// describeKinds lists how to write references of the kinds.
func describeKinds(kinds []string) string {
	words := make([]string, len(kinds))
	for i, word := range kinds {
		words[i] = word
		if syntax := refSyntax[word]; syntax != "" {
			words[i] = syntax
		}
	}
	if last := len(words) - 1; last > 0 {
		return strings.Join(words[:last], ", ") + " or " + words[last]
	}
	return strings.Join(words, "")
}

// CheckRef requires a reference of one of the kinds.
func CheckRef(c settings.Checker, key string, r Ref, allowed ...string) {
	if !r.isAny(allowed) {
		c.Fail(key, "%q is not a reference that this setting accepts: write %s", r, describeKinds(allowed))
		return
	}
	checkRefPaths(c, key, r.String(), r)
}

// isAny reports whether a reference has one of the kinds.
func (r Ref) isAny(allowed []string) bool {
	return slices.ContainsFunc(allowed, func(word string) bool { return kinds[word] == r.Kind && r.Kind != None })
}

func checkTemplate(c settings.Checker, key string, t Template, allowed []string) {
	text := t.String()
	if _, err := ParseTemplate(text); err != nil {
		c.Fail(key, "%v", err)
		return
	}
	// a single word may be meant as text, except in keys and messages
	if r, err := ParseRef(text); err == nil && r.isAny(allowed) && (strings.Contains(text, ":") || key == "message" ||
		key == "key") {
		c.Fail(key, "%q is plain text here: to use the value, write %q", text, "{"+text+"}")
	}
	checkRefPaths(c, key, text, t.Refs()...)
	for _, r := range t.Refs() {
		if !r.isAny(allowed) {
			c.Fail(key, "%q: {%s} is not allowed here: use %s in braces", text, r, describeKinds(allowed))
		}
	}
}

// checkRefPaths rejects references whose path has an empty part.
func checkRefPaths(c settings.Checker, key, text string, refs ...Ref) {
	for _, r := range refs {
		if (r.Kind == JSON || r.Kind == Root) && settings.HasEmptyPart(r.Name) {
			c.Fail(key, "%q: %s is not a path: a part between its dots is empty", text, r.Name)
		}
	}
}
