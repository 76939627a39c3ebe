package redaction_test

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/redaction"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/versioning"
)

// world is a log in which an address stands wherever something may stand.
func world(t *testing.T, b *testBundle) (ids []int64) {
	t.Helper()
	for i := range int64(3) {
		ids = append(ids, b.event(t, "hers", i, email), b.event(t, "older", i, email))
		b.event(t, "other", i, "somebody@else.org")
	}
	b.event(t, "older", 10, "somebody@else.org") // a newer state of others
	tie := b.event(t, "tied", 5, email)
	b.event(t, "tied", 5, "tied@else.org") // of the same version
	whole := b.store(t, "hers", body("hers", 20, email), "split1", "split2", "split3")
	b.apply(t, 0, whole...)
	waits := b.store(t, "late", body("late", 1, email), "waits")
	b.store(t, "hers", body("hers", 99, email+".twice"), "k1") // a conflict
	b.store(t, "other", body("other", 99, email), "k3")        // a conflict with an event that is not hers
	b.exec(t, `INSERT INTO rejections (source, reason, detail, remote, received_at, headers, body, bytes) VALUES ($1, 'wrong_signature', '', '', now(), '{}', $2, 1), ($1, 'r', '', '', now(), '{}', $3, 1),
		($1, 'r', '', '', now(), '{}', 'nothing of hers', 1)`, b.source, body("hers", 0, email), body("new", 77, email))
	b.exec(t, `INSERT INTO bases SELECT * FROM objects WHERE object_id <> 'hers'`) // whose base must come
	b.exec(t, `INSERT INTO staged SELECT * FROM objects`)
	failed := b.event(t, "unread", 1, email)
	b.exec(t, `UPDATE outcomes SET status = 'failed', due = now(), reason = $2 WHERE event_id = $1`, failed, "cannot read "+email)
	b.exec(t, `DELETE FROM objects WHERE object_id = 'unread'`)
	b.exec(t, `INSERT INTO runs (run, job, asked, who, reason, status, detail, counts, made_at, ended_at, updated_at) OVERRIDING SYSTEM VALUE
		VALUES (9000, 'reconcile', '{}', '', '', 'done', '', '{}', now(), now(), now())`)
	b.exec(t, `INSERT INTO drifts (run, source, account, object_type, object_id, kind, fields, reason) SELECT 9000, $1, '', 'thing', o, 'behind',
		jsonb_build_array(jsonb_build_object('path', 'state.customer.email', 'before', NULL, 'after', $2::text)), $2 FROM unnest(ARRAY['hers', 'told by the API alone']) AS o`, b.source, email)
	return slices.Concat(ids, whole, waits, []int64{tie, failed})
}

