package redaction_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/apply"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/redaction"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/testkit/sim"
	"github.com/postern-gateway/postern/internal/versioning"
)

// slowProvider calls a function after an event was read and before anything is locked.
type slowProvider struct {
	sim.Provider
	meanwhile func()
}

func (s slowProvider) Observe(src *provider.Source, e *provider.StoredEvent) (provider.Observation, error) {
	obs, err := s.Provider.Observe(src, e)
	s.meanwhile()
	return obs, err
}

// A process that read an event before its redaction, and writes afterwards, writes nothing of it:
// live, in a replay, in a retry, in a rebuild, and in retained objects.
func TestApply_eventRedactedAfterItWasRead_writesNothing(t *testing.T) {
	t.Parallel()
	// A repeated message carries the body, whatever the log has by then.
	message := func(b *fixture, id int64, text []byte) stream.Event {
		e := stream.Event{Source: "sim", ObjectType: "thing", ObjectID: "hers"}
		e.ID, e.Key, e.Type, e.Body = id, "k", "thing", text
		return e
	}
	for name, write := range map[string]func(b *fixture, p *apply.Applier, id int64, text []byte) error{
		"live": func(b *fixture, p *apply.Applier, id int64, text []byte) error {
			return p.Apply(t.Context(), events.LiveRun, []stream.Event{message(b, id, text)})
		},
		"live, single": func(b *fixture, p *apply.Applier, id int64, text []byte) error {
			return p.ApplySingle(t.Context(), events.LiveRun, message(b, id, text))
		},
		"replay": func(_ *fixture, p *apply.Applier, id int64, _ []byte) error {
			_, err := p.ApplyStored(t.Context(), apply.Target{Run: 70}, []int64{id}, false)
			return err
		},
		"retry": func(_ *fixture, p *apply.Applier, id int64, _ []byte) error {
			_, err := p.ApplyStored(t.Context(), apply.Target{RetryRun: 71}, []int64{id}, false)
			return err
		},
		"retry, single": func(_ *fixture, p *apply.Applier, id int64, _ []byte) error {
			_, err := p.ApplyStored(t.Context(), apply.Target{RetryRun: 71}, []int64{id}, true)
			return err
		},
		"rebuild": func(_ *fixture, p *apply.Applier, id int64, _ []byte) error {
			_, err := p.ApplyStored(t.Context(),
				apply.Target{Run: 72, Staging: &apply.Staging{Table: versioning.Staged}}, []int64{id}, false)
			return err
		},
		"reduce": func(_ *fixture, p *apply.Applier, id int64, _ []byte) error {
			_, err := p.Reduce(t.Context(), []int64{id})
			return err
		},
	} {
		for _, before := range []string{"nothing", "applied", "dead"} {
			// An event without an outcome is not reduced, and an event with a final outcome is not
			// tried alone.
			if slices.Contains([]string{"reduce after nothing", "live, single after applied", "live, single after dead",
				"retry, single after applied"}, name+" after "+before) {
				continue
			}
			t.Run(name+" after "+before, func(t *testing.T) {
				t.Parallel()
				b := setup(t)
				b.event(t, "hers", 1, "somebody@else.org")
				text := body("hers", 5, email)
				id := b.store(t, "hers", text, "k")[0]
				switch before {
				case "applied":
					b.apply(t, 0, id)
				case "dead":
					b.exec(t, `INSERT INTO outcomes (event_id, run, source, object, account, object_type, object_id,
						status, reason, attempts, at, rule_version) VALUES ($1, 0, $2, 0, '', '', '', 'dead', 'of her',
							1, now(), 1)`, id, b.source)
				}
				p := b.log.Applier(t, slowProvider{meanwhile: sync.OnceFunc(func() {
					b.run(t, redaction.Params{Events: []int64{id}})
				})})
				if name == "reduce" && before == "dead" {
					b.exec(t, `INSERT INTO outcomes (event_id, run, source, object, account, object_type, object_id,
						status, reason, attempts, at, rule_version) VALUES ($1, 69, $2, 0, '', '', '', 'applied', '', 1,
							now(), 1)`, id, b.source)
				}
				must(t, write(b, p, id, text))
				b.wantText(t, "1", `SELECT count(*)::text FROM redacted_events`)
				b.wantGone(t, "lovelace")
				for _, status := range b.rows(t, `SELECT status FROM outcomes WHERE event_id = $1 AND run IN (70, 72)`,
					id) {
					if status != "ignored" {
						t.Errorf("it is %s", status)
					}
				}
			})
		}
	}
}

