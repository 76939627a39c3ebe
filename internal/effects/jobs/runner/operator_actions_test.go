package runner_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/effects"
	"github.com/postern-gateway/postern/internal/effects/rules"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/sink"
)

// setupWithSource is setup with a registered source.
func setupWithSource(t *testing.T, steps string) *fixture {
	t.Helper()
	b := setup(t, steps)
	_, err := events.RegisterSources(t.Context(), b.db.Pool, map[string]string{"shop": "stripe"})
	must(t, err)
	return b
}

// operator returns the operator's pool, which all calls share.
func (b *fixture) operator(t *testing.T) *pgxpool.Pool {
	t.Helper()
	if b.operatorPool == nil {
		b.operatorPool = b.db.Role(t, "operator")
	}
	return b.operatorPool
}

// asOperator runs a function as an operator.
func (b *fixture) asOperator(t *testing.T, do func(context.Context, pgx.Tx) ([]effects.View, error)) error {
	t.Helper()
	return postgres.InTx(t.Context(), b.operator(t), "test", time.Minute, func(ctx context.Context, tx pgx.Tx) error {
		_, err := do(ctx, tx)
		return err
	})
}

func (b *fixture) show(t *testing.T) effects.View {
	t.Helper()
	all, err := effects.Show(t.Context(), b.operator(t), 1)
	must(t, err)
	return all[0]
}

// wantActions checks the allowed actions of effect 1.
func (b *fixture) wantActions(t *testing.T, want string) {
	t.Helper()
	if got := b.show(t).AllowedActions; got != want {
		t.Errorf("allowed actions %q, want %q", got, want)
	}
}

// wantInActions checks that the allowed actions of effect 1 contain a text.
func (b *fixture) wantInActions(t *testing.T, want string) {
	t.Helper()
	if got := b.show(t).AllowedActions; !strings.Contains(got, want) {
		t.Errorf("allowed actions %q, want %q", got, want)
	}
}

// wantError checks that an error contains a text.
func wantError(t *testing.T, err error, want string) {
	t.Helper()
	if !errors.Is(err, events.ErrInvalid) || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %q", err, want)
	}
}

func (b *fixture) approve(t *testing.T, ids ...int64) error {
	t.Helper()
	return b.asOperator(t, func(ctx context.Context, tx pgx.Tx) ([]effects.View, error) {
		return effects.Approve(ctx, tx, ids...)
	})
}

func (b *fixture) reject(t *testing.T, ids ...int64) error {
	t.Helper()
	return b.asOperator(t, func(ctx context.Context, tx pgx.Tx) ([]effects.View, error) {
		return effects.Reject(ctx, tx, "why", ids...)
	})
}

// retry retries effects, effect 1 if none is named.
func (b *fixture) retry(t *testing.T, ids ...int64) error {
	t.Helper()
	if ids == nil {
		ids = []int64{1}
	}
	return b.asOperator(t, func(ctx context.Context, tx pgx.Tx) ([]effects.View, error) {
		return effects.Retry(ctx, tx, ids...)
	})
}

func (b *fixture) resolve(t *testing.T, w effects.ResolveParams) error {
	t.Helper()
	return b.asOperator(t, func(ctx context.Context, tx pgx.Tx) ([]effects.View, error) {
		return effects.Resolve(ctx, tx, 1, w)
	})
}

func (b *fixture) compensate(t *testing.T, partial bool) error {
	t.Helper()
	return b.asOperator(t, func(ctx context.Context, tx pgx.Tx) ([]effects.View, error) {
		return effects.Compensate(ctx, tx, partial, 1)
	})
}

// failRequests makes requests to a path fail with the faults in order, and then succeed.
func (b *fixture) failRequests(path string, faults ...sink.Fault) {
	n := make(chan sink.Fault, len(faults))
	for _, f := range faults {
		n <- f
	}
	b.sink.NextFault = func(r *http.Request) sink.Fault {
		if r.URL.Path != path {
			return sink.NoFault
		}
		select {
		case f := <-n:
			return f
		default:
			return sink.NoFault
		}
	}
}

