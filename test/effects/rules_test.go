package effects_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
)

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
	{text: "RULE:{{ object.id }}", of: func(rule string, c *change) (string, bool) { return rule + ":" + c.object, true }},
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
		u := &rule{name: fmt.Sprint("rule_", n), when: conditions[r.IntN(len(conditions))], key: keys[r.IntN(len(keys))], approval: "none"}
		if r.IntN(3) == 0 {
			u.approval = []string{"required", "required_on_replay"}[r.IntN(2)]
		}
		u.supersede = u.key.state && r.IntN(2) == 0
		for i := range 1 + r.IntN(3) {
			u.steps = append(u.steps, step{fmt.Sprint("step_", i), []string{"here", "there"}[r.IntN(2)], []kind{keyed, checked, asked, once}[r.IntN(4)]})
		}
		all = append(all, u)
	}
	return all
}

// text is a rule as it is written.
func (u *rule) text(version int) string {
	var b strings.Builder
	key := strings.Replace(u.key.text, "RULE", u.name, 1)
	fmt.Fprintf(&b, "  %s:\n    source: sim\n    type: thing\n    key: %q\n    rule_version: %d\n    approval: %s\n    supersede: %t\n", u.name, key, version, u.approval, u.supersede)
	if u.when.text != "" {
		fmt.Fprintf(&b, "    when: %q\n", u.when.text)
	}
	b.WriteString("    steps:\n")
	for i, s := range u.steps {
		before := ""
		if i > 0 {
			before = fmt.Sprintf(`, before: "{{ steps.%s.id }}"`, u.steps[i-1].name)
		}
		fmt.Fprintf(&b, "      - {name: %s, to: %s, path: /%s/%s, json: {key: %q%s}, capture: {id: id}, retry: {first: 5ms, longest: 40ms}", s.name, s.to, u.name, s.name, key, before)
		switch s.kind {
		case checked:
			b.WriteString(`, check: {path: "/did?key={{ step_key }}", done: answer.status != 404, settles: 2s}`) // longer than the other side is late
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
	fmt.Fprintf(&b, "database: {url: postgres://x/y}\nsources:\n  sim: {provider: stripe, secrets: [{name: a, value: whsec_secret_of_the_tests}]}\ndestinations:\n")
	for _, to := range destinations {
		fmt.Fprintf(&b, "  %s: {url: %q, allow: [127.0.0.1], timeout: %s, concurrency: 3}\n", to, url, timeout)
	}
	b.WriteString("effects:\n")
	for _, u := range rules {
		b.WriteString(u.text(version))
	}
	return b.String()
}
