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

	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/rebuild"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/sim"
	"github.com/postern-gateway/postern/internal/versioning"
)

// renamed makes the events be about other objects.
func renamed(evs []sim.Event, name string) []sim.Event {
	out := make([]sim.Event, len(evs))
	for i, e := range evs {
		e.Object = strings.ReplaceAll(e.Object, "obj_", name)
		e.Body = []byte(strings.ReplaceAll(string(e.Body), "obj_", name))
		out[i] = e
	}
	return out
}

// traffic applies events live, in any order and some of them late, with several processors, until all have been applied.
func (b *testBundle) traffic(t *testing.T, r *rand.Rand, reads provider.Provider, ids []int64) *sync.WaitGroup {
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
		p := b.processor(t, reads)
		wg.Go(func() {
			for batch := range work {
				if _, err := p.ApplyStored(t.Context(), processor.Target{}, batch, false); err != nil {
					t.Error(err)
				}
			}
		})
	}
	return &wg
}

// While live events come and are applied, a rebuild under a changed rule ends in what the log makes under that rule. Whoever reads
// meanwhile sees all of the old objects or all of the new ones, and no revision falls; each that grows leaves one change.
func TestRebuildBesideLiveEvents(t *testing.T) {
	t.Parallel()
	for name, options := range kinds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := seeded(t, 11)
			b := setup(t)
			b.live(t, r, b.append(t, r, b.source, sim.Generate(r, options).Events))
			b.exec(t, `UPDATE objects SET rule_version = 0 WHERE random() < 0.5`)
			// What was not applied when the rebuild begins, and what comes while it is staged and swapped.
			late := b.append(t, r, b.source, renamed(sim.Generate(r, options).Events, "late_"))
			watching := b.watch(t)
			b.start(t, "one", otherwise{}, quick())
			b.start(t, "two", otherwise{}, quick())
			first := b.traffic(t, r, otherwise{}, late)
			run := b.ask(t, rebuild.Order{Source: b.source})
			for range 4 {
				b.traffic(t, r, otherwise{}, b.append(t, r, b.source, renamed(sim.Generate(r, options).Events, "come_"))).Wait()
			}
			must(t, rebuild.Swap(t.Context(), b.operator, run))
			for b.until(t, run, func(*runs.Run) bool { return true }).Status != runs.Done {
				b.traffic(t, r, otherwise{}, b.append(t, r, b.source, renamed(sim.Generate(r, options).Events, "more_"))).Wait()
			}
			first.Wait()
			b.traffic(t, r, otherwise{}, b.append(t, r, b.source, renamed(sim.Generate(r, options).Events, "more_"))).Wait()
			watching()
			b.shows(t, b.fold(t, otherwise{}, 1000))
			if grown, told := b.number(t, `SELECT sum(revision) FROM objects`), b.number(t, `SELECT sum(cardinality(ids)) FROM outbox`); grown != told {
				t.Errorf("revisions grew %d times and left %d changes", grown, told)
			}
			b.counts(t, len(b.ids), `SELECT count(*) FROM outcomes WHERE run = 0`)
		})
	}
}

// watch reads the mirror until it is told to stop: the objects obj_... that have a state are all read by the one rule or all by the other, and
// no revision falls.
func (b *testBundle) watch(t *testing.T) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		highest := map[string]int64{}
		for ctx.Err() == nil {
			rows, err := b.operator.Query(ctx, `SELECT object_type || object_id, revision, CASE WHEN state IS NULL THEN 0 WHEN state ? 'was' THEN 1 ELSE 2 END
				FROM objects WHERE object_id !~ '[123]$' OR object_id !~ '^obj'`)
			if err != nil {
				break
			}
			seen := map[int]int{}
			for rows.Next() {
				var name string
				var n int64
				var rule int
				if err := rows.Scan(&name, &n, &rule); err != nil {
					break
				}
				if n < highest[name] {
					t.Errorf("%s: revision %d after %d", name, n, highest[name])
				}
				if highest[name] = n; strings.HasPrefix(name, "thingobj_") {
					seen[rule]++
				}
			}
			rows.Close()
			if rows.Err() == nil && seen[1] > 0 && seen[2] > 0 {
				t.Errorf("%d objects are read by the new rule beside %d by the old one", seen[1], seen[2])
			}
		}
	}()
	return func() { cancel(); <-done }
}

