package config_test

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/effects/rules"
)

// anEffect is a valid rule. The following constants replace parts of it.
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

// checkMistakes replaces a text of a configuration by another, in each row. Parsing must fail with
// the row's message.
func checkMistakes(t *testing.T, base string, rows map[string]struct{ old, new, want string }) {
	t.Helper()
	for name, row := range rows {
		text := strings.Replace(base, row.old, row.new, 1)
		if text == base {
			t.Errorf("%s: nothing is wrong", name)
		}
		checkRejected(t, text, row.want)
	}
}

// checkRejected fails the test unless parsing fails with all of the messages, and without the
// secret.
func checkRejected(t *testing.T, text string, words ...string) {
	t.Helper()
	checkRejectedBy(t, text, nil, words...)
}

// checkRejectedBy is checkRejected with variables NAME=value.
func checkRejectedBy(t *testing.T, text string, variables []string, words ...string) {
	t.Helper()
	_, err := config.Parse([]byte(text), environment(variables...))
	for _, want := range words {
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s %q:\n%v, want %q and no secret", text, variables, err, want)
		}
	}
}

// checkRows fails the test unless each configuration is rejected with all messages of its row, and
// without the secret. The first text of a row is a setting, and the others are messages.
func checkRows(t *testing.T, configuration func(setting string) string, rows map[string][]string) {
	t.Helper()
	for name, row := range rows {
		_, err := config.Parse([]byte(configuration(row[0])), environment())
		if err == nil || strings.Contains(err.Error(), "s3cret") || strings.Contains(err.Error(), "\t") ||
			strings.Contains(err.Error(), "at [") {
			t.Errorf("%s: accepted, or a secret, a tab or a place in brackets is in:\n%v", name, err)
			continue
		}
		for _, want := range row[1:] {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %q is missing in:\n%v", name, want, err)
			}
		}
	}
}

// with returns configurations that have a setting in place of % in the text.
func with(text string) func(setting string) string {
	return func(setting string) string { return strings.Replace(text, "%", setting, 1) }
}

// effectWarnings returns the effect warnings that contain a text.
func effectWarnings(t *testing.T, text, about string) string {
	t.Helper()
	c := parse(t, text)
	var out []string
	for _, w := range c.EffectWarnings() {
		if strings.Contains(w, about) {
			out = append(out, w)
		}
	}
	return strings.Join(out, "\n")
}

// checkWarning fails the test unless the effect warnings that contain a text contain the wanted
// text, or there are none if that is empty.
func checkWarning(t *testing.T, name, text, about, want string) {
	t.Helper()
	if got := effectWarnings(t, text, about); want == "" && got != "" || !strings.Contains(got, want) {
		t.Errorf("%s: %q, want %q", name, got, want)
	}
}

func TestEffects_yaml_becomesRules(t *testing.T) {
	t.Parallel()
	c := parse(t, anEffect)
	r := c.Rules()[0]
	s := &r.Steps[0]
	if r.Version != 1 || r.Approval != rules.ApproveNone || s.Timeout != 30*time.Second || s.Retry.MaxAttempts != 20 ||
		s.Retry.Factor != 2 || s.Undo == nil || s.Check == nil || s.Do.KeyHeader != "Idempotency-Key" {
		t.Errorf("%+v", r)
	}
	f := &rules.TemplateData{New: map[string]any{"id": "in_1", "status": "paid", "total": 12, "email": `a"b@c.example`},
		StepKey: "k"}
	if yes, err := r.When.EvalBool(f); err != nil || !yes {
		t.Errorf("%t %v", yes, err)
	}
	got, err := s.Do.Render(f, "k")
	if want := `{"lines":[12,2],"ref":"invoice in_1","to":"a\"b@c.example"}`; err != nil || got.Body != want ||
		got.Headers["Idempotency-Key"] != "k" {
		t.Errorf("%+v, %v", got, err)
	}
	d := c.ResolveDestinations()[0]
	if d.Headers.Get("Authorization") != "Bearer key-of-mail" || d.Concurrency != 8 || d.MaxResponse != 1<<20 {
		t.Errorf("%+v", d)
	}
}

