package redaction_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/apply"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/redaction"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/versioning"
)

// storeMentions stores a log with an address at every place where an address may be.
func storeMentions(t *testing.T, b *fixture) (ids []int64) {
	t.Helper()
	for i := range int64(3) {
		ids = append(ids, b.event(t, "hers", i, email), b.event(t, "older", i, email))
		b.event(t, "other", i, "somebody@else.org")
	}
	b.event(t, "older", 10, "somebody@else.org") // a newer state of other events
	tie := b.event(t, "tied", 5, email)
	b.event(t, "tied", 5, "tied@else.org") // of the same version
	whole := b.store(t, "hers", body("hers", 20, email), "split1", "split2", "split3")
	b.apply(t, 0, whole...)
	waits := b.store(t, "late", body("late", 1, email), "waits")
	b.store(t, "hers", body("hers", 99, email+".twice"), "k1") // a conflict
	b.store(t, "other", body("other", 99, email), "k3")        // a conflict with an event of another person
	b.exec(t, `INSERT INTO rejections (source, reason, detail, remote, received_at, headers, body, bytes)
		VALUES ($1, 'wrong_signature', '', '', now(), '{}', $2, 1), ($1, 'r', '', '', now(), '{}', $3, 1),
		($1, 'r', '', '', now(), '{}', 'nothing of hers', 1)`, b.source, body("hers", 0, email), body("new", 77, email))
	// it gets a retained object
	b.exec(t, `INSERT INTO retained_objects SELECT * FROM objects WHERE object_id <> 'hers'`)
	b.exec(t, `INSERT INTO staged_objects SELECT * FROM objects`)
	failed := b.event(t, "unread", 1, email)
	b.exec(t, `UPDATE outcomes SET status = 'failed', due = now(), reason = $2 WHERE event_id = $1`, failed,
		"cannot read "+email)
	b.exec(t, `DELETE FROM objects WHERE object_id = 'unread'`)
	b.exec(t, `INSERT INTO runs (run, job, params, actor, reason, status, detail, counts, created_at, ended_at,
		updated_at) OVERRIDING SYSTEM VALUE
		VALUES (9000, 'reconcile', '{}', '', '', 'done', '', '{}', now(), now(), now())`)
	b.exec(t, `INSERT INTO drifts (run, source, account, object_type, object_id, kind, fields, reason) SELECT 9000, $1,
		'', 'thing', o, 'mirror_older',
		jsonb_build_array(jsonb_build_object('path', 'state.customer.email', 'before', NULL, 'after', $2::text)), $2
			FROM unnest(ARRAY['hers', 'only in the API']) AS o`, b.source, email)
	return slices.Concat(ids, whole, waits, []int64{tie, failed})
}

