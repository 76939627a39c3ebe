package reconcile_test

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/postern-gateway/postern/internal/apply"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/providerapi"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/refetch"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/stripefake"
	"github.com/postern-gateway/postern/internal/versioning"
)

// listDelay is how long after its time an event is assumed to be in the lists.
const listDelay = 10 * time.Second

// newSimulation makes a simulation in its own database, without steps.
func newSimulation(t *testing.T, c *scenario, seed uint64) *simulation {
	t.Helper()
	l := &simulation{scenario: c, t: t, db: testkit.Database(t), seed: seed, chance: rand.New(rand.NewPCG(seed, 71)),
		counts: map[string]int{}, webhooksOnly: map[versioning.Key]*versioning.Row{}, extraReads: map[string]bool{},
		manualRefetches: map[versioning.Key]string{}, visibilities: map[versioning.Key]*visibility{},
		loggedReasons: map[string]bool{}, hashes: map[string]versioning.Hash{}}
	if c.learnsClocks && c.stripe.Faults.RateLimited > 0 {
		t.Fatal("a call that waits for the rate budget holds the clock by which it waits")
	}
	start := time.Date(2026, time.November, 20, 12, 0, 0, 0, time.UTC)
	if c.newProvider != nil {
		l.liveProvider = c.newProvider(t, seed, start)
	} else {
		o := c.stripe
		o.Seed, o.Start = seed, start
		l.fake = stripefake.New(t, o)
		l.liveProvider = newStripeProvider(l.fake, o)
		if c.scanPercent > 0 {
			l.createPast()
		}
	}
	l.db.StopClock(t, time.Unix(0, 0))
	l.syncDatabaseClock()
	l.operator, l.gateway = l.db.Role(t, "operator"), l.killablePool(t, "gateway")
	l.registerSource(t)
	l.proc = l.newApplier(l.db.Role(t, "processor"), l.processorSource)
	l.newRunner(t)
	return l
}

// registerSource registers the source. The types of an account are those of its past, if it has
// one.
func (l *simulation) registerSource(t *testing.T) {
	t.Helper()
	r := l.source
	r.Name = r.Config.Name
	known, err := events.RegisterSources(t.Context(), l.db.Pool, map[string]string{r.Name: r.Provider.Name()})
	l.must(err)
	r.Number = known.Number[r.Name]
	l.reconcileSource = r
	l.processorSource = apply.Source{Number: r.Number, Config: r.Config, Provider: r.Provider,
		RefetchReader: r.Reader, ReadsByID: r.Reads, Locates: r.Locates}
	switch {
	case l.fake == nil:
		l.types = slices.Sorted(maps.Keys(r.Reader.(provider.ObjectLister).Lists(r.Config, r.API, r.Config.Account)))
	case len(l.scenario.stripe.ObjectTypes) > 0:
		l.types = pastTypes
	default:
		l.types = []string{"charge", "customer", "invoice", "price", "product", "subscription"}
	}
}

// pastTypes are the types of the objects that existed before the first webhook.
var pastTypes = []string{"customer", "product", "subscription"}

// createPast creates the objects that existed before the first webhook. Lists show some of the
// subscriptions only on request.
func (l *simulation) createPast() {
	l.fake.SetWebhooks(stripefake.Webhooks{LostAcknowledged: 100})
	for _, account := range append([]string{""}, l.scenario.stripe.Accounts...) {
		for _, objectType := range pastTypes {
			l.fake.AddObjects(account, objectType, 7)
		}
		l.fake.ApplyEvent(account, "sub_Fill0000003", "customer.subscription.deleted")
	}
	l.fake.Advance(7 * time.Hour)
	l.fake.SetWebhooks(l.scenario.stripe.Webhooks)
}

// now returns the time of this machine's clock.
func (l *simulation) now() time.Time { return l.Now().Add(l.clockAhead) }

// syncDatabaseClock sets the database's clock to this machine's. Another goroutine may have moved
// it further in the meantime.
func (l *simulation) syncDatabaseClock() {
	_, err := l.db.Pool.Exec(context.Background(), `UPDATE test_clock SET at = greatest(at, $1)`, l.now())
	l.must(err)
}

