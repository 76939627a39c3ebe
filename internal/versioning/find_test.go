package versioning_test

import (
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/versioning"
)

// A search for an id reads a row for each source, account and type and the objects it finds,
// however many objects there are, whatever the plan.
func TestFindID_manyObjects_readsRowsOfKinds(t *testing.T) {
	t.Parallel()
	db := insertObjects(t, 2000, 0)
	db.InsertObjects(t, 30_000)
	db.Exec(t, `INSERT INTO objects SELECT (jsonb_populate_record(o, jsonb_build_object('account', 'b' || g,
		'object_id', 'same'))).* FROM objects o, generate_series(1, 60) g WHERE object_id = 'obj_000001'`)
	db.WithEachPlan(t, func(name string, tx pgx.Tx) {
		read := func() (n int) {
			if err := tx.QueryRow(t.Context(), `SELECT sum(seq_tup_read + idx_tup_fetch)::int
				FROM pg_stat_xact_user_tables WHERE relname = 'objects'`).Scan(&n); err != nil {
				t.Fatal(err)
			}
			return n
		}
		before := read()
		found, more, err := versioning.FindIDWithin(t.Context(), tx, "obj_010000", 1000, 10)
		if err != nil || more || len(found) != 1 || found[0].ObjectID != "obj_010000" || found[0].Source != "one" {
			t.Errorf("%s: %+v, %v", name, found, err)
		}
		if n := read() - before; n > 200 {
			t.Errorf("%s: %d rows of objects were read", name, n)
		}
	})
	for _, c := range []struct {
		hops, limit int
		want        string
	}{{1000, 100, "60 false"}, {1000, 60, "60 false"}, {1000, 50, "50 true"}, {10, 100, "5 true"}, {1, 100, "0 true"}} {
		found, more, err := versioning.FindIDWithin(t.Context(), db.Role(t, "operator"), "same", c.hops, c.limit)
		if got := fmt.Sprint(len(found), more); err != nil || got != c.want {
			t.Errorf("%d hops, limit %d: %s, %v, want %s", c.hops, c.limit, got, err, c.want)
		}
	}
}
