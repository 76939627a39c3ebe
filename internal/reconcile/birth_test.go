package reconcile_test

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/stripe"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/stripefake"
	"github.com/postern-gateway/postern/internal/versioning"
)

// newLife makes a life that has not begun, in a database of its own.
func newLife(t *testing.T, c *conditions, seed uint64) *life {
	t.Helper()
	l := &life{conditions: c, t: t, db: testkit.Database(t), seed: seed, chance: rand.New(rand.NewPCG(seed, 71)), counts: map[string]int{}, alone: &alone{}, wished: map[string]bool{},
		wishes: map[versioning.Key]string{}, hidden: map[versioning.Key]*hiding{}, granted: map[string]bool{}, hashes: map[string]versioning.Hash{}}
	o := c.account
	if c.clocks && o.Faults.Limited > 0 {
		t.Fatal("a call that waits for its turn keeps the clock from going on by which it waits")
	}
	o.Seed, o.Start = seed, time.Date(2026, time.November, 20, 12, 0, 0, 0, time.UTC)
	l.fake = stripefake.New(t, o)
	if c.sweeps > 0 {
		l.past()
	}
	standing(t, l.db)
	l.show()
	l.operator, l.gateway = l.db.Role(t, "operator"), l.mortalPool(t, "gateway")
	known, err := events.RegisterSources(t.Context(), l.db.Pool, map[string]string{lifeSource: "stripe"})
	l.must(err)
	l.source = processor.Source{Number: known.Number[lifeSource], Config: &provider.Source{Name: lifeSource}, Provider: stripe.Stripe{}, Reads: func(account, objectType, id string) bool {
		_, ok := stripe.Stripe{}.Fetch(nil, &provider.API{Key: provider.Secret{Value: []byte(stripefake.Key)}}, account, objectType, id)
		return ok
	}}
	l.proc = l.processor(l.db.Role(t, "processor"), l.source)
	l.reconciler(t)
	return l
}

// past is what there was before anybody told us of it; of some subscriptions not even lists tell unasked.
func (l *life) past() {
	l.fake.SetWebhooks(stripefake.Webhooks{Swallowed: 100})
	for _, account := range l.accounts() {
		for _, objectType := range []string{"customer", "product", "subscription"} {
			l.fake.Fill(account, objectType, 7)
		}
		l.fake.Do(account, "sub_Fill0000003", "customer.subscription.deleted")
	}
	l.fake.Advance(7 * time.Hour)
	l.fake.SetWebhooks(l.account.Webhooks)
}

// standing makes the database's clock one that stands, where test_clock says.
func standing(t *testing.T, db *testkit.DB) {
	t.Helper()
	for _, sql := range []string{`CREATE TABLE test_clock (at timestamptz NOT NULL)`, `GRANT SELECT ON test_clock TO PUBLIC`, `INSERT INTO test_clock VALUES (to_timestamp(0))`,
		`CREATE OR REPLACE FUNCTION clock_now() RETURNS timestamptz LANGUAGE sql VOLATILE AS 'SELECT at FROM postern.test_clock'`} {
		if _, err := db.Pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
}

// now is the time on this machine's clock.
func (l *life) now() time.Time { return l.fake.Now().Add(l.ahead) }

// show sets the database's clock to this machine's, which others may have moved on since it was read here.
func (l *life) show() {
	_, err := l.db.Pool.Exec(context.Background(), `UPDATE test_clock SET at = greatest(at, $1)`, l.now())
	l.must(err)
}

// goes lets the account's clock go on.
func (l *life) goes(do func()) {
	l.calling.Lock()
	defer l.calling.Unlock()
	do()
}

// wait lets time pass. Mostly the leases of runs that are carried out are renewed meanwhile.
func (l *life) wait(d time.Duration) {
	l.goes(func() { l.fake.Advance(d) })
	l.show()
	if len(l.holding) > 0 && l.chance.IntN(4) > 0 {
		_, err := l.db.Pool.Exec(context.Background(), `UPDATE checkpoints SET leased_until = greatest(leased_until, clock_now() + $2::interval) WHERE run = ANY($1) AND leased_until > '-infinity'`,
			l.holding, lease)
		l.must(err)
	}
}

func (l *life) processor(pool *pgxpool.Pool, source processor.Source) *processor.Processor {
	s := processor.DefaultSettings
	s.Lanes = 1
	p, err := processor.New(processor.Options{Pool: pool, Settings: s, ID: "life", Logger: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(),
		Sources: map[string]processor.Source{lifeSource: source}})
	l.must(err)
	return p
}

// api is that of an account. One call at a time, so that a seed makes one life. The rate is none: time stands still while somebody waits for it.
func (l *life) api(f *stripefake.Fake) *provider.API {
	return &provider.API{BaseURL: f.URL, Key: provider.Secret{Name: "api.key", Value: []byte(stripefake.Key)}, Version: stripefake.Version, Rate: 1e9, Concurrency: 1, ThinEvents: l.account.Thin,
		Timeout: time.Second, MaxBytes: 1 << 22}
}

// client calls an account's API.
func (l *life) client(f *stripefake.Fake) *reconcile.Client {
	metrics, err := reconcile.NewMetrics(prometheus.NewRegistry(), []string{lifeSource})
	l.must(err)
	c, err := reconcile.NewClient(reconcile.Options{Pool: l.db.Role(l.t, "processor"), Number: l.source.Number, Source: lifeSource, Reader: stripe.Stripe{}, API: l.api(f), Metrics: metrics,
		Logger: slog.New(slog.DiscardHandler)})
	l.must(err)
	l.t.Cleanup(c.Close)
	return c
}

// reconciler makes what reconciles, over connections on which it may die.
func (l *life) reconciler(t *testing.T) {
	pool := l.mortalPool(t, "processor")
	api := l.api(l.fake)
	c := l.client(l.fake)
	l.caller = &caller{Client: c, life: l, looked: map[string]int{}, met: map[int64]map[string]bool{}, luck: rand.New(rand.NewPCG(l.seed, 72))}
	sources := &reconcile.Sources{}
	sources.Replace(&reconcile.Source{Name: lifeSource, Number: l.source.Number, Config: l.source.Config, API: api, Provider: stripe.Stripe{}, Reader: stripe.Stripe{}, Caller: l.caller})
	s := reconcile.DefaultSettings
	s.Span, s.MinSpan, s.MaxSpan, s.Kept = 20*time.Second, 5*time.Second, time.Hour, 6*time.Hour
	s.Overlap, s.Settle, s.Again = 30*time.Second, 10*time.Second, time.Microsecond
	late := l.source
	late.Provider = &unready{life: l, luck: rand.New(rand.NewPCG(l.seed, 73))}
	l.runner = &reconcile.Runner{Pool: pool, Log: l.gateway, Processor: l.processor(pool, late), Sources: sources, Settings: s, Now: l.now}
	l.begin()
}

// begin lets a process take the place of the one that has ended.
func (l *life) begin() {
	l.processes++
	looks := &reconcile.Looks{Runner: l.runner, ID: fmt.Sprint("process ", l.processes), Logger: slog.New(slog.DiscardHandler)}
	l.passes = looks.Passes(l.runner.Sources.All()[l.source.Number])
}
