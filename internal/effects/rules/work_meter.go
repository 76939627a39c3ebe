package rules

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/expr-lang/expr/builtin"
	"github.com/expr-lang/expr/vm/runtime"
)

// maxWork bounds the work of one evaluation. A unit takes less than a tenth of a microsecond: one
// visited value, 16 bytes of text, or a few nodes of a loop's body. Work is counted and not timed,
// so that the result does not depend on the load of the machine.
const maxWork = 10_000_000

var (
	// errTooManyIterations: an evaluation iterates over too many elements.
	errTooManyIterations = fmt.Errorf("iterates over more than %d elements", maxIterations)
	// errTooMuchWork: an evaluation compares, writes or copies too much.
	errTooMuchWork = fmt.Errorf("is too much work for an object as large as this: it compares, writes or copies too " +
		"much")
)

// workMeter counts the work of one evaluation.
type workMeter struct{ iterations, units int }

func (w *workMeter) spend(units int) {
	if w.units += units; units < 0 || w.units > maxWork {
		panic(errTooMuchWork)
	}
}

// countIteration counts an iteration of a loop whose body has a number of nodes.
func (w *workMeter) countIteration(nodes int) bool {
	if w.iterations++; w.iterations > maxIterations {
		panic(errTooManyIterations)
	}
	w.spend(1 + nodes/2)
	return true
}

// weigh counts visiting a value a number of times, and returns the value.
func (w *workMeter) weigh(times, v any) any {
	w.spendDeep(v, times.(int), 0)
	return v
}

func (w *workMeter) spendText(s string, times int) { w.spend(times * (1 + len(s)/16)) }

// spendDeep counts visiting all of a value. A deep part costs more, because it is written and
// flattened once for each level above it.
func (w *workMeter) spendDeep(v any, times, depth int) {
	w.spend(times * (1 + depth/16))
	switch v := v.(type) {
	case nil, bool, int, float64:
	case string:
		w.spend(times * (len(v) / 16))
	case map[string]any:
		for name, of := range v {
			w.spendText(name, times)
			w.spendDeep(of, times, depth+1)
		}
	case []any:
		for _, of := range v {
			w.spendDeep(of, times, depth+1)
		}
	default:
		w.spendReflected(reflect.ValueOf(v), times, depth)
	}
}

// spendReflected is spendDeep for values that builtin functions create.
func (w *workMeter) spendReflected(v reflect.Value, times, depth int) {
	switch v.Kind() {
	case reflect.Map:
		for all := v.MapRange(); all.Next(); {
			w.spendDeep(all.Key().Interface(), times, depth+1)
			w.spendDeep(all.Value().Interface(), times, depth+1)
		}
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			w.spendDeep(v.Index(i).Interface(), times, depth+1)
		}
	default:
	}
}

// spendShallow counts visiting the elements of a value, or its text.
func (w *workMeter) spendShallow(v any, times int) {
	if s, ok := v.(string); ok {
		w.spendText(s, times)
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

// spendComparison counts comparing two values, as far as they can be equal.
func (w *workMeter) spendComparison(a, b any) {
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
				w.spendText(name, 1)
				w.spendComparison(of, b[name])
			}
		}
	case []any:
		if b, ok := b.([]any); ok && len(a) == len(b) {
			for i := range a {
				w.spendComparison(a[i], b[i])
			}
			return
		}
		w.spendOtherComparison(a, b)
	default:
		w.spendOtherComparison(a, b)
	}
}

// spendOtherComparison is spendComparison for values that builtin functions create.
func (w *workMeter) spendOtherComparison(a, b any) {
	if length(a) == length(b) {
		w.spendDeep(a, 1, 0)
	}
}

// equal implements a == b.
func (w *workMeter) equal(a, b any) bool {
	w.spendComparison(a, b)
	return runtime.Equal(a, b)
}

// in implements needle in all.
func (w *workMeter) in(needle, all any) bool {
	switch all := all.(type) {
	case nil:
	case []any:
		for _, of := range all {
			w.spendComparison(of, needle)
		}
	case map[string]any:
		w.spendDeep(needle, 1, 0)
	default:
		w.spendDeep(needle, 1, 0)
		w.spendDeep(all, 1, 0)
	}
	return runtime.In(needle, all)
}

// cost says how a function visits its arguments.
type cost struct {
	spend func(w *workMeter, v any, times int)
	times int
}

var (
	textCost    = func(w *workMeter, v any, times int) { w.spendIfText(v, times) }
	shallowCost = func(w *workMeter, v any, times int) { w.spendShallow(v, times) }
	deepCost    = func(w *workMeter, v any, times int) { w.spendDeep(v, times, 0) }
)

func (w *workMeter) spendIfText(v any, times int) {
	s, _ := v.(string)
	w.spendText(s, times)
}

// costOf returns the cost of a builtin function. A function that is not in the table visits
// everything.
func costOf(name string) cost {
	switch name {
	case "type", "abs", "ceil", "floor", "round", "int", "float", "len", "trim", "trimPrefix", "trimSuffix", "upper",
		"lower", "indexOf", "lastIndexOf", "hasPrefix", "hasSuffix",
		"toBase64", "fromBase64", "duration", "date", "first", "last", "get", "take", "replace", "repeat":
		return cost{textCost, 1}
	case "split", "splitAfter":
		return cost{textCost, 16}
	case "keys", "values", "toPairs", "fromPairs", "reverse", "concat":
		return cost{shallowCost, 4}
	case "min", "max", "mean", "join", "uniq":
		return cost{deepCost, 1}
	case "median", "flatten", "string":
		return cost{deepCost, 4}
	case "sort", "fromJSON":
		return cost{deepCost, 16}
	}
	return cost{deepCost, 8}
}

// callBuiltin calls a builtin function by its name, the first argument.
func (w *workMeter) callBuiltin(args ...any) any {
	name, _ := args[0].(string)
	args = args[1:]
	p := costOf(name)
	for _, arg := range args {
		p.spend(w, arg, p.times)
	}
	w.spendResult(name, args)
	if list := reflect.ValueOf(args[0]); name == "uniq" && list.Kind() == reflect.Slice {
		return w.uniq(list)
	}
	return invokeBuiltin(builtin.Builtins[builtin.Index[name]], args)
}

// spendResult counts results that can be larger than all arguments.
func (w *workMeter) spendResult(name string, args []any) {
	switch name {
	case "join":
		if len(args) == 2 {
			w.spend(length(args[0]) * (length(args[1]) / 16))
		}
	case "repeat":
		n, most := runtime.ToInt(args[1]), maxWork*16/(1+length(args[0]))
		w.spend(min(max(n, 0), most+16) * (1 + length(args[0])) / 16)
	case "replace":
		s, _ := args[0].(string)
		old, _ := args[1].(string)
		w.spend(strings.Count(s, old) * (1 + length(args[2])/16))
	}
}

// uniq returns the first of each group of equal elements.
func (w *workMeter) uniq(list reflect.Value) []any {
	out := []any{}
	for i := range list.Len() {
		of := list.Index(i).Interface()
		if !slices.ContainsFunc(out, func(other any) bool { return w.equal(of, other) }) {
			out = append(out, of)
		}
	}
	return out
}

func invokeBuiltin(f *builtin.Function, args []any) any {
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
