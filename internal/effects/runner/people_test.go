package runner_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/effects"
	"github.com/postern-gateway/postern/internal/effects/rules"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/testkit/sink"
)

// attended is setup with the source known, as it is where events come in.
func attended(t *testing.T, steps string) *bundle {
	t.Helper()
	b := setup(t, steps)
	if _, err := events.RegisterSources(t.Context(), b.db.Pool, map[string]string{"shop": "stripe"}); err != nil {
		t.Fatal(err)
	}
	return b
}

// person does something as an operator.
func (b *bundle) person(t *testing.T, do func(context.Context, pgx.Tx) ([]effects.View, error)) (all []effects.View, err error) {
	t.Helper()
	err = postgres.InTx(t.Context(), b.db.Role(t, "operator"), "test", time.Minute, func(ctx context.Context, tx pgx.Tx) (err error) {
		all, err = do(ctx, tx)
		return err
	})
	return all, err
}

func (b *bundle) show(t *testing.T) effects.View {
	t.Helper()
	all, err := effects.Show(t.Context(), b.db.Role(t, "operator"), 1)
	must(t, err)
	return all[0]
}

// refused wants an error that says so.
func refused(t *testing.T, err error, says string) {
	t.Helper()
	if !errors.Is(err, events.ErrInvalid) || !strings.Contains(err.Error(), says) {
		t.Errorf("%v, want %q", err, says)
	}
}

func (b *bundle) approve(t *testing.T, ids ...int64) error {
	t.Helper()
	_, err := b.person(t, func(ctx context.Context, tx pgx.Tx) ([]effects.View, error) { return effects.Approve(ctx, tx, ids...) })
	return err
}

func (b *bundle) reject(t *testing.T, ids ...int64) error {
	t.Helper()
	_, err := b.person(t, func(ctx context.Context, tx pgx.Tx) ([]effects.View, error) {
		return effects.Reject(ctx, tx, "why", ids...)
	})
	return err
}

func (b *bundle) retry(t *testing.T) error {
	t.Helper()
	_, err := b.person(t, func(ctx context.Context, tx pgx.Tx) ([]effects.View, error) { return effects.Retry(ctx, tx, 1) })
	return err
}

func (b *bundle) resolve(t *testing.T, w effects.Word) error {
	t.Helper()
	_, err := b.person(t, func(ctx context.Context, tx pgx.Tx) ([]effects.View, error) { return effects.Resolve(ctx, tx, 1, w) })
	return err
}

func (b *bundle) compensate(t *testing.T, partial bool) error {
	t.Helper()
	_, err := b.person(t, func(ctx context.Context, tx pgx.Tx) ([]effects.View, error) {
		return effects.Compensate(ctx, tx, partial, 1)
	})
	return err
}

// faulty lets requests to a path fail, each as the next of faults says, and then none.
func (b *bundle) faulty(path string, faults ...sink.Fault) {
	n := make(chan sink.Fault, len(faults))
	for _, f := range faults {
		n <- f
	}
	b.sink.Next = func(r *http.Request) sink.Fault {
		if r.URL.Path != path {
			return sink.Fine
		}
		select {
		case f := <-n:
			return f
		default:
			return sink.Fine
		}
	}
}

// What waits is carried out when a person approves it, and never when one rejects it; of several named none, where one is not as it should be.
func TestPeopleApproveAndReject(t *testing.T) {
	t.Parallel()
	b := attended(t, twoSteps)
	b.plan(t, 1, 4)
	b.db.Exec(t, `UPDATE effects SET state = 'waiting', due = NULL`)
	b.run(t, "a", b.pool)
	if next := b.show(t).Next; !strings.Contains(next, "postern effects approve 1") {
		t.Error(next)
	}
	refused(t, b.retry(t), "effect 1: it is waiting, so there is nothing to try again")
	if err := b.approve(t, 1, 99); !errors.Is(err, events.ErrNotFound) || !strings.Contains(err.Error(), "effect 99") {
		t.Error(err)
	}
	for _, err := range []error{b.approve(t, 1, 2), b.reject(t, 3)} {
		if err != nil {
			t.Error(err)
		}
	}
	refused(t, b.approve(t, 4, 3), "effect 3: it is rejected, so there is nothing to approve")
	got := b.settled(t)
	if diff := cmp.Diff(map[string]int{"done": 2, "rejected": 1, "waiting": 1}, got); diff != "" {
		t.Error(diff)
	}
	refused(t, b.reject(t, 1), "effect 1: it is done")
	refused(t, b.reject(t), "name at least one")
	if calls := len(b.sink.Calls()); calls != 4 {
		t.Errorf("%d calls", calls)
	}
}

