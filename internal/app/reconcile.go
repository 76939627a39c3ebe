package app

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/apply"
	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/providerapi"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/refetch"
)

// appendConns is the number of connections for appending fetched events.
const appendConns = refetch.MaxConcurrentApplies

// apiClients holds the clients of the providers' APIs.
type apiClients struct {
	pool *pgxpool.Pool
	// appendPool appends fetched events. It opens no connection before a source has a section api.
	appendPool *pgxpool.Pool
	metrics    *providerapi.CallMetrics
	sources    providerapi.Sources
	// clients are closed when they are replaced.
	clients []*providerapi.Client
}

// addReconcile adds refetches and reconciliations. They do nothing until a source has a readable
// API, which a reload may add. They append as the gateway role, because only that role may append.
func (a *App) addReconcile(ctx context.Context, pool *pgxpool.Pool, applier *apply.Applier, known events.Sources,
	t Tuning) (*reconcile.Runner, error) {
	metrics, err := providerapi.NewCallMetrics(a.metrics, sourcesWithAPI(a.Config))
	if err != nil {
		return nil, err
	}
	a.apiClients = &apiClients{pool: pool, metrics: metrics}
	a.apiClients.appendPool, err = a.openPool(ctx, postgres.Options{URL: string(a.Config.Database.URL),
		Role: "postern_gateway", AppName: "postern_reconcile", MaxConns: appendConns,
		Lazy: len(sourcesWithAPI(a.Config)) == 0})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", appendErrorContext, err)
	}
	if err := a.replaceAPIClients(ctx, a.Config, known); err != nil {
		return nil, err
	}
	pendingMetrics, err := reconcile.NewStateMetrics(a.metrics, &a.apiClients.sources)
	if err != nil {
		return nil, err
	}
	resources := &refetch.Resources{Pool: pool, Log: a.apiClients.appendPool, Applier: applier,
		Sources: &a.apiClients.sources, Limits: refetch.DefaultLimits}
	refetcher := &refetch.Refetcher{Resources: resources, ID: processID(),
		Logger:       a.Logger.With("component", "reconcile"),
		PollInterval: t.RefetchInterval}
	a.loop("refetches", refetcher.Run)
	a.loop("refetch metrics", func(ctx context.Context) error { return pendingMetrics.Watch(ctx, pool, a.Logger) })
	return &reconcile.Runner{Resources: resources, Settings: reconcile.DefaultSettings}, nil
}

// appendErrorContext is the start of the error message if the login may not append.
const appendErrorContext = "a source has a section api, which requires that this process can append to the log"

// checkAppendAccess checks that this process may append if a reload adds the first section api.
func (a *App) checkAppendAccess(ctx context.Context, before, after *config.Config) error {
	if len(sourcesWithAPI(before)) > 0 || len(sourcesWithAPI(after)) == 0 {
		return nil
	}
	if err := postgres.CheckConnection(ctx, a.apiClients.appendPool); err != nil {
		return fmt.Errorf("%s: %w", appendErrorContext, err)
	}
	return nil
}

// sourcesWithAPI returns the names of the sources with a readable API.
func sourcesWithAPI(cfg *config.Config) (names []string) {
	for _, e := range cfg.Endpoints() {
		if e.API != nil {
			names = append(names, e.Source.Name)
		}
	}
	slices.Sort(names)
	return names
}

// replaceAPIClients replaces the clients with those of a configuration.
func (a *App) replaceAPIClients(ctx context.Context, cfg *config.Config, known events.Sources) error {
	f := a.apiClients
	if err := reconcile.ReportReadable(ctx, f.pool, reconcileSubjects(cfg, known)); err != nil {
		return err
	}
	var sources []*providerapi.Source
	var clients []*providerapi.Client
	for name, e := range endpointsByName(cfg) {
		if e.API == nil || e.Reader == nil {
			continue
		}
		c, err := providerapi.NewClient(providerapi.Options{Pool: f.pool, Number: known.Number[name], Source: name,
			Account: e.Source.Account, Reader: e.Reader, API: e.API, Metrics: f.metrics,
			Logger: a.Logger.With("component", "reconcile")})
		if err != nil {
			return err
		}
		clients = append(clients, c)
		sources = append(sources, &providerapi.Source{Name: name, Number: known.Number[name], Config: e.Source,
			ExcludedAccounts: e.ExcludedAccounts, API: e.API, Provider: e.Provider, Reader: e.Reader, Caller: c})
	}
	f.sources.Replace(sources...)
	for _, old := range f.clients {
		old.Close()
	}
	f.clients = clients
	return nil
}

// reconcileSubjects returns, by source number, the subjects that a reconciliation can read from the
// source's API: single objects, lists of objects, and events.
func reconcileSubjects(cfg *config.Config, known events.Sources) map[int32][]string {
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
