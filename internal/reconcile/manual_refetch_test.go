package reconcile_test

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/providerapi"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/refetch"
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
		if h, err := refetch.Add(t.Context(), operator, key, "ada@office", reason); err != nil ||
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
	pass := (&refetch.Refetcher{Resources: run.Resources, ID: "one",
		Logger: slog.New(slog.NewTextHandler(&log, nil))}).ForSource(
		run.Sources.All()[b.Source]).Pass
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

const (
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
	db.InsertObjects(t, objects)
	db.Exec(t, startedScanSQL, run)
	db.Exec(t, allButOneSQL, run)
	db.WithEachPlan(t, func(name string, tx pgx.Tx) {
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
