package processor_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/testkit/sim"
)

// watched is a processor with what it tells of itself.
type watched struct {
	*processor.Processor
	registry *prometheus.Registry
	spans    *tracetest.SpanRecorder
	tracer   trace.Tracer
	log      *bytes.Buffer
}

func (b *testBundle) watched(t *testing.T, p provider.Provider, level slog.Level) *watched {
	t.Helper()
	w := &watched{registry: prometheus.NewRegistry(), spans: tracetest.NewSpanRecorder(), log: &bytes.Buffer{}}
	w.tracer = sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(w.spans)).Tracer("test")
	var err error
	w.Processor, err = processor.New(processor.Options{Pool: b.pool, Settings: processor.DefaultSettings, ID: t.Name(), Metrics: w.registry, Tracer: w.tracer,
		Logger:  slog.New(slog.NewJSONHandler(w.log, &slog.HandlerOptions{Level: level})),
		Sources: map[string]processor.Source{"sim": {Number: b.source, Config: &provider.Source{Name: "sim"}, Provider: p}}})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// family is a metric as it is now.
func (w *watched) family(t *testing.T, name string) *dto.MetricFamily {
	t.Helper()
	families, err := w.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			return f
		}
	}
	t.Fatalf("no metric %s", name)
	return nil
}

func (w *watched) count(t *testing.T, name, label string) int {
	t.Helper()
	for _, m := range w.family(t, name).GetMetric() {
		if m.GetLabel()[0].GetValue() == label {
			return int(m.GetCounter().GetValue())
		}
	}
	t.Fatalf("%s has no %s", name, label)
	return 0
}

// named are the spans of a name that have ended.
func (w *watched) named(name string) (found []sdktrace.ReadOnlySpan) {
	for _, s := range w.spans.Ended() {
		if s.Name() == name {
			found = append(found, s)
		}
	}
	return found
}

func attributeOf(s sdktrace.ReadOnlySpan, name string) string {
	for _, a := range s.Attributes() {
		if string(a.Key) == name {
			return a.Value.String()
		}
	}
	return ""
}

// traced gives an event a trace, as the gateway does.
func (w *watched) traced(e stream.Event) (stream.Event, trace.SpanContext) {
	_, span := w.tracer.Start(context.Background(), "post")
	span.End()
	sc := span.SpanContext()
	e.Trace = "00-" + sc.TraceID().String() + "-" + sc.SpanID().String() + "-01"
	return e, sc
}

func TestSpansOfABatch(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.watched(t, moody{}, slog.LevelInfo)
	good, posted := w.traced(thing(1, "good"))
	dead, _ := w.traced(thing(2, "dead"))
	if err := w.Apply(t.Context(), events.LiveRun, []stream.Event{good, dead, thing(3, "better")}); err != nil {
		t.Fatal(err)
	}
	batches, applied := w.named("apply batch"), w.named("apply")
	if len(batches) != 1 || len(batches[0].Links()) != 2 || attributeOf(batches[0], "postern.events") != "3" || batches[0].Parent().IsValid() {
		t.Fatalf("batches %v", batches)
	}
	if len(applied) != 2 {
		t.Fatalf("%d events have a span, want the two that are traced", len(applied))
	}
	first := applied[0]
	if first.Parent().SpanID() != posted.SpanID() || first.SpanContext().TraceID() != posted.TraceID() {
		t.Errorf("the span's parent is %v, want %v", first.Parent(), posted)
	}
	for name, want := range map[string]string{"postern.outcome": "applied", "postern.object_type": "thing", "postern.revision": "1", "postern.source": "sim"} {
		if got := attributeOf(first, name); got != want {
			t.Errorf("%s = %q, want %q", name, got, want)
		}
	}
	if got := attributeOf(applied[1], "postern.outcome"); got != "dead" {
		t.Errorf("the other's outcome is %q", got)
	}

	// What nobody traces makes no spans.
	if err := w.Apply(t.Context(), events.LiveRun, []stream.Event{thing(4, "best")}); err != nil {
		t.Fatal(err)
	}
	if n := len(w.named("apply batch")); n != 1 {
		t.Errorf("%d batches have a span", n)
	}
}

