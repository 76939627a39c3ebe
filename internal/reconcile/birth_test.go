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

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/stripefake"
	"github.com/postern-gateway/postern/internal/versioning"
)

// settleAfter is how long after its time an event is taken to be in the lists.
const settleAfter = 10 * time.Second

// newLife makes a life that has not begun, in a database of its own.
func newLife(t *testing.T, c *conditions, seed uint64) *life {
	t.Helper()
	l := &life{conditions: c, t: t, db: testkit.Database(t), seed: seed, chance: rand.New(rand.NewPCG(seed, 71)),
		counts: map[string]int{}, alone: map[versioning.Key]*versioning.Row{}, wished: map[string]bool{},
		wishes: map[versioning.Key]string{}, hidden: map[versioning.Key]*hiding{}, granted: map[string]bool{},
		hashes: map[string]versioning.Hash{}}
	if c.clocks && c.account.Faults.Limited > 0 {
		t.Fatal("a call that waits for its turn keeps the clock from going on by which it waits")
	}
	start := time.Date(2026, time.November, 20, 12, 0, 0, 0, time.UTC)
	if c.ward != nil {
		l.ward = c.ward(t, seed, start)
	} else {
		o := c.account
		o.Seed, o.Start = seed, start
		l.fake = stripefake.New(t, o)
		l.ward = &accountWard{l.fake, c}
		if c.sweeps > 0 {
			l.past()
		}
	}
	standing(t, l.db)
	l.show()
	l.operator, l.gateway = l.db.Role(t, "operator"), l.mortalPool(t, "gateway")
	l.readsWard(t)
	l.proc = l.processor(l.db.Role(t, "processor"), l.source)
	l.reconciler(t)
	return l
}

// readsWard registers the source and says how it is read. The account's types are those of its past, where it has one.
func (l *life) readsWard(t *testing.T) {
	t.Helper()
	r := l.ward.source(t)
	r.Name = r.Config.Name
	known, err := events.RegisterSources(t.Context(), l.db.Pool, map[string]string{r.Name: r.Provider.Name()})
	l.must(err)
	r.Number = known.Number[r.Name]
	l.reads = r
	l.source = processor.Source{Number: r.Number, Config: r.Config, Provider: r.Provider, Looker: r.Reader, Reads: r.Reads,
		Locates: r.Locates}
	switch {
	case l.fake == nil:
		l.types = slices.Sorted(maps.Keys(r.Reader.(provider.ObjectLister).Lists(r.Config, r.API, r.Config.Account)))
	case len(l.conditions.account.Kinds) > 0:
		l.types = past
	default:
		l.types = []string{"charge", "customer", "invoice", "price", "product", "subscription"}
	}
}

// past are the types of what there was in an account before anybody told us of it.
var past = []string{"customer", "product", "subscription"}

// past is what there was before anybody told us of it; of some subscriptions not even lists tell unasked.
func (l *life) past() {
	l.fake.SetWebhooks(stripefake.Webhooks{Swallowed: 100})
	for _, account := range append([]string{""}, l.conditions.account.Accounts...) {
		for _, objectType := range past {
			l.fake.Fill(account, objectType, 7)
		}
		l.fake.Do(account, "sub_Fill0000003", "customer.subscription.deleted")
	}
	l.fake.Advance(7 * time.Hour)
	l.fake.SetWebhooks(l.conditions.account.Webhooks)
}

