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

	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/effects"
	"github.com/postern-gateway/postern/internal/effects/runner"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/replay"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/applied"
	"github.com/postern-gateway/postern/internal/testkit/sim"
	"github.com/postern-gateway/postern/internal/testkit/sink"
)

// quick are a runner's settings that nobody has to wait for.
var quick = runner.Settings{PollEvery: 50 * time.Millisecond, LeaseMargin: 300 * time.Millisecond,
	ReclaimEvery: 50 * time.Millisecond, TxTimeout: 10 * time.Second, StopTimeout: time.Second,
	MetricsEvery: time.Minute}

// world is all that a seed makes.
type world struct {
	t      *testing.T
	seed   uint64
	chance *rand.Rand
	log    *applied.Log
	other  *other
	rules  []*rule
	model  *model
	// bodies are those of events, by id.
	bodies map[int64][]byte
	ids    []int64
	// replays are what carries out replays.
	replays []*processor.Processor
	// destinations are those of the rules.
	destinations []string
	// timeout is that of calls, margin how much longer an effect stays taken, and logger what
	// processes that carry out effects tell; zero: the usual ones.
	timeout string
	margin  time.Duration
	logger  *slog.Logger
	// lonely: its processes know their own destinations alone, and leave others' effects be.
	lonely bool
	// deaths is how many processes have died.
	deaths atomic.Int64
	// lies is how many requests have met a fault.
	lies atomic.Int64
}

// mostLies is how many requests meet a fault at most.
const mostLies = 60

// life is what the objects of a world live: often twice within the provider's clock's unit, so that
// nobody knows which of two states is newer.
var life = sim.Options{Objects: 6, Changes: 10, Contents: 4, Unit: 3, Gap: 6, DuplicateEvents: 20, Deletes: 10}

func newWorld(t *testing.T, seed uint64, honours bool) *world {
	t.Helper()
	w := &world{destinations: []string{"here", "there"}, t: t, seed: seed, chance: rand.New(rand.NewPCG(seed, 9)),
		log: applied.New(t), other: newOther(t), bodies: map[int64][]byte{}}
	w.rules = someRules(w.chance)
	w.model = newModel(w.rules)
	w.other.HonoursKeys = honours
	w.lying()
	h := sim.Generate(w.chance, life)
	w.disorder(h.Events)
	w.ids = w.log.Append(t, w.log.Source, h.Events)
	for i, id := range w.ids {
		w.bodies[id] = h.Events[i].Body
	}
	w.log.BackOff = []time.Duration{10 * time.Millisecond}
	for n := range 2 {
		p := w.processor(immortal())
		w.replays = append(w.replays, p)
		w.log.StartRunner(t, fmt.Sprint("carrier ", n), 2,
			map[string]runs.Executor{replay.Job: (&replay.Runner{Pool: w.log.Pool, Processor: p, Chunk: 5,
				RetryPause: 10 * time.Millisecond}).Execute})
	}
	return w
}

// disorder has events come about in their turn, and some of them long after it.
func (w *world) disorder(all []sim.Event) {
	turn := map[string]int64{}
	for _, e := range all {
		turn[e.Key] = e.OccurredAt + int64(w.chance.IntN(6))
		if w.chance.IntN(8) == 0 {
			turn[e.Key] += int64(w.chance.IntN(30))
		}
	}
	slices.SortStableFunc(all, func(a, b sim.Event) int { return cmp.Compare(turn[a.Key], turn[b.Key]) })
}

// lying makes the other side lie as chance has it, so many times.
func (w *world) lying() {
	var mu sync.Mutex
	r := rand.New(rand.NewPCG(w.seed, 10))
	w.other.NextFault = func(*http.Request) sink.Fault {
		mu.Lock()
		defer mu.Unlock()
		if w.lies.Load() == mostLies || r.IntN(2) == 0 {
			return sink.NoFault
		}
		w.lies.Add(1)
		return sink.Fault(1 + r.IntN(sink.FaultKinds-1))
	}
}

// configured are rules of a version, and destinations at an address.
func (w *world) configured(version int, url string) (*effects.Rules, []config.ResolvedDestination) {
	text := configuration(w.rules, w.destinations, cmp.Or(w.timeout, "400ms"), version, url)
	cfg, err := config.Parse([]byte(text), func(string) string { return "" })
	if err != nil {
		w.t.Errorf("%v\n%s", err, text)
		return nil, nil
	}
	return effects.NewRules(cfg.Rules()), cfg.ResolveDestinations()
}

