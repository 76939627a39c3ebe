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
	r := &webhookRequest{sourceName: c.Param("source"), startedAt: s.Now(), sender: s.senderAddress(req)}
	r.remote = s.remoteName(req, r.sender)
	r.ctx, r.span = s.startTrace(req)
	defer r.span.End() // for an aborted handler; otherwise the span has ended by then
	var reply *provider.Reply
	err := s.recoverPanics(func() (err error) {
		if reply, err = s.dispatch(c, r); err == nil {
			reply, err = r.checkReply(reply)
		}
		return err
	})
	if err != nil {
		p := problemOf(err)
		r.result, reply = p.outcome, p.reply(!r.bodyRead && hasLargeBody(req))
		addAuthChallenge(p, r.ep, reply)
		if !r.bodyRead {
			lingerAfter(c.Response().Writer, req)
		}
	}
	s.recordResult(c, r, reply, err)
	return r.writeReply(c, reply)
}

// dispatch chooses the handler by source and method.
func (s *Server) dispatch(c echo.Context, r *webhookRequest) (*provider.Reply, error) {
	ep, registered := (*s.endpoints.Load())[r.sourceName]
	r.ep = ep
	switch method := c.Request().Method; {
	case method == http.MethodOptions:
		r.result = "method"
		return &provider.Reply{Status: http.StatusNoContent, Header: http.Header{"Allow": {allowedMethods(ep)}}}, nil
	case method != http.MethodPost && method != http.MethodGet && method != http.MethodHead:
		c.Response().Header().Set("Allow", allowedMethods(ep))
		return nil, errNotAllowed
	case !registered:
		return nil, errUnknownSource
	case len(ep.AllowFrom) > 0 && !inNetworks(ep.AllowFrom, r.sender):
		return nil, errForbiddenAddress
	case method == http.MethodPost:
		return s.receive(c, r)
	}
	reply, err := s.challenge(c, r)
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
func (r *webhookRequest) checkReply(reply *provider.Reply) (*provider.Reply, error) {
	r.reply = *reply
	if r.reply.Status == 0 {
		r.reply.Status = http.StatusOK
	}
	if s := r.reply.Status; s < 200 || s > 599 || s/100 == 3 {
		return nil, fmt.Errorf("the response of the provider has status %d", s)
	}
	return &r.reply, nil
}

// maxListedEvents is how many events of a delivery the log line and the response headers list.
const maxListedEvents = 10

// maxLoggedDetail is how many bytes of a rejection's detail are logged.
const maxLoggedDetail = 512

// recordResult counts and logs a request, and sets the response headers that help to find it again.
func (s *Server) recordResult(c echo.Context, r *webhookRequest, reply *provider.Reply, err error) {
	duration, source := s.Now().Sub(r.startedAt), r.source()
	s.metrics.deliveries.WithLabelValues(source, r.result).Inc()
	duplicates := s.countEvents(source, r.events, r.receipts)
	if r.result == "accepted" || r.result == "spooled" {
		s.metrics.ack.Observe(duration.Seconds())
	}
	ids := r.eventIDs()
	if reply.Status/100 == 2 {
		r.setEventHeaders(c.Response().Header(), ids)
	}
	s.logRequest(r, reply, err, duration, ids, duplicates)
	r.describeSpan(reply, ids)
	r.span.End()
}

// source returns the name of the source, "" if it is not configured.
func (r *webhookRequest) source() string {
	if r.ep.Config == nil {
		return ""
	}
	return r.ep.Config.Name
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
		if result == "stored" {
			s.Types.Add(source, evs[i].Type, r.ID)
		}
		if evs[i].ContentKey {
			s.metrics.contentKeys.WithLabelValues(source).Inc()
		}
	}
	return duplicates
}

// eventIDs returns Postern's ids of the first few events, separated by commas.
func (r *webhookRequest) eventIDs() string {
	if len(r.receipts) == 1 {
		return strconv.FormatInt(r.receipts[0].ID, 10)
	}
	ids := make([]string, 0, maxListedEvents)
	for _, receipt := range r.receipts[:min(len(r.receipts), maxListedEvents)] {
		ids = append(ids, strconv.FormatInt(receipt.ID, 10))
	}
	return strings.Join(ids, ",")
}

func (r *webhookRequest) setEventHeaders(h http.Header, ids string) {
	// A handshake gets an empty header, which shows a manual sender that the request was accepted
	// and stored nothing.
	if ids != "" || r.result == "handshake" {
		r.setHeader(h, "Postern-Event", ids)
	}
	if sc := r.span.SpanContext(); sc.IsSampled() {
		r.setHeader(h, "Postern-Trace-Id", sc.TraceID().String())
	}
}

// setHeader sets a header, whose name is in canonical form, without an allocation.
func (r *webhookRequest) setHeader(h http.Header, name, value string) {
	if r.headerCount == len(r.headerValues) {
		h[name] = []string{value}
		return
	}
	r.headerValues[r.headerCount] = value
	r.headerCount++
	h[name] = r.headerValues[r.headerCount-1 : r.headerCount : r.headerCount]
}