// An effect that awaits approval is executed after it is approved, and never after it is rejected.
// If one of several named effects is in a wrong state, none is changed.
func TestApproveAndReject_effectsAwaitingApproval(t *testing.T) {
	t.Parallel()
	b := setupWithSource(t, twoSteps)
	b.plan(t, 1, 4)
	b.db.Exec(t, `UPDATE effects SET state = 'awaiting_approval', due = NULL`)
	b.run(t, "a", b.pool)
	b.wantInActions(t, "postern effects approve 1")
	wantError(t, b.retry(t), "effect 1: it is awaiting_approval, so there is nothing to retry")
	if err := b.approve(t, 1, 99); !errors.Is(err, events.ErrNotFound) || !strings.Contains(err.Error(), "effect 99") {
		t.Error(err)
	}
	must(t, b.approve(t, 1, 2))
	must(t, b.reject(t, 3))
	wantError(t, b.approve(t, 4, 3), "effect 3: it is rejected, so there is nothing to approve")
	got := b.waitIdle(t)
	testkit.Equal(t, "effects by state", map[string]int{"done": 2, "rejected": 1, "awaiting_approval": 1}, got)
	wantError(t, b.reject(t, 1), "effect 1: it is done")
	wantError(t, b.reject(t), "name at least one")
	b.wantCalls(t, 4)
}

// A failed effect is retried on an operator's request, with a request rendered from the current
// rule, under the same key.
func TestRetry_failedEffect_rendersNewRequest(t *testing.T) {
	t.Parallel()
	b := setupWithSource(t, twoSteps)
	b.plan(t, 1, 1)
	was := b.destinations[0].URL
	b.destinations[0].URL = serve(t, func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, `{"error": "no total"}`, http.StatusUnprocessableEntity)
	})
	stop := b.run(t, "a", b.pool)
	b.wantIdle(t, "needs_review", 1)
	stop()
	v := b.show(t)
	if s := v.Steps[0]; s.State != effects.StepFailed || s.Status != 422 || s.Request != "POST /customers" ||
		len(s.Fingerprint) != 64 || !strings.Contains(s.Error, "no total") || !strings.Contains(v.AllowedActions,
		"step customer was not executed; fix the cause of its error, then postern effects retry 1 is safe") {
		t.Errorf("%+v", v)
	}
	key := b.db.QueryStrings(t, `SELECT request->'headers'->>'Idempotency-Key' FROM effect_steps`)[0]
	must(t, b.retry(t))
	wantError(t, b.retry(t), "it is planned")
	fixed := setup(t, strings.Replace(twoSteps, `{ref: "{{ object.id }}"}`, `{ref: "{{ object.id }}", corrected: true}`,
		1))
	b.rules, b.destinations[0].URL = fixed.rules, was
	b.run(t, "b", b.pool)
	b.wantIdle(t, "done", 1)
	if c := b.sink.Calls()[0]; c.Key != key || c.JSON(t)["corrected"] != true {
		t.Errorf("key %s, want %s; %s", c.Key, key, c.Body)
	}
}

const neverRepeatedLast = `
      - {name: customer, to: sink, path: "/customers", json: {ref: "{{ object.id }}"}, capture: {id: id}, ` +
	`compensate: {path: "/undo/{{ steps.customer.id }}"}}
      - {name: mail, to: sink, path: "/mail", json: {ref: "{{ object.id }}", ` +
	`customer: "{{ steps.customer.id }}"}, at_most_once: true, operator_resolves: true, capture: {id: id}, ` +
	`compensate: {path: "/unmail/{{ steps.mail.id }}"}}`

