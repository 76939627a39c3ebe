package rebuild_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/apply"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/rebuild"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/sim"
	"github.com/postern-gateway/postern/internal/versioning"
)

// renameObjects returns the events for objects with other names.
func renameObjects(evs []sim.Event, name string) []sim.Event {
	out := make([]sim.Event, len(evs))
	for i, e := range evs {
		e.Object = strings.ReplaceAll(e.Object, "obj_", name)
		e.Body = []byte(strings.ReplaceAll(string(e.Body), "obj_", name))
		out[i] = e
	}
	return out
}

// applyConcurrently applies events live in random order, some of them again, with several
// processors.
func (b *testBundle) applyConcurrently(t *testing.T, r *rand.Rand, reads provider.Provider,
	ids []int64) *sync.WaitGroup {
	t.Helper()
	work := make(chan []int64, 2*len(ids))
	r.Shuffle(len(ids), func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
	for from := 0; from < len(ids); from += 5 {
		batch := ids[from:min(from+5, len(ids))]
		work <- batch
		if r.IntN(3) == 0 {
			work <- batch
		}
	}
	close(work)
	var wg sync.WaitGroup
	for range 3 {
		p := b.applier(t, reads)
		wg.Go(func() {
			for batch := range work {
				if _, err := p.ApplyStored(t.Context(), apply.Target{}, batch, false); err != nil {
					t.Error(err)
				}
			}
		})
	}
	return &wg
}

// While live events are applied, a rebuild with a changed configuration ends in the state that the
// log gives with it. An object is never old again after it was new, and no revision decreases. Each
// revision that grows leaves one change in the outbox.
func TestRebuild_concurrentLiveEvents_endsAsTheLog(t *testing.T) {
	t.Parallel()
	for name, options := range kindsOf("partial events", "ids reused") {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, r := setupApplied(t, 11, options)
			b.exec(t, `UPDATE objects SET rule_version = 0 WHERE random() < 0.5`)
			// These are not applied when the rebuild begins. Others are appended while it stages
			// and swaps.
			late := b.append(t, r, b.source, renameObjects(sim.Generate(r, options).Events, "late_"))
			stopWatching := b.watchMirror(t)
			b.start(t, "one", changedProvider{}, quickSettings())
			b.start(t, "two", changedProvider{}, quickSettings())
			arrive := func(name string) { // new events of objects of this name
				b.applyConcurrently(t, r, changedProvider{},
					b.append(t, r, b.source, renameObjects(sim.Generate(r, options).Events, name))).Wait()
			}
			first := b.applyConcurrently(t, r, changedProvider{}, late)
			run := b.request(t, rebuild.Params{Source: b.source})
			for range 4 {
				arrive("come_")
			}
			must(t, rebuild.Swap(t.Context(), b.operator, run))
			for b.awaitRun(t, run, func(*runs.Run) bool { return true }).Status != runs.Done {
				arrive("more_")
			}
			first.Wait()
			arrive("more_")
			stopWatching()
			b.checkMirror(t, b.mirrorFromLog(t, changedProvider{}, 1000))
			if grown, announced := b.number(t, `SELECT sum(revision) FROM objects`),
				b.number(t, `SELECT sum(cardinality(ids)) FROM outbox`); grown != announced {
				t.Errorf("revisions grew %d times, but the outbox has %d changes", grown, announced)
			}
			b.checkCount(t, len(b.ids), `SELECT count(*) FROM outcomes WHERE run = 0`)
		})
	}
}