// Readers of a rule see no value of a header that may be secret. Calls have it.
func TestEffects_headers_areNotShown(t *testing.T) {
	t.Parallel()
	c, err := parseEffects(strings.Replace(anEffect, "        capture: {message: id}",
		"        headers: {X-Hook: hunter2, content-type: text/x-mail}\n        capture: {message: id}", 1))
	if err != nil {
		t.Fatal(err)
	}
	r := c.Rules()[0]
	if text := r.Configuration; strings.Contains(text, "hunter2") || !strings.Contains(text, "X-Hook") ||
		!strings.Contains(text, "text/x-mail") {
		t.Error(text)
	}
	data := &rules.TemplateData{New: map[string]any{"id": "in_1", "total": 1, "email": ""}}
	got, err := r.Steps[0].Do.Render(data, "")
	if err != nil || got.Headers["X-Hook"] != "hunter2" {
		t.Errorf("%+v, %v", got, err)
	}
}

// Errors in a rule are reported with their line.
func TestEffects_wrongSettings_areReported(t *testing.T) {
	t.Parallel()
	checkMistakes(t, anEffect, map[string]struct{ old, new, want string }{
		"a name that there is not": {`new.status == "paid"`, `nwe.status == "paid"`,
			"13: effects.receipt.when: column 1: unknown name nwe"},
		"one equals sign": {`new.status == "paid"`, `new.status = "paid"`, "write == to compare"},
		"no condition":    {`new.status == "paid" && changed("status")`, `"paid"`, "effects.receipt.when: "},
		"the time":        {`{{ new.id }}"`, `{{ now() }}"`, "14: effects.receipt.key: "},
		"a constant key": {`"email:receipt:{{ new.id }}"`, `receipt`,
			"14: effects.receipt.key: does not depend on the"},
		"no source": {"source: shop", "source: shpo",
			`11: effects.receipt.source: source "shpo" is not configured; did you mean shop?`},
		"no destination": {"to: mail", "to: male",
			`effects.receipt.steps.0.to: destination "male" is not configured`},
		"a step that is not before": {`"{{ new.total }}"`, `"{{ steps.send.message }}"`,
			"effects.receipt.steps.0.json.lines.0: "},
		"no path": {`path: "/messages"`, `path: messages`, `begin with /`},
		"at_most_once and nobody can say": {"        check: {path: \"/messages?key={{ step_key }}\", done: " +
			"answer.status " +
			"== 200}", "        at_most_once: true", "effects.receipt.steps.0.at_most_once: "},
		"a credential in a header": {"capture: {message: id}", "headers: {Authorization: x}",
			"the destination holds the credential"},
		"plain http with a key": {"https://mail", "http://mail", "destinations.mail.url: "},
		"an unknown policy": {"    type: invoice", "    type: invoice\n    approval: often",
			"effects.receipt.approval: "},
		"a body of GET": {"        to: mail", "        to: mail\n        method: GET", "GET has no body"},
		"two bodies": {"        capture: {message: id}",
			"        text: hello\n        capture: {message: id}", "has several bodies"},
		"a name of a step":   {"name: send", "name: Send it", "effects.receipt.steps.0.name: "},
		"an unknown setting": {"    type: invoice", "    typ: invoice", "typ"},
		"a network that is not one": {"    key: {value: key-of-mail}", "    allow: [localhost]",
			"destinations.mail.allow.0: "},
		"a condition of the answer": {"done: answer.status == 200", "done: answer.stats == 200",
			"effects.receipt.steps.0.check.done: "},
		"nothing waits to expire": {"    type: invoice", "    type: invoice\n    approval_expires: 72h",
			"13: effects.receipt.approval_expires: no effect waits for an"},
		"a template without its end": {`{{ new.id }}"`, `{{ new.id"`, "a {{ has no }}"},
	})
}