// An operator reports that a step with an unknown outcome was executed. It is not repeated, and its
// captured values are stored. Compensation then undoes the steps in reverse order, once.
func TestResolve_doneStep_isCompensatedInReverse(t *testing.T) {
	t.Parallel()
	b := setupWithSource(t, neverRepeatedLast)
	b.sink.HonoursKeys = false
	b.failRequests("/mail", sink.ActsThenDrops)
	b.plan(t, 1, 1)
	b.run(t, "a", b.pool)
	b.wantIdle(t, "needs_review", 1)
	b.wantInActions(t, "it is unknown whether step mail was executed; check at the destination, then run "+
		"postern effects resolve 1 --step mail --done --captured '{\"id\": \"VALUE\"}', or --not-done")
	wantError(t, b.retry(t), "resolve 1 --step mail")
	wantError(t, b.compensate(t, true), "first say what happened")
	wantError(t, b.resolve(t, effects.ResolveParams{Step: "x", Done: true}),
		`step "x" has not started; these steps have started: customer, mail`)
	wantError(t, b.resolve(t, effects.ResolveParams{Step: "customer", Done: true}),
		"step customer is done, so there is nothing to resolve")
	wantError(t, b.resolve(t, effects.ResolveParams{Step: "mail", Done: true, Captured: json.RawMessage(`["id"]`)}),
		"not a JSON object")
	wantError(t, b.resolve(t, effects.ResolveParams{Step: "mail", Done: true}), "step mail has to capture id")
	wantError(t, b.resolve(t, effects.ResolveParams{Step: "mail", Captured: json.RawMessage(`{"id": 1}`)}),
		"has no captured values")
	must(t, b.resolve(t, effects.ResolveParams{Step: "mail", Done: true,
		Captured: json.RawMessage(`{"id": 820982911946154508}`)}))
	b.wantIdle(t, "done", 1)
	b.wantActions(t, "nothing to do: all its steps are done; postern effects compensate "+
		"1 would undo customer, mail")
	must(t, b.compensate(t, false))
	b.wantIdle(t, "done", 1)
	wantError(t, b.compensate(t, false), "it is already being compensated")
	v := b.show(t)
	if !v.Compensating || v.Reason != "its steps were compensated" ||
		v.AllowedActions != "nothing to do: it was compensated" || len(v.Steps) != 4 {
		t.Errorf("%+v", v)
	}
	var paths []string
	for _, c := range b.sink.Calls() {
		paths = append(paths, c.Path)
	}
	testkit.Equal(t, "paths", []string{"/customers", "/mail", "/unmail/820982911946154508", "/undo/customers_1"},
		paths)
}

// An operator adds the captured values of a step, and may replace them. The next step, which was
// rejected with the first values, is sent with the new ones.
func TestResolve_capturedValues_canBeReplaced(t *testing.T) {
	t.Parallel()
	b := setupWithSource(t, neverRepeatedLast)
	was := b.destinations[0].URL
	b.destinations[0].URL = serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/customers" {
			fmt.Fprint(w, `{"name": "Ada"}`)
			return
		}
		http.Error(w, `{"error": "no customer"}`, http.StatusUnprocessableEntity)
	})
	b.plan(t, 1, 1)
	stop := b.run(t, "a", b.pool)
	b.waitIdle(t)
	const lacks = "step customer is done and its response lacked a value to capture; postern effects resolve 1 " +
		"--step customer --done --captured '{\"id\": \"VALUE\"}' adds it"
	b.wantInActions(t, lacks)
	wantError(t, b.resolve(t, effects.ResolveParams{Step: "customer", Done: true,
		Captured: json.RawMessage(`{"name": "Ada"}`)}),
		"effect 1: step customer has to capture id")
	must(t, b.resolve(t, effects.ResolveParams{Step: "customer", Done: true,
		Captured: json.RawMessage(`{"id": "c_6"}`)}))
	if got := b.waitIdle(t); got["needs_review"] != 1 || len(b.show(t).Steps) != 2 {
		t.Fatal(got)
	}
	stop()
	for _, done := range []bool{true, false} {
		wantError(t, b.resolve(t, effects.ResolveParams{Step: "customer", Done: done}),
			"step customer is done, so there is nothing to resolve")
	}
	must(t, b.resolve(t, effects.ResolveParams{Step: "customer", Done: true,
		Captured: json.RawMessage(`{"id": "c_7"}`)}))
	b.destinations[0].URL = was
	b.run(t, "b", b.pool)
	b.wantIdle(t, "done", 1)
	if calls := b.sink.Calls(); len(calls) != 1 || calls[0].JSON(t)["customer"] != "c_7" {
		t.Errorf("%+v", calls)
	}
}

