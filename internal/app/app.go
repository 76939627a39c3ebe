// Package app wires the parts of Postern into processes: gateway, processor, both in one (serve),
// and the development instance (dev). The commands call it. It contains no logic of the parts
// themselves.
package app

import (
	"cmp"
	"context"
	"crypto/rand"
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

	"github.com/postern-gateway/postern/internal/activity"
	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/effects/jobs/runner"
	"github.com/postern-gateway/postern/internal/effects/jobs/windows"
	"github.com/postern-gateway/postern/internal/ingest"
	"github.com/postern-gateway/postern/internal/lifecycle"
	"github.com/postern-gateway/postern/internal/notify"
	"github.com/postern-gateway/postern/internal/operations"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/redaction"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/spool"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/telemetry"
)

// Options select the parts of a process.
type Options struct {
	Config *config.Config
	Logger *slog.Logger
	// Gateway and Processor are the parts to run; at least one.
	Gateway, Processor bool
	// AdminListen is the admin address if the configuration names none.
	AdminListen string
	// Loader reads the files of Config again when they change, and at once after a value on Hangup.
	// If Loader is nil, the sources never change.
	Loader *config.Loader
	Hangup <-chan struct{}
	// A gateway that started without the database calls Migrate to apply missing migrations once
	// the database is available. Migrate is nil if another process does that. Its errors are those
	// of postgres.Connect.
	Migrate func(context.Context) error
	// OnDatabaseReturned is called after that; it may be nil.
	OnDatabaseReturned func()
	// OnStopping is called when the process begins to stop, also after an error; it may be nil.
	OnStopping func()
	// InstanceID is sent in config.InstanceHeader; "" omits the header.
	InstanceID string
	// Kind is the kind of the process, one of package activity; "" derives it from the parts.
	Kind string
	// Tune changes settings that the configuration does not offer; only tests use it.
	Tune func(*Tuning)
}

// App is a process: New builds it and binds its addresses, Start runs it, and Stop ends it.
type App struct {
	Options
	stack           lifecycle.Stack
	metrics         *telemetry.Metrics
	starts          []func()
	groups          []*lifecycle.Group
	readyChecks     []func(context.Context) error
	ingestListener  net.Listener
	adminListener   net.Listener
	metricsListener net.Listener

	// A reload registers the new sources through sourcesPool, passes them to these parts, and calls
	// onReload.
	gateway        *ingest.Server
	processor      *processor.Processor
	effects        *runner.Runner
	notify         *notify.Watcher
	windows        *windows.Scheduler
	sourcesPool    *pgxpool.Pool
	planner        *runs.Planner
	senderRequests *redaction.AutoRedactor
	apiClients     *apiClients
	// reprocessor verifies rejected deliveries again; nil without a gateway.
	reprocessor *operations.Reprocessor
	// anyStreamConn is the first connection to JetStream, for reading its state.
	anyStreamConn *stream.Conn
	// deliverySpool is the gateway's spool; nil for none. Until it is full, the process can work
	// without PostgreSQL.
	deliverySpool *spool.Spool
	// databaseUnavailable is true if PostgreSQL did not respond at the start.
	databaseUnavailable bool
	onReload            func(*config.Config)
	// currentConfig is the configuration with the current sources; configLoaded says since when.
	currentConfig atomic.Pointer[config.Config]
	configLoaded  atomic.Pointer[configLoaded]
	// configProblem is the reason why the process does not use its current configuration file.
	configProblem atomic.Pointer[string]
	startedAt     time.Time
	// id names this start of the process in the table processes.
	id string
	// types are the types of events that this process stored and has not reported.
	types activity.Types
	// adminPool serves the admin API and reports the process. It is closed last.
	adminPool *pgxpool.Pool
	// connections tracks all connections to PostgreSQL.
	connections postgres.Connections
	// unsafeServerSettings are the settings that PostgreSQL needs for durable commits and that are
	// off.
	unsafeServerSettings atomic.Pointer[[]string]
}

// StopTimeout limits a stop, and drainTimeout the end of open requests in it. A connection to
// PostgreSQL that is silent for silentTimeout is cut during a stop. That is less than drainTimeout,
// so that senders still get a response. After giveUpTimeout all connections to PostgreSQL are cut.
const (
	StopTimeout   = 10 * time.Second
	drainTimeout  = 3 * time.Second
	silentTimeout = 2 * time.Second
	giveUpTimeout = 8 * time.Second
)