// Nothing of the value is left in any table, and nothing else is gone.
func TestNothingIsLeft(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ids := world(t, b)
	for _, table := range []string{"bases", "drifts", "event_conflicts", "objects", "outcomes", "rejections", "staged"} {
		if !slices.Contains(b.holding(t, email), table) {
			t.Fatalf("the world has nothing in %s: %v", table, b.holding(t, email))
		}
	}
	b.exec(t, `INSERT INTO runs (job, asked, who, reason, status, detail, counts, made_at, ended_at, updated_at)
		SELECT j, '{}', '', '', 'failed', d, '{}', now(), now(), now() FROM unnest(ARRAY['rebuild', 'retention', 'replay'], ARRAY[
		  'event ' || $1::text || ' was applied live and fails now: no number ' || $2::text, 'kept: event 99999999999999999999 is odd, event ' || $1::text || ' of source sim: ' || $2::text, 'event 1 is another']) AS d(j, d)`,
		fmt.Sprint(ids[0]), email)
	const others = `SELECT to_jsonb(o)::text FROM objects o WHERE object_id IN ('other', 'older') ORDER BY object_id`
	before := b.rows(t, others)
	look, err := redaction.Look(t.Context(), b.operator, ptr(b.byEmail(t, " Ada.Lovelace@EXAMPLE.org")), nil)
	if err != nil || look.Events != int64(len(ids)) || look.Shared {
		t.Errorf("%+v, %v; want %d events", look, err, len(ids))
	}
	h := b.do(t, b.byEmail(t, " Ada.Lovelace@EXAMPLE.org"))
	b.gone(t, email)
	b.gone(t, "lovelace")
	equal(t, "of others", before, b.rows(t, others))
	equal(t, "differences", []string{"told by the API alone, 1 more"},
		b.rows(t, `SELECT object_id || ', ' || more || ' more' FROM drifts`))
	if b.state(t, "hers") != "nothing" || b.state(t, "tied") != "tied@else.org" || b.state(t, "other") != "somebody@else.org" {
		t.Errorf("hers %s, tied %s", b.state(t, "hers"), b.state(t, "tied"))
	}
	if h.Counts[redaction.CountEvents] != int64(len(ids)) || h.Counts[redaction.CountConflicts] != 2 || h.Counts[redaction.CountRejections] != 2 {
		t.Errorf("%v, want %d events", h.Counts, len(ids))
	}
	audit := b.rows(t, `SELECT who || ', ' || reason || ', ' || events || ', ' || (ended_at IS NOT NULL) || ', ' || (asked ? 'finds') FROM redactions`)
	equal(t, "", []string{fmt.Sprintf("me, she asked for it, %d, true, false", len(ids))}, audit)
	b.says(t, "0", `SELECT count(*)::text FROM outcomes WHERE event_id = ANY($1) AND run = 0 AND status IN ('failed')`,
		ids)
	b.says(t, "1",
		`SELECT count(*)::text FROM outbox o WHERE 'hers' = ANY(o.ids) AND o.batch = (SELECT max(batch) FROM outbox WHERE 'hers' = ANY(ids))`)
	equal(t, "",
		[]string{"event 1 is another", "it told of an event that was redacted",
			"it told of an event that was redacted"},
		b.rows(t, `SELECT detail FROM runs WHERE detail <> '' ORDER BY 1`))
	if null := versioning.NullState(false); b.rows(t, `SELECT encode(exact_hash, 'hex') FROM objects WHERE object_id = 'hers'`)[0] != fmt.Sprintf("%x", null.Exact) {
		t.Error("a cleared row has another hash than one that knows nothing")
	}
	// What is left is what a rebuild makes.
	b.rebuilt(t, 900)
	b.says(t, fmt.Sprint(len(ids)), `SELECT count(*)::text FROM outcomes WHERE run = 900 AND status = 'ignored'`)
	b.afterwards(t)
}

// afterwards: what comes later is applied, and what was redacted does not come back.
func (b *testBundle) afterwards(t *testing.T) {
	t.Helper()
	before := b.rows(t, `SELECT count(*)::text FROM events`)[0]
	for _, text := range [][]byte{body("hers", 0, email), body("hers", 0, email+".again")} {
		b.store(t, "hers", text, "k1")
	}
	if left := b.holding(t, "lovelace"); len(left) > 0 || b.rows(t, `SELECT count(*)::text FROM events`)[0] != before {
		t.Errorf("delivered again, it is in %v", left)
	}
	b.event(t, "hers", 15, "stale@else.org")
	if b.state(t, "hers") != "nothing" {
		t.Error("an older state came back")
	}
	b.event(t, "hers", 30, "new@else.org")
	if b.state(t, "hers") != "new@else.org" {
		t.Error("a newer event is not applied")
	}
}

func ptr[T any](v T) *T { return &v }

// One event goes with all of its delivery; one object with all events about it, whatever state it shows.
func TestEventsAndObjects(t *testing.T) {
	t.Parallel()
	b := setup(t)
	world(t, b)
	split := b.rows(t, `SELECT event_id FROM events WHERE id IN (SELECT id FROM events WHERE event_id LIKE 'split%') ORDER BY id DESC`)
	id, err := events.Find(t.Context(), b.operator, split[0], 0)
	must(t, err)
	order := redaction.Order{Events: []int64{id}}
	if look, err := redaction.Look(t.Context(), b.operator, &order, nil); err != nil || look.Events != 3 || !look.Shared || look.Objects != 1 {
		t.Errorf("%+v, %v", look, err)
	}
	if h := b.do(t, order); h.Counts[redaction.CountEvents] != 3 || b.state(t, "hers") != "nothing" {
		t.Errorf("%v", h.Counts)
	}
	if h := b.do(t, order); h.Counts[redaction.CountEvents] != 0 || h.Counts[redaction.CountObjects] != 0 {
		t.Errorf("done again: %v", h.Counts)
	}
	older := redaction.Order{Objects: []redaction.Object{{Source: b.source, Type: "thing", ID: "older"}, {Source: b.source, Type: "thing", ID: "late"}}}
	if h := b.do(t, older); h.Counts[redaction.CountEvents] != 5 || b.state(t, "older") != "nothing" {
		t.Errorf("%v", h.Counts)
	}
	life, err := events.Show(t.Context(), b.operator, split[0], 0)
	if err != nil || life.RedactedAt == nil || life.Redaction != 1 || len(life.Body) > 0 || life.EventID != split[0] || life.Outcomes[0].Reason != "the event was redacted" {
		t.Errorf("%+v, %v", life, err)
	}
}

