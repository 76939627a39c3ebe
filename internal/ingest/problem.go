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

// problem is an error response (RFC 9457). Its detail tells an operator what to do and reveals
// nothing to an attacker.
type problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"`
	// outcome is the label in metrics. retryAfter is the Retry-After header in seconds, "" for
	// none. closeConnection closes the connection in any case.
	outcome, retryAfter string
	closeConnection     bool
}

func (p *problem) Error() string { return p.Title }

var (
	errUnknownSource = &problem{Status: 404, Type: "urn:postern:problem:unknown-source", Title: "unknown source",
		outcome: "unknown_source",
		Detail: "No source of this name is configured. The path is /webhooks/{source}; the names are under 'sources' " +
			"in the configuration."}
	errUnauthenticated = &problem{Status: 401, Type: "urn:postern:problem:unauthenticated",
		Title: "delivery not verified", outcome: "rejected",
		Detail: "The signature or credentials of this delivery could not be verified. The operator finds the reason " +
			"with `postern rejections list`."}
	errTooLarge = &problem{Status: 413, Type: "urn:postern:problem:too-large", Title: "body too large",
		outcome: "too_large", closeConnection: true,
		Detail: "The body is larger than this source accepts. The operator can raise max_body_bytes of the source."}
	errEncoding = &problem{Status: 415, Type: "urn:postern:problem:encoding", Title: "content encoding not supported",
		outcome: "encoding", closeConnection: true,
		Detail: "Signatures cover the bytes as they were sent. Send the body without a Content-Encoding."}
	errBodyIncomplete = &problem{Status: 408, Type: "urn:postern:problem:body", Title: "body did not arrive",
		outcome: "body", closeConnection: true,
		Detail: "The body did not arrive completely within the allowed time."}
	errOverloaded = &problem{Status: 503, Type: "urn:postern:problem:overloaded", Title: "overloaded",
		outcome: "overloaded", retryAfter: "5",
		Detail: "Too many deliveries are waiting. Nothing was stored; send it again."}
	errSlow = &problem{Status: 503, Type: "urn:postern:problem:too-slow", Title: "body arrived too slowly",
		outcome: "too_slow", retryAfter: "5", closeConnection: true,
		Detail: "The memory for incoming bodies is full, and this body took longest. Nothing was stored; send it " +
			"again."}
	errUnavailable = &problem{Status: 503, Type: "urn:postern:problem:unavailable", Title: "store unavailable",
		outcome: "unavailable", retryAfter: "5",
		Detail: "The delivery could not be stored now. Send it again; it is stored once, however often it is sent."}
	errRateLimited = &problem{Status: 429, Type: "urn:postern:problem:rate-limited", Title: "too many deliveries",
		outcome: "limited", retryAfter: "1",
		Detail: "This source sends more deliveries than it may. Nothing was stored; send it again. The operator can " +
			"raise rate_limit of the source."}
	errForbiddenAddress = &problem{Status: 403, Type: "urn:postern:problem:forbidden", Title: "not from this address",
		outcome: "forbidden",
		Detail: "This source accepts no deliveries from this address. The operator can change allow_from of the " +
			"source."}
	errNotAllowed = &problem{Status: 405, Type: "urn:postern:problem:method", Title: "method not allowed",
		outcome: "method", Detail: "Send deliveries with POST."}
	errNoRoute = &problem{Status: 404, Type: "urn:postern:problem:not-found", Title: "not found", outcome: "not_found",
		Detail: "Send deliveries to /webhooks/{source}."}
	errInternal = &problem{Status: 500, Type: "urn:postern:problem:internal", Title: "internal error", outcome: "panic",
		Detail: "An internal error occurred and was logged. Nothing was acknowledged; send it again."}
	// The responses of these two types have a more exact detail, and errInvalid another status.
	errKeyReused = &problem{Status: 422, Type: "urn:postern:problem:key-reused", Title: "key used before",
		outcome: "conflict",
		Detail: "Only for `provider: api`. Stored before with other content: the keys. Nothing of this delivery was " +
			"stored. Give a new event a new key."}
	errInvalid = &problem{Status: 400, Type: "urn:postern:problem:invalid", Title: "delivery cannot be stored",
		outcome: "invalid",
		Detail: "The delivery is verified, but it has no event that can be stored; the detail has the reason. The " +
			"status may also be 413 or 415."}
)

