// Package ingest is the door: a POST becomes durable events. It bounds what a sender may cost, proves the sender before any
// database access or shared budget is spent, batches what is verified into one statement, and answers with a receipt.
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

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/spool"
	"github.com/postern-gateway/postern/internal/stream"
)

// Endpoint is a source that deliveries may come to.
type Endpoint struct {
	// Number is the source's in the log; 0: the database is not proven yet, and nothing is appended under it.
	Number   int32
	Config   *provider.Source
	Provider provider.Provider
	// MaxBody is the largest body in bytes; a larger one is answered 413 and not read.
	MaxBody int64
	// FinalReceipts: whoever sends needs our id of the event in the answer, so nothing is kept in the spool for it.
	FinalReceipts bool
	// AllowFrom are the networks that deliveries may come from; none: everywhere. Others are answered 403.
	AllowFrom []netip.Prefix
	// Rate is how many deliveries are taken; more are answered 429.
	Rate  Rate
	limit *limit
	// headers are those that the provider wants kept; asked for once.
	headers []string
}

// Settings bound what senders may cost.
type Settings struct {
	// Deadline is how long a delivery may wait for its commit before it is answered 503.
	Deadline time.Duration
	// StallAfter is how long every writer's append may take before new deliveries are refused at once instead of queueing behind.
	StallAfter time.Duration
	// AcquireWithin is how long an append or the question whether we are ready may wait for a database connection before the
	// store counts as away; 0: a second.
	AcquireWithin time.Duration
	// Queue and QueueBytes bound the verified deliveries that wait, and their bodies in memory. Bodies that still arrive
	// may take a quarter of QueueBytes besides.
	Queue      int
	QueueBytes int64
	// BatchMax and BatchBytes bound one commit, Writers how many are under way at once.
	BatchMax   int
	BatchBytes int64
	Writers    int
	// RejectionsMaxCount and RejectionsMaxBytes bound what is kept of refused deliveries per source; RejectionsMaxBody one body.
	RejectionsMaxCount int
	RejectionsMaxBytes int64
	RejectionsMaxBody  int64
}

// Sessions is how many sessions with the database are in use under load: the writers', the drainer's, and one of whoever else asks. They are to be open before: an append that waits for one to be opened counts as one that hangs.
func (s Settings) Sessions() int { return s.Writers + 2 }

// Publish takes what was newly stored; it must not block.
type Publish func(evs ...stream.Event)

// Options are what a server works with.
type Options struct {
	// Pool is connected as postern_gateway.
	Pool *pgxpool.Pool
	// Endpoints are the sources by name, until Replace gives others.
	Endpoints map[string]Endpoint
	Publish   Publish
	// Spool keeps deliveries while the store is away; nil: there is none. Run runs it.
	Spool *spool.Spool
	// SpoolName is by what the database knows the spool, and SpoolPlace where a person finds it.
	SpoolName, SpoolPlace string
	Settings              Settings
	Logger                *slog.Logger
	Metrics               prometheus.Registerer
	// Tracer makes the spans; nil where traces are not exported: then none are made.
	Tracer trace.Tracer
	// TrustedProxies are the networks of the proxies whose X-Forwarded-For is believed.
	TrustedProxies []netip.Prefix
	// Now is the gateway's clock.
	Now func() time.Time
	// Unproven: nobody knows yet whether the database is ours, since it is away. Until Proven says that it is, nothing is written to it, and deliveries go to the spool.
	Unproven bool
}

// Server is the ingest side of a gateway. Handler answers requests; Run does the writing.
type Server struct {
	Options
	metrics    metrics
	appender   *appender
	rejections *recorder
	memory     *shares
	uploads    uploads
	large      turnstile
	endpoints  atomic.Pointer[map[string]Endpoint]
	stopping   atomic.Bool
	unproven   atomic.Bool
	pings      cached
	complaints complaints
	flights    flights
}

// New returns a server; nothing is written before Run.
func New(o Options) (*Server, error) {
	s := &Server{Options: o, memory: newShares(o.Settings.QueueBytes), large: newTurnstile()}
	s.metrics.build()
	s.appender = newAppender(s)
	s.rejections = newRecorder(s)
	s.Replace(o.Endpoints)
	s.unproven.Store(o.Unproven)
	return s, s.metrics.register(o.Metrics, s)
}

// Replace makes other sources the ones that deliveries may come to, in one step. A request under way ends as it began, under the
// sources of its time. The map belongs to the server from now on.
func (s *Server) Replace(endpoints map[string]Endpoint) {
	for name, ep := range endpoints {
		ep.headers = ep.Provider.Headers()
		endpoints[name] = ep
	}
	var before map[string]Endpoint
	if old := s.endpoints.Load(); old != nil {
		before = *old
	}
	limited(endpoints, before)
	s.metrics.preset(endpoints)
	s.endpoints.Store(&endpoints)
	largest := int64(0)
	for _, ep := range endpoints {
		largest = max(largest, ep.MaxBody)
	}
	s.uploads.setLimits(s.Settings.QueueBytes, largest)
	s.memory.setAlone(len(endpoints) == 1)
	s.appender.queue.room.setAlone(len(endpoints) == 1)
}

