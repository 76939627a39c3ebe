package redaction_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/apply"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/redaction"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/applied"
	"github.com/postern-gateway/postern/internal/versioning"
)

// byState returns parameters that redact an address at its path in a state.
func (b *fixture) byState(t *testing.T, address string) redaction.Params {
	t.Helper()
	f, err := redaction.NewValueMatcher("$.customer.email", address)
	must(t, err)
	return redaction.Params{Source: b.source, Matchers: []redaction.ValueMatcher{f}}
}

// dropEvents removes events from the log, as retention does.
func (b *fixture) dropEvents(t *testing.T, ids ...int64) {
	t.Helper()
	for _, part := range b.rows(t, `SELECT inhrelid::regclass::text FROM pg_inherits
		WHERE inhparent = 'events'::regclass`) {
		b.exec(t, `ALTER TABLE `+part+` DISABLE TRIGGER USER`)
		b.exec(t, `DELETE FROM `+part+` WHERE id = ANY($1)`, ids)
		b.exec(t, `ALTER TABLE `+part+` ENABLE TRIGGER USER`)
	}
}

// A conflict is searched separately from its event; the event stays.
func TestRedactConflicts_byValue_keepsTheEvent(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.event(t, "hers", 1, "before@else.org") // k1
	b.event(t, "other", 1, "somebody@else.org")
	b.store(t, "hers", body("hers", 1, email), "k1")
	b.store(t, "other", body("other", 1, "changed@else.org"), "k2")
	h := b.run(t, b.byEmail(t, email))
	b.wantGone(t, "lovelace")
	wantCounts(t, h, map[string]int64{redaction.CountConflicts: 1, redaction.CountEvents: 0})
	b.wantText(t, "1", `SELECT conflicts::text FROM redactions`)
	b.wantStates(t, map[string]string{"hers": "before@else.org"})
	b.db.WantRows(t, 1, "event_conflicts WHERE body <> ''")
}

// If everything of an account is cleared, its conflicts are too, also those of events in dropped
// partitions.
func TestRedactConflicts_wholeAccount_clearsAll(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.event(t, "hers", 1, "before@else.org")
	b.store(t, "hers", body("hers", 1, email), "k1")
	b.exec(t, `UPDATE event_conflicts SET account = 'shop'`)
	b.event(t, "other", 1, "somebody@else.org")
	b.store(t, "other", body("other", 1, "changed@else.org"), "k2")
	b.dropEvents(t, id)
	b.run(t, redaction.Params{Source: b.source, Account: new("shop"), All: true})
	equal(t, "remaining accounts", []string{""}, b.rows(t, `SELECT account FROM event_conflicts WHERE body <> ''`))
}

// A retained or staged object may contain a value that the mirror does not contain any more. It is
// cleared there, and the mirror stays. This also works if the row is written between reading and
// clearing.
func TestRedactObjects_retainedAndStaged_areCleared(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.exec(t, `INSERT INTO runs (job, params, actor, reason, status, detail, counts, created_at, updated_at)
		VALUES ('rebuild', jsonb_build_object('source', $1::int), 'me', '', 'paused', '', '{}', now(), now())`,
		b.source)
	old := b.event(t, "hers", 1, email)
	b.event(t, "other", 1, "somebody@else.org")
	b.exec(t, `INSERT INTO retained_objects SELECT * FROM objects`)
	b.exec(t, `INSERT INTO staged_objects SELECT * FROM objects`)
	b.event(t, "hers", 2, "new@else.org")
	b.dropEvents(t, old)
	b.exec(t, `CREATE SEQUENCE tries; GRANT USAGE ON tries TO PUBLIC`)
	b.exec(t, `CREATE FUNCTION meanwhile() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF nextval('postern.tries') = 1
		THEN RETURN NULL; END IF; RETURN NEW; END $$`)
	b.exec(t, `CREATE TRIGGER meanwhile BEFORE UPDATE ON retained_objects FOR EACH ROW EXECUTE FUNCTION meanwhile()`)
	params := b.byState(t, email)
	b.wantPreview(t, params, 0, 1)
	b.run(t, params)
	b.wantGone(t, "lovelace")
	b.wantText(t, "2", `SELECT last_value::text FROM tries`) // the row was written meanwhile
	for _, table := range []string{"retained_objects", "staged_objects"} {
		got := b.rows(t, `SELECT object_id || ' ' || coalesce(state->'customer'->>'email', 'nothing') FROM `+table+
			` ORDER BY 1`)
		equal(t, table, []string{"hers nothing", "other somebody@else.org"}, got)
	}
	b.wantStates(t, map[string]string{"hers": "new@else.org"})
	b.exec(t, `UPDATE runs SET status = 'cancelled', ended_at = now() WHERE job = 'rebuild'`)
	b.rebuild(t, 900)
}

