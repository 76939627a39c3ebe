package effects_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// told is what an event says: that an object is so, or not there, as of a time.
type told struct {
	Object string          `json:"object_id"`
	Time   int64           `json:"time"`
	Gone   bool            `json:"deleted"`
	State  json.RawMessage `json:"object"`
}

// thing is what a careful reader knows of an object: the newest time that it was told of, and all
// that it was told of that time. Of two things at once it is certain of neither.
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
	must(t, json.Unmarshal(body, &e))
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
	must(t, err)
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

// condition is one of a rule, as it is written and as the model understands it.
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

// key is a template of a key; of says what it is, and whether that can be said.
type key struct {
	text string
	of   func(rule string, c *change) (string, bool)
	// shared: it is that of several objects.
	shared bool
	// state: it names the object's state.
	state bool
}

var keys = []key{
	{text: "RULE:{{ object.id }}", of: func(rule string, c *change) (string, bool) {
		return rule + ":" + c.object,
			true
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

// kind is how a lost answer of a step is cleared up.
type kind string

const (
	keyed   kind = "keyed"   // it is sent again under its key
	checked kind = "checked" // the other side is asked
	asked   kind = "asked"   // the other side is asked, and what it does not know a person says
	once    kind = "once"    // a person says
)

// step is one of a rule.
type step struct {
	name, to string
	kind     kind
}

// rule is one of a world.
type rule struct {
	name      string
	when      condition
	key       key
	approval  string
	supersede bool
	steps     []step
}

// someRules are rules made of chance.
func someRules(r *rand.Rand) (all []*rule) {
	for n := range 2 + r.IntN(2) {
		u := &rule{name: fmt.Sprint("rule_", n), when: conditions[r.IntN(len(conditions))],
			key: keys[r.IntN(len(keys))], approval: "none"}
		if r.IntN(3) == 0 {
			u.approval = []string{"required", "required_on_replay"}[r.IntN(2)]
		}
		u.supersede = u.key.state && r.IntN(2) == 0
		for i := range 1 + r.IntN(3) {
			u.steps = append(u.steps, step{fmt.Sprint("step_", i), []string{"here", "there"}[r.IntN(2)],
				[]kind{keyed, checked, asked, once}[r.IntN(4)]})
		}
		all = append(all, u)
	}
	return all
}

// text is a rule as it is written.
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
			before = fmt.Sprintf(`, before: "{{ steps.%s.id }}"`, u.steps[i-1].name)
		}
		fmt.Fprintf(&b, "      - {name: %s, to: %s, path: /%s/%s, json: {key: %q%s}, capture: {id: id}, retry: "+
			"{first: 5ms, longest: 40ms}", s.name, s.to, u.name, s.name, key, before)
		switch s.kind {
		case checked:
			// longer than the other side is late
			b.WriteString(`, check: {path: "/did?key={{ step_key }}", done: answer.status != 404, settles: 2s}`)
		case asked:
			b.WriteString(`, once: true, check: {path: "/did?key={{ step_key }}", done: answer.status != 404, settles: 1ms}`)
		case once:
			b.WriteString(", once: true, person_resolves: true")
		case keyed:
		}
		b.WriteString("}\n")
	}
	return b.String()
}

// configuration is one with rules, whose destinations are both at an address.
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
