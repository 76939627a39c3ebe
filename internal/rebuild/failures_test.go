package rebuild_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/apply"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/rebuild"
	"github.com/postern-gateway/postern/internal/redaction"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit/applied"
	"github.com/postern-gateway/postern/internal/testkit/sim"
	"github.com/postern-gateway/postern/internal/versioning"
)

// failingUntilRepaired fails for every event as long as works is false.
type failingUntilRepaired struct {
	sim.Provider
	works *atomic.Bool
}

func (m failingUntilRepaired) Observe(src *provider.Source, e *provider.StoredEvent) (provider.Observation, error) {
	if !m.works.Load() {
		return provider.Observation{}, errUnreadable
	}
	return m.Provider.Observe(src, e)
}

// readableUpTo also reads the events up to an id before the repair.
type readableUpTo struct {
	failingUntilRepaired
	id int64
}

func (m readableUpTo) Observe(src *provider.Source, e *provider.StoredEvent) (provider.Observation, error) {
	if e.ID <= m.id {
		return m.Provider.Observe(src, e)
	}
	return m.failingUntilRepaired.Observe(src, e)
}

// A process died during the single attempt of some events, before they were applied live. These
// events are tried again. If they keep failing, the rebuild fails.
func TestSwap_reservedBeforeLiveOutcome_isNotLost(t *testing.T) {
	t.Parallel()
	for _, reads := range []provider.Provider{sim.Provider{}, failingProvider{}} {
		t.Run(fmt.Sprintf("%T", reads), func(t *testing.T) {
			t.Parallel()
			r := newRand(t, 32)
			b := setup(t)
			ids := b.append(t, r, b.source, sim.Generate(r, providerKinds["own version"]).Events)
			run := b.request(t, rebuild.Params{Source: b.source})
			takeRun(t, b.pool, "dead", time.Millisecond, rebuild.Job)
			b.exec(t, `INSERT INTO outcomes (event_id, run, source, object, account, object_type, object_id, status,
				reason, attempts, due, at, rule_version)
				SELECT e, $2, $3, 0, '', '', '', 'failed',
					'tried alone; the attempt has not ended yet, or it ended the process', 1, now() + interval '1 hour',
					now(), 1
				FROM unnest($1::bigint[]) e`, ids[:10], run, b.source)
			b.start(t, "one", reads, quickSettings())
			b.awaitRun(t, run, staged)
			b.applyLiveShuffled(t, r, ids)
			before := b.tableRows(t, objectColumns, "objects")
			must(t, rebuild.Swap(t.Context(), b.operator, run))
			ended := b.awaitRun(t, run, func(r *runs.Run) bool { return r.Status.Ended() })
			if _, fails := reads.(failingProvider); fails != (ended.Status == runs.Failed &&
				strings.Contains(ended.Detail, "was applied live and fails now") &&
				strings.Contains(ended.Detail, errUnreadable.Error())) {
				t.Errorf("%s: %s", ended.Status, ended.Detail)
			}
			if diff := cmp.Diff(before, b.tableRows(t, objectColumns, "objects")); diff != "" {
				t.Errorf("%v: %s", ended.Counts, diff)
			}
		})
	}
}

// Events that are in the mirror and dead in the rebuild stop a swap, unless an operator requests it
// after the comparison has shown them.
func TestSwap_liveEventsDead_needsAcceptance(t *testing.T) {
	t.Parallel()
	b, _ := setupApplied(t, 33, providerKinds["event time"])
	before := b.tableRows(t, allColumns, "objects")
	b.start(t, "one", dead{}, quickSettings())
	b.awaitFailure(t, b.request(t, rebuild.Params{Source: b.source, Swap: true}),
		fmt.Sprintf("%d events that were applied live are dead now", len(b.ids)))
	equal(t, "", before, b.tableRows(t, allColumns, "objects"))
	run := b.stage(t)
	page, err := rebuild.Compare(t.Context(), b.operator, run, "", 100)
	if err != nil || page.Dead == nil || page.Dead.Events != int64(len(b.ids)) || page.Dead.Reason != "for a test" {
		t.Errorf("%+v, %v", page, err)
	}
	if ended := b.swap(t, run); ended.Counts[rebuild.Emptied] == 0 ||
		int(ended.Counts[rebuild.Emptied]) != int(b.number(t, `SELECT count(*) FROM mirror.objects WHERE deleted`)) {
		t.Errorf("%v; mirror.objects has other deleted objects", ended.Counts)
	}
}

