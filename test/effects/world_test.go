package effects_test

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/postern-gateway/postern/internal/apply"
	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/effects"
	"github.com/postern-gateway/postern/internal/effects/jobs/runner"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/replay"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/applied"
	"github.com/postern-gateway/postern/internal/testkit/sim"
	"github.com/postern-gateway/postern/internal/testkit/sink"
)

// quick has settings of a runner with short intervals.
var quick = runner.Settings{PollEvery: 50 * time.Millisecond, LeaseMargin: 300 * time.Millisecond,
	ReclaimEvery: 50 * time.Millisecond, TxTimeout: 10 * time.Second, StopTimeout: time.Second,
	MetricsEvery: time.Minute}

// world is everything that a seed determines.
type world struct {
	t      *testing.T
	seed   uint64
	chance *rand.Rand
	log    *applied.Log
	dest   *testDestination
	rules  []*rule
	model  *model
	// bodies has the bodies of the events by id.
	bodies map[int64][]byte
	ids    []int64
	// replays are the processors that execute replays.
	replays []*apply.Applier
	// destinations are the names of the rules' destinations.
	destinations []string
	// timeout limits calls. margin is how much longer a lease lasts. logger receives the logs of
	// the runners. Zero values mean the defaults.
	timeout string
	margin  time.Duration
	logger  *slog.Logger
	// ownEffectsOnly means that each process knows only its own destinations, and does not reclaim
	// effects of others.
	ownEffectsOnly bool
	// crashes counts the crashed processes.
	crashes atomic.Int64
	// faults counts the requests with a fault.
	faults atomic.Int64
}

// mostFaults is the largest number of requests with a fault.
const mostFaults = 60

// history describes the objects of a world. Often two changes share a unit of the provider's clock,
// so that their order is ambiguous.
var history = sim.Options{Objects: 6, Changes: 10, Contents: 4, Unit: 3, Gap: 6, DuplicateEvents: 20, Deletes: 10}

func newWorld(t *testing.T, seed uint64, honours bool) *world {
	t.Helper()
	w := &world{destinations: []string{"here", "there"}, t: t, seed: seed, chance: rand.New(rand.NewPCG(seed, 9)),
		log: applied.New(t), dest: newTestDestination(t), bodies: map[int64][]byte{}}
	w.rules = someRules(w.chance)
	// another source of chance, so that the histories of earlier seeds stay the same
	addConditions(w.rules, rand.New(rand.NewPCG(seed, 13)))
	w.model = newModel(w.rules)
	w.dest.HonoursKeys = honours
	w.injectFaults()
	h := sim.Generate(w.chance, history)
	w.shuffle(h.Events)
	w.ids = w.log.Append(t, w.log.Source, h.Events)
	for i, id := range w.ids {
		w.bodies[id] = h.Events[i].Body
	}
	w.log.Settings.BackOff = []time.Duration{10 * time.Millisecond}
	for n := range 2 {
		p := w.applier(neverCrashes())
		w.replays = append(w.replays, p)
		w.log.StartRunner(t, fmt.Sprint("carrier ", n), 2,
			map[string]runs.Executor{replay.Job: (&replay.Runner{Pool: w.log.Pool, Applier: p, Chunk: 5,
				RetryPause: 10 * time.Millisecond}).Execute})
	}
	return w
}

// shuffle moves events in time: most a little, some a lot.
func (w *world) shuffle(all []sim.Event) {
	turn := map[string]int64{}
	for _, e := range all {
		turn[e.Key] = e.OccurredAt + int64(w.chance.IntN(6))
		if w.chance.IntN(8) == 0 {
			turn[e.Key] += int64(w.chance.IntN(30))
		}
	}
	slices.SortStableFunc(all, func(a, b sim.Event) int { return cmp.Compare(turn[a.Key], turn[b.Key]) })
}

// injectFaults makes the destination fail at random, up to a number of times.
func (w *world) injectFaults() {
	var mu sync.Mutex
	r := rand.New(rand.NewPCG(w.seed, 10))
	w.dest.NextFault = func(*http.Request) sink.Fault {
		mu.Lock()
		defer mu.Unlock()
		if w.faults.Load() == mostFaults || r.IntN(2) == 0 {
			return sink.NoFault
		}
		w.faults.Add(1)
		return sink.Fault(1 + r.IntN(sink.FaultKinds-1))
	}
}

// configured returns rules of a version, and destinations at an address.
func (w *world) configured(version int, url string) (*effects.Rules, []config.ResolvedDestination) {
	text := configuration(w.rules, w.destinations, cmp.Or(w.timeout, "400ms"), version, url)
	cfg, err := config.Parse([]byte(text), func(string) string { return "" })
	if err != nil {
		w.t.Errorf("%v\n%s", err, text)
		return nil, nil
	}
	return effects.NewRules(cfg.Rules()), cfg.ResolveDestinations()
}

