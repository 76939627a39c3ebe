package processor_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/postern-gateway/postern/internal/effects"
	"github.com/postern-gateway/postern/internal/effects/rules"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/testkit/sim"
)

// observedProcessor is a processor with its metrics, spans and log.
type observedProcessor struct {
	*processor.Processor
	registry *prometheus.Registry
	spans    *tracetest.SpanRecorder
	tracer   trace.Tracer
	log      *bytes.Buffer
}

func (b *testBundle) observed(t *testing.T, p provider.Provider, level slog.Level) *observedProcessor {
	t.Helper()
	w := &observedProcessor{registry: prometheus.NewRegistry(), spans: tracetest.NewSpanRecorder(),
		log: &bytes.Buffer{}}
	w.tracer = sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(w.spans)).Tracer("test")
	o := b.options(t, p)
	o.Metrics, o.Tracer = w.registry, w.tracer
	o.Logger = slog.New(slog.NewJSONHandler(w.log, &slog.HandlerOptions{Level: level}))
	w.Processor = newProcessor(t, o)
	return w
}

// family returns a metric with its current values.
func (w *observedProcessor) family(t *testing.T, name string) *dto.MetricFamily {
	t.Helper()
	families, err := w.registry.Gather()
	must(t, err)
	for _, f := range families {
		if f.GetName() == name {
			return f
		}
	}
	t.Fatalf("no metric %s", name)
	return nil
}

func (w *observedProcessor) count(t *testing.T, name, label string) int {
	t.Helper()
	for _, m := range w.family(t, name).GetMetric() {
		if m.GetLabel()[0].GetValue() == label {
			return int(m.GetCounter().GetValue())
		}
	}
	t.Fatalf("%s has no %s", name, label)
	return 0
}