// What came to nothing is tried again when a person says so, with a request made anew of the rule as it is now, under the same key.
func TestPeopleRetry(t *testing.T) {
	t.Parallel()
	b := attended(t, twoSteps)
	b.plan(t, 1, 1)
	picky := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, `{"error": "no total"}`, http.StatusUnprocessableEntity)
	}))
	t.Cleanup(picky.Close)
	was := b.reach[0].URL
	b.reach[0].URL = picky.URL
	stop := b.run(t, "a", b.pool)
	if got := b.settled(t); got["review"] != 1 {
		t.Fatal(got)
	}
	stop()
	v := b.show(t)
	if s := v.Steps[0]; s.State != effects.StepFailed || s.Status != 422 || s.Request != "POST /customers" || len(s.Fingerprint) != 64 || !strings.Contains(s.Error, "no total") ||
		!strings.Contains(v.Next, "step customer was not done; mend what its error says, then postern effects retry 1 is safe") {
		t.Errorf("%+v", v)
	}
	key := b.db.Rows(t, `SELECT request->'headers'->>'Idempotency-Key' FROM effect_steps`)[0]
	must(t, b.retry(t))
	refused(t, b.retry(t), "it is planned")
	mended := setup(t, strings.Replace(twoSteps, `{ref: "{{ object.id }}"}`, `{ref: "{{ object.id }}", mended: true}`, 1))
	b.rules, b.reach[0].URL = mended.rules, was
	b.run(t, "b", b.pool)
	if got := b.settled(t); got["done"] != 1 {
		t.Fatal(got)
	}
	if c := b.sink.Calls()[0]; c.Key != key || c.JSON(t)["mended"] != true {
		t.Errorf("key %s, want %s; %s", c.Key, key, c.Body)
	}
}

const onceLast = `
      - {name: customer, to: sink, path: "/customers", json: {ref: "{{ object.id }}"}, capture: {id: id}, compensate: {path: "/undo/{{ steps.customer.id }}"}}
      - {name: mail, to: sink, path: "/mail", json: {ref: "{{ object.id }}", customer: "{{ steps.customer.id }}"}, once: true, person_resolves: true, capture: {id: id}, compensate: {path: "/unmail/{{ steps.mail.id }}"}}`

