package objectscan_test

import (
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/postern-gateway/postern/internal/objectscan"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

const (
	startedScanSQL = `INSERT INTO object_scans (run, source, account, object_type, started_at, updated_at)
		VALUES ($1, 1, '', 'thing', now(), now())`

	// allButOneSQL lists all objects but the third.
	allButOneSQL = `INSERT INTO listed_objects (run, object_type, object) SELECT $1, 'thing',
		hashtextextended(o.object_id, 0)
		FROM objects o WHERE o.object_id <> 'obj_000003'`
)

// A batch of the walk through the mirror reads its own objects and finds each in the list, for a
// list of any length and with any statistics of the tables. The time of a scan grows with the
// number of objects, and not with that number times the number of batches.
func TestMirrorWalk_manyObjects_readsItsOwnPart(t *testing.T) {
	t.Parallel()
	const objects, stretch = 10_000, 500
	db := testkit.Database(t)
	db.Exec(t, `INSERT INTO sources (name, provider) VALUES ('shop', 'stripe')`)
	run, err := runs.Create(t.Context(), db.Role(t, "operator"),
		runs.Request{Job: reconcile.Job, Params: reconcile.Params{Source: 1, Scope: reconcile.Objects}, Actor: "test"})
	testkit.Must(t, err)
	db.InsertObjects(t, objects)
	db.Exec(t, startedScanSQL, run)
	db.Exec(t, allButOneSQL, run)
	db.WithEachPlan(t, func(name string, tx pgx.Tx) {
		before := rowsRead(t, tx)
		var last string
		var found []string
		row := tx.QueryRow(t.Context(), objectscan.WalkSQL, 1, "", "thing", "", 1000, run, stretch)
		if err := row.Scan(&last, &found); err != nil || last != "obj_000500" ||
			!slices.Equal(found, []string{"obj_000003"}) {
			t.Errorf("up to %s the objects missing in the list are: %v (%v)", last, found, err)
		}
		if read := rowsRead(t, tx) - before; read < stretch || read > 3*stretch {
			t.Errorf("%s: a batch of %d objects reads %d rows", name, stretch, read)
		}
	})
}

// rowsRead returns how many rows of the large tables the transaction has read, including earlier
// reads of the session that are not reported yet.
func rowsRead(t *testing.T, tx pgx.Tx) (n int) {
	t.Helper()
	err := tx.QueryRow(t.Context(), `SELECT coalesce(sum(seq_tup_read + idx_tup_fetch), 0)::int
		FROM pg_stat_xact_user_tables WHERE relname IN ('objects', 'listed_objects')`).Scan(&n)
	testkit.Must(t, err)
	return n
}
