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
	"github.com/postern-gateway/postern/internal/changes"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/idempotency"
	"github.com/postern-gateway/postern/internal/operations"
	"github.com/postern-gateway/postern/internal/postgres"
)

// Problem is an error response (RFC 9457).
type Problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"`
	// Matches are the objects or events that matched where one was required.
	Matches any `json:"matches,omitempty"`
}

func (p *Problem) Error() string { return p.Title + ": " + p.Detail }

var errPanic = errors.New("panic")

// problemType is a type of error response.
type problemType struct {
	status int
	title  string
	// detail is the text of the response. Where an error has a more exact text, detail only
	// describes the type in the reference.
	detail string
}

// urn is the prefix of the names of problem types.
const urn = "urn:postern:problem:"

// problemTypes are the types of error responses, by name.
var problemTypes = map[string]problemType{
	"foreign-host": {http.StatusMisdirectedRequest, "host not allowed",
		"The admin API accepts only loopback names: use http://127.0.0.1 or http://localhost with its port."},
	"cross-origin": {http.StatusForbidden, "request from another web site",
		"The console accepts forms, and links to most pages, from its own pages only."},
	// It does not say whether the token is missing or wrong.
	"token": {http.StatusUnauthorized, "no token",
		"Send a valid token: Authorization: Bearer postern_... (create one with postern token create)."},
	"role": {http.StatusForbidden, "not allowed",
		"The token's role does not allow this. A reader may read, an approver may also decide about effects and " +
			"runs that await approval, and an operator may make every change. Send a token with the role that the " +
			"request needs (postern token create --role ROLE)."},
	"own-request": {http.StatusForbidden, "your own request",
		"The token requested the run, refetch or reprocessing whose results it wants to approve, and " +
			"approvals.separate is true. Ask somebody with another token of the role approver or operator."},
	"idempotency-key": {http.StatusBadRequest, "invalid idempotency key",
		"The header Idempotency-Key is longer than allowed, has other characters, or is sent twice."},
	"in-flight": {http.StatusConflict, "request in progress",
		"A request with this Idempotency-Key is in progress. Send it again in a moment to get its response."},
	"key-reused": {http.StatusUnprocessableEntity, "idempotency key already used",
		"This Idempotency-Key was used for another request within a day. Send a new key with a new request."},
	"too-many": {http.StatusUnprocessableEntity, "too many for a dry run",
		"The dry run would read more than it may. Select less."},
	"invalid":   {http.StatusBadRequest, "invalid request", "A parameter does not exist or has a wrong value."},
	"not-found": {http.StatusNotFound, "not found", "The named thing does not exist."},
	"several": {http.StatusConflict, "several match",
		"Several events or objects have this name; `matches` lists them. Name one of them exactly."},
	"busy": {http.StatusTooManyRequests, "another dry run is in progress",
		"A process executes one dry run at a time. Try again when the other has finished, or use postern replay " +
			"--dry-run."},
	"streams": {http.StatusServiceUnavailable, "no more streams",
		"Too many clients follow events or changes in this process already, or the process stops. Try again later."},
	"other-reader": {http.StatusForbidden, "the cursor of another reader",
		"Another token reports this feed cursor. Report under a name of your own. If your token replaces that one, " +
			"ask an operator to set the cursor once (postern feed set NAME); it then belongs to the next token " +
			"that reports."},
	"cursor-back": {http.StatusConflict, "the cursor is further",
		"A report would move a feed cursor back. Read after the stored cursor, or set `rewind`."},
	"cursor-ended": {http.StatusGone, "the cursor has ended",
		"The mirror went back, as after a restore, or the cursor is of another instance. Delete your copy and " +
			"the stored revisions. With `feed_cursor`, send PUT /api/v1/feed-cursors/NAME with {\"after\": \"\"}. " +
			"Then start again without `after`."},
	"not-ready": {http.StatusServiceUnavailable, "not ready",
		"The process cannot do its work now. Only /readyz returns this type; the detail has the reason."},
	"other-process": {http.StatusMisdirectedRequest, "not offered by this process",
		"Only another process can execute the request; the detail says which, and the command that does the same."},
	"unavailable": {http.StatusServiceUnavailable, "database unavailable",
		"PostgreSQL did not respond in time; see the log for the reason."},
	"internal": {http.StatusInternalServerError, "internal error",
		"An internal error of Postern; see the log for details."},
}

