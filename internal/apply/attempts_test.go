package apply_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/apply"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/testkit/applied"
	"github.com/postern-gateway/postern/internal/testkit/sim"
)

// countingProvider calls a function of the test before it reads an event, and counts the calls.
type countingProvider struct {
	sim.Provider
	before func(e *provider.StoredEvent) error
	tries  int
}

func (r *countingProvider) Observe(src *provider.Source, e *provider.StoredEvent) (provider.Observation, error) {
	r.tries++
	if r.before != nil {
		if err := r.before(e); err != nil {
			return provider.Observation{}, err
		}
	}
	return r.Provider.Observe(src, e)
}

var errTemporary = errors.New("not today")

func failTemporarily(*provider.StoredEvent) error { return errTemporary }

// applierOfThreeAttempts returns an applier that gives an event three attempts. Each must be made
// due.
func (b *testBundle) applierOfThreeAttempts(t *testing.T, p provider.Provider) *apply.Applier {
	t.Helper()
	b.Settings.BackOff = []time.Duration{time.Hour, time.Hour}
	return b.Applier(t, p)
}

// makeDue makes every failure due.
func (b *testBundle) makeDue(t *testing.T) {
	t.Helper()
	b.DB.Exec(t, `UPDATE outcomes SET due = now() - interval '1 s' WHERE status = 'failed'`)
}

// mirrorOutcome returns an event's outcome as a reader of the mirror schema sees it.
func (b *testBundle) mirrorOutcome(t *testing.T, id int64) (source, status string, attempts int, wait time.Duration) {
	t.Helper()
	err := b.DB.Pool.QueryRow(t.Context(), `SELECT source, status, attempts, coalesce(due - at, '0')
		FROM mirror.outcomes WHERE event_id = $1`, id).
		Scan(&source, &status, &attempts, &wait)
	if err != nil {
		t.Fatalf("outcome of %d in the mirror: %v", id, err)
	}
	return source, status, attempts, wait
}

// applySingle applies one event as a single event; the attempt may fail.
func (b *testBundle) applySingle(t *testing.T, p provider.Provider, e stream.Event) {
	t.Helper()
	must(t, b.applierOfThreeAttempts(t, p).ApplySingle(t.Context(), events.LiveRun, e))
}

// applyCancelled applies a single event whose transaction never begins: an infrastructure failure.
func (b *testBundle) applyCancelled(t *testing.T, e stream.Event) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	p := b.applierOfThreeAttempts(t,
		&countingProvider{before: func(*provider.StoredEvent) error { cancel(); return nil }})
	if err := p.ApplySingle(ctx, events.LiveRun, e); !errors.Is(err, events.ErrUnavailable) {
		t.Fatalf("an attempt whose transaction cannot begin: %v", err)
	}
}

// applyKilled applies a single event that ends the goroutine that reads it: nothing happens after
// the reservation.
func (b *testBundle) applyKilled(t *testing.T, e stream.Event) {
	p := b.applierOfThreeAttempts(t, &countingProvider{before: func(*provider.StoredEvent) error {
		runtime.Goexit()
		return nil
	}})
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := p.ApplySingle(t.Context(), events.LiveRun, e); err != nil {
			t.Errorf("the killed attempt ended: %v", err)
		}
	})
	wg.Wait()
}

// An infrastructure failure never counts an attempt, and the event is due at once.
func TestApplySingle_infrastructureFailure_returnsAttempt(t *testing.T) {
	t.Parallel()
	b := setup(t)
	e := applied.ThingEvent(0, "e")
	for range 5 {
		b.applyCancelled(t, e)
		if status, _, attempts := b.OutcomeOf(t, e.ID); status != "failed" || attempts != 0 {
			t.Fatalf("after an infrastructure failure: %s, %d attempts", status, attempts)
		}
	}
	b.applySingle(t, &countingProvider{before: failTemporarily}, e)
	b.makeDue(t)
	b.applyCancelled(t, e)
	if status, reason, attempts := b.OutcomeOf(t, e.ID); status != "failed" || attempts != 1 ||
		!strings.HasSuffix(reason, "not today") {
		t.Errorf("infrastructure failure after one real attempt: %s, %d attempts: %q", status, attempts, reason)
	}
	b.applySingle(t, sim.Provider{}, e)
	if status, _, attempts := b.OutcomeOf(t, e.ID); status != "applied" || attempts != 2 {
		t.Errorf("%s after %d attempts, want applied after 2", status, attempts)
	}
}