// processor is one with the rules of now.
func (w *world) processor(m *mortal) *processor.Processor {
	w.t.Helper()
	settings := processor.DefaultSettings
	settings.BackOff, settings.Workers = []time.Duration{10 * time.Millisecond}, 2
	pool := w.log.Pool
	if m.at > 0 {
		pool = m.pool(w.t, pool)
		w.t.Cleanup(pool.Close)
	}
	p, err := processor.New(processor.Options{Pool: pool, Settings: settings, ID: fmt.Sprintf("%p", m),
		Logger: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(), Sources: w.log.Sources})
	must(w.t, err)
	rules, _ := w.configured(w.model.version, w.other.url)
	p.ReplaceRules(rules)
	return p
}

// run carries out effects as a process until ctx ends or the process dies.
func (w *world) run(ctx context.Context, id string, m *mortal) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	pool := m.pool(w.t, w.log.Pool)
	defer pool.Close()
	settings := quick
	settings.LeaseMargin = cmp.Or(w.margin, quick.LeaseMargin)
	if w.lonely {
		settings.ReclaimEvery = time.Hour
	}
	r := runner.New(runner.Options{Pool: pool, ID: id, Settings: settings,
		Logger: cmp.Or(w.logger, slog.New(slog.DiscardHandler))})
	r.Replace(w.configured(1, w.other.reach(id, m)))
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		select {
		case <-m.died:
			w.deaths.Add(1)
			cancel()
		case <-ctx.Done():
		}
	}()
	if err := r.Run(ctx); err != nil {
		w.t.Error(err)
	}
	<-watched
}

// line is a place for a process that carries out effects: one after the other dies, and then comes
// one that does not.
func (w *world) line(name string, r *rand.Rand) {
	var deaths []*mortal
	for n := range 6 {
		m := newMortal(1+r.IntN(80), r.IntN(2) == 0)
		if m.calls = n%2 == 0; m.calls {
			m.at = 1 + r.IntN(5)
		}
		deaths = append(deaths, m)
	}
	deaths = append(deaths, immortal())
	ctx, cancel := context.WithCancel(context.WithoutCancel(w.t.Context()))
	done := make(chan struct{})
	go func() {
		defer close(done)
		for n, m := range deaths {
			if ctx.Err() == nil {
				w.run(ctx, fmt.Sprint(name, n), m)
			}
		}
	}()
	w.t.Cleanup(func() { cancel(); <-done })
}

// deliver has two processes apply the same events at once, of which one may die; what was not
// applied comes again.
func (w *world) deliver(ids []int64) {
	w.t.Helper()
	ids = slices.Sorted(slices.Values(ids))
	first, second := immortal(), immortal()
	if w.chance.IntN(2) == 0 {
		first = newMortal(1+w.chance.IntN(40), w.chance.IntN(2) == 0)
	}
	var both sync.WaitGroup
	for _, m := range []*mortal{first, second} {
		p := w.processor(m)
		// what came of it is seen below
		both.Go(func() { _, _ = p.ApplyStored(w.t.Context(), processor.Target{}, ids, false) })
	}
	both.Wait()
	if _, err := w.processor(immortal()).ApplyStored(w.t.Context(), processor.Target{}, ids, false); err != nil {
		w.t.Fatal(err)
	}
	for _, id := range ids {
		w.model.read(w.t, 0, true, id, w.bodies[id])
	}
}

// replay has events of the log applied again.
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

// bump has rules act again from now on.
func (w *world) bump() {
	w.model.version++
	rules, _ := w.configured(w.model.version, w.other.url)
	for _, p := range w.replays {
		p.ReplaceRules(rules)
	}
}

// some are events of those that were appended, drawn by chance; of those below n most.
func (w *world) some(n int) (ids []int64) {
	for range 1 + w.chance.IntN(8) {
		ids = append(ids, w.ids[w.chance.IntN(n)])
	}
	return slices.Compact(slices.Sorted(slices.Values(ids)))
}

