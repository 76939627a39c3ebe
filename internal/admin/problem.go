package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"github.com/labstack/echo/v4"

	"github.com/postern-gateway/postern/internal/access"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/idempotency"
	"github.com/postern-gateway/postern/internal/idempotency/header"
	"github.com/postern-gateway/postern/internal/postgres"
)

// problem is an answer that is not what was asked for (RFC 9457).
type problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"`
	// Matches are what was found where one was wanted.
	Matches any `json:"matches,omitempty"`
}

func (p *problem) Error() string { return p.Title + ": " + p.Detail }

var errFault = errors.New("fault")

var errForeignHost = &problem{Status: http.StatusMisdirectedRequest, Type: "urn:postern:problem:foreign-host", Title: "foreign host",
	Detail: "The admin interface answers only under a loopback name: use http://127.0.0.1 or http://localhost with its port."}

// errNoToken answers who sent none, or one that is not taken: which of the two is nobody's matter.
var errNoToken = &problem{Status: http.StatusUnauthorized, Type: "urn:postern:problem:token", Title: "no token",
	Detail: "Send a token that is in force: Authorization: Bearer postern_... (postern token create makes one)."}

// match is one of several events of a key.
type match struct {
	Source string `json:"source"`
	ID     int64  `json:"id,string"`
}

// problemOf maps any error to its answer, once.
func problemOf(err error) *problem {
	var p *problem
	var he *echo.HTTPError
	var keys *events.SeveralError
	var objects *SeveralObjectsError
	switch {
	case errors.As(err, &p):
		return p
	case errors.Is(err, access.ErrRole):
		return &problem{Status: 403, Type: "urn:postern:problem:role", Title: "not allowed", Detail: "A reader's token may only ask. Send an operator's (postern token create --role operator)."}
	case errors.Is(err, header.ErrKey):
		return &problem{Status: 400, Type: "urn:postern:problem:idempotency-key", Title: "no key", Detail: err.Error()}
	case errors.Is(err, idempotency.ErrInFlight):
		return &problem{Status: 409, Type: "urn:postern:problem:in-flight", Title: "under way", Detail: "A request with this Idempotency-Key is being carried out. Ask again in a moment: you get its answer."}
	case errors.Is(err, idempotency.ErrOther):
		return &problem{Status: 422, Type: "urn:postern:problem:key-reused", Title: "key used before", Detail: "This Idempotency-Key was used for another request within a day. Send a new key with a new request."}
	case errors.Is(err, events.ErrInvalid):
		return &problem{Status: 400, Type: "urn:postern:problem:invalid", Title: "invalid request", Detail: err.Error()}
	case errors.Is(err, events.ErrNotFound):
		return &problem{Status: 404, Type: "urn:postern:problem:not-found", Title: "not found", Detail: err.Error()}
	case errors.As(err, &objects):
		return &problem{Status: 409, Type: "urn:postern:problem:several", Title: "several match", Detail: err.Error(), Matches: objects.Matches}
	case errors.As(err, &keys):
		return &problem{Status: 409, Type: "urn:postern:problem:several", Title: "several match", Detail: err.Error(), Matches: matches(keys)}
	case errors.As(err, &he):
		return &problem{Status: he.Code, Type: "about:blank", Title: http.StatusText(he.Code), Detail: fmt.Sprint(he.Message)}
	case errors.Is(err, errFault):
	case postgres.IsUnavailable(err), errors.Is(err, context.DeadlineExceeded):
		return &problem{Status: 503, Type: "urn:postern:problem:unavailable", Title: "store unavailable", Detail: "PostgreSQL did not answer in time; the log says why."}
	}
	return &problem{Status: 500, Type: "urn:postern:problem:internal", Title: "internal error", Detail: "A fault of ours; the log says more."}
}

func matches(e *events.SeveralError) []match {
	var all []match
	for source, id := range e.IDs {
		all = append(all, match{Source: source, ID: id})
	}
	slices.SortFunc(all, func(a, b match) int { return cmp.Compare(a.ID, b.ID) })
	return all
}

// fail is echo's error handler: the one place where a request's error is logged and answered.
func (h *handler) fail(err error, c echo.Context) {
	p := problemOf(err)
	switch {
	case errors.Is(err, errTokensUnread):
		h.unread.Handle(err)
	case p.Status >= 500:
		h.Logger.Error("admin request not answered", "path", c.Request().URL.Path, "status", p.Status, "error", err)
	}
	if c.Response().Committed {
		return
	}
	if p.Status == http.StatusUnauthorized {
		c.Response().Header().Set("WWW-Authenticate", `Bearer realm="postern"`)
	}
	if errors.Is(err, idempotency.ErrInFlight) {
		c.Response().Header().Set("Retry-After", "1")
	}
	if p.Status == http.StatusTooManyRequests {
		c.Response().Header().Set("Retry-After", "5")
	}
	_ = c.Blob(p.Status, problemType, p.body()) // whoever asked may be gone
}

const problemType = "application/problem+json"

func (p *problem) body() []byte {
	body, err := answered(p)
	if err != nil {
		body = []byte(`{"status":500}` + "\n") // states of objects are valid JSON, so this is never reached
	}
	return body
}