// rebuild does what a new rebuild with a swap does: retained objects, then the log.
func (b *fixture) rebuild(t *testing.T, run int64) {
	t.Helper()
	b.exec(t, `TRUNCATE staged_objects`)
	b.exec(t, `INSERT INTO staged_objects SELECT * FROM retained_objects`)
	must(t, errOf(b.proc.ApplyStored(t.Context(),
		apply.Target{Run: run, Staging: &apply.Staging{Table: versioning.Staged}}, b.storedRow(t), false)))
	b.wantSameStaged(t)
}

func (b *fixture) storedRow(t *testing.T) (ids []int64) {
	t.Helper()
	for _, id := range b.rows(t, `SELECT id::text FROM events ORDER BY id`) {
		n, ok := events.ParseID(id)
		if !ok {
			t.Fatal(id)
		}
		ids = append(ids, n)
	}
	return ids
}

// wantSameStaged checks that a swap would change nothing.
func (b *fixture) wantSameStaged(t *testing.T) {
	t.Helper()
	same := func(table string) []string {
		return b.rows(t, `SELECT (to_jsonb(o) - 'revision' - 'last_event_id' - 'created_at' - 'updated_at' -
			'refetch_after')::text FROM `+table+` o ORDER BY object_id`)
	}
	equal(t, "a rebuild differs", same("objects"), same("staged_objects"))
}

// If a redacted deletion had no state, its effect remains in a rebuild: the object stays deleted.
func TestRedact_deletionWithoutState_staysDeletedInRebuild(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		`{"id": "d", "type": "thing.deleted", "object_id": "hers", "rank": 1, "time": %d, "unit": 1, ` +
			`"deleted": true, "for": "` + email + `"}`,
		`{"id": "d", "type": "thing.deleted", "object_id": "hers", "rank": 1, "time": %d, "unit": 1, ` +
			`"deleted": true, "object": null, "for": "` + email + `"}`,
	} {
		b := setup(t)
		b.event(t, "hers", 1, "somebody@else.org")
		b.n++
		id := b.store(t, "hers", fmt.Appendf(nil, text, sim.Start+9), "d")[0]
		b.apply(t, 0, id)
		if got := b.rows(t, `SELECT deleted || ' ' || coalesce(state::text, `+
			`'null') || ' ' || tied_states FROM objects`); len(got) != 1 || got[0][:4] != "true" {
			t.Fatalf("not deleted: %v %v", got, b.rows(t, `SELECT status || reason FROM outcomes`))
		}
		b.run(t, redaction.Params{Events: []int64{id}})
		b.rebuild(t, 900)
		equal(t, "deleted after a rebuild", []string{"true"}, b.rows(t, `SELECT (deleted)::text FROM staged_objects`))
	}
}

// If several events have the same version, the states of the others remain, also in a rebuild that
// is past them, and in a retained object.
func TestReapplySameVersion_keepsOtherEventsOfTheVersion(t *testing.T) {
	t.Parallel()
	b := setup(t)
	other := b.event(t, "tied", 5, "tied@else.org")
	b.exec(t, `INSERT INTO runs (job, params, actor, reason, status, detail, counts, created_at, updated_at)
		VALUES ('rebuild', jsonb_build_object('source', $1::int), 'me', '', 'paused', '', '{}', now(), now())`,
		b.source)
	redacted := b.event(t, "tied", 5, email)
	must(t, errOf(b.proc.ApplyStored(t.Context(),
		apply.Target{Run: 900, Staging: &apply.Staging{Table: versioning.Staged}}, b.storedRow(t), false)))
	must(t, errOf(b.proc.Reduce(t.Context(), []int64{other, redacted})))
	b.run(t, redaction.Params{Events: []int64{redacted}})
	b.wantStates(t, map[string]string{"tied": "tied@else.org"})
	b.wantSameStaged(t)
	b.exec(t, `UPDATE runs SET status = 'cancelled', ended_at = now() WHERE job = 'rebuild'`)
	b.exec(t, `TRUNCATE staged_objects`) // the log is dropped up to here
	b.exec(t, `INSERT INTO staged_objects SELECT * FROM retained_objects`)
	b.wantSameStaged(t)
}

