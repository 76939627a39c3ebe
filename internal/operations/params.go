package operations

import (
	"encoding"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/postern-gateway/postern/internal/events"
)

// Param describes a parameter of an operation, a field of its struct. The JSON API uses its name.
// The command line uses the name with hyphens in place of underscores.
type Param struct {
	Name string
	// Help describes the parameter in a few words.
	Help string
	// Type is the type of the field.
	Type reflect.Type
	// Values are the only valid values; nil: there is no fixed set.
	Values []string
	// Min and Max are the range of a number, both 0 where it has none. Default is the number where
	// none is given; 0: there is none.
	Min, Max, Default int
	index             []int
}

// Params returns the parameters that a struct, or a pointer to one, describes, in their order.
// Those named in without are left out.
func Params(of any, without ...string) (all []Param) {
	t := reflect.TypeOf(of)
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	for _, f := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "" || slices.Contains(without, name) {
			continue
		}
		declaredIn := t.FieldByIndex(f.Index[:max(1, len(f.Index)-1)]).Type
		if len(f.Index) == 1 {
			declaredIn = t
		}
		_, rule, _ := strings.Cut(f.Tag.Get("validate"), ",")
		limit := limits[rule]
		all = append(all, Param{Name: name, Help: helpOf(declaredIn.Name(), name), Type: f.Type, Values: choices[rule],
			Min: limit.min, Max: limit.max, Default: limit.fallback, index: f.Index})
	}
	return all
}

// Parse sets the parameters of the struct that into points to from texts by name. An empty text is
// no value for a number, a time or a boolean. Parameters named in without do not exist. Errors:
// events.ErrInvalid for an unknown parameter, a text of another form, or one that PostgreSQL cannot
// store.
func Parse(into any, texts map[string]string, without ...string) error {
	known, v := Params(into, without...), reflect.ValueOf(into).Elem()
	for _, name := range slices.Sorted(maps.Keys(texts)) {
		i := slices.IndexFunc(known, func(p Param) bool { return p.Name == name })
		switch {
		case i < 0 && len(known) == 0:
			return invalid("parameter %q does not exist; this request has no parameters", name)
		case i < 0:
			return invalid("parameter %q does not exist; the parameters are %s", name, names(known))
		}
		if err := CheckStorable(name, texts[name]); err != nil {
			return err
		}
		if err := set(v.FieldByIndex(known[i].index), texts[name]); err != nil {
			return invalid("%s %q%w", name, texts[name], err)
		}
	}
	return nil
}

// set sets a field. The error continues a sentence that begins with the parameter's name and text.
func set(field reflect.Value, text string) error {
	if field.Kind() == reflect.Pointer {
		if text == "" && field.Type().Elem().Kind() != reflect.String {
			return nil
		}
		value := reflect.New(field.Type().Elem())
		field.Set(value)
		return set(value.Elem(), text)
	}
	if own, ok := field.Addr().Interface().(encoding.TextUnmarshaler); ok {
		return own.UnmarshalText([]byte(text))
	}
	switch kind := field.Kind(); {
	case kind == reflect.String:
		field.SetString(text)
	case field.Type() == reflect.TypeFor[json.RawMessage]():
		field.SetBytes([]byte(text))
	case text == "":
	case kind == reflect.Bool:
		if text != "true" && text != "false" {
			return fmt.Errorf(": give true or false")
		}
		field.SetBool(text == "true")
	case kind == reflect.Float64:
		n, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return errNoNumber
		}
		field.SetFloat(n)
	default:
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n < 0 {
			return errNoNumber
		}
		field.SetInt(n)
	}
	return nil
}

var errNoNumber = fmt.Errorf(" is not a number")

// Texts returns the parameters that are set, as texts by name: what Parse would read.
func Texts(of any, without ...string) map[string]string {
	texts := map[string]string{}
	v := reflect.Indirect(reflect.ValueOf(of))
	for _, p := range Params(of, without...) {
		field := v.FieldByIndex(p.index)
		if field.IsZero() {
			continue
		}
		switch value := reflect.Indirect(field).Interface().(type) {
		case encoding.TextMarshaler:
			text, _ := value.MarshalText() // those of this package return no error
			texts[p.Name] = string(text)
		case json.RawMessage:
			texts[p.Name] = string(value)
		default:
			texts[p.Name] = fmt.Sprint(value)
		}
	}
	return texts
}

// CheckStorable returns an error for a text that PostgreSQL can neither store nor compare. The
// error names the parameter and not the text, which may be personal data. Errors:
// events.ErrInvalid.
func CheckStorable(name, text string) error {
	if strings.ContainsRune(text, 0) || !utf8.ValidString(text) {
		return invalid("%s: the text contains the character U+0000 or is not valid UTF-8", name)
	}
	return nil
}

func names(params []Param) string {
	var all []string
	for _, p := range params {
		all = append(all, p.Name)
	}
	return strings.Join(all, ", ")
}

// invalid returns an error about the parameters of an operation.
func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{events.ErrInvalid}, args...)...)
}

// either returns a parameter that has two names.
func either(name, a, other, b string) (string, error) {
	switch {
	case a == "":
		return b, nil
	case b == "" || a == b:
		return a, nil
	}
	return "", invalid("%s %q and %s %q: they mean the same, so give one", name, a, other, b)
}