// moveProviderClock runs a function that moves the provider's clock.
func (l *simulation) moveProviderClock(do func()) {
	l.clockLock.Lock()
	defer l.clockLock.Unlock()
	do()
}

const renewLeasesSQL = `UPDATE checkpoints SET lease_until = greatest(lease_until, clock_now() + $2::interval)
	WHERE run = ANY($1) AND lease_until > '-infinity'`

// wait lets time pass. Mostly the leases of the executed runs are renewed.
func (l *simulation) wait(d time.Duration) {
	l.moveProviderClock(func() { l.Advance(d) })
	l.syncDatabaseClock()
	if len(l.leasedRuns) > 0 && l.chance.IntN(4) > 0 {
		_, err := l.db.Pool.Exec(context.Background(), renewLeasesSQL, l.leasedRuns, runLease)
		l.must(err)
	}
}

func (l *simulation) newApplier(pool *pgxpool.Pool, source apply.Source) *apply.Applier {
	s := apply.DefaultSettings
	s.Workers = 1
	p, err := apply.New(apply.Options{Pool: pool, Settings: s, Logger: slog.New(slog.DiscardHandler),
		Metrics: prometheus.NewRegistry(), Sources: map[string]apply.Source{l.reconcileSource.Name: source}})
	l.must(err)
	return p
}

// newAPIClient makes a client for an API. It makes one call at a time, so that a seed reproduces
// the simulation. Its rate is unlimited, because time stands still while a caller waits.
func (l *simulation) newAPIClient(api *provider.API) *providerapi.Client {
	api.Rate, api.Concurrency, api.Timeout, api.MaxBytes = 1e9, 1, time.Second, 1<<22
	metrics, err := providerapi.NewCallMetrics(prometheus.NewRegistry(), []string{l.reconcileSource.Name})
	l.must(err)
	c, err := providerapi.NewClient(providerapi.Options{Pool: l.db.Role(l.t, "processor"),
		Number: l.reconcileSource.Number, Source: l.reconcileSource.Name, Account: l.reconcileSource.Config.Account,
		Reader: l.reconcileSource.Reader, API: api, Metrics: metrics, Logger: slog.New(slog.DiscardHandler)})
	l.must(err)
	l.t.Cleanup(c.Close)
	return c
}

// newRunner makes the reconciler, with connections on which it may be killed.
func (l *simulation) newRunner(t *testing.T) {
	pool := l.killablePool(t, "processor")
	l.caller = &simulationCaller{Client: l.newAPIClient(l.reconcileSource.API), sim: l, refetched: map[string]int{},
		seenByRun: map[int64]map[string]bool{}, random: rand.New(rand.NewPCG(l.seed, 72))}
	l.reconcileSource.Caller = l.caller
	sources := &providerapi.Sources{}
	sources.Replace(l.reconcileSource)
	s := reconcile.DefaultSettings
	s.RetryDelay = time.Microsecond
	limits := refetch.DefaultLimits
	limits.Overlap, limits.ListDelay = 30*time.Second, listDelay
	late := l.processorSource
	if l.fake != nil {
		s.InitialInterval, s.MinInterval, s.MaxInterval = 20*time.Second, 5*time.Second, time.Hour
		limits.EventRetention = 6 * time.Hour
		slow := &flakyProvider{sim: l, random: rand.New(rand.NewPCG(l.seed, 73))}
		late.Provider, late.RefetchReader = slow, slow
	}
	l.runner = &reconcile.Runner{Resources: &refetch.Resources{Pool: pool, Log: l.gateway,
		Applier: l.newApplier(pool, late), Sources: sources, Limits: limits, Now: l.now}, Settings: s}
	l.startProcess()
}

// startProcess replaces a process that has ended.
func (l *simulation) startProcess() {
	l.processCount++
	refetches := &refetch.Refetcher{Resources: l.runner.Resources, ID: fmt.Sprint("process ", l.processCount),
		Logger: slog.New(slog.DiscardHandler)}
	l.refetchPass = refetches.ForSource(l.runner.Sources.All()[l.reconcileSource.Number]).Pass
}
