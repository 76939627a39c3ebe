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
	"github.com/postern-gateway/postern/internal/settings"
	"github.com/postern-gateway/postern/internal/stream"
)

// LocalOptions are the options of a process that starts the servers it needs: dev and serve.
type LocalOptions struct {
	Config *config.Config
	Logger *slog.Logger
	// File is the configuration file, for the printed instructions; "" if there is none.
	File string
	// Dir is the folder of the state: private cluster, streams and instance file.
	Dir string
	// Cluster starts a private PostgreSQL if the configuration names no database.
	Cluster bool
	// Kind is activity.Serve or activity.Dev.
	Kind string
	// NATSPort is the port of the embedded JetStream on 127.0.0.1. Zero means the port of the last
	// start in Dir, or else a free one.
	NATSPort int
	// Loader reads the files of Config again when they change, and at once after a value on Hangup.
	// If Loader is nil, the sources never change.
	Loader *config.Loader
	Hangup <-chan struct{}
	// OnStopping is called when the instance begins to stop, also after an error; it may be nil.
	OnStopping func()
	// Out receives the instructions for using the instance once it is ready; it may be nil.
	Out io.Writer
	// Tune is only for tests.
	Tune func(*Tuning)
}

// Local is a gateway and a processor in one process, with the servers that it started.
type Local struct {
	*App
	opts        LocalOptions
	stack       lifecycle.Stack
	databaseDir string
	// id identifies this start. databaseID identifies the database; "" if unknown. sources is the
	// configuration with the sources of the instance file.
	id, databaseID string
	sources        *config.Config
	// databaseUnavailable is true if PostgreSQL did not respond at the start, so that only the
	// gateway runs. databaseReturned receives a value when PostgreSQL is back.
	databaseUnavailable bool
	databaseReturned    chan struct{}
}

// NewLocal starts the required servers, applies migrations, and builds gateway and processor. After
// an error it has released everything.
func NewLocal(ctx context.Context, o LocalOptions) (_ *Local, err error) {
	l := &Local{opts: o, id: rand.Text(), sources: o.Config, databaseReturned: make(chan struct{}, 1)}
	defer func() {
		if err != nil {
			if ctx.Err() != nil { // the error is a consequence of the stop
				err = fmt.Errorf("stopped before it was ready: %w", context.Cause(ctx))
			}
			stop, cancel := lifecycle.WithTimeout(context.WithoutCancel(ctx), "stop", StopTimeout)
			defer cancel()
			err = errors.Join(err, l.stack.Stop(stop))
		}
	}()
	if err := l.checkPorts(ctx); err != nil {
		return nil, err
	}
	// All accounts can enter the folder, because PostgreSQL runs as another account and its cluster
	// is in it. Secret files in the folder have restricted permissions.
	if err := os.MkdirAll(o.Dir, 0o755); err != nil {
		return nil, fmt.Errorf("make state folder: %w", err)
	}
	if err := l.chooseSpoolDir(); err != nil {
		return nil, err
	}
	if err := l.startDatabase(ctx); err != nil {
		if l.databaseUnavailable = postgres.IsUnavailable(err) && o.Config.Ingest.Spool.Dir != "" &&
			ctx.Err() == nil; !l.databaseUnavailable {
			return nil, err
		}
		o.Logger.Warn("postgresql does not respond: only the gateway runs until it does, and stores deliveries in the "+
			"spool", "error", err)
	}
	if err := l.startStream(ctx); err != nil {
		return nil, err
	}
	if err := l.build(ctx); err != nil {
		return nil, err
	}
	return l, nil
}

// build builds both parts, or only the gateway while PostgreSQL is unavailable.
func (l *Local) build(ctx context.Context) error {
	o := l.opts
	if !l.databaseUnavailable {
		var err error
		if l.databaseID, err = postgres.Identity(ctx, string(o.Config.Database.URL)); err != nil {
			return err
		}
	}
	parts := Options{Config: o.Config, Logger: o.Logger, Gateway: true, Processor: !l.databaseUnavailable,
		AdminListen: config.DefaultAdminListen, Loader: o.Loader, Kind: o.Kind,
		Hangup: o.Hangup, OnStopping: o.OnStopping, InstanceID: l.id, Tune: o.Tune}
	if l.databaseUnavailable {
		parts.Migrate, parts.OnDatabaseReturned = l.migrate, func() { l.databaseReturned <- struct{}{} }
	}
	app, err := New(ctx, parts)
	if err != nil {
		return err
	}
	l.App = app
	l.onReload = func(cfg *config.Config) {
		l.sources = cfg
		if err := l.writeInstance(); err != nil {
			o.Logger.Warn("cannot write the instance file; `postern send` does not know the new sources", "error", err)
		}
	}
	return nil
}

