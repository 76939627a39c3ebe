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

// receive takes one delivery: limits, proof, identity, commit, receipt, in this order.
func (s *Server) receive(c echo.Context, v *visit) (*provider.Reply, error) {
	req := c.Request()
	if !v.ep.limit.open(v.began) {
		return nil, errLimited
	}
	v.upload = upload{pool: &s.uploads, writer: c.Response()}
	defer v.upload.release()
	v.memory = part{of: s.memory, source: v.ep.Config.Name}
	defer v.memory.release()
	body, err := s.read(v, req)
	if err != nil {
		return nil, err
	}
	v.bytes, v.read = len(body), true
	d := v.delivery(req)
	d.Body = body
	verification, err := s.prove(v, d)
	if err != nil || v.greeting != nil {
		return v.greeting, err
	}
	if !v.ep.limit.take(s.Now()) {
		return nil, errLimited
	}
	s.liftReadDeadline(c, v)
	if err := s.store(v, d, verification); err != nil {
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

// slowRead is how long a request may have been read until now without its deadline being near: most need not pay for lifting it.
const slowRead = time.Second

// liftReadDeadline ends the time for a request with its body; what net/http still reads is only whether the sender is there.
func (s *Server) liftReadDeadline(c echo.Context, v *visit) {
	if s.Now().Sub(v.began) > slowRead {
		_ = http.NewResponseController(c.Response()).SetReadDeadline(time.Time{}) // a writer without deadlines has none to lift
	}
}

// prove verifies a delivery and names its events. Only what it lets pass may reach the database; what it refuses is kept apart.
// A delivery that the provider wants greeted is no event: v.greeting is its answer.
func (s *Server) prove(v *visit, d *provider.Delivery) (provider.Verification, error) {
	defer s.startSpan(v, "verify").End()
	leave, err := s.large.enter(len(d.Body), s.Settings.Deadline)
	if err != nil {
		return provider.Verification{}, err
	}
	defer leave() // also of a provider that panics
	verification, err := v.ep.Provider.Verify(v.ep.Config, d)
	if g, ok := v.ep.Provider.(provider.Greeter); ok && err == nil {
		if v.greeting = g.Greet(v.ep.Config, d); v.greeting != nil {
			v.result = "greeting"
			return verification, nil
		}
	}
	if err == nil {
		err = v.admit(d)
	}
	if err == nil {
		err = v.accepted(d)
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
		s.rejections.offer(v.ep, d, rejection, v.remote)
		s.metrics.rejections.WithLabelValues(v.ep.Config.Name, string(rejection.Reason)).Inc()
		return verification, errUnauthenticated
	}
	return verification, err
}

// admit counts a verified body in its source's share instead of among the uploads. Errors: errFull.
func (v *visit) admit(d *provider.Delivery) error {
	if !v.memory.grow(int64(cap(d.Body))) {
		return errFull
	}
	v.upload.release()
	return nil
}

// store makes a delivery durable: in the log, or, while that is away, in the spool.
func (s *Server) store(v *visit, d *provider.Delivery, verification provider.Verification) error {
	delivery := toAppend(v.ep, d, verification, v.events, v.bodies)
	w, err := s.append(v, delivery)
	if err != nil && problemOf(err) == errUnavailable {
		err = s.spooled(v, delivery)
	}
	if w != nil {
		s.appender.queue.leave(w)
	}
	return err
}

// append waits for a delivery's receipts. Once it is in the queue its memory is the queue's to release. left is what is in the queue still.
func (s *Server) append(v *visit, d events.Delivery) (left *waiting, err error) {
	defer s.startSpan(v, "append").End()
	var landed func()
	if d.Exact {
		var ok bool
		if landed, ok = s.flights.begin(v.ep.Config.Name, d.Events); !ok {
			if s.appender.hangs() {
				return nil, errUnavailable // who comes again a moment later would be told the same for as long as that lasts
			}
			return nil, errInFlight
		}
	}
	w := s.appender.waiting(waiting{ep: v.ep, delivery: d, trace: v.trace(), memory: v.memory, landed: landed})
	if err := s.appender.enqueue(w); err != nil {
		if landed != nil {
			landed()
		}
		return nil, err
	}
	v.memory = part{}
	r, answered := s.appender.wait(w)
	if !answered {
		return w, errUnavailable
	}
	if r.err == nil {
		v.result, v.receipts = "accepted", r.receipts
	}
	return nil, r.err
}

// read takes the body within all bounds, in memory that grows with it.
func (s *Server) read(v *visit, req *http.Request) ([]byte, error) {
	for _, enc := range req.Header.Values("Content-Encoding") {
		if enc != "" && !strings.EqualFold(enc, "identity") {
			return nil, errEncoding
		}
	}
	if req.ContentLength > v.ep.MaxBody {
		return nil, errTooLarge
	}
	if !s.memory.fits(v.ep.Config.Name, max(req.ContentLength, 1)) {
		return nil, errFull // the source's verified deliveries fill its share
	}
	return readBody(req, v.ep.MaxBody, &v.upload)
}

// The memory of a body, in bytes. Its first bytes need none of their own, so clients that announce much and send nothing hold
// nothing. After that it is a multiple of what has arrived: a client holds four times as much as it has sent, or twice where
// that is much.
const (
	firstBytes = 512
	firstStep  = 4 * firstBytes
	secondStep = 4 * firstStep
)

// readBody reads a body into memory that grows as the bytes arrive. Errors: errFull, errSlow, errTooLarge, errBody.
func readBody(req *http.Request, maxBody int64, u *upload) ([]byte, error) {
	most := maxBody + 1 // one more, to see the end without growing
	if req.ContentLength >= 0 {
		most = req.ContentLength + 1
	}
	body, size := u.first[:0:min(firstBytes, most)], int64(firstStep)
	for {
		for len(body) < cap(body) {
			n, err := req.Body.Read(body[len(body):cap(body)])
			body = body[:len(body)+n]
			if int64(len(body)) > maxBody {
				return nil, errTooLarge
			}
			if err == io.EOF { //nolint:errorlint // io.Reader promises the value itself
				if u.size == 0 {
					body = bytes.Clone(body) // it outlives the request
				}
				return body, u.complete()
			}
			if err != nil {
				return nil, cmp.Or(u.complete(), error(errBody))
			}
		}
		if err := u.grow(min(size, most)); err != nil {
			return nil, err
		}
		body = append(make([]byte, 0, min(size, most)), body...)
		size = max(2*size, secondStep)
	}
}

// challenge answers a request by which a provider asks whether the address is ours. It costs no memory and no database.
func (s *Server) challenge(c echo.Context, v *visit) (*provider.Reply, error) {
	asked, ok := v.ep.Provider.(provider.Challenger)
	if !ok {
		return nil, errNotAllowed
	}
	reply := asked.Challenge(v.ep.Config, v.delivery(c.Request()))
	if reply == nil {
		return nil, errNotAllowed
	}
	v.result = "challenge"
	return reply, nil
}

// delivery is a request in the provider's terms, without its body.
func (v *visit) delivery(req *http.Request) *provider.Delivery {
	v.request = provider.Delivery{Method: req.Method, Query: req.URL.RawQuery, Header: req.Header, ReceivedAt: v.began.UTC().Truncate(time.Microsecond)}
	return &v.request
}
