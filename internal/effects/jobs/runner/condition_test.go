package runner_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/effects"
	"github.com/postern-gateway/postern/internal/effects/jobs/runner"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/sink"
)

// findOrCreate searches a customer, creates it only if it is not there, and then uses it.
const findOrCreate = `
      - {name: find, to: sink, method: GET, path: "/customers?ref={{ object.id }}", success: [200, 404], ` +
	`capture: {id: data.0.id}, null_if_missing: true, timeout: 60s, ` +
	`retry: {first_wait: 10ms, attempts: 2}}
      - {name: create, when: steps.find.id == nil, to: sink, timeout: 60s, path: "/customers", ` +
	`json: {ref: "{{ object.id }}"}, ` +
	`capture: {id: id}, compensate: {path: "/remove/{{ steps.create.id }}"}}
      - {name: use, to: sink, timeout: 60s, path: "/use/{{ steps.find.id ?? steps.create.id }}"}`

// stepRows returns the steps of an effect in the ledger with their state, attempts and reason.
func (b *fixture) stepRows(t *testing.T, effect int64) []string {
	t.Helper()
	return b.db.QueryStrings(t, `SELECT trim(concat_ws(' ', step, state, attempts, nullif(captured::text, '{}'),
		reason)) FROM effect_steps WHERE effect = $1 ORDER BY position, undo`, effect)
}

// The response of a search decides whether a later step is executed. Nothing that is not a complete
// response in JSON means that there is no customer.
func TestSkipSteps_search_decidesWhetherToCreate(t *testing.T) {
	t.Parallel()
	const skipped = "create skipped 0 its condition was false in version 1 of the rule: steps.find.id == nil"
	none := []string{`find done 1 {"id": null}`, `create done 1 {"id": "c_1"}`, "use done 1"}
	created := []string{"GET /customers", "POST /customers", "POST /use/c_1"}
	tests := map[string]struct {
		found scriptedResponse
		steps []string
		calls []string
	}{
		"found": {scriptedResponse{status: 200, body: `{"data": [{"id": "c_9"}]}`},
			[]string{`find done 1 {"id": "c_9"}`, skipped, "use done 1"}, []string{"GET /customers", "POST /use/c_9"}},
		"an empty list":      {scriptedResponse{status: 200, body: `{"data": []}`}, none, created},
		"null":               {scriptedResponse{status: 200, body: `{"data": null}`}, none, created},
		"404":                {scriptedResponse{status: 404, body: `not found`}, none, created},
		"404 with an object": {scriptedResponse{status: 404, body: `{"data": [{"id": "c_9"}]}`}, none, created},
		"a page of HTML": {scriptedResponse{status: 200, body: `<html>Please log in</html>`},
			[]string{"find done 1"}, []string{"GET /customers"}},
		"half of a response": {scriptedResponse{status: 200, body: `{"data": []}`,
			header: map[string]string{"Content-Length": "100"}}, []string{"find done 1"}, []string{"GET /customers"}},
		"403": {scriptedResponse{status: 403, body: `{"data": []}`}, []string{"find failed 1"},
			[]string{"GET /customers"}},
	}
	rows := map[string]row{}
	for name, c := range tests {
		rows[name] = row{findOrCreate, []scriptedResponse{c.found, {status: 200, body: `{"id": "c_1"}`}}}
	}
	for name, got := range executeRows(t, rows) {
		want := tests[name]
		if done := strings.HasPrefix(got.states, "done"); done != (len(want.calls) > 1) {
			t.Errorf("%s: %s", name, got.states)
		}
		testkit.Equal(t, name+": steps", want.steps, got.steps)
		testkit.Equal(t, name+": calls", want.calls, got.calls)
	}
}

