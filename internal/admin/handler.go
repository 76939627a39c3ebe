// Package admin is the operator's view of one instance: the queries behind the command line, and the same as JSON over HTTP.
package admin

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/labstack/echo/v4"

	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/ingest"
	"github.com/postern-gateway/postern/internal/retention"
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
	// Metrics serves /metrics; nil: there is none.
	Metrics http.Handler
	// Endpoints are the sources as they are configured now, for dry runs; nil: they are not known here.
	Endpoints func() []config.Endpoint
	// Retention is the policy that the configuration sets.
	Retention retention.Policy
	// Logger gets a line per request; nil: silent.
	Logger *slog.Logger
}

// New is the handler of /healthz, /readyz, /metrics, /debug/pprof/ and /api/v1. It asks nobody who they are, so it may only be served on
// loopback addresses, and requests whose Host is another name (a page that points its own name here) are refused.
func New(o Options) http.Handler {
	e := echo.New()
	e.HideBanner, e.HidePort = true, true
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	h := &handler{Options: o}
	e.HTTPErrorHandler = h.fail
	e.Use(h.observe)
	e.GET("/healthz", func(c echo.Context) error { return c.String(http.StatusOK, "ok\n") })
	e.GET("/readyz", h.ready)
	if o.Metrics != nil {
		e.GET("/metrics", echo.WrapHandler(o.Metrics), localHost)
	}
	profiles(e.Group("/debug/pprof", localHost))
	api := e.Group("/api/v1", localHost)
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
	api.GET("/retention", list(h, h.retention))
	h.runRoutes(api)
	h.scheduleRoutes(api)
	h.reconcileRoutes(api)
	return e
}

type handler struct {
	Options
	// trying is held by the dry run that is under way.
	trying sync.Mutex
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
		found, err := run(ctx, c, c.QueryParams())
		if err != nil {
			return err
		}
		body, err := json.Marshal(found)
		if err != nil {
			return err
		}
		return c.Blob(http.StatusOK, echo.MIMEApplicationJSON, append(body, '\n'))
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

// localHost refuses requests that reached a loopback address under a foreign name.
func localHost(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		host := c.Request().Host
		if h, _, err := net.SplitHostPort(host); err == nil {
			host = h
		}
		if ip := net.ParseIP(trimBrackets(host)); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
			return errForeignHost
		}
		return next(c)
	}
}

func trimBrackets(host string) string {
	if len(host) > 2 && host[0] == '[' && host[len(host)-1] == ']' {
		return host[1 : len(host)-1]
	}
	return host
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
				"duration_ms", time.Since(start).Milliseconds())
		}()
		return next(c)
	}
}