// A person says of a step in doubt that it was done: it is not done again, and what it captured is known. Then all is undone, the last step first, and not twice.
func TestPeopleResolveAndCompensate(t *testing.T) {
	t.Parallel()
	b := attended(t, onceLast)
	b.sink.Honours = false
	b.faulty("/mail", sink.ActsDrops)
	b.plan(t, 1, 1)
	b.run(t, "a", b.pool)
	if got := b.settled(t); got["review"] != 1 {
		t.Fatal(got)
	}
	if next := b.show(t).Next; !strings.Contains(next, "nobody knows whether step mail was done; look there, then postern effects resolve 1 --step mail --done --captured '{\"id\": \"VALUE\"}', or --not-done") {
		t.Error(next)
	}
	refused(t, b.retry(t), "resolve 1 --step mail")
	refused(t, b.compensate(t, true), "say first what happened")
	refused(t, b.resolve(t, effects.Word{Step: "x", Done: true}), `step "x" was not begun; these were: customer, mail`)
	refused(t, b.resolve(t, effects.Word{Step: "customer", Done: true}), "step customer is done, so nothing is in doubt")
	refused(t, b.resolve(t, effects.Word{Step: "mail", Done: true, Captured: json.RawMessage(`["id"]`)}), "no JSON object")
	refused(t, b.resolve(t, effects.Word{Step: "mail", Done: true}), "step mail was to capture id")
	refused(t, b.resolve(t, effects.Word{Step: "mail", Captured: json.RawMessage(`{"id": 1}`)}), "captured nothing")
	must(t, b.resolve(t, effects.Word{Step: "mail", Done: true, Captured: json.RawMessage(`{"id": 820982911946154508}`)}))
	if got := b.settled(t); got["done"] != 1 {
		t.Fatal(got)
	}
	if next := b.show(t).Next; next != "nothing: all its steps are done; postern effects compensate 1 would undo customer, mail" {
		t.Error(next)
	}
	must(t, b.compensate(t, false))
	if got := b.settled(t); got["done"] != 1 {
		t.Fatal(got)
	}
	refused(t, b.compensate(t, false), "its steps are undone already")
	v := b.show(t)
	if !v.Undoing || v.Reason != "its steps were undone" || v.Next != "nothing: what was done was undone" || len(v.Steps) != 4 {
		t.Errorf("%+v", v)
	}
	var paths []string
	for _, c := range b.sink.Calls() {
		paths = append(paths, c.Path)
	}
	if diff := cmp.Diff([]string{"/customers", "/mail", "/unmail/820982911946154508", "/undo/customers_1"}, paths); diff != "" {
		t.Error(diff)
	}
}

// A person says of a step what it captured, and may say it anew: the next one, which was refused with what was said first, is sent with that.
func TestPeopleAddWhatAStepHasCaptured(t *testing.T) {
	t.Parallel()
	b := attended(t, onceLast)
	was := b.reach[0].URL
	picky := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/customers" {
			fmt.Fprint(w, `{"name": "Ada"}`)
			return
		}
		http.Error(w, `{"error": "no customer"}`, http.StatusUnprocessableEntity)
	}))
	t.Cleanup(picky.Close)
	b.reach[0].URL = picky.URL
	b.plan(t, 1, 1)
	stop := b.run(t, "a", b.pool)
	b.settled(t)
	const lacks = "step customer is done and its answer lacked something; postern effects resolve 1 " +
		"--step customer --done --captured '{\"id\": \"VALUE\"}' gives it"
	if next := b.show(t).Next; !strings.Contains(next, lacks) {
		t.Error(next)
	}
	refused(t, b.resolve(t, effects.Word{Step: "customer", Done: true, Captured: json.RawMessage(`{"name": "Ada"}`)}), "effect 1: step customer was to capture id")
	must(t, b.resolve(t, effects.Word{Step: "customer", Done: true, Captured: json.RawMessage(`{"id": "c_6"}`)}))
	if got := b.settled(t); got["review"] != 1 || len(b.show(t).Steps) != 2 {
		t.Fatal(got)
	}
	stop()
	refused(t, b.resolve(t, effects.Word{Step: "customer", Done: true}), "step customer is done, so nothing is in doubt")
	refused(t, b.resolve(t, effects.Word{Step: "customer"}), "step customer is done, so nothing is in doubt")
	must(t, b.resolve(t, effects.Word{Step: "customer", Done: true, Captured: json.RawMessage(`{"id": "c_7"}`)}))
	b.reach[0].URL = was
	b.run(t, "b", b.pool)
	if got := b.settled(t); got["done"] != 1 {
		t.Fatal(got)
	}
	if calls := b.sink.Calls(); len(calls) != 1 || calls[0].JSON(t)["customer"] != "c_7" {
		t.Errorf("%+v", calls)
	}
}