// A row that has changed since it was read, or is newer than the run, is not cleared. Nothing is
// cleared without a run, or in another table.
func TestRedactRows_rowsWrittenMeanwhile_areKept(t *testing.T) {
	t.Parallel()
	b := setup(t)
	first := b.event(t, "hers", 1, email)
	b.event(t, "later", 1, email)
	b.exec(t, `INSERT INTO retained_objects SELECT * FROM objects`)
	b.request(t, redaction.Params{})
	h := leaseRun(t, b.pool, "test", time.Minute, redaction.Job)
	const call = `SELECT redact_copies($1, $2, '{}', array_agg(o.source), array_agg(o.account),
		array_agg(o.object_type), array_agg(o.object_id), array_agg(o.updated_at - $3::interval))
			FROM retained_objects o`
	copies := func(run int64, table string, ago time.Duration) (n int, err error) {
		err = b.pool.QueryRow(t.Context(), call, run, table, ago).Scan(&n)
		return n, err
	}
	if _, err := copies(h.Run.ID, "retained_objects", 0); err == nil {
		t.Error("without a bound")
	}
	must(t, h.SetBound(t.Context(), first))
	for run, table := range map[int64]string{h.Run.ID: "objects", h.Run.ID + 1: "retained_objects"} {
		if _, err := copies(run, table, 0); err == nil {
			t.Errorf("run %d, table %s", run, table)
		}
	}
	if n, err := copies(h.Run.ID, "retained_objects", time.Microsecond); err != nil || n != 0 {
		t.Errorf("of changed rows it clears %d, %v", n, err)
	}
	if n, err := copies(h.Run.ID, "retained_objects", 0); err != nil || n != 1 ||
		b.rows(t, `SELECT object_id FROM retained_objects
		WHERE state IS NULL`)[0] != "hers" {
		t.Errorf("it clears %d, %v", n, err)
	}
}

// After a row is cleared because its state matches, the states of other events of the same version
// remain. The mirror then equals a rebuild, also if the process ends after the row was cleared.
func TestReapplyCleared_keepsOtherEventsOfTheVersion(t *testing.T) {
	t.Parallel()
	for _, crash := range []bool{false, true} {
		b := setup(t)
		old := b.event(t, "tied", 1, email)
		b.exec(t, `INSERT INTO retained_objects SELECT * FROM objects`)
		b.event(t, "tied", 1, "zz@else.org")
		b.dropEvents(t, old)
		params := b.byState(t, email)
		b.request(t, params)
		if crash {
			b.exec(t, `CREATE FUNCTION crash() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF NEW.run <> 0 THEN RAISE
				EXCEPTION 'crash'; END IF; RETURN NEW; END $$`)
			b.exec(t, `CREATE TRIGGER crash BEFORE INSERT ON outcomes FOR EACH ROW EXECUTE FUNCTION crash()`)
			if _, _, err := b.tryExecute(t, nil); err == nil || b.state(t, "tied") != "nothing" {
				t.Fatal(err, b.state(t, "tied"))
			}
			b.exec(t, `DROP TRIGGER crash ON outcomes`)
			b.exec(t, `UPDATE checkpoints SET lease_until = now() - interval '1 s' WHERE job = 'redact'`)
		}
		wantCounts(t, b.execute(t), map[string]int64{redaction.CountEvents: 0})
		b.wantGone(t, "lovelace")
		b.wantStates(t, map[string]string{"tied": "zz@else.org"})
		b.rebuild(t, 900)
	}
}