// A run that is carried out again from its beginning clears nothing that is newer than its bound, and counts nothing twice.
func TestRepeated(t *testing.T) {
	t.Parallel()
	b := setup(t)
	world(t, b)
	order := b.byEmail(t, email)
	order.Objects = []redaction.Object{{Source: b.source, Type: "thing", ID: "hers"}}
	run := b.ask(t, order)
	first := b.carry(t)
	later := b.event(t, "hers", 40, "new@else.org")
	// The process dies before it can say that it is done.
	b.exec(t, `UPDATE runs SET asked = (SELECT to_jsonb($1::jsonb)) WHERE run = $2`, ptr(mustJSON(t, order)), run)
	b.exec(t, `UPDATE checkpoints SET cursor = 0, leased_until = now() - interval '1 s' WHERE job = 'redact'`)
	second := b.carry(t)
	if b.state(t, "hers") != "new@else.org" {
		t.Errorf("event %d is newer than the run, and gone", later)
	}
	if second.Counts[redaction.CountEvents] != first.Counts[redaction.CountEvents] && second.Counts[redaction.CountEvents] != 0 {
		t.Errorf("%v, then %v", first.Counts, second.Counts)
	}
	b.gone(t, "lovelace")
}

// Whatever is being applied while it is redacted ends without a trace.
func TestRedactedWhileItIsApplied(t *testing.T) {
	t.Parallel()
	b := setup(t)
	var ids []int64
	for i := range 60 {
		ids = append(ids, b.store(t, fmt.Sprint("o", i%7), body(fmt.Sprint("o", i%7), int64(i), email), fmt.Sprint("live", i))...)
	}
	var wg sync.WaitGroup
	for w := range 3 {
		wg.Go(func() {
			for i := range ids {
				if _, err := b.proc.ApplyStored(t.Context(), processor.Target{}, ids[(i*(w+1))%len(ids):][:1], false); err != nil {
					t.Error(err)
				}
			}
		})
	}
	b.do(t, b.byEmail(t, email))
	wg.Wait()
	b.gone(t, "lovelace")
	b.says(t, fmt.Sprint(len(ids)), `SELECT count(DISTINCT event_id)::text FROM outcomes WHERE run = 0`)
}

const denied = "42501"

// Only the function clears, only under a run, only what it audits; everybody else is refused as before.
func TestNobodyElseClears(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ids := world(t, b)
	owner := b.db.Role(t, "maintenance")
	b.exec(t, `INSERT INTO redacted (event, run, at) VALUES ($1, 1, now())`, ids[0])
	for role, statements := range map[string][]string{
		"operator": {"UPDATE events SET body = NULL, headers = '{}'", "INSERT INTO redacted VALUES (1, 1, now())", "SELECT redact_events(1, '{}', '{}', '{}', '{}', '{}', '{}', '{}')", "DELETE FROM redactions",
			"SELECT end_redaction(1)", "SET session_replication_role = replica", "ALTER TABLE events DISABLE TRIGGER ALL", "SELECT redact_conflicts(1, '{1}')", "SELECT redact_copies(1, 'bases', '{}', '{}', '{}', '{}', '{}', '{}')"},
		"processor": {"UPDATE events SET body = NULL, headers = '{}'", "INSERT INTO redacted VALUES (1, 1, now())", "SELECT redact_events(1, '{}', '{}', '{}', '{}', '{}', '{}', '{}')", "UPDATE redactions SET who = 'x'",
			"SELECT * FROM rejections", "SELECT * FROM event_conflicts", "UPDATE event_conflicts SET body = ''", "SELECT end_redaction(1)", "SELECT redact_conflicts(1, '{1}')",
			"SELECT redact_copies(1, 'bases', '{}', '{}', '{}', '{}', '{}', '{}')", "SET session_replication_role = replica", "ALTER TABLE events DISABLE TRIGGER ALL"},
		"gateway": {"UPDATE events SET body = NULL", "SELECT redact_events(1, '{}', '{}', '{}', '{}', '{}', '{}', '{}')", "SELECT * FROM redactions"},
		// The first event is audited: it may be cleared, and only that.
		"maintenance": {"UPDATE events SET body = NULL, headers = '{}'", fmt.Sprintf("UPDATE events SET body = 'other' WHERE id = %d", ids[0]),
			fmt.Sprintf("UPDATE events SET body = NULL, headers = '{}', event_type = 'x' WHERE id = %d", ids[0]), fmt.Sprintf("UPDATE events SET body = NULL, headers = '{\"a\": 1}' WHERE id = %d", ids[0]),
			fmt.Sprintf("DELETE FROM events WHERE id = %d", ids[0]), "TRUNCATE events"},
	} {
		pool := b.db.Role(t, role)
		for _, s := range statements {
			if _, err := pool.Exec(t.Context(), s); postgres.Code(err) != denied {
				t.Errorf("%s: %s: %v", role, s, err)
			}
		}
	}
	if _, err := owner.Exec(t.Context(), `UPDATE events SET body = NULL, headers = '{}' WHERE id = $1`, ids[0]); err != nil {
		t.Errorf("an audited event cannot be cleared: %v", err)
	}
	b.says(t, "1", `SELECT count(*)::text FROM events WHERE body IS NULL AND delivery_id = id`)
}

