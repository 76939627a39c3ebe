package app

import (
	"cmp"
	"context"
	"os"
	"strings"
	"time"

	"github.com/postern-gateway/postern/internal/activity"
	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/telemetry"
)

const (
	// adminConns limits the connections of the admin API and of the reports.
	adminConns = 4
	// readyTimeout limits the check whether the process is ready, for its report.
	readyTimeout = 2 * time.Second
)

// configLoaded says when the current configuration was loaded, as the time since the start.
type configLoaded struct {
	after  time.Duration
	digest string
}

// useConfig makes a configuration the current one.
func (a *App) useConfig(cfg *config.Config) {
	a.currentConfig.Store(cfg)
	a.configLoaded.Store(&configLoaded{after: time.Since(a.startedAt), digest: cfg.Digest()})
}

// addActivity opens the pool of the admin API, and adds the loop that reports this process through
// it. It is the first of the parts, so that it stops last and its last report is complete. The pool
// connects later; addAdmin checks it.
func (a *App) addActivity(ctx context.Context, t Tuning) error {
	const role = "postern_operator"
	pool, err := a.openPool(ctx, postgres.Options{URL: string(a.Config.Database.URL), Role: role, AppName: role,
		MaxConns: adminConns, Lazy: true})
	if err != nil {
		return err
	}
	a.adminPool = pool
	a.loop("activity", func(ctx context.Context) error {
		r := activity.Reporter{Pool: pool, Logger: a.Logger.With("component", "activity"), Process: a.describe(),
			State: a.state, Counters: a.metrics, Types: &a.types, Started: a.startedAt, Interval: t.ActivityInterval}
		return r.Run(ctx)
	})
	return nil
}

// checkAdminPool checks the admin pool once it is known whether the process may start without the
// database.
func (a *App) checkAdminPool(ctx context.Context) error {
	switch {
	case a.deliverySpool == nil:
		return postgres.CheckConnection(ctx, a.adminPool)
	case !a.databaseUnavailable:
		return a.checkPool(ctx, a.adminPool)
	}
	return nil
}

// describe returns what does not change while the process runs.
func (a *App) describe() activity.Process {
	kind := a.Kind
	switch {
	case kind != "":
	case !a.Processor:
		kind = activity.Gateway
	case !a.Gateway:
		kind = activity.Processor
	default:
		kind = activity.Serve
	}
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	version, revision := telemetry.Version()
	return activity.Process{ID: a.id, Kind: kind, Host: host, PID: os.Getpid(),
		Version: strings.TrimSpace(version + " " + revision), AdminAddress: a.AdminAddr()}
}

// state returns what may change while the process runs.
func (a *App) state(ctx context.Context) activity.State {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	loaded, sources := a.configLoaded.Load(), a.currentConfig.Load().Sources
	s := activity.State{ConfigLoaded: loaded.after, ConfigDigest: loaded.digest,
		CanReprocess: a.Gateway && len(sources) > 0}
	if problem := a.configProblem.Load(); problem != nil {
		s.ConfigProblem = *problem
	}
	if err := a.Ready(ctx); err != nil {
		s.NotReady = cmp.Or(err.Error(), "not ready")
	}
	return s
}
