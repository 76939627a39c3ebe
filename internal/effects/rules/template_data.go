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

// TemplateData is the data that rules and templates of one effect see.
type TemplateData struct {
	// Old and New are states, nil if there was none. New of a deleted object is its last state.
	Old, New map[string]any
	// On is the trigger of the rule.
	On     Trigger
	Object Object
	Event  Event
	Window Window
	// Summary is the rule's summary of other objects; nil if the rule has none.
	Summary map[string]any
	// Steps are the values that earlier steps captured, by step and name.
	Steps map[string]map[string]any
	// Raw is the JSON of old, new, object, event, window and summary, as far as they exist. It
	// keeps the provider's spelling of numbers.
	Raw json.RawMessage
	// Change is the message of the feed of changes, for OnRevision.
	Change json.RawMessage
	// StepKey is the idempotency key of the step at the destination.
	StepKey  string
	Response Response
	// ReservedAt is when the step was leased, for the date of a mail; expressions do not see it.
	ReservedAt time.Time
}

// Response is the response of the destination; Body is nil if it is not JSON.
type Response struct {
	Status int
	Body   any
}

// Object identifies an object and says whether it is deleted after the change.
type Object struct {
	Source, Account, Type, ID string
	Deleted                   bool
}

// Event is the event that made the change. Times are RFC 3339; OccurredAt is empty if the provider
// does not report it.
type Event struct {
	ID, Key, Type, Origin, OccurredAt, ReceivedAt string
}

// Window is the window that a schedule evaluates, in RFC 3339.
type Window struct{ Start, End string }

func (f *TemplateData) environment(w *workMeter) map[string]any {
	steps := map[string]any{}
	for name, captured := range f.Steps {
		steps[name] = captured
	}
	o, e := &f.Object, &f.Event
	return map[string]any{
		"old": f.Old, "new": f.New, "changed": func(path string) (bool, error) {
			return f.changed(w, path)
		}, "steps": steps,
		"object": map[string]any{"source": o.Source, "account": o.Account, "type": o.Type, "id": o.ID,
			"deleted": o.Deleted},
		"event": map[string]any{"id": e.ID, "key": e.Key, "type": e.Type, "origin": e.Origin,
			"occurred_at": e.OccurredAt, "received_at": e.ReceivedAt},
		"step_key": f.StepKey, "answer": map[string]any{"status": f.Response.Status, "body": f.Response.Body},
		"window": map[string]any{"start": f.Window.Start, "end": f.Window.End}, "summary": f.Summary,
		countIterationFunc: w.countIteration, weighFunc: w.weigh, builtinFunc: w.callBuiltin,
	}
}

// changed reports whether the value at a path differs between old and new, or exists in only one of
// them. A path is names and array indexes, separated by dots.
func (f *TemplateData) changed(w *workMeter, path string) (bool, error) {
	if path == "" {
		return false, fmt.Errorf(`changed(""): name a path, as changed("status")`)
	}
	w.visit(path, 1, 0)
	old, was := lookup(any(f.Old), path)
	now, is := lookup(any(f.New), path)
	w.visit(old, 1, 0)
	w.visit(now, 1, 0)
	return was != is || !reflect.DeepEqual(old, now), nil
}

// Lookup returns the value at a path of a JSON value. A path is names and array indexes, separated
// by dots.
func Lookup(value any, path string) (any, bool) { return lookup(value, path) }

// lookup returns the value at a path of a state.
func lookup(state any, path string) (any, bool) {
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

// Decode decodes a state for expressions. Whole numbers that fit become int, other numbers float64.
// A number that neither represents exactly stays text, so that no amount or id changes.
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
		out[name] = convertNumbers(v)
	}
	return out, nil
}

func convertNumbers(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for name, of := range v {
			v[name] = convertNumbers(of)
		}
	case []any:
		for i, of := range v {
			v[i] = convertNumbers(of)
		}
	case json.Number:
		return parseNumber(string(v))
	}
	return v
}

// parseNumber decodes a number so that it prints as it was, except for trailing zeros of a
// fraction.
func parseNumber(text string) any {
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