// An event whose object's state matches is redacted too, although its body has the value at another
// path.
func TestRedact_stateMatches_clearsItsEvent(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.event(t, "tied", 1, "zz@else.org")
	b.event(t, "tied", 1, email)
	b.event(t, "hers", 1, email)
	b.runWant(t, b.byState(t, email), 2)
	b.wantGone(t, "lovelace")
	b.wantStates(t, map[string]string{"tied": "zz@else.org", "hers": "nothing"})
	b.rebuild(t, 900)
}

// applyWithoutSource applies events with a processor that has no source configured. They fail until
// it is.
func (b *fixture) applyWithoutSource(t *testing.T, ids ...int64) {
	t.Helper()
	applied.Apply(t, b.log.Applier(t, nil, "no source"), 0, ids)
}

// setComplete sets the republisher's checkpoint behind all stored events.
func (b *fixture) setComplete(t *testing.T) {
	t.Helper()
	b.exec(t, `INSERT INTO checkpoints (job, run, cursor, lease_owner, lease_until, updated_at) SELECT 'republisher', 0,
		max(id), '', now(), now() FROM events
		ON CONFLICT (job, run) DO UPDATE SET cursor = excluded.cursor`)
}

// An object is cleared with all events that named it at ingest, also those that were never applied
// to it, whatever the republisher's checkpoint.
func TestRedact_object_clearsEventsThatNamedIt(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.event(t, "hers", 1, email)
	b.event(t, "other", 1, "somebody@else.org")
	failed := b.store(t, "hers", body("hers", 2, "second."+email), "failed")[0]
	b.applyWithoutSource(t, failed)
	dead := b.store(t, "hers", []byte(`{"object_id": "hers", "email": "`+email+`", `), "dead")[0]
	b.apply(t, 0, dead)
	ignored := b.store(t, "hers", []byte(`{"ignored": "`+email+`"}`), "ignored")[0]
	b.exec(t, `INSERT INTO outcomes (event_id, run, source, object, account, object_type, object_id, status, reason,
		attempts, at, rule_version) VALUES ($1, 0, $2, 0, '', '', '', 'ignored', 'of no object', 1, now(), 1)`, ignored,
		b.source)
	b.wantText(t, "failed 0, dead 0, ignored 0",
		`SELECT string_agg(status || ' ' || object, ', ' ORDER BY event_id) FROM outcomes WHERE event_id = ANY($1)`,
		[]int64{failed, dead, ignored})
	b.setComplete(t)
	params := redaction.Params{Objects: []redaction.Object{b.thing("hers")}}
	if preview := b.wantPreview(t, params, 4, 1); preview.Examined != 5 || preview.WholeDeliveries {
		t.Errorf("%+v", preview)
	}
	wantCounts(t, b.run(t, params), map[string]int64{redaction.CountEvents: 4, redaction.CountExamined: 5})
	b.wantGone(t, "lovelace")
	b.exec(t, `UPDATE outcomes SET due = now() - interval '1 s' WHERE status = 'failed'`)
	b.apply(t, 0, failed) // the source is configured again
	b.wantStates(t, map[string]string{"hers": "nothing", "other": "somebody@else.org"})
}

// The parameter All takes effect only with an account. Without one, only what is named is cleared.
func TestParams_allWithoutAccount_clearsNamedOnly(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.event(t, "hers", 1, email)
	b.event(t, "other", 1, "somebody@else.org")
	params := b.byEmail(t, email)
	params.All = true
	b.runWant(t, params, 1)
	b.wantStates(t, map[string]string{"hers": "nothing", "other": "somebody@else.org"})
}

// refetch stores a refetch of an object with an address, and applies it. By overwrites, an operator
// overwrites the object with it.
func (b *fixture) refetch(t *testing.T, object, address string, overwrites bool) int64 {
	t.Helper()
	now := time.Now().UTC()
	l := provider.Refetch{Date: now, Snapshot: provider.Snapshot{ObjectType: "thing", ObjectID: object,
		Body: fmt.Appendf(nil, `{"unit": 1, "object": {"customer": {"email": %q}}}`, address)}}
	if overwrites {
		l.Overwrite = &provider.Overwrite{Before: now, Actor: "me", Reason: "no operator requested it"}
	}
	text, err := l.Encode()
	must(t, err)
	id := b.appendDelivery(t, events.Delivery{Source: b.source, ReceivedAt: now, Origin: events.OriginReconcile,
		Body: text, Events: []provider.Event{{Key: "refetch of " + object, Type: provider.RefetchType,
			ObjectType: "thing", ObjectID: object}}})[0]
	b.apply(t, 0, id)
	return id
}

