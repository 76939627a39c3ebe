package effects_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// eventBody is an event: the state of an object at a time, or its absence.
type eventBody struct {
	Object string          `json:"object_id"`
	Time   int64           `json:"time"`
	Gone   bool            `json:"deleted"`
	State  json.RawMessage `json:"object"`
}

// observed is the knowledge of one object: the newest time of its events, and all states of that
// time. Two different states of one time are ambiguous.
type observed struct {
	at        int64
	eventBody []string
	knows     bool
	// certain is the last unambiguous state, "" if the object was deleted.
	certain string
}

// change is a change from one unambiguous state to the next.
type change struct {
	object   string
	event    int64
	old, now string
	gone     bool
}

// reader reads events one after the other and returns the changes.
type reader map[string]*observed

func (r reader) read(t testing.TB, event int64, body []byte) *change {
	t.Helper()
	var e eventBody
	must(t, json.Unmarshal(body, &e))
	state := ""
	if !e.Gone {
		state = normalize(t, e.State)
	}
	of := r[e.Object]
	if of == nil {
		of = &observed{at: e.Time}
		r[e.Object] = of
	}
	switch {
	case e.Time < of.at:
		return nil
	case e.Time > of.at:
		of.at, of.eventBody = e.Time, nil
	}
	if !slices.Contains(of.eventBody, state) {
		of.eventBody = append(of.eventBody, state)
	}
	if len(of.eventBody) > 1 || of.knows && of.certain == state {
		return nil
	}
	c := &change{object: e.Object, event: event, old: of.certain, now: state, gone: state == ""}
	if c.gone {
		c.now = c.old // rules see the last state of a deleted object
	}
	of.knows, of.certain = true, state
	return c
}

// normalize returns JSON in a normal form.
func normalize(t testing.TB, text []byte) string {
	t.Helper()
	var v any
	if err := json.Unmarshal(text, &v); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	if v == nil {
		return ""
	}
	b, err := json.Marshal(v)
	must(t, err)
	return string(b)
}

// field returns a field of a state as text, "" if there is none.
func field(state, name string) string {
	var v map[string]any
	if state == "" || json.Unmarshal([]byte(state), &v) != nil || v[name] == nil {
		return ""
	}
	return fmt.Sprint(v[name])
}

// name identifies an effect.
type name struct {
	rule, key string
	version   int
}

// wanted is an effect that the ledger must have.
type wanted struct {
	change
	// run is the replay that planned the effect, 0 if it was planned live.
	run int64
	// keyFails means that the rule's key cannot be computed.
	keyFails bool
}

// model has the effects that the ledger must have.
type model struct {
	rules   []*rule
	version int
	reader  reader
	effects map[name]wanted
	// last has the effect of the last change of an object, for each superseding rule.
	last map[string]name
	// changes counts the changes.
	changes int
}

func newModel(rules []*rule) *model {
	return &model{rules: rules, version: 1, reader: reader{}, effects: map[name]wanted{}, last: map[string]name{}}
}

// read adds an applied event to the model. planned means that its change has effects.
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

// condition is a condition of a rule, as text and as the model computes it.
type condition struct {
	text  string
	holds func(*change) bool
}

var conditions = []condition{
	{"", func(*change) bool { return true }},
	{"old != nil", func(c *change) bool { return c.old != "" }},
	{`changed("name")`, func(c *change) bool { return field(c.old, "name") != field(c.now, "name") }},
	{"not object.deleted", func(c *change) bool { return !c.gone }},
	{`new != nil and (new.even ?? false)`, func(c *change) bool { return field(c.now, "even") == "true" }},
}

// key is the template of a key. of computes it and reports whether that is possible.
type key struct {
	text string
	of   func(rule string, c *change) (string, bool)
	// shared means that several objects have the same key.
	shared bool
	// state means that the key contains a part of the object's state.
	state bool
}

var keys = []key{
	{text: "RULE:{{ object.id }}", of: func(rule string, c *change) (string, bool) {
		return rule + ":" + c.object, true
	}},
	{text: "RULE:{{ object.id }}:{{ event.id }}", of: func(rule string, c *change) (string, bool) {
		return fmt.Sprintf("%s:%s:%d", rule, c.object, c.event), true
	}},
	{text: "RULE:{{ object.id }}:{{ new.name }}", state: true, of: func(rule string, c *change) (string, bool) {
		n := field(c.now, "name")
		return rule + ":" + c.object + ":" + n, n != ""
	}},
	{text: "RULE:all:{{ new.name }}", shared: true, of: func(rule string, c *change) (string, bool) {
		n := field(c.now, "name")
		return rule + ":all:" + n, n != ""
	}},
}

// kind is how a step with an unknown outcome is resolved.
type kind string

