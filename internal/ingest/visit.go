package ingest

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/labstack/echo/v4"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/provider"
)

// visit is one request to a source: what became of it goes into one line of the log, one count, and its answer.
type visit struct {
	// asked is the source's name as the path has it; ep is that source, zero where none is configured.
	asked  string
	ep     Endpoint
	began  time.Time
	sender netip.Addr
	remote string
	bytes  int
	// read: the body was read to its end.
	read bool
	// result is a word of a closed set: accepted, greeting, challenge, or a problem's outcome. reason is why it was rejected.
	result string
	reason provider.Reason
	// greeting is the answer to a delivery that is no event.
	greeting *provider.Reply
	events   []provider.Event
	receipts []events.Receipt
	// bodies are the events' own, where they came as a list; then the receipt is a list too, be it of one.
	bodies [][]byte
	ctx    context.Context
	span   trace.Span
	// request is the delivery in the provider's terms. upload is the memory of its body until the sender is verified, and
	// memory that of the verified body until the queue has it.
	request provider.Delivery
	upload  upload
	memory  part
	// reply is the answer.
	reply provider.Reply
	// values are of the answer's headers, of which there are so many.
	values [8]string
	set    int
	// attrs are of the visit's line in the log.
	attrs [14]slog.Attr
}

// door answers a request to a source, whatever becomes of it. Nothing is written before everything about it is counted.
func (s *Server) door(c echo.Context) error {
	req := c.Request()
	v := &visit{asked: c.Param("source"), began: s.Now(), sender: s.sender(req)}
	v.remote = s.remote(req, v.sender)
	v.ctx, v.span = s.startTrace(req)
	defer v.span.End() // where a handler was aborted; else it has ended by then
	var reply *provider.Reply
	err := s.guard(func() (err error) {
		if reply, err = s.answer(c, v); err == nil {
			reply, err = v.checked(reply)
		}
		return err
	})
	if err != nil {
		p := problemOf(err)
		v.result, reply = p.outcome, p.reply(!v.read && unbounded(req))
		challenged(p, v.ep, reply)
		if !v.read {
			lingerAfter(c.Response().Writer, req)
		}
	}
	s.told(c, v, reply, err)
	return v.write(c, reply)
}

// answer decides by source and method.
func (s *Server) answer(c echo.Context, v *visit) (*provider.Reply, error) {
	ep, known := (*s.endpoints.Load())[v.asked]
	v.ep = ep
	switch method := c.Request().Method; {
	case method == http.MethodOptions:
		v.result = "method"
		return &provider.Reply{Status: http.StatusNoContent, Header: http.Header{"Allow": {allow(ep)}}}, nil
	case method != http.MethodPost && method != http.MethodGet && method != http.MethodHead:
		c.Response().Header().Set("Allow", allow(ep))
		return nil, errNotAllowed
	case !known:
		return nil, errUnknownSource
	case len(ep.AllowFrom) > 0 && !among(ep.AllowFrom, v.sender):
		return nil, errElsewhere
	case method == http.MethodPost:
		return s.receive(c, v)
	}
	reply, err := s.challenge(c, v)
	if err != nil {
		c.Response().Header().Set("Allow", allow(ep))
	}
	return reply, err
}

func allow(ep Endpoint) string {
	if provider.Challenges(ep.Provider) {
		return "OPTIONS, GET, HEAD, POST"
	}
	return "OPTIONS, POST"
}

// checked is a copy of an answer, which may be one that the provider gives every time. What no provider may answer is an error: a
// redirection makes some senders unsubscribe or follow it.
func (v *visit) checked(r *provider.Reply) (*provider.Reply, error) {
	v.reply = *r
	if v.reply.Status == 0 {
		v.reply.Status = http.StatusOK
	}
	if s := v.reply.Status; s < 200 || s > 599 || s/100 == 3 {
		return nil, fmt.Errorf("the provider's answer has status %d", s)
	}
	return &v.reply, nil
}

// shownEvents is how many of a delivery's events the log and the answer's headers name.
const shownEvents = 10

// shownDetail is how much of why a delivery was refused the log tells, in bytes.
const shownDetail = 512

