package rebuild_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/rebuild"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/applied"
	"github.com/postern-gateway/postern/internal/testkit/sim"
)

// A swap that takes longer than the lease keeps its run beside another process that would take it, and is done once.
func TestALongSwapKeepsItsRun(t *testing.T) {
	t.Parallel()
	r := seeded(t, 75)
	b := setup(t)
	b.live(t, r, b.append(t, r, b.source, sim.Generate(r, kinds["steps"]).Events))
	want := b.table(t, object, "objects")
	b.exec(t, `UPDATE objects SET state = '{"damaged": true}'`)
	b.exec(t, `TRUNCATE outbox`)
	before := b.revisions(t)
	tx, err := b.db.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if _, err := tx.Exec(t.Context(), `SELECT true FROM objects ORDER BY object_id LIMIT 1 FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	b.start(t, "one", nil, quick())
	b.start(t, "two", nil, quick())
	run := b.ask(t, rebuild.Order{Source: b.source, Swap: true})
	b.waits(t, tx)
	by, until := b.leased(t, run)
	for range 4 { // the clock stands still but for these steps, so that only what is not renewed runs out
		now := until.Add(-time.Millisecond)
		b.exec(t, fmt.Sprintf(`CREATE OR REPLACE FUNCTION clock_now() RETURNS timestamptz LANGUAGE sql VOLATILE AS 'SELECT timestamptz ''%s'''`, now.Format(time.RFC3339Nano)))
		testkit.Eventually(t, patience, func() error {
			holder, to := b.leased(t, run)
			if until = to; holder != by {
				t.Fatalf("%s has the run of %s", holder, by)
			}
			if to.Before(now.Add(applied.Lease)) {
				return fmt.Errorf("leased until %s at %s", to, now)
			}
			return nil
		})
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	ended := b.until(t, run, done)
	if diff := cmp.Diff(want, b.table(t, object, "objects")); diff != "" {
		t.Error(diff)
	}
	b.grew(t, before, ended)
	if n := b.number(t, `SELECT count(*) FROM outcomes WHERE run = $1`, run); n != len(b.ids) || ended.Counts[rebuild.Processed] != int64(n) {
		t.Errorf("%d outcomes of %d events: %v", n, len(b.ids), ended.Counts)
	}
}

// leased is who has a run, and until when.
func (b *testBundle) leased(t *testing.T, run int64) (by string, until time.Time) {
	t.Helper()
	if err := b.db.Pool.QueryRow(t.Context(), `SELECT leased_by, leased_until FROM checkpoints WHERE run = $1`, run).Scan(&by, &until); err != nil {
		t.Fatal(err)
	}
	return by, until
}
