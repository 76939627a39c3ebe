package reconcile_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/providerapi"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/versioning"
)

// manualRefetchesSQL lists the actors of manual refetches, with their reasons.
const manualRefetchesSQL = `SELECT verification->>'requested_by' || ': ' || (verification->>'reason') FROM events
	WHERE event_type = 'postern.refetch' AND verification ? 'requested_by' ORDER BY id`

// Many manual requests for an object make one refetch, and the log names its actor. A request that
// arrives during a refetch is served by another one.
func TestManualRefetch_severalRequests_areOneRefetch(t *testing.T) {
	t.Parallel()
	b := newEmptyEnv(t, 90, eventTimeOptions)
	operator := b.OperatorPool
	key := versioning.Key{Source: b.Source, Type: "thing", ID: "obj_1"}
	request := func(reason string) {
		t.Helper()
		if h, err := reconcile.RequestRefetch(t.Context(), operator, key, "ada@office", reason); err != nil ||
			h.ObjectID != "obj_1" || h.RequestedBy != "ada@office" || h.Reason != reason {
			t.Errorf("%+v, %v", h, err)
		}
	}
	calls := 0
	b.api.intercept = func(c provider.Call) (*providerapi.Response, error) {
		if strings.HasPrefix(c.Path, "/things/") {
			if calls++; calls == 1 {
				request("a new question")
			} else {
				b.api.now = b.api.now.Add(time.Minute) // the next response is another refetch
			}
		}
		return nil, nil
	}
	for range 3 {
		request("a question")
	}
	b.startRefetchers(t, 2)
	b.waitForRefetches(t)
	b.wantRows(t, manualRefetchesSQL, "ada@office: a question", "ada@office: a new question")
	b.api.wantCalls(t, "/things/", 2)
}

// Each manual refetch is its own event with actor and reason. This also holds if a refetch has seen
// the same before, and if the object needs a refetch meanwhile. If the object does not exist,
// nothing is appended, and the process's log names the actor.
func TestManualRefetch_eachRequest_isInTheLog(t *testing.T) {
	t.Parallel()
	b := newMirroredEnv(t, 90, eventTimeOptions)
	var log lockedBuffer
	operator, run := b.OperatorPool, b.runner()
	run.Sources.All()[b.Source].API.Rate = 20
	pass := (&reconcile.Refetcher{Runner: run, ID: "one", Logger: slog.New(slog.NewTextHandler(&log, nil))}).PassFunc(
		run.Sources.All()[b.Source])
	request := func(id, who, why string) { b.requestRefetch(t, "thing", id, who, why) }
	read := func(want bool) {
		t.Helper()
		if got, err := providerapi.ProcessorReadsAPI(t.Context(), operator, b.Source); err != nil || got != want {
			t.Errorf("the API is read: %t (%v), want %t", got, err, want)
		}
	}
	read(false)
	if _, err := pass(t.Context()); err != nil {
		t.Fatal(err)
	}
	read(true) // before the first call of the API
	b.wantRows(t, `SELECT tokens::text FROM rate_budgets`, "2")
	passes := func() {
		t.Helper()
		testkit.Eventually(t, time.Minute, func() error {
			b.DB.Exec(t, `UPDATE refetch_requests SET due = now()`)
			if _, err := pass(t.Context()); err != nil {
				t.Fatal(err)
			}
			if n := b.DB.QueryStrings(t, `SELECT count(*)::text FROM refetch_requests`); n[0] != "0" {
				return fmt.Errorf("%s requests are left", n[0])
			}
			return nil
		})
	}
	passes()
	var want []string
	for _, who := range []string{"ada", "bob", "bob"} { // the provider's clock stands still: all refetches see the same
		request("obj_1", who, "a question of "+who+"'s")
		passes()
		want = append(want, who+": a question of "+who+"'s")
	}
	request("obj_2", "eve", "a question of eve's")
	b.DB.Exec(t, `UPDATE refetch_requests SET missed_changes = '[]'`)
	b.DB.Exec(t, `UPDATE objects SET refetch_after = 1 WHERE object_id = 'obj_2'`)
	passes()
	want = append(want, "eve: a question of eve's")
	b.wantRows(t, manualRefetchesSQL, want...)
	b.api.respondTo(b.missingResponse(), "/things/obj_x")
	request("obj_x", "ivy", "a name on a note")
	passes()
	if got := b.DB.QueryStrings(t, manualRefetchesSQL); len(got) != len(want) ||
		log.count(`actor=ivy reason="a name on a note"`) != 1 {
		t.Errorf("%q, and the log says %s", got, log.String())
	}
}

