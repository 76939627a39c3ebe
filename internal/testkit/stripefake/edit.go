package stripefake

import (
	"reflect"
	"strings"
)

// field is something an edit may change, and the few values it has: so an object comes back to states that it had.
type field struct {
	path   string
	values []any
}

// absent as a value: the key is not there.
var absent = new(int)

func list(values ...any) []any { return values }

// edits changes one or two of the fields.
func edits(fields ...field) func(*maker, tree) {
	return func(m *maker, o tree) {
		for range 1 + m.choose.IntN(2) {
			f := fields[m.choose.IntN(len(fields))]
			f.turn(m.choose, o)
		}
	}
}

// turn gives the field another value than it has.
func (f field) turn(c Chooser, o tree) {
	under, key := reach(o, f.path)
	i := c.IntN(len(f.values))
	if same(under, key, f.values[i]) {
		i = (i + 1) % len(f.values)
	}
	put(under, key, f.values[i])
}

// reach finds what a dotted path ends in. What lies on the way is there by birth.
func reach(o tree, path string) (tree, string) {
	for {
		head, rest, deep := strings.Cut(path, ".")
		if !deep {
			return o, head
		}
		o, path = o[head].(tree), rest
	}
}

func same(under tree, key string, value any) bool {
	is, there := under[key]
	if value == any(absent) || !there {
		return value == any(absent) && !there
	}
	return reflect.DeepEqual(is, clone(value)) // the numbers of a parsed object are float64
}

func put(under tree, key string, value any) {
	if value == any(absent) {
		delete(under, key)
		return
	}
	under[key] = clone(value)
}

// clone is a copy of a value as a parsed body has it.
func clone(value any) any { return parse(text(tree{"v": value}))["v"] }

// previous is the change-set from old to new: what changed fields were, null where they were not there; lists whole.
func previous(old, new tree) tree {
	set := tree{}
	for key, was := range old {
		is := new[key]
		wasTree, deep := was.(tree)
		isTree, both := is.(tree)
		switch {
		case reflect.DeepEqual(was, is):
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