// told counts and logs a visit, and puts into the answer's headers how to find it again.
func (s *Server) told(c echo.Context, v *visit, reply *provider.Reply, err error) {
	took, source := s.Now().Sub(v.began), v.source()
	s.metrics.deliveries.WithLabelValues(source, v.result).Inc()
	duplicates := s.count(source, v.events, v.receipts)
	if v.result == "accepted" || v.result == "spooled" {
		s.metrics.ack.Observe(took.Seconds())
	}
	ids := v.ids()
	if reply.Status/100 == 2 {
		v.headers(c.Response().Header(), ids)
	}
	s.log(v, reply, err, took, ids, duplicates)
	v.describe(reply, ids)
	v.span.End()
}

// source is the name of the source, "" where none of that name is configured.
func (v *visit) source() string {
	if v.ep.Config == nil {
		return ""
	}
	return v.ep.Config.Name
}

// count counts what became of events, and returns how many of them were there.
func (s *Server) count(source string, evs []provider.Event, receipts []events.Receipt) (duplicates int) {
	for i, r := range receipts {
		result := "stored"
		switch {
		case r.Conflict:
			result = "conflict"
		case r.Duplicate:
			result = "duplicate"
		}
		if r.Duplicate {
			duplicates++
		}
		s.metrics.events.WithLabelValues(source, result).Inc()
		if evs[i].ContentKey {
			s.metrics.contentKeys.WithLabelValues(source).Inc()
		}
	}
	return duplicates
}

// ids are ours of the visit's events, the first few, separated by commas.
func (v *visit) ids() string {
	if len(v.receipts) == 1 {
		return strconv.FormatInt(v.receipts[0].ID, 10)
	}
	ids := make([]string, 0, shownEvents)
	for _, r := range v.receipts[:min(len(v.receipts), shownEvents)] {
		ids = append(ids, strconv.FormatInt(r.ID, 10))
	}
	return strings.Join(ids, ",")
}

func (v *visit) headers(h http.Header, ids string) {
	if ids != "" || v.result == "greeting" { // whoever sends by hand sees that it was taken and nothing is stored
		v.header(h, "Postern-Event", ids)
	}
	if sc := v.span.SpanContext(); sc.IsSampled() {
		v.header(h, "Postern-Trace-Id", sc.TraceID().String())
	}
}

// header sets a header, whose name is in canonical form, in the visit's own memory.
func (v *visit) header(h http.Header, name, value string) {
	if v.set == len(v.values) {
		h[name] = []string{value}
		return
	}
	v.values[v.set] = value
	v.set++
	h[name] = v.values[v.set-1 : v.set : v.set]
}

// log writes the visit's line; of refusals of one kind one in a while, with how many there were. A stranger's text in it is short and quoted.
func (s *Server) log(v *visit, reply *provider.Reply, err error, took time.Duration, ids string, duplicates int) {
	level, more := s.level(v, reply.Status)
	msg := "delivery"
	if advice := v.advice(); advice != "" && level == slog.LevelInfo {
		level, msg = slog.LevelWarn, advice
	}
	if !s.Logger.Enabled(v.ctx, level) {
		return
	}
	attrs := append(v.attrs[:0], slog.String("source", shortened(v.asked)), slog.String("result", v.result), slog.Int("status", reply.Status))
	if v.reason != "" {
		attrs = append(attrs, slog.String("reason", string(v.reason)))
	}
	switch {
	case len(v.receipts) > 0:
		attrs = append(attrs, slog.String("event", ids), slog.String("event_id", v.receipts[0].Key), slog.String("type", v.events[0].Type),
			slog.Int("events", len(v.receipts)), slog.Int("duplicates", duplicates))
	case len(v.events) > 0 && (v.result == "spooled" || v.mistaken()):
		attrs = append(attrs, slog.String("event_id", v.events[0].Key), slog.String("type", v.events[0].Type), slog.Int("events", len(v.events)))
	}
	if v.mistaken() {
		attrs = append(attrs, slog.String("detail", cut(problemOf(err).Detail, shownDetail)))
	}
	attrs = append(attrs, slog.Int("bytes", v.bytes), slog.Float64("duration_ms", milliseconds(took)), slog.String("remote", v.remote))
	if sc := v.span.SpanContext(); sc.IsSampled() {
		attrs = append(attrs, slog.String("trace_id", sc.TraceID().String()))
	}
	if more > 0 {
		attrs = append(attrs, slog.Int("more_since", more))
	}
	if err != nil && level == slog.LevelError {
		attrs = append(attrs, slog.Any("error", err))
	}
	s.Logger.LogAttrs(v.ctx, level, msg, slog.GroupAttrs("", attrs...)) // a group without a name is its members, of which the record needs no copy
}