// A refetch request can be removed as long as it exists.
func TestCancelRefetch_existingRequest_isDeleted(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	operator := db.Role(t, "operator")
	if _, err := db.Role(t, "gateway").Exec(t.Context(),
		`INSERT INTO sources (name, provider) VALUES ('shop', 'sim')`); err != nil {
		t.Fatal(err)
	}
	key := versioning.Key{Source: 1, Type: "thing", ID: "obj_1"}
	if _, err := reconcile.RequestRefetch(t.Context(), operator, key, "ada", "a question"); err != nil {
		t.Fatal(err)
	}
	if h, err := reconcile.CancelRefetch(t.Context(), operator, key); err != nil || h.Source != "shop" ||
		h.Reason != "a question" {
		t.Errorf("%+v, %v", h, err)
	}
	if _, err := reconcile.CancelRefetch(t.Context(), operator, key); !errors.Is(err, events.ErrNotFound) {
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
	if _, err := db.Pool.Exec(t.Context(), manyObjectsSQL, objects); err != nil {
		t.Fatal(err)
	}
	db.Exec(t, `UPDATE objects SET refetch_after = 7`)
	gather := func() {
		t.Helper()
		tx, err := db.Pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tx.Rollback(context.Background()) }()
		var account, kind, last string
		if err := tx.QueryRow(t.Context(), reconcile.InsertPendingSQL, 1, "", "", "", objects).Scan(&account, &kind,
			&last); err != nil || last != "obj_001000" {
			t.Fatalf("up to %q: %v", last, err)
		}
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	gather()
	db.Exec(t, `DELETE FROM refetch_requests WHERE object_id = 'obj_000003'`)
	db.Exec(t, `UPDATE refetch_requests SET missed_changes = '[]', start_after = 0, due = now() + interval '1 day'
		WHERE object_id = 'obj_000005'`)
	const writtenSQL = `SELECT object_id || ' ' || (due <= now()) || ' ' || coalesce(missed_changes::text, 'none')
		FROM refetch_requests
		WHERE xmax <> 0 OR object_id IN ('obj_000003', 'obj_000005') ORDER BY object_id`
	gather()
	if got := db.QueryStrings(t, writtenSQL); len(got) != 2 || got[0] != "obj_000003 true none" ||
		got[1] != "obj_000005 true []" {
		t.Errorf("written or locked: %d, %.200q", len(got), got)
	}
	// a request that is due keeps its reason
	const placesSQL = `SELECT ctid::text || xmin::text || xmax::text FROM refetch_requests
		WHERE object_id = 'obj_000005'`
	was := db.QueryStrings(t, placesSQL)
	gather()
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
	db.Exec(t, reconcile.DeleteSuspendedSQL, 1, "", "", "", 10)
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

// withEachPlan runs a test with each kind of query plan, before and after ANALYZE, in a transaction
// that is rolled back.
func withEachPlan(t *testing.T, db *testkit.DB, what func(name string, tx pgx.Tx)) {
	t.Helper()
	for _, known := range []string{`SELECT 1`, `ANALYZE`} {
		db.Exec(t, known)
		for _, plan := range []string{"force_custom_plan", "force_generic_plan"} {
			tx, err := db.Pool.Begin(t.Context())
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

// A pass takes the due requests and reads little else, however many requests are not due or belong
// to another source, and with any statistics of the table.
func TestLeaseRefetches_manyNotDue_readsOnlyDue(t *testing.T) {
	t.Parallel()
	const requests, due, most = 30_000, 30, 20
	db := testkit.Database(t)
	if _, err := db.Pool.Exec(t.Context(), manyRequestsSQL, requests); err != nil {
		t.Fatal(err)
	}
	withEachPlan(t, db, func(name string, tx pgx.Tx) {
		taken, read := 0, 0
		for _, want := range []int{most, due - most, 0} {
			rows, err := tx.Query(t.Context(), reconcile.LeaseRequestsSQL, 1, most, "one", "2 minutes")
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
		if err := tx.QueryRow(t.Context(), `SELECT sum(seq_tup_read + idx_tup_fetch)::int FROM pg_stat_xact_user_tables
			WHERE relname = 'refetch_requests'`).Scan(&read); err != nil {
			t.Fatal(err)
		}
		if read < taken || read > requests/20 {
			t.Errorf("%s: %d of %d requests are due, and %d rows were read", name, taken, requests, read)
		}
	})
}

const (
	manyObjectsSQL = `
INSERT INTO objects (source, account, object_type, object_id, version_final, version_at, version_seen, version_rank,
	tied_states, overflow, time_from, time_to, refetch_after, ambiguous,
  deleted, state_hash, exact_hash, sanitized, last_event_id, revision, rule_version, created_at, updated_at)
SELECT 1, '', 'thing', 'obj_' || lpad(n::text, 6, '0'), false, 1, 0, 1, '[]', false, 1, 1, 0, false, false, sha256('a'),
	sha256('a'), false, 1, 1, 1, now() - interval '1 day', now() - interval '1 day'
FROM generate_series(1, $1::int) n`

	startedScanSQL = `INSERT INTO object_scans (run, source, account, object_type, started_at, updated_at)
		VALUES ($1, 1, '', 'thing', now(), now())`

	// allButOneSQL lists all objects but the third.
	allButOneSQL = `INSERT INTO listed_objects (run, object_type, object) SELECT $1, 'thing',
		hashtextextended(o.object_id, 0)
		FROM objects o WHERE o.object_id <> 'obj_000003'`
)

// A batch of the walk through the mirror reads its own objects and looks each up in the list, for a
// list of any length and with any statistics of the tables. The time of a scan grows with the
// number of objects, and not with that number times the number of batches.
func TestMirrorWalk_manyObjects_readsItsOwnPart(t *testing.T) {
	t.Parallel()
	const objects, stretch = 30_000, 500
	db := testkit.Database(t)
	db.Exec(t, `INSERT INTO sources (name, provider) VALUES ('shop', 'stripe')`)
	run, err := runs.Create(t.Context(), db.Role(t, "operator"),
		runs.Request{Job: reconcile.Job, Params: reconcile.Params{Source: 1, Scope: reconcile.Objects}, Actor: "test"})
	if err != nil {
		t.Fatal(err)
	}
	db.Exec(t, manyObjectsSQL, objects)
	db.Exec(t, startedScanSQL, run)
	db.Exec(t, allButOneSQL, run)
	withEachPlan(t, db, func(name string, tx pgx.Tx) {
		before := rowsRead(t, tx)
		var last string
		var found []string
		row := tx.QueryRow(t.Context(), reconcile.WalkSQL, 1, "", "thing", "", 1000, run, stretch)
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
	if err != nil {
		t.Fatal(err)
	}
	return n
}
