package processor_test

import (
	"testing"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/testkit/sim"
	"github.com/postern-gateway/postern/internal/versioning"
)

// A session that froze in a transaction, an object's lock in hand, is ended by the server, and the object's events go on.
func TestFrozenSessionLosesItsLocks(t *testing.T) {
	t.Parallel()
	b := setup(t)
	frozen, err := b.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = frozen.Rollback(t.Context()) }()
	var limit string
	if err := frozen.QueryRow(t.Context(), `SHOW idle_in_transaction_session_timeout`).Scan(&limit); err != nil || limit != "15s" {
		t.Fatalf("a session of ours may stay idle in a transaction for %q (%v)", limit, err)
	}
	// The same with a limit that nobody waits for.
	if _, err := frozen.Exec(t.Context(), `SET LOCAL idle_in_transaction_session_timeout = '200ms'`); err != nil {
		t.Fatal(err)
	}
	if _, err := frozen.Exec(t.Context(), `SELECT pg_advisory_xact_lock($1)`, versioning.ObjectKey(b.source, "", "thing", "obj_e")); err != nil {
		t.Fatal(err)
	}
	e := thing(0, "e")
	if err := b.processor(t, sim.Provider{}, nil).Apply(t.Context(), events.LiveRun, []stream.Event{e}); err != nil {
		t.Fatal(err)
	}
	if status, _, _ := b.status(t, e.ID); status != "applied" {
		t.Errorf("behind a frozen session: %s", status)
	}
}
