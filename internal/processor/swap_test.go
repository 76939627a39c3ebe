package processor_test

import (
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/testkit/sim"
	"github.com/postern-gateway/postern/internal/versioning"
)

// While a source is swapped its live events wait, which is trouble of our own and costs them no attempt.
func TestWaitingForASwapCostsNoAttempt(t *testing.T) {
	t.Parallel()
	b := setup(t)
	p := b.processor(t, sim.Provider{}, func(s *processor.Settings) { s.ApplyTimeout = 300 * time.Millisecond })
	h := sim.Generate(rand.New(rand.NewPCG(1, 1)), kinds["event time"])
	tx, err := b.pool.Begin(t.Context())
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