// An open transaction of a rebuild ends before an object is redacted, or sees the redaction.
func TestRedact_openRebuildTransaction_isSeenOrWaitedFor(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.event(t, "hers", 1, "somebody@else.org")
	id := b.event(t, "hers", 5, email)
	var once sync.Once
	check := func(context.Context, pgx.Tx) error {
		once.Do(func() {
			b.run(t, redaction.Params{Objects: []redaction.Object{b.thing("hers")}})
		})
		return nil
	}
	must(t, errOf(b.proc.ApplyStored(t.Context(),
		apply.Target{Run: 900, Staging: &apply.Staging{Table: versioning.Staged, Guard: check}}, []int64{id}, false)))
	b.wantGone(t, "lovelace")
}

// A processor that reads an event in another way than the redacting one takes the same lock.
func TestRedact_providerNotConfigured_takesTheSameLock(t *testing.T) {
	t.Parallel()
	for into, table := range map[versioning.ObjectTable]string{versioning.Mirror: "objects",
		versioning.Staged: "staged_objects"} {
		b := setup(t)
		b.event(t, "hers", 1, "somebody@else.org")
		b.exec(t, `INSERT INTO staged_objects SELECT * FROM objects`)
		id := b.store(t, "hers", body("hers", 5, email), "k")[0]
		row := holdTx(t, b.db.Pool, `SELECT FROM `+table+` FOR UPDATE`) // the replay holds its locks and waits here
		applied := make(chan error, 1)
		go func() {
			_, err := b.proc.ApplyStored(t.Context(), apply.Target{Run: 70, Staging: &apply.Staging{Table: into}},
				[]int64{id}, false)
			applied <- err
		}()
		b.waitForLock(t, table)
		b.request(t, redaction.Params{Events: []int64{id}})
		_, redacted := b.executeInBackground(t, b.log.Applier(t, nil, "no source"))
		b.waitForLock(t, "redact_events")
		must(t, row.Rollback(t.Context()))
		must(t, errors.Join(<-applied, <-redacted))
		b.wantGone(t, "lovelace")
	}
}

// A conflict that is stored while its event is redacted is cleared with the event.
func TestRedact_conflictStoredMeanwhile_isCleared(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.event(t, "hers", 1, email)
	tx := holdTx(t, b.db.Role(t, "gateway"), `INSERT INTO event_conflicts (source, event, event_id, event_type,
		account, fingerprint, received_at, headers, verification, body)
		VALUES ($1, $2, 'k1', 'thing', '', '\x00', now(), '{}', '{}', $3)`, b.source, id, []byte(email))
	b.request(t, redaction.Params{Events: []int64{id}})
	h, redacted := b.executeInBackground(t, b.proc)
	b.waitForLock(t, "redact_events")
	must(t, errors.Join(tx.Commit(t.Context()), <-redacted))
	b.wantGone(t, "lovelace")
	wantCounts(t, h, map[string]int64{redaction.CountConflicts: 1})
}

