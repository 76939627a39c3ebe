package testkit

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
)

// WithEachPlan runs a test with each kind of query plan, before and after ANALYZE, in a transaction
// that is rolled back.
func (d *DB) WithEachPlan(t testing.TB, what func(name string, tx pgx.Tx)) {
	t.Helper()
	for _, known := range []string{`SELECT 1`, `ANALYZE`} {
		d.Exec(t, known)
		for _, plan := range []string{"force_custom_plan", "force_generic_plan"} {
			tx, err := d.Pool.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = tx.Rollback(context.Background()) }()
			// The statistics of this transaction do not contain the reads of parallel workers.
			if _, err := tx.Exec(t.Context(), `SET LOCAL max_parallel_workers_per_gather = 0;
				SET LOCAL plan_cache_mode = `+plan); err != nil {
				t.Fatal(err)
			}
			what(known+", "+plan, tx)
			if err := tx.Rollback(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// IndexBlocksRead returns how many blocks of an index this session has read. Only the difference of
// two calls in one transaction has a meaning. The statistics of rows do not contain the entries of
// an index that a scan reads and does not return.
func IndexBlocksRead(t testing.TB, tx pgx.Tx, index string) (blocks int64) {
	t.Helper()
	err := tx.QueryRow(t.Context(), `SELECT pg_stat_get_xact_blocks_fetched($1::regclass)`, index).Scan(&blocks)
	if err != nil {
		t.Fatal(err)
	}
	return blocks
}

const insertObjectsSQL = `
INSERT INTO objects (source, account, object_type, object_id, version_final, version_at, version_seen, version_rank,
	tied_states, overflow, time_from, time_to, refetch_after, ambiguous,
  deleted, state_hash, exact_hash, sanitized, last_event_id, revision, rule_version, created_at, updated_at)
SELECT 1, '', 'thing', 'obj_' || lpad(n::text, 6, '0'), false, 1, 0, 1, '[]', false, 1, 1, 0, false, false, sha256('a'),
	sha256('a'), false, 1, 1, 1, now() - interval '1 day', now() - interval '1 day'
FROM generate_series(1, $1::int) n`

// InsertObjects inserts a number of living objects of source 1, with the ids obj_000001 and so on.
func (d *DB) InsertObjects(t testing.TB, n int) {
	t.Helper()
	d.Exec(t, insertObjectsSQL, n)
}