func TestFinds(t *testing.T) {
	t.Parallel()
	const text = `{"a": {"b": [{"email": "X@y.z"}, {"email": 12.50}], "odd.name": true}, "n": 7}`
	for path, cases := range map[string]map[string]bool{
		"$.a.b[*].email": {"x@y.z": true, "12.50": true, "nobody": false}, "$.a.b[1].email": {"x@y.z": false, "12.50": true}, "$.a.b.0.email": {"x@y.z": true},
		"$.a['odd.name']": {"true": true}, "$.*": {"7": true}, "$.a": {"7": false}, "$.a.b": {"x": false},
	} {
		for value, want := range cases {
			f, err := redaction.NewFind(path, value)
			if err != nil {
				t.Fatal(path, err)
			}
			if got := redaction.Matches([]redaction.Find{f}, []byte(text)); got != want {
				t.Errorf("%s = %s: %t", path, value, got)
			}
			if strings.Contains(mustJSON(t, f), value) && len(value) > 3 {
				t.Errorf("the value stands in %s", mustJSON(t, f))
			}
		}
	}
	f, err := redaction.NewFind("$.From", "+15550100")
	if err != nil || !redaction.Matches([]redaction.Find{f}, []byte("From=%2B15550100&To=x")) || redaction.Matches([]redaction.Find{f}, []byte("To=%2B15550100")) {
		t.Error("a form", err)
	}
	for _, path := range []string{"", "$", "a.b", "$.", "$..a", "$.a[", "$.a[x]", "$[-1]", "$['a"} {
		if _, err := redaction.NewFind(path, "x"); err == nil {
			t.Errorf("path %q is taken", path)
		}
	}
	if _, err := redaction.NewFind("$.a", " "); err == nil {
		t.Error("an empty value is taken")
	}
}

// An order nobody can read fails; one that finds nothing is done, and audited.
func TestOrders(t *testing.T) {
	t.Parallel()
	b := setup(t)
	if h := b.do(t, b.byEmail(t, "nobody@else.org")); h.Counts[redaction.CountEvents] != 0 || len(b.rows(t, `SELECT who FROM redactions`)) != 1 {
		t.Errorf("%v", h.Counts)
	}
	must(t,
		errOf(runs.Ask(t.Context(), b.operator, runs.Order{Job: redaction.Job,
			Asked: map[string]any{"everything": true}})))
	h := taken(t, b.pool, "test", time.Minute, redaction.Job)
	if _, err := (&redaction.Runner{Pool: b.pool, Processor: b.proc}).Carry(t.Context(), h, slog.Default()); err == nil {
		t.Error("an order of a later release is carried out")
	}
}

