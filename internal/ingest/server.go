// Package ingest accepts webhook deliveries over HTTP. It bounds the cost of each client, and
// verifies a delivery before it uses the database or any shared quota. It appends verified events
// to the log in batches, and responds after the commit. The gateway runs it. It never responds with
// success before a delivery is durable in PostgreSQL or in the spool.
package ingest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/labstack/echo/v4"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"

	"github.com/postern-gateway/postern/internal/activity"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/spool"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/telemetry"
)

// Endpoint is a source that accepts deliveries.
type Endpoint struct {
	// Number is the source's number in the log. It is 0 while the database is not confirmed;
	// nothing is appended for it then.
	Number   int32
	Config   *provider.Source
	Provider provider.Provider
	// MaxBody is the maximum body size in bytes. A larger body is not read; the response is 413.
	MaxBody int64
	// RequireCommit forbids the spool for this source, because its senders need Postern's event id
	// in the response.
	RequireCommit bool
	// AllowFrom are the networks that may send deliveries; none allows all. The response to others
	// is 403.
	AllowFrom []netip.Prefix
	// Rate limits the accepted deliveries; the response to more is 429.
	Rate    Rate
	limiter *rateLimiter
	// headers are the provider's allow-listed headers, read once.
	headers []string
}

// Settings bound the cost of clients.
type Settings struct {
	// Deadline is how long a delivery may wait for its commit; after that the response is 503.
	Deadline time.Duration
	// StallAfter is when an append counts as stalled. While the appends of all writers are stalled,
	// new deliveries are not queued: they go to the spool or are rejected at once.
	StallAfter time.Duration
	// AcquireTimeout bounds the wait of an append or a readiness check for a database connection.
	// After that PostgreSQL counts as unavailable. Zero means one second.
	AcquireTimeout time.Duration
	// Queue and QueueBytes bound the queued verified deliveries and the memory of their bodies.
	// Bodies that still arrive may use another quarter of QueueBytes, plus the size of the largest
	// body.
	Queue      int
	QueueBytes int64
	// BatchMax and BatchBytes bound one commit, Writers how many run at once.
	BatchMax   int
	BatchBytes int64
	Writers    int
	// RejectionsMaxCount and RejectionsMaxBytes bound the stored rejections per source,
	// RejectionsMaxBody one stored body.
	RejectionsMaxCount int
	RejectionsMaxBytes int64
	RejectionsMaxBody  int64
}

// Sessions returns how many database sessions are in use under load: one per writer, one to drain
// the spool, and one for all else. The pool should open them in advance, because an append that
// waits for a new connection counts as stalled.
func (s Settings) Sessions() int { return s.Writers + 2 }

// Options configure a server.
type Options struct {
	// Pool is connected as postern_gateway.
	Pool *pgxpool.Pool
	// Endpoints are the sources by name, until Replace sets others.
	Endpoints map[string]Endpoint
	// Publish receives newly stored events; it must not block.
	Publish func(evs ...stream.Event)
	// Spool stores deliveries while PostgreSQL is unavailable; nil for none. Server.Run runs it.
	Spool *spool.Spool
	// SpoolName identifies the spool in the database. SpoolLocation tells an operator where it is.
	SpoolName, SpoolLocation string
	Settings                 Settings
	Logger                   *slog.Logger
	Metrics                  prometheus.Registerer
	// Types collects the types of stored events; nil: they are not collected.
	Types *activity.Types
	// Tracer creates spans; nil if traces are not exported.
	Tracer trace.Tracer
	// TrustedProxies are the networks of proxies whose X-Forwarded-For header is trusted.
	TrustedProxies []netip.Prefix
	// Now is the gateway's clock.
	Now func() time.Time
	// DatabaseUnchecked is true while the gateway does not know yet whether the database belongs to
	// this installation, because it is unavailable. Until ConfirmDatabase is called, deliveries go
	// to the spool and nothing is written to the database.
	DatabaseUnchecked bool
}

// Server is the ingest part of a gateway. Handler serves requests; Run writes.
type Server struct {
	Options
	metrics           metrics
	appender          *appender
	rejections        *rejectionStore
	memory            *quotas
	uploads           uploads
	largeBodies       semaphore
	endpoints         atomic.Pointer[map[string]Endpoint]
	stopping          atomic.Bool
	databaseUnchecked atomic.Bool
	readiness         cachedCheck
	suppressor        telemetry.Suppressor[logKey]
}

// New returns a server. It writes nothing before Run.
func New(o Options) (*Server, error) {
	s := &Server{Options: o, memory: newQuotas(o.Settings.QueueBytes), largeBodies: newSemaphore()}
	s.metrics.create()
	s.appender = newAppender(s)
	s.rejections = newRejectionStore(s)
	s.Replace(o.Endpoints)
	s.databaseUnchecked.Store(o.DatabaseUnchecked)
	return s, s.metrics.register(o.Metrics, s)
}