// noSpan is the span of what nobody traces: it does nothing.
var noSpan = trace.SpanFromContext(context.Background())

// startSpan begins a part of a visit's trace.
func (s *Server) startSpan(v *visit, name string) trace.Span {
	if s.Tracer == nil {
		return noSpan
	}
	_, span := s.Tracer.Start(v.ctx, name)
	return span
}

// startTrace begins a trace of our own. A stranger's is linked to, never continued: nobody else chooses what we sample.
func (s *Server) startTrace(req *http.Request) (context.Context, trace.Span) {
	if s.Tracer == nil {
		return context.Background(), noSpan
	}
	options := []trace.SpanStartOption{trace.WithNewRoot(), trace.WithSpanKind(trace.SpanKindServer)}
	if req.Header.Get("Traceparent") != "" {
		if theirs := (propagation.TraceContext{}).Extract(context.Background(), propagation.HeaderCarrier(req.Header)); trace.SpanContextFromContext(theirs).IsValid() {
			options = append(options, trace.WithLinks(trace.LinkFromContext(theirs)))
		}
	}
	method := req.Method
	if !slices.Contains([]string{http.MethodPost, http.MethodGet, http.MethodHead, http.MethodOptions}, method) {
		method = "HTTP" // a stranger may write anything
	}
	return s.Tracer.Start(context.Background(), method+" /webhooks/{source}", options...)
}

// trace is the visit's W3C traceparent, "" where it is not sampled.
func (v *visit) trace() string {
	sc := v.span.SpanContext()
	if !sc.IsSampled() {
		return ""
	}
	return "00-" + sc.TraceID().String() + "-" + sc.SpanID().String() + "-" + sc.TraceFlags().String()
}

// describe puts what became of the visit into its span.
func (v *visit) describe(reply *provider.Reply, ids string) {
	if !v.span.IsRecording() {
		return
	}
	v.span.SetAttributes(attribute.String("postern.result", v.result), attribute.Int("http.response.status_code", reply.Status),
		attribute.Int("http.request.body.size", v.bytes))
	if v.ep.Config != nil {
		v.span.SetAttributes(attribute.String("postern.source", v.ep.Config.Name))
	}
	if len(v.receipts) > 0 {
		v.span.SetAttributes(attribute.String("postern.event", ids), attribute.String("postern.type", v.events[0].Type), attribute.Int("postern.events", len(v.receipts)))
	}
	if reply.Status >= http.StatusInternalServerError {
		v.span.SetStatus(codes.Error, v.result)
	}
}

// shortAnswer is how many bytes net/http surely gathers before it sends anything.
const shortAnswer = 1 << 10

// write sends an answer. The sender may be gone.
func (v *visit) write(c echo.Context, r *provider.Reply) error {
	w := c.Response()
	h := w.Header()
	for name, values := range r.Header {
		h[name] = values
	}
	v.header(h, "X-Content-Type-Options", "nosniff")
	bodiless := r.Status == http.StatusNoContent
	if !bodiless {
		if c.Request().Method == http.MethodHead || len(r.Body) > shortAnswer { // of a short one net/http tells the length by itself
			v.header(h, "Content-Length", strconv.Itoa(len(r.Body)))
		}
		if r.ContentType != "" && len(r.Body) > 0 {
			v.header(h, "Content-Type", r.ContentType)
		}
	}
	w.WriteHeader(r.Status)
	if !bodiless && c.Request().Method != http.MethodHead {
		_, _ = w.Write(r.Body)
	}
	return nil
}
