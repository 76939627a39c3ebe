package processor

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

// traceBatch makes the spans of an apply transaction that is over, with an error if it was rolled back: one of its own, linked to
// the traces of its events, and in each of those one of the event. Where no event is traced there is nothing. They hold names and
// outcomes, never what an event says.
func (p *Processor) traceBatch(b *committed, err error) {
	parents := make([]trace.SpanContext, len(b.items))
	var links []trace.Link
	for i, it := range b.items {
		if parents[i] = telemetry.SpanContext(it.ev.Trace); parents[i].IsValid() && len(links) < maxLinks {
			links = append(links, trace.Link{SpanContext: parents[i]})
		}
	}
	if len(links) == 0 {
		return
	}
	_, batch := p.Tracer.Start(context.Background(), "apply batch", trace.WithTimestamp(b.began), trace.WithLinks(links...),
		trace.WithSpanKind(trace.SpanKindConsumer), trace.WithAttributes(attribute.Int64("postern.run", b.Run), attribute.Int("postern.events", len(b.items))))
	if err != nil {
		batch.SetStatus(codes.Error, "rolled back") // the error's text may name a value
	}
	batch.End(trace.WithTimestamp(b.ended))
	if err != nil {
		return // the event's own span is that of the transaction that commits it
	}
	for i, it := range b.items {
		if parents[i].IsValid() {
			p.traceEvent(b, it, parents[i], batch.SpanContext())
		}
	}
}

func (p *Processor) traceEvent(b *committed, it *item, parent, batch trace.SpanContext) {
	options := []trace.SpanStartOption{trace.WithTimestamp(b.began), trace.WithSpanKind(trace.SpanKindConsumer)}
	if batch.IsSampled() {
		options = append(options, trace.WithLinks(trace.Link{SpanContext: batch}))
	}
	_, span := p.Tracer.Start(trace.ContextWithRemoteSpanContext(context.Background(), parent), "apply", options...)
	defer span.End(trace.WithTimestamp(b.ended))
	if !span.IsRecording() {
		return
	}
	span.SetAttributes(attribute.String("postern.source", it.ev.Source), attribute.String("postern.event", strconv.FormatInt(it.ev.ID, 10)),
		attribute.String("postern.type", it.ev.Type))
	if it.settled {
		span.SetAttributes(attribute.String("postern.outcome", "settled before"))
		return
	}
	span.SetAttributes(attribute.String("postern.outcome", string(it.outcome.status)))
	if it.key.Type != "" {
		span.SetAttributes(attribute.String("postern.object_type", it.key.Type))
	}
	if o := b.objects[it.key]; o != nil {
		span.SetAttributes(attribute.Int64("postern.revision", o.Revision))
	}
}