// The first step, the last step and all steps can be skipped. A skipped step is never undone, and
// its values are null.
func TestSkipSteps_anyPosition_effectContinues(t *testing.T) {
	t.Parallel()
	step := func(name, when, more string) string {
		return fmt.Sprintf("\n      - {name: %s, when: %q, to: sink, path: /%s, timeout: 60s, capture: {id: id}, "+
			"compensate: {path: /undo}%s}", name, when, name, more)
	}
	for name, c := range map[string]struct {
		steps string
		rows  string
		calls int
	}{
		"the first": {step("one", "new.total > 1", "") + step("two", "steps.one.id == nil", ""), "skipped done", 1},
		"the last":  {step("one", "new.total == 1", "") + step("two", "steps.one.id == nil", ""), "done skipped", 1},
		"all":       {step("one", "false", "") + step("two", "false", ""), "skipped skipped", 0},
		"a value of a skipped step in a template": {step("one", "false", "") + step("two", "true",
			`, json: {id: "{{ steps.one.id }}"}`), "skipped", 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setupWithSource(t, c.steps)
			b.plan(t, 1, 1)
			reg, metrics := newMetrics(t)
			_, stop := b.launch(t, runner.Options{Metrics: metrics, Settings: patientSettings})
			b.waitIdle(t)
			stop()
			if got := b.db.QueryStrings(t, `SELECT coalesce(string_agg(state, ' ' ORDER BY position), '')
				FROM effect_steps`)[0]; got != c.rows || len(b.sink.Calls()) != c.calls {
				t.Errorf("%s with %d calls, want %s with %d", got, len(b.sink.Calls()), c.rows, c.calls)
			}
			if got := metricValue(t, reg, "postern_effect_attempts_total", "sink", "skipped"); got != float64(
				strings.Count(c.rows, "skipped")) {
				t.Errorf("%v steps are counted as skipped", got)
			}
			v := b.show(t)
			switch {
			case c.rows == "skipped":
				if v.State != effects.Review || !strings.Contains(v.Reason, "steps.one.id: is null") {
					t.Errorf("%s: %s", v.State, v.Reason)
				}
				wantError(t, b.resolve(t, effects.ResolveParams{Step: "one"}), "was skipped")
			case c.calls == 0:
				wantError(t, b.compensate(t, false), "there is nothing to compensate")
			case !strings.Contains(v.AllowedActions, "whose condition was false; postern effects compensate 1 would"):
				t.Error(v.AllowedActions)
			default:
				must(t, b.compensate(t, false))
				b.launch(t, runner.Options{ID: "b", Settings: patientSettings})
				if got := b.waitIdle(t); got["done"] != 1 || len(b.sink.Calls()) != c.calls+1 {
					t.Errorf("%v with %d calls after the compensation", got, len(b.sink.Calls()))
				}
			}
		})
	}
}

// The row of a step is the decision. Whatever an edited rule says after a call, neither another
// process nor an operator's retry decides again.
func TestSkipSteps_ruleEditedAfterCall_decisionStays(t *testing.T) {
	t.Parallel()
	const steps = `
      - {name: first, when: "WHEN1", to: sink, timeout: 60s, path: "/first", retry: {first_wait: 10ms, attempts: 1}}
      - {name: second, when: "WHEN2", to: sink, timeout: 60s, path: "/second"}`
	rule := func(first, second string) string {
		return strings.NewReplacer("WHEN1", first, "WHEN2", second).Replace(steps)
	}
	b := setupWithSource(t, rule("false", "true"))
	edited := setup(t, rule("true", "false"))
	b.failRequests("/second", sink.RejectsContent)
	b.plan(t, 1, 1)
	_, stop := b.launch(t, runner.Options{Settings: patientSettings})
	b.wantIdle(t, "needs_review", 1)
	stop()
	b.rules = edited.rules
	must(t, b.retry(t))
	b.launch(t, runner.Options{ID: "b", Settings: patientSettings})
	b.waitIdle(t)
	want := []string{"first skipped 0 its condition was false in version 1 of the rule: false", "second done 2"}
	if diff := cmp.Diff(want, b.stepRows(t, 1)); diff != "" || len(b.sink.Calls()) != 1 {
		t.Errorf("%d calls, steps (-want +got):\n%s", len(b.sink.Calls()), diff)
	}
}

// A condition that exceeds a bound ends its effect only, and slow conditions of many effects do not
// make the lease of all fail. Other effects of the destination continue.
func TestSkipSteps_expensiveCondition_otherEffectsContinue(t *testing.T) {
	t.Parallel()
	b := setup(t, `[{name: step, when: "new.total > 20 ? len(uniq(1..1500)) > 0 : len(map(1..50000, 1..50000)) > 0", `+
		`to: sink, path: "/step", timeout: 60s}]`)
	b.destinations[0].Concurrency = 100
	b.plan(t, 1, 40)
	settings := patientSettings
	settings.TxTimeout = 2 * time.Second
	b.launch(t, runner.Options{Settings: settings})
	if got := b.waitIdle(t); got["done"] != 20 || got["needs_review"] != 20 {
		t.Error(got)
	}
	if got := b.db.QueryStrings(t, `SELECT DISTINCT reason FROM effects WHERE state = 'needs_review'`); len(got) != 1 ||
		!strings.HasPrefix(got[0], "step step, when: new.total > 20 ? ") ||
		!strings.HasSuffix(got[0], ": creates more than 100000 elements") {
		t.Error(got)
	}
}

// askedFirst is a step about which the destination is asked before the first attempt.
const askedFirst = `[{name: mail, to: sink, timeout: 60s, path: "/mail", at_most_once: true, capture: {id: id}, ` +
	`compensate: {path: "/undo"}, check: {path: "/did", done: "len(answer.body.data) > 0", found: data.0, ` +
	`when: before, delay: 300ms}, retry: {first_wait: 10ms, max_wait: 20ms, attempts: 3}}]`