// spansNamed returns the ended spans with a name.
func (w *observedProcessor) spansNamed(name string) (found []sdktrace.ReadOnlySpan) {
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

// withTrace gives an event a trace, as the gateway does.
func (w *observedProcessor) withTrace(e stream.Event) (stream.Event, trace.SpanContext) {
	_, span := w.tracer.Start(context.Background(), "post")
	span.End()
	sc := span.SpanContext()
	e.Trace = "00-" + sc.TraceID().String() + "-" + sc.SpanID().String() + "-01"
	return e, sc
}

func TestTraces_batch_hasSpans(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.observed(t, faultyProvider{}, slog.LevelInfo)
	good, posted := w.withTrace(thingEvent(1, "good"))
	dead, _ := w.withTrace(thingEvent(2, "dead"))
	must(t, w.Apply(t.Context(), events.LiveRun, []stream.Event{good, dead, thingEvent(3, "better")}))
	batches, applied := w.spansNamed("apply batch"), w.spansNamed("apply")
	if len(batches) != 1 || len(batches[0].Links()) != 2 || attributeOf(batches[0], "postern.events") != "3" ||
		batches[0].Parent().IsValid() {
		t.Fatalf("batches %v", batches)
	}
	if len(applied) != 2 {
		t.Fatalf("%d events have a span, want the two that are traced", len(applied))
	}
	first := applied[0]
	if first.Parent().SpanID() != posted.SpanID() || first.SpanContext().TraceID() != posted.TraceID() {
		t.Errorf("the span's parent is %v, want %v", first.Parent(), posted)
	}
	for name, want := range map[string]string{"postern.outcome": "applied", "postern.object_type": "thing",
		"postern.revision": "1", "postern.source": "sim"} {
		if got := attributeOf(first, name); got != want {
			t.Errorf("%s = %q, want %q", name, got, want)
		}
	}
	if got := attributeOf(applied[1], "postern.outcome"); got != "dead" {
		t.Errorf("the other's outcome is %q", got)
	}

	// Events without a trace make no spans.
	must(t, w.Apply(t.Context(), events.LiveRun, []stream.Event{thingEvent(4, "best")}))
	if n := len(w.spansNamed("apply batch")); n != 1 {
		t.Errorf("%d batches have a span", n)
	}
}

// An event whose body is read from the log keeps its trace.
func TestTraces_bodyInLog_keepsTrace(t *testing.T) {
	t.Parallel()
	world := newWorld(t, nil)
	w := world.observed(t, sim.Provider{}, slog.LevelError)
	e, posted := w.withTrace(world.append(t, world.newObjects(1)...)[0])
	e.Body, e.BodyInLog = nil, true
	must(t, w.Apply(t.Context(), events.LiveRun, []stream.Event{e}))
	applied := w.spansNamed("apply")
	if len(applied) != 1 || applied[0].SpanContext().TraceID() != posted.TraceID() ||
		attributeOf(applied[0], "postern.outcome") != "applied" {
		t.Errorf("spans %v", applied)
	}
}

// A transaction that is rolled back has a span. Its events have theirs once, when they are
// committed.
func TestTraces_rollback_hasErrorSpan(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.db.Exec(t, `ALTER TABLE objects ADD CONSTRAINT refused CHECK (object_id <> 'obj_refused')`)
	w := b.observed(t, faultyProvider{}, slog.LevelInfo)
	good, _ := w.withTrace(thingEvent(1, "good"))
	rejected, _ := w.withTrace(thingEvent(2, "refused"))
	must(t, w.Apply(t.Context(), events.LiveRun, []stream.Event{good, rejected}))
	failures := 0
	for _, s := range w.spansNamed("apply batch") {
		if s.Status().Code == codes.Error {
			failures++
		}
		if strings.Contains(s.Status().Description, "obj_") || len(s.Events()) > 0 {
			t.Errorf("the span contains content of an event: %v %v", s.Status(), s.Events())
		}
	}
	if failures != 2 || len(w.spansNamed("apply batch")) != 4 { // together; one; the other; that one as failed
		t.Errorf("%d of %d batches failed, want 2 of 4", failures, len(w.spansNamed("apply batch")))
	}
	if n := len(w.spansNamed("apply")); n != 2 {
		t.Errorf("%d events have a span, want 2", n)
	}
}

// The metrics of ambiguities agree with the mirror.
func TestMetrics_ambiguities_equalTheMirror(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.observed(t, sim.Provider{}, slog.LevelError)
	h := sim.Generate(rand.New(rand.NewPCG(4, 4)), providerKinds["event time"])
	for i, e := range h.Events {
		for range 2 { // and again, which changes nothing
			must(t, w.Apply(t.Context(), events.LiveRun, []stream.Event{message(i, e)}))
		}
	}
	var ambiguous, pending int
	b.scan(t, `SELECT count(*) FILTER (WHERE ambiguous), count(*) FILTER (WHERE refetch_after <> 0) FROM objects`,
		&ambiguous, &pending)
	const name = "postern_object_ambiguities_total"
	became, resolved, requested := w.count(t, name, "ambiguous"), w.count(t, name, "resolved"),
		w.count(t, name, "refetch_pending")
	if became == 0 || resolved == 0 || became-resolved != ambiguous || requested < pending || pending == 0 {
		t.Errorf("%d became ambiguous, %d stopped, %d are; %d refetches were requested, %d are pending", became,
			resolved, ambiguous, requested, pending)
	}
	if n := int(w.family(t, "postern_apply_lag_seconds").GetMetric()[0].GetHistogram().GetSampleCount()); n != len(
		h.Events) {
		t.Errorf("the lag of %d events is counted, want each of %d once", n, len(h.Events))
	}
}

// Each batch writes one line: at info with the counts of outcomes, at debug if all events had an
// outcome before.
func TestLogBatch_eachBatch_writesOneLine(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.observed(t, faultyProvider{}, slog.LevelDebug)
	batch := []stream.Event{thingEvent(1, "good"), thingEvent(2, "ignored"), thingEvent(3, "better")}
	batch[0].ReceivedAt = time.Now().Add(-time.Hour)
	for range 2 {
		must(t, w.Apply(t.Context(), events.LiveRun, batch))
	}
	type line struct {
		Level, Msg       string
		Events           int
		Applied, Ignored int
		FinishedBefore   int     `json:"finished_before"`
		Lag              float64 `json:"lag_ms"`
		Duration         float64 `json:"duration_ms"`
	}
	var lines []line
	for dec := json.NewDecoder(w.log); dec.More(); {
		var l line
		must(t, dec.Decode(&l))
		lines = append(lines, l)
	}
	if len(lines) != 2 {
		t.Fatalf("%d lines: %+v", len(lines), lines)
	}
	if l := lines[0]; l.Level != "INFO" || l.Events != 3 || l.Applied != 2 || l.Ignored != 1 || l.Lag < 3.6e6 ||
		l.Duration <= 0 || l.FinishedBefore != 0 {
		t.Errorf("first %+v", l)
	}
	if l := lines[1]; l.Level != "DEBUG" || l.Events != 3 || l.Applied != 0 || l.FinishedBefore != 3 {
		t.Errorf("again %+v", l)
	}
}

// Pending work is read from the tables. While they cannot be read, the gauges are NaN.
func TestReadBacklog_pendingWork_setsGauges(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.observed(t, faultyProvider{}, slog.LevelError)
	must(t,
		w.Apply(t.Context(), events.LiveRun, []stream.Event{thingEvent(1, "good"), thingEvent(2, "dead"),
			thingEvent(3, "fails"), thingEvent(4, "panics")}))
	gauge := func(name string) float64 { return w.family(t, name).GetMetric()[0].GetGauge().GetValue() }
	processor.ReadBacklog(t.Context(), w.Processor)
	for name, want := range map[string]float64{"postern_dead_events": 1, "postern_failed_events": 2,
		"postern_changes_unsent_batches": 1} {
		if got := gauge(name); got != want {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
	if age := gauge("postern_changes_unsent_seconds"); age <= 0 {
		t.Errorf("the unsent change is %v s old", age)
	}
	// Dead events that a run has put into the mirror need no operator any more. Those of a rebuild
	// are in the mirror after its swap.
	for _, job := range []string{"rebuild", "replay"} {
		run := b.db.QueryStrings(t, `INSERT INTO runs (job, params, actor, reason, status, detail, counts, created_at,
			updated_at)
			VALUES ($1, '{}', '', '', 'running', '', '{}', now(), now()) RETURNING run::text`, job)[0]
		b.db.Exec(t, `INSERT INTO outcomes (event_id, run, source, object, account, object_type, object_id, status,
			reason, attempts, at, rule_version)
			SELECT event_id, $1::text::bigint, source, 0, '', '', '', CASE $2 WHEN 'rebuild' THEN 'applied'
				ELSE 'ignored' END, '', 1, at, 1 FROM outcomes WHERE status = 'dead' AND run = 0`, run, job)
		if processor.ReadBacklog(t.Context(), w.Processor); gauge("postern_dead_events") != 1 {
			t.Errorf("%s: %v dead", job, gauge("postern_dead_events"))
		}
	}
	b.db.Exec(t, `UPDATE outcomes SET status = 'unchanged' WHERE status = 'ignored'`)
	if processor.ReadBacklog(t.Context(), w.Processor); gauge("postern_dead_events") != 0 {
		t.Errorf("after a replay %v are dead", gauge("postern_dead_events"))
	}
	cancelled, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("the database is unavailable"))
	processor.ReadBacklog(cancelled, w.Processor)
	if dead := gauge("postern_dead_events"); !math.IsNaN(dead) {
		t.Errorf("%v dead while the number is unknown", dead)
	}
}

// warnings returns the warnings of the log, each with its message, run, number of events or
// effects, and the first of them.
func (w *observedProcessor) warnings(t *testing.T) (all []string) {
	t.Helper()
	for text := range strings.Lines(w.log.String()) {
		var line struct {
			Level, Msg           string
			Run, Events, Effects int
			First                []string
		}
		must(t, json.Unmarshal([]byte(text), &line))
		if line.Level == slog.LevelWarn.String() {
			all = append(all, fmt.Sprintf("%s: run %d, %d, %q", line.Msg, line.Run, line.Events+line.Effects,
				line.First))
		}
	}
	return all
}

// A batch with dead events logs one warning, with the first ids and reasons and the command that
// lists them. Events that were dead before, or that fail again, log none.
func TestLog_deadEvents_warnsOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.observed(t, faultyProvider{}, slog.LevelInfo)
	batch := []stream.Event{thingEvent(1, "good"), thingEvent(2, "fails")}
	for n := range 7 {
		batch = append(batch, thingEvent(3+n, "dead"))
	}
	late := thingEvent(10, "dead")
	for _, batch := range [][]stream.Event{batch, batch, append(batch[:len(batch):len(batch)], late)} {
		must(t, w.Apply(t.Context(), events.LiveRun, batch))
	}
	first := make([]string, 5)
	for n := range first {
		first[n] = fmt.Sprintf("%d: cannot be read", batch[2+n].ID)
	}
	const dead = "events are dead: they were not applied and are not retried automatically (postern outcomes list " +
		"--status dead --run live): run 0, "
	want := []string{dead + fmt.Sprintf("7, %q", first), dead + fmt.Sprintf(`1, ["%d: cannot be read"]`, late.ID)}
	equal(t, "", want, w.warnings(t))
	if body := string(batch[2].Body); body == "" || strings.Contains(w.log.String(), body) {
		t.Errorf("a body is in the log: %s", w.log)
	}
}

// An effect that needs review from the start, because its rule could not plan it, is logged as a
// warning.
func TestLog_effectsNeedReview_warns(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.observed(t, faultyProvider{}, slog.LevelInfo)
	rule := ruleOnChanges(t)
	var err error
	if rule.When, err = rules.Compile(`date(new.none) == nil`, rules.Scope{Change: true}, true); err != nil {
		t.Fatal(err)
	}
	healthy := ruleOnChanges(t)
	healthy.Name = "healthy"
	w.ReplaceRules(effects.NewRules([]*rules.Rule{rule, healthy}))
	must(t, w.Apply(t.Context(), events.LiveRun, []stream.Event{thingEvent(1, "good"), thingEvent(2, "better")}))
	states := b.db.QueryStrings(t, `SELECT state FROM effects ORDER BY state`)
	if !slices.Equal(states, []string{"needs_review", "needs_review", "planned", "planned"}) {
		t.Fatal(states)
	}
	want := []string{"rules could not plan their effects: an operator must review them (postern effects list " +
		"--state needs_review): run 0, 2, []"}
	equal(t, "", want, w.warnings(t))
}