// New builds the process, connects and binds. It starts nothing. After an error it has released
// everything.
func New(ctx context.Context, o Options) (_ *App, err error) {
	a := &App{Options: o, metrics: telemetry.NewMetrics(), startedAt: time.Now(), id: rand.Text()}
	a.useConfig(o.Config)
	a.unsafeServerSettings.Store(new([]string))
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

// build adds the parts in order. They stop in reverse order.
func (a *App) build(ctx context.Context) error {
	if tuneMemory(ctx, a.Config, os.Getenv) {
		a.loop("memory", returnMemory)
	}
	if err := CheckSchedules(a.Config); err != nil {
		return err
	}
	tuning := newTuning(a.Config)
	if a.Tune != nil {
		a.Tune(&tuning)
	}
	a.loop("silent connections", func(ctx context.Context) error {
		return a.closeSilentConnections(ctx, tuning.MaxSilence)
	})
	a.addTraces(ctx)
	if err := a.registerWarnings(); err != nil {
		return err
	}
	if err := a.addActivity(ctx, tuning); err != nil {
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
	if err := a.addReload(tuning.ReloadInterval); err != nil {
		return err
	}
	if err := a.addMetricsListener(ctx); err != nil {
		return err
	}
	return a.addAdmin(ctx)
}

// pool opens a pool with one of Postern's roles and registers its closing.
func (a *App) pool(ctx context.Context, url, role string, max int32) (*pgxpool.Pool, error) {
	return a.namedPool(ctx, url, role, role, max)
}

// namedPool opens another pool with the same role under its own name.
func (a *App) namedPool(ctx context.Context, url, role, name string, max int32) (*pgxpool.Pool, error) {
	return a.openPool(ctx, postgres.Options{URL: url, Role: role, AppName: name, MaxConns: max})
}

// openPool opens a pool with the given options and registers its closing.
func (a *App) openPool(ctx context.Context, o postgres.Options) (*pgxpool.Pool, error) {
	check := a.deliverySpool != nil && !a.databaseUnavailable && !o.Lazy
	o.Lazy, o.OnUnsafeSettings, o.Connections = o.Lazy || a.deliverySpool != nil, a.warnUnsafeServer, &a.connections
	pool, err := postgres.Connect(ctx, o)
	if err != nil {
		return nil, err
	}
	a.stack.Defer(o.AppName+" pool", func(context.Context) error { pool.Close(); return nil })
	if check {
		if err := a.checkPool(ctx, pool); err != nil {
			return nil, err
		}
	}
	return pool, a.registerPoolMetrics(o.AppName, pool)
}

// checkPool checks the pool of a process that can work without PostgreSQL. Permanent errors are
// returned. An unavailable server is only logged.
func (a *App) checkPool(ctx context.Context, pool *pgxpool.Pool) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	err := postgres.CheckConnection(ctx, pool)
	if postgres.IsUnavailable(err) {
		a.Logger.Warn("postgresql does not respond any more; the spool stores deliveries until it does", "error", err)
		return nil
	}
	return err
}

// connect opens a connection to JetStream and registers its closing. It creates the streams if a
// server responds; otherwise the parts that need them create them later.
func (a *App) connect(ctx context.Context, name string, limits stream.Limits) (*stream.Conn, error) {
	n := a.Config.NATS
	if n.URL == "" {
		return nil, errors.New("nats.url is not set: name the servers, e.g. nats://127.0.0.1:4222")
	}
	conn, err := stream.Connect(stream.Options{URL: string(n.URL), Credentials: n.Credentials, CA: n.TLS.CA,
		Cert: n.TLS.Cert, Key: n.TLS.Key, Name: name, Logger: a.Logger.With("component", "stream")})
	if err != nil {
		return nil, err
	}
	a.anyStreamConn = cmp.Or(a.anyStreamConn, conn)
	a.stack.Defer(name+" stream connection", func(context.Context) error { conn.Close(); return nil })
	if err := a.registerStreamMetrics(name, conn); err != nil {
		return nil, err
	}
	if !conn.Connected() {
		a.Logger.Warn("no stream server responds yet; events are stored now and published later", "servers",
			n.URL.String())
		return conn, nil
	}
	if err := conn.CheckServer(); err != nil {
		return nil, err
	}
	ctx, cancel := lifecycle.WithTimeout(ctx, "create streams", startTimeout)
	defer cancel()
	if err := conn.Ensure(ctx, limits); err != nil {
		a.Logger.Warn("cannot create the streams yet; retrying later", "error", err)
	}
	return conn, nil
}

// loop registers a background loop. Each has its own stop function, so that loops end one after the
// other.
func (a *App) loop(name string, run func(context.Context) error) {
	g := lifecycle.NewGroup(context.Background())
	a.groups = append(a.groups, g)
	a.starts = append(a.starts, func() { g.Loop(name, run) })
	a.stack.Defer(name, g.Stop)
}

// withInstance adds the instance id to responses to GET and HEAD. Deliveries use POST and stay
// unchanged.
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
		drain, cancel := lifecycle.WithTimeout(ctx, "drain requests", drainTimeout)
		defer cancel()
		if err := s.Shutdown(drain); err != nil {
			// A sender whose request is incomplete retries it. Accepted deliveries must still be
			// written.
			a.Logger.Warn("closed open requests", "listener", name, "error", err)
			if err := s.Close(); err != nil {
				return err
			}
		}
		return errors.Join(ignoreErrClosed(l.Close()), g.Stop(ctx))
	})
}