// What cannot be undone is named, and stays where a person wants the rest undone.
func TestPeopleCompensateWhatCanBe(t *testing.T) {
	t.Parallel()
	b := attended(t, strings.Replace(onceLast, `, compensate: {path: "/unmail/{{ steps.mail.id }}"}`, "", 1))
	b.plan(t, 1, 2)
	b.db.Exec(t, `UPDATE effects SET state = 'waiting', due = NULL WHERE effect = 2`)
	b.run(t, "a", b.pool)
	if got := b.settled(t); got["done"] != 1 {
		t.Fatal(got)
	}
	refused(t, b.compensate(t, false), "no compensate for mail")
	must(t, b.compensate(t, true))
	b.settled(t)
	if v := b.show(t); v.Next != "nothing: what was done was undone; done and not undone: mail" {
		t.Error(v.Next)
	}
	if _, err := b.person(t, func(ctx context.Context, tx pgx.Tx) ([]effects.View, error) {
		return effects.Compensate(ctx, tx, true, 2)
	}); err == nil || !strings.Contains(err.Error(), "it is waiting") {
		t.Error(err)
	}
	if n := fmt.Sprint(b.sink.Did()["/undo/customers_1 "]); n != "1" {
		t.Errorf("undone %s times: %v", n, b.sink.Did())
	}
}

// Of what was redacted nothing is sent any more, nor undone; a person may end it.
func TestPeopleCannotSendWhatWasRedacted(t *testing.T) {
	t.Parallel()
	b := attended(t, onceLast)
	b.plan(t, 1, 1)
	b.run(t, "a", b.pool)
	if got := b.settled(t); got["done"] != 1 {
		t.Fatal(got)
	}
	b.db.Exec(t, `UPDATE effects SET facts = NULL`)
	refused(t, b.compensate(t, true), "was redacted")
	b.db.Exec(t, `UPDATE effects SET state = 'review'`)
	refused(t, b.retry(t), "was redacted")
	if next := b.show(t).Next; !strings.Contains(next, "postern effects reject 1; done and not undone: customer, mail") {
		t.Error(next)
	}
	if err := b.reject(t, 1); err != nil {
		t.Error(err)
	}
}

// An effect that waits half-way, as its rule is gone, can be rejected and what was done of it undone: what is safe to do next says how.
func TestPeopleUndoWhatWasRejectedHalfway(t *testing.T) {
	t.Parallel()
	b := attended(t, onceLast)
	b.plan(t, 1, 1)
	b.db.Exec(t, `UPDATE effects SET due = clock_now() + interval '1 day', reason = 'its rule is not configured; it waits for it'`)
	refused(t, b.compensate(t, false), "it is planned, so nothing can be undone")
	b.db.Exec(t, `UPDATE effects SET state = 'rejected', due = NULL`)
	refused(t, b.compensate(t, false), "no step of it was done, so there is nothing to undo")
	if next := b.show(t).Next; next != "a person rejected it" {
		t.Error(next)
	}
	b.db.Exec(t, `UPDATE effects SET state = 'planned', due = clock_now() + interval '1 day'`)
	b.db.Exec(t, `INSERT INTO effect_steps (effect, step, place, state, destination, request, fingerprint, doubt, undoable, attempts, reserved_at, ended_at, captured)
		VALUES (1, 'customer', 0, 'done', 'sink', '{"method": "POST", "path": "/customers", "headers": {}}', '', 'key', true, 1, clock_now(), clock_now(), '{"id": "c_1"}')`)
	const undo = "done and not undone: customer; after that, with its rule there, postern effects compensate 1 would undo customer"
	if next := b.show(t).Next; !strings.Contains(next, "postern effects reject 1 ends it; "+undo) {
		t.Error(next)
	}
	must(t, b.reject(t, 1))
	if next := b.show(t).Next; next != "a person rejected it; done and not undone: customer; postern effects compensate 1 would undo customer" {
		t.Error(next)
	}
	b.db.Exec(t, `INSERT INTO effect_steps (effect, step, place, state, destination, fingerprint, doubt, undoable, attempts, reserved_at, ended_at) VALUES (1, 'label', 1, 'done', 'sink', '', 'key', false, 1, clock_now(), clock_now())`)
	refused(t, b.compensate(t, false), "no compensate for label when that was done: --partial undoes the others")
	if next := b.show(t).Next; next != "a person rejected it; done and not undone: customer, label; postern effects compensate 1 --partial would undo customer" {
		t.Error(next)
	}
	b.db.Exec(t, `UPDATE effects SET state = 'done'`)
	if next := b.show(t).Next; next != "nothing: all its steps are done; postern effects compensate 1 --partial would undo customer" {
		t.Error(next)
	}
	b.db.Exec(t, `UPDATE effects SET state = 'rejected'`)
	b.db.Exec(t, `DELETE FROM effect_steps WHERE step = 'label'`)
	b.db.Exec(t, `UPDATE effect_steps SET state = 'unknown'`)
	refused(t, b.compensate(t, false), "nobody knows whether step customer was done, and it was rejected: look there")
	if next := b.show(t).Next; strings.Contains(next, "compensate") || !strings.Contains(next, "nobody knows whether these were done: step customer") {
		t.Error(next)
	}
	b.db.Exec(t, `UPDATE effect_steps SET state = 'done'`)
	must(t, b.compensate(t, false))
	b.run(t, "a", b.pool)
	if got := b.settled(t); got["done"] != 1 {
		t.Fatal(got)
	}
	if calls := b.sink.Calls(); len(calls) != 1 || calls[0].Path != "/undo/c_1" {
		t.Errorf("%+v", calls)
	}
	if next := b.show(t).Next; next != "nothing: what was done was undone" {
		t.Error(next)
	}
}

