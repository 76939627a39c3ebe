package stripefake

import (
	"reflect"
	"strings"
)

// editableField is a field that edits change, with a few values, so that objects return to earlier
// states.
type editableField struct {
	path   string
	values []any
}

// absentValue as a value removes the key.
var absentValue = new(int)

func list(values ...any) []any { return values }

// editSome changes one or two of the fields.
func editSome(fields ...editableField) func(*changeContext, tree) {
	return func(m *changeContext, o tree) {
		for range 1 + m.choose.IntN(2) {
			f := fields[m.choose.IntN(len(fields))]
			f.setOtherValue(m.choose, o)
		}
	}
}

// setOtherValue gives the field a value other than the current one.
func (f editableField) setOtherValue(c Chooser, o tree) {
	under, key := descend(o, f.path)
	i := c.IntN(len(f.values))
	if holdsValue(under, key, f.values[i]) {
		i = (i + 1) % len(f.values)
	}
	setValue(under, key, f.values[i])
}

// descend returns the tree and the key at the end of a dotted path. All parts of the path exist
// from the creation.
func descend(o tree, path string) (tree, string) {
	for {
		head, rest, deep := strings.Cut(path, ".")
		if !deep {
			return o, head
		}
		o, path = o[head].(tree), rest
	}
}

func holdsValue(under tree, key string, value any) bool {
	fieldIs, there := under[key]
	if value == any(absentValue) || !there {
		return value == any(absentValue) && !there
	}
	return reflect.DeepEqual(fieldIs, clone(value)) // the numbers of a parsed object are float64
}

func setValue(under tree, key string, value any) {
	if value == any(absentValue) {
		delete(under, key)
		return
	}
	under[key] = clone(value)
}

// clone copies a value as a parsed body contains it.
func clone(value any) any { return parse(text(tree{"v": value}))["v"] }

// previous returns the change-set from old to new: the old values of changed fields, null for
// fields that did not exist, and lists as a whole.
func previous(old, new tree) tree {
	set := tree{}
	for key, was := range old {
		fieldIs := new[key]
		wasTree, deep := was.(tree)
		isTree, both := fieldIs.(tree)
		switch {
		case reflect.DeepEqual(was, fieldIs):
		case deep && both:
			set[key] = previous(wasTree, isTree)
		default:
			set[key] = was
		}
	}
	for key := range new {
		if _, there := old[key]; !there {
			set[key] = nil
		}
	}
	return set
}