// chooseSpoolDir sets a spool in the state folder if the configuration names none. If that folder
// does not survive a restart of the machine, there is no spool. The gateway then acknowledges a
// delivery only after PostgreSQL has committed it.
func (l *Local) chooseSpoolDir() error {
	spool := &l.opts.Config.Ingest.Spool
	if spool.Dir != "" {
		return nil
	}
	dir, err := filepath.Abs(filepath.Join(l.opts.Dir, "spool"))
	if err != nil {
		return fmt.Errorf("find the state folder: %w", err)
	}
	candidate := *spool
	candidate.Dir = dir
	if err := config.CheckSpool(candidate); err != nil {
		l.opts.Logger.Info("no spool is used: deliveries get 503 while PostgreSQL is unavailable", "reason", err)
		return nil
	}
	spool.Dir = dir
	return nil
}

// checkPorts checks that the ports are free before anything starts. If the ports of the last start
// in this folder are used, the instance probably runs already.
func (l *Local) checkPorts(ctx context.Context) error {
	err := checkAddresses(ctx, l.opts.Config, true, config.DefaultAdminListen)
	if last, readErr := config.ReadInstance(l.opts.Dir); err != nil && readErr == nil && last.IngestURL == "http://"+
		l.opts.Config.Ingest.Listen {
		err = fmt.Errorf("%w; or is the instance in %s already running?", err, l.opts.Dir)
	}
	if port := strconv.Itoa(l.opts.NATSPort); err == nil && l.opts.NATSPort != 0 && l.opts.Config.NATS.URL == "" &&
		isPortTaken(ctx, port) {
		err = fmt.Errorf("listen for the embedded JetStream on 127.0.0.1:%s: address already in use; choose another "+
			"port with --nats-port (0 picks a free one)", port)
	}
	return err
}

// streamPort returns the requested port, else that of the last start if it is free, so that
// consumers find the stream again. Zero picks a free port.
func (l *Local) streamPort(ctx context.Context) int {
	last, err := config.ReadInstance(l.opts.Dir)
	if l.opts.NATSPort != 0 || err != nil {
		return l.opts.NATSPort
	}
	u, err := url.Parse(last.NATSURL)
	if err != nil || u.Hostname() != "127.0.0.1" || isPortTaken(ctx, u.Port()) {
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
			return errors.New("database.url is not set: name your PostgreSQL, e.g. " +
				"POSTERN_DATABASE_URL=postgres://user@host/postern")
		}
		dir, moved, err := postgres.ClusterDir(filepath.Join(l.opts.Dir, "postgres"))
		if err != nil {
			return err
		}
		if moved {
			l.databaseDir = dir
		}
		cluster, err := postgres.StartCluster(ctx, postgres.ClusterOptions{Dir: dir, Logger: l.opts.Logger})
		if err != nil {
			return err
		}
		l.stack.Defer("postgresql", cluster.Stop)
		cfg.Database.URL = settings.URL(cluster.URL())
	}
	return l.migrate(ctx)
}

// migrate applies missing migrations.
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
	password, err := loadOrCreatePassword(filepath.Join(l.opts.Dir, "nats-password"))
	if err != nil {
		return err
	}
	// Three streams may have stream.max_bytes each: events, changes and replays. The rest is for
	// the stream of runs.
	server, err := stream.StartEmbedded(ctx, stream.EmbeddedOptions{Dir: filepath.Join(l.opts.Dir, "jetstream"),
		Port: l.streamPort(ctx), Password: password, MaxBytes: 3*int64(cfg.Stream.MaxBytes) + 128<<20})
	if err != nil {
		return err
	}
	l.stack.Defer("jetstream", func(context.Context) error { server.Stop(); return nil })
	cfg.NATS.URL = settings.URL(server.URL())
	return nil
}

