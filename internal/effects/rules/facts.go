package rules

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"strconv"
	"strings"
	"time"
)

// Facts are what rules and templates of one effect see.
type Facts struct {
	// Old and New are states, nil where there was none; of a deleted object New is the last one.
	Old, New map[string]any
	// On is what was asked.
	On     On
	Object Object
	Event  Event
	Window Window
	// Steps are what the steps before have captured, by step and name.
	Steps map[string]map[string]any
	// Raw is all of old, new, object, event and window that there is, as JSON, with its numbers as they came.
	Raw json.RawMessage
	// StepKey is by what the other side knows the step.
	StepKey string
	Answer  Answer
	// ReservedAt is when the step is taken, for the date of a mail; expressions do not see it.
	ReservedAt time.Time
}

// Answer is what the other side has answered; Body is nil where it is no JSON.
type Answer struct {
	Status int
	Body   any
}

// Object names an object, and how it is after the change.
type Object struct {
	Source, Account, Type, ID string
	Deleted                   bool
}

// Event is the one that made the change. Times are RFC 3339; OccurredAt is empty where the provider tells none.
type Event struct {
	ID, Key, Type, Origin, OccurredAt, ReceivedAt string
}

// Window is what a schedule's turn is about, in RFC 3339.
type Window struct{ Start, End string }

func (f *Facts) environment(w *work) map[string]any {
	steps := map[string]any{}
	for name, captured := range f.Steps {
		steps[name] = captured
	}
	o, e := &f.Object, &f.Event
	return map[string]any{
		"old": f.Old, "new": f.New, "changed": func(path string) (bool, error) { return f.changed(w, path) }, "steps": steps,
		"object":   map[string]any{"source": o.Source, "account": o.Account, "type": o.Type, "id": o.ID, "deleted": o.Deleted},
		"event":    map[string]any{"id": e.ID, "key": e.Key, "type": e.Type, "origin": e.Origin, "occurred_at": e.OccurredAt, "received_at": e.ReceivedAt},
		"step_key": f.StepKey, "answer": map[string]any{"status": f.Answer.Status, "body": f.Answer.Body},
		"window": map[string]any{"start": f.Window.Start, "end": f.Window.End},
		turn:     w.turn, weigh: w.weigh, equal: w.equal, inside: w.in, call: w.call,
	}
}

// changed says whether what is at a path, names and places in arrays between dots, is another than before: one that came or went has changed too.
func (f *Facts) changed(w *work, path string) (bool, error) {
	if path == "" {
		return false, fmt.Errorf(`changed(""): name a path, as changed("status")`)
	}
	w.text(path, 1)
	old, was := at(any(f.Old), path)
	now, is := at(any(f.New), path)
	w.both(old, now)
	return was != is || !reflect.DeepEqual(old, now), nil
}

// Find is what lies at a path of a JSON value, names and places in arrays between dots.
func Find(value any, path string) (any, bool) { return at(value, path) }

// at is what lies at a path of a state.
func at(state any, path string) (any, bool) {
	here := state
	for name := range strings.SplitSeq(path, ".") {
		switch v := here.(type) {
		case map[string]any:
			next, ok := v[name]
			if !ok {
				return nil, false
			}
			here = next
		case []any:
			i, err := strconv.Atoi(name)
			if err != nil || i < 0 || i >= len(v) {
				return nil, false
			}
			here = v[i]
		default:
			return nil, false
		}
	}
	return here, true
}

// Decode reads a state as expressions see it: whole numbers that fit are int, other numbers float64. Those that neither holds exactly stay text, so that an amount or an id
// is never another one.
func Decode(state []byte) (map[string]any, error) {
	if len(state) == 0 {
		return nil, nil
	}
	d := json.NewDecoder(bytes.NewReader(state))
	d.UseNumber()
	var out map[string]any
	if err := d.Decode(&out); err != nil {
		return nil, fmt.Errorf("read a state: %w", err)
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, fmt.Errorf("read a state: there is more than one value")
	}
	for name, v := range out {
		out[name] = numbers(v)
	}
	return out, nil
}

func numbers(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for name, of := range v {
			v[name] = numbers(of)
		}
	case []any:
		for i, of := range v {
			v[i] = numbers(of)
		}
	case json.Number:
		return number(string(v))
	}
	return v
}

// number reads a number so that it is printed as it was, but for zeros at the end of a fraction.
func number(text string) any {
	if i, err := strconv.Atoi(text); err == nil {
		return i
	}
	plain := text
	if strings.Contains(text, ".") {
		plain = strings.TrimSuffix(strings.TrimRight(text, "0"), ".")
	}
	if f, err := strconv.ParseFloat(text, 64); err == nil && strconv.FormatFloat(f, 'f', -1, 64) == plain {
		return f
	}
	return text
}
