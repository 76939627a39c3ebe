package telemetry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"strings"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// flushWithin is the part of a stop that the last spans may take; a collector that does not answer costs no more.
const flushWithin = 2 * time.Second

// TraceOptions are what a process says of itself in its traces.
type TraceOptions struct {
	// Service is the name where OTEL_SERVICE_NAME gives none.
	Service string
	Version string
	Logger  *slog.Logger
}

// StartTraces exports spans over OTLP/HTTP if OTEL_EXPORTER_OTLP_ENDPOINT or OTEL_EXPORTER_OTLP_TRACES_ENDPOINT names a collector;
// the other OTEL_ variables mean what they mean to the SDK (OTEL_TRACES_SAMPLER, OTEL_EXPORTER_OTLP_HEADERS, OTEL_BSP_..., ...). Where
// neither is set nothing is started and spans cost next to nothing. Settings that cannot be used are told once and leave tracing
// off: nothing depends on it. stop flushes what waits, for up to 2 s or until its context ends; it is never nil.
func StartTraces(ctx context.Context, o TraceOptions) (stop func(context.Context) error) {
	endpoint, wanted := traceEndpoint(os.Getenv)
	if !wanted {
		return func(context.Context) error { return nil }
	}
	stop, err := startOTLP(ctx, o, endpoint)
	if err != nil {
		o.Logger.Warn("no traces are sent", "error", err)
		return func(context.Context) error { return nil }
	}
	return stop
}

// Tracer makes the spans of a package; nil where StartTraces started nothing, so that nobody pays for spans that go nowhere.
func Tracer(name string) trace.Tracer {
	if p, ok := otel.GetTracerProvider().(*sdktrace.TracerProvider); ok {
		return p.Tracer(name)
	}
	return nil
}

// traceEndpoint is the collector that the environment names; wanted is false where it names none or turns tracing off.
func traceEndpoint(env func(string) string) (endpoint string, wanted bool) {
	if strings.EqualFold(env("OTEL_SDK_DISABLED"), "true") || env("OTEL_TRACES_EXPORTER") == "none" {
		return "", false
	}
	for _, name := range []string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"} {
		if endpoint := env(name); endpoint != "" {
			return endpoint, true
		}
	}
	return "", false
}

func startOTLP(ctx context.Context, o TraceOptions, endpoint string) (func(context.Context) error, error) {
	if err := checkExporter(os.Getenv, endpoint); err != nil {
		return nil, err
	}
	exporter, err := otlptracehttp.New(ctx)
	if err != nil {
		return nil, fmt.Errorf("make the exporter of traces: %w", err)
	}
	o.Logger.Info("traces are sent", "to", redactedURL(endpoint))
	otel.SetErrorHandler(NewComplaints(o.Logger, slog.LevelWarn, "traces are not sent", time.Now))
	provider, stop := newProvider(ctx, o, exporter)
	otel.SetTracerProvider(provider)
	return stop, nil
}

// checkExporter refuses what the exporter would silently replace by its default.
func checkExporter(env func(string) string, endpoint string) error {
	u, err := url.Parse(endpoint)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return fmt.Errorf("the OTLP endpoint is no http:// or https:// URL: write e.g. http://127.0.0.1:4318")
	}
	for _, name := range []string{"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"} {
		switch protocol := env(name); protocol {
		case "":
			continue
		case "http/protobuf":
			return nil
		default:
			return fmt.Errorf("%s=%s is not supported: set http/protobuf, and the collector's port for it, usually 4318", name, protocol)
		}
	}
	return nil
}

// redactedURL is an endpoint without what might be secret in it.
func redactedURL(endpoint string) string {
	u, err := url.Parse(endpoint)
	if err != nil {
		return ""
	}
	return u.Scheme + "://" + u.Host + u.Path
}

// newProvider makes the process's tracer provider. Spans wait in a queue of a fixed length (OTEL_BSP_MAX_QUEUE_SIZE) that nobody
// waits for: what does not fit is dropped.
func newProvider(ctx context.Context, o TraceOptions, exporter sdktrace.SpanExporter) (*sdktrace.TracerProvider, func(context.Context) error) {
	ending, end := context.WithCancel(context.Background())
	provider := sdktrace.NewTracerProvider(sdktrace.WithBatcher(&endable{exporter, ending}), sdktrace.WithResource(describe(ctx, o)))
	return provider, func(ctx context.Context) error {
		defer end() // whatever is under way then is given up
		ctx, cancel := context.WithTimeout(ctx, flushWithin)
		defer cancel()
		if err := provider.Shutdown(ctx); err != nil {
			o.Logger.Warn("the last traces were not sent", "error", err)
		}
		return nil
	}
}

// describe says which process this is. The command line stays out of it: it may name a password.
func describe(ctx context.Context, o TraceOptions) *resource.Resource {
	r, err := resource.New(ctx, resource.WithAttributes(attribute.String("service.name", o.Service), attribute.String("service.version", o.Version)),
		resource.WithHost(), resource.WithProcessPID(), resource.WithTelemetrySDK(), resource.WithFromEnv())
	if err != nil {
		o.Logger.Warn("traces describe this process only in part", "error", err)
	}
	return r
}

// endable is an exporter whose exports all end with a context, so that none outlives the stop.
type endable struct {
	sdktrace.SpanExporter
	ending context.Context
}

func (e *endable) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(e.ending, func() { cancel(errors.New("stopping")) })()
	return e.SpanExporter.ExportSpans(ctx, spans)
}
