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

// webhookRequest is one request to a source. Its result becomes one log line, one count in the
// metrics, and the response.
type webhookRequest struct {
	// sourceName is the source's name in the path. ep is that source, zero if it is not configured.
	sourceName string
	ep         Endpoint
	startedAt  time.Time
	sender     netip.Addr
	remote     string
	bodySize   int
	// bodyRead is true once the body was read to its end.
	bodyRead bool
	// result is one of a fixed set: accepted, spooled, handshake, challenge, method, or a problem's
	// outcome. reason is why the delivery was rejected.
	result string
	reason provider.Reason
	// handshake is the response to a handshake.
	handshake *provider.Reply
	events    []provider.Event
	receipts  []events.Receipt
	// bodies are the bodies of the single events if the delivery was a list; then the receipts are
	// a list too, even for one event.
	bodies [][]byte
	ctx    context.Context
	span   trace.Span
	// delivery is the request in the provider's terms. upload is the memory of its body until the
	// sender is verified; memory is that of the verified body until it is queued.
	delivery provider.Delivery
	upload   upload
	memory   reservation
	// reply is the response.
	reply provider.Reply
	// headerValues is memory for the values of the response headers; headerCount is how many are
	// used.
	headerValues [8]string
	headerCount  int
	// attrs is memory for the attributes of the log line.
	attrs [14]slog.Attr
}

// handleWebhook serves one request to a source. It records metrics and the log line before it
// writes the response.
func (s *Server) handleWebhook(c echo.Context) error {
	req := c.Request()
	v := &webhookRequest{sourceName: c.Param("source"), startedAt: s.Now(), sender: s.senderAddress(req)}
	v.remote = s.remoteName(req, v.sender)
	v.ctx, v.span = s.startTrace(req)
	defer v.span.End() // for an aborted handler; otherwise the span has ended by then
	var reply *provider.Reply
	err := s.recoverPanics(func() (err error) {
		if reply, err = s.dispatch(c, v); err == nil {
			reply, err = v.checkReply(reply)
		}
		return err
	})
	if err != nil {
		p := problemOf(err)
		v.result, reply = p.outcome, p.reply(!v.bodyRead && hasLargeBody(req))
		addAuthChallenge(p, v.ep, reply)
		if !v.bodyRead {
			lingerAfter(c.Response().Writer, req)
		}
	}
	s.recordResult(c, v, reply, err)
	return v.writeReply(c, reply)
}

// dispatch chooses the handler by source and method.
func (s *Server) dispatch(c echo.Context, v *webhookRequest) (*provider.Reply, error) {
	ep, registered := (*s.endpoints.Load())[v.sourceName]
	v.ep = ep
	switch method := c.Request().Method; {
	case method == http.MethodOptions:
		v.result = "method"
		return &provider.Reply{Status: http.StatusNoContent, Header: http.Header{"Allow": {allowedMethods(ep)}}}, nil
	case method != http.MethodPost && method != http.MethodGet && method != http.MethodHead:
		c.Response().Header().Set("Allow", allowedMethods(ep))
		return nil, errNotAllowed
	case !registered:
		return nil, errUnknownSource
	case len(ep.AllowFrom) > 0 && !inNetworks(ep.AllowFrom, v.sender):
		return nil, errForbiddenAddress
	case method == http.MethodPost:
		return s.receive(c, v)
	}
	reply, err := s.challenge(c, v)
	if err != nil {
		c.Response().Header().Set("Allow", allowedMethods(ep))
	}
	return reply, err
}

func allowedMethods(ep Endpoint) string {
	if provider.Challenges(ep.Provider) {
		return "OPTIONS, GET, HEAD, POST"
	}
	return "OPTIONS, POST"
}

// checkReply copies a provider's response, which may be shared by all requests, and checks its
// status. A redirect is an error: some senders follow it or unsubscribe.
func (v *webhookRequest) checkReply(r *provider.Reply) (*provider.Reply, error) {
	v.reply = *r
	if v.reply.Status == 0 {
		v.reply.Status = http.StatusOK
	}
	if s := v.reply.Status; s < 200 || s > 599 || s/100 == 3 {
		return nil, fmt.Errorf("the response of the provider has status %d", s)
	}
	return &v.reply, nil
}

