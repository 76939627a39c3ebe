package apply_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
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

	"github.com/postern-gateway/postern/internal/apply"
	"github.com/postern-gateway/postern/internal/effects"
	"github.com/postern-gateway/postern/internal/effects/rules"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/testkit/applied"
	"github.com/postern-gateway/postern/internal/testkit/sim"
)

// observedApplier is an applier with its metrics, spans and log.
type observedApplier struct {
	*apply.Applier
	registry *prometheus.Registry
	spans    *tracetest.SpanRecorder
	tracer   trace.Tracer
	log      *bytes.Buffer
}

func (b *testBundle) observed(t *testing.T, p provider.Provider, level slog.Level) *observedApplier {
	t.Helper()
	w := &observedApplier{registry: prometheus.NewRegistry(), spans: tracetest.NewSpanRecorder(), log: &bytes.Buffer{}}
	w.tracer = sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(w.spans)).Tracer("test")
	o := b.Options(p)
	o.Metrics, o.Tracer = w.registry, w.tracer
	o.Logger = slog.New(slog.NewJSONHandler(w.log, &slog.HandlerOptions{Level: level}))
	var err error
	w.Applier, err = apply.New(o)
	must(t, err)
	return w
}

// family returns a metric with its current values.
func (w *observedApplier) family(t *testing.T, name string) *dto.MetricFamily {
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

func (w *observedApplier) count(t *testing.T, name, label string) int {
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
func (w *observedApplier) spansNamed(name string) (found []sdktrace.ReadOnlySpan) {
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
func (w *observedApplier) withTrace(e stream.Event) (stream.Event, trace.SpanContext) {
	_, span := w.tracer.Start(context.Background(), "post")
	span.End()
	sc := span.SpanContext()
	e.Trace = "00-" + sc.TraceID().String() + "-" + sc.SpanID().String() + "-01"
	return e, sc
}

func TestTraces_batch_hasSpans(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.observed(t, applied.FaultyProvider{}, slog.LevelInfo)
	good, posted := w.withTrace(applied.ThingEvent(1, "good"))
	dead, _ := w.withTrace(applied.ThingEvent(2, "dead"))
	must(t, w.Apply(t.Context(), events.LiveRun, []stream.Event{good, dead, applied.ThingEvent(3, "better")}))
	batches, spans := w.spansNamed("apply batch"), w.spansNamed("apply")
	if len(batches) != 1 || len(batches[0].Links()) != 2 || attributeOf(batches[0], "postern.events") != "3" ||
		batches[0].Parent().IsValid() {
		t.Fatalf("batches %v", batches)
	}
	if len(spans) != 2 {
		t.Fatalf("%d events have a span, want the two that are traced", len(spans))
	}
	first := spans[0]
	if first.Parent().SpanID() != posted.SpanID() || first.SpanContext().TraceID() != posted.TraceID() {
		t.Errorf("the span's parent is %v, want %v", first.Parent(), posted)
	}
	for name, want := range map[string]string{"postern.outcome": "applied", "postern.object_type": "thing",
		"postern.revision": "1", "postern.source": "sim"} {
		if got := attributeOf(first, name); got != want {
			t.Errorf("%s = %q, want %q", name, got, want)
		}
	}
	if got := attributeOf(spans[1], "postern.outcome"); got != "dead" {
		t.Errorf("the other's outcome is %q", got)
	}

	// Events without a trace make no spans.
	must(t, w.Apply(t.Context(), events.LiveRun, []stream.Event{applied.ThingEvent(4, "best")}))
	if n := len(w.spansNamed("apply batch")); n != 1 {
		t.Errorf("%d batches have a span", n)
	}

	// An event whose body is read from the log keeps its trace.
	again := sim.Event{Object: "obj_good", ReceivedAt: good.ReceivedAt, Body: good.Body}
	stored, posted := w.withTrace(b.AppendEvents(t, b.Source, []sim.Event{again})[0])
	stored.Body, stored.BodyInLog = nil, true
	must(t, w.Apply(t.Context(), events.LiveRun, []stream.Event{stored}))
	spans = w.spansNamed("apply")
	if last := spans[len(spans)-1]; len(spans) != 3 || last.SpanContext().TraceID() != posted.TraceID() ||
		attributeOf(last, "postern.outcome") != "unchanged" {
		t.Errorf("%d spans; the last has outcome %s", len(spans), attributeOf(last, "postern.outcome"))
	}
}

// A transaction that is rolled back has a span. Its events have theirs once, when they are
// committed.
func TestTraces_rollback_hasErrorSpan(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.DB.Exec(t, `ALTER TABLE objects ADD CONSTRAINT refused CHECK (object_id <> 'obj_refused')`)
	w := b.observed(t, applied.FaultyProvider{}, slog.LevelInfo)
	good, _ := w.withTrace(applied.ThingEvent(1, "good"))
	rejected, _ := w.withTrace(applied.ThingEvent(2, "refused"))
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
	w := b.observed(t, nil, slog.LevelError)
	h := sim.Generate(rand.New(rand.NewPCG(4, 4)), applied.ProviderKinds["event time"])
	for i, e := range h.Events {
		for range 2 { // and again, which changes nothing
			must(t, w.Apply(t.Context(), events.LiveRun, []stream.Event{applied.Message(i, e)}))
		}
	}
	var ambiguous, pending int
	b.Scan(t, `SELECT count(*) FILTER (WHERE ambiguous), count(*) FILTER (WHERE refetch_after <> 0) FROM objects`,
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
	w := b.observed(t, applied.FaultyProvider{}, slog.LevelDebug)
	batch := []stream.Event{applied.ThingEvent(1, "good"), applied.ThingEvent(2, "ignored"),
		applied.ThingEvent(3, "better")}
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

// warnings returns the warnings of the log, each with its message, run, number of events or
// effects, and the first of them.
func (w *observedApplier) warnings(t *testing.T) (all []string) {
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
	w := b.observed(t, applied.FaultyProvider{}, slog.LevelInfo)
	batch := []stream.Event{applied.ThingEvent(1, "good"), applied.ThingEvent(2, "fails")}
	for n := range 7 {
		batch = append(batch, applied.ThingEvent(3+n, "dead"))
	}
	late := applied.ThingEvent(10, "dead")
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
	w := b.observed(t, applied.FaultyProvider{}, slog.LevelInfo)
	rule := applied.RuleOnChanges(t)
	var err error
	if rule.When, err = rules.Compile(`date(new.none) == nil`, rules.Scope{Change: true}, true); err != nil {
		t.Fatal(err)
	}
	healthy := applied.RuleOnChanges(t)
	healthy.Name = "healthy"
	w.ReplaceRules(effects.NewRules([]*rules.Rule{rule, healthy}))
	must(t, w.Apply(t.Context(), events.LiveRun, []stream.Event{applied.ThingEvent(1, "good"),
		applied.ThingEvent(2, "better")}))
	equal(t, "effects", []string{"needs_review", "needs_review", "planned", "planned"},
		b.DB.QueryStrings(t, `SELECT state FROM effects ORDER BY state`))
	want := []string{"rules could not plan their effects: an operator must review them (postern effects list " +
		"--state needs_review): run 0, 2, []"}
	equal(t, "", want, w.warnings(t))
}
