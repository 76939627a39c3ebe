package processor_test

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/testkit/sim"
)

func thing(n int, key string) stream.Event {
	h := sim.Generate(rand.New(rand.NewPCG(uint64(n), 3)), sim.Options{Objects: 1, Changes: 1, Contents: 2, Unit: 1, Gap: 10})
	e := message(n, h.Events[0])
	e.Key = key
	e.Body = []byte(strings.ReplaceAll(string(e.Body), "obj_1", "obj_"+key))
	return e
}

func (b *testBundle) status(t *testing.T, id int64) (status, reason string, attempts int) {
	t.Helper()
	err := b.db.Pool.QueryRow(t.Context(), `SELECT status, reason, attempts FROM outcomes WHERE event_id = $1 AND run = 0`, id).Scan(&status, &reason, &attempts)
	if err != nil {
		t.Fatalf("outcome of %d: %v", id, err)
	}
	return status, reason, attempts
}

// An event that cannot be read or written fails alone; its neighbours are applied.
func TestPoisonFailsAlone(t *testing.T) {
	t.Parallel()
	b := setup(t)
	// The database refuses one object's row.
	if _, err := b.db.Pool.Exec(t.Context(), `ALTER TABLE objects ADD CONSTRAINT refused CHECK (object_id <> 'obj_refused')`); err != nil {
		t.Fatal(err)
	}
	p := b.processor(t, moody{}, nil)
	want := map[string]string{"good": "applied", "panics": "failed", "fails": "failed", "dead": "dead", "ignored": "ignored", "longid": "dead",
		"refused": "failed", "better": "applied", "best": "applied"}
	var batch []stream.Event
	for key := range want {
		batch = append(batch, thing(len(batch), key))
	}
	if err := p.Apply(t.Context(), events.LiveRun, batch); err != nil {
		t.Fatal(err)
	}
	for _, e := range batch {
		if status, reason, _ := b.status(t, e.ID); status != want[e.Key] || reason == "" && status != "applied" {
			t.Errorf("%s: %s because %q, want %s", e.Key, status, reason, want[e.Key])
		}
	}
}

// A failed event is not touched before it is due, is tried again when it is, and dies after the last attempt.
func TestFailuresAreRetriedThenDead(t *testing.T) {
	t.Parallel()
	b := setup(t)
	p := b.processor(t, moody{}, func(s *processor.Settings) { s.BackOff = []time.Duration{time.Hour, time.Hour} })
	e := thing(0, "fails")
	for want := 1; want <= 3; want++ {
		for range 2 { // the second copy arrives before the due time and burns no attempt
			if err := p.ApplyAlone(t.Context(), events.LiveRun, e); err != nil {
				t.Fatal(err)
			}
		}
		status, reason, attempts := b.status(t, e.ID)
		if dead := status == "dead"; attempts != want || dead != (want == 3) {
			t.Errorf("after attempt %d: %s, %d attempts (%s)", want, status, attempts, reason)
		}
		if _, err := b.db.Pool.Exec(t.Context(), `UPDATE outcomes SET due = now() - interval '1 s' WHERE status = 'failed'`); err != nil {
			t.Fatal(err)
		}
	}
	// Mended meanwhile: nothing final is ever changed.
	if err := b.processor(t, sim.Provider{}, nil).ApplyAlone(t.Context(), events.LiveRun, e); err != nil {
		t.Fatal(err)
	}
	if status, _, _ := b.status(t, e.ID); status != "dead" {
		t.Errorf("a dead outcome became %s", status)
	}
}

func TestFailureMendedIsApplied(t *testing.T) {
	t.Parallel()
	b := setup(t)
	e := thing(0, "fails")
	if err := b.processor(t, moody{}, func(s *processor.Settings) { s.BackOff = []time.Duration{0} }).Apply(t.Context(), events.LiveRun, []stream.Event{e}); err != nil {
		t.Fatal(err)
	}
	if err := b.processor(t, sim.Provider{}, nil).ApplyAlone(t.Context(), events.LiveRun, e); err != nil {
		t.Fatal(err)
	}
	if status, _, attempts := b.status(t, e.ID); status != "applied" || attempts != 2 {
		t.Errorf("%s after %d attempts", status, attempts)
	}
}

// An event that ends the process before any outcome is committed still runs out of attempts: each is committed before the try.
func TestAttemptIsCommittedBeforeTheTry(t *testing.T) {
	t.Parallel()
	b := setup(t)
	e := thing(0, "kills")
	p := b.processor(t, killer{t: t, b: b}, func(s *processor.Settings) { s.BackOff = []time.Duration{time.Hour} })
	if err := p.ApplyAlone(t.Context(), events.LiveRun, e); err != nil {
		t.Fatal(err)
	}
}

// killer looks, at the moment in which an event would end the process, at what is committed by then.
type killer struct {
	sim.Provider
	t *testing.T
	b *testBundle
}

func (k killer) Observe(src *provider.Source, e *provider.Stored) (provider.Observation, error) {
	if status, _, attempts := k.b.status(k.t, e.ID); status != "failed" || attempts != 1 {
		k.t.Errorf("before the try: %s, %d attempts", status, attempts)
	}
	return k.Provider.Observe(src, e)
}