// loadOrCreatePassword returns the password of the embedded server. It is created once, in a file
// that only this account can read.
func loadOrCreatePassword(file string) (string, error) {
	b, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		b = []byte(rand.Text())
		err = os.WriteFile(file, b, 0o600)
	}
	if err != nil {
		return "", fmt.Errorf("store the stream's password: %w", err)
	}
	return strings.TrimSpace(string(b)), nil
}

// Run starts everything, prints the instructions, waits until ctx or a part ends, and stops
// everything.
func (l *Local) Run(ctx context.Context) error {
	if err := l.writeInstance(); err != nil {
		return errors.Join(err, l.Stop(context.WithoutCancel(ctx)))
	}
	l.Start()
	l.opts.Logger.Info("ready", l.addresses(l.ingestURL(), l.adminURL())...)
	l.printUsage()
	if err := l.startProcessorLater(ctx); err != nil {
		return errors.Join(err, l.stopWithTimeout(ctx))
	}
	failed := l.waitForEnd(ctx)
	l.opts.Logger.Info("stopping")
	return errors.Join(failed, l.stopWithTimeout(ctx))
}

// stopWithTimeout stops everything within StopTimeout.
func (l *Local) stopWithTimeout(ctx context.Context) error {
	stop, cancel := lifecycle.WithTimeout(context.WithoutCancel(ctx), "stop", StopTimeout)
	defer cancel()
	return l.Stop(stop)
}

// startProcessorLater replaces the gateway with gateway and processor once PostgreSQL is available.
// During the replacement no part listens, and senders retry. If a part ends, it returns nil, and
// waitForEnd reports the error.
func (l *Local) startProcessorLater(ctx context.Context) error {
	for l.databaseUnavailable && l.waitForDatabase(ctx) {
		cfg := l.opts.Config
		cfg.Ingest.Listen, cfg.Admin.Listen = l.Addr(), l.AdminAddr()
		stop, cancel := lifecycle.WithTimeout(context.WithoutCancel(ctx), "stop the gateway", StopTimeout)
		err := l.App.Stop(stop)
		cancel()
		if err != nil {
			return err
		}
		l.databaseUnavailable = false
		if err = l.build(ctx); postgres.IsUnavailable(err) && ctx.Err() == nil { // it is unavailable again
			l.databaseUnavailable = true
			err = l.build(ctx)
		}
		if err != nil {
			return err
		}
		if err := l.writeInstance(); err != nil { // the file names the database now
			return err
		}
		l.Start()
		l.opts.Logger.Info("ready", append(l.addresses(l.ingestURL(), l.adminURL()), "processors",
			!l.databaseUnavailable)...)
	}
	return nil
}

// waitForDatabase waits until PostgreSQL is available. It returns false if the gateway or ctx ends
// before.
func (l *Local) waitForDatabase(ctx context.Context) bool {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() { // it ends with ctx
		defer close(ended)
		l.waitForPart(ctx)
	}()
	defer func() { cancel(); <-ended }()
	select {
	case <-l.databaseReturned:
		return true
	case <-ended:
		return false
	}
}

// Stop ends gateway and processor, and then the servers that they use.
func (l *Local) Stop(ctx context.Context) error {
	return errors.Join(l.App.Stop(ctx), l.stack.Stop(ctx))
}

// writeInstance writes the instance file, from which other commands read addresses and sources.
func (l *Local) writeInstance() error {
	cfg := l.opts.Config
	return config.WriteInstance(l.opts.Dir, &config.Instance{ID: l.id, DatabaseURL: string(cfg.Database.URL),
		DatabaseID: l.databaseID, NATSURL: string(cfg.NATS.URL), IngestURL: l.ingestURL(),
		AdminURL: l.adminURL(), PID: os.Getpid(), Sources: l.sources.InstanceSources()})
}

// adminURL returns the base URL of the admin interface.
func (l *Local) adminURL() string {
	if l.opts.Config.Admin.TLS.Cert != "" {
		return "https://" + l.AdminAddr()
	}
	return "http://" + l.AdminAddr()
}

// ingestURL returns the base URL of the ingest paths.
func (l *Local) ingestURL() string {
	if l.opts.Config.Ingest.TLS.Cert != "" {
		return "https://" + l.Addr()
	}
	return "http://" + l.Addr()
}