// What nobody approves in time expires, and nothing of it is done; what waits for less, or is approved, does not.
func TestNobodyApprovedInTime(t *testing.T) {
	t.Parallel()
	b := attended(t, twoSteps)
	b.rules.Named("follow").ApprovalExpires = 72 * time.Hour
	b.plan(t, 1, 4)
	b.db.Exec(t, `UPDATE effects SET planned_at = planned_at - CASE effect WHEN 1 THEN interval '73 h' WHEN 2 THEN interval '71 h' ELSE interval '80 h' END`)
	b.db.Exec(t, `UPDATE effects SET rule = 'another' WHERE effect = 4`)
	b.db.Exec(t, `UPDATE effects SET state = 'waiting', due = NULL WHERE effect <> 3`)
	b.run(t, "a", b.pool)
	b.becomes(t, `SELECT string_agg(concat_ws(' ', effect, state), ', ' ORDER BY effect) FROM effects WHERE state <> 'running'`, "1 expired, 2 waiting, 3 done, 4 waiting")
	if v := b.show(t); !strings.HasPrefix(v.Reason, "nobody approved it until 2") || !strings.Contains(v.Next, "nothing of it was begun") {
		t.Errorf("%s; %s", v.Reason, v.Next)
	}
	refused(t, b.approve(t, 1), "effect 1: it is expired")
	must(t, b.approve(t, 2))
	b.settled(t)
	if n := len(b.sink.Calls()); n != 4 {
		t.Errorf("%d calls", n)
	}
}

// What could be approved until a time is begun by nobody after it, also while no processor is there to end it, and whatever its rule says by then.
func TestNobodyApprovesTooLate(t *testing.T) {
	t.Parallel()
	b := attended(t, twoSteps)
	r := b.rules.Named("follow")
	r.Approval, r.ApprovalExpires = rules.ApproveRequired, time.Hour
	b.plan(t, 1, 2)
	if diff := cmp.Diff([]string{"waiting 01:00:00", "waiting 01:00:00"}, b.db.Rows(t, `SELECT state || ' ' || (expires_at - planned_at) FROM effects`)); diff != "" {
		t.Fatal(diff)
	}
	b.db.Exec(t, `UPDATE effects SET expires_at = clock_now() - interval '1 s' WHERE effect = 1`)
	refused(t, b.approve(t, 1), "effect 1: it could be approved until 2")
	if v := b.show(t); v.State != "waiting" || !strings.Contains(v.Next, "nothing of it was begun, and nothing will be") {
		t.Errorf("%s; %s", v.State, v.Next)
	}
	must(t, b.approve(t, 2))
	r.ApprovalExpires = 0
	b.run(t, "a", b.pool)
	b.becomes(t, `SELECT string_agg(concat_ws(' ', effect, state), ', ' ORDER BY effect) FROM effects WHERE state <> 'running'`, "1 expired, 2 done")
	if n := len(b.sink.Calls()); n != 2 {
		t.Errorf("%d calls", n)
	}
}