// An event whose body is read from the log keeps its trace.
func TestSpanOfALargeEvent(t *testing.T) {
	t.Parallel()
	world := newWorld(t, nil)
	w := world.watched(t, sim.Provider{}, slog.LevelError)
	e, posted := w.traced(world.append(t, world.simple(1)...)[0])
	e.Body, e.BodyInLog = nil, true
	if err := w.Apply(t.Context(), events.LiveRun, []stream.Event{e}); err != nil {
		t.Fatal(err)
	}
	applied := w.named("apply")
	if len(applied) != 1 || applied[0].SpanContext().TraceID() != posted.TraceID() || attributeOf(applied[0], "postern.outcome") != "applied" {
		t.Errorf("spans %v", applied)
	}
}

// A transaction that is rolled back has its span, and its events have theirs once, when they are committed.
func TestSpansOfARollback(t *testing.T) {
	t.Parallel()
	b := setup(t)
	if _, err := b.db.Pool.Exec(t.Context(), `ALTER TABLE objects ADD CONSTRAINT refused CHECK (object_id <> 'obj_refused')`); err != nil {
		t.Fatal(err)
	}
	w := b.watched(t, moody{}, slog.LevelInfo)
	good, _ := w.traced(thing(1, "good"))
	refused, _ := w.traced(thing(2, "refused"))
	if err := w.Apply(t.Context(), events.LiveRun, []stream.Event{good, refused}); err != nil {
		t.Fatal(err)
	}
	failures := 0
	for _, s := range w.named("apply batch") {
		if s.Status().Code == codes.Error {
			failures++
		}
		if strings.Contains(s.Status().Description, "obj_") || len(s.Events()) > 0 {
			t.Errorf("the span tells what the event says: %v %v", s.Status(), s.Events())
		}
	}
	if failures != 2 || len(w.named("apply batch")) != 4 { // together; one; the other; that as failed
		t.Errorf("%d of %d batches failed, want 2 of 4", failures, len(w.named("apply batch")))
	}
	if n := len(w.named("apply")); n != 2 {
		t.Errorf("%d events have a span, want 2", n)
	}
}

// What the metrics say of doubt is what the mirror says.
func TestDoubtsAreCounted(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.watched(t, sim.Provider{}, slog.LevelError)
	h := sim.Generate(rand.New(rand.NewPCG(4, 4)), kinds["event time"])
	for i, e := range h.Events {
		for range 2 { // and once more, which changes nothing
			if err := w.Apply(t.Context(), events.LiveRun, []stream.Event{message(i, e)}); err != nil {
				t.Fatal(err)
			}
		}
	}
	var ambiguous, owing int
	b.scan(t, `SELECT count(*) FILTER (WHERE ambiguous), count(*) FILTER (WHERE look_after <> 0) FROM objects`, &ambiguous, &owing)
	const name = "postern_object_doubts_total"
	became, settled, owed := w.count(t, name, "ambiguous"), w.count(t, name, "settled"), w.count(t, name, "look_owed")
	if became == 0 || settled == 0 || became-settled != ambiguous || owed < owing || owing == 0 {
		t.Errorf("%d became ambiguous, %d were settled, %d are; %d came to owe a look, %d do", became, settled, ambiguous, owed, owing)
	}
	if n := int(w.family(t, "postern_apply_lag_seconds").GetMetric()[0].GetHistogram().GetSampleCount()); n != len(h.Events) {
		t.Errorf("the lag of %d events is counted, want each of %d once", n, len(h.Events))
	}
}

