// Package rules compiles and evaluates the conditions and templates of effect rules. Their data is
// an object, the change of an event, and values that earlier steps captured. Everything is compiled
// and checked when the configuration is read. An evaluation never depends on the time, on chance or
// on the network.
package rules

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/expr-lang/expr"
	"github.com/expr-lang/expr/file"
	"github.com/expr-lang/expr/types"
	"github.com/expr-lang/expr/vm"
)

const (
	// maxNodes bounds the size of one expression.
	maxNodes = 500
	// maxElements bounds the memory of one evaluation, in elements that it creates.
	maxElements = 100_000
)

var errTooManyElements = fmt.Errorf("creates more than %d elements", maxElements)

// nonDeterministic are functions of the language whose result depends on the time or the machine.
var nonDeterministic = []string{"now", "timezone"}

// Scope says which names an expression may use.
type Scope struct {
	// Change allows old, new, object, event and changed(). Every scope allows new and object.
	Change bool
	// Event allows event. new is then the state that the event itself carries.
	Event bool
	// Window allows window.start and window.end of a schedule.
	Window bool
	// Summary allows summary, with the names that it has; nil if the rule has none.
	Summary *Summary
	// Steps are the names of the earlier steps, with the names that each captures. It is nil
	// outside of steps; then step_key is not allowed either.
	Steps map[string][]string
	// Response allows answer.status and answer.body of the destination.
	Response bool
}

// Expression is a compiled expression. It is safe for concurrent use.
type Expression struct {
	text    string
	program *vm.Program
	// usesSteps reports that it uses values that earlier steps captured.
	usesSteps bool
	// usedNames are the names that it uses, such as new and event.id.
	usedNames map[string]bool
}

// Compile checks an expression. With condition set, its result must be a boolean. The error says
// where in the text it is wrong.
func Compile(text string, scope Scope, condition bool) (*Expression, error) {
	if strings.TrimSpace(text) == "" {
		return nil, errors.New("is empty")
	}
	options := []expr.Option{expr.Env(scope.variables()), expr.MaxNodes(maxNodes)}
	for _, name := range nonDeterministic {
		options = append(options, expr.DisableBuiltin(name))
	}
	if condition {
		options = append(options, expr.AsBool())
	}
	// check the text as it is written, because instrumentation changes types
	if _, err := expr.Compile(text, options...); err != nil {
		return nil, scope.explainField(err, text)
	}
	m := &instrumenter{usedNames: map[string]bool{}}
	program, err := expr.Compile(text, append(options, expr.Patch(m))...)
	if err = errors.Join(m.err, err); err != nil {
		return nil, withoutExcerpt(err)
	}
	return &Expression{text: text, program: program, usesSteps: m.usesSteps, usedNames: m.usedNames}, nil
}

// variables returns the types of the names that may be used. States may have any member. All other
// values have only the listed ones, so that compiling finds a misspelled name.
func (s Scope) variables() types.Map {
	object := types.Map{"source": types.String, "account": types.String, "type": types.String, "id": types.String,
		"deleted": types.Bool}
	all := types.Map{"new": types.TypeOf(map[string]any{}), "object": object,
		countIterationFunc: types.TypeOf((&workMeter{}).countIteration), weighFunc: types.TypeOf((&workMeter{}).weigh),
		builtinFunc: types.TypeOf((&workMeter{}).callBuiltin)}
	if s.Change {
		all["old"] = types.TypeOf(map[string]any{})
		all["changed"] = types.TypeOf(func(string) (bool, error) { return false, nil })
	}
	if s.Change || s.Event {
		all["event"] = types.Map{"id": types.String, "key": types.String, "type": types.String, "origin": types.String,
			"occurred_at": types.String, "received_at": types.String}
	}
	if s.Window {
		all["window"] = types.Map{"start": types.String, "end": types.String}
	}
	if s.Summary != nil {
		all["summary"] = s.Summary.variables()
	}
	if s.Response {
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

// parentName matches the name at the end of a text whose field comes next.
var parentName = regexp.MustCompile(`(?:^|[^\w.])(\w+)\??\.$`)

// explainField is withoutExcerpt. It adds the existing fields to an error about an unknown one, but
// not the values of steps.
func (s Scope) explainField(err error, text string) error {
	var f *file.Error
	if !errors.As(err, &f) || !strings.HasPrefix(f.Message, "unknown field ") {
		return withoutExcerpt(err)
	}
	parent := parentName.FindStringSubmatch(string([]rune(text)[:min(f.From, len([]rune(text)))]))
	if parent == nil || parent[1] == "steps" {
		return withoutExcerpt(err)
	}
	fields, ok := s.variables()[parent[1]].(types.Map)
	if !ok { // a name of the expression's own
		return withoutExcerpt(err)
	}
	return fmt.Errorf("%w: %s has %s", withoutExcerpt(err), parent[1],
		strings.Join(slices.Sorted(maps.Keys(fields)), ", "))
}

// withoutExcerpt removes the excerpt of the text, because the message of the configuration has it.
func withoutExcerpt(err error) error {
	var f *file.Error
	if errors.As(err, &f) {
		return fmt.Errorf("column %d: %s", f.Column+1, f.Message)
	}
	return err
}

// String returns the text of the expression.
func (e *Expression) String() string { return e.text }

// Eval evaluates the expression over data that fits its scope. It returns an error if the
// evaluation exceeds a bound.
func (e *Expression) Eval(f *TemplateData) (any, error) {
	got, err := e.run(f)
	switch {
	case errors.Is(err, errTooMuchWork):
		return nil, fmt.Errorf("%s: %w", e.text, errTooMuchWork)
	case err != nil && strings.Contains(err.Error(), "memory budget exceeded"): // the words of the library
		return nil, fmt.Errorf("%s: %w", e.text, errTooManyElements)
	}
	if err != nil {
		// the message may contain values
		return nil, fmt.Errorf("%s: %s", e.text, StorableMessage(withoutExcerpt(err).Error()))
	}
	return got, nil
}

func (e *Expression) run(f *TemplateData) (got any, err error) {
	defer func() {
		if p := recover(); p != nil {
			got, err = nil, fmt.Errorf("%v", p)
			if of, ok := p.(error); ok {
				err = of
			}
		}
	}()
	w := &workMeter{}
	machine := vm.VM{MemoryBudget: maxElements}
	if got, err = machine.Run(e.program, f.environment(w)); err == nil {
		w.visit(got, 1, 0) // the caller writes the result
	}
	return got, err
}

// EvalBool evaluates a condition.
func (e *Expression) EvalBool(f *TemplateData) (bool, error) {
	got, err := e.Eval(f)
	if err != nil {
		return false, err
	}
	result, ok := got.(bool)
	if !ok {
		return false, fmt.Errorf("%s: has type %v and is neither true nor false", e.text, reflect.TypeOf(got))
	}
	return result, nil
}
