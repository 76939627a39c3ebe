package config

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// EnvName is the variable that sets the setting at a path of the file: database.url is POSTERN_DATABASE_URL,
// sources.my-shop.secrets.0.value is POSTERN_SOURCES_MY_SHOP_SECRETS_0_VALUE.
func EnvName(path ...string) string {
	name := strings.ToUpper("postern_" + strings.Join(path, "_"))
	return strings.ReplaceAll(name, "-", "_")
}

// overrides lays POSTERN_... variables over a decoded file and remembers which paths they set.
type overrides struct {
	env func(string) string
	set map[string]string // path, dotted, to variable
	// open are the beginnings of the variables below sources and the like, whose names the file chooses.
	open []string
	bad  []error
}

// apply walks v; a variable that is unset or empty leaves the file's value alone.
func (o *overrides) apply(v reflect.Value, path []string) {
	switch {
	case v.Kind() == reflect.Struct:
		for i := range v.NumField() {
			if name := yamlName(v.Type().Field(i)); name != "" {
				o.apply(v.Field(i), append(slices.Clone(path), name))
			}
		}
	case v.Kind() == reflect.Map && v.Type().Elem().Kind() == reflect.Pointer:
		o.applyNamed(v, path)
	case v.Kind() == reflect.Slice && v.Type().Elem().Kind() == reflect.Struct:
		o.applyList(v, path)
	default:
		o.applyScalar(v, path)
	}
}

func (o *overrides) applyScalar(v reflect.Value, path []string) {
	name := EnvName(path...)
	text := o.env(name)
	if text == "" {
		return
	}
	if err := setScalar(v, text); err != nil {
		o.bad = append(o.bad, &Problem{Env: name, Path: strings.Join(path, "."), Msg: err.Error()})
		return
	}
	o.set[strings.Join(path, ".")] = name
}

// applyNamed takes the sources or schedules of the file and those that the map's own variable (POSTERN_SOURCES=a,b) adds.
func (o *overrides) applyNamed(v reflect.Value, path []string) {
	own := EnvName(path...)
	if len(path) == 1 {
		o.open = append(o.open, own+"_")
	}
	if v.IsNil() {
		v.Set(reflect.MakeMap(v.Type()))
	}
	for _, name := range splitList(o.env(own)) {
		if key := reflect.ValueOf(name); !v.MapIndex(key).IsValid() {
			v.SetMapIndex(key, reflect.New(v.Type().Elem().Elem()))
		}
		o.set[strings.Join(path, ".")+"."+name] = own
	}
	for _, key := range v.MapKeys() {
		elem := v.MapIndex(key)
		if elem.IsNil() {
			elem = reflect.New(v.Type().Elem().Elem())
			v.SetMapIndex(key, elem)
		}
		o.apply(elem.Elem(), append(slices.Clone(path), key.String()))
	}
}

// applyList overrides members of the file by place and adds further ones as long as a variable names the next place.
func (o *overrides) applyList(v reflect.Value, path []string) {
	for i := 0; ; i++ {
		at := append(slices.Clone(path), strconv.Itoa(i))
		if i < v.Len() {
			o.apply(v.Index(i), at)
			continue
		}
		fresh := reflect.New(v.Type().Elem()).Elem()
		o.apply(fresh, at)
		if fresh.IsZero() {
			return
		}
		v.Set(reflect.Append(v, fresh))
	}
}

// sharedVariables finds sources, or schedules, whose names differ only in - and _, so that one variable would set both.
func sharedVariables[V any](group string, named map[string]V) error {
	seen := map[string]string{}
	var bad []error
	for _, name := range sortedKeys(named) {
		variable := EnvName(group, name)
		if other, ok := seen[variable]; ok {
			bad = append(bad, &Problem{Path: group + "." + name,
				Msg: fmt.Sprintf("shares its variables (%s_...) with %q: choose names that differ in more than - and _", variable, other)})
		}
		seen[variable] = name
	}
	return errors.Join(bad...)
}