// If a source is not in the configuration, or is removed during its rebuild, the run fails with
// this reason instead of trying the events forever.
func TestRebuild_sourceRemoved_fails(t *testing.T) {
	t.Parallel()
	for _, step := range []string{"", "copy"} { // at copy the parameters have been read
		b, _ := setupApplied(t, 34, providerKinds["event time"])
		rebuilds := b.runner(t, nil, quickSettings())
		removeSource := func() { rebuilds.Applier.Replace(map[string]apply.Source{}) }
		if step == "" {
			removeSource()
		}
		rebuild.AtStep(rebuilds, step, removeSource)
		b.startRunner(t, "one", rebuilds)
		b.awaitFailure(t, b.request(t, rebuild.Params{Source: b.source}), "is not in the configuration")
	}
}

// callingProvider calls a function for each event, which then fails.
type callingProvider struct {
	sim.Provider
	call func()
}

func (l callingProvider) Observe(*provider.Source, *provider.StoredEvent) (provider.Observation, error) {
	l.call()
	return provider.Observation{}, errUnreadable
}

// A run can be paused between two attempts of failing events.
func TestRebuild_pausedBetweenRetries_stops(t *testing.T) {
	t.Parallel()
	b, _ := setupApplied(t, 35, providerKinds["event time"])
	run := b.request(t, rebuild.Params{Source: b.source})
	settings := quickSettings()
	settings.RetryPause = time.Hour
	h := takeRun(t, b.pool, "one", time.Minute, rebuild.Job)
	rebuilds := b.runner(t, callingProvider{call: sync.OnceFunc(func() {
		if err := runs.ChangeStatus(t.Context(), b.operator, run, runs.Paused); err != nil {
			t.Error(err)
		}
	})}, settings)
	if status, err := rebuilds.Execute(t.Context(), h, slog.New(slog.DiscardHandler)); err != nil ||
		status != runs.Paused {
		t.Errorf("%s, %v", status, err)
	}
}

// Events that failed in the rebuild and are applied to the mirror before their objects are swapped,
// even just before the lock, are part of the swapped objects. It does not matter how they are
// applied.
func TestSwap_failedEventAppliedLive_isNotLost(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		// step is when they are applied, "" for before the swap is requested. dead: their live
		// outcome is final, and an operator's run applies them.
		step string
		dead bool
	}{
		"failed live": {step: "lock"}, "failed live, before the comparison": {step: "compare"},
		"failed live, and applied early": {}, "dead live": {step: "lock", dead: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRand(t, 81)
			b := setup(t)
			m := failingUntilRepaired{works: new(atomic.Bool)}
			p := b.applier(t, m)
			before, after := halves(sim.Generate(r, providerKinds["event time"]).Events)
			m.works.Store(true)
			b.applyLiveShuffled(t, r, b.append(t, r, b.source, before))
			readable := b.number(t, `SELECT max(event_id) FROM outcomes`)
			m.works.Store(false)
			applied.Apply(t, p, events.LiveRun, b.append(t, r, b.source, after))
			b.exec(t, `UPDATE objects SET state = '{"damaged": true}', version_at = version_at - 1
				WHERE version_at > -9223372036854775808`)
			if c.dead {
				b.exec(t, `UPDATE outcomes SET status = 'dead', due = NULL WHERE status = 'failed'`)
			}
			fixProvider := sync.OnceFunc(func() {
				m.works.Store(true)
				b.applyLive(t, p, c.dead)
			})
			rebuilds := b.runner(t, readableUpTo{m, int64(readable)}, batchesOf(1000))
			rebuild.AtStep(rebuilds, c.step, fixProvider)
			b.startRunner(t, "one", rebuilds)
			run := b.request(t, rebuild.Params{Source: b.source, Swap: c.step != ""})
			if c.step == "" {
				b.awaitRun(t, run, staged)
				fixProvider()
				must(t, rebuild.Swap(t.Context(), b.operator, run))
			}
			ended := b.awaitRun(t, run, done)
			b.checkMirror(t, b.mirrorFromLog(t, nil, 1000))
			b.checkCount(t, int(ended.Counts[string(versioning.Failed)]),
				`SELECT count(*) FROM outcomes WHERE run = $1 AND status = 'failed'`, run)
			if ended.Counts[rebuild.Processed] != int64(len(b.ids)) || ended.Counts[rebuild.Swapped] == 0 {
				t.Errorf("%d events: %v", len(b.ids), ended.Counts)
			}
		})
	}
}

