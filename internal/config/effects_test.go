package config_test

import (
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/effects/rules"
)

// anEffect is a rule that can be used; what follows it replaces its parts.
const anEffect = `
database: {url: postgres://x/y}
sources:
  shop: {provider: stripe, secrets: [{name: a, value: whsec_secret_of_the_tests}]}
destinations:
  mail:
    url: https://mail.example.com/v1
    key: {value: key-of-mail}
effects:
  receipt:
    source: shop
    type: invoice
    when: new.status == "paid" && changed("status")
    key: "email:receipt:{{ new.id }}"
    steps:
      - name: send
        to: mail
        path: "/messages"
        json: {to: "{{ new.email }}", lines: ["{{ new.total }}", 2], ref: "invoice {{ new.id }}"}
        capture: {message: id}
        check: {path: "/messages?key={{ step_key }}", done: answer.status == 200}
        compensate: {path: "/messages/{{ steps.send.message }}/recall"}
`

func parseEffects(text string) (*config.Config, error) {
	return config.Parse([]byte(text), func(string) string { return "" })
}

func TestEffectsAreCompiled(t *testing.T) {
	t.Parallel()
	c, err := parseEffects(anEffect)
	if err != nil {
		t.Fatal(err)
	}
	r := c.Rules()[0]
	s := &r.Steps[0]
	if r.Version != 1 || r.Approval != rules.ApproveNone || s.Timeout != 30*time.Second || s.Retry.Attempts != 20 || s.Retry.Factor != 2 || s.Undo == nil || s.Check == nil || s.Do.KeyHeader != "Idempotency-Key" {
		t.Errorf("%+v", r)
	}
	f := &rules.Facts{New: map[string]any{"id": "in_1", "status": "paid", "total": 12, "email": `a"b@c.example`}, StepKey: "k"}
	if yes, err := r.When.Holds(f); err != nil || !yes {
		t.Errorf("%t %v", yes, err)
	}
	got, err := s.Do.Render(f, "k")
	if want := `{"lines":[12,2],"ref":"invoice in_1","to":"a\"b@c.example"}`; err != nil || got.Body != want || got.Headers["Idempotency-Key"] != "k" {
		t.Errorf("%+v, %v", got, err)
	}
	d := c.Reaches()[0]
	if d.Headers.Get("Authorization") != "Bearer key-of-mail" || d.Concurrency != 8 || d.MaxAnswer != 1<<20 {
		t.Errorf("%+v", d)
	}
}

// What is wrong with a rule is told with its line when it is read.
func TestMistakesInEffects(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ old, new, want string }{
		"a name that there is not":   {`new.status == "paid"`, `nwe.status == "paid"`, "13: effects.receipt.when: column 1: unknown name nwe"},
		"no condition":               {`new.status == "paid" && changed("status")`, `"paid"`, "effects.receipt.when: "},
		"the time":                   {`{{ new.id }}"`, `{{ now() }}"`, "14: effects.receipt.key: "},
		"a constant key":             {`"email:receipt:{{ new.id }}"`, `receipt`, "14: effects.receipt.key: names nothing of the object"},
		"no source":                  {"source: shop", "source: shpo", `11: effects.receipt.source: source "shpo" is not configured`},
		"no destination":             {"to: mail", "to: male", `effects.receipt.steps.0.to: destination "male" is not configured`},
		"a step that is not before":  {`"{{ new.total }}"`, `"{{ steps.send.message }}"`, "effects.receipt.steps.0.json.lines.0: "},
		"no path":                    {`path: "/messages"`, `path: messages`, `begin with /`},
		"once and nobody can say":    {"        check: {path: \"/messages?key={{ step_key }}\", done: answer.status == 200}", "        once: true", "effects.receipt.steps.0.once: "},
		"a credential in a header":   {"capture: {message: id}", "headers: {Authorization: x}", "a credential is kept by the destination"},
		"plain http with a key":      {"https://mail", "http://mail", "destinations.mail.url: "},
		"an unknown policy":          {"    type: invoice", "    type: invoice\n    approval: often", "effects.receipt.approval: "},
		"a body of GET":              {"        to: mail", "        to: mail\n        method: GET", "GET has no body"},
		"two bodies":                 {"        capture: {message: id}", "        text: hello\n        capture: {message: id}", "has several bodies"},
		"a name of a step":           {"name: send", "name: Send it", "effects.receipt.steps.0.name: "},
		"an unknown setting":         {"    type: invoice", "    typ: invoice", "typ"},
		"a network that is not one":  {"    key: {value: key-of-mail}", "    allow: [localhost]", "destinations.mail.allow.0: "},
		"a condition of the answer":  {"done: answer.status == 200", "done: answer.stats == 200", "effects.receipt.steps.0.check.done: "},
		"nothing waits to expire":    {"    type: invoice", "    type: invoice\n    approval_expires: 72h", "13: effects.receipt.approval_expires: nothing waits for an approval"},
		"a template without its end": {`{{ new.id }}"`, `{{ new.id"`, "a {{ has no }}"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			text := strings.Replace(anEffect, tc.old, tc.new, 1)
			if text == anEffect {
				t.Fatal("nothing is wrong")
			}
			if _, err := parseEffects(text); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("told %v, want %q", err, tc.want)
			}
		})
	}
}

