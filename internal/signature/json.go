package signature

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strconv"
)

// findJSON finds a text, number or truth value in a body by its path, numbers and truth values as they are written. It reads token
// by token and keeps none, since nobody has proven the body yet. Of members with one name the last counts, as everywhere.
func findJSON(body []byte, path []string) (string, bool) {
	d := json.NewDecoder(bytes.NewReader(body))
	d.UseNumber()
	var found string
	var ok bool
	err := walk(d, path, func(t json.Token) { found, ok = scalar(t) })
	if err != nil {
		return "", false
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return "", false
	}
	return found, ok
}

func scalar(t json.Token) (string, bool) {
	switch t := t.(type) {
	case string:
		return t, true
	case json.Number:
		return t.String(), true
	case bool:
		return strconv.FormatBool(t), true
	}
	return "", false
}

// walk reads one value and hands what lies at the path to found; nil where that is no scalar.
func walk(d *json.Decoder, path []string, found func(json.Token)) error {
	t, err := d.Token()
	if err != nil {
		return err
	}
	delim, container := t.(json.Delim)
	switch {
	case len(path) == 0 && container:
		found(nil)
		return skip(d)
	case len(path) == 0:
		found(t)
		return nil
	case !container:
		found(nil)
		return nil
	}
	for n := 0; d.More(); n++ {
		name := strconv.Itoa(n)
		if delim == '{' {
			if t, err = d.Token(); err != nil {
				return err
			}
			name, _ = t.(string)
		}
		if name == path[0] {
			err = walk(d, path[1:], found)
		} else {
			err = pass(d)
		}
		if err != nil {
			return err
		}
	}
	_, err = d.Token()
	return err
}

// pass reads over one value.
func pass(d *json.Decoder) error {
	t, err := d.Token()
	if err != nil {
		return err
	}
	if _, container := t.(json.Delim); container {
		return skip(d)
	}
	return nil
}

// skip reads to the end of the container that was opened last.
func skip(d *json.Decoder) error {
	for depth := 1; depth > 0; {
		t, err := d.Token()
		if err != nil {
			return err
		}
		switch t {
		case json.Delim('{'), json.Delim('['):
			depth++
		case json.Delim('}'), json.Delim(']'):
			depth--
		}
	}
	return nil
}
