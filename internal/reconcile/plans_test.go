package reconcile_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
)

const (
	manySQL = `
INSERT INTO objects (source, account, object_type, object_id, version_final, version_at, version_seen, version_rank, tie_set, overflow, window_lo, window_hi, look_after, ambiguous,
  deleted, state_hash, exact_hash, repaired, last_event_id, revision, rule_version, created_at, updated_at)
SELECT 1, '', 'thing', 'obj_' || lpad(n::text, 6, '0'), false, 1, 0, 1, '[]', false, 1, 1, 0, false, false, sha256('a'), sha256('a'), false, 1, 1, 1, now() - interval '1 day', now() - interval '1 day'
FROM generate_series(1, $1::int) n`

	begunSQL = `INSERT INTO sweeps (run, source, account, object_type, began, updated_at) VALUES ($1, 1, '', 'thing', now(), now())`

	// allButOneSQL lists all of them but the third.
	allButOneSQL = `INSERT INTO listed (run, object_type, object) SELECT $1, 'thing', hashtextextended(o.object_id, 0) FROM objects o WHERE o.object_id <> 'obj_000003'`
)

// A stretch of the walk through the mirror reads its own objects and looks each up among what was listed, however much that is and whatever is known of the tables: a sweep takes as long as
// its objects are many, and not as many times that as it has stretches.
func TestWalkReadsItsOwnStretch(t *testing.T) {
	t.Parallel()
	const objects, stretch = 30_000, 500
	b := setup(t)
	b.db.Exec(t, `INSERT INTO sources (name, provider) VALUES ('shop', 'stripe')`)
	run, err := runs.Ask(t.Context(), b.db.Role(t, "operator"), runs.Order{Job: reconcile.Job, Asked: reconcile.Order{Source: 1, What: reconcile.Objects}, Who: "test"})
	if err != nil {
		t.Fatal(err)
	}
	for sql, arg := range map[string]int64{manySQL: objects, begunSQL: run} {
		if _, err := b.db.Pool.Exec(t.Context(), sql, arg); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := b.db.Pool.Exec(t.Context(), allButOneSQL, run); err != nil {
		t.Fatal(err)
	}
	for _, known := range []string{`SELECT 1`, `ANALYZE`} {
		b.db.Exec(t, known)
		for _, plan := range []string{"force_custom_plan", "force_generic_plan"} {
			tx, err := b.db.Pool.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = tx.Rollback(context.Background()) }()
			// What other processes read for this one is not counted here.
			if _, err := tx.Exec(t.Context(), `SET LOCAL max_parallel_workers_per_gather = 0; SET LOCAL plan_cache_mode = `+plan); err != nil {
				t.Fatal(err)
			}
			before := rowsRead(t, tx)
			var last string
			var found []string
			if err := tx.QueryRow(t.Context(), reconcile.WalkSQL, 1, "", "thing", "", 1000, run, stretch).Scan(&last, &found); err != nil {
				t.Fatal(err)
			}
			if last != "obj_000500" || len(found) != 1 || found[0] != "obj_000003" {
				t.Errorf("up to %s there are not listed: %v", last, found)
			}
			if read := rowsRead(t, tx) - before; read < stretch || read > 3*stretch {
				t.Errorf("%s, %s: a stretch of %d objects reads %d rows", known, plan, stretch, read)
			}
		}
	}
}

// rowsRead is how many rows of the large tables the transaction has read, and what the session has done before and not told yet.
func rowsRead(t *testing.T, tx pgx.Tx) (n int) {
	t.Helper()
	err := tx.QueryRow(t.Context(), `SELECT coalesce(sum(seq_tup_read + idx_tup_fetch), 0)::int FROM pg_stat_xact_user_tables WHERE relname IN ('objects', 'listed')`).Scan(&n)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