// Replace sets the sources that accept deliveries, in one step. A request in progress ends with the
// sources it began with. The server owns the map from now on.
func (s *Server) Replace(endpoints map[string]Endpoint) {
	for name, ep := range endpoints {
		ep.headers = ep.Provider.Headers()
		endpoints[name] = ep
	}
	var before map[string]Endpoint
	if old := s.endpoints.Load(); old != nil {
		before = *old
	}
	assignLimiters(endpoints, before)
	s.metrics.createSeries(endpoints)
	s.endpoints.Store(&endpoints)
	largest := int64(0)
	for _, ep := range endpoints {
		largest = max(largest, ep.MaxBody)
	}
	s.uploads.setLimits(s.Settings.QueueBytes, largest)
	s.memory.setSingleSource(len(endpoints) == 1)
	s.appender.queue.quotas.setSingleSource(len(endpoints) == 1)
}

// ConfirmDatabase ends the state of Options.DatabaseUnchecked: the server writes to the database
// from now on. It first reports the spool, because a redaction that starts before the spool is
// empty must wait for it. Errors: events.ErrUnavailable; nothing has changed then.
func (s *Server) ConfirmDatabase(ctx context.Context) error {
	if s.Spool != nil {
		if err := s.reportSpoolStatus(ctx, false); err != nil {
			return err
		}
	}
	s.databaseUnchecked.Store(false)
	return nil
}

// Run writes what Handler accepts, until ctx ends and everything accepted is written.
func (s *Server) Run(ctx context.Context) error {
	var background sync.WaitGroup
	background.Go(func() { s.rejections.run(ctx) })
	if s.Spool == nil {
		s.appender.run(ctx)
		background.Wait()
		return nil
	}
	background.Go(func() { s.drainSpool(ctx) })
	spoolCtx, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	spoolEnded := make(chan error, 1)
	go func() { spoolEnded <- s.Spool.Run(spoolCtx) }()
	s.appender.run(ctx)
	background.Wait()
	s.Spool.StopAccepting() // a canceled request may still try to spool its delivery
	s.deleteSpoolStatus(ctx)
	stop()
	return <-spoolEnded
}

// acquireTimeout bounds the wait for a database connection.
func (s *Server) acquireTimeout() time.Duration {
	return cmp.Or(s.Settings.AcquireTimeout, time.Second)
}

// Drain makes /readyz fail, so that load balancers send no more requests, while deliveries are
// still accepted. Each response then closes its connection. No connection is open when the listener
// closes, so no sender loses a delivery that it sends at that moment.
func (s *Server) Drain() { s.stopping.Store(true) }

// StoreStalled returns true if PostgreSQL is unavailable, or if an append has taken longer than
// Settings.StallAfter.
func (s *Server) StoreStalled() bool { return s.appender.stalledOrUnavailable() }

// Ready returns why the gateway should get no deliveries now; nil if it can accept them.
func (s *Server) Ready(ctx context.Context) error {
	if s.stopping.Load() {
		return errors.New("stopping")
	}
	if s.Spool != nil && s.Spool.Ready() == nil {
		return nil // even if PostgreSQL is unavailable
	}
	if s.appender.allWritersStalled() {
		return errors.New("postgresql: an append has stalled")
	}
	return s.readiness.get(ctx, s.ping)
}

func (s *Server) ping(ctx context.Context) error {
	timeout := s.acquireTimeout()
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("postgresql: no response within %g s",
		timeout.Seconds()))
	defer cancel()
	if err := s.Pool.Ping(ctx); err != nil {
		return fmt.Errorf("postgresql: %w", errors.Join(err, context.Cause(ctx)))
	}
	return nil
}

// cachedCheck caches a result for a second. Every client may request /readyz, so it must not use
// the connections that appends need.
type cachedCheck struct {
	mu        sync.Mutex
	checkedAt time.Time
	err       error
}

func (c *cachedCheck) get(ctx context.Context, check func(context.Context) error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.checkedAt) > time.Second {
		c.err = check(context.WithoutCancel(ctx))
		c.checkedAt = time.Now()
	}
	return c.err
}

// Handler serves /webhooks/{source}, /healthz and /readyz.
func (s *Server) Handler() http.Handler { return s.closeWhenDraining(s.router()) }

func (s *Server) router() *echo.Echo {
	e := echo.New()
	e.HTTPErrorHandler = s.handleError
	e.Any("/webhooks/:source", s.handleWebhook)
	e.GET("/healthz", func(c echo.Context) error { return c.String(http.StatusOK, "ok\n") })
	e.GET("/readyz", func(c echo.Context) error {
		if err := s.Ready(c.Request().Context()); err != nil {
			// every client may request it
			if more, due := s.suppressor.Due(logKey{result: "not_ready"}, time.Now()); due {
				s.Logger.Warn("not ready", "error", err, "more_since", more)
			}
			return c.String(http.StatusServiceUnavailable, "not ready\n")
		}
		return c.String(http.StatusOK, "ready\n")
	})
	return e
}

// closeWhenDraining makes responses close their connections once the server drains. It wraps echo,
// because echo would rebuild its own middleware for each request.
func (s *Server) closeWhenDraining(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if s.stopping.Load() {
			w.Header().Set(echo.HeaderConnection, "close")
		}
		next.ServeHTTP(w, req)
	})
}

// recoverPanics turns a panic into the error of that request and counts it.
func (s *Server) recoverPanics(serve func() error) (err error) {
	defer func() {
		r := recover()
		if r == nil {
			return
		}
		if r == http.ErrAbortHandler { //nolint:errorlint // net/http panics with this value itself
			panic(r)
		}
		s.metrics.panics.Inc()
		err = fmt.Errorf("panic: %v", r)
	}()
	return serve()
}
