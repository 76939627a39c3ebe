package processor_test

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/apply"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/testkit/sim"
	"github.com/postern-gateway/postern/internal/versioning"
)

// refetchAt is a stored refetch that was started some time after all changes of the object.
func refetchAt(t *testing.T, h *sim.History, id string, after time.Duration, n int) stream.Event {
	t.Helper()
	body, err := h.StoredRefetch(id, sim.Refetch{Began: h.LastChangeAt(id) + after.Microseconds(),
		Elapsed: 200_000}).Encode()
	must(t, err)
	return stream.Event{Source: "sim", StoredEvent: provider.StoredEvent{ID: int64(n), Key: "refetch",
		Type: provider.RefetchType, Origin: events.OriginReconcile,
		ReceivedAt: time.UnixMicro(h.LastChangeAt(id)).Add(time.Hour), Body: body}}
}

// overwriteAt is a refetch by which an operator overwrites an object after all of its changes.
func overwriteAt(t *testing.T, h *sim.History, id string, n int) stream.Event {
	t.Helper()
	refetch := h.StoredRefetch(id, sim.Refetch{Began: h.LastChangeAt(id) + int64(n)*1_000_000, Elapsed: 200_000,
		Overwrites: true})
	body, err := refetch.Encode()
	must(t, err)
	return stream.Event{Source: "sim", StoredEvent: provider.StoredEvent{ID: int64(n), Key: "overwrite",
		Type: provider.RefetchType, Origin: events.OriginReconcile,
		ReceivedAt: refetch.Overwrite.Before.Add(refetch.Elapsed), Body: body}}
}

// A refetch after all changes leaves the true state in the mirror and no ambiguity, whatever the
// order of the refetch and the events.
func TestApply_refetch_endsAmbiguity(t *testing.T) {
	t.Parallel()
	for name, options := range providerKinds {
		// skewed clocks need several refetches; a counter has no version for a missing object
		if options.Skew > 0 || options.VersionIsCounter {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ambiguous := 0
			for seed := range uint64(8) {
				b := setup(t)
				h := sim.Generate(rand.New(rand.NewPCG(seed, 21)), options)
				all := messages(h)
				for i, id := range h.ObjectIDs() {
					all = append(all, refetchAt(t, h, id, 10*time.Second, 1000+i))
				}
				r := rand.New(rand.NewPCG(seed, 22))
				r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
				inBatches(t, b.processor(t, sim.Provider{}, nil), all, r)
				for _, id := range h.ObjectIDs() {
					o, truth := b.object(t, id), h.FinalState(id)
					if o.State.Hash != truth.Hash || o.Ambiguous {
						t.Errorf("seed %d: %s shows %s (deleted %v, ambiguous %v), want %s (deleted %v)", seed, id,
							o.State.JSON, o.State.Deleted, o.Ambiguous, truth.JSON, truth.Deleted)
					}
				}
				var n int
				b.scan(t, `SELECT count(*) FROM outcomes WHERE status = 'ambiguous'`, &n)
				ambiguous += n
			}
			if ambiguous == 0 && !options.ObjectVersions {
				t.Error("no history left an ambiguity: the refetches had nothing to end")
			}
		})
	}
}

// Only Postern itself makes refetches: an event of a sender with the type and body of a refetch
// changes nothing.
func TestApply_refetchFromSender_isIgnored(t *testing.T) {
	t.Parallel()
	b := setup(t)
	h := sim.Generate(rand.New(rand.NewPCG(1, 21)), providerKinds["event time"])
	forged := refetchAt(t, h, "obj_1", time.Minute, 1)
	forged.Origin = events.OriginWebhook
	p := b.processor(t, sim.Provider{}, nil)
	must(t, p.Apply(t.Context(), events.LiveRun, []stream.Event{forged}))
	if o := b.object(t, "obj_1"); o.Exists && o.Version != versioning.NoVersion {
		t.Errorf("a forged refetch made version %s", o.Version)
	}
	genuine := forged
	genuine.ID, genuine.Origin = 2, events.OriginReconcile
	must(t, p.Apply(t.Context(), events.LiveRun, []stream.Event{genuine}))
	if o := b.object(t, "obj_1"); !o.Exists || o.Version.Seen == 0 {
		t.Errorf("a refetch made version %s", o.Version)
	}
}

// addSource inserts a source into the table, as a gateway with a newer configuration does.
func (b *testBundle) addSource(t *testing.T, name string) int32 {
	t.Helper()
	known, err := events.RegisterSources(t.Context(), b.pool, map[string]string{name: "sim"})
	must(t, err)
	return known.Number[name]
}

// mirrorOutcome returns an event's outcome as a reader of the mirror schema sees it.
func (b *testBundle) mirrorOutcome(t *testing.T, id int64) (source, status string, attempts int, wait time.Duration) {
	t.Helper()
	err := b.db.Pool.QueryRow(t.Context(), `SELECT source, status, attempts, coalesce(due - at, '0')
		FROM mirror.outcomes WHERE event_id = $1`, id).
		Scan(&source, &status, &attempts, &wait)
	if err != nil {
		t.Fatalf("outcome of %d in the mirror: %v", id, err)
	}
	return source, status, attempts, wait
}