// applier returns a processor with the current rules.
func (w *world) applier(m *crasher) *apply.Applier {
	w.t.Helper()
	settings := apply.DefaultSettings
	settings.BackOff, settings.Workers = []time.Duration{10 * time.Millisecond}, 2
	pool := w.log.Pool
	if m.at > 0 {
		pool = m.pool(w.t, pool)
		w.t.Cleanup(pool.Close)
	}
	p, err := apply.New(apply.Options{Pool: pool, Settings: settings,
		Logger: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(), Sources: w.log.Sources})
	must(w.t, err)
	rules, _ := w.configured(w.model.version, w.dest.url)
	p.ReplaceRules(rules)
	return p
}

// run executes effects as a process, until ctx ends or the process crashes.
func (w *world) run(ctx context.Context, id string, m *crasher) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	pool := m.pool(w.t, w.log.Pool)
	defer pool.Close()
	settings := quick
	settings.LeaseMargin = cmp.Or(w.margin, quick.LeaseMargin)
	if w.ownEffectsOnly {
		settings.ReclaimEvery = time.Hour
	}
	r := runner.New(runner.Options{Pool: pool, ID: id, Settings: settings,
		Logger: cmp.Or(w.logger, slog.New(slog.DiscardHandler))})
	r.Replace(w.configured(1, w.dest.addProcess(id, m)))
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		select {
		case <-m.crashed:
			w.crashes.Add(1)
			cancel()
		case <-ctx.Done():
		}
	}()
	if err := r.Run(ctx); err != nil {
		w.t.Error(err)
	}
	<-watched
}

// startProcesses starts a process that executes effects and restarts it after each crash. The last
// one does not crash.
func (w *world) startProcesses(name string, r *rand.Rand) {
	var crashes []*crasher
	for n := range 6 {
		m := newCrasher(1+r.IntN(80), r.IntN(2) == 0)
		if m.calls = n%2 == 0; m.calls {
			m.at = 1 + r.IntN(5)
		}
		crashes = append(crashes, m)
	}
	crashes = append(crashes, neverCrashes())
	ctx, cancel := context.WithCancel(context.WithoutCancel(w.t.Context()))
	done := make(chan struct{})
	go func() {
		defer close(done)
		for n, m := range crashes {
			if ctx.Err() == nil {
				w.run(ctx, fmt.Sprint(name, n), m)
			}
		}
	}()
	w.t.Cleanup(func() { cancel(); <-done })
}

// deliver makes two processes apply the same events concurrently, one of which may crash. Then it
// applies the remaining ones.
func (w *world) deliver(ids []int64) {
	w.t.Helper()
	ids = slices.Sorted(slices.Values(ids))
	first, second := neverCrashes(), neverCrashes()
	if w.chance.IntN(2) == 0 {
		first = newCrasher(1+w.chance.IntN(40), w.chance.IntN(2) == 0)
	}
	var both sync.WaitGroup
	for _, m := range []*crasher{first, second} {
		p := w.applier(m)
		// The result is checked below.
		both.Go(func() { _, _ = p.ApplyStored(w.t.Context(), apply.Target{}, ids, false) })
	}
	both.Wait()
	if _, err := w.applier(neverCrashes()).ApplyStored(w.t.Context(), apply.Target{}, ids, false); err != nil {
		w.t.Fatal(err)
	}
	for _, id := range ids {
		w.model.read(w.t, 0, true, id, w.bodies[id])
	}
}

// replay applies events of the log again.
func (w *world) replay(ids []int64, mode replay.Mode) {
	w.t.Helper()
	ids = slices.Compact(slices.Sorted(slices.Values(ids)))
	run, err := runs.Create(w.t.Context(), w.log.OperatorPool,
		runs.Request{Job: replay.Job, Params: replay.Params{Mode: mode, Filter: events.Filter{IDs: ids}}})
	must(w.t, err)
	w.log.WaitForRun(w.t, run, func(r *runs.Run) bool { return r.Status == runs.Done })
	for _, id := range ids {
		w.model.read(w.t, run, mode == replay.Missing, id, w.bodies[id])
	}
}

// raiseRuleVersion gives the rules a new rule_version, with which they act again.
func (w *world) raiseRuleVersion() {
	w.model.version++
	rules, _ := w.configured(w.model.version, w.dest.url)
	for _, p := range w.replays {
		p.ReplaceRules(rules)
	}
}

// someEvents returns random events of the first n.
func (w *world) someEvents(n int) (ids []int64) {
	for range 1 + w.chance.IntN(8) {
		ids = append(ids, w.ids[w.chance.IntN(n)])
	}
	return slices.Compact(slices.Sorted(slices.Values(ids)))
}