// NewProblem returns a response of a type. Its detail is that of the type, unless another is given.
func NewProblem(name, detail string) *Problem {
	t := problemTypes[name]
	return &Problem{Type: urn + name, Title: t.title, Status: t.status, Detail: cmp.Or(detail, t.detail)}
}

var (
	errForeignHost = NewProblem("foreign-host", "")
	errNoToken     = NewProblem("token", "")
)

// match is one of several events with the same key.
type match struct {
	Source string `json:"source"`
	ID     int64  `json:"id,string"`
}

// Describe converts any error into its response.
func Describe(err error) *Problem {
	var p *Problem
	var he *echo.HTTPError
	var keys *events.AmbiguousKeyError
	var tooMany *operations.TooManyError
	var objects *operations.SeveralObjectsError
	switch {
	case errors.As(err, &p):
		return p
	case errors.Is(err, adminauth.ErrRole):
		return NewProblem("role", "")
	case errors.Is(err, adminauth.ErrOwnRequest):
		return NewProblem("own-request", err.Error())
	case errors.Is(err, idempotency.ErrKey):
		return NewProblem("idempotency-key", err.Error())
	case errors.Is(err, adminauth.ErrInProgress):
		return NewProblem("in-flight", "")
	case errors.Is(err, adminauth.ErrKeyReused):
		return NewProblem("key-reused", "")
	case errors.As(err, &tooMany):
		return NewProblem("too-many", err.Error())
	case errors.Is(err, operations.ErrNoReprocessor):
		return NewProblem("other-process", err.Error())
	case errors.Is(err, changes.ErrOtherReader):
		return NewProblem("other-reader", "")
	case errors.Is(err, changes.ErrCursorBack):
		return NewProblem("cursor-back", err.Error())
	case errors.Is(err, changes.ErrCursorEnded):
		return NewProblem("cursor-ended", "")
	case errors.Is(err, operations.ErrTooManyWatchers), errors.Is(err, operations.ErrFollowerClosed),
		errors.Is(err, changes.ErrTooManyReaders), errors.Is(err, changes.ErrReaderClosed):
		return NewProblem("streams", err.Error())
	case errors.Is(err, events.ErrInvalid):
		return NewProblem("invalid", err.Error())
	case errors.Is(err, events.ErrNotFound):
		return NewProblem("not-found", err.Error())
	case errors.As(err, &objects):
		p = NewProblem("several", err.Error())
		p.Matches = objects.Matches
		return p
	case errors.As(err, &keys):
		p = NewProblem("several", err.Error())
		p.Matches = matches(keys)
		return p
	case errors.As(err, &he):
		return &Problem{Status: he.Code, Type: "about:blank", Title: http.StatusText(he.Code),
			Detail: fmt.Sprint(he.Message)}
	case errors.Is(err, errPanic):
	case postgres.IsUnavailable(err), errors.Is(err, context.DeadlineExceeded):
		return NewProblem("unavailable", "")
	}
	return NewProblem("internal", "")
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
	p := Describe(err)
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
	if p.Status == http.StatusTooManyRequests || p.Type == urn+"streams" {
		c.Response().Header().Set("Retry-After", "5")
	}
	_ = c.Blob(p.Status, problemMediaType, p.body()) // the client may have disconnected
}

const problemMediaType = "application/problem+json"

func (p *Problem) body() []byte {
	body, err := encodeJSON(p)
	if err != nil {
		body = []byte(`{"status":500}` + "\n") // states of objects are valid JSON, so this is never reached
	}
	return body
}