// No table has the value any more, and nothing else is removed.
func TestRedact_value_isRemovedFromAllTables(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ids := storeMentions(t, b)
	for _, table := range []string{"drifts", "event_conflicts", "objects", "outcomes", "rejections", "retained_objects",
		"staged_objects"} {
		if !slices.Contains(b.tablesWith(t, email), table) {
			t.Fatalf("%s has no mention before the test: %v", table, b.tablesWith(t, email))
		}
	}
	b.exec(t, `INSERT INTO runs (job, params, actor, reason, status, detail, counts, created_at, ended_at, updated_at)
		SELECT j, '{}', '', '', 'failed', d, '{}', now(), now(), now() FROM unnest(ARRAY['rebuild', 'retention',
			'replay'], ARRAY[
		  'event ' || $1::text || ' was applied live and fails now: no number ' || $2::text,
		  	'kept: event 99999999999999999999 is odd, event ' || $1::text || ' of source sim: ' || $2::text,
		  	'event 1 is another']) AS d(j, d)`, fmt.Sprint(ids[0]), email)
	const others = `SELECT to_jsonb(o)::text FROM objects o WHERE object_id IN ('other', 'older') ORDER BY object_id`
	before := b.rows(t, others)
	preview, err := redaction.BuildPreview(t.Context(), b.operator, new(b.byEmail(t, " Ada.Lovelace@EXAMPLE.org")), nil)
	if err != nil || preview.Events != int64(len(ids)) || preview.WholeDeliveries {
		t.Errorf("%+v, %v; want %d events", preview, err, len(ids))
	}
	h := b.run(t, b.byEmail(t, " Ada.Lovelace@EXAMPLE.org"))
	b.wantGone(t, email)
	b.wantGone(t, "lovelace")
	equal(t, "of others", before, b.rows(t, others))
	equal(t, "differences", []string{"only in the API, 1 more"},
		b.rows(t, `SELECT object_id || ', ' || more_fields || ' more' FROM drifts`))
	b.wantStates(t, map[string]string{"hers": "nothing", "tied": "tied@else.org", "other": "somebody@else.org"})
	wantCounts(t, h, map[string]int64{redaction.CountEvents: int64(len(ids)), redaction.CountConflicts: 2,
		redaction.CountRejections: 2})
	audit := b.rows(t, `SELECT actor || ', ' || reason || ', ' || events || ', ' || (ended_at IS NOT NULL) || ', ' ||
		(params ? 'finds') FROM redactions`)
	equal(t, "", []string{fmt.Sprintf("me, she asked for it, %d, true, false", len(ids))}, audit)
	b.wantText(t, "0", `SELECT count(*)::text FROM outcomes WHERE event_id = ANY($1) AND run = 0
		AND status IN ('failed')`, ids)
	b.wantText(t, "1",
		`SELECT count(*)::text FROM outbox o WHERE 'hers' = ANY(o.ids) AND o.batch = (SELECT max(batch) FROM outbox
			WHERE 'hers' = ANY(ids))`)
	equal(t, "", []string{"event 1 is another", "it named an event that was redacted", "it named an event that was " +
		"redacted"}, b.rows(t, `SELECT detail FROM runs WHERE detail <> '' ORDER BY 1`))
	if null := versioning.NullState(false); b.rows(t, `SELECT encode(exact_hash, 'hex') FROM objects
		WHERE object_id = 'hers'`)[0] != fmt.Sprintf("%x", null.ExactHash) {
		t.Error("a cleared row has another hash than one that knows nothing")
	}
	// The remaining objects equal those of a rebuild.
	b.rebuild(t, 900)
	b.wantText(t, fmt.Sprint(len(ids)), `SELECT count(*)::text FROM outcomes WHERE run = 900 AND status = 'ignored'`)
	b.checkAfterwards(t)
}

// checkAfterwards checks that later events are applied, and that redacted data does not come back.
func (b *fixture) checkAfterwards(t *testing.T) {
	t.Helper()
	before := b.rows(t, `SELECT count(*)::text FROM events`)[0]
	for _, text := range [][]byte{body("hers", 0, email), body("hers", 0, email+".again")} {
		b.store(t, "hers", text, "k1")
	}
	if left := b.tablesWith(t, "lovelace"); len(left) > 0 ||
		b.rows(t, `SELECT count(*)::text FROM events`)[0] != before {
		t.Errorf("delivered again, it is in %v", left)
	}
	b.event(t, "hers", 15, "stale@else.org")
	b.wantStates(t, map[string]string{"hers": "nothing"})
	b.event(t, "hers", 30, "new@else.org")
	b.wantStates(t, map[string]string{"hers": "new@else.org"})
}

// An event is cleared with its whole delivery, an object with all events about it, whatever its
// state.
func TestRedact_eventsAndObjects_clearWholeDeliveries(t *testing.T) {
	t.Parallel()
	b := setup(t)
	storeMentions(t, b)
	split := b.rows(t, `SELECT event_id FROM events WHERE id IN (SELECT id FROM events WHERE event_id LIKE 'split%')
		ORDER BY id DESC`)
	id, err := events.Find(t.Context(), b.operator, split[0], 0)
	must(t, err)
	params := redaction.Params{Events: []int64{id}}
	if preview := b.wantPreview(t, params, 3, 1); !preview.WholeDeliveries {
		t.Errorf("%+v", preview)
	}
	b.runWant(t, params, 3)
	wantCounts(t, b.run(t, params), map[string]int64{redaction.CountEvents: 0, redaction.CountObjects: 0})
	b.runWant(t, redaction.Params{Objects: []redaction.Object{b.thing("older"), b.thing("late")}}, 5)
	b.wantStates(t, map[string]string{"hers": "nothing", "older": "nothing"})
	life, err := events.Show(t.Context(), b.operator, split[0], 0)
	if err != nil || life.RedactedAt == nil || life.Redaction != 1 || len(life.Body) > 0 || life.EventID != split[0] ||
		life.Outcomes[0].Reason != "the event was redacted" {
		t.Errorf("%+v, %v", life, err)
	}
}