// applyLive applies all events live. Failed ones are due, and dead ones are applied by an
// operator's run.
func (b *testBundle) applyLive(t *testing.T, p *apply.Applier, dead bool) {
	t.Helper()
	to := apply.Target{}
	if b.exec(t, `UPDATE outcomes SET due = now() - interval '1 s' WHERE run = 0 AND status = 'failed'`); dead {
		run, err := runs.Create(t.Context(), b.operator, runs.Request{Job: "retry", Params: struct{}{}})
		must(t, err)
		to.RetryRun = run
	}
	must(t, errOf(p.ApplyStored(t.Context(), to, b.ids, false)))
	b.exec(t, `UPDATE runs SET status = 'done', ended_at = clock_now() WHERE run = $1`, to.RetryRun)
}

// failedSQL makes many events fail in a run that are dead live, among more events that do not fail.
const failedSQL = `
INSERT INTO outcomes (event_id, run, source, object, account, object_type, object_id, status, reason, attempts, due, at,
	rule_version)
SELECT g, r, %[1]d, g, '', 'thing', 'filler_' || g, CASE WHEN g %% 10 > 0 THEN 'applied' WHEN r = 0
	OR g %% 20 = 0 THEN 'dead' ELSE 'failed' END,
  CASE WHEN g %% 40 = 0 THEN 'no' ELSE 'given up after 2 attempts' END, 1, CASE WHEN r > 0
  	AND g %% 20 = 10 THEN now() END, now(), 1
FROM generate_series(1, 200000) g, unnest(ARRAY[0, %[2]d]) r`

// selectiveProvider cannot read the events of some objects.
type selectiveProvider struct{ sim.Provider }

func (selectiveProvider) Observe(src *provider.Source, e *provider.StoredEvent) (provider.Observation, error) {
	if strings.Contains(string(e.Body), "unread_") {
		return provider.Observation{}, errUnreadable
	}
	return sim.Provider{}.Observe(src, e)
}

// Every read of failures uses an index and never scans all outcomes. A swap with many failures, of
// events that failed live too, succeeds.
func TestSwap_manyFailures_readsByIndex(t *testing.T) {
	t.Parallel()
	r := newRand(t, 82)
	b := setup(t)
	evs := sim.Generate(r, providerKinds["event time"]).Events
	b.applyLiveShuffled(t, r, b.append(t, r, b.source, evs[3:]))
	unread := b.append(t, r, b.source, renameObjects(evs[:3], "unread_"))
	applied.Apply(t, b.applier(t, failingProvider{}), events.LiveRun, unread)
	b.start(t, "one", selectiveProvider{}, quickSettings())
	run := b.stage(t)
	b.exec(t, fmt.Sprintf(failedSQL, b.source, run))
	b.exec(t, `ANALYZE outcomes`)
	if swapped := b.swap(t, run); swapped.Counts[string(versioning.Failed)] != int64(len(unread)) {
		t.Errorf("%v, want %d failed events", swapped.Counts, len(unread))
	}
	failed := []int64{}
	for id := int64(30); len(failed) < 100; id += 20 {
		failed = append(failed, id)
	}
	if read := b.outcomesRead(t, rebuild.UnstagedSQL, run, []int64{20, 60, 100}, 10, failed); read > 1000 {
		t.Errorf("%d outcomes are read for 3 objects and 100 events", read)
	}
	for i, sql := range rebuild.FailuresSQL() {
		args := [][]any{{run, 0, 1000}, {run}, {run, 0, 10_000}}[i]
		if read := b.outcomesRead(t, sql, args...); read > 200_000 || read < 10_000 {
			t.Errorf("%d outcomes are read by%s", read, sql)
		}
	}
}

// outcomesRead returns how many outcomes a statement reads by index, with a plan for these
// parameters or for all. It must not scan the table.
func (b *testBundle) outcomesRead(t *testing.T, sql string, args ...any) (most int) {
	t.Helper()
	for _, plan := range []string{"force_custom_plan", "force_generic_plan"} {
		tx, err := b.db.Pool.Begin(t.Context())
		must(t, err)
		defer func() { _ = tx.Rollback(context.Background()) }()
		// Rows that parallel workers read are not counted here.
		execSQL(t, tx, `SET LOCAL max_parallel_workers_per_gather = 0; SET LOCAL plan_cache_mode = `+plan)
		execSQL(t, tx, sql, args...)
		var scans, read int
		err = tx.QueryRow(t.Context(), `SELECT seq_scan, idx_tup_fetch FROM pg_stat_xact_user_tables
			WHERE relname = 'outcomes'`).Scan(&scans, &read)
		if err != nil || scans != 0 {
			t.Errorf("%s: %d scans of all outcomes, %v:%s", plan, scans, err, sql)
		}
		most = max(most, read)
	}
	return most
}

