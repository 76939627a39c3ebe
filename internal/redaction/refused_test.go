package redaction_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/redaction"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit"
)

// A refused delivery that a person releases into the log while a redaction begins lies above its first bound, and is no rejection any more: the run sees it all the same, but where
// it may clear nothing that is newer than a request.
func TestReleasedMeanwhile(t *testing.T) {
	t.Parallel()
	for _, until := range []bool{false, true} {
		b := setup(t)
		first := b.event(t, "hers", 1, email)
		order := b.byEmail(t, email)
		if until {
			order.Until = first
		}
		b.ask(t, order)
		h, err := runs.Take(t.Context(), b.pool, "test", time.Minute, redaction.Job)
		if err != nil || h == nil {
			t.Fatal(h, err)
		}
		audit, err := b.db.Pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		release := sync.OnceFunc(func() { _ = audit.Rollback(context.Background()) })
		t.Cleanup(release)
		if _, err := audit.Exec(t.Context(), `LOCK TABLE redactions IN ACCESS EXCLUSIVE MODE`); err != nil {
			t.Fatal(err)
		}
		carried := make(chan error, 1)
		go func() {
			_, err := (&redaction.Runner{Pool: b.pool, Processor: b.proc}).Carry(t.Context(), h, slog.New(slog.DiscardHandler))
			carried <- err
		}()
		testkit.Eventually(t, 30*time.Second, func() error { // it has its bound, and has cleared nothing yet
			if b.rows(t, `SELECT count(*)::text FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`)[0] == "0" {
				return errors.New("the redaction does not wait")
			}
			return nil
		})
		b.event(t, "released", 1, email)
		release()
		if err := <-carried; err != nil {
			t.Fatal(err)
		}
		if left := b.holding(t, email); slices.Contains(left, "objects") != until {
			t.Errorf("until a request %t: left in %v", until, left)
		}
		if b.state(t, "hers") != "nothing" {
			t.Error("what is older is not cleared")
		}
	}
}