// The data of an object in the ledger of effects is cleared with its events, also where a summary
// lists it, and unfinished effects are rejected. The record of finished steps stays, as do effects
// of other objects.
func TestClearEffects_keepsTheRecordOfDoneEffects(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.event(t, "hers", 1, email)
	b.event(t, "other", 1, "somebody@else.org")
	b.exec(t, `INSERT INTO effects (key, rule_version, rule, source, account, object_type, object_id, event_id, run,
		template_data, state, reason, destination, due, planned_at, updated_at)
SELECT s.state || o.object_id, 1, 'mail', o.source, o.account, o.object_type, o.object_id, o.last_event_id, 0,
	jsonb_build_object('new', o.state), s.state, 'told', 'mail',
  CASE WHEN s.state = 'failed' THEN now() END, now(), now() FROM objects o, unnest('{done,failed,needs_review}'::text[])
	AS s(state)`)
	b.exec(t, `INSERT INTO effects (key, rule_version, rule, source, account, object_type, object_id, event_id, run,
		template_data, state, destination, planned_at, updated_at)
SELECT 'summary' || o.object_id, 1, 'weekly', o.source, o.account, 'person', 'p', 0, 0, jsonb_build_object('summary',
	jsonb_build_object('type', o.object_type, 'objects', jsonb_build_array('{}', jsonb_build_object('id', o.object_id,
	'email', o.state)))), 'awaiting_approval', 'mail', now(), now() FROM objects o`)
	b.exec(t, `INSERT INTO effect_steps (effect, step, position, state, destination, request, fingerprint, attempts,
		reserved_at, captured, error)
SELECT effect, 'send', 0, 'done', 'mail', template_data, '', 1, now(), template_data, template_data::text FROM effects`)
	b.exec(t, `INSERT INTO effect_baselines (source, account, object_type, object_id, state, deleted, existed,
		exact_hash, recorded_at)
SELECT source, account, object_type, object_id, state, false, true, exact_hash, now() FROM objects`)
	b.run(t, b.byEmail(t, email))
	b.wantGone(t, "lovelace")
	want := []string{"donehers done", "doneother done told", "failedhers rejected redacted before it was done",
		"failedother failed told", "needs_reviewhers rejected redacted before it was done",
		"needs_reviewother needs_review told", "summaryhers rejected redacted before it was done",
		"summaryother awaiting_approval"}
	equal(t, "", want, b.rows(t, `SELECT rtrim(key || ' ' || state || ' ' || reason) FROM effects ORDER BY key`))
	b.wantText(t, "4",
		`SELECT count(*)::text FROM effect_steps WHERE request IS NOT NULL AND captured <> '{}' AND error <> ''`)
	equal(t, "baselines", []string{"other"}, b.rows(t, `SELECT object_id FROM effect_baselines`))
}

// If a process leases and sends an effect while a redaction waits for it, its result is cleared
// too. What it writes later is cleared by the next redaction.
func TestClearEffects_effectInProgress_isCleared(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.event(t, "hers", 1, email)
	b.exec(t, `INSERT INTO effects (key, rule_version, rule, source, account, object_type, object_id, event_id, run,
		template_data, state, destination, due, planned_at, updated_at)
SELECT 'k', 1, 'mail', source, account, object_type, object_id, last_event_id, 0, jsonb_build_object('new', state),
	'planned', 'mail', now(), now(), now() FROM objects`)
	takes := holdTx(t, b.db.Pool,
		`UPDATE effects SET state = 'running', due = NULL, lease_owner = 'a', lease_until = now() + interval '1 hour'`)
	execSQL(t, takes, `INSERT INTO effect_steps (effect, step, position, state, destination, request, fingerprint,
		attempts, reserved_at)
		SELECT effect, 'send', 0, 'reserved', 'mail', template_data, '', 1, now() FROM effects`)
	b.request(t, b.byEmail(t, email))
	h, redacted := b.executeInBackground(t, b.proc)
	b.waitForLock(t, "")
	must(t, errors.Join(takes.Commit(t.Context()), <-redacted, h.End(t.Context(), runs.Done, "")))
	b.wantGone(t, "lovelace")
	b.exec(t, `UPDATE effect_steps SET captured = '{"to": "lovelace"}'`)
	b.exec(t, `UPDATE effects SET state = 'rejected', reason = 'requested by an operator', lease_owner = '',
		lease_until = NULL`)
	b.event(t, "hers", 2, email)
	b.run(t, b.byEmail(t, email))
	b.wantGone(t, "lovelace")
	b.wantText(t, "requested by an operator", `SELECT reason FROM effects`)
}

// An operator reprocesses a rejection while a redaction begins. The new event is above the first
// bound and no rejection any more. The run finds it, unless it must keep what is newer than a
// sender's request.
func TestRedact_rejectionReprocessedMeanwhile_isFound(t *testing.T) {
	t.Parallel()
	for _, until := range []bool{false, true} {
		b := setup(t)
		first := b.event(t, "hers", 1, email)
		params := b.byEmail(t, email)
		if until {
			params.Until = first
		}
		b.request(t, params)
		audit := holdTx(t, b.db.Pool, `LOCK TABLE redactions IN ACCESS EXCLUSIVE MODE`)
		_, carried := b.executeInBackground(t, b.proc)
		b.waitForLock(t, "")
		b.event(t, "released", 1, email)
		must(t, audit.Rollback(t.Context()))
		must(t, <-carried)
		if left := b.tablesWith(t, email); slices.Contains(left, "objects") != until {
			t.Errorf("until a request %t: left in %v", until, left)
		}
		b.wantStates(t, map[string]string{"hers": "nothing"})
	}
}