// The response to a check before the first attempt decides whether the step is sent. An
// inconclusive response is no reason to send it.
func TestReadCheck_beforeFirstAttempt_decidesWhetherToSend(t *testing.T) {
	t.Parallel()
	yes, no := scriptedResponse{status: 200, body: `{"data": [{"id": "m_7"}]}`},
		scriptedResponse{status: 200, body: `{"data": []}`}
	ok, fails := scriptedResponse{status: 200, body: `{"id": "m_1"}`}, scriptedResponse{status: 503}
	const found = `mail done 0 {"id": "m_7"} found at the destination before the first attempt`
	for name, c := range map[string]struct {
		responses []scriptedResponse
		state     effects.State
		row       string
		calls     string
	}{
		"executed before":           {[]scriptedResponse{yes}, "done", found, "GET"},
		"not executed before":       {[]scriptedResponse{no, ok}, "done", `mail done 1 {"id": "m_1"}`, "GET POST"},
		"a failed check":            {[]scriptedResponse{fails, fails, yes}, "done", found, "GET GET GET"},
		"a check that always fails": {[]scriptedResponse{fails}, "needs_review", "mail checking 0", "GET GET GET"},
		"an unknown outcome, then a yes": {[]scriptedResponse{no, fails, yes}, "done", `mail done 1 {"id": "m_7"}`,
			"GET POST GET"},
		"an unknown outcome, then a no": {[]scriptedResponse{no, fails, no}, "needs_review", "mail unknown 1",
			"GET POST GET"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setupWithSource(t, askedFirst)
			other := b.useDestination(t, c.responses...)
			b.plan(t, 1, 1)
			reg, metrics := newMetrics(t)
			b.launch(t, runner.Options{Settings: patientSettings, Metrics: metrics})
			b.wantIdle(t, c.state, 1)
			var methods []string
			for _, call := range other.received() {
				methods = append(methods, strings.Fields(call)[0])
			}
			if got := strings.Join(methods, " "); got != c.calls {
				t.Errorf("sent %s, want %s", got, c.calls)
			}
			testkit.Equal(t, "step", []string{c.row}, b.stepRows(t, 1))
			if failed := metricValue(t, reg, "postern_effect_attempts_total", "sink", "failed"); failed > 0 {
				t.Errorf("%v failed attempts are counted", failed)
			}
			switch v := b.show(t); {
			case c.row == found: // Postern did not do it, so it must not undo it
				wantError(t, b.compensate(t, true), "there is nothing to compensate")
			case strings.Contains(c.row, "checking"):
				if !strings.Contains(v.AllowedActions, "so nothing was sent; fix the cause") {
					t.Error(v.AllowedActions)
				}
				must(t, b.resolve(t, effects.ResolveParams{Step: "mail", Done: true, Captured: []byte(`{"id": "x"}`)}))
				got := b.waitIdle(t)
				if sent := fmt.Sprint(other.received()); got["done"] != 1 || strings.Contains(sent, "POST") {
					t.Errorf("%v: %s", got, sent)
				}
			}
		})
	}
}

// A process that ends during a check before the first attempt has sent nothing. The next process
// asks again, at once, and no outcome is unknown.
func TestReclaim_checkBeforeFirstAttempt_isRepeated(t *testing.T) {
	t.Parallel()
	b := setup(t, strings.Replace(askedFirst, "delay: 300ms", "delay: 1h", 1))
	other := b.useDestination(t, scriptedResponse{hangs: true},
		scriptedResponse{status: 200, body: `{"data": []}`}, scriptedResponse{status: 200, body: `{"id": "m_1"}`})
	b.plan(t, 1, 1)
	b.launch(t, runner.Options{Settings: patientSettings})
	testkit.Eventually(t, patience, func() error {
		if calls := other.received(); len(calls) != 1 {
			return fmt.Errorf("%v", calls)
		}
		return nil
	})
	b.db.Exec(t, `UPDATE effects SET lease_until = clock_now() - interval '1 s'`)
	b.wantIdle(t, "done", 1)
	testkit.Equal(t, "calls", []string{"GET /did", "GET /did", "POST /mail"}, other.received())
}

// The ledger names the steps that cannot be undone: those that changed something and whose rule has
// no compensation. A search changes nothing.
func TestShow_notUndoable_namesChangesWithoutCompensation(t *testing.T) {
	t.Parallel()
	b := setupWithSource(t, findOrCreate+`
      - {name: mail, to: sink, timeout: 60s, path: "/mail", at_most_once: true, operator_resolves: true}`)
	b.plan(t, 1, 1)
	b.launch(t, runner.Options{Settings: patientSettings})
	b.wantIdle(t, "done", 1)
	v := b.show(t)
	testkit.Equal(t, "not undoable", []string{"use", "mail"}, v.NotUndoable)
	wantError(t, b.compensate(t, false), "its rule had no compensate for use, mail when")
	must(t, b.compensate(t, true))
	b.waitIdle(t)
	if v := b.show(t); v.Reason != "its steps were compensated, except use, mail, which the rule cannot compensate" {
		t.Error(v.Reason)
	}
}