// An operator overwrote an object, and it has changed since. After the refetch is redacted, a
// rebuild keeps the object: the overwritten history has no effect again.
func TestRedact_overwritingRefetch_keepsTheOverwriteInRebuild(t *testing.T) {
	t.Parallel()
	for _, asked := range []string{"before", "while"} {
		t.Run(asked+" a rebuild", func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			at := time.Now().Add(-time.Minute).UnixMicro()
			b.apply(t, 0, b.store(t, "hers", fmt.Appendf(nil,
				`{"id": "d", "type": "thing.deleted", "object_id": "hers", "deleted": true, "final": true, `+
					`"rank": 1, "unit": 1, "time": %d, "object": null}`, at), "unmeant")...)
			refetch := b.refetch(t, "hers", email, true)
			b.apply(t, 0, b.store(t, "hers", fmt.Appendf(nil,
				`{"id": "u", "type": "thing.updated", "object_id": "hers", "rank": 1, "unit": 1, "time": %d, `+
					`"object": {"customer": {"email": "new@else.org"}}}`, time.Now().Add(2*time.Second).UnixMicro()),
				"later")...)
			if asked == "while" {
				b.exec(t, `INSERT INTO runs (job, params, actor, reason, status, detail, counts, created_at, updated_at)
					VALUES ('rebuild', '{}', '', '', 'running', '', '{}', now(), now())`)
			}
			b.run(t, redaction.Params{Events: []int64{refetch}})
			const rows = `SELECT (to_jsonb(o) -
				'{revision,created_at,updated_at,refetch_after,last_event_id}'::text[])::text FROM `
			live := b.rows(t, rows+`objects o WHERE overwritten_at <> 0
				AND state->'customer'->>'email' = 'new@else.org'`)
			if len(live) != 1 {
				t.Fatalf("live: %v", b.rows(t, rows+`objects o`))
			}
			if asked == "before" {
				b.exec(t, `INSERT INTO staged_objects SELECT * FROM retained_objects`)
			}
			must(t, errOf(b.proc.ApplyStored(t.Context(),
				apply.Target{Run: 900, Staging: &apply.Staging{Table: versioning.Staged}}, b.storedRow(t), false)))
			equal(t, "live, and rebuilt", live, b.rows(t, rows+`staged_objects o`))
			b.wantGone(t, email)
		})
	}
}

// A redaction of one event keeps when the refetch began by which an operator overwrote the object:
// an old delete, whose time is not known, still has no effect.
func TestRedact_overwrittenObject_oldDeleteStaysWithoutEffect(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.refetch(t, "hers", email, true)
	newer := b.store(t, "hers", fmt.Appendf(nil,
		`{"id": "u", "type": "thing.updated", "object_id": "hers", "rank": 1, "unit": 1, "time": %d, `+
			`"object": {"customer": {"email": %q}}}`, time.Now().Add(2*time.Second).UnixMicro(), email), "newer")
	b.apply(t, 0, newer...)
	b.run(t, redaction.Params{Events: newer})
	old := b.store(t, "hers",
		[]byte(`{"id": "d", "type": "thing.deleted", "object_id": "hers", "deleted": true, "final": true, `+
			`"rank": 1, "object": null}`), "old")
	b.apply(t, 0, old...)
	got := b.rows(t, `SELECT o.status || ' ' || b.deleted || ' ' || (b.overwrite_seen > 0) FROM outcomes o
		JOIN objects b USING (object_id) WHERE o.event_id = $1`, old[0])
	equal(t, "", []string{"ambiguous false true"}, got)
}

func TestRedact_statementsOfTables_fitTheSchema(t *testing.T) {
	t.Parallel()
	testkit.PrepareStatements(t, redaction.TableStatements())
}
