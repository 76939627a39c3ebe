// Package rules reads what is written in rules of effects: conditions and templates over an object, the change that an event made of it, and what steps
// before have brought. Everything is compiled and checked when the configuration is read; nothing of it knows the time, chance, or the network.
package rules

import (
	"errors"
	"fmt"
	"reflect"
	"strings"

	"github.com/expr-lang/expr"
	"github.com/expr-lang/expr/file"
	"github.com/expr-lang/expr/types"
	"github.com/expr-lang/expr/vm"
)

const (
	// mostNodes bounds how large one expression may be.
	mostNodes = 500
	// mostTurns bounds how often one evaluation may go through bodies of all(), map() and the like, nested ones too.
	mostTurns = 100_000
	// mostMemory bounds what one evaluation may take, in elements that it makes.
	mostMemory = 100_000
)

// impure are functions of the language whose result depends on when they are called, or on where.
var impure = []string{"now", "timezone"}

// Scope is what an expression may name.
type Scope struct {
	// Change: old, new, object, event and changed(); what is asked by a schedule knows new and object of these.
	Change bool
	// Event: new and object, as an event alone tells of them, and event.
	Event bool
	// Window: window.start and window.end, of a schedule.
	Window bool
	// Steps are the names of the steps before, and what each captures; nil outside of steps, where there is no step_key either.
	Steps map[string][]string
	// Answer: answer.status and answer.body, of the other side.
	Answer bool
}

// Expression is a compiled expression. It is for any number of goroutines.
type Expression struct {
	text    string
	program *vm.Program
	// steps: it names what steps before have captured.
	steps bool
	// names are what it names, as new, and event.id.
	names map[string]bool
}

// Compile checks an expression, whose result must be a boolean where condition is set. The error says where in the text it is wrong.
func Compile(text string, scope Scope, condition bool) (*Expression, error) {
	if strings.TrimSpace(text) == "" {
		return nil, errors.New("is empty")
	}
	options := []expr.Option{expr.Env(scope.types()), expr.MaxNodes(mostNodes)}
	for _, name := range impure {
		options = append(options, expr.DisableBuiltin(name))
	}
	if condition {
		options = append(options, expr.AsBool())
	}
	if _, err := expr.Compile(text, options...); err != nil {
		return nil, told(err) // of the text as it is written, with its types
	}
	m := &metered{names: map[string]bool{}}
	program, err := expr.Compile(text, append(options, expr.Patch(m))...)
	if err = errors.Join(m.err, err); err != nil {
		return nil, told(err)
	}
	return &Expression{text: text, program: program, steps: m.steps, names: m.names}, nil
}

// types are those of what may be named: states are open, all else is closed, so that a slip is found when the rule is read.
func (s Scope) types() types.Map {
	object := types.Map{"source": types.String, "account": types.String, "type": types.String, "id": types.String, "deleted": types.Bool}
	all := types.Map{"new": types.TypeOf(map[string]any{}), "object": object, turn: types.TypeOf((&work{}).turn), weigh: types.TypeOf((&work{}).weigh),
		equal: types.TypeOf((&work{}).equal), inside: types.TypeOf((&work{}).in), call: types.TypeOf((&work{}).call)}
	if s.Change {
		all["old"] = types.TypeOf(map[string]any{})
		all["changed"] = types.TypeOf(func(string) (bool, error) { return false, nil })
	}
	if s.Change || s.Event {
		all["event"] = types.Map{"id": types.String, "key": types.String, "type": types.String, "origin": types.String, "occurred_at": types.String, "received_at": types.String}
	}
	if s.Window {
		all["window"] = types.Map{"start": types.String, "end": types.String}
	}
	if s.Answer {
		all["answer"] = types.Map{"status": types.Int, "body": types.Any}
	}
	if s.Steps != nil {
		steps := types.Map{}
		for name, captures := range s.Steps {
			step := types.Map{}
			for _, c := range captures {
				step[c] = types.Any
			}
			steps[name] = step
		}
		all["steps"], all["step_key"] = steps, types.String
	}
	return all
}

// told leaves out the excerpt of the text, which the configuration's own message has.
func told(err error) error {
	var f *file.Error
	if errors.As(err, &f) {
		return fmt.Errorf("column %d: %s", f.Column+1, f.Message)
	}
	return err
}

// Eval evaluates the expression over facts that fit its scope. One that is too much work for them is an error.
func (e *Expression) Eval(f *Facts) (any, error) {
	got, err := e.run(f)
	for _, bound := range []error{errTurns, errWork} {
		if errors.Is(err, bound) {
			return nil, fmt.Errorf("%s: %w", e.text, bound)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %s", e.text, Plain(told(err).Error())) // what it says may hold values
	}
	return got, nil
}

func (e *Expression) run(f *Facts) (got any, err error) {
	defer func() {
		if p := recover(); p != nil {
			got, err = nil, fmt.Errorf("%v", p)
			if of, ok := p.(error); ok {
				err = of
			}
		}
	}()
	w := &work{}
	machine := vm.VM{MemoryBudget: mostMemory}
	if got, err = machine.Run(e.program, f.environment(w)); err == nil {
		w.deep(got, 1, 0) // what it gives is written somewhere
	}
	return got, err
}

// Holds evaluates a condition.
func (e *Expression) Holds(f *Facts) (bool, error) {
	got, err := e.Eval(f)
	if err != nil {
		return false, err
	}
	yes, ok := got.(bool)
	if !ok {
		return false, fmt.Errorf("%s: is %v, neither true nor false", e.text, reflect.TypeOf(got))
	}
	return yes, nil
}
