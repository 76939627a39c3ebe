package rules

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/expr-lang/expr/builtin"
	"github.com/expr-lang/expr/vm/runtime"
)

// mostWork bounds the work of one evaluation. A unit takes less than a tenth of a microsecond: a value that is gone through, 16 bytes of text, a few nodes of a loop's
// body. It is counted and not timed, so that what follows from a change does not depend on how busy a machine is.
const mostWork = 10_000_000

var (
	// errTurns: an evaluation goes through too many elements.
	errTurns = fmt.Errorf("goes through more than %d elements", mostTurns)
	// errWork: an evaluation compares, writes or copies too much.
	errWork = fmt.Errorf("is too much work for an object as large as this: it compares, writes or copies too much")
)

// work counts what one evaluation does.
type work struct{ turns, done int }

func (w *work) spend(units int) {
	if w.done += units; units < 0 || w.done > mostWork {
		panic(errWork)
	}
}

// turn counts a turn of a loop whose body has so many nodes.
func (w *work) turn(nodes int) bool {
	if w.turns++; w.turns > mostTurns {
		panic(errTurns)
	}
	w.spend(1 + nodes/2)
	return true
}

// weigh counts going through a value so often, and gives the value.
func (w *work) weigh(times, v any) any {
	w.deep(v, times.(int), 0)
	return v
}

func (w *work) text(s string, times int) { w.spend(times * (1 + len(s)/16)) }

// deep counts going through all of a value; what lies deep is written and flattened once for each level above it.
func (w *work) deep(v any, times, depth int) {
	w.spend(times * (1 + depth/16))
	switch v := v.(type) {
	case nil, bool, int, float64:
	case string:
		w.spend(times * (len(v) / 16))
	case map[string]any:
		for name, of := range v {
			w.text(name, times)
			w.deep(of, times, depth+1)
		}
	case []any:
		for _, of := range v {
			w.deep(of, times, depth+1)
		}
	default:
		w.reflected(reflect.ValueOf(v), times, depth)
	}
}

// reflected is deep for what functions of the language make.
func (w *work) reflected(v reflect.Value, times, depth int) {
	switch v.Kind() {
	case reflect.Map:
		for all := v.MapRange(); all.Next(); {
			w.deep(all.Key().Interface(), times, depth+1)
			w.deep(all.Value().Interface(), times, depth+1)
		}
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			w.deep(v.Index(i).Interface(), times, depth+1)
		}
	default:
	}
}

// shallow counts going through the elements of a value, or its text.
func (w *work) shallow(v any, times int) {
	if s, ok := v.(string); ok {
		w.text(s, times)
		return
	}
	w.spend(times * (1 + length(v)))
}

func length(v any) int {
	switch of := reflect.ValueOf(v); of.Kind() {
	case reflect.Map, reflect.Slice, reflect.Array, reflect.String:
		return of.Len()
	default:
		return 0
	}
}

// both counts comparing two values, as far as they can be equal.
func (w *work) both(a, b any) {
	w.spend(1)
	switch a := a.(type) {
	case nil, bool, int, float64:
	case string:
		if b, ok := b.(string); ok && len(a) == len(b) {
			w.spend(len(a) / 16)
		}
	case map[string]any:
		if b, ok := b.(map[string]any); ok && len(a) == len(b) {
			for name, of := range a {
				w.text(name, 1)
				w.both(of, b[name])
			}
		}
	case []any:
		if b, ok := b.([]any); ok && len(a) == len(b) {
			for i := range a {
				w.both(a[i], b[i])
			}
			return
		}
		w.others(a, b)
	default:
		w.others(a, b)
	}
}

// others is both for what functions of the language make.
func (w *work) others(a, b any) {
	if length(a) == length(b) {
		w.deep(a, 1, 0)
	}
}

// equal is a == b.
func (w *work) equal(a, b any) bool {
	w.both(a, b)
	return runtime.Equal(a, b)
}

// in is needle in all.
func (w *work) in(needle, all any) bool {
	switch all := all.(type) {
	case nil:
	case []any:
		for _, of := range all {
			w.both(of, needle)
		}
	case map[string]any:
		w.deep(needle, 1, 0)
	default:
		w.deep(needle, 1, 0)
		w.deep(all, 1, 0)
	}
	return runtime.In(needle, all)
}

// price is how a function goes through what it is given.
type price struct {
	walk  func(w *work, v any, times int)
	times int
}

var (
	texts   = func(w *work, v any, times int) { w.textOf(v, times) }
	entries = func(w *work, v any, times int) { w.shallow(v, times) }
	values  = func(w *work, v any, times int) { w.deep(v, times, 0) }
)

func (w *work) textOf(v any, times int) {
	s, _ := v.(string)
	w.text(s, times)
}

// priceOf is what a function costs. One that is not known goes through all.
func priceOf(name string) price {
	switch name {
	case "type", "abs", "ceil", "floor", "round", "int", "float", "len", "trim", "trimPrefix", "trimSuffix", "upper", "lower", "indexOf", "lastIndexOf", "hasPrefix", "hasSuffix",
		"toBase64", "fromBase64", "duration", "date", "first", "last", "get", "take", "replace", "repeat":
		return price{texts, 1}
	case "split", "splitAfter":
		return price{texts, 16}
	case "keys", "values", "toPairs", "fromPairs", "reverse", "concat":
		return price{entries, 4}
	case "min", "max", "mean", "join", "uniq":
		return price{values, 1}
	case "median", "flatten", "string":
		return price{values, 4}
	case "sort", "fromJSON":
		return price{values, 16}
	}
	return price{values, 8}
}

// call calls a function of the language by its name, the first argument.
func (w *work) call(args ...any) any {
	name, _ := args[0].(string)
	args = args[1:]
	p := priceOf(name)
	for _, arg := range args {
		p.walk(w, arg, p.times)
	}
	w.made(name, args)
	if list := reflect.ValueOf(args[0]); name == "uniq" && list.Kind() == reflect.Slice {
		return w.uniq(list)
	}
	return called(builtin.Builtins[builtin.Index[name]], args)
}

// made counts what is larger than all that a function is given.
func (w *work) made(name string, args []any) {
	switch name {
	case "join":
		if len(args) == 2 {
			w.spend(length(args[0]) * (length(args[1]) / 16))
		}
	case "repeat":
		n, most := runtime.ToInt(args[1]), mostWork*16/(1+length(args[0]))
		w.spend(min(max(n, 0), most+16) * (1 + length(args[0])) / 16)
	case "replace":
		s, _ := args[0].(string)
		old, _ := args[1].(string)
		w.spend(strings.Count(s, old) * (1 + length(args[2])/16))
	}
}

// uniq are the first of the elements that are equal.
func (w *work) uniq(list reflect.Value) []any {
	out := []any{}
	for i := range list.Len() {
		of := list.Index(i).Interface()
		if !slices.ContainsFunc(out, func(other any) bool { return w.equal(of, other) }) {
			out = append(out, of)
		}
	}
	return out
}

func called(f *builtin.Function, args []any) any {
	var out any
	var err error
	switch {
	case f.Fast != nil:
		return f.Fast(args[0])
	case f.Safe != nil:
		out, _, err = f.Safe(args...)
	default:
		out, err = f.Func(args...)
	}
	if err != nil {
		panic(err)
	}
	return out
}
