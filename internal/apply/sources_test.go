package apply_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/apply"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/testkit/applied"
	"github.com/postern-gateway/postern/internal/testkit/sim"
)

// An event of a source that only a newer configuration contains waits for it. Its outcome has the
// source's name, and no attempt is counted.
func TestApply_sourceUnknownHere_waitsWithoutAttempt(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for name, try := range map[string]func(t *testing.T, p *apply.Applier, e stream.Event) error{
		"in a batch": func(t *testing.T, p *apply.Applier, e stream.Event) error {
			return p.Apply(t.Context(), events.LiveRun, []stream.Event{e})
		},
		"as a single event": func(t *testing.T, p *apply.Applier, e stream.Event) error {
			return p.ApplySingle(t.Context(), events.LiveRun, e)
		},
	} {
		t.Run(name, func(t *testing.T) {
			old := b.applierOfThreeAttempts(t, nil)
			b.AddSource(t, name) // after the applier was created
			e := applied.ThingEvent(len(name), name)
			e.Source = name
			for range 5 {
				must(t, try(t, old, e))
				if source, status, attempts, wait := b.mirrorOutcome(t, e.ID); source != name || status != "failed" ||
					attempts != 0 || wait != time.Minute {
					t.Fatalf("%s of source %q after %d attempts, due after %s", status, source, attempts, wait)
				}
				b.makeDue(t)
			}
			must(t, try(t, b.Applier(t, nil, name), e))
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
		"event": {applied.ThingEvent(1, "coming"), func(apply.Source) map[string]apply.Source { return nil }},
		"refetch": {refetch, func(s apply.Source) map[string]apply.Source {
			s.RefetchReader = nil
			return map[string]apply.Source{"coming": s}
		}},
	} {
		b := setup(t)
		b.AddSource(t, "coming")
		b.AddSource(t, "going")
		s := b.Sources["coming"]
		s.Provider, s.RefetchReader = struct{ provider.Provider }{sim.Provider{}}, sim.Provider{}
		p := b.Applier(t, nil, "going")
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
