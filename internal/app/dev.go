package app

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/lifecycle"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/stream"
)

// LocalOptions are of a process that brings what it needs: dev and serve.
type LocalOptions struct {
	Config *config.Config
	Logger *slog.Logger
	// File is where Config was read, for telling how to use the instance; empty: nowhere.
	File string
	// Dir keeps the state: the private cluster, the streams, and how to reach the instance.
	Dir string
	// Cluster starts a private PostgreSQL where the configuration names no database.
	Cluster bool
	// NATSPort is the port of the embedded JetStream on 127.0.0.1; 0: that of the last start in Dir, or else a free one.
	NATSPort int
	// Loader reads Config's files again when they change, and Hangup asks for it at once; nil: the sources stay what they are.
	Loader *config.Loader
	Hangup <-chan struct{}
	// Stopping is called when the instance begins to stop, also where nobody asked it to; nil: nobody is told.
	Stopping func()
	// Out is told how to use the instance, once it is ready; nil: nobody is.
	Out io.Writer
	// Tune is for tests.
	Tune func(*Tuning)
}

// Local is gateway and processor in one process, with the servers it brought along.
type Local struct {
	*App
	opts  LocalOptions
	stack lifecycle.Stack
	moved string
	// id names this start. databaseID identifies the database; empty: unknown. sources are those of the instance file.
	id, databaseID string
	sources        *config.Config
	// away: PostgreSQL did not answer when the instance started, and the gateway runs alone. returned gets a token when it does.
	away     bool
	returned chan struct{}
}

// NewLocal starts the servers that are needed, migrates, and builds gateway and processor. After an error all is undone.
func NewLocal(ctx context.Context, o LocalOptions) (_ *Local, err error) {
	l := &Local{opts: o, id: rand.Text(), sources: o.Config, returned: make(chan struct{}, 1)}
	defer func() {
		if err != nil {
			if ctx.Err() != nil { // whatever was under way complained of it
				err = fmt.Errorf("stopped before it was ready: %w", context.Cause(ctx))
			}
			stop, cancel := lifecycle.WithTimeout(context.WithoutCancel(ctx), "stop", StopWithin)
			defer cancel()
			err = errors.Join(err, l.stack.Stop(stop))
		}
	}()
	if err := l.checkPorts(ctx); err != nil {
		return nil, err
	}
	// The folder can be entered by all, so that PostgreSQL's own account reaches its part of it; what is secret in it is closed.
	if err := os.MkdirAll(o.Dir, 0o755); err != nil {
		return nil, fmt.Errorf("make state folder: %w", err)
	}
	if err := l.keepSpool(); err != nil {
		return nil, err
	}
	if err := l.startDatabase(ctx); err != nil {
		if l.away = postgres.IsUnavailable(err) && o.Config.Ingest.Spool.Dir != "" && ctx.Err() == nil; !l.away {
			return nil, err
		}
		o.Logger.Warn("postgresql does not answer: the gateway runs alone until it does, and keeps deliveries in the spool", "error", err)
	}
	if err := l.startStream(ctx); err != nil {
		return nil, err
	}
	if err := l.build(ctx); err != nil {
		return nil, err
	}
	return l, nil
}

// build makes the parts: both, or the gateway alone while PostgreSQL is away.
func (l *Local) build(ctx context.Context) error {
	o := l.opts
	if !l.away {
		var err error
		if l.databaseID, err = postgres.Identity(ctx, string(o.Config.Database.URL)); err != nil {
			return err
		}
	}
	parts := Options{Config: o.Config, Logger: o.Logger, Gateway: true, Processor: !l.away, AdminListen: config.DefaultAdminListen,
		Loader: o.Loader, Hangup: o.Hangup, Stopping: o.Stopping, InstanceID: l.id, Tune: o.Tune}
	if l.away {
		parts.Migrate, parts.Returned = l.migrate, func() { l.returned <- struct{}{} }
	}
	app, err := New(ctx, parts)
	if err != nil {
		return err
	}
	l.App = app
	l.reloaded = func(cfg *config.Config) {
		l.sources = cfg
		if err := l.writeInstance(); err != nil {
			o.Logger.Warn("instance file not written; `postern send` does not know the new sources", "error", err)
		}
	}
	return nil
}

