package runner_test

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/effects"
	"github.com/postern-gateway/postern/internal/effects/jobs/runner"
	"github.com/postern-gateway/postern/internal/effects/rules"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/sink"
)

// useDestination sends the steps of the rule to another destination that responds as it is told.
func (b *fixture) useDestination(t *testing.T, responses ...scriptedResponse) *scripted {
	t.Helper()
	other := &scripted{responses: responses}
	b.destinations[0].URL = serve(t, other.ServeHTTP)
	return other
}

// makeUnknown gives step mail of effect 1 an unknown outcome, since an attempt in the past.
func (b *fixture) makeUnknown(t *testing.T, ago string) {
	t.Helper()
	b.plan(t, 1, 1)
	b.db.Exec(t, `INSERT INTO effect_steps (effect, step, position, state, destination, fingerprint, attempts,
		reserved_at, ended_at, first_attempt_at)
		VALUES (1, 'mail', 0, 'unknown', 'sink', '', 2, clock_now() - interval '1 h', clock_now(),
			clock_now() - $1::interval)`, ago)
	b.db.Exec(t, `UPDATE effects SET state = 'failed', attempts = 2`)
}

// A step with an unknown outcome is repeated as long as the destination keeps its key. After that,
// an operator decides.
func TestNextCall_keyDroppedByDestination_needsReview(t *testing.T) {
	t.Parallel()
	const again = "done by itself"
	for name, c := range map[string]struct {
		ago   string
		set   func(*fixture)
		state string
	}{
		"key still kept":    {"23 h", func(*fixture) {}, again},
		"key dropped":       {"24 h", func(*fixture) {}, "needs_review unknown operator"},
		"kept for longer":   {"30 h", func(b *fixture) { b.destinations[0].KeyRetention = 48 * time.Hour }, again},
		"idempotent method": {"30 h", func(b *fixture) { asPut(b, "") }, again},
		"idempotent method with a key": {"30 h", func(b *fixture) { asPut(b, "Idempotency-Key") },
			"needs_review unknown operator"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setupWithSource(t, `[{name: mail, to: sink, path: "/mail"}]`)
			c.set(b)
			other := b.useDestination(t, scriptedResponse{status: 200})
			b.makeUnknown(t, c.ago)
			b.run(t, "a", b.pool)
			if c.state == again {
				b.wantIdle(t, "done", 1)
				other.wantCalls(t, 1)
				return
			}
			b.waitIdle(t)
			b.wantValues(t, `SELECT concat_ws(' ', e.state, s.state, s.resolved_by) FROM effects e
				JOIN effect_steps s USING (effect)`, c.state)
			other.wantCalls(t, 0)
			if v := b.show(t); !strings.Contains(v.Reason, "key_retention") ||
				!strings.Contains(v.AllowedActions, "postern effects resolve 1 --step mail") {
				t.Errorf("%s; %s", v.Reason, v.AllowedActions)
			}
			wantError(t, b.retry(t), "then run postern effects resolve")
			must(t, b.resolve(t, effects.ResolveParams{Step: "mail"}))
			b.wantIdle(t, "done", 1) // an operator said that it was not executed
			other.wantCalls(t, 1)
		})
	}
}

// asPut changes the step of the rule to PUT, with or without a key header.
func asPut(b *fixture, header string) {
	do := &b.rules.ByName("follow").Steps[0].Do
	do.Method, do.KeyHeader = http.MethodPut, header
}

// The unknown outcome of a step dates from the first attempt that may have been executed, however
// often it is repeated. After a failed attempt it starts again.
func TestReserve_repeatedUnknownStep_keepsFirstTime(t *testing.T) {
	t.Parallel()
	b := setupWithSource(t, `[{name: mail, to: sink, path: "/mail", retry: {first_wait: 10ms, max_wait: 20ms, `+
		`attempts: 1000}}]`)
	b.useDestination(t, scriptedResponse{status: 500})
	b.plan(t, 1, 1)
	stop := b.run(t, "a", b.pool)
	const knownBefore = `SELECT concat_ws(' ', state, first_attempt_at < reserved_at) FROM effect_steps
		WHERE attempts > 1 AND state <> 'reserved'`
	b.waitForRow(t, knownBefore, "unknown t")
	b.db.Exec(t, `UPDATE effect_steps SET first_attempt_at = first_attempt_at - interval '25 h'`)
	b.wantIdle(t, "needs_review", 1)
	stop()

	b.db.Exec(t, `UPDATE effect_steps SET state = 'failed', attempts = 1,
		first_attempt_at = clock_now() - interval '25 h'`)
	b.db.Exec(t, `UPDATE effects SET state = 'planned', due = clock_now(), attempts = 0`)
	b.run(t, "b", b.pool)
	b.waitForRow(t, `SELECT concat_ws(' ', state, first_attempt_at > clock_now() - interval '1 h') FROM effect_steps
		WHERE attempts > 1 AND state <> 'reserved'`, "unknown t")
}

