package apply

import (
	"context"
	"strconv"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/postern-gateway/postern/internal/telemetry"
)

// maxLinks bounds the events that a batch's span names.
const maxLinks = 128

// traceBatch creates the spans of an ended apply transaction: one for the batch, linked to the
// traces of its events, and one for each event in its trace. A rolled-back transaction gets an
// error. Without traced events there is no span. Spans hold names and outcomes, never the content
// of events.
func (a *Applier) traceBatch(t *transaction, err error) {
	parents := make([]trace.SpanContext, len(t.batch))
	var links []trace.Link
	for i, e := range t.batch {
		if parents[i] = telemetry.SpanContext(e.ev.Trace); parents[i].IsValid() && len(links) < maxLinks {
			links = append(links, trace.Link{SpanContext: parents[i]})
		}
	}
	if len(links) == 0 {
		return
	}
	_, batch := a.Tracer.Start(context.Background(), "apply batch", trace.WithTimestamp(t.startedAt),
		trace.WithLinks(links...), trace.WithSpanKind(trace.SpanKindConsumer),
		trace.WithAttributes(attribute.Int64("postern.run", t.to.Run), attribute.Int("postern.events", len(t.batch))))
	if err != nil {
		batch.SetStatus(codes.Error, "rolled back") // the error's text may contain a value
	}
	batch.End(trace.WithTimestamp(t.endedAt))
	if err != nil {
		return // an event's own span belongs to the transaction that commits it
	}
	for i, e := range t.batch {
		if parents[i].IsValid() {
			a.traceEvent(t, e, parents[i], batch.SpanContext())
		}
	}
}

func (a *Applier) traceEvent(t *transaction, e *event, parent, batch trace.SpanContext) {
	options := []trace.SpanStartOption{trace.WithTimestamp(t.startedAt), trace.WithSpanKind(trace.SpanKindConsumer)}
	if batch.IsSampled() {
		options = append(options, trace.WithLinks(trace.Link{SpanContext: batch}))
	}
	_, span := a.Tracer.Start(trace.ContextWithRemoteSpanContext(context.Background(), parent), "apply", options...)
	defer span.End(trace.WithTimestamp(t.endedAt))
	if !span.IsRecording() {
		return
	}
	span.SetAttributes(attribute.String("postern.source", e.ev.Source), attribute.String("postern.event",
		strconv.FormatInt(e.ev.ID, 10)), attribute.String("postern.type", e.ev.Type))
	if e.finished {
		span.SetAttributes(attribute.String("postern.outcome", "finished before"))
		return
	}
	span.SetAttributes(attribute.String("postern.outcome", string(e.outcome.status)))
	if e.key.Type != "" {
		span.SetAttributes(attribute.String("postern.object_type", e.key.Type))
	}
	if o := t.objects[e.key]; o != nil {
		span.SetAttributes(attribute.Int64("postern.revision", o.Revision))
	}
}