const redactedAddress = "ada.lovelace@example.org"

// thingEvent is an event of an object at a time, with an email address.
func thingEvent(object string, at int64, address string) sim.Event {
	text := fmt.Sprintf(`{"id": "%s%d%s", "type": "thing.updated", "object_id": %[1]q, "rank": 1, "time": %[4]d, `+
		`"unit": 1, "object": {"email": %[3]q, "at": %[2]d}}`, object, at, address, sim.Start+at)
	return sim.Event{Object: object, Body: []byte(text), ReceivedAt: time.Now()}
}

// redact executes a redaction.
func (b *testBundle) redact(t *testing.T, o redaction.Params) {
	t.Helper()
	must(t,
		errOf(runs.Create(t.Context(), b.operator, runs.Request{Job: redaction.Job, Params: o, Actor: "me",
			Reason: "she asked for it"})))
	h := takeRun(t, b.pool, "redacts", time.Minute, redaction.Job)
	if status, err := (&redaction.Runner{Pool: b.pool, Applier: b.applier(t, nil)}).Execute(t.Context(), h,
		slog.New(slog.DiscardHandler)); err != nil || status != runs.Running {
		t.Fatal(status, err)
	}
	must(t, h.End(t.Context(), runs.Done, ""))
}

// Data that is redacted while a rebuild has it staged, even just before the lock, does not return
// with the swap. The object is not emptied by this rebuild or the next one.
func TestSwap_redactedWhileStaged_staysRedacted(t *testing.T) {
	t.Parallel()
	for _, size := range []int{1, 1000} {
		for _, late := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d in a batch, late %t", size, late), func(t *testing.T) {
				t.Parallel()
				b := setup(t)
				r := newRand(t, 5)
				ids := b.append(t, r, b.source, []sim.Event{thingEvent("hers", 1, "a@else.org"),
					thingEvent("other", 1, "a@else.org"), thingEvent("tied", 7, "tied@else.org"),
					thingEvent("wholly", 3, redactedAddress)})
				ids = append(ids, b.append(t, r, b.source, []sim.Event{thingEvent("hers", 5, redactedAddress)})...)
				ids = append(ids, b.append(t, r, b.source, []sim.Event{thingEvent("tied", 7, redactedAddress)})...)
				b.applyLiveShuffled(t, r, ids)
				b.exec(t, `UPDATE objects SET state = state || '{"damaged": true}'`)
				params := redaction.Params{Events: ids[4:],
					Objects: []redaction.Object{{Source: b.source, Type: "thing", ID: "wholly"}}}
				s := rebuild.DefaultSettings
				s.Batch = size
				rebuilds, redact := b.runner(t, nil, s), sync.OnceFunc(func() { b.redact(t, params) })
				if late {
					rebuild.AtStep(rebuilds, "lock", redact)
				}
				stop := b.startRunner(t, "p", rebuilds)
				run := b.stage(t)
				if !late {
					redact()
				}
				b.swap(t, run)
				want := []string{"hers null 5", "other a@else.org 1", "tied tied@else.org 7", "wholly null 3"}
				checkMirror := func(when string) {
					got := b.rows(t, `SELECT o.object_id || ' ' || coalesce(o.state->>'email', 'null') || ' ' ||
						(o.version_at - $1) FROM objects o ORDER BY 1`, sim.Start)
					if !slices.Equal(got, want) {
						t.Errorf("%s: %v, want %v", when, got, want)
					}
					for _, table := range b.rows(t, `SELECT oid::regclass::text FROM pg_class
						WHERE relnamespace = 'postern'::regnamespace AND relkind = 'r' ORDER BY 1`) {
						if b.number(t,
							`SELECT count(*) FROM `+table+` t WHERE t::text ILIKE '%lovelace%'
								OR t::text ILIKE '%' || encode('lovelace', 'hex') || '%'`) > 0 {
							t.Errorf("%s: left in %s", when, table)
						}
					}
				}
				checkMirror("after the swap")
				b.rebuildAndSwap(t, b.source)
				checkMirror("after another rebuild")
				stop()
			})
		}
	}
}
