// Package app wires the parts into processes: gateway, processor, both in one (serve), and dev. It holds no logic of theirs.
package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/ingest"
	"github.com/postern-gateway/postern/internal/lifecycle"
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
	// Stopping is called when the process begins to stop, also where nobody asked it to; nil: nobody is told.
	Stopping func()
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
	registrar *pgxpool.Pool
	planner   *runs.Planner
	answers   *redaction.Answers
	fetching  *fetching
	reloaded  func(*config.Config)
	// inUse is the configuration whose sources are in use.
	inUse atomic.Pointer[config.Config]
}

// StopWithin is how long Run gives a stop; drainWithin is the requests' part of it.
const (
	StopWithin  = 10 * time.Second
	drainWithin = 3 * time.Second
)

// New connects, binds and builds; nothing runs yet. After an error everything is undone.
func New(ctx context.Context, o Options) (_ *App, err error) {
	a := &App{Options: o, metrics: telemetry.NewMetrics()}
	a.inUse.Store(o.Config)
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
	tuneMemory(ctx, a.Config, os.Getenv)
	if err := CheckSchedules(a.Config); err != nil {
		return err
	}
	tuning := newTuning(a.Config)
	if a.Tune != nil {
		a.Tune(&tuning)
	}
	a.addTraces(ctx)
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
	pool, err := postgres.Connect(ctx, postgres.Options{URL: url, Role: role, AppName: name, MaxConns: max})
	if err != nil {
		return nil, err
	}
	a.stack.Defer(name+" pool", func(context.Context) error { pool.Close(); return nil })
	return pool, a.watchPool(name, pool)
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
	ctx, cancel := lifecycle.WithTimeout(ctx, "make streams", 5*time.Second)
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

// serve registers an HTTP server on a bound listener.
func (a *App) serve(name string, l net.Listener, s *http.Server, cert, key string) {
	s.ErrorLog = slog.NewLogLogger(a.Logger.With("component", name).Handler(), slog.LevelDebug)
	g := lifecycle.NewGroup(context.Background())
	a.groups = append(a.groups, g)
	stopped := make(chan struct{})
	a.starts = append(a.starts, func() {
		g.Go(name, func(context.Context) error {
			var err error
			if cert != "" {
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

// Stop ends the process in order: traffic first, collaborators later. It is bounded by ctx and may be called twice.
func (a *App) Stop(ctx context.Context) error { return a.stack.Stop(ctx) }

// Run starts, waits until ctx ends or a core loop does, and stops. The error says which loop ended on its own.
func (a *App) Run(ctx context.Context) error {
	a.Start()
	a.Logger.Info("ready", a.addresses(a.Addr(), a.AdminAddr())...)
	failed := a.wait(ctx)
	a.Logger.Info("stopping")
	stop, cancel := lifecycle.WithTimeout(context.WithoutCancel(ctx), "stop", StopWithin)
	defer cancel()
	return errors.Join(failed, a.Stop(stop))
}

// wait blocks until ctx ends (nil) or a loop ended on its own (its error), and tells that the stop begins.
func (a *App) wait(ctx context.Context) error {
	if a.Stopping != nil {
		defer a.Stopping()
	}
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
		return g.Wait()
	}
}