// A destination that gets no key needs a check, or a step key in the request, or a step that is not
// repeated. Only the unchanged step key can resolve a lost response. Without another way, a changed
// key is reported where it is written.
func TestEffects_stepKey_mustBeSentUnchanged(t *testing.T) {
	t.Parallel()
	const check = `        check: {path: "/messages?key={{ step_key }}", done: answer.status == 200}` + "\n"
	none := strings.Replace(anEffect, "    key: {value: key-of-mail}", "    idempotency_header: none", 1)
	bare := strings.Replace(none, check, "", 1)
	in := func(old, with string) string { return strings.Replace(bare, old, with, 1) }
	const ref = `"invoice {{ new.id }}"`
	for _, c := range [][2]string{
		{in(`"/messages"`, `"/messages?key={{ step_key }}"`), ""},
		{in(ref, `"{{ new.id }}-{{ step_key }}"`), ""},
		{in(ref, `"{{ \"ref-\" + step_key }}"`), ""},
		{in(ref, `"{{ new.id + step_key }}"`), ""},
		{in(ref, `{a: ["{{ {\"k\": step_key} }}"]}`), ""},
		{in(ref, `"{{ step_key[8:] }}"`),
			"line 19: effects.receipt.steps.0.json.ref: changes the step's key, " +
				"but only the unchanged key can resolve"},
		{in(ref, `"{{ lower(step_key) }}"`), "write the bare {{ step_key }}"},
		{in(ref, `{a: ["{{ step_key[:4] }}"]}`), "effects.receipt.steps.0.json.ref.a.0: changes the step's key"},
		{in(ref, `"{{ step_key[8:] }}", other: "{{ step_key }}"`), ""},
		{in(`"/messages"`, `"/messages/{{ upper(step_key) }}"`),
			"line 18: effects.receipt.steps.0.path: changes the step's key"},
		{in("        capture:", "        headers: {x-Ref: \"{{ step_key[:8] }}\"}\n        capture:"),
			"line 20: effects.receipt.steps.0.headers.x-Ref: changes the step's key"},
		{bare, "effects.receipt.steps.0.to: destination mail gets no key (idempotency_header"},
		{in(ref, `"step_key"`), "effects.receipt.steps.0.to: destination mail gets no key (idempotency_header"},
		{in("        capture:", "        headers: {X-Ref: \"{{ step_key }}\"}\n        capture:"), ""},
		// the step has a check
		{strings.Replace(none, ref, `"{{ step_key[8:] }}"`, 1), ""},
		// the header contains the key
		{strings.Replace(anEffect, ref, `"{{ step_key[8:] }}"`, 1), ""},
		{in(ref, `"{{ step_key[8:] }}"`) + "        at_most_once: true\n        operator_resolves: true\n", ""},
		{in(ref, `"{{ step_key[8:] }}"`) + "        method: PUT\n", ""},
	} {
		text, want := c[0], c[1]
		_, err := parseEffects(text)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%v, want %q of%s", err, want, text[strings.Index(text, "    steps:"):])
		}
	}
}

// A step that must not be repeated and is not the last, and a source without an API, cause warnings
// and not errors.
func TestEffectWarnings_riskyRules_areReported(t *testing.T) {
	t.Parallel()
	c := parse(t, strings.Replace(anEffect, "      - name: send", "      - {name: first, to: mail, path: "+
		"/x, at_most_once: true, operator_resolves: true}\n      - name: send", 1))
	if w := c.EffectWarnings(); len(w) != 2 || !strings.Contains(w[0], "source shop has no section api") ||
		!strings.Contains(w[1], "line 16: effects.receipt.steps.0.at_most_once: step first must not be sent twice") {
		t.Error(w)
	}
	c.Sources["shop"].Provider = "api"
	if w := c.EffectWarnings(); len(w) != 1 || !strings.Contains(w[0], "step first must not be sent twice") {
		t.Error(w)
	}
}

// Two rules with the same key are reported, because each key has one effect.
func TestEffectWarnings_sameKey_isReported(t *testing.T) {
	t.Parallel()
	_, rule, _ := strings.Cut(anEffect, "  receipt:\n")
	for key, want := range map[string]int{"": 1, "second:": 0} {
		second := strings.Replace(rule, `key: "`, `key: "`+key, 1)
		got := effectWarnings(t, anEffect+"  second:\n"+second, "effects.second: has the same key as effects.receipt")
		if n := strings.Count(got, "and the other has no effect;"); n != want {
			t.Errorf("keys %q: reported %d times", key, n)
		}
	}
}