// standing makes the database's clock one that stands, where test_clock says.
func standing(t *testing.T, db *testkit.DB) {
	t.Helper()
	for _, sql := range []string{`CREATE TABLE test_clock (at timestamptz NOT NULL)`, `GRANT SELECT ON test_clock TO PUBLIC`,
		`INSERT INTO test_clock VALUES (to_timestamp(0))`,
		`CREATE OR REPLACE FUNCTION clock_now() RETURNS timestamptz LANGUAGE sql VOLATILE AS 'SELECT at FROM postern.test_clock'`} {
		if _, err := db.Pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
}

// now is the time on this machine's clock.
func (l *life) now() time.Time { return l.Now().Add(l.ahead) }

// show sets the database's clock to this machine's, which others may have moved on since it was read here.
func (l *life) show() {
	_, err := l.db.Pool.Exec(context.Background(), `UPDATE test_clock SET at = greatest(at, $1)`, l.now())
	l.must(err)
}

// goes lets the provider's clock go on.
func (l *life) goes(do func()) {
	l.calling.Lock()
	defer l.calling.Unlock()
	do()
}

const renew = `UPDATE checkpoints SET leased_until = greatest(leased_until, clock_now() + $2::interval)
	WHERE run = ANY($1) AND leased_until > '-infinity'`

// wait lets time pass. Mostly the leases of runs that are carried out are renewed meanwhile.
func (l *life) wait(d time.Duration) {
	l.goes(func() { l.Advance(d) })
	l.show()
	if len(l.holding) > 0 && l.chance.IntN(4) > 0 {
		_, err := l.db.Pool.Exec(context.Background(), renew, l.holding, lease)
		l.must(err)
	}
}

func (l *life) processor(pool *pgxpool.Pool, source processor.Source) *processor.Processor {
	s := processor.DefaultSettings
	s.Lanes = 1
	p, err := processor.New(processor.Options{Pool: pool, Settings: s, ID: "life", Logger: slog.New(slog.DiscardHandler),
		Metrics: prometheus.NewRegistry(), Sources: map[string]processor.Source{l.reads.Name: source}})
	l.must(err)
	return p
}

// client calls an API. One call at a time, so that a seed makes one life. The rate is none: time stands still while
// somebody waits for it.
func (l *life) client(api *provider.API) *reconcile.Client {
	api.Rate, api.Concurrency, api.Timeout, api.MaxBytes = 1e9, 1, time.Second, 1<<22
	metrics, err := reconcile.NewMetrics(prometheus.NewRegistry(), []string{l.reads.Name})
	l.must(err)
	c, err := reconcile.NewClient(reconcile.Options{Pool: l.db.Role(l.t, "processor"), Number: l.reads.Number,
		Source: l.reads.Name, Account: l.reads.Config.Account, Reader: l.reads.Reader, API: api, Metrics: metrics,
		Logger: slog.New(slog.DiscardHandler)})
	l.must(err)
	l.t.Cleanup(c.Close)
	return c
}

// reconciler makes what reconciles, over connections on which it may die.
func (l *life) reconciler(t *testing.T) {
	pool := l.mortalPool(t, "processor")
	l.caller = &caller{Client: l.client(l.reads.API), life: l, looked: map[string]int{}, met: map[int64]map[string]bool{},
		luck: rand.New(rand.NewPCG(l.seed, 72))}
	l.reads.Caller = l.caller
	sources := &reconcile.Sources{}
	sources.Replace(l.reads)
	s := reconcile.DefaultSettings
	s.Overlap, s.Settle, s.Again = 30*time.Second, settleAfter, time.Microsecond
	late := l.source
	if l.fake != nil {
		s.Span, s.MinSpan, s.MaxSpan, s.Kept = 20*time.Second, 5*time.Second, time.Hour, 6*time.Hour
		slow := &unready{life: l, luck: rand.New(rand.NewPCG(l.seed, 73))}
		late.Provider, late.Looker = slow, slow
	}
	l.runner = &reconcile.Runner{Pool: pool, Log: l.gateway, Processor: l.processor(pool, late), Sources: sources,
		Settings: s, Now: l.now}
	l.begin()
}

// begin lets a process take the place of the one that has ended.
func (l *life) begin() {
	l.processes++
	looks := &reconcile.Looks{Runner: l.runner, ID: fmt.Sprint("process ", l.processes), Logger: slog.New(slog.DiscardHandler)}
	l.passes = looks.Passes(l.runner.Sources.All()[l.reads.Number])
}