// logRequest writes the log line of a request. Repeated rejections of the same kind are suppressed
// and counted. Texts of unauthenticated clients are truncated and quoted.
func (s *Server) logRequest(r *webhookRequest, reply *provider.Reply, err error, duration time.Duration, ids string,
	duplicates int) {
	level, more := s.logLevel(r, reply.Status)
	msg := "delivery"
	if advice := r.advice(); advice != "" && level == slog.LevelInfo {
		level, msg = slog.LevelWarn, advice
	}
	if !s.Logger.Enabled(r.ctx, level) {
		return
	}
	attrs := append(r.attrs[:0], slog.String("source", shortText(r.sourceName)), slog.String("result", r.result),
		slog.Int("status", reply.Status))
	if r.reason != "" {
		attrs = append(attrs, slog.String("reason", string(r.reason)))
	}
	switch {
	case len(r.receipts) > 0:
		attrs = append(attrs, slog.String("event", ids), slog.String("event_id", r.receipts[0].Key), slog.String("type",
			r.events[0].Type), slog.Int("events", len(r.receipts)), slog.Int("duplicates", duplicates))
	case len(r.events) > 0 && (r.result == "spooled" || r.rejectedForContent()):
		attrs = append(attrs, slog.String("event_id", r.events[0].Key), slog.String("type", r.events[0].Type),
			slog.Int("events", len(r.events)))
	}
	if r.rejectedForContent() {
		attrs = append(attrs, slog.String("detail", truncate(problemOf(err).Detail, maxLoggedDetail)))
	}
	attrs = append(attrs, slog.Int("bytes", r.bodySize), slog.Float64("duration_ms", milliseconds(duration)),
		slog.String("remote", r.remote))
	if sc := r.span.SpanContext(); sc.IsSampled() {
		attrs = append(attrs, slog.String("trace_id", sc.TraceID().String()))
	}
	if more > 0 {
		attrs = append(attrs, slog.Int("more_since", more))
	}
	if err != nil && level == slog.LevelError {
		attrs = append(attrs, slog.Any("error", err))
	}
	// a group without a name is flattened, so the record needs no copy of its members
	s.Logger.LogAttrs(r.ctx, level, msg, slog.GroupAttrs("", attrs...))
}

// noSpan is a span that does nothing, for requests that are not traced.
var noSpan = trace.SpanFromContext(context.Background())

// startSpan starts a child span of the request's trace.
func (s *Server) startSpan(r *webhookRequest, name string) trace.Span {
	if s.Tracer == nil {
		return noSpan
	}
	_, span := s.Tracer.Start(r.ctx, name)
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
func (r *webhookRequest) traceparent() string {
	sc := r.span.SpanContext()
	if !sc.IsSampled() {
		return ""
	}
	return "00-" + sc.TraceID().String() + "-" + sc.SpanID().String() + "-" + sc.TraceFlags().String()
}

// describeSpan sets the result of the request on its span.
func (r *webhookRequest) describeSpan(reply *provider.Reply, ids string) {
	if !r.span.IsRecording() {
		return
	}
	r.span.SetAttributes(attribute.String("postern.result", r.result),
		attribute.Int("http.response.status_code", reply.Status), attribute.Int("http.request.body.size", r.bodySize))
	if r.ep.Config != nil {
		r.span.SetAttributes(attribute.String("postern.source", r.ep.Config.Name))
	}
	if len(r.receipts) > 0 {
		r.span.SetAttributes(attribute.String("postern.event", ids), attribute.String("postern.type", r.events[0].Type),
			attribute.Int("postern.events", len(r.receipts)))
	}
	if reply.Status >= http.StatusInternalServerError {
		r.span.SetStatus(codes.Error, r.result)
	}
}

// bufferedResponse is a size in bytes that net/http buffers for certain before it sends anything.
const bufferedResponse = 1 << 10

// writeReply sends the response. The sender may have closed the connection.
func (r *webhookRequest) writeReply(c echo.Context, reply *provider.Reply) error {
	w := c.Response()
	h := w.Header()
	for name, values := range reply.Header {
		h[name] = values
	}
	r.setHeader(h, "X-Content-Type-Options", "nosniff")
	noBody := reply.Status == http.StatusNoContent
	if !noBody {
		// for a short body net/http sets Content-Length automatically
		if c.Request().Method == http.MethodHead || len(reply.Body) > bufferedResponse {
			r.setHeader(h, "Content-Length", strconv.Itoa(len(reply.Body)))
		}
		if reply.ContentType != "" && len(reply.Body) > 0 {
			r.setHeader(h, "Content-Type", reply.ContentType)
		}
	}
	w.WriteHeader(reply.Status)
	if !noBody && c.Request().Method != http.MethodHead {
		_, _ = w.Write(reply.Body)
	}
	return nil
}