// Steps without a compensation are named, and stay done if the operator passes partial.
func TestCompensate_partial_keepsOtherSteps(t *testing.T) {
	t.Parallel()
	b := setupWithSource(t, strings.Replace(neverRepeatedLast, `, compensate: {path: "/unmail/{{ steps.mail.id }}"}`,
		"", 1))
	b.plan(t, 1, 2)
	b.db.Exec(t, `UPDATE effects SET state = 'awaiting_approval', due = NULL WHERE effect = 2`)
	b.run(t, "a", b.pool)
	b.wantIdle(t, "done", 1)
	wantError(t, b.compensate(t, false), "no compensate for mail")
	must(t, b.compensate(t, true))
	b.waitIdle(t)
	b.wantActions(t, "nothing to do: it was compensated; done and not compensated: mail")
	wantError(t, b.asOperator(t, func(ctx context.Context, tx pgx.Tx) ([]effects.View, error) {
		return effects.Compensate(ctx, tx, true, 2)
	}), "it is awaiting_approval")
	if n := b.sink.ActionCounts()["/undo/customers_1 "]; n != 1 {
		t.Errorf("undone %d times: %v", n, b.sink.ActionCounts())
	}
}

// A redacted effect is neither executed nor compensated. An operator can reject it.
func TestRetryAndCompensate_redactedEffect_isRejected(t *testing.T) {
	t.Parallel()
	b := setupWithSource(t, neverRepeatedLast)
	b.plan(t, 1, 1)
	b.run(t, "a", b.pool)
	b.wantIdle(t, "done", 1)
	b.db.Exec(t, `UPDATE effects SET template_data = NULL`)
	wantError(t, b.compensate(t, true), "was redacted")
	b.db.Exec(t, `UPDATE effects SET state = 'needs_review'`)
	wantError(t, b.retry(t), "was redacted")
	b.wantInActions(t, "postern effects reject 1; done and not compensated: customer")
	must(t, b.reject(t, 1))
}

// An effect that is half done and waits for its rule can be rejected and then compensated. Its
// allowed actions say how.
func TestCompensate_rejectedEffect_undoesItsSteps(t *testing.T) {
	t.Parallel()
	b := setupWithSource(t, neverRepeatedLast)
	b.plan(t, 1, 1)
	b.db.Exec(t, `UPDATE effects SET due = clock_now() + interval '1 day',
		reason = 'its rule is not configured; it waits for it'`)
	wantError(t, b.compensate(t, false), "it is planned, so there is nothing to compensate")
	b.db.Exec(t, `UPDATE effects SET state = 'rejected', due = NULL`)
	wantError(t, b.compensate(t, false), "none of its steps has changed something, so there is nothing")
	b.wantActions(t, "an operator rejected it")
	b.db.Exec(t, `UPDATE effects SET state = 'planned', due = clock_now() + interval '1 day'`)
	b.db.Exec(t, `INSERT INTO effect_steps (effect, step, position, state, destination, request, fingerprint,
		resolved_by, undoable, attempts, reserved_at, ended_at, captured)
		VALUES (1, 'customer', 0, 'done', 'sink', '{"method": "POST", "path": "/customers", "headers": {}}', '', 'key',
			true, 1, clock_now(), clock_now(), '{"id": "c_1"}')`)
	const undo = "done and not compensated: customer; after that, when its rule is configured, postern effects " +
		"compensate 1 would undo customer"
	b.wantInActions(t, "postern effects reject 1 ends it; "+undo)
	must(t, b.reject(t, 1))
	b.wantActions(t, "an operator rejected it; done and not compensated: customer; "+
		"postern effects compensate 1 would undo customer")
	b.db.Exec(t, `INSERT INTO effect_steps (effect, step, position, state, destination, fingerprint, resolved_by,
		undoable, attempts, reserved_at, ended_at)
		VALUES (1, 'label', 1, 'done', 'sink', '', 'key', false, 1, clock_now(), clock_now())`)
	wantError(t, b.compensate(t, false), "no compensate for label when they were executed: --partial compensates the "+
		"other steps")
	b.wantActions(t, "an operator rejected it; done and not compensated: customer, "+
		"label; postern effects compensate 1 --partial would undo customer")
	b.db.Exec(t, `UPDATE effects SET state = 'done'`)
	b.wantActions(t, "nothing to do: all its steps are done; postern effects compensate "+
		"1 --partial would undo customer")
	b.db.Exec(t, `UPDATE effects SET state = 'rejected'`)
	b.db.Exec(t, `DELETE FROM effect_steps WHERE step = 'label'`)
	b.db.Exec(t, `UPDATE effect_steps SET state = 'unknown'`)
	wantError(t, b.compensate(t, false), "it is unknown whether step customer was executed, and the effect was "+
		"rejected: check at the destination")
	if next := b.show(t).AllowedActions; strings.Contains(next, "compensate") ||
		!strings.Contains(next, "unknown whether these were executed: step customer") {
		t.Error(next)
	}
	b.db.Exec(t, `UPDATE effect_steps SET state = 'done'`)
	must(t, b.compensate(t, false))
	b.run(t, "a", b.pool)
	b.wantIdle(t, "done", 1)
	if calls := b.sink.Calls(); len(calls) != 1 || calls[0].Path != "/undo/c_1" {
		t.Errorf("%+v", calls)
	}
	b.wantActions(t, "nothing to do: it was compensated")
}

