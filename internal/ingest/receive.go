package ingest

import (
	"bytes"
	"cmp"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/provider"
)

// receive handles one delivery: limits, verification, identification, commit, receipt, in this
// order.
func (s *Server) receive(c echo.Context, v *webhookRequest) (*provider.Reply, error) {
	req := c.Request()
	if !v.ep.limiter.allows(v.startedAt) {
		return nil, errRateLimited
	}
	v.upload = upload{pool: &s.uploads, writer: c.Response()}
	defer v.upload.release()
	v.memory = reservation{quotas: s.memory, source: v.ep.Config.Name}
	defer v.memory.release()
	body, err := s.readRequestBody(v, req)
	if err != nil {
		return nil, err
	}
	v.bodySize, v.bodyRead = len(body), true
	d := v.newDelivery(req)
	d.Body = body
	verification, err := s.verify(v, d)
	if err != nil || v.handshake != nil {
		return v.handshake, err
	}
	if !v.ep.limiter.take(s.Now()) {
		return nil, errRateLimited
	}
	s.liftReadDeadline(c, v)
	if err := s.storeDelivery(v, d, verification); err != nil {
		return nil, err
	}
	if a, ok := v.ep.Provider.(provider.Acknowledger); ok {
		if reply := a.Acknowledge(v.ep.Config, d); reply != nil {
			return reply, nil
		}
	}
	receipts := receiptsBody(v.receipts, v.bodies != nil)
	if v.result == "spooled" {
		receipts = spooledBody(v.events, v.bodies != nil)
	}
	v.reply = provider.Reply{ContentType: "application/json", Body: receipts}
	return &v.reply, nil
}

// slowRead is the duration of a request above which its read deadline is lifted. Most requests are
// faster and need not pay for that.
const slowRead = time.Second

// liftReadDeadline removes the read deadline once the body is read. After that net/http reads only
// to notice a lost connection.
func (s *Server) liftReadDeadline(c echo.Context, v *webhookRequest) {
	if s.Now().Sub(v.startedAt) > slowRead {
		// ignore a writer that has no deadlines: there is none to lift
		_ = http.NewResponseController(c.Response()).SetReadDeadline(time.Time{})
	}
}

// verify verifies a delivery and identifies its events. Only a verified delivery may reach the
// database; a rejected one goes to the rejection store. A handshake is no event: v.handshake is the
// response to it.
func (s *Server) verify(v *webhookRequest, d *provider.Delivery) (provider.Verification, error) {
	defer s.startSpan(v, "verify").End()
	release, err := s.largeBodies.acquire(len(d.Body), s.Settings.Deadline)
	if err != nil {
		return provider.Verification{}, err
	}
	defer release() // also if the provider panics
	verification, err := v.ep.Provider.Verify(v.ep.Config, d)
	if g, ok := v.ep.Provider.(provider.Handshaker); ok && err == nil {
		if v.handshake = g.Handshake(v.ep.Config, d); v.handshake != nil {
			v.result = "handshake"
			return verification, nil
		}
	}
	if err == nil {
		err = v.chargeSource(d)
	}
	if err == nil {
		err = v.accept(d)
	}
	if err == nil {
		v.events, err = v.ep.Provider.Identify(v.ep.Config, d)
	}
	if err == nil {
		return verification, nil
	}
	var rejection *provider.Rejection
	if errors.As(err, &rejection) {
		v.reason = rejection.Reason
		s.rejections.add(v.ep, d, rejection, v.remote)
		s.metrics.rejections.WithLabelValues(v.ep.Config.Name, string(rejection.Reason)).Inc()
		return verification, errUnauthenticated
	}
	return verification, err
}

// chargeSource counts a verified body in its source's quota instead of in the uploads. Errors:
// errOverloaded.
func (v *webhookRequest) chargeSource(d *provider.Delivery) error {
	if !v.memory.grow(int64(cap(d.Body))) {
		return errOverloaded
	}
	v.upload.release()
	return nil
}

