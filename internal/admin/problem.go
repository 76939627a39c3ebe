package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"github.com/labstack/echo/v4"

	"github.com/postern-gateway/postern/internal/adminauth"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/idempotency"
	"github.com/postern-gateway/postern/internal/operations"
	"github.com/postern-gateway/postern/internal/postgres"
)

// problem is an error response (RFC 9457).
type problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"`
	// Matches are the objects or events that matched where one was required.
	Matches any `json:"matches,omitempty"`
}

func (p *problem) Error() string { return p.Title + ": " + p.Detail }

var errPanic = errors.New("panic")

var errForeignHost = &problem{Status: http.StatusMisdirectedRequest, Type: "urn:postern:problem:foreign-host",
	Title:  "host not allowed",
	Detail: "The admin API accepts only loopback names: use http://127.0.0.1 or http://localhost with its port."}

// errNoToken is the response to a missing token and to an invalid one. It does not say which of the
// two it is.
var errNoToken = &problem{Status: http.StatusUnauthorized, Type: "urn:postern:problem:token", Title: "no token",
	Detail: "Send a valid token: Authorization: Bearer postern_... (create one with postern token create)."}

// match is one of several events with the same key.
type match struct {
	Source string `json:"source"`
	ID     int64  `json:"id,string"`
}

// problemOf converts any error into its response.
func problemOf(err error) *problem {
	var p *problem
	var he *echo.HTTPError
	var keys *events.AmbiguousKeyError
	var tooMany *operations.TooManyError
	var objects *operations.SeveralObjectsError
	switch {
	case errors.As(err, &p):
		return p
	case errors.Is(err, adminauth.ErrRole):
		return &problem{Status: 403, Type: "urn:postern:problem:role", Title: "not allowed",
			Detail: "A reader's token may only read. Send an operator's token (postern token create --role operator)."}
	case errors.Is(err, idempotency.ErrKey):
		return &problem{Status: 400, Type: "urn:postern:problem:idempotency-key", Title: "invalid idempotency key",
			Detail: err.Error()}
	case errors.Is(err, adminauth.ErrInProgress):
		return &problem{Status: 409, Type: "urn:postern:problem:in-flight", Title: "request in progress",
			Detail: "A request with this Idempotency-Key is in progress. Send " +
				"it again in a moment to get its response."}
	case errors.Is(err, adminauth.ErrKeyReused):
		return &problem{Status: 422, Type: "urn:postern:problem:key-reused", Title: "idempotency key already used",
			Detail: "This Idempotency-Key was used for another request within " +
				"a day. Send a new key with a new request."}
	case errors.As(err, &tooMany):
		return &problem{Status: 422, Type: "urn:postern:problem:too-many", Title: "too many for a dry run",
			Detail: err.Error()}
	case errors.Is(err, events.ErrInvalid):
		return &problem{Status: 400, Type: "urn:postern:problem:invalid", Title: "invalid request", Detail: err.Error()}
	case errors.Is(err, events.ErrNotFound):
		return &problem{Status: 404, Type: "urn:postern:problem:not-found", Title: "not found", Detail: err.Error()}
	case errors.As(err, &objects):
		return &problem{Status: 409, Type: "urn:postern:problem:several", Title: "several match", Detail: err.Error(),
			Matches: objects.Matches}
	case errors.As(err, &keys):
		return &problem{Status: 409, Type: "urn:postern:problem:several", Title: "several match", Detail: err.Error(),
			Matches: matches(keys)}
	case errors.As(err, &he):
		return &problem{Status: he.Code, Type: "about:blank", Title: http.StatusText(he.Code),
			Detail: fmt.Sprint(he.Message)}
	case errors.Is(err, errPanic):
	case postgres.IsUnavailable(err), errors.Is(err, context.DeadlineExceeded):
		return &problem{Status: 503, Type: "urn:postern:problem:unavailable", Title: "database unavailable",
			Detail: "PostgreSQL did not respond in time; see the log for the reason."}
	}
	return &problem{Status: 500, Type: "urn:postern:problem:internal", Title: "internal error",
		Detail: "An internal error of Postern; see the log for details."}
}

func matches(e *events.AmbiguousKeyError) []match {
	var all []match
	for source, id := range e.IDs {
		all = append(all, match{Source: source, ID: id})
	}
	slices.SortFunc(all, func(a, b match) int { return cmp.Compare(a.ID, b.ID) })
	return all
}

// fail is echo's error handler. It logs each request's error and writes the response.
func (h *handler) fail(err error, c echo.Context) {
	p := problemOf(err)
	switch {
	case errors.Is(err, errTokensUnavailable):
		h.tokenErrors.Handle(err)
	case p.Status >= 500:
		h.Logger.Error("admin request failed", "path", c.Request().URL.Path, "status", p.Status, "error", err)
	}
	if c.Response().Committed {
		return
	}
	if p.Status == http.StatusUnauthorized {
		c.Response().Header().Set("WWW-Authenticate", `Bearer realm="postern"`)
	}
	if errors.Is(err, adminauth.ErrInProgress) {
		c.Response().Header().Set("Retry-After", "1")
	}
	if p.Status == http.StatusTooManyRequests {
		c.Response().Header().Set("Retry-After", "5")
	}
	_ = c.Blob(p.Status, problemType, p.body()) // the client may have disconnected
}

const problemType = "application/problem+json"

func (p *problem) body() []byte {
	body, err := encodeJSON(p)
	if err != nil {
		body = []byte(`{"status":500}` + "\n") // states of objects are valid JSON, so this is never reached
	}
	return body
}
