package refetch_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/refetch"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/versioning"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// A refetch request can be removed as long as it exists.
func TestCancel_existingRequest_isDeleted(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	operator := db.Role(t, "operator")
	testkit.ExecSQL(t, db.Role(t, "gateway"), `INSERT INTO sources (name, provider) VALUES ('shop', 'sim')`)
	key := versioning.Key{Source: 1, Type: "thing", ID: "obj_1"}
	if _, err := refetch.Add(t.Context(), operator, key, "ada", "a question"); err != nil {
		t.Fatal(err)
	}
	if h, err := refetch.Cancel(t.Context(), operator, key); err != nil || h.Source != "shop" ||
		h.Reason != "a question" {
		t.Errorf("%+v, %v", h, err)
	}
	if _, err := refetch.Cancel(t.Context(), operator, key); !errors.Is(err, events.ErrNotFound) {
		t.Errorf("%v", err)
	}
}

// An object that has its refetch request already is neither written nor locked again. A lock would
// write a record to PostgreSQL's write-ahead log for each such object every second.
func TestInsertRefetches_existingRequests_areNotWritten(t *testing.T) {
	t.Parallel()
	const objects = 1000
	db := testkit.Database(t)
	db.Exec(t, `INSERT INTO sources (name, provider) VALUES ('shop', 'stripe')`)
	db.InsertObjects(t, objects)
	db.Exec(t, `UPDATE objects SET refetch_after = 7`)
	insert := func() {
		t.Helper()
		tx, err := db.Pool.Begin(t.Context())
		testkit.Must(t, err)
		defer func() { _ = tx.Rollback(context.Background()) }()
		var account, kind, last string
		if err := tx.QueryRow(t.Context(), refetch.InsertPendingSQL, 1, "", "", "", objects).Scan(&account, &kind,
			&last); err != nil || last != "obj_001000" {
			t.Fatalf("up to %q: %v", last, err)
		}
		testkit.Must(t, tx.Commit(t.Context()))
	}
	insert()
	db.Exec(t, `DELETE FROM refetch_requests WHERE object_id = 'obj_000003'`)
	db.Exec(t, `UPDATE refetch_requests SET missed_changes = '[]', start_after = 0, due = now() + interval '1 day'
		WHERE object_id = 'obj_000005'`)
	const writtenSQL = `SELECT object_id || ' ' || (due <= now()) || ' ' || coalesce(missed_changes::text, 'none')
		FROM refetch_requests
		WHERE xmax <> 0 OR object_id IN ('obj_000003', 'obj_000005') ORDER BY object_id`
	insert()
	if got := db.QueryStrings(t, writtenSQL); len(got) != 2 || got[0] != "obj_000003 true none" ||
		got[1] != "obj_000005 true []" {
		t.Errorf("written or locked: %d, %.200q", len(got), got)
	}
	// a request that is due keeps its reason
	const placesSQL = `SELECT ctid::text || xmin::text || xmax::text FROM refetch_requests
		WHERE object_id = 'obj_000005'`
	was := db.QueryStrings(t, placesSQL)
	insert()
	if now := db.QueryStrings(t, placesSQL); !slices.Equal(now, was) {
		t.Errorf("a request was written again: %q, now %q", was, now)
	}
}

// A suspended request of an object that needs no refetch is removed. It stays while changes of the
// object were not seen.
func TestDeleteSuspended_missedChanges_areKept(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	db.Exec(t, `INSERT INTO sources (name, provider) VALUES ('shop', 'stripe')`)
	db.Exec(t, `INSERT INTO refetch_requests (source, account, object_type, object_id, reason, requested_at, due,
		start_after, missed_changes)
		SELECT 1, '', 'thing', id, 'ambiguous', now(), 'infinity', 0, missed_changes
			FROM (VALUES ('a', NULL), ('b', '[]'::jsonb))
			AS v(id, missed_changes)`)
	db.Exec(t, refetch.DeleteSuspendedSQL, 1, "", "", "", 10)
	if left := db.QueryStrings(t, `SELECT object_id FROM refetch_requests`); !slices.Equal(left, []string{"b"}) {
		t.Errorf("%q are left", left)
	}
}

// manyRequestsSQL makes requests of source 1 that are due tomorrow, a few of them now, and requests
// of source 2 that are due.
const manyRequestsSQL = `
INSERT INTO refetch_requests (source, account, object_type, object_id, reason, requested_at, due, start_after)
SELECT s, '', 'thing', 'obj_' || lpad(n::text, 6, '0'), 'ambiguous', now(), CASE WHEN s = 1
	AND n % 1000 <> 0 THEN now() + interval '1 day' ELSE now() - interval '1 minute' END, 0
FROM generate_series(1, $1::int) n, generate_series(1, 2) s`

// A pass takes the due requests and reads little else, however many requests are not due or belong
// to another source, and with any statistics of the table.
func TestLeaseRefetches_manyNotDue_readsOnlyDue(t *testing.T) {
	t.Parallel()
	const requests, due, most = 10_000, 10, 7
	db := testkit.Database(t)
	testkit.ExecSQL(t, db.Pool, manyRequestsSQL, requests)
	db.WithEachPlan(t, func(name string, tx pgx.Tx) {
		taken, read := 0, 0
		for _, want := range []int{most, due - most, 0} {
			rows, err := tx.Query(t.Context(), refetch.LeaseRequestsSQL, 1, most, "one", "2 minutes")
			testkit.Must(t, err)
			n := 0
			for rows.Next() {
				n++
			}
			if rows.Err() != nil || n != want {
				t.Errorf("%s: %d taken, %v", name, n, rows.Err())
			}
			taken += n
		}
		testkit.Must(t, tx.QueryRow(t.Context(), `SELECT sum(seq_tup_read + idx_tup_fetch)::int
			FROM pg_stat_xact_user_tables WHERE relname = 'refetch_requests'`).Scan(&read))
		if read < taken || read > requests/20 {
			t.Errorf("%s: %d of %d requests are due, and %d rows were read", name, taken, requests, read)
		}
	})
}
