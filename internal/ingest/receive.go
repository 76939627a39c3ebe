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
func (s *Server) receive(c echo.Context, r *webhookRequest) (*provider.Reply, error) {
	req := c.Request()
	if !r.ep.limiter.allows(r.startedAt) {
		return nil, errRateLimited
	}
	r.upload = upload{pool: &s.uploads, writer: c.Response()}
	defer r.upload.release()
	r.memory = reservation{quotas: s.memory, source: r.ep.Config.Name}
	defer r.memory.release()
	body, err := s.readRequestBody(r, req)
	if err != nil {
		return nil, err
	}
	r.bodySize, r.bodyRead = len(body), true
	d := r.newDelivery(req)
	d.Body = body
	verification, err := s.verify(r, d)
	if err != nil || r.handshake != nil {
		return r.handshake, err
	}
	if !r.ep.limiter.take(s.Now()) {
		return nil, errRateLimited
	}
	s.liftReadDeadline(c, r)
	if err := s.storeDelivery(r, d, verification); err != nil {
		return nil, err
	}
	if a, ok := r.ep.Provider.(provider.Acknowledger); ok {
		if reply := a.Acknowledge(r.ep.Config, d); reply != nil {
			return reply, nil
		}
	}
	receipts := receiptsBody(r.receipts, r.bodies != nil)
	if r.result == "spooled" {
		receipts = spooledBody(r.events, r.bodies != nil)
	}
	r.reply = provider.Reply{ContentType: "application/json", Body: receipts}
	return &r.reply, nil
}

// slowRead is the duration of a request above which its read deadline is lifted. Most requests are
// faster and need not pay for that.
const slowRead = time.Second

// liftReadDeadline removes the read deadline once the body is read. After that net/http reads only
// to notice a lost connection.
func (s *Server) liftReadDeadline(c echo.Context, r *webhookRequest) {
	if s.Now().Sub(r.startedAt) > slowRead {
		// ignore a writer that has no deadlines: there is none to lift
		_ = http.NewResponseController(c.Response()).SetReadDeadline(time.Time{})
	}
}

// verify verifies a delivery and identifies its events. Only a verified delivery may reach the
// database; a rejected one goes to the rejection store. A handshake is no event: r.handshake is the
// response to it.
func (s *Server) verify(r *webhookRequest, d *provider.Delivery) (provider.Verification, error) {
	defer s.startSpan(r, "verify").End()
	release, err := s.largeBodies.acquire(len(d.Body), s.Settings.Deadline)
	if err != nil {
		return provider.Verification{}, err
	}
	defer release() // also if the provider panics
	verification, err := r.ep.Provider.Verify(r.ep.Config, d)
	if err == nil && verification.Secret != "" {
		s.metrics.verified.WithLabelValues(r.ep.Config.Name, verification.Secret).Inc()
	}
	if g, ok := r.ep.Provider.(provider.Handshaker); ok && err == nil {
		if r.handshake = g.Handshake(r.ep.Config, d); r.handshake != nil {
			r.result = "handshake"
			return verification, nil
		}
	}
	if err == nil {
		err = r.chargeSource(d)
	}
	if err == nil {
		err = r.accept(d)
	}
	if err == nil {
		r.events, err = r.ep.Provider.Identify(r.ep.Config, d)
	}
	if err == nil {
		return verification, nil
	}
	var rejection *provider.Rejection
	if errors.As(err, &rejection) {
		r.reason = rejection.Reason
		s.rejections.add(r.ep, d, rejection, r.remote)
		s.metrics.rejections.WithLabelValues(r.ep.Config.Name, string(rejection.Reason)).Inc()
		return verification, errUnauthenticated
	}
	return verification, err
}

// chargeSource counts a verified body in its source's quota instead of in the uploads. Errors:
// errOverloaded.
func (r *webhookRequest) chargeSource(d *provider.Delivery) error {
	if !r.memory.grow(int64(cap(d.Body))) {
		return errOverloaded
	}
	r.upload.release()
	return nil
}

// storeDelivery makes a delivery durable in the log, or in the spool while PostgreSQL is
// unavailable.
func (s *Server) storeDelivery(r *webhookRequest, d *provider.Delivery, verification provider.Verification) error {
	delivery := toLogDelivery(r.ep, d, verification, r.events, r.bodies)
	queued, err := s.appendDelivery(r, delivery)
	if err != nil && problemOf(err) == errUnavailable {
		err = s.spoolDelivery(r, delivery)
	}
	if queued != nil {
		s.appender.queue.abandon(queued)
	}
	return err
}

// appendDelivery queues a delivery and waits for its receipts. Once the delivery is queued, the
// queue releases its memory. unfinished is the delivery if there is no result yet.
func (s *Server) appendDelivery(r *webhookRequest, d events.Delivery) (unfinished *queuedDelivery, err error) {
	defer s.startSpan(r, "append").End()
	queued := s.appender.newQueued(queuedDelivery{ep: r.ep, delivery: d, trace: r.traceparent(), memory: r.memory})
	if err := s.appender.enqueue(queued); err != nil {
		return nil, err
	}
	r.memory = reservation{}
	res, done := s.appender.wait(queued)
	if !done {
		return queued, errUnavailable
	}
	if res.err == nil {
		r.result, r.receipts = "accepted", res.receipts
	}
	return nil, res.err
}

// readRequestBody reads the body within all limits, into memory that grows with it.
func (s *Server) readRequestBody(r *webhookRequest, req *http.Request) ([]byte, error) {
	for _, enc := range req.Header.Values("Content-Encoding") {
		if enc != "" && !strings.EqualFold(enc, "identity") {
			return nil, errEncoding
		}
	}
	if req.ContentLength > r.ep.MaxBody {
		return nil, errTooLarge
	}
	if !s.memory.fits(r.ep.Config.Name, max(req.ContentLength, 1)) {
		return nil, errOverloaded // the verified deliveries of the source fill its quota
	}
	return readBody(req, r.ep.MaxBody, &r.upload)
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
func (s *Server) challenge(c echo.Context, r *webhookRequest) (*provider.Reply, error) {
	challenger, ok := r.ep.Provider.(provider.Challenger)
	if !ok {
		return nil, errNotAllowed
	}
	reply := challenger.Challenge(r.ep.Config, r.newDelivery(c.Request()))
	if reply == nil {
		return nil, errNotAllowed
	}
	r.result = "challenge"
	return reply, nil
}

// newDelivery returns the request as a provider.Delivery, without its body.
func (r *webhookRequest) newDelivery(req *http.Request) *provider.Delivery {
	r.delivery = provider.Delivery{Method: req.Method, Query: req.URL.RawQuery, Header: req.Header,
		ReceivedAt: r.startedAt.UTC().Truncate(time.Microsecond)}
	return &r.delivery
}