// The reason of a reservation contains the reason of the previous attempt once, even after several
// reservations.
func TestApplySingle_reservation_keepsPreviousReason(t *testing.T) {
	t.Parallel()
	b := setup(t)
	e := applied.ThingEvent(0, "e")
	b.applySingle(t, &countingProvider{before: failTemporarily}, e)
	for range 2 {
		b.makeDue(t)
		b.applyKilled(t, e)
		_, reason, _ := b.OutcomeOf(t, e.ID)
		if !strings.HasPrefix(reason, "tried alone") || !strings.HasSuffix(reason, "; before that: not today") ||
			strings.Count(reason, "tried alone") != 1 {
			t.Errorf("the reason of the reservation is %q", reason)
		}
	}
	b.makeDue(t)
	r := &countingProvider{}
	b.applySingle(t, r, e)
	status, reason, attempts := b.OutcomeOf(t, e.ID)
	if r.tries != 0 || status != "dead" || attempts != 3 || !strings.HasPrefix(reason, "given up after 3 attempts: "+
		"tried alone") || !strings.HasSuffix(reason, "not today") {
		t.Errorf("%s after %d attempts and %d further reads: %q", status, attempts, r.tries, reason)
	}
}

// An event that cannot be read or written fails alone; the others of its batch are applied.
func TestApply_unreadableEvent_failsAlone(t *testing.T) {
	t.Parallel()
	b := setup(t)
	// The database rejects one object's row.
	b.DB.Exec(t, `ALTER TABLE objects ADD CONSTRAINT refused CHECK (object_id <> 'obj_refused')`)
	p := b.Applier(t, applied.FaultyProvider{})
	want := map[string]string{"good": "applied", "panics": "failed", "fails": "failed", "dead": "dead",
		"ignored": "ignored", "longid": "dead",
		"refused": "failed", "better": "applied", "best": "applied"}
	var batch []stream.Event
	for key := range want {
		batch = append(batch, applied.ThingEvent(len(batch), key))
	}
	must(t, p.Apply(t.Context(), events.LiveRun, batch))
	for _, e := range batch {
		if status, reason, _ := b.OutcomeOf(t, e.ID); status != want[e.Key] || reason == "" && status != "applied" {
			t.Errorf("%s: %s because %q, want %s", e.Key, status, reason, want[e.Key])
		}
	}
}

// A failed event is not applied before it is due. Then it is retried, and becomes dead with its
// last attempt and that attempt's reason. A final outcome never changes.
func TestApplySingle_failsEachTime_becomesDead(t *testing.T) {
	t.Parallel()
	b := setup(t)
	e, r := applied.ThingEvent(0, "e"), &countingProvider{before: failTemporarily}
	for want := 1; want <= 3; want++ {
		for range 2 { // the second delivery arrives before the due time and counts no attempt
			b.applySingle(t, r, e)
		}
		status, reason, attempts := b.OutcomeOf(t, e.ID)
		if dead := status == "dead"; attempts != want || dead != (want == 3) {
			t.Errorf("after attempt %d: %s, %d attempts (%s)", want, status, attempts, reason)
		}
		b.makeDue(t)
	}
	b.applySingle(t, sim.Provider{}, e) // the provider can read it by now
	status, reason, attempts := b.OutcomeOf(t, e.ID)
	if r.tries != 3 || status != "dead" || attempts != 3 || reason != "given up after 3 attempts: not today" {
		t.Errorf("%s after %d reads, %d attempts: %q", status, r.tries, attempts, reason)
	}
}

// Each failed attempt waits the time that the configuration gives for it. The last one may succeed.
func TestApplySingle_failsAgain_waitsNextInterval(t *testing.T) {
	t.Parallel()
	b := setup(t)
	waits := []time.Duration{time.Minute, time.Hour, 24 * time.Hour}
	b.Settings.BackOff = waits
	p := b.Applier(t, &countingProvider{before: failTemporarily})
	e := applied.ThingEvent(0, "e")
	var got []time.Duration
	for range waits {
		must(t, p.ApplySingle(t.Context(), events.LiveRun, e))
		_, _, _, wait := b.mirrorOutcome(t, e.ID)
		got = append(got, wait)
		b.makeDue(t)
	}
	equal(t, "waits", waits, got)
	must(t, b.Applier(t, nil).ApplySingle(t.Context(), events.LiveRun, e))
	if status, reason, attempts := b.OutcomeOf(t, e.ID); status != "applied" || attempts != len(waits)+1 {
		t.Errorf("%s after %d attempts: %q", status, attempts, reason)
	}
}
