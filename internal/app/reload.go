package app

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/postern-gateway/postern/internal/apply"
	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/ingest"
	"github.com/postern-gateway/postern/internal/notify"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/providerapi"
)

const (
	// reloadInterval is the time between two checks of the configuration files.
	reloadInterval = 2 * time.Second
	// registerTimeout limits the registration of new sources.
	registerTimeout = 10 * time.Second
)

// reloader applies the sources, schedules, rules and recipients of a changed configuration to a
// running process. Other settings need a restart.
type reloader struct {
	*App
	loader  *config.Loader
	current *config.Config
	results *prometheus.CounterVec
	last    prometheus.Gauge
	// retryLater is true if the last reload failed because PostgreSQL was unavailable. The next
	// check tries again.
	retryLater bool
}

// addReload adds the reload of sources if the process has a configuration to read again. It
// registers the metrics in any case.
func (a *App) addReload(interval time.Duration) error {
	r := &reloader{App: a, loader: a.Loader, current: a.Config,
		results: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "postern_config_reloads_total",
			Help: "Reloads of the configuration by result: ok, or failed (the process keeps the old " +
				"sources)."}, []string{"result"}),
		last: prometheus.NewGauge(prometheus.GaugeOpts{Name: "postern_config_reload_last_success_timestamp_seconds",
			Help: "Unix time when the current sources were loaded."})}
	for _, result := range []string{"ok", "failed"} {
		r.results.WithLabelValues(result)
	}
	r.last.SetToCurrentTime()
	if err := errors.Join(a.metrics.Register(r.results), a.metrics.Register(r.last)); err != nil || a.Loader == nil {
		return err
	}
	a.loop("reload", func(ctx context.Context) error { return r.run(ctx, interval) })
	return nil
}

// run reloads after a signal and after a file has changed, until ctx ends. It compares the files'
// contents at intervals, because notifications of the kernel miss changes on network file systems
// and of links that Kubernetes replaces.
func (r *reloader) run(ctx context.Context, interval time.Duration) error {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.Hangup:
			r.reload(ctx)
		case <-tick.C:
			if r.loader.Changed() || r.retryLater {
				r.reload(ctx)
			}
		}
	}
}

// reload tries once. After an error the old sources stay in use. It logs an error once, not at each
// retry.
func (r *reloader) reload(ctx context.Context) {
	wasRetry := r.retryLater
	r.retryLater = false
	cfg, err := r.loader.Load()
	if err == nil {
		err = r.apply(ctx, cfg)
		r.retryLater = postgres.IsUnavailable(err)
	}
	if err == nil {
		r.results.WithLabelValues("ok").Inc()
		r.last.SetToCurrentTime()
		return
	}
	if ctx.Err() != nil || r.retryLater && wasRetry {
		return
	}
	r.configProblem.Store(new("the changed configuration cannot be loaded, the old sources stay in use: " +
		err.Error()))
	r.Logger.Error("cannot reload the configuration, the old sources stay in use; correct it, and it is read again",
		"error", err)
	// Count after the log line, so that the log has the reason when the counter changes.
	r.results.WithLabelValues("failed").Inc()
}

var errNoSources = errors.New("the configuration has no sources any more, so every delivery would be rejected: to " +
	"stop receiving, stop the process")

// needRestart says which changed settings need a restart; nil if none does.
func needRestart(names []string) *string {
	if len(names) == 0 {
		return nil
	}
	return new("changed settings that need a restart: " + strings.Join(names, ", "))
}

