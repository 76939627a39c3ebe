package reconcile_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/reconcile"
)

// manyHintsSQL are hints of source 1 that are due tomorrow, but for a few, and of source 2 that are due.
const manyHintsSQL = `
INSERT INTO hints (source, account, object_type, object_id, reason, made_at, due, after)
SELECT s, '', 'thing', 'obj_' || lpad(n::text, 6, '0'), 'in doubt', now(), CASE WHEN s = 1 AND n % 1000 <> 0 THEN now() + interval '1 day' ELSE now() - interval '1 minute' END, 0
FROM generate_series(1, $1::int) n, generate_series(1, 2) s`

// planned runs a test with each kind of plan, before and after the tables are known, in a transaction that leaves nothing.
func (b *testBundle) planned(t *testing.T, what func(name string, tx pgx.Tx)) {
	t.Helper()
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
			what(known+", "+plan, tx)
			if err := tx.Rollback(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// A pass takes what is due and reads little else, however many hints are not due, or another source's, and whatever is known of the table.
func TestTakingReadsWhatIsDue(t *testing.T) {
	t.Parallel()
	const hints, due, most = 30_000, 30, 20
	b := setup(t)
	if _, err := b.db.Pool.Exec(t.Context(), manyHintsSQL, hints); err != nil {
		t.Fatal(err)
	}
	b.planned(t, func(name string, tx pgx.Tx) {
		taken, read := 0, 0
		for _, want := range []int{most, due - most, 0} {
			rows, err := tx.Query(t.Context(), reconcile.TakeHintsSQL, 1, most, "one", "2 minutes")
			if err != nil {
				t.Fatal(err)
			}
			n := 0
			for rows.Next() {
				n++
			}
			if rows.Err() != nil || n != want {
				t.Errorf("%s: %d taken, %v", name, n, rows.Err())
			}
			taken += n
		}
		if err := tx.QueryRow(t.Context(), `SELECT sum(seq_tup_read + idx_tup_fetch)::int FROM pg_stat_xact_user_tables WHERE relname = 'hints'`).Scan(&read); err != nil {
			t.Fatal(err)
		}
		if read < taken || read > hints/20 {
			t.Errorf("%s: %d of %d hints are due, and %d rows were read", name, taken, hints, read)
		}
	})
}
