package runner_test

import (
	"strings"
	"testing"
)

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
	if err := b.reject(t, 1); err != nil {
		t.Fatal(err)
	}
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
	if err := b.compensate(t, false); err != nil {
		t.Fatal(err)
	}
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