// keepSpool keeps a spool in the state folder where the configuration names none. Where that folder is lost with the machine there is none: what PostgreSQL has not taken is not acknowledged.
func (l *Local) keepSpool() error {
	at := &l.opts.Config.Ingest.Spool
	if at.Dir != "" {
		return nil
	}
	dir, err := filepath.Abs(filepath.Join(l.opts.Dir, "spool"))
	if err != nil {
		return fmt.Errorf("find the state folder: %w", err)
	}
	named := *at
	named.Dir = dir
	if err := config.CheckSpool(named); err != nil {
		l.opts.Logger.Info("no spool is kept: while PostgreSQL is away deliveries are answered 503", "reason", err)
		return nil
	}
	at.Dir = dir
	return nil
}

// checkPorts sees before anything is started that the ports are free. Where they are those of the last start here, the
// instance most likely runs already.
func (l *Local) checkPorts(ctx context.Context) error {
	err := checkAddresses(ctx, l.opts.Config, true, config.DefaultAdminListen)
	if last, readErr := config.ReadInstance(l.opts.Dir); err != nil && readErr == nil && last.IngestURL == "http://"+l.opts.Config.Ingest.Listen {
		err = fmt.Errorf("%w; or does the instance in %s run already?", err, l.opts.Dir)
	}
	if port := strconv.Itoa(l.opts.NATSPort); err == nil && l.opts.NATSPort != 0 && l.opts.Config.NATS.URL == "" && taken(ctx, port) {
		err = fmt.Errorf("listen for the embedded JetStream on 127.0.0.1:%s: address already in use; choose another port with --nats-port (0 picks a free one)", port)
	}
	return err
}

// streamPort is the port that was asked for, else that of the last start if it is still free, so that consumers find the
// stream where it was; 0 picks a free one.
func (l *Local) streamPort(ctx context.Context) int {
	last, err := config.ReadInstance(l.opts.Dir)
	if l.opts.NATSPort != 0 || err != nil {
		return l.opts.NATSPort
	}
	u, err := url.Parse(last.NATSURL)
	if err != nil || u.Hostname() != "127.0.0.1" || taken(ctx, u.Port()) {
		return 0
	}
	port, err := strconv.Atoi(u.Port())
	if err != nil {
		return 0
	}
	return port
}

func (l *Local) startDatabase(ctx context.Context) error {
	cfg := l.opts.Config
	if cfg.Database.URL == "" {
		if !l.opts.Cluster {
			return errors.New("database.url is not set: name your PostgreSQL, e.g. POSTERN_DATABASE_URL=postgres://user@host/postern")
		}
		dir, moved, err := postgres.ClusterDir(filepath.Join(l.opts.Dir, "postgres"))
		if err != nil {
			return err
		}
		if moved {
			l.moved = dir
		}
		cluster, err := postgres.StartCluster(ctx, postgres.ClusterOptions{Dir: dir, Logger: l.opts.Logger})
		if err != nil {
			return err
		}
		l.stack.Defer("postgresql", cluster.Stop)
		cfg.Database.URL = config.URL(cluster.URL())
	}
	return l.migrate(ctx)
}

// migrate brings the database to the program's schema.
func (l *Local) migrate(ctx context.Context) error {
	url := l.opts.Config.Database.MaintenanceURL
	if url == "" {
		url = l.opts.Config.Database.URL
	}
	n, err := postgres.Migrate(ctx, string(url))
	if err == nil && n > 0 {
		l.opts.Logger.Info("database migrated", "migrations", n)
	}
	return err
}

func (l *Local) startStream(ctx context.Context) error {
	cfg := l.opts.Config
	if cfg.NATS.URL != "" {
		return nil
	}
	password, err := keptPassword(filepath.Join(l.opts.Dir, "nats-password"))
	if err != nil {
		return err
	}
	// Both streams may grow to their limit.
	server, err := stream.StartEmbedded(ctx, stream.EmbeddedOptions{Dir: filepath.Join(l.opts.Dir, "jetstream"), Port: l.streamPort(ctx),
		Password: password, MaxBytes: 3*int64(cfg.Stream.MaxBytes) + 128<<20})
	if err != nil {
		return err
	}
	l.stack.Defer("jetstream", func(context.Context) error { server.Stop(); return nil })
	cfg.NATS.URL = config.URL(server.URL())
	return nil
}

