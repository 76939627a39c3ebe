package processor_test

import (
	"context"
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
	must(t, err)
	return stream.Event{Source: "sim", Stored: provider.Stored{ID: int64(n), Key: "look", Type: provider.LookType, Origin: events.OriginReconcile,
		ReceivedAt: time.UnixMicro(h.End(id)).Add(time.Hour), Body: body}}
}

// settlingAt is a look by which a person has an object settled after all that happened to it.
func settlingAt(t *testing.T, h *sim.History, id string, n int) stream.Event {
	t.Helper()
	l := h.Answer(id, sim.Look{Began: h.End(id) + int64(n)*1_000_000, Elapsed: 200_000, Settles: true})
	body, err := l.Encode()
	must(t, err)
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
				all := messages(h)
				for i, id := range h.ObjectIDs() {
					all = append(all, lookAt(t, h, id, 10*time.Second, 1000+i))
				}
				r := rand.New(rand.NewPCG(seed, 22))
				r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
				inBatches(t, b.processor(t, sim.Provider{}, nil), all, r)
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
	must(t, p.Apply(t.Context(), events.LiveRun, []stream.Event{forged}))
	if o := b.object(t, "obj_1"); o.Exists && o.Version != versioning.NoVersion {
		t.Errorf("a forged look made version %s", o.Version)
	}
	genuine := forged
	genuine.ID, genuine.Origin = 2, events.OriginReconcile
	must(t, p.Apply(t.Context(), events.LiveRun, []stream.Event{genuine}))
	if o := b.object(t, "obj_1"); !o.Exists || o.Version.Seen == 0 {
		t.Errorf("a look made version %s", o.Version)
	}
}

// addSource puts a source into the table, as a gateway does with a newer configuration.
func (b *testBundle) addSource(t *testing.T, name string) int32 {
	t.Helper()
	known, err := events.RegisterSources(t.Context(), b.pool, map[string]string{name: "sim"})
	must(t, err)
	return known.Number[name]
}

// shown is what the mirror's reader sees of an event's outcome.
func (b *testBundle) shown(t *testing.T, id int64) (source, status string, attempts int, wait time.Duration) {
	t.Helper()
	err := b.db.Pool.QueryRow(t.Context(), `SELECT source, status, attempts, coalesce(due - at, '0') FROM mirror.outcomes WHERE event_id = $1`, id).
		Scan(&source, &status, &attempts, &wait)
	if err != nil {
		t.Fatalf("outcome of %d in the mirror: %v", id, err)
	}
	return source, status, attempts, wait
}

// An event of a source that only a newer configuration knows waits for it, visible under its source's name, and loses no attempt.
func TestSourceOfANewerConfiguration(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for name, try := range map[string]func(t *testing.T, p *processor.Processor, e stream.Event) error{
		"together": func(t *testing.T, p *processor.Processor, e stream.Event) error {
			return p.Apply(t.Context(), events.LiveRun, []stream.Event{e})
		},
		"alone": func(t *testing.T, p *processor.Processor, e stream.Event) error {
			return p.ApplyAlone(t.Context(), events.LiveRun, e)
		},
	} {
		t.Run(name, func(t *testing.T) {
			old := b.processor(t, sim.Provider{}, twoWaits)
			number := b.addSource(t, name) // after the processor was made
			e := thing(len(name), name)
			e.Source = name
			for range 5 {
				must(t, try(t, old, e))
				if source, status, attempts, wait := b.shown(t, e.ID); source != name || status != "failed" || attempts != 0 || wait != time.Minute {
					t.Fatalf("%s of source %q after %d attempts, due after %s", status, source, attempts, wait)
				}
				b.due(t)
			}
			must(t, try(t, b.knowing(t, name, number), e))
			if source, status, attempts, _ := b.shown(t, e.ID); source != name || status != "applied" || attempts != 1 {
				t.Errorf("%s of source %q after %d attempts, want applied after 1", status, source, attempts)
			}
		})
	}
}

// An event waits, without losing an attempt, for a configuration that has its source again; a look
// waits for one that says who reads it, which need not be the provider.
func TestSourceThatIsReplaced(t *testing.T) {
	t.Parallel()
	h := sim.Generate(rand.New(rand.NewPCG(1, 2)), sim.Options{Objects: 1, Changes: 3, Contents: 4, Unit: 1_000_000, Gap: 700_000})
	look := lookAt(t, h, h.ObjectIDs()[0], time.Minute, 1)
	for name, c := range map[string]struct {
		event stream.Event
		// without is what the source lacks before it can be read.
		without func(s processor.Source) map[string]processor.Source
	}{
		"event": {thing(1, "coming"), func(processor.Source) map[string]processor.Source { return nil }},
		"look": {look, func(s processor.Source) map[string]processor.Source {
			s.Looker = nil
			return map[string]processor.Source{"coming": s}
		}},
	} {
		b := setup(t)
		s := source("coming", b.addSource(t, "coming"))
		s.Provider, s.Looker = struct{ provider.Provider }{sim.Provider{}}, sim.Provider{}
		p := b.knowing(t, "going", b.addSource(t, "going"))
		c.event.Source = "coming"
		lacks, whole := c.without(s), map[string]processor.Source{"coming": s}
		for _, step := range []struct {
			sources  map[string]processor.Source
			status   string
			attempts int
		}{{lacks, "failed", 0}, {whole, "applied", 1}, {lacks, "applied", 1}} {
			p.Replace(step.sources)
			b.due(t)
			must(t, p.Apply(t.Context(), events.LiveRun, []stream.Event{c.event}))
			source, status, attempts, _ := b.shown(t, c.event.ID)
			if source != "coming" || status != step.status || attempts != step.attempts {
				t.Errorf("%s: %s of source %q after %d attempts, want %s after %d", name, status, source, attempts,
					step.status, step.attempts)
			}
		}
	}
}

// knowing is a processor whose configuration has one source.
func (b *testBundle) knowing(t *testing.T, name string, number int32) *processor.Processor {
	t.Helper()
	o := b.options(t, sim.Provider{})
	o.Sources = map[string]processor.Source{name: source(name, number)}
	return made(t, o)
}

// source is one of several as a processor knows it.
func source(name string, number int32) processor.Source {
	return processor.Source{Number: number, Config: &provider.Source{Name: name}, Provider: sim.Provider{}}
}

// The auditor publishes what it does not know under its name, so that a processor which does can apply it.
func TestAuditorNamesNewSources(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	pass := w.auditPass(t)
	number, known := w.addSource(t, "newer"), w.source
	w.source = number
	stored := w.append(t, w.simple(3)...)
	w.source = known
	must(t, pass(t.Context()))
	w.take(t, len(stored), func(e stream.Event) {
		if e.Source != "newer" {
			t.Errorf("event %d was published under source %q", e.ID, e.Source)
		}
	})
}

// auditPass is the auditor of a processor that does nothing else.
func (w *world) auditPass(t *testing.T) func(context.Context) error {
	t.Helper()
	o := w.options(t, sim.Provider{})
	quick(&o.Settings)
	o.Conn, o.Limits = w.connect(t, w.nats.URL), w.limits
	return processor.AuditPass(made(t, o))
}
