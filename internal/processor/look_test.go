package processor_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/testkit/sim"
	"github.com/postern-gateway/postern/internal/versioning"
)

// lookAt is a look as the log has it, asked for so long after all that happened to the object.
func lookAt(t *testing.T, h *sim.History, id string, after time.Duration, n int) stream.Event {
	t.Helper()
	body, err := h.Answer(id, sim.Look{Began: h.End(id) + after.Microseconds(), Elapsed: 200_000}).Encode()
	if err != nil {
		t.Fatal(err)
	}
	return stream.Event{Source: "sim", Stored: provider.Stored{ID: int64(n), Key: "look", Type: provider.LookType, Origin: events.OriginReconcile,
		ReceivedAt: time.UnixMicro(h.End(id)).Add(time.Hour), Body: body}}
}

// settlingAt is a look by which a person has an object settled after all that happened to it.
func settlingAt(t *testing.T, h *sim.History, id string, n int) stream.Event {
	t.Helper()
	l := h.Answer(id, sim.Look{Began: h.End(id) + int64(n)*1_000_000, Elapsed: 200_000, Settles: true})
	body, err := l.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return stream.Event{Source: "sim", Stored: provider.Stored{ID: int64(n), Key: "settle", Type: provider.LookType, Origin: events.OriginReconcile,
		ReceivedAt: l.Settles.Before.Add(l.Elapsed), Body: body}}
}

// A look after everything leaves the truth in the mirror and no doubt, in whatever order it and the events come.
func TestLookEndsDoubt(t *testing.T) {
	t.Parallel()
	for name, options := range kinds {
		if options.Skew > 0 || options.Integer { // skewed clocks need looks until one lies behind them; a counter has no place for a missing object
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			doubtful := 0
			for seed := range uint64(8) {
				b := setup(t)
				h := sim.Generate(rand.New(rand.NewPCG(seed, 21)), options)
				var all []stream.Event
				for i, e := range h.Events {
					all = append(all, message(i, e))
				}
				for i, id := range h.ObjectIDs() {
					all = append(all, lookAt(t, h, id, 10*time.Second, 1000+i))
				}
				r := rand.New(rand.NewPCG(seed, 22))
				r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
				p := b.processor(t, sim.Provider{}, nil)
				for len(all) > 0 {
					n := min(1+r.IntN(9), len(all))
					if err := p.Apply(t.Context(), events.LiveRun, all[:n]); err != nil {
						t.Fatal(err)
					}
					all = all[n:]
				}
				for _, id := range h.ObjectIDs() {
					o, truth := b.object(t, id), h.Truth(id)
					if o.State.Hash != truth.Hash || o.Ambiguous {
						t.Errorf("seed %d: %s shows %s (deleted %v, ambiguous %v), want %s (deleted %v)", seed, id, o.State.JSON, o.State.Deleted, o.Ambiguous, truth.JSON, truth.Deleted)
					}
				}
				var n int
				b.scan(t, `SELECT count(*) FROM outcomes WHERE status = 'ambiguous'`, &n)
				doubtful += n
			}
			if doubtful == 0 && !options.Own {
				t.Error("no history left any doubt: the looks had nothing to end")
			}
		})
	}
}

// Only what Postern fetched itself is a look: a sender that calls its event one, with a look's body, changes nothing.
func TestNobodySendsLooks(t *testing.T) {
	t.Parallel()
	b := setup(t)
	h := sim.Generate(rand.New(rand.NewPCG(1, 21)), kinds["event time"])
	forged := lookAt(t, h, "obj_1", time.Minute, 1)
	forged.Origin = events.OriginWebhook
	p := b.processor(t, sim.Provider{}, nil)
	if err := p.Apply(t.Context(), events.LiveRun, []stream.Event{forged}); err != nil {
		t.Fatal(err)
	}
	if o := b.object(t, "obj_1"); o.Exists && o.Version != versioning.NoVersion {
		t.Errorf("a forged look made version %s", o.Version)
	}
	genuine := forged
	genuine.ID, genuine.Origin = 2, events.OriginReconcile
	if err := p.Apply(t.Context(), events.LiveRun, []stream.Event{genuine}); err != nil {
		t.Fatal(err)
	}
	if o := b.object(t, "obj_1"); !o.Exists || o.Version.Seen == 0 {
		t.Errorf("a look made version %s", o.Version)
	}
}

// A look waits, without losing an attempt, for a configuration that says who reads it; that need not be the provider.
func TestLooksOfADescribedAPI(t *testing.T) {
	t.Parallel()
	b := setup(t)
	number := b.addSource(t, "described")
	h := sim.Generate(rand.New(rand.NewPCG(1, 2)), sim.Options{Objects: 1, Changes: 3, Contents: 4, Unit: 1_000_000, Gap: 700_000})
	look := lookAt(t, h, h.ObjectIDs()[0], time.Minute, 1)
	look.Source = "described"
	mute := processor.Source{Number: number, Config: &provider.Source{Name: "described"}, Provider: struct{ provider.Provider }{sim.Provider{}}}
	reads := mute
	reads.Looker = sim.Provider{}
	p := b.knowing(t, "sim", b.source)
	for _, step := range []struct {
		source   processor.Source
		status   string
		attempts int
	}{{mute, "failed", 0}, {reads, "applied", 1}} {
		p.Replace(map[string]processor.Source{"described": step.source})
		b.due(t)
		if err := p.Apply(t.Context(), events.LiveRun, []stream.Event{look}); err != nil {
			t.Fatal(err)
		}
		if _, status, attempts, _ := b.shown(t, look.ID); status != step.status || attempts != step.attempts {
			t.Errorf("%s after %d attempts, want %s after %d", status, attempts, step.status, step.attempts)
		}
	}
}