// keptPassword is the embedded server's password, made once and kept where only this account reads it.
func keptPassword(file string) (string, error) {
	b, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		b = []byte(rand.Text())
		err = os.WriteFile(file, b, 0o600)
	}
	if err != nil {
		return "", fmt.Errorf("keep the stream's password: %w", err)
	}
	return strings.TrimSpace(string(b)), nil
}

// Run starts everything, tells how to use it, waits until ctx ends or a core loop does, and stops all of it.
func (l *Local) Run(ctx context.Context) error {
	if err := l.writeInstance(); err != nil {
		return errors.Join(err, l.Stop(context.WithoutCancel(ctx)))
	}
	l.Start()
	l.opts.Logger.Info("ready", l.addresses(l.ingestURL(), l.adminURL())...)
	l.tell()
	if err := l.complete(ctx); err != nil {
		return errors.Join(err, l.stopped(ctx))
	}
	failed := l.wait(ctx)
	l.opts.Logger.Info("stopping")
	return errors.Join(failed, l.stopped(ctx))
}

// stopped stops all within StopWithin.
func (l *Local) stopped(ctx context.Context) error {
	stop, cancel := lifecycle.WithTimeout(context.WithoutCancel(ctx), "stop", StopWithin)
	defer cancel()
	return l.Stop(stop)
}

// complete starts gateway and processor in the place of a gateway that runs alone, once PostgreSQL is there: for that moment nobody listens, and senders try again. What ends before is left for wait.
func (l *Local) complete(ctx context.Context) error {
	for l.away && l.awaitDatabase(ctx) {
		cfg := l.opts.Config
		cfg.Ingest.Listen, cfg.Admin.Listen = l.Addr(), l.AdminAddr()
		stop, cancel := lifecycle.WithTimeout(context.WithoutCancel(ctx), "stop the gateway that runs alone", StopWithin)
		err := l.App.Stop(stop)
		cancel()
		if err != nil {
			return err
		}
		l.away = false
		if err = l.build(ctx); postgres.IsUnavailable(err) && ctx.Err() == nil { // it has gone again
			l.away = true
			err = l.build(ctx)
		}
		if err != nil {
			return err
		}
		if err := l.writeInstance(); err != nil { // it names the database now
			return err
		}
		l.Start()
		l.opts.Logger.Info("ready", append(l.addresses(l.ingestURL(), l.adminURL()), "processors", !l.away)...)
	}
	return nil
}

// awaitDatabase waits until PostgreSQL is there; false: the gateway has ended before, or ctx.
func (l *Local) awaitDatabase(ctx context.Context) bool {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() { // ends with ctx
		defer close(ended)
		l.ended(ctx)
	}()
	defer func() { cancel(); <-ended }()
	select {
	case <-l.returned:
		return true
	case <-ended:
		return false
	}
}

// Stop ends gateway and processor, then the servers they use.
func (l *Local) Stop(ctx context.Context) error {
	return errors.Join(l.App.Stop(ctx), l.stack.Stop(ctx))
}

// writeInstance tells other commands how to reach the instance, and its sources.
func (l *Local) writeInstance() error {
	cfg := l.opts.Config
	return config.WriteInstance(l.opts.Dir, &config.Instance{ID: l.id, DatabaseURL: string(cfg.Database.URL), DatabaseID: l.databaseID,
		NATSURL: string(cfg.NATS.URL), IngestURL: l.ingestURL(), AdminURL: l.adminURL(), PID: os.Getpid(), Sources: l.sources.InstanceSources()})
}

// adminURL is the base of the admin interface.
func (l *Local) adminURL() string {
	if l.opts.Config.Admin.TLS.Cert != "" {
		return "https://" + l.AdminAddr()
	}
	return "http://" + l.AdminAddr()
}

// ingestURL is the base of the ingest paths.
func (l *Local) ingestURL() string {
	if l.opts.Config.Ingest.TLS.Cert != "" {
		return "https://" + l.Addr()
	}
	return "http://" + l.Addr()
}