// An effect that is not approved in time expires, and none of its steps is executed. Effects that
// have waited for less, or are approved, do not expire.
func TestExpire_withoutApproval_endsTheEffect(t *testing.T) {
	t.Parallel()
	b := setupWithSource(t, twoSteps)
	b.rules.ByName("follow").ApprovalExpires = 72 * time.Hour
	b.plan(t, 1, 4)
	b.db.Exec(t, `UPDATE effects SET planned_at = planned_at - CASE effect WHEN 1 THEN interval '73 h'
		WHEN 2 THEN interval '71 h' ELSE interval '80 h' END`)
	b.db.Exec(t, `UPDATE effects SET rule = 'another' WHERE effect = 4`)
	b.db.Exec(t, `UPDATE effects SET state = 'awaiting_approval', due = NULL WHERE effect <> 3`)
	b.run(t, "a", b.pool)
	b.waitForRow(t, `SELECT string_agg(concat_ws(' ', effect, state), ', ' ORDER BY effect) FROM effects
		WHERE state <> 'running'`, "1 expired, 2 awaiting_approval, 3 done, 4 awaiting_approval")
	if v := b.show(t); !strings.HasPrefix(v.Reason, "not approved until 2") ||
		!strings.Contains(v.AllowedActions, "none of its steps has started") {
		t.Errorf("%s; %s", v.Reason, v.AllowedActions)
	}
	wantError(t, b.approve(t, 1), "effect 1: it is expired")
	must(t, b.approve(t, 2))
	b.waitIdle(t)
	b.wantCalls(t, 4)
}

// After its expiry time an effect cannot be approved, even if no processor has marked it as
// expired, and whatever its rule says now.
func TestApprove_afterExpiry_isRejected(t *testing.T) {
	t.Parallel()
	b := setupWithSource(t, twoSteps)
	r := b.rules.ByName("follow")
	r.Approval, r.ApprovalExpires = rules.ApproveRequired, time.Hour
	b.plan(t, 1, 2)
	b.wantValues(t, `SELECT state || ' ' || (expires_at - planned_at) FROM effects`, "awaiting_approval 01:00:00",
		"awaiting_approval 01:00:00")
	b.db.Exec(t, `UPDATE effects SET expires_at = clock_now() - interval '1 s' WHERE effect = 1`)
	wantError(t, b.approve(t, 1), "effect 1: it could be approved until 2")
	if v := b.show(t); v.State != "awaiting_approval" ||
		!strings.Contains(v.AllowedActions, "none of its steps has started, and none will") {
		t.Errorf("%s; %s", v.State, v.AllowedActions)
	}
	must(t, b.approve(t, 2))
	r.ApprovalExpires = 0
	b.run(t, "a", b.pool)
	b.waitForRow(t, `SELECT string_agg(concat_ws(' ', effect, state), ', ' ORDER BY effect) FROM effects
		WHERE state <> 'running'`, "1 expired, 2 done")
	b.wantCalls(t, 2)
}