// effectExample returns the example in docs/how-to/react-once-with-effects.md below a heading, as a
// configuration.
func effectExample(t *testing.T, heading string) string {
	t.Helper()
	page, err := os.ReadFile("../../docs/how-to/react-once-with-effects.md")
	must(t, err)
	_, section, _ := strings.Cut(string(page), heading+"\n")
	_, block, _ := strings.Cut(section, "```yaml")
	_, block, _ = strings.Cut(block, "\n")
	example, _, ok := strings.Cut(block, "```")
	if !ok {
		t.Fatalf("%s has no example", heading)
	}
	if strings.HasPrefix(example, "sources:") {
		return "database: {url: postgres://x/y}\n" + strings.Replace(example, "_for_postern_dev", "_of_the_tests", 1)
	}
	return "database: {url: postgres://x/y}\nsources:\n" +
		"  stripe: {provider: stripe, secrets: [{name: a, value: whsec_secret_of_the_tests}]}\n" + example
}

// The first example of the page is valid. Its condition excludes objects that a first
// reconciliation or an import finds, as the page says.
func TestEffects_example_isAccepted(t *testing.T) {
	t.Parallel()
	c := parse(t, effectExample(t, "## Write a rule"))
	open, paid := map[string]any{"status": "open"}, map[string]any{"status": "paid"}
	for name, tc := range map[string]struct {
		old    map[string]any
		origin string
		want   bool
	}{
		"paid while it was known":             {open, "webhook", true},
		"paid, and reconciliation found that": {open, "reconcile", true},
		"paid before":                         {paid, "webhook", false},
		"its payment came first":              {nil, "webhook", true},
		"found by the first reconciliation":   {nil, "reconcile", false},
		"imported":                            {nil, "import", false},
	} {
		if got, err := c.Rules()[0].When.EvalBool(&rules.TemplateData{Old: tc.old, New: paid,
			Event: rules.Event{Origin: tc.origin}}); err != nil || got != tc.want {
			t.Errorf("%s: %t, %v", name, got, err)
		}
	}
}

// The other examples of the page are valid rules. The one with a schedule selects objects
// that were created within its window.
func TestEffects_furtherExamples_areAccepted(t *testing.T) {
	t.Parallel()
	for heading, on := range map[string]rules.Trigger{"## React to each event": rules.OnEvent,
		"## React on a schedule": rules.OnSchedule} {
		c := parse(t, effectExample(t, heading)+"destinations:\n  mail: {url: "+
			"\"https://mail.example.com\"}\n")
		r := c.Rules()[0]
		if r.On != on {
			t.Errorf("%s: %+v", heading, r)
		}
		for created, want := range map[int]bool{1793606400: true, 1793606399: false, 1793617200: false} {
			if on != rules.OnSchedule {
				continue
			}
			f := &rules.TemplateData{New: map[string]any{"id": "in_1", "created": created},
				Window: rules.Window{Start: "2026-11-02T08:00:00Z", End: "2026-11-02T11:00:00Z"}}
			if got, err := r.When.EvalBool(f); err != nil || got != want {
				t.Errorf("created %d: %t, %v", created, got, err)
			}
		}
	}
	forward := effectExample(t, "## Forward changes to your own service")
	key := "APP_SIGNING_SECRET=whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="
	if _, err := config.Parse([]byte(forward), environment(key)); err != nil {
		t.Error(err)
	}
}

// A rule about an unknown object type is reported, with its line and the closest name. If the types
// are unknown, nothing is reported.
func TestEffectWarnings_unknownType_isReported(t *testing.T) {
	t.Parallel()
	const (
		stripe    = "provider: stripe, secrets: [{name: a, value: whsec_secret_of_the_tests}]"
		shopify   = "provider: shopify, secrets: [{name: a, value: abcdefabcdef}], accounts: ['*']"
		described = "provider: hmac, secrets: [{name: a, value: abcdefabcdefabcdef}], scheme: {header: X-S}, events: " +
			"{type: '{json:type}'}, objects: [{type: parcel, id: '{json:id}', events: [p.*]}, {type: '%', id: " +
			"'{json:id}'}]"
	)
	for name, c := range map[string]struct{ source, about, want string }{
		"known": {stripe, "invoice", ""},
		"misspelt": {stripe, "invoise",
			`line 12: effects.receipt.type: source shop has no known object type "invoise", ` +
				`so the rule may never be triggered; did you mean invoice?`},
		"unlike any":     {stripe, "spaceship", "postern objects list --source shop"},
		"another's":      {shopify, "Order", "did you mean order?"},
		"described":      {strings.Replace(described, "%", "label", 1), "parcell", "did you mean parcel?"},
		"described, all": {strings.Replace(described, "%", "label", 1), "label", ""},
		"told by events": {strings.Replace(described, "%", "{json:kind}", 1), "parcell", ""},
	} {
		text := strings.Replace(strings.Replace(anEffect, stripe, c.source, 1), "type: invoice", "type: "+c.about, 1)
		checkWarning(t, name, text, "has no known object type", c.want)
	}
}