// watchMirror reads the mirror until it is stopped. An object obj_... that was read with the new
// configuration must not be read with the old one again, and no revision may decrease.
func (b *testBundle) watchMirror(t *testing.T) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		highest, isNew := map[string]int64{}, map[string]bool{}
		for ctx.Err() == nil {
			rows, err := b.operator.Query(ctx, `SELECT object_type || object_id, revision, state ? 'was'
				FROM objects WHERE (object_id !~ '[123]$' OR object_id !~ '^obj') AND state IS NOT NULL`)
			if err != nil {
				break
			}
			for rows.Next() {
				var name string
				var n int64
				var changed bool
				if err := rows.Scan(&name, &n, &changed); err != nil {
					break
				}
				if n < highest[name] || isNew[name] && !changed {
					t.Errorf("%s: revision %d after %d, in the new configuration %t", name, n, highest[name], changed)
				}
				highest[name], isNew[name] = n, changed && strings.HasPrefix(name, "thingobj_")
			}
			rows.Close()
		}
	}()
	return func() { cancel(); <-done }
}

// crashSQL makes transactions fail at their commit, as a dying server does.
const crashSQL = `
CREATE TABLE crashing (share float);
INSERT INTO crashing VALUES (0);
GRANT SELECT ON crashing TO PUBLIC;
CREATE FUNCTION crash() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF random() < (SELECT c.share FROM crashing c) THEN RAISE EXCEPTION 'the server dies' USING ERRCODE = '57P01'; END IF;
  RETURN NULL;
END $$`

// Wherever a rebuild is interrupted (at a commit, by a stop, by another process that takes the
// lease), it ends in the same mirror, once.
func TestRebuild_killedAnywhere_endsInSameMirror(t *testing.T) {
	t.Parallel()
	b, r := setupApplied(t, 12, providerKinds["ids reused"])
	want := b.mirrorFromLog(t, changedProvider{}, 1000)
	b.exec(t, `INSERT INTO staged_objects SELECT * FROM objects`) // left by another rebuild
	b.exec(t, `UPDATE staged_objects SET state = '{"left": "over"}', object_id = object_id || '_left'`)
	before := b.revisions(t)
	b.exec(t, `TRUNCATE outbox`)
	b.exec(t, crashSQL)
	for _, table := range []string{"staged_objects", "objects", "outbox", "runs", "checkpoints"} {
		b.exec(t, `CREATE CONSTRAINT TRIGGER crash_`+table+` AFTER INSERT OR UPDATE OR DELETE ON `+table+
			` DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION crash()`)
	}
	settings := quickSettings()
	settings.Chunk = 5
	run := b.request(t, rebuild.Params{Source: b.source, Swap: true})
	b.exec(t, `UPDATE crashing SET share = 0.03`)
	for i := range 12 {
		stop := b.start(t, fmt.Sprint("p", i), changedProvider{}, settings)
		began := time.Now()
		testkit.Eventually(t, maxWait, func() error {
			if time.Since(began) < time.Duration(r.IntN(300))*time.Millisecond {
				return errors.New("not yet")
			}
			return nil
		})
		if r.IntN(2) == 0 {
			b.exec(t, `UPDATE crashing SET share = 0`)
			b.exec(t, `UPDATE checkpoints SET lease_owner = 'a thief', lease_until = clock_now() WHERE job = 'rebuild'`)
			b.exec(t, `UPDATE crashing SET share = 0.03`)
		}
		stop()
	}
	b.exec(t, `UPDATE crashing SET share = 0`)
	b.start(t, "last", changedProvider{}, settings)
	ended := b.awaitRun(t, run, done)
	b.checkMirror(t, want)
	b.checkRevisions(t, before, ended)
	if n := b.number(t, `SELECT count(*) FROM outcomes WHERE run = $1`,
		run); int64(n) != ended.Counts[rebuild.Processed] || n != len(b.ids) {
		t.Errorf("%d outcomes of %d events: %v", n, len(b.ids), ended.Counts)
	}
}

