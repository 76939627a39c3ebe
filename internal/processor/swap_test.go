package processor_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/sim"
	"github.com/postern-gateway/postern/internal/versioning"
)

// While a source is swapped its live events wait, which is trouble of our own and costs them no attempt.
func TestWaitingForASwapCostsNoAttempt(t *testing.T) {
	t.Parallel()
	b := setup(t)
	p := b.processor(t, sim.Provider{}, func(s *processor.Settings) { s.ApplyTimeout = 300 * time.Millisecond })
	h := sim.Generate(rand.New(rand.NewPCG(1, 1)), kinds["event time"])
	tx, err := b.db.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `SELECT pg_advisory_xact_lock($1, $2)`, versioning.SourceLock, b.source); err != nil {
		t.Fatal(err)
	}
	first, second := message(0, h.Events[0]), message(1, h.Events[1])
	if err := p.Apply(t.Context(), events.LiveRun, []stream.Event{first}); !errors.Is(err, events.ErrUnavailable) {
		t.Errorf("beside a swap: %v", err)
	}
	if err := p.ApplyAlone(t.Context(), events.LiveRun, second); !errors.Is(err, events.ErrUnavailable) {
		t.Errorf("alone beside a swap: %v", err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, apply := range []func() error{
		func() error { return p.Apply(t.Context(), events.LiveRun, []stream.Event{first}) },
		func() error { return p.ApplyAlone(t.Context(), events.LiveRun, second) },
	} {
		if err := apply(); err != nil {
			t.Error(err)
		}
	}
	var outcomes, attempts int
	b.scan(t, `SELECT count(*) FROM outcomes WHERE status <> 'failed'`, &outcomes)
	b.scan(t, `SELECT max(attempts) FROM outcomes`, &attempts)
	if outcomes != 2 || attempts != 1 {
		t.Errorf("%d outcomes, after %d attempts", outcomes, attempts)
	}
}

// While one source is swapped the events of others go on, in the same batches; those of the swapped one are handed back without an attempt or a doubt,
// however often, and the database does not count as away.
func TestSwapHoldsUpItsSourceOnly(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	l := w.start(t, setting{tune: func(s *processor.Settings) { idle(s); s.Lanes = 2 }})
	swapped, sources := w.source, map[string]processor.Source{}
	known, err := events.RegisterSources(t.Context(), w.pool, map[string]string{"other": "sim", "third": "sim"})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"sim", "other", "third"} {
		number := known.Number[name]
		if name == "sim" {
			number = swapped
		}
		sources[name] = processor.Source{Number: number, Config: &provider.Source{Name: name}, Provider: sim.Provider{}}
	}
	l.Replace(sources)
	of := func(name string, n int) []stream.Event {
		w.source = sources[name].Number
		evs := w.append(t, w.simple(n)...)
		for i := range evs {
			evs[i].Source = name
		}
		return evs
	}
	tx, err := w.db.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"sim", "third"} {
		if _, err := tx.Exec(t.Context(), `SELECT pg_advisory_xact_lock($1, $2)`, versioning.SourceLock, sources[name].Number); err != nil {
			t.Fatal(err)
		}
	}
	held := append(of("sim", 20), of("third", 5)...)
	all := append(append([]stream.Event{}, held[:12]...), of("other", 20)...)
	mixed := w.processor(t, sim.Provider{}, nil)
	mixed.Replace(sources)
	var met *processor.SwapError
	if err := mixed.Apply(t.Context(), events.LiveRun, append(of("other", 3), held[10:]...)); !errors.As(err, &met) || len(met.Sources) != 2 {
		t.Errorf("a mixed batch: %v", err)
	}
	w.publish(t, append(all, held[12:]...)...)
	w.until(t, `SELECT count(*) FROM outcomes`, 23)
	testkit.Eventually(t, patience, func() error { // each of them more often than a suspicious one
		if n := l.metric(t, "postern_messages_handed_back_total", ""); n < 4*25+1 {
			return fmt.Errorf("%v messages were handed back", n)
		}
		return nil
	})
	w.publish(t, of("other", 20)...)
	w.until(t, `SELECT count(*) FROM outcomes`, 43)
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.until(t, `SELECT count(*) FROM outcomes`, 68)
	w.until(t, `SELECT count(*) FROM outcomes WHERE attempts > 1 OR status = 'failed'`, 0)
	w.until(t, `SELECT count(*) FROM checkpoints WHERE job = 'probe'`, 0)
}

// until waits until a number is as wanted.
func (w *world) until(t *testing.T, sql string, want int) {
	t.Helper()
	testkit.Eventually(t, patience, func() error {
		var n int
		if w.scan(t, sql, &n); n != want {
			return fmt.Errorf("%s: %d, want %d", sql, n, want)
		}
		return nil
	})
}
