package processor_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/testkit/sim"
)

// reader is a provider that does as the test says before it reads an event, and counts the tries.
type reader struct {
	sim.Provider
	try   func(e *provider.Stored) error
	tries int
}

func (r *reader) Observe(src *provider.Source, e *provider.Stored) (provider.Observation, error) {
	r.tries++
	if r.try != nil {
		if err := r.try(e); err != nil {
			return provider.Observation{}, err
		}
	}
	return r.Provider.Observe(src, e)
}

var errNotToday = errors.New("not today")

func notToday(*provider.Stored) error { return errNotToday }

// twoWaits leave an event three attempts, each of which must be made due.
func twoWaits(s *processor.Settings) { s.BackOff = []time.Duration{time.Hour, time.Hour} }

// due makes every failure due.
func (b *testBundle) due(t *testing.T) {
	t.Helper()
	if _, err := b.db.Pool.Exec(t.Context(), `UPDATE outcomes SET due = now() - interval '1 s' WHERE status = 'failed'`); err != nil {
		t.Fatal(err)
	}
}

// alone tries an event alone, to be successful or not.
func (b *testBundle) alone(t *testing.T, p provider.Provider, e stream.Event) {
	t.Helper()
	if err := b.processor(t, p, twoWaits).ApplyAlone(t.Context(), events.LiveRun, e); err != nil {
		t.Fatal(err)
	}
}

// cancelled tries an event alone whose transaction never begins: trouble of our own.
func (b *testBundle) cancelled(t *testing.T, e stream.Event) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	p := b.processor(t, &reader{try: func(*provider.Stored) error { cancel(); return nil }}, twoWaits)
	if err := p.ApplyAlone(ctx, events.LiveRun, e); !errors.Is(err, events.ErrUnavailable) {
		t.Fatalf("a try whose transaction cannot begin says %v", err)
	}
}

// killed tries an event alone that ends whoever reads it: nothing after the reservation is done.
func (b *testBundle) killed(t *testing.T, e stream.Event) {
	p := b.processor(t, &reader{try: func(*provider.Stored) error { runtime.Goexit(); return nil }}, twoWaits)
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := p.ApplyAlone(t.Context(), events.LiveRun, e); err != nil {
			t.Errorf("the killed try ended: %v", err)
		}
	})
	wg.Wait()
}

// With two waits three tries are made, the last one too, and the dead outcome says why it failed, not that it was reserved.
func TestLastAttemptIsMade(t *testing.T) {
	t.Parallel()
	b := setup(t)
	e, r := thing(0, "e"), &reader{try: notToday}
	for range 5 {
		b.alone(t, r, e)
		b.due(t)
	}
	status, reason, attempts := b.status(t, e.ID)
	if r.tries != 3 || status != "dead" || attempts != 3 || reason != "given up after 3 attempts: not today" {
		t.Errorf("%s after %d tries, %d attempts: %q", status, r.tries, attempts, reason)
	}
}

// The last of three attempts may still be the one that succeeds.
func TestLastAttemptMaySucceed(t *testing.T) {
	t.Parallel()
	b := setup(t)
	e := thing(0, "e")
	for range 2 {
		b.alone(t, &reader{try: notToday}, e)
		b.due(t)
	}
	b.alone(t, sim.Provider{}, e)
	if status, reason, attempts := b.status(t, e.ID); status != "applied" || attempts != 3 {
		t.Errorf("%s after %d attempts: %q", status, attempts, reason)
	}
}

// Trouble of our own takes no attempt, however often, and the event is due at once.
func TestTroubleGivesTheAttemptBack(t *testing.T) {
	t.Parallel()
	b := setup(t)
	e := thing(0, "e")
	for range 5 {
		b.cancelled(t, e)
		if status, _, attempts := b.status(t, e.ID); status != "failed" || attempts != 0 {
			t.Fatalf("after trouble of our own: %s, %d attempts", status, attempts)
		}
	}
	b.alone(t, &reader{try: notToday}, e)
	b.due(t)
	b.cancelled(t, e)
	if status, reason, attempts := b.status(t, e.ID); status != "failed" || attempts != 1 || !strings.HasSuffix(reason, "not today") {
		t.Errorf("trouble after one real attempt: %s, %d attempts: %q", status, attempts, reason)
	}
	b.alone(t, sim.Provider{}, e)
	if status, _, attempts := b.status(t, e.ID); status != "applied" || attempts != 2 {
		t.Errorf("%s after %d attempts, want applied after 2", status, attempts)
	}
}

// A reservation says that it is one and keeps the reason of the attempt before, once, however many follow.
func TestReservationKeepsTheReason(t *testing.T) {
	t.Parallel()
	b := setup(t)
	e := thing(0, "e")
	b.alone(t, &reader{try: notToday}, e)
	for range 2 {
		b.due(t)
		b.killed(t, e)
		_, reason, _ := b.status(t, e.ID)
		if !strings.HasPrefix(reason, "tried alone") || !strings.HasSuffix(reason, "; before that: not today") || strings.Count(reason, "tried alone") != 1 {
			t.Errorf("the reservation says %q", reason)
		}
	}
	b.due(t)
	r := &reader{}
	b.alone(t, r, e)
	status, reason, attempts := b.status(t, e.ID)
	if r.tries != 0 || status != "dead" || attempts != 3 || !strings.HasPrefix(reason, "given up after 3 attempts: tried alone") || !strings.HasSuffix(reason, "not today") {
		t.Errorf("%s after %d attempts and %d tries more: %q", status, attempts, r.tries, reason)
	}
}