// A step older than the column first_attempt_at counts from the planning of its effect, unless it
// had only one attempt.
func TestNextCall_stepOlderThanFirstAttemptColumn_isAsOldAsItsEffect(t *testing.T) {
	t.Parallel()
	for attempts, want := range map[int]string{1: "done", 15: "needs_review"} {
		t.Run(fmt.Sprint(attempts), func(t *testing.T) {
			t.Parallel()
			b := setupWithSource(t, `[{name: mail, to: sink, path: "/mail", retry: {first_wait: 10ms, max_wait: 20ms, `+
				`age: 200h}}]`)
			other := b.useDestination(t, scriptedResponse{status: 500}, scriptedResponse{status: 200})
			b.plan(t, 1, 1)
			b.db.Exec(t, `UPDATE effects SET state = 'failed', attempts = $1, `+
				`planned_at = clock_now() - interval '5 d'`, attempts)
			b.db.Exec(t, `INSERT INTO effect_steps (effect, step, position, state, destination, fingerprint, attempts,
				reserved_at, ended_at)
				VALUES (1, 'mail', 0, 'unknown', 'sink', '', $1, clock_now() - interval '10 min', clock_now())`,
				attempts)
			b.run(t, "a", b.pool)
			if got := b.waitIdle(t); got[want] != 1 || want == "needs_review" && len(other.received()) != 0 {
				t.Errorf("%v after %d calls: %s", got, len(other.received()), b.show(t).Reason)
			}
		})
	}
}

// waitForRow waits until a query returns one row with a value.
func (b *fixture) waitForRow(t *testing.T, query, want string) {
	t.Helper()
	testkit.Eventually(t, patience, func() error {
		if got := b.db.QueryStrings(t, query); len(got) != 1 || got[0] != want {
			return fmt.Errorf("is %q, want %q: %v", got, want, b.states(t))
		}
		return nil
	})
}

// After an operator's action, the age limit of retries starts again.
func TestRetry_operatorAction_restartsTheAgeLimit(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		path, is string
		say      func(*testing.T, *fixture) error
	}{
		"approve": {"/customers", `UPDATE effects SET state = 'awaiting_approval', due = NULL`,
			func(t *testing.T, b *fixture) error { return b.approve(t, 1) }},
		"retry": {"/customers", `UPDATE effects SET state = 'needs_review', due = NULL`,
			func(t *testing.T, b *fixture) error { return b.retry(t) }},
		"resolve": {"/invoices", `WITH s AS (INSERT INTO effect_steps (effect, step, position, state, destination,
			fingerprint, attempts, reserved_at) VALUES (1, 'customer', 0, 'unknown', 'sink', '', 1, clock_now()))
			UPDATE effects SET state = 'needs_review', due = NULL`, func(t *testing.T, b *fixture) error {
			return b.resolve(t, effects.ResolveParams{Step: "customer", Done: true, Captured: []byte(`{"id": 1}`)})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setupWithSource(t, twoSteps)
			b.failRequests(c.path, sink.FailsBeforeActing, sink.FailsBeforeActing)
			b.plan(t, 1, 1)
			b.db.Exec(t, c.is)
			b.db.Exec(t, `UPDATE effects SET planned_at = planned_at - interval '30 d'`)
			b.run(t, "a", b.pool)
			must(t, c.say(t, b))
			b.wantIdle(t, "done", 1)
		})
	}
}

// After an operator's retry the check still waits for its delay, because the attempt may still take
// effect.
func TestNextCall_operatorRetry_keepsTheCheckDelay(t *testing.T) {
	t.Parallel()
	b := setupWithSource(t, `[{name: mail, to: sink, path: "/mail", at_most_once: true, check: {path: "/did", `+
		`done: answer.status == 200, delay: 2s}, retry: {first_wait: 10ms, max_wait: 20ms}}]`)
	asked := make(chan time.Time, 10)
	b.destinations[0].URL = serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		asked <- time.Now()
	})
	b.plan(t, 1, 1)
	b.run(t, "a", b.pool)
	b.waitForRow(t, `SELECT (state IN ('failed', 'done'))::text FROM effects`, "true")
	must(t, b.retry(t))
	at := <-asked
	b.waitIdle(t)
	if v := b.show(t); v.State != effects.Done || at.Sub(v.Steps[0].ReservedAt.Time) < 2*time.Second {
		t.Errorf("checked %s after the attempt began: %+v", at.Sub(v.Steps[0].ReservedAt.Time), v)
	}
}

