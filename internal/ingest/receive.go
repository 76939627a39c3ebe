package ingest

import (
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/provider"
)

// receipt is the answer to one event of a delivery.
type receipt struct {
	EventID    string `json:"event_id"`
	ID         string `json:"id"`
	Duplicate  bool   `json:"duplicate"`
	ReceivedAt string `json:"received_at"`
	Conflict   bool   `json:"conflict,omitempty"`
}

// timeFormat is RFC 3339 in UTC with microseconds.
const timeFormat = "2006-01-02T15:04:05.000000Z07:00"

// receive takes one delivery: limits, proof, identity, commit, receipt, in this order.
func (s *Server) receive(c echo.Context) error {
	began := s.Now()
	req := c.Request()
	ep, ok := s.Endpoints[c.Param("source")]
	if !ok {
		s.metrics.deliveries.WithLabelValues("", "unknown_source").Inc()
		return errUnknownSource
	}
	name := ep.Config.Name
	release, body, err := s.read(ep, req)
	defer func() { release() }()
	if err != nil {
		s.metrics.deliveries.WithLabelValues(name, outcomeOf(err)).Inc()
		return err
	}
	d := &provider.Delivery{Header: req.Header, Body: body, ReceivedAt: began.UTC().Truncate(time.Microsecond)}
	verification, evs, err := prove(ep, d)
	if err != nil {
		var rejection *provider.Rejection
		if !errors.As(err, &rejection) {
			return err
		}
		s.rejections.offer(ep, d, rejection, remote(req))
		s.metrics.deliveries.WithLabelValues(name, "rejected").Inc()
		s.metrics.rejections.WithLabelValues(name, string(rejection.Reason)).Inc()
		return errUnauthenticated
	}
	// The time for the request is over with its body; what net/http still reads is only whether the sender is there.
	_ = http.NewResponseController(c.Response()).SetReadDeadline(time.Time{}) // a writer without deadlines has none to lift
	receipts, err := s.store(ep, d, verification, evs, &release)
	if err != nil {
		s.metrics.deliveries.WithLabelValues(name, outcomeOf(err)).Inc()
		return err
	}
	s.count(name, evs, receipts, len(body), s.Now().Sub(began))
	return answer(c, receipts)
}

// store waits for a delivery's receipts. Once it is in the queue its memory is the queue's to release.
func (s *Server) store(ep Endpoint, d *provider.Delivery, v provider.Verification, evs []provider.Event, release *func()) ([]events.Receipt, error) {
	w, err := s.appender.enqueue(ep, d, v, evs, *release)
	if err != nil {
		return nil, err
	}
	*release = func() {}
	return s.appender.wait(w)
}

// prove verifies a delivery and names its events. Only what it returns may reach the database.
func prove(ep Endpoint, d *provider.Delivery) (provider.Verification, []provider.Event, error) {
	verification, err := ep.Provider.Verify(ep.Config, d)
	if err != nil {
		return verification, nil, err
	}
	evs, err := ep.Provider.Identify(ep.Config, d)
	return verification, evs, err
}

// read takes the body within all bounds. Its memory is given back by release, which is never nil.
func (s *Server) read(ep Endpoint, req *http.Request) (release func(), body []byte, err error) {
	release = func() {}
	for _, enc := range req.Header.Values("Content-Encoding") {
		if enc != "" && !strings.EqualFold(enc, "identity") {
			return release, nil, errEncoding
		}
	}
	if req.ContentLength > ep.MaxBody {
		return release, nil, errTooLarge
	}
	var held int64
	release = func() { s.memory.Release(held) }
	body, err = s.readBody(req, ep.MaxBody, &held)
	return release, body, err
}

// readStep is how much memory a delivery gets at first; more only as its bytes arrive, so that connections which announce
// much and send nothing hold next to nothing.
const readStep = 32 << 10

// readBody reads up to limit bytes into memory that it takes from the bound as the body grows; held is what it took.
func (s *Server) readBody(req *http.Request, limit int64, held *int64) ([]byte, error) {
	most := limit + 1 // one more, to see the end without growing
	if req.ContentLength >= 0 {
		most = req.ContentLength + 1
	}
	size := int64(readStep)
	var body []byte
	for {
		size = min(size, most)
		if !s.memory.TryAcquire(size - *held) {
			return nil, errFull
		}
		*held = size
		body = append(make([]byte, 0, size), body...)
		for len(body) < cap(body) {
			n, err := req.Body.Read(body[len(body):cap(body)])
			body = body[:len(body)+n]
			if int64(len(body)) > limit {
				return nil, errTooLarge
			}
			if err == io.EOF { //nolint:errorlint // io.Reader promises the value itself
				return body, nil
			}
			if err != nil {
				return nil, errBody
			}
		}
		size *= 4
	}
}

func (s *Server) count(source string, evs []provider.Event, receipts []events.Receipt, bytes int, took time.Duration) {
	s.metrics.ack.Observe(took.Seconds())
	s.metrics.deliveries.WithLabelValues(source, "accepted").Inc()
	for i, r := range receipts {
		result := "stored"
		switch {
		case r.Conflict:
			result = "conflict"
		case r.Duplicate:
			result = "duplicate"
		}
		s.metrics.events.WithLabelValues(source, result).Inc()
		if evs[i].ContentKey {
			s.metrics.contentKeys.WithLabelValues(source).Inc()
		}
		s.Logger.Info("delivery", "source", source, "event_id", r.Key, "event", r.ID, "type", evs[i].Type, "result", result,
			"bytes", bytes, "duration_ms", float64(took.Microseconds())/1000)
	}
}

// answer writes the receipt, or the list of receipts where the delivery carried many events.
func answer(c echo.Context, receipts []events.Receipt) error {
	out := make([]receipt, len(receipts))
	for i, r := range receipts {
		out[i] = receipt{EventID: r.Key, ID: strconv.FormatInt(r.ID, 10), Duplicate: r.Duplicate, Conflict: r.Conflict,
			ReceivedAt: events.Time(r.ID).Format(timeFormat)}
	}
	var body []byte
	var err error
	if len(out) == 1 {
		body, err = json.Marshal(out[0])
	} else {
		body, err = json.Marshal(out)
	}
	if err != nil {
		return err
	}
	return c.Blob(http.StatusOK, "application/json", append(body, '\n'))
}

func remote(req *http.Request) string {
	if host, _, err := net.SplitHostPort(req.RemoteAddr); err == nil {
		return host
	}
	return req.RemoteAddr
}