// One line per batch: at info what came of it, at debug that nothing did.
func TestOneLinePerBatch(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.watched(t, moody{}, slog.LevelDebug)
	batch := []stream.Event{thing(1, "good"), thing(2, "ignored"), thing(3, "better")}
	batch[0].ReceivedAt = time.Now().Add(-time.Hour)
	for range 2 {
		if err := w.Apply(t.Context(), events.LiveRun, batch); err != nil {
			t.Fatal(err)
		}
	}
	type line struct {
		Level, Msg       string
		Events           int
		Applied, Ignored int
		SettledBefore    int     `json:"settled_before"`
		Lag              float64 `json:"lag_ms"`
		Duration         float64 `json:"duration_ms"`
	}
	var lines []line
	for dec := json.NewDecoder(w.log); dec.More(); {
		var l line
		if err := dec.Decode(&l); err != nil {
			t.Fatal(err)
		}
		lines = append(lines, l)
	}
	if len(lines) != 2 {
		t.Fatalf("%d lines: %+v", len(lines), lines)
	}
	if l := lines[0]; l.Level != "INFO" || l.Events != 3 || l.Applied != 2 || l.Ignored != 1 || l.Lag < 3.6e6 || l.Duration <= 0 || l.SettledBefore != 0 {
		t.Errorf("first %+v", l)
	}
	if l := lines[1]; l.Level != "DEBUG" || l.Events != 3 || l.Applied != 0 || l.SettledBefore != 3 {
		t.Errorf("again %+v", l)
	}
}

// What is left to do is read from the tables, and is not known while they cannot be read.
func TestBacklogIsTold(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.watched(t, moody{}, slog.LevelError)
	if err := w.Apply(t.Context(), events.LiveRun, []stream.Event{thing(1, "good"), thing(2, "dead"), thing(3, "fails"), thing(4, "panics")}); err != nil {
		t.Fatal(err)
	}
	gauge := func(name string) float64 { return w.family(t, name).GetMetric()[0].GetGauge().GetValue() }
	processor.ReadBacklog(t.Context(), w.Processor)
	for name, want := range map[string]float64{"postern_dead_events": 1, "postern_failed_events": 2, "postern_changes_unsent_batches": 1} {
		if got := gauge(name); got != want {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
	if age := gauge("postern_changes_unsent_seconds"); age <= 0 {
		t.Errorf("the unsent change is %v s old", age)
	}
	// What a run has put into the mirror needs nobody any more; what a rebuild has made is there once it is done.
	for _, job := range []string{"rebuild", "replay"} {
		run := b.db.Rows(t, `INSERT INTO runs (job, asked, who, reason, status, detail, counts, made_at, updated_at) VALUES ($1, '{}', '', '', 'running', '', '{}', now(), now()) RETURNING run::text`, job)[0]
		b.db.Exec(t, `INSERT INTO outcomes (event_id, run, source, object, account, object_type, object_id, status, reason, attempts, at, rule_version)
			SELECT event_id, $1::text::bigint, source, 0, '', '', '', CASE $2 WHEN 'rebuild' THEN 'applied' ELSE 'ignored' END, '', 1, at, 1 FROM outcomes WHERE status = 'dead' AND run = 0`, run, job)
		if processor.ReadBacklog(t.Context(), w.Processor); gauge("postern_dead_events") != 1 {
			t.Errorf("%s: %v dead", job, gauge("postern_dead_events"))
		}
	}
	b.db.Exec(t, `UPDATE outcomes SET status = 'unchanged' WHERE status = 'ignored'`)
	if processor.ReadBacklog(t.Context(), w.Processor); gauge("postern_dead_events") != 0 {
		t.Errorf("after a replay %v are dead", gauge("postern_dead_events"))
	}
	gone, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("the database is away"))
	processor.ReadBacklog(gone, w.Processor)
	if dead := gauge("postern_dead_events"); !math.IsNaN(dead) {
		t.Errorf("%v dead while nobody can know", dead)
	}
}
