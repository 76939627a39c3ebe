package settings

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// Checker collects the problems of the settings below a path.
type Checker struct {
	path     string
	problems *[]error
}

// Check returns a Checker without problems.
func Check(path string) Checker { return Checker{path: path, problems: new([]error)} }

// Under returns a Checker for the settings below a key. It collects into the same list.
func (c Checker) Under(key string) Checker {
	return Checker{path: c.path + "." + key, problems: c.problems}
}

// Fail records what is wrong with a setting and what to write. An empty key means all settings of
// the path.
func (c Checker) Fail(key, format string, args ...any) {
	path := c.path
	if key != "" {
		path += "." + key
	}
	*c.problems = append(*c.problems, &Problem{Path: path, Msg: fmt.Sprintf(format, args...)})
}

// Count returns the number of problems so far.
func (c Checker) Count() int { return len(*c.problems) }

// Err joins all problems; nil if there are none.
func (c Checker) Err() error { return errors.Join(*c.problems...) }

// Path requires a path in a value, for example without braces or json: before it.
func (c Checker) Path(key, text string) {
	rest, isRef := strings.CutPrefix(strings.Trim(text, "{}"), "json:")
	switch {
	case strings.ContainsAny(text, "{}") || isRef:
		c.Fail(key, "%q is a reference, but a path is required: write %s", text, rest)
	case HasEmptyPart(strings.TrimPrefix(text, "root:")):
		c.Fail(key, "%q is not a path: a part between its dots is empty", text)
	}
}

// HasEmptyPart reports whether a path has an empty part; "." means the whole value.
func HasEmptyPart(path string) bool {
	return path != "" && path != "." && slices.Contains(strings.Split(path, "."), "")
}

// IsZero reports whether no setting of a value is set. Empty lists and maps count as unset.
func IsZero[T any](v T) bool { return isZero(reflect.ValueOf(v)) }

func isZero(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Slice, reflect.Map:
		return v.Len() == 0
	case reflect.Struct:
		for i := range v.NumField() {
			if !isZero(v.Field(i)) {
				return false
			}
		}
		return true
	}
	return v.IsZero()
}
