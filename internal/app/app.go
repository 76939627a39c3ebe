// Package app wires the parts into processes: gateway, processor, both in one (serve), and dev. It holds no logic of theirs.
package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/effects/runner"
	"github.com/postern-gateway/postern/internal/effects/windows"
	"github.com/postern-gateway/postern/internal/ingest"
	"github.com/postern-gateway/postern/internal/lifecycle"
	"github.com/postern-gateway/postern/internal/notify"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/redaction"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/telemetry"
)

// Options say which parts a process has.
type Options struct {
	Config *config.Config
	Logger *slog.Logger
	// Gateway and Processor are the parts to run; at least one.
	Gateway, Processor bool
	// AdminListen is the admin address where the configuration names none.
	AdminListen string
	// Loader reads Config's files again when they change, and Hangup asks for it at once; nil: the sources stay what they are.
	Loader *config.Loader
	Hangup <-chan struct{}
	// Migrate brings the database to the program's schema where it was away when a gateway started, before it is looked at; nil: others do. Its errors are as postgres.Connect's. Returned is called once it is there; nil: nobody is told.
	Migrate  func(context.Context) error
	Returned func()
	// Stopping is called when the process begins to stop, also where nobody asked it to; nil: nobody is told.
	Stopping func()
	// InstanceID is sent in config.InstanceHeader; empty: the header is left out.
	InstanceID string
	// Tune changes what the configuration does not offer; only tests set it.
	Tune func(*Tuning)
}

// App is a process: built and bound by New, run by Start, ended by Stop.
type App struct {
	Options
	stack   lifecycle.Stack
	metrics *telemetry.Metrics
	starts  []func()
	groups  []*lifecycle.Group
	ready   []func(context.Context) error
	ingest  net.Listener
	admin   net.Listener
	scrape  net.Listener

	// gateway and processor get the sources of a changed configuration, after registrar has numbered them; reloaded is told.
	gateway   *ingest.Server
	processor *processor.Processor
	effects   *runner.Runner
	notify    *notify.Watcher
	windows   *windows.Asker
	registrar *pgxpool.Pool
	planner   *runs.Planner
	answers   *redaction.Answers
	fetching  *fetching
	// stream is the first connection to JetStream, for whoever only asks.
	stream *stream.Conn
	// spooled: the process can do without PostgreSQL for a while; away: it did not answer when the process started.
	spooled, away bool
	reloaded      func(*config.Config)
	// inUse is the configuration whose sources are in use.
	inUse atomic.Pointer[config.Config]
	// lines are all connections with PostgreSQL.
	lines postgres.Lines
	// lax are the server's settings that are off by which a commit outlives its machine.
	lax atomic.Pointer[[]string]
}

// StopWithin is how long Run gives a stop; drainWithin is the requests' part of it. hangsWithin is how long PostgreSQL may be silent then, less than drainWithin so that senders are still answered, and giveUpWithin
// when it is not asked any more.
const (
	StopWithin   = 10 * time.Second
	drainWithin  = 3 * time.Second
	hangsWithin  = 2 * time.Second
	giveUpWithin = 8 * time.Second
)

// New connects, binds and builds; nothing runs yet. After an error everything is undone.
func New(ctx context.Context, o Options) (_ *App, err error) {
	a := &App{Options: o, metrics: telemetry.NewMetrics()}
	a.inUse.Store(o.Config)
	a.lax.Store(new([]string))
	defer func() {
		if err != nil {
			err = errors.Join(err, a.stack.Stop(context.WithoutCancel(ctx)))
		}
	}()
	if err := a.build(ctx); err != nil {
		return nil, err
	}
	return a, nil
}

// build is the whole wiring in order; what is deferred first is stopped last.
func (a *App) build(ctx context.Context) error {
	if tuneMemory(ctx, a.Config, os.Getenv) {
		a.loop("memory", giveBack)
	}
	if err := CheckSchedules(a.Config); err != nil {
		return err
	}
	tuning := newTuning(a.Config)
	if a.Tune != nil {
		a.Tune(&tuning)
	}
	a.addTraces(ctx)
	if err := a.warn(); err != nil {
		return err
	}
	if a.Gateway {
		if err := a.addGateway(ctx, tuning); err != nil {
			return err
		}
	}
	if a.Processor {
		if err := a.addProcessor(ctx, tuning); err != nil {
			return err
		}
	}
	if err := a.addReload(tuning.ReloadEvery); err != nil {
		return err
	}
	if err := a.addScrape(ctx); err != nil {
		return err
	}
	return a.addAdmin(ctx)
}

