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

// flushTimeout limits the export of the last spans during a stop, if the collector does not
// respond.
const flushTimeout = 2 * time.Second

// TraceOptions describe the process in its traces.
type TraceOptions struct {
	// Service is the service name unless OTEL_SERVICE_NAME is set.
	Service string
	Version string
	Logger  *slog.Logger
}

// StartTraces exports spans over OTLP/HTTP if OTEL_EXPORTER_OTLP_ENDPOINT or
// OTEL_EXPORTER_OTLP_TRACES_ENDPOINT names a collector. The other OTEL_ variables have their usual
// meaning (OTEL_TRACES_SAMPLER, OTEL_EXPORTER_OTLP_HEADERS, OTEL_BSP_..., ...). If neither is set,
// nothing is started and spans cost almost nothing. Settings that cannot be used are logged once
// and disable tracing, because no function of Postern depends on it. stop exports the remaining
// spans, for up to 2 s or until its context ends; it is never nil.
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

// Tracer returns the tracer of a package. It is nil where StartTraces started nothing, so that
// unused spans cost nothing.
func Tracer(name string) trace.Tracer {
	if p, ok := otel.GetTracerProvider().(*sdktrace.TracerProvider); ok {
		return p.Tracer(name)
	}
	return nil
}

// traceEndpoint returns the collector's address in the environment. wanted is false where there is
// none or tracing is disabled.
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
		return nil, fmt.Errorf("create the exporter of traces: %w", err)
	}
	o.Logger.Info("traces are sent", "to", maskURL(endpoint))
	otel.SetErrorHandler(NewLogSuppressor(o.Logger, slog.LevelWarn, "traces are not sent", time.Now))
	provider, stop := newProvider(ctx, o, exporter)
	otel.SetTracerProvider(provider)
	return stop, nil
}

// checkExporter rejects values that the exporter would silently replace by its default.
func checkExporter(env func(string) string, endpoint string) error {
	u, err := url.Parse(endpoint)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return fmt.Errorf("the OTLP endpoint is not an http:// or https:// URL: write e.g. http://127.0.0.1:4318")
	}
	for _, name := range []string{"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"} {
		switch protocol := env(name); protocol {
		case "":
			continue
		case "http/protobuf":
			return nil
		default:
			return fmt.Errorf("%s=%s is not supported: set http/protobuf, and the collector's port for it, usually "+
				"4318", name, protocol)
		}
	}
	return nil
}

// maskURL removes the parts of an endpoint that may be secret.
func maskURL(endpoint string) string {
	u, err := url.Parse(endpoint)
	if err != nil {
		return ""
	}
	return u.Scheme + "://" + u.Host + u.Path
}

// newProvider creates the process's tracer provider. Spans wait in a queue of fixed length
// (OTEL_BSP_MAX_QUEUE_SIZE). Spans that do not fit are dropped, so no caller waits.
func newProvider(ctx context.Context, o TraceOptions, exporter sdktrace.SpanExporter) (*sdktrace.TracerProvider,
	func(context.Context) error) {
	ending, end := context.WithCancel(context.Background())
	provider := sdktrace.NewTracerProvider(sdktrace.WithBatcher(&cancellableExporter{exporter, ending}),
		sdktrace.WithResource(processResource(ctx, o)))
	return provider, func(ctx context.Context) error {
		defer end() // exports that are still in progress are cancelled
		ctx, cancel := context.WithTimeout(ctx, flushTimeout)
		defer cancel()
		if err := provider.Shutdown(ctx); err != nil {
			o.Logger.Warn("the last traces were not sent", "error", err)
		}
		return nil
	}
}

// processResource describes this process. It leaves out the command line, which may contain a
// password.
func processResource(ctx context.Context, o TraceOptions) *resource.Resource {
	r, err := resource.New(ctx, resource.WithAttributes(attribute.String("service.name", o.Service),
		attribute.String("service.version", o.Version)),
		resource.WithHost(), resource.WithProcessPID(), resource.WithTelemetrySDK(), resource.WithFromEnv())
	if err != nil {
		o.Logger.Warn("traces describe this process incompletely", "error", err)
	}
	return r
}

// cancellableExporter cancels all exports when a context ends, so that none outlives the stop.
type cancellableExporter struct {
	sdktrace.SpanExporter
	stopping context.Context
}

func (e *cancellableExporter) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(e.stopping, func() { cancel(errors.New("stopping")) })()
	return e.SpanExporter.ExportSpans(ctx, spans)
}