// crashSQL lets transactions end at their commit, as a dying server would end them.
const crashSQL = `
CREATE TABLE crashing (share float);
INSERT INTO crashing VALUES (0);
GRANT SELECT ON crashing TO PUBLIC;
CREATE FUNCTION crash() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF random() < (SELECT c.share FROM crashing c) THEN RAISE EXCEPTION 'the server dies' USING ERRCODE = '57P01'; END IF;
  RETURN NULL;
END $$`

// Wherever a rebuild is ended (at any commit, by a stop, by another process that takes it), it ends in the same mirror, once.
func TestKilledAnywhere(t *testing.T) {
	t.Parallel()
	r := seeded(t, 12)
	b := setup(t)
	b.live(t, r, b.append(t, r, b.source, sim.Generate(r, kinds["ids reused"]).Events))
	want := b.fold(t, otherwise{}, 1000)
	b.exec(t, `INSERT INTO staged SELECT * FROM objects`) // left by another
	b.exec(t, `UPDATE staged SET state = '{"left": "over"}', object_id = object_id || '_left'`)
	before := b.revisions(t)
	b.exec(t, `TRUNCATE outbox`)
	b.exec(t, crashSQL)
	for _, table := range []string{"staged", "objects", "outbox", "runs", "checkpoints"} {
		b.exec(t, `CREATE CONSTRAINT TRIGGER crash_`+table+` AFTER INSERT OR UPDATE OR DELETE ON `+table+` DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION crash()`)
	}
	settings := quick()
	settings.Chunk = 5
	run := b.ask(t, rebuild.Order{Source: b.source, Swap: true})
	b.exec(t, `UPDATE crashing SET share = 0.03`)
	for i := range 12 {
		stop := b.start(t, fmt.Sprint("p", i), otherwise{}, settings)
		began := time.Now()
		testkit.Eventually(t, patience, func() error {
			if time.Since(began) < time.Duration(r.IntN(300))*time.Millisecond {
				return errors.New("not yet")
			}
			return nil
		})
		if r.IntN(2) == 0 {
			b.exec(t, `UPDATE crashing SET share = 0`)
			b.exec(t, `UPDATE checkpoints SET leased_by = 'a thief', leased_until = clock_now() WHERE job = 'rebuild'`)
			b.exec(t, `UPDATE crashing SET share = 0.03`)
		}
		stop()
	}
	b.exec(t, `UPDATE crashing SET share = 0`)
	b.start(t, "last", otherwise{}, settings)
	ended := b.until(t, run, done)
	b.shows(t, want)
	b.grew(t, before, ended)
	if n := b.number(t, `SELECT count(*) FROM outcomes WHERE run = $1`, run); int64(n) != ended.Counts[rebuild.Processed] || n != len(b.ids) {
		t.Errorf("%d outcomes of %d events: %v", n, len(b.ids), ended.Counts)
	}
}

// A process that has lost its run writes nothing more, neither rows nor outcomes, and its event does not count as failed.
func TestWhoHasLostTheRunWritesNothing(t *testing.T) {
	t.Parallel()
	r := seeded(t, 14)
	b := setup(t)
	ids := b.append(t, r, b.source, sim.Generate(r, kinds["steps"]).Events)
	run := b.ask(t, rebuild.Order{Source: b.source})
	h := taken(t, b.pool, "slow", time.Minute, rebuild.Job)
	to := processor.Target{Run: run, Into: versioning.Staged, Guard: h.Guard}
	must(t, errOf(b.processor(t, nil).ApplyStored(t.Context(), to, ids[:5], false)))
	must(t, rebuild.Discard(t.Context(), b.operator, run))
	before := b.table(t, whole, "staged")
	if _, err := b.processor(t, nil).ApplyStored(t.Context(), to, ids, false); !errors.Is(err, runs.ErrLost) {
		t.Errorf("%v", err)
	}
	if _, err := b.processor(t, nil).ApplyStored(t.Context(), to, ids, true); !errors.Is(err, runs.ErrLost) {
		t.Errorf("alone: %v", err)
	}
	if diff := cmp.Diff(before, b.table(t, whole, "staged")); diff != "" || len(before) == 0 {
		t.Errorf("%d rows: %s", len(before), diff)
	}
	b.counts(t, 5, `SELECT count(*) FROM outcomes WHERE run = $1`, run)
}