// An unknown outcome is cleared up by the rule that rendered the request, whatever the current rule
// says. A step that only an operator may resolve is not repeated, nor is a request without a key.
func TestChooseRecovery_ruleChanged_oldRuleStillApplies(t *testing.T) {
	t.Parallel()
	const (
		keyless = `{"method": "POST", "path": "/mail", "headers": {}}`
		named   = `{"method": "POST", "path": "/mail", "headers": {"Idempotency-Key": "KEY"}}`
		within  = `{"method": "POST", "path": "/mail", "headers": {}, "body": "{\"ref\": \"KEY\"}"}`

		toOperator = "needs_review unknown operator"
	)
	ok, lost := []int{200}, []int{500, 200}
	tests := map[string]struct {
		recovery, request, rule string
		want                    string
		calls                   string
		responses               []int
		// is is the state of the step, unknown if empty. ago is the age of the unknown outcome, an
		// hour if empty.
		is, ago string
	}{
		"operator only, rule now has keys":    {"operator", keyless, keyedStep, toOperator, "", ok, "", ""},
		"operator only, with a key":           {"operator", named, keyedStep, toOperator, "", ok, "", ""},
		"operator only, rule now has a check": {"operator", keyless, checkedStep, toOperator, "", ok, "", ""},
		"check, rule now has none":            {"check", named, keyedStep, toOperator, "", ok, "", ""},
		"check: done": {"check", keyless, checkedStep, "done done check", "GET /did", ok,
			"", ""},
		"key, none in the request": {"key", keyless, keyedStep, toOperator, "", ok, "", ""},
		"key of another step": {"key", strings.ReplaceAll(named, "KEY", "postern-0"), keyedStep, toOperator, "",
			ok, "", ""},
		"key in a header": {"key", named, keyedStep, "done done key", "POST /mail", ok, "", ""},
		"key in the body": {"key", within, keyedStep, "done done key", "POST /mail", ok, "", ""},
		"idempotent method": {"key", strings.Replace(keyless, "POST", "PUT", 1),
			keyedStep, "done done key", "PUT /mail", ok, "", ""},
		"check: not done": {"check", keyless, checkedStep, "done done check",
			"GET /did, POST /mail", []int{404, 200}, "", ""},
		"check, rule now forbids repetition": {"check", keyless, checkOnlyStep, toOperator, "GET /did",
			[]int{404}, "", ""},
		"key, and a check for another request": {"key", named, checkedStep, "done done key", "POST /mail", ok, "", ""},
		"key, repeated once, and a check for another request": {"key", named, checkedStep, "done done key",
			"POST /mail, POST /mail", []int{500, 200}, "", ""},
		"no key, and a check for another request": {"key", keyless, checkedStep, toOperator, "", ok, "", ""},
		"key, rule now has a check and forbids repetition: done": {"key", named, checkOnlyStep, "done done key",
			"GET /did", ok, "", ""},
		"key, rule now has a check and forbids repetition: not done": {"key", named, checkOnlyStep, toOperator,
			"GET /did", []int{404}, "", ""},
		"key, rule is now operator only": {"key", named, neverRepeatedStep, toOperator, "", ok, "", ""},
		"key that may be dropped, and a check for another request": {"key", named, checkedStep, toOperator, "",
			[]int{404, 200}, "", "30 h"},
		"failed, key, and a check for another request": {"key", named, checkedStep, "done done key",
			"POST /mail, POST /mail", lost, "failed", ""},
		"failed, operator only, rule now has a check": {"operator", named, checkedStep, toOperator, "POST /mail",
			lost, "failed", ""},
		"failed, check: done": {"check", named, checkedStep, "done done check",
			"POST /mail, GET /did", lost, "failed", ""},
		"failed, request is rendered again": {"key", "null", checkedStep, "done done check",
			"POST /mail, GET /did", lost, "failed", ""},
		"in progress during a crash, operator only, rule now has a key": {"operator", keyless, keyedStep, toOperator,
			"", ok, "reserved", ""},
	}
	rows := map[string]row{}
	for name, c := range tests {
		rows[name] = row{c.rule, statuses(c.responses)}
	}
	b, numbers, destinations := setupRows(t, rows)
	for name, c := range tests {
		number, state := numbers[name], cmp.Or(c.is, "unknown")
		key := rules.StepKey(fmt.Sprintf("row%d:1", number), 1, 0, "mail", false)
		b.db.Exec(t, `INSERT INTO effect_steps (effect, step, position, state, destination, fingerprint, attempts,
			reserved_at, ended_at, first_attempt_at, resolved_by, request)
			SELECT effect, 'mail', 0, $2::text, destination, '', 2, clock_now() - interval '1 h', CASE
				WHEN $2::text <> 'reserved' THEN clock_now() - interval '1 h' END, clock_now() - $3::interval, $4,
				$5::jsonb
			FROM effects WHERE effect = $1`, number, state, cmp.Or(c.ago, "1 h"), c.recovery,
			strings.ReplaceAll(c.request, "KEY", key))
		b.db.Exec(t, `UPDATE effects SET state = 'failed', attempts = 2 WHERE effect = $1`, number)
		if state == "reserved" {
			b.db.Exec(t, `UPDATE effects SET state = 'running', due = NULL, lease_epoch = 1, lease_owner = 'dead',
				lease_until = clock_now() WHERE effect = $1`, number)
		}
	}
	b.launch(t, runner.Options{Settings: patientSettings})
	b.waitIdle(t)
	for name, c := range tests {
		got := b.db.QueryStrings(t, `SELECT unnest(ARRAY[concat_ws(' ', e.state, s.state, s.resolved_by), e.reason])
			FROM effects e JOIN effect_steps s USING (effect) WHERE effect = $1`, numbers[name])
		if calls := strings.Join(destinations[name].received(), ", "); got[0] != c.want || calls != c.calls {
			t.Errorf("%s: %q, calls %q; want %s, calls %q", name, got, calls, c.want, c.calls)
		}
		if c.ago != "" && !strings.Contains(got[1], "key_retention") {
			t.Errorf("%s: %s", name, got[1])
		}
		if c.want == toOperator {
			wantError(t, b.retry(t, numbers[name]), "then run postern effects resolve")
		}
	}
}