// playHistory applies the events: most in order, some only in a replay, many several times. Replays
// apply some of them again, also two concurrently, and also concurrently with the first delivery.
// The rule version is raised once.
func (w *world) playHistory() {
	w.t.Helper()
	raise, overlaps := w.chance.IntN(len(w.ids)), rand.New(rand.NewPCG(w.seed, 11))
	// used in two of three worlds, so that the histories of the others stay the same
	meets := rand.New(rand.NewPCG(w.seed, 12))
	var missed []int64
	for next := 0; next < len(w.ids); {
		n := min(1+w.chance.IntN(8), len(w.ids)-next)
		batch := slices.DeleteFunc(slices.Clone(w.ids[next:next+n]), func(id int64) bool {
			misses := w.chance.IntN(4) == 0
			if misses {
				missed = append(missed, id)
			}
			return misses
		})
		if next <= raise && raise < next+n {
			w.raiseRuleVersion()
		}
		next += n
		if w.chance.IntN(2) == 0 {
			batch = append(batch, w.someEvents(next)...)
		}
		switch {
		case w.seed%3 > 0 && meets.IntN(4) == 0:
			w.overlap(slices.Compact(slices.Sorted(slices.Values(append(batch, missed...)))), true, meets)
			missed = nil
		case len(batch) > 0:
			w.deliver(slices.Compact(slices.Sorted(slices.Values(batch))))
		}
		if w.chance.IntN(3) == 0 {
			w.replay(append(w.someEvents(next), missed...), []replay.Mode{replay.State,
				replay.Missing}[w.chance.IntN(2)])
			missed = nil
		}
		if overlaps.IntN(4) == 0 {
			w.overlap(w.appliedEvents(next, missed), false, overlaps)
		}
	}
	w.replay(w.ids, replay.Missing)
}

// appliedEvents returns the first n events without the missed ones.
func (w *world) appliedEvents(n int, missed []int64) []int64 {
	return slices.Sorted(slices.Values(slices.DeleteFunc(slices.Clone(w.ids[:n]),
		func(id int64) bool { return slices.Contains(missed, id) })))
}

// overlap makes two replays apply events concurrently, while the same events are delivered. If all
// were applied before, nothing changes and no effect follows. Effects of missed events follow once.
func (w *world) overlap(ids []int64, missed bool, r *rand.Rand) {
	w.t.Helper()
	if len(ids) == 0 {
		return
	}
	// Both replays write this table.
	hold := testkit.OpenTx(w.t, w.log.DB.Pool, `LOCK TABLE outcomes IN SHARE MODE`)
	var both []int64
	for range 2 {
		// If events were missed, all apply the same ones in the same order.
		someEvents := slices.DeleteFunc(slices.Clone(ids), func(id int64) bool {
			return !missed && id != ids[len(ids)-1] && r.IntN(4) == 0
		})
		run, err := runs.Create(w.t.Context(), w.log.OperatorPool,
			runs.Request{Job: replay.Job, Params: replay.Params{Mode: replay.Missing,
				Filter: events.Filter{IDs: someEvents}}})
		must(w.t, err)
		both = append(both, run)
	}
	testkit.Eventually(w.t, *patience, func() error {
		// A replay that has locked an object makes the other wait.
		if n := w.log.DB.QueryStrings(w.t, `SELECT count(DISTINCT pid)::text FROM pg_locks WHERE NOT granted
			AND (relation = 'outcomes'::regclass OR $1 AND database = (SELECT oid FROM pg_database
				WHERE datname = current_database()) OR $1 AND locktype = 'transactionid')`, missed)[0]; n < "2" {
			return fmt.Errorf("%s of two replays have reached their events", n)
		}
		return nil
	})
	var again sync.WaitGroup
	again.Go(func() {
		if _, err := w.applier(neverCrashes()).ApplyStored(w.t.Context(), apply.Target{}, ids,
			false); err != nil {
			w.t.Error(err)
		}
	})
	must(w.t, hold.Commit(w.t.Context()))
	again.Wait()
	for _, run := range both {
		w.log.WaitForRun(w.t, run, func(r *runs.Run) bool { return r.Status == runs.Done })
	}
	changes, before := w.model.changes, maps.Clone(w.model.effects)
	for _, id := range ids {
		w.model.read(w.t, 0, true, id, w.bodies[id])
	}
	if missed {
		w.recordPlanner(before, both)
	} else if w.model.changes != changes {
		w.t.Fatal("the model has changes from events that were applied before")
	}
	w.checkEffects()
}

// recordPlanner records in the model which replay planned each new effect. Any of them may, and so
// may the delivery.
func (w *world) recordPlanner(before map[name]wanted, replays []int64) {
	w.t.Helper()
	for _, e := range w.ledger() {
		as := name{e.rule, e.key, e.version}
		want, known := w.model.effects[as]
		if _, was := before[as]; known && !was && slices.Contains(replays, e.run) {
			want.run = e.run
			w.model.effects[as] = want
		}
	}
	w.t.Logf("%d effects of events that two replays and a delivery applied concurrently",
		len(w.model.effects)-len(before))
}