// maxListedEvents is how many events of a delivery the log line and the response headers list.
const maxListedEvents = 10

// maxLoggedDetail is how many bytes of a rejection's detail are logged.
const maxLoggedDetail = 512

// recordResult counts and logs a request, and sets the response headers that help to find it again.
func (s *Server) recordResult(c echo.Context, v *webhookRequest, reply *provider.Reply, err error) {
	duration, source := s.Now().Sub(v.startedAt), v.source()
	s.metrics.deliveries.WithLabelValues(source, v.result).Inc()
	duplicates := s.countEvents(source, v.events, v.receipts)
	if v.result == "accepted" || v.result == "spooled" {
		s.metrics.ack.Observe(duration.Seconds())
	}
	ids := v.eventIDs()
	if reply.Status/100 == 2 {
		v.setEventHeaders(c.Response().Header(), ids)
	}
	s.logRequest(v, reply, err, duration, ids, duplicates)
	v.describeSpan(reply, ids)
	v.span.End()
}

// source returns the name of the source, "" if it is not configured.
func (v *webhookRequest) source() string {
	if v.ep.Config == nil {
		return ""
	}
	return v.ep.Config.Name
}

// countEvents counts the results of events, and returns the number of duplicates.
func (s *Server) countEvents(source string, evs []provider.Event, receipts []events.Receipt) (duplicates int) {
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

// eventIDs returns Postern's ids of the first few events, separated by commas.
func (v *webhookRequest) eventIDs() string {
	if len(v.receipts) == 1 {
		return strconv.FormatInt(v.receipts[0].ID, 10)
	}
	ids := make([]string, 0, maxListedEvents)
	for _, r := range v.receipts[:min(len(v.receipts), maxListedEvents)] {
		ids = append(ids, strconv.FormatInt(r.ID, 10))
	}
	return strings.Join(ids, ",")
}

func (v *webhookRequest) setEventHeaders(h http.Header, ids string) {
	// A handshake gets an empty header, which shows a manual sender that the request was accepted
	// and stored nothing.
	if ids != "" || v.result == "handshake" {
		v.setHeader(h, "Postern-Event", ids)
	}
	if sc := v.span.SpanContext(); sc.IsSampled() {
		v.setHeader(h, "Postern-Trace-Id", sc.TraceID().String())
	}
}

// setHeader sets a header, whose name is in canonical form, without an allocation.
func (v *webhookRequest) setHeader(h http.Header, name, value string) {
	if v.headerCount == len(v.headerValues) {
		h[name] = []string{value}
		return
	}
	v.headerValues[v.headerCount] = value
	v.headerCount++
	h[name] = v.headerValues[v.headerCount-1 : v.headerCount : v.headerCount]
}

// logRequest writes the log line of a request. Repeated rejections of the same kind are suppressed
// and counted. Texts of unauthenticated clients are truncated and quoted.
func (s *Server) logRequest(v *webhookRequest, reply *provider.Reply, err error, duration time.Duration, ids string,
	duplicates int) {
	level, more := s.logLevel(v, reply.Status)
	msg := "delivery"
	if advice := v.advice(); advice != "" && level == slog.LevelInfo {
		level, msg = slog.LevelWarn, advice
	}
	if !s.Logger.Enabled(v.ctx, level) {
		return
	}
	attrs := append(v.attrs[:0], slog.String("source", shortText(v.sourceName)), slog.String("result", v.result),
		slog.Int("status", reply.Status))
	if v.reason != "" {
		attrs = append(attrs, slog.String("reason", string(v.reason)))
	}
	switch {
	case len(v.receipts) > 0:
		attrs = append(attrs, slog.String("event", ids), slog.String("event_id", v.receipts[0].Key), slog.String("type",
			v.events[0].Type), slog.Int("events", len(v.receipts)), slog.Int("duplicates", duplicates))
	case len(v.events) > 0 && (v.result == "spooled" || v.rejectedForContent()):
		attrs = append(attrs, slog.String("event_id", v.events[0].Key), slog.String("type", v.events[0].Type),
			slog.Int("events", len(v.events)))
	}
	if v.rejectedForContent() {
		attrs = append(attrs, slog.String("detail", truncate(problemOf(err).Detail, maxLoggedDetail)))
	}
	attrs = append(attrs, slog.Int("bytes", v.bodySize), slog.Float64("duration_ms", milliseconds(duration)),
		slog.String("remote", v.remote))
	if sc := v.span.SpanContext(); sc.IsSampled() {
		attrs = append(attrs, slog.String("trace_id", sc.TraceID().String()))
	}
	if more > 0 {
		attrs = append(attrs, slog.Int("more_since", more))
	}
	if err != nil && level == slog.LevelError {
		attrs = append(attrs, slog.Any("error", err))
	}
	// a group without a name is flattened, so the record needs no copy of its members
	s.Logger.LogAttrs(v.ctx, level, msg, slog.GroupAttrs("", attrs...))
}

// noSpan is a span that does nothing, for requests that are not traced.
var noSpan = trace.SpanFromContext(context.Background())

// startSpan starts a child span of the request's trace.
func (s *Server) startSpan(v *webhookRequest, name string) trace.Span {
	if s.Tracer == nil {
		return noSpan
	}
	_, span := s.Tracer.Start(v.ctx, name)
	return span
}

// startTrace starts a new trace. A client's trace is linked but never continued, because clients
// must not decide what is sampled.
func (s *Server) startTrace(req *http.Request) (context.Context, trace.Span) {
	if s.Tracer == nil {
		return context.Background(), noSpan
	}
	options := []trace.SpanStartOption{trace.WithNewRoot(), trace.WithSpanKind(trace.SpanKindServer)}
	if req.Header.Get("Traceparent") != "" {
		if remote := (propagation.TraceContext{}).Extract(context.Background(),
			propagation.HeaderCarrier(req.Header)); trace.SpanContextFromContext(remote).IsValid() {
			options = append(options, trace.WithLinks(trace.LinkFromContext(remote)))
		}
	}
	method := req.Method
	if !slices.Contains([]string{http.MethodPost, http.MethodGet, http.MethodHead, http.MethodOptions}, method) {
		method = "HTTP" // a client may send any text
	}
	return s.Tracer.Start(context.Background(), method+" /webhooks/{source}", options...)
}

// traceparent returns the request's W3C traceparent, "" if it is not sampled.
func (v *webhookRequest) traceparent() string {
	sc := v.span.SpanContext()
	if !sc.IsSampled() {
		return ""
	}
	return "00-" + sc.TraceID().String() + "-" + sc.SpanID().String() + "-" + sc.TraceFlags().String()
}

// describeSpan sets the result of the request on its span.
func (v *webhookRequest) describeSpan(reply *provider.Reply, ids string) {
	if !v.span.IsRecording() {
		return
	}
	v.span.SetAttributes(attribute.String("postern.result", v.result),
		attribute.Int("http.response.status_code", reply.Status), attribute.Int("http.request.body.size", v.bodySize))
	if v.ep.Config != nil {
		v.span.SetAttributes(attribute.String("postern.source", v.ep.Config.Name))
	}
	if len(v.receipts) > 0 {
		v.span.SetAttributes(attribute.String("postern.event", ids), attribute.String("postern.type", v.events[0].Type),
			attribute.Int("postern.events", len(v.receipts)))
	}
	if reply.Status >= http.StatusInternalServerError {
		v.span.SetStatus(codes.Error, v.result)
	}
}

// bufferedResponse is a size in bytes that net/http buffers for certain before it sends anything.
const bufferedResponse = 1 << 10

// writeReply sends the response. The sender may have closed the connection.
func (v *webhookRequest) writeReply(c echo.Context, r *provider.Reply) error {
	w := c.Response()
	h := w.Header()
	for name, values := range r.Header {
		h[name] = values
	}
	v.setHeader(h, "X-Content-Type-Options", "nosniff")
	noBody := r.Status == http.StatusNoContent
	if !noBody {
		// for a short body net/http sets Content-Length automatically
		if c.Request().Method == http.MethodHead || len(r.Body) > bufferedResponse {
			v.setHeader(h, "Content-Length", strconv.Itoa(len(r.Body)))
		}
		if r.ContentType != "" && len(r.Body) > 0 {
			v.setHeader(h, "Content-Type", r.ContentType)
		}
	}
	w.WriteHeader(r.Status)
	if !noBody && c.Request().Method != http.MethodHead {
		_, _ = w.Write(r.Body)
	}
	return nil
}
