// Package admin serves the operations of operators as JSON over HTTP, with metrics and profiles of
// the process. It decides who may call an operation. What an operation does is in the package
// operations.
package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/labstack/echo/v4"

	"github.com/postern-gateway/postern/internal/adminauth"
	"github.com/postern-gateway/postern/internal/changes"
	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/doctor"
	"github.com/postern-gateway/postern/internal/effects/rules"
	"github.com/postern-gateway/postern/internal/operations"
	"github.com/postern-gateway/postern/internal/retention"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/telemetry"
)

const (
	queryTimeout = 30 * time.Second
	readyTimeout = 2 * time.Second
)

// Options configure the admin API.
type Options struct {
	// Pool is connected as postern_operator.
	Pool *pgxpool.Pool
	// Ready returns an error while the process cannot do its work; nil: it always can.
	Ready func(ctx context.Context) error
	// Stream is the connection to JetStream; nil: this process has none.
	Stream *stream.Conn
	// Metrics serves /metrics; nil: not served.
	Metrics http.Handler
	// DeniedRequests counts denied requests; nil: they are not counted.
	DeniedRequests *DeniedRequests
	// Tokens checks the tokens of callers; nil: no token is valid.
	Tokens Checker
	// RequireTokens denies callers without a token, except for /healthz and /readyz, and for
	// /metrics with OpenMetrics. It must be set where the address is not loopback.
	RequireTokens, OpenMetrics bool
	// SeparateApprovals: an actor may not approve what he requested.
	SeparateApprovals bool
	// Endpoints returns the currently configured sources, for dry runs; nil: this process has none.
	Endpoints func() []config.Endpoint
	// Rules returns the currently configured effect rules; nil: this process has none.
	Rules func() []*rules.Rule
	// Destinations returns the currently configured destinations of effects; nil: this process has
	// none.
	Destinations func() []config.ResolvedDestination
	// ProcessID is the id under which this process reports itself; "": it does not.
	ProcessID string
	// Reprocessor verifies rejected deliveries again; nil: this process cannot.
	Reprocessor *operations.Reprocessor
	// Doctor checks the environment of this process; nil: only PostgreSQL and NATS are checked.
	Doctor *operations.Doctor
	// Retention is the configured policy.
	Retention retention.Policy
	// Follower follows the log for GET /events/tail; nil: this process does not offer it.
	Follower *operations.Follower
	// Changes reads changes for GET /changes; nil: New makes one.
	Changes *changes.Reader
	// Logger gets a line per request; nil: nothing is logged.
	Logger *slog.Logger
}

// New returns the handler of /healthz, /readyz, /metrics, /debug/pprof/ and /api/v1. Where no token
// is required, every caller has the rights of an operator. In that case New denies
// requests whose Host is not a loopback name: a web page could point its own name to this address.
// A browser sends no token automatically, so with a token any Host is accepted.
func New(o Options) http.Handler {
	e := echo.New()
	e.HideBanner, e.HidePort = true, true
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	if o.Doctor == nil {
		o.Doctor = &operations.Doctor{Options: func() doctor.Options {
			return doctor.Options{Pool: o.Pool, Conn: o.Stream}
		}}
	}
	if o.Changes == nil {
		o.Changes = changes.NewReader(o.Pool, o.Logger)
	}
	h := &handler{Options: o, tokenErrors: telemetry.NewLogSuppressor(o.Logger, slog.LevelError,
		"admin requests denied: the valid tokens cannot be read", time.Now)}
	e.HTTPErrorHandler = h.fail
	e.Use(h.observe)
	e.GET("/healthz", func(c echo.Context) error { return c.String(http.StatusOK, "ok\n") })
	if o.RequireTokens { // unauthenticated clients can reach it then
		e.GET("/readyz", echo.WrapHandler(http.HandlerFunc((&scrape{Options: h.Options}).ready)))
	} else {
		e.GET("/readyz", h.ready)
	}
	if o.Metrics != nil {
		e.GET("/metrics", echo.WrapHandler(o.Metrics), h.authorizeScrape)
	}
	pprofRoutes(e.Group("/debug/pprof", h.authorize(adminauth.Operator)))
	api := e.Group("/api/v1", h.authorize(""))
	for _, r := range h.routes() {
		var middleware []echo.MiddlewareFunc
		switch r.method {
		case http.MethodPost:
			middleware = []echo.MiddlewareFunc{requireJSON, h.withIdempotencyKey}
		case http.MethodPut:
			middleware = []echo.MiddlewareFunc{requireJSON}
		}
		if r.stream != nil {
			api.Add(r.method, r.path, r.stream)
			continue
		}
		api.Add(r.method, r.path, h.serve(r), middleware...)
	}
	return e
}

type handler struct {
	Options
	// dryRunMu is locked while a dry run is in progress.
	dryRunMu sync.Mutex
	// tokenErrors logs that all callers are denied. It suppresses repeated lines, because scrapers
	// send requests regularly.
	tokenErrors *telemetry.LogSuppressor
}

// serve executes the operation of a route and writes its result as JSON.
func (h *handler) serve(r route) echo.HandlerFunc {
	return func(c echo.Context) error {
		ctx, cancel := context.WithTimeoutCause(c.Request().Context(), queryTimeout,
			fmt.Errorf("the query took longer than %s", queryTimeout))
		defer cancel()
		found, err := r.run(ctx, c)
		if err != nil {
			return err
		}
		body, err := encodeJSON(found)
		if err != nil {
			return err
		}
		return c.Blob(http.StatusOK, echo.MIMEApplicationJSON, body)
	}
}

func (h *handler) ready(c echo.Context) error {
	ctx, cancel := context.WithTimeout(c.Request().Context(), readyTimeout)
	defer cancel()
	if h.Ready != nil {
		if err := h.Ready(ctx); err != nil {
			return NewProblem("not-ready", err.Error())
		}
	}
	return c.String(http.StatusOK, "ready\n")
}

// observe logs one line per request, and turns a panic into an error of that request.
func (h *handler) observe(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) (err error) {
		start := time.Now()
		defer func() {
			if fault := recover(); fault != nil {
				err = errors.Join(errPanic, fmt.Errorf("%v", fault))
			}
			if err != nil {
				c.Error(err)
				err = nil
			}
			h.Logger.Debug("admin request", "method", c.Request().Method, "path", c.Request().URL.Path, "status",
				c.Response().Status, "caller", callerOf(c).name, "duration_ms", time.Since(start).Milliseconds())
		}()
		return next(c)
	}
}