// apply registers new sources and replaces the sources. The processor comes first, so that it knows
// every source that the gateway accepts.
func (r *reloader) apply(ctx context.Context, cfg *config.Config) error {
	if len(cfg.Sources) == 0 && len(r.current.Sources) > 0 {
		return errNoSources
	}
	if err := CheckSchedules(cfg); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, registerTimeout,
		fmt.Errorf("register the sources: %w: no response within %s", events.ErrUnavailable, registerTimeout))
	defer cancel()
	known, err := register(ctx, r.sourcesPool, cfg)
	if err != nil {
		return err
	}
	if r.apiClients != nil {
		if err := r.checkAppendAccess(ctx, r.current, cfg); err != nil {
			return err
		}
	}
	if r.processor != nil {
		r.processor.Replace(processorSources(cfg, known))
	}
	if r.effects != nil && (!reflect.DeepEqual(r.current.Effects, cfg.Effects) ||
		!reflect.DeepEqual(r.current.Destinations, cfg.Destinations) ||
		!reflect.DeepEqual(r.current.Forward, cfg.Forward)) {
		r.replaceEffects(cfg)
	}
	if r.notify != nil {
		r.notify.Replace(notify.Recipients(cfg))
	}
	if r.planner != nil {
		r.planner.Replace(configuredSchedules(cfg))
	}
	if r.senderRequests != nil {
		r.senderRequests.Replace(sourcesRedactedOnRequest(cfg))
	}
	if r.apiClients != nil {
		if err := r.replaceAPIClients(ctx, cfg, known); err != nil {
			return err
		}
	}
	if r.gateway != nil {
		r.gateway.Replace(gatewaySources(cfg, known))
	}
	problem := needRestart(r.loader.NeedRestart(cfg))
	if r.configProblem.Store(problem); problem != nil {
		r.Logger.Warn(*problem)
	}
	attrs := append([]any{"sources", len(cfg.Sources)}, changedSources(r.current, cfg)...)
	if n := len(cfg.AllSchedules()); n > 0 {
		attrs = append(attrs, "schedules", n)
	}
	r.Logger.Info("configuration reloaded", attrs...)
	r.current = cfg
	r.useConfig(cfg)
	if r.onReload != nil {
		r.onReload(cfg)
	}
	return nil
}

// changedSources returns the names of the added, removed and changed sources for the log.
func changedSources(before, after *config.Config) []any {
	var added, removed, changed []string
	for name, src := range after.Sources {
		switch old, ok := before.Sources[name]; {
		case !ok:
			added = append(added, name)
		case !reflect.DeepEqual(old, src):
			changed = append(changed, name)
		}
	}
	for name := range before.Sources {
		if _, ok := after.Sources[name]; !ok {
			removed = append(removed, name)
		}
	}
	var out []any
	for _, change := range []struct {
		key   string
		names []string
	}{{"added", added}, {"removed", removed}, {"changed", changed}} {
		if len(change.names) > 0 {
			slices.Sort(change.names)
			out = append(out, change.key, strings.Join(change.names, ","))
		}
	}
	return out
}

func endpointsByName(cfg *config.Config) map[string]config.Endpoint {
	out := map[string]config.Endpoint{}
	for _, e := range cfg.Endpoints() {
		out[e.Source.Name] = e
	}
	return out
}

// register registers the configured sources and returns all registered ones.
func register(ctx context.Context, pool *pgxpool.Pool, cfg *config.Config) (events.Sources, error) {
	providers := map[string]string{}
	for _, e := range cfg.Endpoints() {
		providers[e.Source.Name] = e.Provider.Name()
	}
	return events.RegisterSources(ctx, pool, providers)
}

// gatewaySources returns the sources in the form that the gateway uses.
func gatewaySources(cfg *config.Config, known events.Sources) map[string]ingest.Endpoint {
	out := map[string]ingest.Endpoint{}
	for name, e := range endpointsByName(cfg) {
		out[name] = ingest.Endpoint{Number: known.Number[name], Config: e.Source, Provider: e.Provider,
			MaxBody: e.MaxBodyBytes, RequireCommit: e.RequireCommit,
			AllowFrom: e.AllowFrom, Rate: ingest.Rate{PerSecond: e.RateLimit.PerSecond, Burst: e.RateLimit.Burst}}
	}
	return out
}

// processorSources returns the sources in the form that the processor uses.
func processorSources(cfg *config.Config, known events.Sources) map[string]apply.Source {
	out := map[string]apply.Source{}
	for name, e := range endpointsByName(cfg) {
		s := apply.Source{Number: known.Number[name], Config: e.Source, Provider: e.Provider,
			RefetchReader: e.RefetchReader()}
		if e.API != nil && e.Reader != nil {
			read := &providerapi.Source{Config: e.Source, API: e.API, Reader: e.Reader}
			s.LateEventGrace, s.ReadsByID, s.Locates = e.API.LateEventGrace, read.Reads, read.Locates
		}
		out[name] = s
	}
	return out
}