// statuses returns responses with these statuses, which contain the values to capture.
func statuses(all []int) (responses []scriptedResponse) {
	for _, status := range all {
		responses = append(responses, scriptedResponse{status: status, body: `{"id": 1}`})
	}
	return responses
}

// A step that was sent by a rule with at_most_once is not repeated after a check says no, even if
// the current rule has no at_most_once.
func TestChooseRecovery_neverRepeatRemoved_stillApplies(t *testing.T) {
	t.Parallel()
	b := setupWithSource(t, strings.Replace(checkOnlyStep, "300ms", "1h", 1))
	other := b.useDestination(t, statuses([]int{500, 404, 200})...)
	b.plan(t, 1, 1)
	stop := b.run(t, "a", b.pool)
	b.waitForRow(t, `SELECT concat_ws(' ', e.state, s.state, s.resolved_by, s.at_most_once) FROM effects e
		JOIN effect_steps s USING (effect) WHERE s.state <> 'reserved'`, "failed unknown check t")
	stop()
	s := &b.rules.ByName("follow").Steps[0]
	s.NeverRepeat, s.Check.RepeatIfNotDone = false, true
	b.db.Exec(t, `UPDATE effect_steps SET reserved_at = reserved_at - interval '2 h',
		ended_at = ended_at - interval '2 h'`)
	b.db.Exec(t, `UPDATE effects SET due = clock_now()`)
	b.run(t, "b", b.pool)
	b.waitIdle(t)
	if got, v := strings.Join(other.received(), ", "), b.show(t); got != "POST /mail, GET /did" ||
		v.State != "needs_review" || v.Steps[0].Recovery != "operator" {
		t.Errorf("%s: %s, %+v", got, v.Reason, v.Steps)
	}
}

// moveDestination gives step mail of effect 1 an unknown outcome at sink, while its rule now sends
// it to the destination there.
func moveDestination(t *testing.T, steps, request, recovery string) (b *fixture, here, there *scripted) {
	t.Helper()
	b = setupWithSource(t, steps)
	here, there = b.useDestination(t, scriptedResponse{status: 404}),
		&scripted{responses: []scriptedResponse{{status: 200, body: `{"id": 1}`}}}
	elsewhere := b.destinations[0]
	elsewhere.Name, elsewhere.URL = "there", serve(t, there.ServeHTTP)
	b.destinations = append(slices.Clone(b.destinations), elsewhere)
	b.makeUnknown(t, "1 h")
	b.db.Exec(t, `UPDATE effect_steps SET resolved_by = $1, request = $2, ended_at = reserved_at`, recovery, request)
	s := &b.rules.ByName("follow").Steps[0]
	s.Destination = "there"
	if s.Check != nil {
		s.Check.Destination = "there"
	}
	return b, here, there
}

