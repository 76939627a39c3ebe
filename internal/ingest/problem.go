package ingest

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/provider"
)

// problem is an answer that is not a receipt (RFC 9457). Its detail tells an operator what to do and an attacker nothing.
type problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"`
	// outcome is the metric's label; retry is the Retry-After in seconds, "" for none; hangUp closes the connection in any case.
	outcome, retry string
	hangUp         bool
}

func (p *problem) Error() string { return p.Title }

var (
	errUnknownSource = &problem{Status: 404, Type: "urn:postern:problem:unknown-source", Title: "unknown source", outcome: "unknown_source",
		Detail: "No source of this name is configured. The path is /webhooks/{source}; the names are under 'sources' in the configuration."}
	errUnauthenticated = &problem{Status: 401, Type: "urn:postern:problem:unauthenticated", Title: "delivery not verified", outcome: "rejected",
		Detail: "The sender of this delivery could not be proven. The operator finds the reason with `postern rejections list`."}
	errTooLarge = &problem{Status: 413, Type: "urn:postern:problem:too-large", Title: "body too large", outcome: "too_large", hangUp: true,
		Detail: "The body is larger than this source takes. The operator can raise max_body_bytes of the source."}
	errEncoding = &problem{Status: 415, Type: "urn:postern:problem:encoding", Title: "content encoding not supported", outcome: "encoding", hangUp: true,
		Detail: "Signatures cover the bytes as they were sent: send the body without a Content-Encoding."}
	errBody = &problem{Status: 408, Type: "urn:postern:problem:body", Title: "body did not arrive", outcome: "body", hangUp: true,
		Detail: "The body did not arrive whole within the time allowed."}
	errFull = &problem{Status: 503, Type: "urn:postern:problem:overloaded", Title: "overloaded", outcome: "overloaded", retry: "5",
		Detail: "More deliveries are waiting than may. Nothing was stored; send it again."}
	errSlow = &problem{Status: 503, Type: "urn:postern:problem:too-slow", Title: "body arrived too slowly", outcome: "too_slow",
		retry: "5", hangUp: true,
		Detail: "The memory for bodies that arrive is full, and this body took longest. Nothing was stored; send it again."}
	errUnavailable = &problem{Status: 503, Type: "urn:postern:problem:unavailable", Title: "store unavailable", outcome: "unavailable", retry: "5",
		Detail: "The delivery could not be made durable now. Send it again; it is stored once however often it comes."}
	errLimited = &problem{Status: 429, Type: "urn:postern:problem:rate-limited", Title: "too many deliveries", outcome: "limited", retry: "1",
		Detail: "More deliveries come than this source may send. Nothing was stored; send it again. The operator can raise rate_limit of the source."}
	errInFlight = &problem{Status: 409, Type: "urn:postern:problem:in-flight", Title: "under way", outcome: "in_flight", retry: "1",
		Detail: "A delivery with this key is being stored. Send it again in a moment: you get its receipt."}
	errElsewhere = &problem{Status: 403, Type: "urn:postern:problem:forbidden", Title: "not from this address", outcome: "forbidden",
		Detail: "This source takes no deliveries from this address. The operator can change allow_from of the source."}
	errNotAllowed = &problem{Status: 405, Type: "urn:postern:problem:method", Title: "method not allowed", outcome: "method",
		Detail: "Deliveries are sent with POST."}
	errNoRoute = &problem{Status: 404, Type: "urn:postern:problem:not-found", Title: "not found", outcome: "not_found",
		Detail: "Deliveries go to /webhooks/{source}."}
	errInternal = &problem{Status: 500, Type: "urn:postern:problem:internal", Title: "internal error", outcome: "fault",
		Detail: "A fault of ours, logged. Nothing was acknowledged; send it again."}
)

// problemOf maps any error to its answer, once.
func problemOf(err error) *problem {
	var p *problem
	var he *echo.HTTPError
	switch {
	case errors.As(err, &p):
		return p
	case errors.Is(err, events.ErrUnavailable):
		return errUnavailable
	case unusable(err) != nil:
		return unusable(err)
	case errors.As(err, &he) && he.Code == http.StatusMethodNotAllowed:
		return errNotAllowed
	case errors.As(err, &he) && he.Code == http.StatusNotFound:
		return errNoRoute
	}
	return errInternal
}

// smallBody is how much of a body that nobody wants net/http may read to keep the connection, in bytes.
const smallBody = 64 << 10

// unbounded tells whether a request has a body that is not read just to keep its connection.
func unbounded(req *http.Request) bool { return req.ContentLength < 0 || req.ContentLength > smallBody }

// reply is the problem as an answer, after which the connection may be closed: where the body is not read, the answer need not wait for it then.
func (p *problem) reply(hangUp bool) *provider.Reply {
	h := http.Header{}
	if p.retry != "" {
		h.Set("Retry-After", p.retry)
	}
	if p.hangUp || hangUp {
		h.Set("Connection", "close")
	}
	body, err := json.Marshal(p)
	if err != nil {
		body = []byte("{}") // strings and an int always marshal
	}
	return &provider.Reply{Status: p.Status, ContentType: "application/problem+json", Header: h, Body: append(body, '\n')}
}

// lingerAfter makes net/http end the connection in order after the response: it sends FIN and
// waits 500 ms before it closes. Without it, net/http closes at once where the request has
// "Connection: close" and its body is unread, and the reset that follows can destroy the response
// before the sender has read it. It does nothing for any other request.
func lingerAfter(w http.ResponseWriter, req *http.Request) {
	if req.Close && req.ContentLength != 0 {
		// A reader that exceeds its limit is the only way to ask net/http for this. Its error is expected.
		_, _ = http.MaxBytesReader(w, io.NopCloser(strings.NewReader("x")), 0).Read(make([]byte, 1))
	}
}

// fail is echo's error handler, for requests to no source: there is nobody to count them for.
func (s *Server) fail(err error, c echo.Context) {
	p := problemOf(err)
	req := c.Request()
	if p == errInternal {
		s.Logger.Error("fault while answering", "path", c.Path(), "error", err)
	} else {
		level, more := s.once(complaint{result: p.outcome})
		s.Logger.Log(req.Context(), level, "request refused", "method", shortened(req.Method), "path", shortened(req.URL.Path), "result", p.outcome, "status", p.Status, "remote", s.remote(req, s.sender(req)), "more_since", more)
	}
	if !c.Response().Committed {
		lingerAfter(c.Response().Writer, req)
		_ = new(visit).write(c, p.reply(unbounded(req)))
	}
}

// shortened is a stranger's text as a line of the log may hold it.
func shortened(s string) string { return cut(s, 64) }

func cut(s string, most int) string { return events.Text(s[:min(len(s), most)]) }
