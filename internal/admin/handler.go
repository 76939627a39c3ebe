// Package admin is the operator's view of one instance: the queries behind the command line, and the same as JSON over HTTP.
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

	"github.com/postern-gateway/postern/internal/access"
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

// Options are what the interface needs.
type Options struct {
	// Pool is connected as postern_operator.
	Pool *pgxpool.Pool
	// Ready tells whether the process can do its work; nil: always.
	Ready func(ctx context.Context) error
	// Stream reaches JetStream; nil: this process does not.
	Stream *stream.Conn
	// Metrics serves /metrics; nil: there is none.
	Metrics http.Handler
	// Refusals counts callers that are not let in; nil: nobody does.
	Refusals *Refusals
	// Tokens are those that callers may send; nil: there are none.
	Tokens Checker
	// RequireTokens refuses callers without one, but for /healthz and /readyz, and for /metrics with OpenMetrics. It must be set where the address is not loopback.
	RequireTokens, OpenMetrics bool
	// Endpoints are the sources as they are configured now, for dry runs; nil: they are not known here.
	Endpoints func() []config.Endpoint
	// Rule is a rule of effects as it is configured now, nil where there is none of the name; nil: they are not known here.
	Rule func(name string) (*rules.Rule, error)
	// Retention is the policy that the configuration sets.
	Retention retention.Policy
	// Logger gets a line per request; nil: silent.
	Logger *slog.Logger
}

// New is the handler of /healthz, /readyz, /metrics, /debug/pprof/ and /api/v1. Who is asked for no token may do all that a person at this machine may: requests whose Host is
// another name than a loopback one (a page that points its own name here) are refused then. A browser sends no token by itself, so with one the name is nobody's matter.
func New(o Options) http.Handler {
	e := echo.New()
	e.HideBanner, e.HidePort = true, true
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	h := &handler{Options: o, unread: telemetry.NewComplaints(o.Logger, slog.LevelError, "admin requests not answered: which tokens are in force cannot be read", time.Now)}
	e.HTTPErrorHandler = h.fail
	e.Use(h.observe)
	e.GET("/healthz", func(c echo.Context) error { return c.String(http.StatusOK, "ok\n") })
	if o.RequireTokens { // it is open to strangers then
		e.GET("/readyz", echo.WrapHandler(http.HandlerFunc((&scrape{Options: h.Options}).ready)))
	} else {
		e.GET("/readyz", h.ready)
	}
	if o.Metrics != nil {
		e.GET("/metrics", echo.WrapHandler(o.Metrics), h.admitScrape)
	}
	profiles(e.Group("/debug/pprof", h.admit(access.Operator)))
	api := e.Group("/api/v1", h.admit(""))
	api.GET("/events", list(h, Events))
	api.GET("/objects", list(h, Objects))
	api.GET("/outcomes", list(h, Outcomes))
	api.GET("/rejections", list(h, Rejections))
	api.GET("/conflicts", list(h, Conflicts))
	api.GET("/events/:id", h.show(func(ctx context.Context, c echo.Context, values url.Values) (any, error) {
		return Event(ctx, o.Pool, param(c, "id"), values)
	}))
	api.GET("/objects/:source/:type/:id", h.show(func(ctx context.Context, c echo.Context, values url.Values) (any, error) {
		return Object(ctx, o.Pool, param(c, "source"), param(c, "type"), param(c, "id"), values)
	}))
	api.GET("/rejections/:id", h.show(func(ctx context.Context, c echo.Context, values url.Values) (any, error) {
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
	// trying is held by the dry run that is under way.
	trying sync.Mutex
	// unread tells that nobody is let in: whoever asks again and again, as a scraper does, fills no log with it.
	unread *telemetry.Complaints
}

// list serves one of the lists.
func list[T any](h *handler, run func(context.Context, *pgxpool.Pool, url.Values) (T, error)) echo.HandlerFunc {
	return h.show(func(ctx context.Context, _ echo.Context, values url.Values) (any, error) {
		return run(ctx, h.Pool, values)
	})
}

func (h *handler) show(run func(context.Context, echo.Context, url.Values) (any, error)) echo.HandlerFunc {
	return func(c echo.Context) error {
		ctx, cancel := context.WithTimeoutCause(c.Request().Context(), queryTimeout, fmt.Errorf("the query took longer than %s", queryTimeout))
		defer cancel()
		for _, name := range c.ParamNames() {
			if err := storable(name, param(c, name)); err != nil {
				return err
			}
		}
		found, err := run(ctx, c, c.QueryParams())
		if err != nil {
			return err
		}
		body, err := answered(found)
		if err != nil {
			return err
		}
		return c.Blob(http.StatusOK, echo.MIMEApplicationJSON, body)
	}
}

// param is a part of the path; echo has decoded it where the path was escaped.
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
			return &problem{Status: http.StatusServiceUnavailable, Type: "urn:postern:problem:not-ready", Title: "not ready", Detail: err.Error()}
		}
	}
	return c.String(http.StatusOK, "ready\n")
}

// observe logs one line per request and turns a panic into a fault of that request alone.
func (h *handler) observe(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) (err error) {
		start := time.Now()
		defer func() {
			if fault := recover(); fault != nil {
				err = errors.Join(errFault, fmt.Errorf("%v", fault))
			}
			if err != nil {
				c.Error(err)
				err = nil
			}
			h.Logger.Debug("admin request", "method", c.Request().Method, "path", c.Request().URL.Path, "status", c.Response().Status,
				"caller", callerOf(c).name, "duration_ms", time.Since(start).Milliseconds())
		}()
		return next(c)
	}
}
