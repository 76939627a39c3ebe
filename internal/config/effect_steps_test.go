package config_test

import (
	"strings"
	"testing"
)

// withSearch is anEffect with two steps before: a search, and a step with a condition.
var withSearch = strings.Replace(anEffect, "      - name: send", `      - name: find
        to: mail
        method: GET
        path: /contacts
        capture: {id: data.0.id}
        null_if_missing: true
      - name: create
        when: steps.find.id == nil
        to: mail
        path: /contacts
        capture: {id: id}
      - name: send`, 1)

// Errors in a condition and in the settings of a search or check are reported with their line. A
// condition must not read what no earlier step captures.
func TestEffectSteps_wrongConditions_areReported(t *testing.T) {
	t.Parallel()
	if _, err := parseEffects(withSearch); err != nil {
		t.Fatal(err)
	}
	const condition = "steps.find.id == nil"
	checkMistakes(t, withSearch, map[string]struct{ old, new, want string }{
		"no such step": {condition, "steps.fnd.id == nil",
			"line 23: effects.receipt.steps.1.when: column 7: unknown field fnd: earlier steps capture only " +
				"steps.find.id"},
		"no such value": {condition, "steps.find.name == nil", "line 23: effects.receipt.steps.1.when: column 12: " +
			"unknown field name: earlier steps capture only steps.find.id"},
		"the step itself": {condition, "steps.create.id == nil", "unknown field create: earlier steps capture only"},
		"a later step":    {condition, "steps.send.message == nil", "unknown field send: earlier steps capture only"},
		"a field of the event": {condition, "event.tpye == nil",
			"line 23: effects.receipt.steps.1.when: column 7: unknown field tpye: event has id, key, occurred_at, " +
				"origin, received_at, type"},
		"a null": {condition, "steps.find.id == null", "line 23: effects.receipt.steps.1.when: column 18: unknown " +
			"name null: write nil"},
		"no boolean": {condition, "len(new.lines)", "line 23: effects.receipt.steps.1.when: "},
		"the time":   {condition, "now() == nil", "line 23: effects.receipt.steps.1.when: "},
		"too large":  {condition, strings.Repeat("1+", 400) + "1 > 0", "line 23: effects.receipt.steps.1.when: "},
		"no step before": {"      - name: find", "      - name: find\n        when: steps.x.id == nil",
			"line 17: effects.receipt.steps.0.when: column 7: unknown field x: no earlier step captures a value"},
		"nothing to capture": {"        capture: {id: data.0.id}\n", "",
			"line 20: effects.receipt.steps.0.null_if_missing: has an effect only on values to capture"},
		"when of a check": {"done: answer.status == 200}", "done: answer.status == 200, when: first}",
			"effects.receipt.steps.2.check.when: "},
	})
}

// A step that must not be sent twice and is not the last one is reported with its line and reason.
func TestEffectWarnings_orderOfRisk_isReported(t *testing.T) {
	t.Parallel()
	const first = "        path: /contacts\n        capture: {id: id}\n"
	once := first + "        at_most_once: true\n"
	check := "        check: {path: /contacts, done: answer.status == 200}\n"
	for name, c := range map[string]struct{ more, want string }{
		"may be repeated": {first, ""},
		"an operator resolves it": {once + "        operator_resolves: true\n",
			"line 27: effects.receipt.steps.1.at_most_once: step create must not be sent twice and is not the " +
				"last step: if a later step fails, create has happened and cannot be undone; after a lost " +
				"response an operator must resolve it, and send and later steps wait for that; make it the last step"},
		"has a check": {once + check, "cannot be undone; after a lost response send and later steps wait for its " +
			"check, and for an operator if the check does not find it; make it the last step"},
		"can be undone": {once + check + "        compensate: {path: /x}\n", "create has happened; after a lost"},
	} {
		text := strings.Replace(withSearch, first, c.more, 1)
		checkWarning(t, name, text, "must not be sent twice", c.want)
	}
}

// The examples of the page are valid rules.
func TestEffectSteps_examples_areAccepted(t *testing.T) {
	t.Parallel()
	for _, heading := range []string{"## Skip a step", "## Ask before the first attempt"} {
		c, err := parseEffects(effectExample(t, heading))
		if err != nil {
			t.Fatalf("%s: %v", heading, err)
		}
		steps := c.Rules()[0].Steps
		before := steps[0].Check != nil && steps[0].Check.Before
		if when := steps[min(1, len(steps)-1)].When; when == nil && !before {
			t.Errorf("%s: %+v", heading, steps)
		}
	}
}