// A swap waits for the batches under way and holds up those that come, but not for long: then it lets them pass and tries again.
func TestSwapLetsLiveEventsPass(t *testing.T) {
	t.Parallel()
	r := seeded(t, 15)
	b := setup(t)
	ids := b.append(t, r, b.source, sim.Generate(r, kinds["steps"]).Events)
	tx := hold(t, b.db.Pool, `SELECT pg_advisory_xact_lock_shared($1, $2)`, versioning.SourceLock, b.source)
	settings := quick()
	settings.Lock = 50 * time.Millisecond
	b.start(t, "one", nil, settings)
	run := b.ask(t, rebuild.Order{Source: b.source, Swap: true})
	b.until(t, run, func(r *runs.Run) bool { return rebuild.Stage(r) == "caught up" })
	b.live(t, r, ids) // passes beside the waiting swap, or after it has given up
	b.counts(t, 1, `SELECT count(*) FROM runs WHERE status = 'running'`)
	must(t, tx.Rollback(t.Context()))
	b.until(t, run, done)

	settings.CatchUp = time.Nanosecond // never enough
	other := setup(t)
	other.live(t, r, other.append(t, r, other.source, sim.Generate(r, kinds["steps"]).Events))
	other.start(t, "one", nil, settings)
	run = other.ask(t, rebuild.Order{Source: other.source, Swap: true})
	other.until(t, run, func(r *runs.Run) bool { return rebuild.Stage(r) == "caught up" })
	other.live(t, r, other.append(t, r, other.source, renamed(sim.Generate(r, kinds["steps"]).Events, "more_")))
	must(t, runs.Change(t.Context(), other.operator, run, runs.Paused))
	other.until(t, run, func(r *runs.Run) bool { return r.Status == runs.Paused && r.HeldBy == "" })
}

// What was stored just before the lock is in the swapped objects, applied live already or not: what was would go back behind it, for good.
func TestSwapContainsWhatCameBeforeIt(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		applied bool
		keys    int
	}{{true, 0}, {true, 1000}, {false, 0}, {false, 1000}} {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			t.Parallel()
			r := seeded(t, 16)
			b := setup(t)
			h := sim.Generate(r, kinds["own version"])
			b.live(t, r, b.append(t, r, b.source, h.Events[:len(h.Events)/2]))
			settings := quick()
			settings.Keys = c.keys
			rebuilds := &rebuild.Runner{Pool: b.pool, Processor: b.processor(t, nil), Settings: settings}
			var once sync.Once
			rebuild.BeforeLock(rebuilds, func() {
				once.Do(func() {
					if ids := b.append(t, r, b.source, h.Events[len(h.Events)/2:]); c.applied {
						b.live(t, r, ids)
					}
				})
			})
			b.carry(t, "one", rebuilds)
			if ended := b.rebuilt(t, b.source); c.applied != (ended.Counts[rebuild.Swapped] == 0) || int(ended.Counts[rebuild.Processed]) != len(b.ids) {
				t.Errorf("%d events: %v", len(b.ids), ended.Counts)
			}
			b.shows(t, b.fold(t, nil, 1000))
		})
	}
}

// gated reads no event until the gate is open.
type gated struct {
	sim.Provider
	entered, gate chan struct{}
	once          *sync.Once
}

func (g gated) Observe(src *provider.Source, e *provider.Stored) (provider.Observation, error) {
	g.once.Do(func() { close(g.entered) })
	<-g.gate
	return g.Provider.Observe(src, e)
}

// A process that hangs while its rebuild is discarded and cleared leaves nothing behind when it goes on.
func TestADiscardedRebuildStaysCleared(t *testing.T) {
	t.Parallel()
	r := seeded(t, 17)
	b := setup(t)
	b.live(t, r, b.append(t, r, b.source, sim.Generate(r, kinds["steps"]).Events))
	g := gated{entered: make(chan struct{}), gate: make(chan struct{}), once: new(sync.Once)}
	b.start(t, "one", g, quick())
	run := b.ask(t, rebuild.Order{Source: b.source, Swap: true})
	<-g.entered
	must(t, rebuild.Discard(t.Context(), b.operator, run))
	must(t, rebuild.TidyOnce(t.Context(), b.pool))
	close(g.gate)
	b.until(t, b.ask(t, rebuild.Order{Source: b.source}), staged) // by the same hand, which has let go of the other
	b.counts(t, 0, `SELECT count(*) FROM outcomes WHERE run = $1`, run)
}
