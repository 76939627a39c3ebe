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
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/versioning"
)

// whoseSQL are the persons of looks, with their reasons.
const whoseSQL = `SELECT verification->>'wanted_by' || ': ' || (verification->>'reason') FROM events
	WHERE event_type = 'postern.look' AND verification ? 'wanted_by' ORDER BY id`

// Many wishes are one look, and the log says whose it was. A wish that comes while a look is under way is granted by another one.
func TestWishesAreGranted(t *testing.T) {
	t.Parallel()
	b := newWorld(t, 90, eventTime)
	operator := b.Operator
	key := versioning.Key{Source: b.Source, Type: "thing", ID: "obj_1"}
	wish := func(reason string) {
		t.Helper()
		if h, err := reconcile.Wish(t.Context(), operator, key, "ada@office", reason); err != nil || h.ObjectID != "obj_1" || h.WantedBy != "ada@office" || h.Reason != reason {
			t.Errorf("%+v, %v", h, err)
		}
	}
	calls := 0
	b.api.fails = func(c provider.Call) (*reconcile.Response, error) {
		if strings.HasPrefix(c.Path, "/things/") {
			if calls++; calls == 1 {
				wish("a new doubt")
			} else {
				b.api.now = b.api.now.Add(time.Minute) // what is answered now is another look
			}
		}
		return nil, nil
	}
	for range 3 {
		wish("a doubt")
	}
	b.looking(t, 2)
	b.settled(t)
	b.rows(t, whoseSQL, "ada@office: a doubt", "ada@office: a new doubt")
	b.api.called(t, "/things/", 2)
}

// Each wish that is granted is an event of its own with who and why, also where a look has seen the same before, and where its object has come into doubt meanwhile. Where nobody has the object,
// nothing is appended, and the process's log says whose wish it was.
func TestEachWishIsKept(t *testing.T) {
	t.Parallel()
	b := newMirror(t, 90, eventTime)
	var log lockedBuffer
	operator, run := b.Operator, b.runner()
	run.Sources.All()[b.Source].API.Rate = 20
	pass := (&reconcile.Looks{Runner: run, ID: "one", Logger: slog.New(slog.NewTextHandler(&log, nil))}).Passes(run.Sources.All()[b.Source])
	wish := func(id, who, why string) { b.wish(t, "thing", id, who, why) }
	read := func(want bool) {
		t.Helper()
		if got, err := reconcile.Read(t.Context(), operator, b.Source); err != nil || got != want {
			t.Errorf("the API is read: %t (%v), want %t", got, err, want)
		}
	}
	read(false)
	if _, err := pass(t.Context()); err != nil {
		t.Fatal(err)
	}
	read(true) // though the API was not called yet
	b.rows(t, `SELECT tokens::text FROM budgets`, "2")
	passes := func() {
		t.Helper()
		testkit.Eventually(t, time.Minute, func() error {
			b.DB.Exec(t, `UPDATE hints SET due = now()`)
			if _, err := pass(t.Context()); err != nil {
				t.Fatal(err)
			}
			if n := b.DB.Rows(t, `SELECT count(*)::text FROM hints`); n[0] != "0" {
				return fmt.Errorf("%s hints are left", n[0])
			}
			return nil
		})
	}
	passes()
	var want []string
	for _, who := range []string{"ada", "bob", "bob"} { // the provider's clock stands still: they all see the same
		wish("obj_1", who, "a doubt of "+who+"'s")
		passes()
		want = append(want, who+": a doubt of "+who+"'s")
	}
	wish("obj_2", "eve", "a doubt of eve's")
	b.DB.Exec(t, `UPDATE hints SET gaps = '[]'`)
	b.DB.Exec(t, `UPDATE objects SET look_after = 1 WHERE object_id = 'obj_2'`)
	passes()
	want = append(want, "eve: a doubt of eve's")
	b.rows(t, whoseSQL, want...)
	b.api.on(b.missing(), "/things/obj_x")
	wish("obj_x", "ivy", "a name on a note")
	passes()
	if got := b.DB.Rows(t, whoseSQL); len(got) != len(want) || log.count(`who=ivy reason="a name on a note"`) != 1 {
		t.Errorf("%q, and the log says %s", got, log.String())
	}
}

// A hint can be taken back as long as it is there.
func TestForget(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	operator := db.Role(t, "operator")
	if _, err := db.Role(t, "gateway").Exec(t.Context(), `INSERT INTO sources (name, provider) VALUES ('shop', 'sim')`); err != nil {
		t.Fatal(err)
	}
	key := versioning.Key{Source: 1, Type: "thing", ID: "obj_1"}
	if _, err := reconcile.Wish(t.Context(), operator, key, "ada", "a doubt"); err != nil {
		t.Fatal(err)
	}
	if h, err := reconcile.Forget(t.Context(), operator, key); err != nil || h.Source != "shop" || h.Reason != "a doubt" {
		t.Errorf("%+v, %v", h, err)
	}
	if _, err := reconcile.Forget(t.Context(), operator, key); !errors.Is(err, events.ErrNotFound) {
		t.Errorf("%v", err)
	}
}

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
	b.db.Exec(t, manySQL, objects)
	b.db.Exec(t, begunSQL, run)
	b.db.Exec(t, allButOneSQL, run)
	b.planned(t, func(name string, tx pgx.Tx) {
		before := rowsRead(t, tx)
		var last string
		var found []string
		row := tx.QueryRow(t.Context(), reconcile.WalkSQL, 1, "", "thing", "", 1000, run, stretch)
		if err := row.Scan(&last, &found); err != nil || last != "obj_000500" ||
			!slices.Equal(found, []string{"obj_000003"}) {
			t.Errorf("up to %s there are not listed: %v (%v)", last, found, err)
		}
		if read := rowsRead(t, tx) - before; read < stretch || read > 3*stretch {
			t.Errorf("%s: a stretch of %d objects reads %d rows", name, stretch, read)
		}
	})
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
