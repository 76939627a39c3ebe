package processor_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/testkit/sim"
)

// addSource puts a source into the table, as a gateway does with a newer configuration.
func (b *testBundle) addSource(t *testing.T, name string) int32 {
	t.Helper()
	known, err := events.RegisterSources(t.Context(), b.pool, map[string]string{name: "sim"})
	if err != nil {
		t.Fatal(err)
	}
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
				if err := try(t, old, e); err != nil {
					t.Fatal(err)
				}
				if source, status, attempts, wait := b.shown(t, e.ID); source != name || status != "failed" || attempts != 0 || wait != time.Minute {
					t.Fatalf("%s of source %q after %d attempts, due after %s", status, source, attempts, wait)
				}
				b.due(t)
			}
			if err := try(t, b.knowing(t, name, number), e); err != nil {
				t.Fatal(err)
			}
			if source, status, attempts, _ := b.shown(t, e.ID); source != name || status != "applied" || attempts != 1 {
				t.Errorf("%s of source %q after %d attempts, want applied after 1", status, source, attempts)
			}
		})
	}
}

// Events of a source that was taken away wait, without losing an attempt, until it is there again.
func TestSourceThatIsReplaced(t *testing.T) {
	t.Parallel()
	b := setup(t)
	number := b.addSource(t, "coming")
	p := b.knowing(t, "going", b.addSource(t, "going"))
	e := thing(1, "coming")
	e.Source = "coming"
	configured := map[string]processor.Source{"coming": {Number: number, Config: &provider.Source{Name: "coming"}, Provider: sim.Provider{}}}
	for _, step := range []struct {
		sources  map[string]processor.Source
		status   string
		attempts int
	}{{nil, "failed", 0}, {configured, "applied", 1}, {nil, "applied", 1}} {
		p.Replace(step.sources)
		b.due(t)
		if err := p.Apply(t.Context(), events.LiveRun, []stream.Event{e}); err != nil {
			t.Fatal(err)
		}
		if source, status, attempts, _ := b.shown(t, e.ID); source != "coming" || status != step.status || attempts != step.attempts {
			t.Errorf("%s of source %q after %d attempts, want %s after %d", status, source, attempts, step.status, step.attempts)
		}
	}
}

// knowing is a processor whose configuration has one source.
func (b *testBundle) knowing(t *testing.T, name string, number int32) *processor.Processor {
	t.Helper()
	p, err := processor.New(processor.Options{Pool: b.pool, Settings: processor.DefaultSettings, ID: t.Name(), Logger: slog.New(slog.DiscardHandler),
		Metrics: prometheus.NewRegistry(),
		Sources: map[string]processor.Source{name: {Number: number, Config: &provider.Source{Name: name}, Provider: sim.Provider{}}}})
	if err != nil {
		t.Fatal(err)
	}
	return p
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
	if err := pass(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.take(t, len(stored), func(e stream.Event) {
		if e.Source != "newer" {
			t.Errorf("event %d was published under source %q", e.ID, e.Source)
		}
	})
}

// auditPass is the auditor of a processor that does nothing else.
func (w *world) auditPass(t *testing.T) func(context.Context) error {
	t.Helper()
	s := processor.DefaultSettings
	quick(&s)
	p, err := processor.New(processor.Options{Pool: w.pool, Conn: w.connect(t, w.nats.URL), Limits: w.limits, Settings: s, ID: t.Name(),
		Logger: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(),
		Sources: map[string]processor.Source{"sim": {Number: w.source, Config: &provider.Source{Name: "sim"}, Provider: sim.Provider{}}}})
	if err != nil {
		t.Fatal(err)
	}
	return processor.AuditPass(p)
}