// What is named oddly is a name and nothing else, wherever it stands; arguments that make no sense clear nothing.
func TestOddNamesAndArguments(t *testing.T) {
	t.Parallel()
	b := setup(t)
	kept := b.event(t, "kept", 1, "somebody@else.org")
	odd := `x'; UPDATE events SET body = NULL; -- $1 %I "` + "\\"
	b.event(t, odd, 1, email)
	find, err := redaction.NewFind(`$['`+"a; DROP TABLE events; --"+`']`, odd)
	must(t, err)
	h := b.do(t, redaction.Order{Source: b.source, Finds: []redaction.Find{find}, Objects: []redaction.Object{{Source: b.source, Type: "thing", ID: odd}, {Source: b.source, Type: odd, Account: odd, ID: odd}}})
	if h.Counts[redaction.CountEvents] != 1 || b.state(t, odd) != "nothing" || b.state(t, "kept") != "somebody@else.org" {
		t.Errorf("%v, %s", h.Counts, b.state(t, "kept"))
	}
	b.ask(t, redaction.Order{})
	running := taken(t, b.pool, "test", time.Minute, redaction.Job)
	const call = `SELECT redact_events($1, `
	if _, err := b.pool.Exec(t.Context(), call+`'{}', '{}', '{}', '{}', '{}', '{}', '{}')`, running.Run.Run); postgres.Code(err) != denied {
		t.Errorf("without a bound: %v", err)
	}
	must(t, running.Freeze(t.Context(), kept))
	for _, args := range []string{"NULL, NULL, NULL, NULL, NULL, NULL, NULL", "'{}', '{NULL}', '{1, NULL}', '{NULL}', '{NULL, x}', '{}', '{NULL}'", "'{0, -1}', '{-9223372036854775808}', '{-1}', '{x}', '{thing}', '{kept}', '{0}'"} {
		if _, err := b.pool.Exec(t.Context(), call+args+`)`, running.Run.Run); err != nil {
			t.Errorf("%s: %v", args, err)
		}
	}
	if b.state(t, "kept") != "somebody@else.org" || b.rows(t, `SELECT count(*)::text FROM events WHERE body IS NULL`)[0] != "1" {
		t.Errorf("kept is %s", b.state(t, "kept"))
	}
}

// Of what was looked for not even a digest is left, however the run ends.
func TestDigestsGo(t *testing.T) {
	t.Parallel()
	for _, end := range []runs.Status{runs.Done, runs.Failed, runs.Cancelled} {
		b := setup(t)
		b.event(t, "hers", 1, email)
		run := b.ask(t, b.byEmail(t, email))
		h, err := runs.Take(t.Context(), b.pool, "test", time.Minute, redaction.Job)
		if err == nil {
			_, err = (&redaction.Runner{Pool: b.pool, Processor: b.proc}).Carry(t.Context(), h, slog.New(slog.DiscardHandler))
		}
		must(t, err)
		// It ended before it was through: the digests are still there.
		b.exec(t, `UPDATE runs SET asked = $1::text::jsonb WHERE run = $2`, mustJSON(t, b.byEmail(t, email)), run)
		b.exec(t, `UPDATE redactions SET asked = $1::text::jsonb, ended_at = NULL`, mustJSON(t, b.byEmail(t, email)))
		if end == runs.Cancelled {
			err = runs.Change(t.Context(), b.operator, run, end)
		} else {
			err = h.End(t.Context(), end, "")
		}
		if left := b.holding(t, "digest"); err != nil || len(left) > 0 {
			t.Errorf("%s: left in %v, %v", end, left, err)
		}
	}
}

// Objects whose events retention has dropped are found by what they show, of an account all; what is newer than the run stays.
func TestObjectsWithoutEvents(t *testing.T) {
	t.Parallel()
	for _, all := range []bool{false, true} {
		b := setup(t)
		for _, object := range []string{"hers", "tied", "other"} {
			b.event(t, object, 1, map[string]string{"hers": email, "tied": email, "other": "somebody@else.org"}[object])
		}
		b.event(t, "tied", 1, "zz@else.org")
		b.exec(t, `UPDATE objects SET state = jsonb_build_object('customer', state->'customer'), account = 'shop'`)
		if all {
			b.exec(t, `UPDATE objects SET account = 'another' WHERE object_id = 'other'`)
		}
		b.exec(t, `INSERT INTO bases SELECT * FROM objects`)
		b.exec(t, `DELETE FROM outcomes`)
		b.exec(t, `DO $$ DECLARE p regclass; BEGIN FOR p IN SELECT inhrelid FROM pg_inherits WHERE inhparent = 'events'::regclass LOOP EXECUTE format('ALTER TABLE events DETACH PARTITION %s', p); EXECUTE format('DROP TABLE %s', p); END LOOP; END $$`)
		order := redaction.Order{Source: b.source, Account: new("shop"), All: true}
		if !all {
			f, err := redaction.NewFind("$.customer.email", email)
			must(t, err)
			order = redaction.Order{Source: b.source, Finds: []redaction.Find{f}}
		}
		if look, err := redaction.Look(t.Context(), b.operator, &order, nil); err != nil || look.Objects != 2 || look.Events != 0 {
			t.Errorf("%+v, %v", look, err)
		}
		if h := b.do(t, order); h.Counts[redaction.CountObjects] != 2 {
			t.Errorf("%v", h.Counts)
		}
		if left := b.holding(t, "lovelace"); len(left) > 0 || b.state(t, "other") != "somebody@else.org" {
			t.Errorf("left in %v, other is %s", left, b.state(t, "other"))
		}
	}
}
