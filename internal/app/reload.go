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

	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/ingest"
	"github.com/postern-gateway/postern/internal/notify"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/reconcile"
)

const (
	// reloadEvery is how often the configuration's files are looked at.
	reloadEvery = 2 * time.Second
	// registerWithin bounds the numbering of new sources.
	registerWithin = 10 * time.Second
)

// reloader gives a running process the sources and schedules of a changed configuration, and nothing else of it.
type reloader struct {
	*App
	loader  *config.Loader
	current *config.Config
	results *prometheus.CounterVec
	last    prometheus.Gauge
	// again: the last reload failed for trouble that passes, and is tried at the next look.
	again bool
}

// addReload wires the reloading of sources, where the process has a configuration to read again. What it measures is there in any case.
func (a *App) addReload(every time.Duration) error {
	r := &reloader{App: a, loader: a.Loader, current: a.Config,
		results: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "postern_config_reloads_total",
			Help: "Reloads of the sources: ok, or failed (the old sources go on)."}, []string{"result"}),
		last: prometheus.NewGauge(prometheus.GaugeOpts{Name: "postern_config_reload_last_success_timestamp_seconds",
			Help: "When the sources in use were loaded, in Unix seconds."})}
	for _, result := range []string{"ok", "failed"} {
		r.results.WithLabelValues(result)
	}
	r.last.SetToCurrentTime()
	if err := errors.Join(a.metrics.Register(r.results), a.metrics.Register(r.last)); err != nil || a.Loader == nil {
		return err
	}
	a.loop("reload", func(ctx context.Context) error { return r.run(ctx, every) })
	return nil
}

// run reloads when it is told to and when a file has changed, until ctx ends.
func (r *reloader) run(ctx context.Context, every time.Duration) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.Hangup:
			r.reload(ctx)
		case <-tick.C:
			if r.loader.Changed() || r.again {
				r.reload(ctx)
			}
		}
	}
}

// reload tries once. Whatever is wrong, the old sources go on; it is said once, not at every further try.
func (r *reloader) reload(ctx context.Context) {
	tried := r.again
	r.again = false
	cfg, err := r.loader.Load()
	if err == nil {
		err = r.use(ctx, cfg)
		r.again = postgres.IsUnavailable(err)
	}
	if err == nil {
		r.results.WithLabelValues("ok").Inc()
		r.last.SetToCurrentTime()
		return
	}
	if ctx.Err() != nil || r.again && tried {
		return
	}
	r.Logger.Error("configuration not reloaded, the old sources go on; mend what is wrong, and it is read again", "error", err)
	r.results.WithLabelValues("failed").Inc() // after it was said: who sees the count finds the reason
}

var errNoSources = errors.New("the configuration names no source any more, so every delivery would be refused: to take none, stop the process")

// use numbers the sources that are new and swaps them in: first where events are applied, so that what the gateway takes is known there.
func (r *reloader) use(ctx context.Context, cfg *config.Config) error {
	if len(cfg.Sources) == 0 && len(r.current.Sources) > 0 {
		return errNoSources
	}
	if err := CheckSchedules(cfg); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, registerWithin, fmt.Errorf("number the sources: %w: no answer within %s", events.ErrUnavailable, registerWithin))
	defer cancel()
	known, err := register(ctx, r.registrar, cfg)
	if err != nil {
		return err
	}
	if r.fetching != nil {
		if err := r.proveAppend(ctx, r.current, cfg); err != nil {
			return err
		}
	}
	if r.processor != nil {
		r.processor.Replace(processorSources(cfg, known))
	}
	if r.effects != nil && (!reflect.DeepEqual(r.current.Effects, cfg.Effects) || !reflect.DeepEqual(r.current.Destinations, cfg.Destinations)) {
		r.replaceEffects(cfg)
	}
	if r.notify != nil {
		r.notify.Replace(notify.Recipients(cfg))
	}
	if r.planner != nil {
		r.planner.Replace(schedules(cfg))
	}
	if r.answers != nil {
		r.answers.Replace(redactOnRequest(cfg))
	}
	if r.fetching != nil {
		if err := r.replaceReadable(ctx, cfg, known); err != nil {
			return err
		}
	}
	if r.gateway != nil {
		r.gateway.Replace(gatewaySources(cfg, known))
	}
	if names := r.loader.NeedRestart(cfg); len(names) > 0 {
		r.Logger.Warn("changed settings that need a restart: " + strings.Join(names, ", "))
	}
	told := append([]any{"sources", len(cfg.Sources)}, differences(r.current, cfg)...)
	if n := len(cfg.Planned()); n > 0 {
		told = append(told, "schedules", n)
	}
	r.Logger.Info("configuration reloaded", told...)
	r.current = cfg
	r.inUse.Store(cfg)
	if r.reloaded != nil {
		r.reloaded(cfg)
	}
	return nil
}

// differences are the names of the sources that were added, removed and changed, for the log.
func differences(before, after *config.Config) []any {
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
	for _, one := range []struct {
		word  string
		names []string
	}{{"added", added}, {"removed", removed}, {"changed", changed}} {
		if len(one.names) > 0 {
			slices.Sort(one.names)
			out = append(out, one.word, strings.Join(one.names, ","))
		}
	}
	return out
}

func byName(cfg *config.Config) map[string]config.Endpoint {
	out := map[string]config.Endpoint{}
	for _, e := range cfg.Endpoints() {
		out[e.Source.Name] = e
	}
	return out
}

// register numbers the configured sources and returns all that are known.
func register(ctx context.Context, pool *pgxpool.Pool, cfg *config.Config) (events.Sources, error) {
	providers := map[string]string{}
	for _, e := range cfg.Endpoints() {
		providers[e.Source.Name] = e.Provider.Name()
	}
	return events.RegisterSources(ctx, pool, providers)
}

// gatewaySources are a configuration's sources as deliveries come to them.
func gatewaySources(cfg *config.Config, known events.Sources) map[string]ingest.Endpoint {
	out := map[string]ingest.Endpoint{}
	for name, e := range byName(cfg) {
		out[name] = ingest.Endpoint{Number: known.Number[name], Config: e.Source, Provider: e.Provider, MaxBody: e.MaxBodyBytes, FinalReceipts: e.FinalReceipt,
			AllowFrom: e.AllowFrom, Rate: ingest.Rate{PerSecond: e.RateLimit.PerSecond, Burst: e.RateLimit.Burst}}
	}
	return out
}

// processorSources are a configuration's sources as their events are applied.
func processorSources(cfg *config.Config, known events.Sources) map[string]processor.Source {
	out := map[string]processor.Source{}
	for name, e := range byName(cfg) {
		s := processor.Source{Number: known.Number[name], Config: e.Source, Provider: e.Provider, Looker: e.Looker()}
		if e.API != nil && e.Reader != nil {
			read := &reconcile.Source{Config: e.Source, API: e.API, Reader: e.Reader}
			s.Stragglers, s.Reads, s.Locates = e.API.Stragglers, read.Reads, read.Locates
		}
		out[name] = s
	}
	return out
}