const (
	keyed       kind = "keyed"        // by sending it again with its key
	checked     kind = "checked"      // by a check of the destination
	checkedOnce kind = "checked once" // by a check, or by an operator if the destination does not know the step
	askedFirst  kind = "asked first"  // by a check, which also runs before the first attempt
	searched    kind = "searched"     // as asked first, and the check also finds what another system did
	once        kind = "once"         // by an operator
)

// step is a step of a rule.
type step struct {
	name, to string
	kind     kind
	// when is its condition. skips means that it is always false.
	when  string
	skips bool
}

// addConditions gives some steps a condition or a check before the first attempt.
func addConditions(all []*rule, r *rand.Rand) {
	for _, u := range all {
		captured := `object.type == "thing"`
		for i := range u.steps {
			s := &u.steps[i]
			switch r.IntN(4) {
			case 0:
				s.when = captured
			case 1:
				s.when, s.skips = "not ("+captured+")", true
			}
			if s.kind == checked && r.IntN(2) == 0 {
				s.kind = askedFirst
			}
			if captured = fmt.Sprintf("steps.%s.id != nil", s.name); s.skips {
				captured = fmt.Sprintf("steps.%s.id == nil", s.name)
			}
		}
	}
}

// rule is a rule of a world.
type rule struct {
	name      string
	when      condition
	key       key
	approval  string
	supersede bool
	steps     []step
}

// someRules returns random rules.
func someRules(r *rand.Rand) (all []*rule) {
	for n := range 2 + r.IntN(2) {
		u := &rule{name: fmt.Sprint("rule_", n), when: conditions[r.IntN(len(conditions))],
			key: keys[r.IntN(len(keys))], approval: "none"}
		if r.IntN(3) == 0 {
			u.approval = []string{"required", "required_on_replay"}[r.IntN(2)]
		}
		u.supersede = u.key.state && r.IntN(2) == 0
		for i := range 1 + r.IntN(3) {
			u.steps = append(u.steps, step{name: fmt.Sprint("step_", i), to: []string{"here", "there"}[r.IntN(2)],
				kind: []kind{keyed, checked, checkedOnce, once}[r.IntN(4)]})
		}
		all = append(all, u)
	}
	return all
}

// text returns the rule as configuration.
func (u *rule) text(version int) string {
	var b strings.Builder
	key := strings.Replace(u.key.text, "RULE", u.name, 1)
	fmt.Fprintf(&b, "  %s:\n    source: sim\n    type: thing\n    key: %q\n    rule_version: %d\n    approval: %s\n  "+
		"  supersede: %t\n", u.name, key, version, u.approval, u.supersede)
	if u.when.text != "" {
		fmt.Fprintf(&b, "    when: %q\n", u.when.text)
	}
	b.WriteString("    steps:\n")
	for i, s := range u.steps {
		before := ""
		if i > 0 {
			before = fmt.Sprintf(`, before: "{{ steps.%s.id ?? '' }}"`, u.steps[i-1].name)
		}
		fmt.Fprintf(&b, "      - {name: %s, to: %s, path: /%s/%s, json: {key: %q, of: \"{{ object.id }}\"%s}, "+
			"capture: {id: id}, retry: {first_wait: 5ms, max_wait: 40ms}", s.name, s.to, u.name, s.name, key, before)
		if s.when != "" {
			fmt.Fprintf(&b, ", when: %q", s.when)
		}
		switch s.kind {
		case checked:
			// The delay is longer than a late request takes.
			b.WriteString(`, check: {path: "/did?key={{ step_key }}", done: answer.status != 404, delay: 2s}`)
		case checkedOnce:
			b.WriteString(`, at_most_once: true, check: {path: "/did?key={{ step_key }}", ` +
				`done: answer.status != 404, delay: 1ms}`)
		case askedFirst:
			b.WriteString(`, check: {path: "/did?key={{ step_key }}", done: answer.status != 404, delay: 2s, ` +
				`when: before}`)
		case searched:
			fmt.Fprintf(&b, `, check: {path: "/%s/%s?of={{ object.id }}", done: len(answer.body.data) > 0, `+
				`found: data.0, delay: 2s, when: before}`, u.name, s.name)
		case once:
			b.WriteString(", at_most_once: true, operator_resolves: true")
		case keyed:
		}
		b.WriteString("}\n")
	}
	return b.String()
}

// configuration returns a configuration with these rules. All destinations are at one address.
func configuration(rules []*rule, destinations []string, timeout string, version int, url string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "database: {url: postgres://x/y}\nsources:\n  sim: {provider: stripe, secrets: [{name: a, value: "+
		"whsec_secret_of_the_tests}]}\ndestinations:\n")
	for _, to := range destinations {
		fmt.Fprintf(&b, "  %s: {url: %q, allow: [127.0.0.1], timeout: %s, concurrency: 3}\n", to, url, timeout)
	}
	b.WriteString("effects:\n")
	for _, u := range rules {
		b.WriteString(u.text(version))
	}
	return b.String()
}