func ignoreErrClosed(err error) error {
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
	a.stack.Defer(name+" listener", func(context.Context) error { return ignoreErrClosed(l.Close()) })
	return l, nil
}

// Start starts all loops and servers.
func (a *App) Start() {
	for _, start := range a.starts {
		start()
	}
}

// Addr returns the bound ingest address, or "" without a gateway.
func (a *App) Addr() string {
	if a.ingestListener == nil {
		return ""
	}
	return a.ingestListener.Addr().String()
}

// AdminAddr returns the bound admin address.
func (a *App) AdminAddr() string { return a.adminListener.Addr().String() }

// Stop ends the process in order: incoming requests first, then the parts that serve them. ctx
// limits it, and it may be called twice. A PostgreSQL that does not respond delays it only by
// seconds.
func (a *App) Stop(ctx context.Context) error {
	ended, done := context.WithCancel(context.Background())
	var cutter sync.WaitGroup
	cutter.Go(func() { a.cutStalledConnections(ended) })
	defer cutter.Wait()
	defer done()
	return a.stack.Stop(ctx)
}

// closeSilentConnections closes connections to PostgreSQL whose call has had no traffic for
// maxSilence, until ctx ends. Something in between may keep a connection open although it lost a
// response, and a call without a deadline would wait for it for ever. The calls that this ends too
// early, such as a commit that waits for a standby for so long, are repeated by their callers.
func (a *App) closeSilentConnections(ctx context.Context, maxSilence time.Duration) error {
	return lifecycle.Repeat(ctx, maxSilence/10, nil, nil, func(context.Context) (more bool, err error) {
		if n := a.connections.CloseSilent(maxSilence); n > 0 {
			a.Logger.Warn("closed connections to postgresql whose calls got no response", "connections", n, "after",
				maxSilence.String())
		}
		return false, nil
	})
}

// cutStalledConnections cuts connections to PostgreSQL that delay the stop, until ctx ends. It is
// necessary because a commit has no timeout of its own. A caller whose connection is cut gets an
// error, so it does not acknowledge its messages. If appends stall, all connections are cut,
// because each queued delivery would wait separately.
func (a *App) cutStalledConnections(ctx context.Context) {
	tick := time.NewTicker(silentTimeout / 20)
	defer tick.Stop()
	for startedAt := time.Now(); ; {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		elapsed := time.Since(startedAt)
		if elapsed < silentTimeout {
			continue
		}
		if elapsed > giveUpTimeout || a.gateway != nil && a.gateway.StoreStalled() {
			a.Logger.Warn("stopping without postgresql: closing all connections to it; acknowledged deliveries are " +
				"in the log or in the spool")
			a.connections.CloseAll()
			return
		}
		if cut := a.connections.CloseSilent(silentTimeout); cut > 0 {
			a.Logger.Warn("postgresql does not respond during the stop: closing the connections that wait "+
				"for it", "connections", cut)
		}
	}
}

// Run starts the process, waits until ctx or a loop ends, and stops it. The error says which loop
// ended unexpectedly.
func (a *App) Run(ctx context.Context) error {
	a.Start()
	a.Logger.Info("ready", a.addresses(a.Addr(), a.AdminAddr())...)
	failed := a.waitForEnd(ctx)
	a.Logger.Info("stopping")
	if failed == nil {
		a.drainBalancers()
	}
	stop, cancel := lifecycle.WithTimeout(context.WithoutCancel(ctx), "stop", StopTimeout)
	defer cancel()
	return errors.Join(failed, a.Stop(stop))
}

// drainBalancers gives load balancers time to notice that this gateway stops, while it still
// accepts deliveries. It returns early if a part ends.
func (a *App) drainBalancers() {
	if a.gateway == nil {
		return
	}
	a.gateway.Drain()
	ctx, cancel := context.WithTimeout(context.Background(), a.Config.Ingest.DrainDelay)
	defer cancel()
	a.waitForPart(ctx)
}

// waitForEnd waits until ctx ends (nil) or a part ends unexpectedly (its error), and calls
// OnStopping.
func (a *App) waitForEnd(ctx context.Context) error {
	if a.OnStopping != nil {
		defer a.OnStopping()
	}
	if g := a.waitForPart(ctx); g != nil {
		return g.Wait()
	}
	return nil
}

// waitForPart waits for the first part that ends and returns it, or nil if ctx ended before.
func (a *App) waitForPart(ctx context.Context) *lifecycle.Group {
	first := make(chan *lifecycle.Group, len(a.groups))
	for _, g := range a.groups {
		go func() { // it ends with Stop at the latest
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
