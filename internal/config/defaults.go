package config

import (
	"encoding"
	"fmt"
	"iter"
	"reflect"
	"strings"
)

// Default returns the configuration with all defaults.
func Default() *Config {
	c := &Config{}
	c.Complete()
	return c
}

// Complete sets every unset setting to its default. Load and Parse call it; only a Config made in
// code needs it.
func (c *Config) Complete() {
	fillDefaults(reflect.ValueOf(c).Elem())
	if c.Rejections.MaxBody == 0 {
		c.Rejections.MaxBody = c.Ingest.MaxBodyBytes
	}
	for name, s := range c.Schedules {
		if s == nil {
			s = &Schedule{}
			c.Schedules[name] = s
		}
		completeSchedule(s)
	}
	completeEffects(c)
	for name, src := range c.Sources {
		if src == nil {
			src = &Source{}
			c.Sources[name] = src
		}
		fillDefaults(reflect.ValueOf(src).Elem())
		if src.MaxBodyBytes == 0 {
			src.MaxBodyBytes = c.Ingest.MaxBodyBytes
		}
	}
}

// completeEffects sets the defaults of destinations, rules and alerts.
func completeEffects(c *Config) {
	for name, d := range c.Destinations {
		if d == nil {
			d = &Destination{}
			c.Destinations[name] = d
		}
		d.completeTimeout()
		fillDefaults(reflect.ValueOf(d).Elem())
	}
	for name, f := range c.Forward {
		if f == nil {
			f = &Forward{}
			c.Forward[name] = f
		}
		fillDefaults(reflect.ValueOf(f).Elem())
	}
	for name, n := range c.Notify {
		if n == nil {
			n = &Notification{}
			c.Notify[name] = n
		}
		fillDefaults(reflect.ValueOf(n).Elem())
	}
	for name, e := range c.Effects {
		if e == nil {
			e = &Effect{}
			c.Effects[name] = e
		}
		fillDefaults(reflect.ValueOf(e).Elem())
		for i := range e.Steps {
			fillDefaults(reflect.ValueOf(&e.Steps[i]).Elem())
		}
	}
}

func completeSchedule(s *Schedule) { fillDefaults(reflect.ValueOf(s).Elem()) }

// fillDefaults sets zero fields of a struct from their `default` tag. It panics on a tag that it
// cannot parse, which the first test or start reveals.
func fillDefaults(v reflect.Value) {
	for i := range v.NumField() {
		field, f := v.Type().Field(i), v.Field(i)
		if field.Type.Kind() == reflect.Struct && field.IsExported() {
			fillDefaults(f)
			continue
		}
		text, ok := field.Tag.Lookup("default")
		if !ok || !f.IsZero() {
			continue
		}
		if err := setScalar(f, text); err != nil {
			panic(fmt.Sprintf("config: default of %s.%s: %v", v.Type(), field.Name, err))
		}
	}
}

// inlined marks a struct whose settings are in the section around it.
const inlined = ",inline"

// yamlName returns the key of a field in the file; "" for a field that the file cannot set.
func yamlName(field reflect.StructField) string {
	name, _, _ := strings.Cut(field.Tag.Get("yaml"), ",")
	return strings.TrimPrefix(name, "-")
}

// settingsOf returns the fields of a struct that the file can set, with their keys.
func settingsOf(v reflect.Value) iter.Seq2[reflect.Value, string] {
	return func(yield func(reflect.Value, string) bool) {
		for i := range v.NumField() {
			field := v.Type().Field(i)
			if field.Tag.Get("yaml") == inlined {
				for inner, name := range settingsOf(v.Field(i)) {
					if !yield(inner, name) {
						return
					}
				}
			} else if name := yamlName(field); name != "" && !yield(v.Field(i), name) {
				return
			}
		}
	}
}

// isText reports whether a value of the file is a text that the value itself parses.
func isText(v reflect.Value) bool {
	_, ok := v.Addr().Interface().(encoding.TextUnmarshaler)
	return ok
}
