package effects_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"
)

// told is what an event says: that an object is so, or not there, as of a time.
type told struct {
	Object string          `json:"object_id"`
	Time   int64           `json:"time"`
	Gone   bool            `json:"deleted"`
	State  json.RawMessage `json:"object"`
}

// thing is what a careful reader knows of an object: the newest time that it was told of, and all that it was told of that time. Of two things at once it is certain of neither.
type thing struct {
	at    int64
	told  []string
	knows bool
	// certain is what it was certain of last; "" is an object that is gone.
	certain string
}

// change is one from what was certain to what is certain now.
type change struct {
	object   string
	event    int64
	old, now string
	gone     bool
}

// reader reads events one after the other and tells of changes.
type reader map[string]*thing

func (r reader) read(t testing.TB, event int64, body []byte) *change {
	t.Helper()
	var e told
	if err := json.Unmarshal(body, &e); err != nil {
		t.Fatal(err)
	}
	state := ""
	if !e.Gone {
		state = plain(t, e.State)
	}
	of := r[e.Object]
	if of == nil {
		of = &thing{at: e.Time}
		r[e.Object] = of
	}
	switch {
	case e.Time < of.at:
		return nil
	case e.Time > of.at:
		of.at, of.told = e.Time, nil
	}
	if !slices.Contains(of.told, state) {
		of.told = append(of.told, state)
	}
	if len(of.told) > 1 || of.knows && of.certain == state {
		return nil
	}
	c := &change{object: e.Object, event: event, old: of.certain, now: state, gone: state == ""}
	if c.gone {
		c.now = c.old // rules see the last state of what is gone
	}
	of.knows, of.certain = true, state
	return c
}

// plain is JSON in one form.
func plain(t testing.TB, text []byte) string {
	t.Helper()
	var v any
	if err := json.Unmarshal(text, &v); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	if v == nil {
		return ""
	}
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// field is a field of a state as text; "" where there is none.
func field(state, name string) string {
	var v map[string]any
	if state == "" || json.Unmarshal([]byte(state), &v) != nil || v[name] == nil {
		return ""
	}
	return fmt.Sprint(v[name])
}

// name is what only one effect has.
type name struct {
	rule, key string
	version   int
}

// wanted is an effect that must be.
type wanted struct {
	change
	// run is that of the replay that planned it; 0: it was planned as the event arrived.
	run int64
	// trouble: the rule cannot say what is to follow.
	trouble bool
}

// model is what must be in the ledger.
type model struct {
	rules   []*rule
	version int
	reader  reader
	effects map[name]wanted
	// last is the key of the last change that each superseding rule saw of an object.
	last map[string]name
	// shared are keys that several objects have, of which any may have been first.
	changes int
}

func newModel(rules []*rule) *model {
	return &model{rules: rules, version: 1, reader: reader{}, effects: map[name]wanted{}, last: map[string]name{}}
}

// read has the model know that an event was applied. planned: what changes has effects.
func (m *model) read(t testing.TB, run int64, planned bool, event int64, body []byte) {
	t.Helper()
	c := m.reader.read(t, event, body)
	if c == nil || !planned {
		return
	}
	m.changes++
	for _, r := range m.rules {
		if !r.when.holds(c) {
			continue
		}
		key, ok := r.key.of(r.name, c)
		if !ok {
			key = fmt.Sprintf("%s:trouble:%d", r.name, event)
		}
		as := name{r.name, key, m.version}
		if _, known := m.effects[as]; !known {
			m.effects[as] = wanted{*c, run, !ok}
		}
		if ok {
			m.last[r.name+" "+c.object] = as
		}
	}
}