// A run that is executed again from the start clears nothing above its bound, and counts nothing
// twice.
func TestRedact_repeatedExecution_keepsNewerEvents(t *testing.T) {
	t.Parallel()
	b := setup(t)
	storeMentions(t, b)
	params := b.byEmail(t, email)
	params.Objects = []redaction.Object{b.thing("hers")}
	run := b.request(t, params)
	first := b.execute(t)
	later := b.event(t, "hers", 40, "new@else.org")
	// The process dies before it can record the end.
	b.exec(t, `UPDATE runs SET params = (SELECT to_jsonb($1::jsonb)) WHERE run = $2`, new(mustJSON(t, params)), run)
	b.exec(t, `UPDATE checkpoints SET cursor = 0, lease_until = now() - interval '1 s' WHERE job = 'redact'`)
	second := b.execute(t)
	if b.state(t, "hers") != "new@else.org" {
		t.Errorf("event %d is newer than the run, and was removed", later)
	}
	if second.Counts[redaction.CountEvents] != first.Counts[redaction.CountEvents] &&
		second.Counts[redaction.CountEvents] != 0 {
		t.Errorf("%v, then %v", first.Counts, second.Counts)
	}
	b.wantGone(t, "lovelace")
}

// An event that is applied during its redaction leaves no trace.
func TestRedact_concurrentApply_leavesNoTrace(t *testing.T) {
	t.Parallel()
	b := setup(t)
	var ids []int64
	for i := range 60 {
		ids = append(ids, b.store(t, fmt.Sprint("o", i%7), body(fmt.Sprint("o", i%7), int64(i), email),
			fmt.Sprint("live", i))...)
	}
	var wg sync.WaitGroup
	for w := range 3 {
		wg.Go(func() {
			for i := range ids {
				if _, err := b.proc.ApplyStored(t.Context(), apply.Target{}, ids[(i*(w+1))%len(ids):][:1],
					false); err != nil {
					t.Error(err)
				}
			}
		})
	}
	b.run(t, b.byEmail(t, email))
	wg.Wait()
	b.wantGone(t, "lovelace")
	b.wantText(t, fmt.Sprint(len(ids)), `SELECT count(DISTINCT event_id)::text FROM outcomes WHERE run = 0`)
}

const denied = "42501"

// Only the database function may clear, only for a run, and only what it audits. All other
// statements are rejected.
func TestRedactEvents_otherRolesAndStatements_areRejected(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ids := storeMentions(t, b)
	owner := b.db.Role(t, "maintenance")
	b.exec(t, `INSERT INTO redacted_events (event, run, at) VALUES ($1, 1, now())`, ids[0])
	for role, statements := range map[string][]string{
		"operator": {"UPDATE events SET body = NULL, headers = '{}'",
			"INSERT INTO redacted_events VALUES (1, 1, now())",
			"SELECT redact_events(1, '{}', '{}', '{}', '{}', '{}', '{}', '{}')", "DELETE FROM redactions",
			"SELECT end_redaction(1)", "SET session_replication_role = replica",
			"ALTER TABLE events DISABLE TRIGGER ALL", "SELECT redact_conflicts(1, '{1}')",
			"SELECT redact_copies(1, 'retained_objects', '{}', '{}', '{}', '{}', '{}', '{}')"},
		"processor": {"UPDATE events SET body = NULL, headers = '{}'",
			"INSERT INTO redacted_events VALUES (1, 1, now())",
			"SELECT redact_events(1, '{}', '{}', '{}', '{}', '{}', '{}', '{}')", "UPDATE redactions SET actor = 'x'",
			"SELECT * FROM rejections", "SELECT * FROM event_conflicts", "UPDATE event_conflicts SET body = ''",
			"SELECT end_redaction(1)", "SELECT redact_conflicts(1, '{1}')",
			"SELECT redact_copies(1, 'retained_objects', '{}', '{}', '{}', '{}', '{}', '{}')",
			"SET session_replication_role = replica", "ALTER TABLE events DISABLE TRIGGER ALL"},
		"gateway": {"UPDATE events SET body = NULL", "SELECT redact_events(1, '{}', '{}', '{}', '{}', '{}', '{}', " +
			"'{}')", "SELECT * FROM redactions"},
		// An audited event may be cleared, and nothing else.
		"maintenance": {"UPDATE events SET body = NULL, headers = '{}'",
			fmt.Sprintf("UPDATE events SET body = 'other' WHERE id = %d", ids[0]),
			fmt.Sprintf("UPDATE events SET body = NULL, headers = '{}', event_type = 'x' WHERE id = %d", ids[0]),
			fmt.Sprintf("UPDATE events SET body = NULL, headers = '{\"a\": 1}' WHERE id = %d", ids[0]),
			fmt.Sprintf("DELETE FROM events WHERE id = %d", ids[0]), "TRUNCATE events"},
	} {
		pool := b.db.Role(t, role)
		for _, s := range statements {
			if _, err := pool.Exec(t.Context(), s); postgres.Code(err) != denied {
				t.Errorf("%s: %s: %v", role, s, err)
			}
		}
	}
	if _, err := owner.Exec(t.Context(), `UPDATE events SET body = NULL, headers = '{}' WHERE id = $1`,
		ids[0]); err != nil {
		t.Errorf("an audited event cannot be cleared: %v", err)
	}
	b.wantText(t, "1", `SELECT count(*)::text FROM events WHERE body IS NULL AND delivery_id = id`)
}