// pool connects as one of Postern's roles and registers the closing.
func (a *App) pool(ctx context.Context, url, role string, max int32) (*pgxpool.Pool, error) {
	return a.namedPool(ctx, url, role, role, max)
}

// namedPool is a pool beside another one of the same role.
func (a *App) namedPool(ctx context.Context, url, role, name string, max int32) (*pgxpool.Pool, error) {
	return a.openPool(ctx, postgres.Options{URL: url, Role: role, AppName: name, MaxConns: max})
}

// openPool connects as the options say, and registers the closing.
func (a *App) openPool(ctx context.Context, o postgres.Options) (*pgxpool.Pool, error) {
	prove := a.spooled && !a.away && !o.Lazy
	o.Lazy, o.Lax, o.Lines = o.Lazy || a.spooled, a.tellLax, &a.lines
	pool, err := postgres.Connect(ctx, o)
	if err != nil {
		return nil, err
	}
	a.stack.Defer(o.AppName+" pool", func(context.Context) error { pool.Close(); return nil })
	if prove {
		if err := a.proveSpooled(ctx, pool); err != nil {
			return nil, err
		}
	}
	return pool, a.watchPool(o.AppName, pool)
}

// proveSpooled proves a pool of a process that can do without PostgreSQL: what will not go away by itself is an error, a server that has gone since it was asked first is none.
func (a *App) proveSpooled(ctx context.Context, pool *pgxpool.Pool) error {
	ctx, cancel := context.WithTimeout(ctx, startWithin)
	defer cancel()
	err := postgres.Prove(ctx, pool)
	if postgres.IsUnavailable(err) {
		a.Logger.Warn("postgresql answers no more; deliveries are kept in the spool until it does", "error", err)
		return nil
	}
	return err
}

// connect opens a connection to JetStream, registers its closing and makes the streams where a server answers already;
// otherwise those who need them make them later.
func (a *App) connect(ctx context.Context, name string, limits stream.Limits) (*stream.Conn, error) {
	n := a.Config.NATS
	if n.URL == "" {
		return nil, errors.New("nats.url is not set: name the servers, e.g. nats://127.0.0.1:4222")
	}
	conn, err := stream.Connect(stream.Options{URL: string(n.URL), Credentials: n.Credentials, CA: n.TLS.CA, Cert: n.TLS.Cert, Key: n.TLS.Key,
		Name: name, Logger: a.Logger.With("component", "stream")})
	if err != nil {
		return nil, err
	}
	a.stream = cmp.Or(a.stream, conn)
	a.stack.Defer(name+" stream connection", func(context.Context) error { conn.Close(); return nil })
	if err := a.watchStream(name, conn); err != nil {
		return nil, err
	}
	if !conn.Connected() {
		a.Logger.Warn("no stream server answers yet; events are stored and published later", "servers", n.URL.String())
		return conn, nil
	}
	if err := conn.CheckServer(); err != nil {
		return nil, err
	}
	ctx, cancel := lifecycle.WithTimeout(ctx, "make streams", startWithin)
	defer cancel()
	if err := conn.Ensure(ctx, limits); err != nil {
		a.Logger.Warn("streams not made yet; tried again later", "error", err)
	}
	return conn, nil
}

// loop registers a core loop with its own stop, so that the stack ends the loops one by one in order.
func (a *App) loop(name string, run func(context.Context) error) {
	g := lifecycle.NewGroup(context.Background())
	a.groups = append(a.groups, g)
	a.starts = append(a.starts, func() { g.Loop(name, run) })
	a.stack.Defer(name, g.Stop)
}

// withInstance names the instance in responses to GET and HEAD. Deliveries are POST, and cost nothing more.
func withInstance(id string, next http.Handler) http.Handler {
	if id == "" {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet || r.Method == http.MethodHead {
			w.Header().Set(config.InstanceHeader, id)
		}
		next.ServeHTTP(w, r)
	})
}