// storeDelivery makes a delivery durable in the log, or in the spool while PostgreSQL is
// unavailable.
func (s *Server) storeDelivery(v *webhookRequest, d *provider.Delivery, verification provider.Verification) error {
	delivery := toLogDelivery(v.ep, d, verification, v.events, v.bodies)
	w, err := s.appendDelivery(v, delivery)
	if err != nil && problemOf(err) == errUnavailable {
		err = s.spoolDelivery(v, delivery)
	}
	if w != nil {
		s.appender.queue.abandon(w)
	}
	return err
}

// appendDelivery queues a delivery and waits for its receipts. Once the delivery is queued, the
// queue releases its memory. unfinished is the delivery if there is no result yet.
func (s *Server) appendDelivery(v *webhookRequest, d events.Delivery) (unfinished *queuedDelivery, err error) {
	defer s.startSpan(v, "append").End()
	w := s.appender.newQueued(queuedDelivery{ep: v.ep, delivery: d, trace: v.traceparent(), memory: v.memory})
	if err := s.appender.enqueue(w); err != nil {
		return nil, err
	}
	v.memory = reservation{}
	r, done := s.appender.wait(w)
	if !done {
		return w, errUnavailable
	}
	if r.err == nil {
		v.result, v.receipts = "accepted", r.receipts
	}
	return nil, r.err
}

// readRequestBody reads the body within all limits, into memory that grows with it.
func (s *Server) readRequestBody(v *webhookRequest, req *http.Request) ([]byte, error) {
	for _, enc := range req.Header.Values("Content-Encoding") {
		if enc != "" && !strings.EqualFold(enc, "identity") {
			return nil, errEncoding
		}
	}
	if req.ContentLength > v.ep.MaxBody {
		return nil, errTooLarge
	}
	if !s.memory.fits(v.ep.Config.Name, max(req.ContentLength, 1)) {
		return nil, errOverloaded // the verified deliveries of the source fill its quota
	}
	return readBody(req, v.ep.MaxBody, &v.upload)
}

// The memory of a body, in bytes. The first bytes need no memory of their own, so a client that
// announces much and sends nothing holds nothing. After that the memory is at most four times the
// received bytes, or twice for large bodies.
const (
	firstBytes = 512
	firstStep  = 4 * firstBytes
	secondStep = 4 * firstStep
)

// readBody reads a body into memory that grows as the bytes arrive. Errors: errOverloaded, errSlow,
// errTooLarge, errBodyIncomplete.
func readBody(req *http.Request, maxBody int64, u *upload) ([]byte, error) {
	limit := maxBody + 1 // one more byte, to see the end without growing
	if req.ContentLength >= 0 {
		limit = req.ContentLength + 1
	}
	body, size := u.first[:0:min(firstBytes, limit)], int64(firstStep)
	for {
		for len(body) < cap(body) {
			n, err := req.Body.Read(body[len(body):cap(body)])
			body = body[:len(body)+n]
			if int64(len(body)) > maxBody {
				return nil, errTooLarge
			}
			if err == io.EOF { //nolint:errorlint // io.Reader promises the value itself
				if u.size == 0 {
					body = bytes.Clone(body) // the copy outlives the request
				}
				return body, u.complete()
			}
			if err != nil {
				return nil, cmp.Or(u.complete(), error(errBodyIncomplete))
			}
		}
		if err := u.grow(min(size, limit)); err != nil {
			return nil, err
		}
		body = append(make([]byte, 0, min(size, limit)), body...)
		size = max(2*size, secondStep)
	}
}

// challenge responds to a request with which a provider checks who owns the address. It uses no
// memory quota and no database.
func (s *Server) challenge(c echo.Context, v *webhookRequest) (*provider.Reply, error) {
	challenger, ok := v.ep.Provider.(provider.Challenger)
	if !ok {
		return nil, errNotAllowed
	}
	reply := challenger.Challenge(v.ep.Config, v.newDelivery(c.Request()))
	if reply == nil {
		return nil, errNotAllowed
	}
	v.result = "challenge"
	return reply, nil
}

// newDelivery returns the request as a provider.Delivery, without its body.
func (v *webhookRequest) newDelivery(req *http.Request) *provider.Delivery {
	v.delivery = provider.Delivery{Method: req.Method, Query: req.URL.RawQuery, Header: req.Header,
		ReceivedAt: v.startedAt.UTC().Truncate(time.Microsecond)}
	return &v.delivery
}
