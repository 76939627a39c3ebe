package rules

import (
	"errors"
	"reflect"
	"slices"

	"github.com/expr-lang/expr/builtin"
	"github.com/expr-lang/expr/vm/runtime"
)

const (
	// maxWork bounds the work of one evaluation. A unit takes less than a tenth of a microsecond:
	// one visited value, or 16 bytes of text. Work is counted and not timed, so that the result
	// does not depend on the load of the machine.
	maxWork = 20_000_000
	// iterationWork is the work of one iteration of all(), map() and similar functions, nested ones
	// included. An iteration evaluates at most maxNodes nodes.
	iterationWork = 200
	// builtinWork is how often a builtin function visits its arguments, at most.
	builtinWork = 8
)

// errTooMuchWork: an evaluation iterates, compares, writes or copies too much.
var errTooMuchWork = errors.New("is too much work for an object as large as this: it iterates over, compares, writes " +
	"or copies too much")

// workMeter counts the work of one evaluation.
type workMeter struct{ units int }

func (w *workMeter) spend(units int) {
	if w.units += units; units < 0 || w.units > maxWork {
		panic(errTooMuchWork)
	}
}

// countIteration counts an iteration of a loop.
func (w *workMeter) countIteration() bool {
	w.spend(iterationWork)
	return true
}

// weigh counts visiting a value a number of times, and returns the value.
func (w *workMeter) weigh(times, v any) any {
	w.visit(v, times.(int), 0)
	return v
}

// visit counts visiting all of a value. A deep part costs more, because it is written and
// flattened once for each level above it.
func (w *workMeter) visit(v any, times, depth int) {
	w.spend(times * (1 + depth/16))
	switch v := v.(type) {
	case nil, bool, int, float64:
	case string:
		w.spend(times * (len(v) / 16))
	case map[string]any:
		for name, of := range v {
			w.visit(name, times, 0)
			w.visit(of, times, depth+1)
		}
	case []any:
		for _, of := range v {
			w.visit(of, times, depth+1)
		}
	default: // a value that a builtin function creates
		switch v := reflect.ValueOf(v); v.Kind() {
		case reflect.Map:
			for all := v.MapRange(); all.Next(); {
				w.visit(all.Key().Interface(), times, depth+1)
				w.visit(all.Value().Interface(), times, depth+1)
			}
		case reflect.Slice, reflect.Array:
			for i := range v.Len() {
				w.visit(v.Index(i).Interface(), times, depth+1)
			}
		default:
		}
	}
}

// length returns the number of elements or bytes of a value. A number is its own length, because
// repeat() repeats a text as often.
func length(v any) int {
	switch of := reflect.ValueOf(v); of.Kind() {
	case reflect.Map, reflect.Slice, reflect.Array, reflect.String:
		return of.Len()
	case reflect.Int, reflect.Int64, reflect.Float64:
		return min(max(runtime.ToInt(v), 0), 16*maxWork)
	default:
		return 0
	}
}

// constantCost are builtin functions that visit only a text, or an element, of their arguments.
var constantCost = []string{"len", "type", "first", "last", "get"}

// callBuiltin calls a builtin function by its name, the first argument.
func (w *workMeter) callBuiltin(args ...any) any {
	name, _ := args[0].(string)
	args = args[1:]
	for i, arg := range args {
		switch text, _ := arg.(string); {
		case name == "uniq": // compares each element with all others
			w.visit(arg, 1+length(arg)/4, 0)
		case slices.Contains(constantCost, name):
			w.visit(text, 1, 0)
		default:
			w.visit(arg, builtinWork, 0)
		}
		// their result may be as large as the product of the arguments
		if i > 0 && (name == "join" || name == "repeat" || name == "replace") {
			w.spend((1 + length(args[0])) * (1 + length(arg)/16))
		}
	}
	return invokeBuiltin(builtin.Builtins[builtin.Index[name]], args)
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
