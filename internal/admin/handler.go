// Package admin implements what operators see and change in an instance: the queries behind the
// command line, and the same as JSON over HTTP. The postern command and the admin server of each
// daemon call it. It reads and changes the database only with the rights of postern_operator, and
// never applies events itself.
package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/labstack/echo/v4"

	"github.com/postern-gateway/postern/internal/adminauth"
	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/effects/rules"
	"github.com/postern-gateway/postern/internal/ingest"
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
	// Endpoints returns the currently configured sources, for dry runs; nil: this process has none.
	Endpoints func() []config.Endpoint
	// Rule returns a currently configured rule, or nil where none has that name. A nil function:
	// this process has no rules.
	Rule func(name string) (*rules.Rule, error)
	// Retention is the configured policy.
	Retention retention.Policy
	// Logger gets a line per request; nil: nothing is logged.
	Logger *slog.Logger
}

// New returns the handler of /healthz, /readyz, /metrics, /debug/pprof/ and /api/v1. Where no token
// is required, a caller may do everything that a user of this machine may. In that case New denies
// requests whose Host is not a loopback name: a web page could point its own name to this address.
// A browser sends no token automatically, so with a token any Host is accepted.
func New(o Options) http.Handler {
	e := echo.New()
	e.HideBanner, e.HidePort = true, true
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
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
	api.GET("/events", list(h, Events))
	api.GET("/objects", list(h, Objects))
	api.GET("/outcomes", list(h, Outcomes))
	api.GET("/rejections", list(h, Rejections))
	api.GET("/conflicts", list(h, Conflicts))
	api.GET("/events/:id", h.serveJSON(func(ctx context.Context, c echo.Context, values url.Values) (any, error) {
		return Event(ctx, o.Pool, param(c, "id"), values)
	}))
	api.GET("/objects/:source/:type/:id",
		h.serveJSON(func(ctx context.Context, c echo.Context, values url.Values) (any, error) {
			return Object(ctx, o.Pool, param(c, "source"), param(c, "type"), param(c, "id"), values)
		}))
	api.GET("/rejections/:id", h.serveJSON(func(ctx context.Context, c echo.Context, values url.Values) (any, error) {
		id, err := strconv.ParseInt(c.Param("id"), 10, 64)
		if err != nil {
			return nil, echo.ErrNotFound
		}
		return ingest.ShowRejection(ctx, o.Pool, id)
	}))
	api.GET("/redactions", list(h, Redactions))
	api.GET("/audit", list(h, Audit))
	api.GET("/retention", list(h, h.retention))
	h.runRoutes(api)
	h.scheduleRoutes(api)
	h.reconcileRoutes(api)
	h.streamRoutes(api)
	h.spoolRoutes(api)
	h.effectRoutes(api)
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

// list serves one of the lists.
func list[T any](h *handler, run func(context.Context, *pgxpool.Pool, url.Values) (T, error)) echo.HandlerFunc {
	return h.serveJSON(func(ctx context.Context, _ echo.Context, values url.Values) (any, error) {
		return run(ctx, h.Pool, values)
	})
}

func (h *handler) serveJSON(run func(context.Context, echo.Context, url.Values) (any, error)) echo.HandlerFunc {
	return func(c echo.Context) error {
		ctx, cancel := context.WithTimeoutCause(c.Request().Context(), queryTimeout,
			fmt.Errorf("the query took longer than %s", queryTimeout))
		defer cancel()
		for _, name := range c.ParamNames() {
			if err := checkStorable(name, param(c, name)); err != nil {
				return err
			}
		}
		found, err := run(ctx, c, c.QueryParams())
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

// param returns a part of the path. echo does not decode it where the path was escaped.
func param(c echo.Context, name string) string {
	text := c.Param(name)
	if c.Request().URL.RawPath != "" {
		if plain, err := url.PathUnescape(text); err == nil {
			return plain
		}
	}
	return text
}

func (h *handler) ready(c echo.Context) error {
	ctx, cancel := context.WithTimeout(c.Request().Context(), readyTimeout)
	defer cancel()
	if h.Ready != nil {
		if err := h.Ready(ctx); err != nil {
			return &problem{Status: http.StatusServiceUnavailable, Type: "urn:postern:problem:not-ready",
				Title: "not ready", Detail: err.Error()}
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