// problems are all types of error responses.
var problems = []*problem{errInvalid, errUnauthenticated, errForbiddenAddress, errUnknownSource, errNoRoute,
	errNotAllowed, errBodyIncomplete, errTooLarge, errEncoding, errKeyReused, errRateLimited, errInternal,
	errOverloaded, errSlow, errUnavailable}

// ProblemType describes a type of error response.
type ProblemType struct {
	Status              int
	Type, Title, Detail string
	// RetryAfter is the Retry-After header in seconds; "" for none.
	RetryAfter string
}

// ProblemTypes returns the types of error responses, for the reference.
func ProblemTypes() (all []ProblemType) {
	for _, p := range problems {
		all = append(all, ProblemType{p.Status, p.Type, p.Title, p.Detail, p.retryAfter})
	}
	return all
}

// with returns a problem of the same type with another status and detail.
func (p *problem) with(status int, detail string) *problem {
	other := *p
	other.Status, other.Detail = status, detail
	return &other
}

// problemOf returns the response to an error.
func problemOf(err error) *problem {
	var p *problem
	var he *echo.HTTPError
	switch {
	case errors.As(err, &p):
		return p
	case errors.Is(err, events.ErrUnavailable):
		return errUnavailable
	case invalidProblem(err) != nil:
		return invalidProblem(err)
	case errors.As(err, &he) && he.Code == http.StatusMethodNotAllowed:
		return errNotAllowed
	case errors.As(err, &he) && he.Code == http.StatusNotFound:
		return errNoRoute
	}
	return errInternal
}

// maxDiscardedBody is how many bytes of an unused body net/http may read to keep the connection
// open.
const maxDiscardedBody = 64 << 10

// hasLargeBody returns true if the request's body is too large to be read only to keep the
// connection open.
func hasLargeBody(req *http.Request) bool {
	return req.ContentLength < 0 || req.ContentLength > maxDiscardedBody
}

// reply returns the problem as a response. closeConnection closes the connection afterwards, so
// that the response need not wait for an unread body.
func (p *problem) reply(closeConnection bool) *provider.Reply {
	h := http.Header{}
	if p.retryAfter != "" {
		h.Set("Retry-After", p.retryAfter)
	}
	if p.closeConnection || closeConnection {
		h.Set("Connection", "close")
	}
	body, err := json.Marshal(p)
	if err != nil {
		body = []byte("{}") // strings and an int always marshal
	}
	return &provider.Reply{Status: p.Status, ContentType: "application/problem+json", Header: h,
		Body: append(body, '\n')}
}

// lingerAfter makes net/http end the connection in order after the response: it sends FIN and waits
// 500 ms before it closes. Without it, net/http closes at once if the request has "Connection:
// close" and its body is unread, and the reset that follows can destroy the response before the
// sender has read it. It does nothing for any other request.
func lingerAfter(w http.ResponseWriter, req *http.Request) {
	if req.Close && req.ContentLength != 0 {
		// Only a reader that exceeds its limit makes net/http do this. Its error is expected.
		_, _ = http.MaxBytesReader(w, io.NopCloser(strings.NewReader("x")), 0).Read(make([]byte, 1))
	}
}

// handleError is echo's error handler, for requests that match no route. No metric counts them.
func (s *Server) handleError(err error, c echo.Context) {
	p := problemOf(err)
	req := c.Request()
	if p == errInternal {
		s.Logger.Error("internal error in a request", "path", c.Path(), "error", err)
	} else {
		level, more := s.suppressibleLevel(logKey{result: p.outcome})
		s.Logger.Log(req.Context(), level, "request rejected", "method", shortText(req.Method), "path",
			shortText(req.URL.Path), "result", p.outcome, "status", p.Status, "remote",
			s.remoteName(req, s.senderAddress(req)), "more_since", more)
	}
	if !c.Response().Committed {
		lingerAfter(c.Response().Writer, req)
		_ = new(webhookRequest).writeReply(c, p.reply(hasLargeBody(req)))
	}
}

// shortText returns a client's text as a log line may contain it.
func shortText(s string) string { return truncate(s, 64) }

func truncate(s string, limit int) string { return events.SanitizeText(s[:min(len(s), limit)]) }