// If one destination may have executed a step, the step is not sent to another destination, and
// that one is not asked. This is also true for idempotent requests, and if the first destination is
// not configured any more. A step that failed is sent to the destination of the current rule.
func TestNextCall_unknownStepWithOtherDestination_needsReview(t *testing.T) {
	t.Parallel()
	named := fmt.Sprintf(`{"method": "POST", "path": "/mail", "headers": {"Idempotency-Key": %q}}`,
		rules.StepKey("follow:1", 1, 0, "mail", false))
	const toOperator = "needs_review unknown operator, none here, none there"
	for name, c := range map[string]struct {
		steps, request, recovery string
		set                      func(*testing.T, *fixture)
		want                     string
	}{
		"failed step": {keyedStep, "null", "key", func(t *testing.T, b *fixture) {
			b.db.Exec(t, `UPDATE effect_steps SET state = 'failed', request = NULL`)
		}, "done done key, none here, POST /mail there"},
		"key": {keyedStep, named, "key", nil, toOperator},
		"put": {keyedStep, strings.Replace(named, "POST", "PUT", 1), "key",
			func(_ *testing.T, b *fixture) { asPut(b, "") }, toOperator},
		"check": {checkedStep, named, "check", nil, toOperator},
		"check at one destination": {checkedStep, named, "check", func(_ *testing.T, b *fixture) {
			b.rules.ByName("follow").Steps[0].Check.Destination = "sink"
		}, toOperator},
		"first destination removed": {keyedStep, named, "key",
			func(_ *testing.T, b *fixture) { b.destinations = b.destinations[1:] }, toOperator},
		"another account": {keyedStep, named, "key", func(_ *testing.T, b *fixture) {
			b.destinations[0].URL = b.destinations[1].URL
			b.destinations[1].Headers = http.Header{"Authorization": {"Bearer another"}}
		}, toOperator},
		"another name of the same destination": {keyedStep, named, "key",
			func(_ *testing.T, b *fixture) { b.destinations[0].URL = b.destinations[1].URL },
			"done done key, none here, POST /mail there"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, here, there := moveDestination(t, c.steps, c.request, c.recovery)
			if c.set != nil {
				c.set(t, b)
			}
			b.run(t, "a", b.pool)
			b.waitIdle(t)
			got := b.db.QueryStrings(t, `SELECT concat_ws(' ', e.state, s.state, s.resolved_by) FROM effects e
				JOIN effect_steps s USING (effect)`)[0]
			for where, other := range map[string]*scripted{"here": here, "there": there} {
				calls := strings.Join(other.received(), " ")
				if calls == "" {
					calls = "none"
				}
				if !strings.Contains(c.want, ", "+calls+" "+where) {
					t.Errorf("%s: %s", where, calls)
				}
			}
			if !strings.HasPrefix(c.want, got+",") {
				t.Errorf("is %s, want %s: %s", got, c.want, b.show(t).Reason)
			}
			if c.want == toOperator && !strings.Contains(b.show(t).Reason, "it was sent to destination sink, and "+
				"there, where its rule sends it now, cannot know") {
				t.Error(b.show(t).Reason)
			}
		})
	}
}

// Only the destination that executed a step can compensate it. Another one may not have the object,
// or another object with that id.
func TestNextCall_compensationWithOtherDestination_needsReview(t *testing.T) {
	t.Parallel()
	b, here, there := moveDestination(t, neverRepeatedLast, "null", "key")
	b.db.Exec(t, `UPDATE effect_steps SET state = 'done', step = 'customer', undoable = true,
		captured = '{"id": "c_1"}'`)
	b.db.Exec(t, `UPDATE effects SET state = 'rejected', due = NULL`)
	must(t, b.compensate(t, false))
	stop := b.run(t, "a", b.pool)
	if got, v := b.waitIdle(t), b.show(t); got["needs_review"] != 1 ||
		!strings.Contains(v.Reason, "was executed by destination sink, and there, where its rule sends it now, cannot "+
			"compensate it") || !strings.Contains(v.AllowedActions, "postern effects retry 1 is safe") {
		t.Errorf("%v: %s; %s", got, v.Reason, v.AllowedActions)
	}
	stop()
	here.wantCalls(t, 0)
	there.wantCalls(t, 0)
	b.rules.ByName("follow").Steps[0].Destination = "sink"
	must(t, b.retry(t))
	b.run(t, "b", b.pool)
	b.wantIdle(t, "done", 1)
	here.wantCalls(t, 1)
	there.wantCalls(t, 0)
}