// happens has everything happen: events arrive, most in their turn, some not before a replay, many
// again; replays go over some of them, also two at once, and at once with their first delivery; the
// rules are raised once.
func (w *world) happens() {
	w.t.Helper()
	raise, overlaps := w.chance.IntN(len(w.ids)), rand.New(rand.NewPCG(w.seed, 11))
	meets := rand.New(rand.NewPCG(w.seed, 12)) // for two of three worlds, so that the others stay what they were
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
			w.bump()
		}
		next += n
		if w.chance.IntN(2) == 0 {
			batch = append(batch, w.some(next)...)
		}
		switch {
		case w.seed%3 > 0 && meets.IntN(4) == 0:
			w.overlap(slices.Compact(slices.Sorted(slices.Values(append(batch, missed...)))), true, meets)
			missed = nil
		case len(batch) > 0:
			w.deliver(slices.Compact(slices.Sorted(slices.Values(batch))))
		}
		if w.chance.IntN(3) == 0 {
			w.replay(append(w.some(next), missed...), []replay.Mode{replay.State, replay.Missing}[w.chance.IntN(2)])
			missed = nil
		}
		if overlaps.IntN(4) == 0 {
			w.overlap(w.applied(next, missed), false, overlaps)
		}
	}
	w.replay(w.ids, replay.Missing)
}

// applied are the first n events without those that were missed.
func (w *world) applied(n int, missed []int64) []int64 {
	return slices.Sorted(slices.Values(slices.DeleteFunc(slices.Clone(w.ids[:n]),
		func(id int64) bool { return slices.Contains(missed, id) })))
}

// overlap has two replays go over events at the same moment, while these are delivered. Where all
// of them were applied nothing changes, and nothing follows, whoever is first; what was missed
// follows once, by whoever is first.
func (w *world) overlap(ids []int64, missed bool, r *rand.Rand) {
	w.t.Helper()
	if len(ids) == 0 {
		return
	}
	hold, err := w.log.DB.Pool.Begin(w.t.Context())
	must(w.t, err)
	defer func() { _ = hold.Rollback(context.WithoutCancel(w.t.Context())) }()
	if _, err := hold.Exec(w.t.Context(), `LOCK TABLE outcomes IN SHARE MODE`); err != nil { // which both write
		w.t.Fatal(err)
	}
	var both []int64
	for range 2 {
		// what was missed all apply in one order
		some := slices.DeleteFunc(slices.Clone(ids), func(id int64) bool {
			return !missed && id != ids[len(ids)-1] &&
				r.IntN(4) == 0
		})
		run, err := runs.Create(w.t.Context(), w.log.OperatorPool,
			runs.Request{Job: replay.Job, Params: replay.Params{Mode: replay.Missing,
				Filter: events.Filter{IDs: some}}})
		must(w.t, err)
		both = append(both, run)
	}
	testkit.Eventually(w.t, *patience, func() error {
		// One that has come to an object has the other wait for that.
		if n := w.log.DB.QueryStrings(w.t, `SELECT count(DISTINCT pid)::text FROM pg_locks WHERE NOT granted
			AND (relation = 'outcomes'::regclass OR $1 AND database = (SELECT oid FROM pg_database
				WHERE datname = current_database()) OR $1 AND locktype = 'transactionid')`, missed)[0]; n < "2" {
			return fmt.Errorf("%s of two replays have come to their events", n)
		}
		return nil
	})
	var again sync.WaitGroup
	again.Go(func() {
		if _, err := w.processor(immortal()).ApplyStored(w.t.Context(), processor.Target{}, ids, false); err != nil {
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
		w.first(before, both)
	} else if w.model.changes != changes {
		w.t.Fatal("the model knows of changes by events that were applied before")
	}
	w.planned()
}

// first has the model know which replays have planned what was not there before: any may, or the
// delivery.
func (w *world) first(before map[name]wanted, replays []int64) {
	w.t.Helper()
	for _, e := range w.ledger() {
		as := name{e.rule, e.key, e.version}
		want, known := w.model.effects[as]
		if _, was := before[as]; known && !was && slices.Contains(replays, e.run) {
			want.run = e.run
			w.model.effects[as] = want
		}
	}
	w.t.Logf("%d effects of what two replays and a delivery met at once", len(w.model.effects)-len(before))
}
