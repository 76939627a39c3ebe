package apply_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/apply"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/applied"
	"github.com/postern-gateway/postern/internal/versioning"
)

// lockOf is the advisory lock of an object.
func (b *testBundle) lockOf(key string) int64 {
	return versioning.ObjectKey(b.Source, "", "thing", "obj_"+key)
}

// All transactions lock their objects in one order, whatever the order of the events. Otherwise two
// of them could wait for each other.
func TestApply_eventsOfTwoObjects_locksInOneOrder(t *testing.T) {
	t.Parallel()
	b := setup(t)
	first, last := "a", "b"
	if b.lockOf(first) > b.lockOf(last) {
		first, last = last, first
	}
	tx := testkit.OpenTx(t, b.DB.Pool, `SELECT pg_advisory_xact_lock($1)`, b.lockOf(first))
	ended := make(chan error, 1)
	go func() {
		batch := []stream.Event{applied.ThingEvent(0, last), applied.ThingEvent(1, first)}
		ended <- b.Applier(t, nil).Apply(t.Context(), events.LiveRun, batch)
	}()
	b.AwaitLockWait(t, ended)
	var free bool
	b.Scan(t, fmt.Sprintf(`SELECT pg_try_advisory_xact_lock(%d)`, b.lockOf(last)), &free)
	if !free {
		t.Error("the object whose lock comes last is locked before the one whose lock comes first")
	}
	must(t, tx.Rollback(t.Context()))
	must(t, <-ended)
}

// Forwards lock rows of objects without their advisory locks. So all transactions lock the rows in
// one order too.
func TestApply_eventsOfTwoObjects_writesInOrderOfKeys(t *testing.T) {
	t.Parallel()
	b := setup(t)
	p := b.Applier(t, nil)
	first, second := applied.ThingEvent(0, "a"), applied.ThingEvent(1, "b")
	must(t, p.Apply(t.Context(), events.LiveRun, []stream.Event{first, second}))
	first.ID, second.ID = 11, 10 // the same states again
	b.CheckLockOrder(t, "objects", "object_id", "obj_a", func() error {
		return p.Apply(t.Context(), events.LiveRun, []stream.Event{second, first})
	})
}

// No two transactions apply to one object at the same time, not even with a shared lock.
func TestApply_objectLockedShared_waits(t *testing.T) {
	t.Parallel()
	b := setup(t)
	tx := testkit.OpenTx(t, b.DB.Pool, `SELECT pg_advisory_xact_lock_shared($1)`, b.lockOf("a"))
	ended := make(chan error, 1)
	go func() {
		ended <- b.Applier(t, nil).Apply(t.Context(), events.LiveRun, []stream.Event{applied.ThingEvent(0, "a")})
	}()
	b.AwaitLockWait(t, ended)
	must(t, tx.Rollback(t.Context()))
	must(t, <-ended)
}

// An event whose object stays locked for longer than a transaction may take is not applied. This is
// an infrastructure failure and counts no attempt.
func TestApply_objectStaysLocked_countsNoAttempt(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Settings.ApplyTimeout = 300 * time.Millisecond
	p := b.Applier(t, nil)
	tx := testkit.OpenTx(t, b.DB.Pool, `SELECT pg_advisory_xact_lock($1), pg_advisory_xact_lock($2)`, b.lockOf("a"),
		b.lockOf("b"))
	first, second := applied.ThingEvent(0, "a"), applied.ThingEvent(1, "b")
	if err := p.Apply(t.Context(), events.LiveRun, []stream.Event{first}); !errors.Is(err, events.ErrUnavailable) {
		t.Errorf("while the object is locked: %v", err)
	}
	if err := p.ApplySingle(t.Context(), events.LiveRun, second); !errors.Is(err, events.ErrUnavailable) {
		t.Errorf("as a single event: %v", err)
	}
	must(t, tx.Rollback(t.Context()))
	b.Settings = apply.DefaultSettings // a busy machine may need longer than the short timeout
	after := b.Applier(t, nil)
	must(t, after.Apply(t.Context(), events.LiveRun, []stream.Event{first}))
	must(t, after.ApplySingle(t.Context(), events.LiveRun, second))
	var outcomes, attempts int
	b.Scan(t, `SELECT count(*) FROM outcomes WHERE status <> 'failed'`, &outcomes)
	b.Scan(t, `SELECT max(attempts) FROM outcomes`, &attempts)
	if outcomes != 2 || attempts != 1 {
		t.Errorf("%d outcomes, after %d attempts", outcomes, attempts)
	}
}

// The server ends a session that hangs in a transaction with an object's lock. The events of the
// object are then applied.
func TestApply_frozenSession_losesItsLocks(t *testing.T) {
	t.Parallel()
	b := setup(t)
	frozen := testkit.OpenTx(t, b.Pool, `SELECT pg_advisory_xact_lock($1)`, b.lockOf("e"))
	var limit string
	if err := frozen.QueryRow(t.Context(), `SHOW idle_in_transaction_session_timeout`).Scan(&limit); err != nil ||
		limit != "15s" {
		t.Fatalf("a processor's session may stay idle in a transaction for %q (%v)", limit, err)
	}
	// The same with a limit that is short enough for a test.
	testkit.ExecSQL(t, frozen, `SET LOCAL idle_in_transaction_session_timeout = '200ms'`)
	e := applied.ThingEvent(0, "e")
	must(t, b.Applier(t, nil).Apply(t.Context(), events.LiveRun, []stream.Event{e}))
	if status, _, _ := b.OutcomeOf(t, e.ID); status != "applied" {
		t.Errorf("after a frozen session: %s", status)
	}
}