// A process that has lost the lease of its run writes neither rows nor outcomes, and its event does
// not count as failed.
func TestRebuild_leaseLost_writesNothing(t *testing.T) {
	t.Parallel()
	r := newRand(t, 14)
	b := setup(t)
	ids := b.append(t, r, b.source, sim.Generate(r, providerKinds["steps"]).Events)
	run := b.request(t, rebuild.Params{Source: b.source})
	h := takeRun(t, b.pool, "slow", time.Minute, rebuild.Job)
	to := apply.Target{Run: run, Staging: &apply.Staging{Table: versioning.Staged, Guard: h.Guard}}
	must(t, errOf(b.applier(t, nil).ApplyStored(t.Context(), to, ids[:5], false)))
	must(t, rebuild.Discard(t.Context(), b.operator, run))
	before := b.tableRows(t, allColumns, "staged_objects")
	for _, single := range []bool{false, true} {
		_, err := b.applier(t, nil).ApplyStored(t.Context(), to, ids, single)
		if !errors.Is(err, runs.ErrLeaseLost) {
			t.Errorf("as single events %t: %v", single, err)
		}
	}
	if diff := cmp.Diff(before, b.tableRows(t, allColumns, "staged_objects")); diff != "" || len(before) == 0 {
		t.Errorf("%d rows: %s", len(before), diff)
	}
	b.checkCount(t, 5, `SELECT count(*) FROM outcomes WHERE run = $1`, run)
}

// Events that arrive just before a step of a swap are not lost, whether they are applied live
// before the swap or after it.
func TestSwap_eventsBeforeStep_areContained(t *testing.T) {
	t.Parallel()
	for _, step := range []string{"compare", "lock"} {
		for _, early := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, applied before the swap %t", step, early), func(t *testing.T) {
				t.Parallel()
				r := newRand(t, 16)
				b := setup(t)
				before, after := halves(sim.Generate(r, providerKinds["own version"]).Events)
				b.applyLiveShuffled(t, r, b.append(t, r, b.source, before))
				b.exec(t, `UPDATE objects SET state = '{"damaged": true}', version_at = version_at - 1
				WHERE version_at > -9223372036854775808`)
				rebuilds := b.runner(t, nil, batchesOf(1000))
				var ids []int64
				rebuild.AtStep(rebuilds, step, sync.OnceFunc(func() {
					if ids = b.append(t, r, b.source, after); early {
						b.applyLiveShuffled(t, r, ids)
					}
				}))
				b.startRunner(t, "one", rebuilds)
				if ended := b.rebuildAndSwap(t, b.source); ended.Counts[rebuild.Swapped] == 0 || len(ids) == 0 {
					t.Errorf("%d events: %v", len(ids), ended.Counts)
				}
				if !early {
					b.applyLiveShuffled(t, r, ids)
				}
				b.checkMirror(t, b.mirrorFromLog(t, nil, 1000))
			})
		}
	}
}

// gatedProvider reads no event until the gate is open.
type gatedProvider struct {
	sim.Provider
	started, gate chan struct{}
	once          *sync.Once
}

func (g gatedProvider) Observe(src *provider.Source, e *provider.StoredEvent) (provider.Observation, error) {
	g.once.Do(func() { close(g.started) })
	<-g.gate
	return g.Provider.Observe(src, e)
}

// If a process hangs while its rebuild is discarded and cleared, it leaves nothing when it
// continues.
func TestDiscard_processHangs_staysCleared(t *testing.T) {
	t.Parallel()
	b, _ := setupApplied(t, 17, providerKinds["steps"])
	g := gatedProvider{started: make(chan struct{}), gate: make(chan struct{}), once: new(sync.Once)}
	b.start(t, "one", g, quickSettings())
	run := b.request(t, rebuild.Params{Source: b.source, Swap: true})
	<-g.started
	must(t, rebuild.Discard(t.Context(), b.operator, run))
	must(t, rebuild.ClearAbandonedOnce(t.Context(), b.pool))
	close(g.gate)
	// executed by the same process, which has ended the other run
	b.stage(t)
	b.checkCount(t, 0, `SELECT count(*) FROM outcomes WHERE run = $1`, run)
}

func TestSwap_statements_fitTheSchema(t *testing.T) {
	t.Parallel()
	testkit.PrepareStatements(t, rebuild.SwapStatements())
}
