package providertest

import (
	"bytes"
	"encoding/json"
	"net/url"
	"strconv"
	"strings"
	"testing"
)

// addMember adds a member to every object of a body, or a field to a form.
func addMember(t *testing.T, body []byte) []byte {
	t.Helper()
	root, ok := decoded(body)
	if !ok {
		form := formOf(t, body)
		if payload, ok := decoded([]byte(form.Get("payload"))); ok {
			form.Set("payload", string(encoded(t, addToEach(payload))))
		}
		form.Set("postern_test", "1")
		return []byte(form.Encode())
	}
	return encoded(t, addToEach(root))
}

func addToEach(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for name, each := range v {
			v[name] = addToEach(each)
		}
		v["postern_test"] = 1
	case []any:
		for i, each := range v {
			v[i] = addToEach(each)
		}
	}
	return v
}

// fieldOf returns the value at a dotted path of a body, or of a form's field.
func fieldOf(t *testing.T, body []byte, path string) any {
	t.Helper()
	root, ok := decoded(body)
	if !ok {
		return formOf(t, body).Get(path)
	}
	for _, step := range strings.Split(path, ".") {
		root = stepInto(root, step)
	}
	return root
}

func stepInto(v any, step string) any {
	switch in := v.(type) {
	case map[string]any:
		return in[step]
	case []any:
		if n, err := strconv.Atoi(step); err == nil && n >= 0 && n < len(in) {
			return in[n]
		}
	}
	return nil
}

// changed replaces the value at a dotted path of a body, or a form's field; a nil function removes
// it.
func changed(t *testing.T, body []byte, path string, change func(any) any) []byte {
	t.Helper()
	root, ok := decoded(body)
	if !ok {
		form := formOf(t, body)
		if change == nil {
			form.Del(path)
		} else {
			text, _ := change(form.Get(path)).(string)
			form.Set(path, text)
		}
		return []byte(form.Encode())
	}
	parent, steps := root, strings.Split(path, ".")
	for _, step := range steps[:len(steps)-1] {
		parent = stepInto(parent, step)
	}
	object, ok := parent.(map[string]any)
	last := steps[len(steps)-1]
	switch {
	case !ok || object[last] == nil:
		t.Fatalf("the body has no %s", path)
	case change == nil:
		delete(object, last)
	default:
		object[last] = change(object[last])
	}
	return encoded(t, root)
}

// alter returns another value of the same type.
func alter(v any) any {
	switch v := v.(type) {
	case string:
		return v[:len(v)-1] + string(rune(v[len(v)-1]^1))
	case json.Number:
		return json.Number(v.String() + "1")
	}
	return "altered"
}

func decoded(body []byte) (any, bool) {
	d := json.NewDecoder(bytes.NewReader(body))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return nil, false
	}
	switch v.(type) {
	case map[string]any, []any:
		return v, true
	}
	return nil, false
}

func encoded(t *testing.T, v any) []byte {
	t.Helper()
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		t.Fatal(err)
	}
	return bytes.TrimSpace(out.Bytes())
}

func formOf(t *testing.T, body []byte) url.Values {
	t.Helper()
	form, err := url.ParseQuery(string(body))
	if err != nil {
		t.Fatalf("the body is neither JSON nor a form: %v", err)
	}
	return form
}
