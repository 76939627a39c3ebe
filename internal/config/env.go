package config

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/postern-gateway/postern/internal/settings"
)

// EnvName returns the variable of a setting: database.url is POSTERN_DATABASE_URL,
// sources.my-shop.secrets.0.value is POSTERN_SOURCES_MY_SHOP_SECRETS_0_VALUE.
func EnvName(path ...string) string {
	name := strings.ToUpper("postern_" + strings.Join(path, "_"))
	return strings.ReplaceAll(name, "-", "_")
}

// overrides applies POSTERN_... variables to a decoded file and records which settings they set.
type overrides struct {
	env   func(string) string
	paths map[string]string // dotted path to variable
	// openPrefixes are the beginnings of variables for settings below sources and similar maps,
	// whose names the file defines.
	openPrefixes []string
	errs         []error
}

// apply sets the fields of v. A variable that is unset or empty keeps the file's value.
func (o *overrides) apply(v reflect.Value, path []string) {
	switch {
	case isText(v):
		o.applyScalar(v, path)
	case v.Kind() == reflect.Struct:
		for field, name := range settingsOf(v) {
			o.apply(field, append(slices.Clone(path), name))
		}
	case v.Kind() == reflect.Pointer && v.Type().Elem().Kind() == reflect.Struct:
		section := reflect.New(v.Type().Elem())
		if !v.IsNil() {
			section = v
		}
		if o.apply(section.Elem(), path); !section.Elem().IsZero() {
			v.Set(section)
		}
	case v.Kind() == reflect.Map && v.Type().Elem().Kind() == reflect.Pointer:
		o.applyNamed(v, path)
	case v.Kind() == reflect.Slice && v.Type().Elem().Kind() == reflect.Struct &&
		!isText(reflect.New(v.Type().Elem()).Elem()):
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
		o.errs = append(o.errs, &settings.Problem{Env: name, Path: strings.Join(path, "."), Msg: err.Error()})
		return
	}
	o.paths[strings.Join(path, ".")] = name
}

// applyNamed handles the named entries of the file and those that the map's own variable adds
// (POSTERN_SOURCES=a,b).
func (o *overrides) applyNamed(v reflect.Value, path []string) {
	own := EnvName(path...)
	if len(path) == 1 {
		o.openPrefixes = append(o.openPrefixes, own+"_")
	}
	if v.IsNil() {
		v.Set(reflect.MakeMap(v.Type()))
	}
	for _, name := range splitList(o.env(own)) {
		if key := reflect.ValueOf(name); !v.MapIndex(key).IsValid() {
			v.SetMapIndex(key, reflect.New(v.Type().Elem().Elem()))
		}
		o.paths[strings.Join(path, ".")+"."+name] = own
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

// applyList overrides elements of the file by their index and appends further ones while a variable
// exists for the next index.
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

// sharedVariables finds entries whose names differ only in - and _, because one variable would set
// both.
func sharedVariables[V any](group string, named map[string]V) error {
	seen := map[string]string{}
	var bad []error
	for _, name := range sortedKeys(named) {
		variable := EnvName(group, name)
		if other, ok := seen[variable]; ok {
			bad = append(bad, &settings.Problem{Path: group + "." + name,
				Msg: fmt.Sprintf("shares its variables (%s_...) with %q: choose names that differ in more than - and "+
					"_", variable, other)})
		}
		seen[variable] = name
	}
	return errors.Join(bad...)
}