// Proven says that the database is ours, after Options.Unproven: from now on it is written to, first of all that there is a spool. Else a redaction that begins before that is empty would not wait for it.
// Errors: events.ErrUnavailable; then nothing has changed.
func (s *Server) Proven(ctx context.Context) error {
	if s.Spool != nil {
		if err := s.tell(ctx, false); err != nil {
			return err
		}
	}
	s.unproven.Store(false)
	return nil
}

// Run writes what Handler takes in, until ctx ends and everything taken is written.
func (s *Server) Run(ctx context.Context) error {
	var beside sync.WaitGroup
	beside.Go(func() { s.rejections.run(ctx) })
	if s.Spool == nil {
		s.appender.run(ctx)
		beside.Wait()
		return nil
	}
	beside.Go(func() { s.drain(ctx) })
	written, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- s.Spool.Run(written) }()
	s.appender.run(ctx)
	beside.Wait()
	s.Spool.Seal() // a request that was cut off may still want to keep something
	s.untell(ctx)
	stop()
	return <-ended
}

// within bounds the wait for a database connection.
func (s *Server) within() time.Duration { return cmp.Or(s.Settings.AcquireWithin, time.Second) }

// Drain makes /readyz fail, so that balancers send no more, while deliveries are still taken. Each answer then closes its connection, so that none is in use when the
// listener closes: a sender that reuses one at that moment could not tell whether its delivery was taken.
func (s *Server) Drain() { s.stopping.Store(true) }

// Hangs says whether the store is away, or an append has been under way for Settings.StallAfter.
func (s *Server) Hangs() bool { return s.appender.hangs() }

// Ready says why the gateway should not be sent deliveries now; nil if it can take them.
func (s *Server) Ready(ctx context.Context) error {
	if s.stopping.Load() {
		return errors.New("stopping")
	}
	if s.Spool != nil && s.Spool.Ready() == nil {
		return nil // whatever the store does
	}
	if s.appender.stalled() {
		return errors.New("postgresql: an append has not ended for a while")
	}
	return s.pings.get(ctx, s.ping)
}

func (s *Server) ping(ctx context.Context) error {
	within := s.within()
	ctx, cancel := context.WithTimeoutCause(ctx, within, fmt.Errorf("postgresql: no answer within %g s", within.Seconds()))
	defer cancel()
	if err := s.Pool.Ping(ctx); err != nil {
		return fmt.Errorf("postgresql: %w", errors.Join(err, context.Cause(ctx)))
	}
	return nil
}

// cached keeps an answer for a second: /readyz is open to anybody and must not cost the connections that appends need.
type cached struct {
	mu  sync.Mutex
	at  time.Time
	err error
}

func (c *cached) get(ctx context.Context, ask func(context.Context) error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.at) > time.Second {
		c.err = ask(context.WithoutCancel(ctx))
		c.at = time.Now()
	}
	return c.err
}

// Handler serves /webhooks/{source}, /healthz and /readyz.
func (s *Server) Handler() http.Handler { return s.part(s.router()) }

func (s *Server) router() *echo.Echo {
	e := echo.New()
	e.HTTPErrorHandler = s.fail
	e.Any("/webhooks/:source", s.door)
	e.GET("/healthz", func(c echo.Context) error { return c.String(http.StatusOK, "ok\n") })
	e.GET("/readyz", func(c echo.Context) error {
		if err := s.Ready(c.Request().Context()); err != nil {
			if more, due := s.complaints.due(complaint{result: "not_ready"}, time.Now()); due { // anybody may ask
				s.Logger.Warn("not ready", "error", err, "more_since", more)
			}
			return c.String(http.StatusServiceUnavailable, "not ready\n")
		}
		return c.String(http.StatusOK, "ready\n")
	})
	return e
}

// part has answers close their connections once the server drains. It stands around echo, which would make its own middleware anew for each request.
func (s *Server) part(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if s.stopping.Load() {
			w.Header().Set(echo.HeaderConnection, "close")
		}
		next.ServeHTTP(w, req)
	})
}

// guard turns a panic into the error of that request and a counted fault, never a crash.
func (s *Server) guard(serve func() error) (err error) {
	defer func() {
		r := recover()
		if r == nil {
			return
		}
		if r == http.ErrAbortHandler { //nolint:errorlint // the value net/http panics with, to drop the connection unanswered
			panic(r)
		}
		s.metrics.faults.Inc()
		err = fmt.Errorf("panic: %v", r)
	}()
	return serve()
}
