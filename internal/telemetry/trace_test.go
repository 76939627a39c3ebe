package telemetry_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/postern-gateway/postern/internal/telemetry"
)

func options() telemetry.TraceOptions {
	return telemetry.TraceOptions{Service: "postern", Version: "v1", Logger: slog.New(slog.DiscardHandler)}
}

// Not parallel, because all tests share the environment and the process's tracer provider.
func TestStartTraces_noEndpoint_startsNothing(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "")
	t.Setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "")
	before := otel.GetTracerProvider()
	var out bytes.Buffer
	o := options()
	o.Logger = slog.New(slog.NewTextHandler(&out, nil))
	stop := telemetry.StartTraces(t.Context(), o)
	if otel.GetTracerProvider() != before || out.Len() > 0 {
		t.Errorf("something was started: %s", &out)
	}
	if _, span := otel.Tracer("test").Start(t.Context(), "s"); span.IsRecording() ||
		telemetry.Traceparent(trace.ContextWithSpan(t.Context(), span)) != "" {
		t.Error("a span is recorded")
	}
	if err := stop(t.Context()); err != nil {
		t.Error(err)
	}

	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4317")
	if stop := telemetry.StartTraces(t.Context(), o); otel.GetTracerProvider() != before || stop(t.Context()) != nil {
		t.Error("something was started with an invalid endpoint")
	}
	if !strings.Contains(out.String(), "no traces are sent") {
		t.Errorf("the log does not report it: %s", &out)
	}
}

func TestStartTraces_wrongSettings_areReported(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		env      map[string]string
		endpoint string
		wanted   bool
		problem  string
	}{
		"nothing set": {map[string]string{}, "", false, ""},
		"a collector": {map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, "http://c:4318",
			true, ""},
		"one for traces": {map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318",
			"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "https://t/x"}, "https://t/x", true, ""},
		"turned off": {map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318",
			"OTEL_SDK_DISABLED": "true"}, "", false, ""},
		"no traces": {map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318",
			"OTEL_TRACES_EXPORTER": "none"}, "", false, ""},
		"another protocol": {map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4317",
			"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "http://c:4317", true, "not supported"},
		"protocol for traces": {map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318",
			"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf"},
			"http://c:4318", true, ""},
		"no URL": {map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "c:4317"}, "c:4317", true, "not an http"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env := func(name string) string { return c.env[name] }
			endpoint, wanted := telemetry.TraceEndpoint(env)
			if endpoint != c.endpoint || wanted != c.wanted {
				t.Errorf("endpoint %q, %t", endpoint, wanted)
			}
			if !wanted {
				return
			}
			if err := telemetry.CheckExporter(env, endpoint); (err == nil) != (c.problem == "") || err != nil &&
				!strings.Contains(err.Error(), c.problem) {
				t.Errorf("problem %v, want %q", err, c.problem)
			}
		})
	}
}

// stalledExporter is an exporter whose collector never responds. Until release is closed, it also
// ignores the end of its context.
type stalledExporter struct {
	called  chan struct{}
	release chan struct{}
	ended   chan error
}

func (h *stalledExporter) ExportSpans(ctx context.Context, _ []sdktrace.ReadOnlySpan) error {
	select {
	case h.called <- struct{}{}:
	default:
	}
	<-h.release
	<-ctx.Done()
	h.ended <- context.Cause(ctx)
	return ctx.Err()
}

func (h *stalledExporter) Shutdown(context.Context) error { return nil }

// A stalled collector delays no span, and delays a stop only for the flush timeout. Nothing
// outlives the stop.
func TestStartTraces_stalledCollector_blocksNoCaller(t *testing.T) {
	t.Parallel()
	h := &stalledExporter{called: make(chan struct{}, 1), release: make(chan struct{}), ended: make(chan error, 1000)}
	provider, stop := telemetry.NewProvider(t.Context(), options(), h)
	tracer := provider.Tracer("test")
	spans := func(n int) {
		for range n {
			_, span := tracer.Start(context.Background(), "s")
			span.End()
		}
	}
	spans(1000) // enough for a batch
	select {
	case <-h.called:
	case <-time.After(time.Minute):
		t.Fatal("nothing is exported")
	}
	flooded := make(chan struct{})
	go func() {
		defer close(flooded)
		spans(10_000) // far more than the queue holds
	}()
	select {
	case <-flooded:
	// about 0.1 s on an idle machine; a caller that waited for the collector would never return
	case <-time.After(2 * time.Minute):
		t.Fatal("spans wait for the collector")
	}
	close(h.release)
	began := time.Now()
	if err := stop(t.Context()); err != nil {
		t.Error(err)
	}
	if elapsed := time.Since(began); elapsed > telemetry.FlushTimeout+20*time.Second {
		t.Errorf("the stop lasted %s", elapsed)
	}
	select {
	case <-h.ended:
	case <-time.After(time.Minute):
		t.Error("an export outlives the stop")
	}
}

func TestStartTraces_stop_flushes(t *testing.T) {
	t.Parallel()
	kept := &recordingExporter{InMemoryExporter: tracetest.NewInMemoryExporter()}
	provider, stop := telemetry.NewProvider(t.Context(), options(), kept)
	ctx, span := provider.Tracer("test").Start(context.Background(), "s")
	parent := telemetry.Traceparent(ctx)
	span.End()
	if err := stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if len(kept.spans) != 1 || kept.spans[0].Name != "s" {
		t.Fatalf("flushed %v", kept.spans)
	}
	reported := kept.spans[0].Resource.String()
	if !strings.Contains(reported, "service.name=postern") || strings.Contains(reported, "command") {
		t.Errorf("resource %s", reported)
	}
	if sc := telemetry.SpanContext(parent); !sc.IsRemote() || sc.TraceID() != span.SpanContext().TraceID() ||
		sc.SpanID() != span.SpanContext().SpanID() {
		t.Errorf("%q came back as %v", parent, sc)
	}
}

// recordingExporter keeps its spans after a shutdown.
type recordingExporter struct {
	*tracetest.InMemoryExporter
	spans tracetest.SpanStubs
}

func (k *recordingExporter) Shutdown(ctx context.Context) error {
	k.spans = k.GetSpans()
	return k.InMemoryExporter.Shutdown(ctx)
}

func TestSpanContext_malformedTraceparent_isInvalid(t *testing.T) {
	t.Parallel()
	const id = "4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7"
	for parent, valid := range map[string]bool{"": false, "x": false, "00-" + id + "-01": true, "00-" + id +
		"-00": false,
		"00-00000000000000000000000000000000-00f067aa0ba902b7-01": false, "00-" + id: false,
		strings.Repeat("00-", 100_000): false} {
		if got := telemetry.SpanContext(parent).IsValid(); got != valid {
			t.Errorf("%.80q valid: %t, want %t", parent, got, valid)
		}
	}
}

func TestLogSuppressor_errors_loggedOncePerMinute(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	now := time.Unix(1000, 0)
	c := telemetry.NewLogSuppressor(slog.New(slog.NewTextHandler(&out, nil)), slog.LevelWarn, "traces are not sent",
		func() time.Time { return now })
	for i := range 150 { // one second apart
		c.Handle(fmt.Errorf("refused %d: %w", i, errors.ErrUnsupported))
		now = now.Add(time.Second)
	}
	for _, want := range []string{"refused 0: ", "refused 60: ", "refused 120: ", "more_since=59"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing", want)
		}
	}
	if n := strings.Count(out.String(), "\n"); n != 3 {
		t.Errorf("%d lines in two and a half minutes, want 3:\n%s", n, &out)
	}
}