// A side that is told no key must be asked, or know a step by what is in it, or be sent it once.
func TestSidesWithoutKeys(t *testing.T) {
	t.Parallel()
	none := strings.Replace(anEffect, "    key: {value: key-of-mail}", "    idempotency_header: none", 1)
	const check = `        check: {path: "/messages?key={{ step_key }}", done: answer.status == 200}` + "\n"
	for text, ok := range map[string]bool{
		none:                                true,
		strings.Replace(none, check, "", 1): false,
		strings.Replace(none, check, "        method: PUT\n", 1):                               true,
		strings.Replace(none, check, "        headers: {X-Ref: \"{{ step_key }}\"}\n", 1):      true,
		strings.Replace(none, check, "        once: true\n        person_resolves: true\n", 1): true,
	} {
		if _, err := parseEffects(text); (err == nil) != ok || err != nil && !strings.Contains(err.Error(), "is told no key") {
			t.Errorf("%v, want it taken: %t", err, ok)
		}
	}
}

// What clears up a doubt is the step's key as it is: where nothing else does, a part of it, or another form, is refused where it is written.
func TestAKeyIsSentAsItIs(t *testing.T) {
	t.Parallel()
	const check = `        check: {path: "/messages?key={{ step_key }}", done: answer.status == 200}` + "\n"
	none := strings.Replace(anEffect, "    key: {value: key-of-mail}", "    idempotency_header: none", 1)
	bare := strings.Replace(none, check, "", 1)
	in := func(old, with string) string { return strings.Replace(bare, old, with, 1) }
	const ref = `"invoice {{ new.id }}"`
	for text, want := range map[string]string{
		in(`"/messages"`, `"/messages?key={{ step_key }}"`):                                          "",
		in(ref, `"{{ new.id }}-{{ step_key }}"`):                                                     "",
		in(ref, `"{{ \"ref-\" + step_key }}"`):                                                       "",
		in(ref, `"{{ new.id + step_key }}"`):                                                         "",
		in(ref, `{a: ["{{ {\"k\": step_key} }}"]}`):                                                  "",
		in(ref, `"{{ step_key[8:] }}"`):                                                              "line 19: effects.receipt.steps.0.json.ref: what is sent is not the step's key as it is",
		in(ref, `"{{ lower(step_key) }}"`):                                                           "write the bare {{ step_key }}",
		in(ref, `{a: ["{{ step_key[:4] }}"]}`):                                                       "effects.receipt.steps.0.json.ref.a.0: what is sent",
		in(ref, `"{{ step_key[8:] }}", other: "{{ step_key }}"`):                                     "",
		in(`"/messages"`, `"/messages/{{ upper(step_key) }}"`):                                       "line 18: effects.receipt.steps.0.path: what is sent",
		in("        capture:", "        headers: {x-Ref: \"{{ step_key[:8] }}\"}\n        capture:"): "line 20: effects.receipt.steps.0.headers.x-Ref: what is sent",
		in(ref, `"step_key"`):                                                                        "effects.receipt.steps.0.to: destination mail is told no key",
		strings.Replace(none, ref, `"{{ step_key[8:] }}"`, 1):                                        "", // it is asked
		strings.Replace(anEffect, ref, `"{{ step_key[8:] }}"`, 1):                                    "", // its header has it
		in(ref, `"{{ step_key[8:] }}"`) + "        once: true\n        person_resolves: true\n":      "",
		in(ref, `"{{ step_key[8:] }}"`) + "        method: PUT\n":                                    "",
	} {
		_, err := parseEffects(text)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%v, want %q of%s", err, want, text[strings.Index(text, "    steps:"):])
		}
	}
}

// A step that must not be repeated goes last, and a source of rules has an API to settle doubt: that is told, and not refused.
func TestWarningsOfEffects(t *testing.T) {
	t.Parallel()
	c, err := parseEffects(strings.Replace(anEffect, "      - name: send", "      - {name: first, to: mail, path: /x, once: true, person_resolves: true}\n      - name: send", 1))
	if err != nil {
		t.Fatal(err)
	}
	if w := c.EffectWarnings(); len(w) != 2 || !strings.Contains(w[0], "source shop has no section api") || !strings.Contains(w[1], "effects.receipt: step first") {
		t.Error(w)
	}
	c.Sources["shop"].Provider = "api"
	if w := c.EffectWarnings(); len(w) != 1 || !strings.Contains(w[0], "effects.receipt: step first") {
		t.Error(w)
	}
}

// Two rules of one key are told: each key has one effect.
func TestRulesOfOneKeyAreTold(t *testing.T) {
	t.Parallel()
	_, rule, _ := strings.Cut(anEffect, "  receipt:\n")
	for key, want := range map[string]int{"": 1, "second:": 0} {
		second := strings.Replace(rule, `key: "`, `key: "`+key, 1)
		c, err := parseEffects(anEffect + "  second:\n" + second)
		if err != nil {
			t.Fatal(err)
		}
		told := 0
		for _, w := range c.EffectWarnings() {
			if strings.Contains(w, "effects.second: has the key of effects.receipt") && strings.Contains(w, "and the other has no effect of it;") {
				told++
			}
		}
		if told != want {
			t.Errorf("keys %q: told %d times", key, told)
		}
	}
}