// Effect contents that are deleted although a replay may need them are reported with their line, in
// the section and in schedules.
func TestEffectWarnings_contentsClearedBeforeEvents_areReported(t *testing.T) {
	t.Parallel()
	const deleted = ": the contents of effects are deleted 3 days after their end, and events are kept "
	const section, parameter = "retention.effects" + deleted, "schedules.forget.parameters.effects" + deleted
	for _, c := range [][2]string{
		{"retention: {effects: 3}", "line 2: " + section + "without limit: a replay with --mode force"},
		{"retention: {bodies: 400, effects: 3}", "line 2: " + section + "for 400 days: "},
		{"retention: {bodies: 3, effects: 3}", ""},
		{"retention: {bodies: 3, effects: 4}", ""},
		{"retention: {bodies: 3}", ""},
		{"retention: {bodies: 3, effect_keys: 4}", ""},
		{schedule("retention", "{bodies: '400', effects: '3'}"), "line 2: " + parameter + "for 400 days: "},
		{schedule("retention", "{bodies: '400', effects: '400'}"), ""},
		{schedule("retention", "{bodies: '400', effects: 'soon'}"), ""},
		{schedule("retry", "{bodies: '400', effects: '3'}"), ""},
		{"retention: {bodies: 30}\n" + schedule("retention", "{effects: '30'}"), ""},
		{"retention: {effects: 30}\n" + schedule("retention", "{bodies: '30'}"), ""},
		{"retention: {bodies: 400}\n" + schedule("retention", "{bodies: '30', effects: '30'}"), ""},
		{"retention: {bodies: 30}\n" + schedule("retention", "{bodies: '400', effects: '30'}"), ""},
		{"retention: {bodies: 30}\n" + schedule("retention", "{effects: '3'}"),
			"line 3: " + parameter + "for 30 days: "},
		{"retention: {effects: 3}\n" + schedule("retention", "{bodies: '30'}"),
			"line 2: " + section + "for 30 days: "},
	} {
		checkWarning(t, c[0], "\n"+c[0]+anEffect, "are deleted", c[1])
	}
}

// schedule returns the line of a schedule with the given cron expression.
func schedule(job, parameters string) string {
	return "schedules: {forget: {job: " + job + ", cron: '@daily', parameters: " + parameters + "}}"
}

// A check that is true for status 404 or 410 is reported with its line, because such a confirmation
// is not accepted. Conditions that depend on more than the status are not checked.
func TestEffectWarnings_untrustedCheck_isReported(t *testing.T) {
	t.Parallel()
	for done, want := range map[string]string{
		"answer.status == 200": "",
		"answer.status == 404": "line 21: effects.receipt.steps.0.check.done: is true for a response with status " +
			"404, but Postern accepts true only from 2xx",
		"answer.status == 410": "line 21: effects.receipt.steps.0.check.done: " +
			"is true for a response with status 410",
		"answer.status < 500":                                        "is true for a response with status 404",
		"answer.body == nil":                                         "is true for a response with status 404",
		"len(answer.body.a) > 0":                                     "",
		"answer.status == 404 && new.amount > 0":                     "",
		"answer.status in [200, 204] && answer.body?.deleted == nil": "",
	} {
		text := strings.Replace(anEffect, "done: answer.status == 200", "done: \""+done+"\"", 1)
		checkWarning(t, done, text, "check.done", want)
	}
}
