package app

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/reconcile"
)

// appending is how many connections there are for appending what was fetched.
const appending = reconcile.Entering

// fetching is what calls providers' APIs.
type fetching struct {
	pool *pgxpool.Pool
	// log appends what was fetched. It opens no connection before the first source has a section api.
	log     *pgxpool.Pool
	metrics *reconcile.Metrics
	sources reconcile.Sources
	// calls are the clients of the sources, closed when they are replaced.
	calls []*reconcile.Client
}

// addReconcile wires looks and reconciliations. They wait while no source has an API that can be read; a reload may bring the first.
// The role of what appends is the gateway's, which alone may append.
func (a *App) addReconcile(ctx context.Context, pool *pgxpool.Pool, p *processor.Processor, known events.Sources, t Tuning) (*reconcile.Runner, error) {
	metrics, err := reconcile.NewMetrics(a.metrics, readable(a.Config))
	if err != nil {
		return nil, err
	}
	a.fetching = &fetching{pool: pool, metrics: metrics}
	a.fetching.log, err = a.openPool(ctx, postgres.Options{URL: string(a.Config.Database.URL), Role: "postern_gateway", AppName: "postern_reconcile",
		MaxConns: appending, Lazy: len(readable(a.Config)) == 0})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", whyAppend, err)
	}
	if err := a.replaceReadable(ctx, a.Config, known); err != nil {
		return nil, err
	}
	owed, err := reconcile.NewOwed(a.metrics, &a.fetching.sources)
	if err != nil {
		return nil, err
	}
	r := &reconcile.Runner{Pool: pool, Log: a.fetching.log, Processor: p, Sources: &a.fetching.sources, Settings: reconcile.DefaultSettings}
	looks := &reconcile.Looks{Runner: r, ID: processID(), Logger: a.Logger.With("component", "reconcile"), Every: t.LooksEvery}
	a.loop("looks", looks.Run)
	a.loop("looks measured", func(ctx context.Context) error { return owed.Watch(ctx, pool, a.Logger) })
	return r, nil
}

// whyAppend introduces the error of a connection that may not append.
const whyAppend = "a source has a section api, and what is fetched from there is appended to the log"

// proveAppend checks that this process may append what it fetches, where a configuration brings the first section api.
func (a *App) proveAppend(ctx context.Context, before, after *config.Config) error {
	if len(readable(before)) > 0 || len(readable(after)) == 0 {
		return nil
	}
	if err := postgres.Prove(ctx, a.fetching.log); err != nil {
		return fmt.Errorf("%s: %w", whyAppend, err)
	}
	return nil
}

// readable are the names of the sources whose API can be read.
func readable(cfg *config.Config) (names []string) {
	for _, e := range cfg.Endpoints() {
		if e.API != nil {
			names = append(names, e.Source.Name)
		}
	}
	slices.Sort(names)
	return names
}

// replaceReadable has the sources of a configuration called from now on.
func (a *App) replaceReadable(ctx context.Context, cfg *config.Config, known events.Sources) error {
	f := a.fetching
	if err := reconcile.ReportReadable(ctx, f.pool, reads(cfg, known)); err != nil {
		return err
	}
	var sources []*reconcile.Source
	var calls []*reconcile.Client
	for name, e := range byName(cfg) {
		if e.API == nil || e.Reader == nil {
			continue
		}
		c, err := reconcile.NewClient(reconcile.Options{Pool: f.pool, Number: known.Number[name], Source: name, Account: e.Source.Account, Reader: e.Reader, API: e.API, Metrics: f.metrics,
			Logger: a.Logger.With("component", "reconcile")})
		if err != nil {
			return err
		}
		calls = append(calls, c)
		sources = append(sources, &reconcile.Source{Name: name, Number: known.Number[name], Config: e.Source, Except: e.Except, API: e.API, Provider: e.Provider, Reader: e.Reader, Caller: c})
	}
	f.sources.Replace(sources...)
	for _, old := range f.calls {
		old.Close()
	}
	f.calls = calls
	return nil
}

// reads are what reconciliations of each source can ask its API for, by the source's number.
func reads(cfg *config.Config, known events.Sources) map[int32][]string {
	out := map[int32][]string{}
	for _, e := range cfg.Endpoints() {
		var all []string
		if e.API != nil && e.Reader != nil {
			all = append(all, reconcile.Object)
		}
		events, objects := e.Lists()
		if objects {
			all = append(all, reconcile.Objects)
		}
		if events {
			all = append(all, reconcile.Events)
		}
		out[known.Number[e.Source.Name]] = all
	}
	return out
}
