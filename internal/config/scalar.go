package config

import (
	"encoding"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"
)

// setScalar sets a field from text, in the format of the file: durations as "5s", lists as
// comma-separated words.
func setScalar(v reflect.Value, text string) error {
	if u, ok := v.Addr().Interface().(encoding.TextUnmarshaler); ok {
		return u.UnmarshalText([]byte(text))
	}
	if v.Type() == reflect.TypeFor[time.Duration]() {
		d, err := time.ParseDuration(text)
		if err != nil {
			return fmt.Errorf("%q is not a duration: write e.g. 500ms, 5s, 10m or 24h", text)
		}
		v.SetInt(int64(d))
		return nil
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(text)
	case reflect.Int, reflect.Int64:
		n, err := strconv.ParseInt(text, 10, v.Type().Bits())
		if err != nil {
			return fmt.Errorf("%q is not a whole number", text)
		}
		v.SetInt(n)
	case reflect.Bool:
		if text != "true" && text != "false" {
			return fmt.Errorf("%q is neither true nor false", text)
		}
		v.SetBool(text == "true")
	case reflect.Slice:
		return setList(v, splitList(text))
	case reflect.Map:
		return setPairs(v, text)
	case reflect.Pointer: // a pointer distinguishes false from unset
		value := reflect.New(v.Type().Elem())
		if err := setScalar(value.Elem(), text); err != nil {
			return err
		}
		v.Set(value)
	default:
		return fmt.Errorf("settings of kind %s cannot be set from text", v.Kind())
	}
	return nil
}

// setList sets a list of words or whole numbers.
func setList(v reflect.Value, words []string) error {
	out := reflect.MakeSlice(v.Type(), len(words), len(words))
	for i, word := range words {
		if err := setScalar(out.Index(i), word); err != nil {
			return err
		}
	}
	v.Set(out)
	return nil
}

// setPairs parses source=shop,rate=5.
func setPairs(v reflect.Value, text string) error {
	out := reflect.MakeMap(v.Type())
	for _, pair := range splitList(text) {
		name, value, ok := strings.Cut(pair, "=")
		if !ok {
			return fmt.Errorf("%q is not name=value: write e.g. source=shop,rate=5", pair)
		}
		element := reflect.New(v.Type().Elem()).Elem()
		if err := setScalar(element, value); err != nil {
			return err
		}
		out.SetMapIndex(reflect.ValueOf(name), element)
	}
	v.Set(out)
	return nil
}

func splitList(text string) []string {
	var out []string
	for word := range strings.SplitSeq(text, ",") {
		if word = strings.TrimSpace(word); word != "" {
			out = append(out, word)
		}
	}
	return out
}