// An event of a source that only a newer configuration contains waits for it. Its outcome has the
// source's name, and no attempt is counted.
func TestApply_sourceUnknownHere_waitsWithoutAttempt(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for name, try := range map[string]func(t *testing.T, p *processor.Processor, e stream.Event) error{
		"in a batch": func(t *testing.T, p *processor.Processor, e stream.Event) error {
			return p.Apply(t.Context(), events.LiveRun, []stream.Event{e})
		},
		"as a single event": func(t *testing.T, p *processor.Processor, e stream.Event) error {
			return p.ApplySingle(t.Context(), events.LiveRun, e)
		},
	} {
		t.Run(name, func(t *testing.T) {
			old := b.processor(t, sim.Provider{}, threeAttempts)
			number := b.addSource(t, name) // after the processor was created
			e := thingEvent(len(name), name)
			e.Source = name
			for range 5 {
				must(t, try(t, old, e))
				if source, status, attempts, wait := b.mirrorOutcome(t, e.ID); source != name || status != "failed" ||
					attempts != 0 || wait != time.Minute {
					t.Fatalf("%s of source %q after %d attempts, due after %s", status, source, attempts, wait)
				}
				b.makeDue(t)
			}
			must(t, try(t, b.processorOf(t, name, number), e))
			if source, status, attempts, _ := b.mirrorOutcome(t, e.ID); source != name || status != "applied" ||
				attempts != 1 {
				t.Errorf("%s of source %q after %d attempts, want applied after 1", status, source, attempts)
			}
		})
	}
}

// An event waits, without losing an attempt, for a configuration that contains its source again. A
// refetch waits for one with a reader of refetches, which need not be the provider.
func TestReplace_sourceAddedLater_appliesWaitingEvents(t *testing.T) {
	t.Parallel()
	h := sim.Generate(rand.New(rand.NewPCG(1, 2)), sim.Options{Objects: 1, Changes: 3, Contents: 4, Unit: 1_000_000,
		Gap: 700_000})
	refetch := refetchAt(t, h, h.ObjectIDs()[0], time.Minute, 1)
	for name, c := range map[string]struct {
		event stream.Event
		// without returns the sources without the part that is needed to read the event.
		without func(s apply.Source) map[string]apply.Source
	}{
		"event": {thingEvent(1, "coming"), func(apply.Source) map[string]apply.Source { return nil }},
		"refetch": {refetch, func(s apply.Source) map[string]apply.Source {
			s.RefetchReader = nil
			return map[string]apply.Source{"coming": s}
		}},
	} {
		b := setup(t)
		s := source("coming", b.addSource(t, "coming"))
		s.Provider, s.RefetchReader = struct{ provider.Provider }{sim.Provider{}}, sim.Provider{}
		p := b.processorOf(t, "going", b.addSource(t, "going"))
		c.event.Source = "coming"
		incomplete, complete := c.without(s), map[string]apply.Source{"coming": s}
		for _, step := range []struct {
			sources  map[string]apply.Source
			status   string
			attempts int
		}{{incomplete, "failed", 0}, {complete, "applied", 1}, {incomplete, "applied", 1}} {
			p.Replace(step.sources)
			b.makeDue(t)
			must(t, p.Apply(t.Context(), events.LiveRun, []stream.Event{c.event}))
			source, status, attempts, _ := b.mirrorOutcome(t, c.event.ID)
			if source != "coming" || status != step.status || attempts != step.attempts {
				t.Errorf("%s: %s of source %q after %d attempts, want %s after %d", name, status, source, attempts,
					step.status, step.attempts)
			}
		}
	}
}

// processorOf is a processor whose configuration has one source.
func (b *testBundle) processorOf(t *testing.T, name string, number int32) *processor.Processor {
	t.Helper()
	o := b.options(t, sim.Provider{})
	o.Sources = map[string]apply.Source{name: source(name, number)}
	return newProcessor(t, o)
}

// source is a source as a processor needs it.
func source(name string, number int32) apply.Source {
	return apply.Source{Number: number, Config: &provider.Source{Name: name}, Provider: sim.Provider{}}
}

// The republisher publishes events of a source that it does not know under the source's name, so
// that a processor that knows it can apply them.
func TestRepublisher_sourceAddedLater_publishesUnderItsName(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	pass := w.republishPass(t)
	number, previous := w.addSource(t, "newer"), w.source
	w.source = number
	stored := w.append(t, w.newObjects(3)...)
	w.source = previous
	must(t, pass(t.Context()))
	w.consumeWithoutAck(t, len(stored), func(e stream.Event) {
		if e.Source != "newer" {
			t.Errorf("event %d was published under source %q", e.ID, e.Source)
		}
	})
}

// republishPass returns the pass function of a processor that does nothing else.
func (w *world) republishPass(t *testing.T) func(context.Context) error {
	t.Helper()
	o := w.options(t, sim.Provider{})
	quickSettings(&o.Settings)
	o.Conn, o.Limits = w.connect(t, w.nats.URL), w.limits
	return processor.RepublishPass(newProcessor(t, o))
}