func TestMatches_pathsAndValues(t *testing.T) {
	t.Parallel()
	const text = `{"a": {"b": [{"email": "X@y.z"}, {"email": 12.50}], "odd.name": true}, "n": 7}`
	for path, cases := range map[string]map[string]bool{
		"$.a.b[*].email": {"x@y.z": true, "12.50": true, "nobody": false},
		"$.a.b[1].email": {"x@y.z": false, "12.50": true}, "$.a.b.0.email": {"x@y.z": true},
		"$.a['odd.name']": {"true": true}, "$.*": {"7": true}, "$.a": {"7": false}, "$.a.b": {"x": false},
	} {
		for value, want := range cases {
			f, err := redaction.NewValueMatcher(path, value)
			if err != nil {
				t.Fatal(path, err)
			}
			if got := redaction.Matches([]redaction.ValueMatcher{f}, []byte(text)); got != want {
				t.Errorf("%s = %s: %t", path, value, got)
			}
			if strings.Contains(mustJSON(t, f), value) && len(value) > 3 {
				t.Errorf("the value is in %s", mustJSON(t, f))
			}
		}
	}
	f, err := redaction.NewValueMatcher("$.From", "+15550100")
	if err != nil || !redaction.Matches([]redaction.ValueMatcher{f}, []byte("From=%2B15550100&To=x")) ||
		redaction.Matches([]redaction.ValueMatcher{f}, []byte("To=%2B15550100")) {
		t.Error("a form", err)
	}
	for _, path := range []string{"", "$", "a.b", "$.", "$..a", "$.a[", "$.a[x]", "$[-1]", "$['a"} {
		if _, err := redaction.NewValueMatcher(path, "x"); err == nil {
			t.Errorf("path %q is accepted", path)
		}
	}
	if _, err := redaction.NewValueMatcher("$.a", " "); err == nil {
		t.Error("an empty value is accepted")
	}
}

// Unreadable parameters fail. Parameters that match nothing succeed, with an audit.
func TestExecute_unreadableParams_fail(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.runWant(t, b.byEmail(t, "nobody@else.org"), 0)
	b.db.WantRows(t, 1, "redactions")
	must(t, errOf(runs.Create(t.Context(), b.operator,
		runs.Request{Job: redaction.Job, Params: map[string]any{"everything": true}})))
	if _, _, err := b.tryExecute(t, nil); err == nil {
		t.Error("parameters of a later release are executed")
	}
}

