package app

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/reconcile"
)

// appending is how many connections there are for appending what was fetched.
const appending = reconcile.Entering

// fetching is what calls providers' APIs.
type fetching struct {
	pool    *pgxpool.Pool
	metrics *reconcile.Metrics
	sources reconcile.Sources
	// opened: there was a source whose API can be read at the start.
	opened, started bool
	// calls are the clients of the sources, closed when they are replaced.
	calls []*reconcile.Client
}

// addReconcile wires looks and reconciliations. Without a source whose API can be read it opens nothing; what appends has the gateway's role, which alone may.
func (a *App) addReconcile(ctx context.Context, pool *pgxpool.Pool, p *processor.Processor, known events.Sources, t Tuning) (*reconcile.Runner, error) {
	metrics, err := reconcile.NewMetrics(a.metrics, readable(a.Config))
	if err != nil {
		return nil, err
	}
	a.fetching = &fetching{pool: pool, metrics: metrics}
	if err := a.replaceReadable(a.Config, known); err != nil {
		return nil, err
	}
	owed, err := reconcile.NewOwed(a.metrics, &a.fetching.sources)
	if err != nil {
		return nil, err
	}
	r := &reconcile.Runner{Pool: pool, Processor: p, Sources: &a.fetching.sources, Settings: reconcile.DefaultSettings}
	a.fetching.started = true
	if a.fetching.opened = len(readable(a.Config)) > 0; !a.fetching.opened {
		return r, nil
	}
	if r.Log, err = a.namedPool(ctx, string(a.Config.Database.URL), "postern_gateway", "postern_reconcile", appending); err != nil {
		return nil, fmt.Errorf("a source has a section api, and what is fetched from there is appended to the log: %w", err)
	}
	looks := &reconcile.Looks{Runner: r, ID: processID(), Logger: a.Logger.With("component", "reconcile"), Every: t.LooksEvery}
	a.loop("looks", looks.Run)
	a.loop("looks measured", func(ctx context.Context) error { return owed.Watch(ctx, pool, a.Logger) })
	return r, nil
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
func (a *App) replaceReadable(cfg *config.Config, known events.Sources) error {
	f := a.fetching
	if names := readable(cfg); f.started && !f.opened && len(names) > 0 {
		a.Logger.Warn("the first source with a section api needs a restart of the processor", "sources", names)
		return nil
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
