package reconcile_test

import (
	"context"
	"slices"
	"testing"

	"github.com/postern-gateway/postern/internal/reconcile"
)

// What owes a look and has its hint is not written again, and not even locked: that would be a record in PostgreSQL's log of writes for each such object and second.
func TestGatheringWritesWhatIsNew(t *testing.T) {
	t.Parallel()
	const objects = 1000
	b := setup(t)
	b.db.Exec(t, `INSERT INTO sources (name, provider) VALUES ('shop', 'stripe')`)
	if _, err := b.db.Pool.Exec(t.Context(), manySQL, objects); err != nil {
		t.Fatal(err)
	}
	b.db.Exec(t, `UPDATE objects SET look_after = 7`)
	gather := func() {
		t.Helper()
		tx, err := b.db.Pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tx.Rollback(context.Background()) }()
		var account, kind, last string
		if err := tx.QueryRow(t.Context(), reconcile.GatherSQL, 1, "", "", "", objects).Scan(&account, &kind, &last); err != nil || last != "obj_001000" {
			t.Fatalf("up to %q: %v", last, err)
		}
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	gather()
	b.db.Exec(t, `DELETE FROM hints WHERE object_id = 'obj_000003'`)
	b.db.Exec(t, `UPDATE hints SET gaps = '[]', after = 0, due = now() + interval '1 day' WHERE object_id = 'obj_000005'`)
	const writtenSQL = `SELECT object_id || ' ' || (due <= now()) || ' ' || coalesce(gaps::text, 'none') FROM hints WHERE xmax <> 0 OR object_id IN ('obj_000003', 'obj_000005') ORDER BY object_id`
	gather()
	if got := b.db.Rows(t, writtenSQL); len(got) != 2 || got[0] != "obj_000003 true none" || got[1] != "obj_000005 true []" {
		t.Errorf("written or locked: %d, %.200q", len(got), got)
	}
	const placesSQL = `SELECT ctid::text || xmin::text || xmax::text FROM hints WHERE object_id = 'obj_000005'` // which a hint that has been made due for its doubt keeps
	was := b.db.Rows(t, placesSQL)
	gather()
	if now := b.db.Rows(t, placesSQL); !slices.Equal(now, was) {
		t.Errorf("a hint was written again: %q, now %q", was, now)
	}
}

// A parked hint of an object that owes nothing is forgotten, but not while changes of it were not seen.
func TestParkedHintsOfUnseenChangesStay(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.db.Exec(t, `INSERT INTO sources (name, provider) VALUES ('shop', 'stripe')`)
	b.db.Exec(t, `INSERT INTO hints (source, account, object_type, object_id, reason, made_at, due, after, gaps) SELECT 1, '', 'thing', id, 'in doubt', now(), 'infinity', 0, gaps FROM (VALUES ('a', NULL), ('b', '[]'::jsonb)) AS v(id, gaps)`)
	b.db.Exec(t, reconcile.ForgetParkedSQL, 1, "", "", "", 10)
	if left := b.db.Rows(t, `SELECT object_id FROM hints`); !slices.Equal(left, []string{"b"}) {
		t.Errorf("%q are left", left)
	}
}