// serve registers an HTTP server on a bound listener.
func (a *App) serve(name string, l net.Listener, s *http.Server, cert, key string) {
	s.ErrorLog = slog.NewLogLogger(a.Logger.With("component", name).Handler(), slog.LevelDebug)
	s.Handler = withInstance(a.InstanceID, s.Handler)
	g := lifecycle.NewGroup(context.Background())
	a.groups = append(a.groups, g)
	stopped := make(chan struct{})
	a.starts = append(a.starts, func() {
		g.Go(name, func(context.Context) error {
			var err error
			if cert != "" || s.TLSConfig != nil {
				err = s.ServeTLS(l, cert, key)
			} else {
				err = s.Serve(l)
			}
			select {
			case <-stopped:
				return nil
			default:
				return err
			}
		})
	})
	a.stack.Defer(name, func(ctx context.Context) error {
		close(stopped)
		drain, cancel := lifecycle.WithTimeout(ctx, "drain requests", drainWithin)
		defer cancel()
		if err := s.Shutdown(drain); err != nil {
			// Whoever has not sent its request by now tries again; what has been taken must still be written.
			a.Logger.Warn("requests cut off", "listener", name, "error", err)
			if err := s.Close(); err != nil {
				return err
			}
		}
		return errors.Join(ignoreClosed(l.Close()), g.Stop(ctx))
	})
}

func ignoreClosed(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

func (a *App) listen(ctx context.Context, name, address string) (net.Listener, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen for %s on %s: %w", name, address, err)
	}
	a.stack.Defer(name+" listener", func(context.Context) error { return ignoreClosed(l.Close()) })
	return l, nil
}

// Start starts all loops and listeners.
func (a *App) Start() {
	for _, start := range a.starts {
		start()
	}
}

// Addr is the bound ingest address; "" for a process without a gateway.
func (a *App) Addr() string {
	if a.ingest == nil {
		return ""
	}
	return a.ingest.Addr().String()
}

// AdminAddr is the bound admin address.
func (a *App) AdminAddr() string { return a.admin.Addr().String() }

// Stop ends the process in order: traffic first, collaborators later. It is bounded by ctx and may be called twice. A PostgreSQL that hangs holds it up for some seconds only.
func (a *App) Stop(ctx context.Context) error {
	ended, done := context.WithCancel(context.Background())
	var beside sync.WaitGroup
	beside.Go(func() { a.giveUp(ended) })
	defer beside.Wait()
	defer done()
	return a.stack.Stop(ctx)
}

// giveUp cuts connections with PostgreSQL that hold up the stop, until ctx ends: a commit has no deadline of its own. Whoever waits for one gets an error, and acknowledges, settles and marks nothing. Where appends hang all are cut, since
// each delivery that waits would be tried for itself.
func (a *App) giveUp(ctx context.Context) {
	tick := time.NewTicker(hangsWithin / 20)
	defer tick.Stop()
	for began := time.Now(); ; {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		took := time.Since(began)
		if took < hangsWithin {
			continue
		}
		if took > giveUpWithin || a.gateway != nil && a.gateway.Hangs() {
			a.Logger.Warn("stopping without postgresql: all connections with it are given up; what was acknowledged is in the log or in the spool")
			a.lines.Cut()
			return
		}
		if cut := a.lines.CutSilent(hangsWithin); cut > 0 {
			a.Logger.Warn("stopping without an answer of postgresql: connections over which it was waited for are given up", "connections", cut)
		}
	}
}

// Run starts, waits until ctx ends or a core loop does, and stops. The error says which loop ended on its own.
func (a *App) Run(ctx context.Context) error {
	a.Start()
	a.Logger.Info("ready", a.addresses(a.Addr(), a.AdminAddr())...)
	failed := a.wait(ctx)
	a.Logger.Info("stopping")
	if failed == nil {
		a.drain()
	}
	stop, cancel := lifecycle.WithTimeout(context.WithoutCancel(ctx), "stop", StopWithin)
	defer cancel()
	return errors.Join(failed, a.Stop(stop))
}

// drain gives balancers the time to learn that this gateway stops, while it still takes what they send. A part that ends meanwhile ends the wait.
func (a *App) drain() {
	if a.gateway == nil {
		return
	}
	a.gateway.Drain()
	ctx, cancel := context.WithTimeout(context.Background(), a.Config.Ingest.DrainDelay)
	defer cancel()
	a.ended(ctx)
}

// wait blocks until ctx ends (nil) or a loop ended on its own (its error), and tells that the stop begins.
func (a *App) wait(ctx context.Context) error {
	if a.Stopping != nil {
		defer a.Stopping()
	}
	if g := a.ended(ctx); g != nil {
		return g.Wait()
	}
	return nil
}

// ended waits for the first part that ends by itself; nil: ctx ended before.
func (a *App) ended(ctx context.Context) *lifecycle.Group {
	first := make(chan *lifecycle.Group, len(a.groups))
	for _, g := range a.groups {
		go func() { // ends at the latest with Stop
			<-g.Done()
			first <- g
		}()
	}
	select {
	case <-ctx.Done():
		return nil
	case g := <-first:
		return g
	}
}