// An odd name is treated as a name only, in every place. Arguments without meaning clear nothing.
func TestRedactEvents_oddNamesAndArguments_clearNothingElse(t *testing.T) {
	t.Parallel()
	b := setup(t)
	kept := b.event(t, "kept", 1, "somebody@else.org")
	odd := `x'; UPDATE events SET body = NULL; -- $1 %I "` + "\\"
	b.event(t, odd, 1, email)
	find, err := redaction.NewValueMatcher(`$['`+"a; DROP TABLE events; --"+`']`, odd)
	must(t, err)
	h := b.run(t, redaction.Params{Source: b.source, Matchers: []redaction.ValueMatcher{find},
		Objects: []redaction.Object{{Source: b.source, Type: "thing", ID: odd},
			{Source: b.source, Type: odd, Account: odd, ID: odd}}})
	wantCounts(t, h, map[string]int64{redaction.CountEvents: 1})
	b.wantStates(t, map[string]string{odd: "nothing", "kept": "somebody@else.org"})
	b.request(t, redaction.Params{})
	running := leaseRun(t, b.pool, "test", time.Minute, redaction.Job)
	const call = `SELECT redact_events($1, `
	if _, err := b.pool.Exec(t.Context(), call+`'{}', '{}', '{}', '{}', '{}', '{}', '{}')`,
		running.Run.ID); postgres.Code(err) != denied {
		t.Errorf("without a bound: %v", err)
	}
	must(t, running.SetBound(t.Context(), kept))
	for _, args := range []string{"NULL, NULL, NULL, NULL, NULL, NULL, NULL",
		"'{}', '{NULL}', '{1, NULL}', '{NULL}', '{NULL, x}', '{}', '{NULL}'",
		"'{0, -1}', '{-9223372036854775808}', '{-1}', '{x}', '{thing}', '{kept}', '{0}'"} {
		if _, err := b.pool.Exec(t.Context(), call+args+`)`, running.Run.ID); err != nil {
			t.Errorf("%s: %v", args, err)
		}
	}
	b.wantStates(t, map[string]string{"kept": "somebody@else.org"})
	b.db.WantRows(t, 1, "events WHERE body IS NULL")
}

// After a run, however it ended, not even the digests of the values remain.
func TestRedact_afterAnyEnd_digestsAreDeleted(t *testing.T) {
	t.Parallel()
	for _, end := range []runs.Status{runs.Done, runs.Failed, runs.Cancelled} {
		b := setup(t)
		b.event(t, "hers", 1, email)
		run := b.request(t, b.byEmail(t, email))
		h := b.execute(t)
		// It ended before it finished: the digests still exist.
		b.exec(t, `UPDATE runs SET params = $1::text::jsonb WHERE run = $2`, mustJSON(t, b.byEmail(t, email)), run)
		b.exec(t, `UPDATE redactions SET params = $1::text::jsonb, ended_at = NULL`, mustJSON(t, b.byEmail(t, email)))
		if end == runs.Cancelled {
			must(t, runs.ChangeStatus(t.Context(), b.operator, run, end))
		} else {
			must(t, h.End(t.Context(), end, ""))
		}
		b.wantGone(t, "digest")
	}
}

// Objects whose events are in dropped partitions are found by their state; for a whole account, all
// of them. What is newer than the run stays.
func TestRedact_objectsOfDroppedEvents_areFoundByState(t *testing.T) {
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
		b.exec(t, `INSERT INTO retained_objects SELECT * FROM objects`)
		b.exec(t, `DELETE FROM outcomes`)
		b.exec(t, `DO $$ DECLARE p regclass; BEGIN FOR p IN SELECT inhrelid FROM pg_inherits
			WHERE inhparent = 'events'::regclass LOOP EXECUTE format('ALTER TABLE events DETACH PARTITION %s',
				p); EXECUTE format('DROP TABLE %s', p); END LOOP; END $$`)
		params := redaction.Params{Source: b.source, Account: new("shop"), All: true}
		if !all {
			f, err := redaction.NewValueMatcher("$.customer.email", email)
			must(t, err)
			params = redaction.Params{Source: b.source, Matchers: []redaction.ValueMatcher{f}}
		}
		b.wantPreview(t, params, 0, 2)
		wantCounts(t, b.run(t, params), map[string]int64{redaction.CountObjects: 2})
		b.wantGone(t, "lovelace")
		b.wantStates(t, map[string]string{"other": "somebody@else.org"})
	}
}
