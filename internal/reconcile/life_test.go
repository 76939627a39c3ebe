package reconcile_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/stripe"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/applied"
	"github.com/postern-gateway/postern/internal/testkit/stripefake"
	"github.com/postern-gateway/postern/internal/versioning"
)

// conditions are what a life meets.
type conditions struct {
	account stripefake.Options
	// before is the percentage of steps before which something of ours happens besides deliveries: time passes, the auditor comes, somebody reconciles.
	before int
	// between is the percentage of calls to the API before which the same happens, in the middle of whoever calls.
	between int
	// deaths is the percentage of reconciliations and passes of looks that end in the middle, as a process does that is killed.
	deaths int
	// down is the percentage of pulls of deliveries that nobody takes.
	down int
	// ahead is how far this machine's clock is ahead of the account's.
	ahead time.Duration
	// wrongKey is the percentage of looks that find another account, an empty one, behind the API, and of runs that find the key revoked. Whoever reads lists cannot tell
	// that an account which looks empty is another one, so that where sweeps are the key is always revoked.
	wrongKey int
	// sweeps: objects are swept too; then some change and no event tells it.
	sweeps bool
	// quiet: nobody reconciles before the end.
	quiet bool
	// waits is the longest time that passes between two things; 0: 10 s.
	waits time.Duration
}

// life is a Stripe account that lives, the log and mirror of its source, and what reconciles them. All of it happens in the test's goroutine and on the
// account's clock, so that a seed and a number of steps make it again.
type life struct {
	*conditions
	db     *testkit.DB
	seed   uint64
	chance *rand.Rand
	fake   *stripefake.Fake
	alone  *alone // the mirror of webhooks alone

	operator, gateway *pgxpool.Pool
	source            processor.Source
	proc              *processor.Processor // of webhooks and the auditor
	runner            *reconcile.Runner
	caller            *caller
	passes            func(context.Context) (int, error)
	processes         int // so many have been, of which one is alive
	mortal            mortality
	depth             int  // of what happens in the middle of something
	over              bool // the account lives no longer

	wished map[string]bool
	wrongs []string
	counts map[string]int
}

const lifeSource = "shop"

// newLife makes a life that has not begun, in a database of its own.
func newLife(t *testing.T, c *conditions, seed uint64) *life {
	t.Helper()
	l := &life{conditions: c, db: testkit.Database(t), seed: seed, chance: rand.New(rand.NewPCG(seed, 71)), counts: map[string]int{}, alone: &alone{}, wished: map[string]bool{}}
	o := c.account
	o.Seed, o.Start = seed, time.Date(2026, time.November, 20, 12, 0, 0, 0, time.UTC)
	l.fake = stripefake.New(t, o)
	if c.sweeps {
		l.past()
	}
	l.must(l.clock(t))
	l.operator, l.gateway = l.db.Role(t, "operator"), l.mortalPool(t, "gateway")
	known, err := events.RegisterSources(t.Context(), l.db.Pool, map[string]string{lifeSource: "stripe"})
	l.must(err)
	l.source = processor.Source{Number: known.Number[lifeSource], Config: &provider.Source{Name: lifeSource}, Provider: stripe.Stripe{}}
	l.proc = l.processor(l.db.Role(t, "processor"))
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

// clock makes the database's clock one that stands.
func (l *life) clock(t *testing.T) error {
	for _, sql := range []string{`CREATE TABLE test_clock (at timestamptz NOT NULL)`, `GRANT SELECT ON test_clock TO PUBLIC`, `INSERT INTO test_clock VALUES (to_timestamp(0))`,
		`CREATE OR REPLACE FUNCTION clock_now() RETURNS timestamptz LANGUAGE sql VOLATILE AS 'SELECT at FROM postern.test_clock'`} {
		if _, err := l.db.Pool.Exec(t.Context(), sql); err != nil {
			return err
		}
	}
	l.show()
	return nil
}

// now is the time on this machine's clock.
func (l *life) now() time.Time { return l.fake.Now().Add(l.ahead) }

// show sets the database's clock to this machine's.
func (l *life) show() {
	_, err := l.db.Pool.Exec(context.Background(), `UPDATE test_clock SET at = $1`, l.now())
	l.must(err)
}

// wait lets time pass.
func (l *life) wait(d time.Duration) {
	l.fake.Advance(d)
	l.show()
}

func (l *life) processor(pool *pgxpool.Pool) *processor.Processor {
	s := processor.DefaultSettings
	s.Lanes = 1
	p, err := processor.New(processor.Options{Pool: pool, Settings: s, ID: "life", Logger: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(),
		Sources: map[string]processor.Source{lifeSource: l.source}})
	l.must(err)
	return p
}

// reconciler makes what reconciles, over connections on which it may die.
func (l *life) reconciler(t *testing.T) {
	pool := l.mortalPool(t, "processor")
	metrics, err := reconcile.NewMetrics(prometheus.NewRegistry(), []string{lifeSource})
	l.must(err)
	// One call at a time, so that a seed makes one life. The rate is none: time stands still while somebody waits for it.
	api := &provider.API{BaseURL: l.fake.URL, Key: provider.Secret{Name: "api.key", Value: []byte(stripefake.Key)}, Version: stripefake.Version, Rate: 1e9, Concurrency: 1, ThinEvents: l.account.Thin,
		Timeout: time.Second, MaxBytes: 1 << 22}
	c, err := reconcile.NewClient(reconcile.Options{Pool: l.db.Role(t, "processor"), Number: l.source.Number, Source: lifeSource, Reader: stripe.Stripe{}, API: api, Metrics: metrics,
		Logger: slog.New(slog.DiscardHandler)})
	l.must(err)
	t.Cleanup(c.Close)
	l.caller = &caller{Client: c, life: l, looked: map[string]int{}, luck: rand.New(rand.NewPCG(l.seed, 72))}
	sources := &reconcile.Sources{}
	sources.Replace(&reconcile.Source{Name: lifeSource, Number: l.source.Number, Config: l.source.Config, API: api, Provider: stripe.Stripe{}, Reader: stripe.Stripe{}, Caller: l.caller})
	s := reconcile.DefaultSettings
	s.Span, s.MinSpan, s.MaxSpan, s.Kept = 20*time.Second, 5*time.Second, time.Hour, 6*time.Hour
	s.Overlap, s.Settle, s.Again = 30*time.Second, 10*time.Second, time.Microsecond
	l.runner = &reconcile.Runner{Pool: pool, Log: l.gateway, Processor: l.processor(pool), Sources: sources, Settings: s, Now: l.now}
	l.begin()
}

// begin lets a process take the place of the one that has ended.
func (l *life) begin() {
	l.processes++
	looks := &reconcile.Looks{Runner: l.runner, ID: fmt.Sprint("process ", l.processes), Logger: slog.New(slog.DiscardHandler)}
	l.passes = looks.Passes(l.runner.Sources.All()[l.source.Number])
}

// broken ends a life whose test cannot go on.
type broken struct{ error }

func (l *life) must(err error) {
	if err != nil {
		panic(broken{fmt.Errorf("seed %d: %w", l.seed, err)})
	}
}

// lives lets the account live for so many steps, with all that goes wrong.
func (l *life) lives(steps int) {
	for range steps {
		if l.chance.IntN(100) < l.before {
			l.something()
		}
		l.fake.Step()
		if l.chance.IntN(3) == 0 {
			l.deliver()
		}
	}
	if !l.quiet {
		l.glance()
	}
}

// something of ours happens.
func (l *life) something() {
	l.depth++
	defer func() { l.depth-- }()
	waits := l.waits
	if waits == 0 {
		waits = 10 * time.Second
	}
	switch n := l.chance.IntN(12); {
	case n < 3:
		l.wait(time.Duration(l.chance.Int64N(int64(waits))))
	case n < 4:
		l.audit()
	case n < 5 && !l.over:
		l.fake.Live(l.chance.IntN(3))
		l.unseen()
	case n < 6:
		l.deliver()
	case n < 7:
		l.wish()
	case l.quiet && !l.over:
	case n < 9 && l.depth < 3:
		l.ask(l.anyOrder())
		l.carry()
	case n < 12 && l.depth < 3:
		l.show()
		defer l.trouble(func(f *stripefake.Faults) { f.Revoked, f.Blind = l.sweeps, !l.sweeps })()
		for range 1 + l.chance.IntN(5) {
			l.pass()
		}
	}
}

// wish has somebody want a look at an object.
func (l *life) wish() {
	if k, ok := l.anyObject(); ok {
		_, err := reconcile.Wish(context.Background(), l.operator, k, "test", "to see")
		l.must(err)
	}
}

// anyObject is one that is looked at though it need not be: often the one that has changed last, for that is the worst of times.
func (l *life) anyObject() (k versioning.Key, ok bool) {
	all := l.fake.Truth()
	if len(all) == 0 {
		return k, false
	}
	o := all[l.chance.IntN(len(all))]
	if l.chance.IntN(2) == 0 {
		o = last(all)
	}
	return l.wanted(o), true
}

// last is the object that has changed last.
func last(all []stripefake.Object) stripefake.Object {
	return slices.MaxFunc(all, func(a, b stripefake.Object) int { return a.Changed.Compare(b.Changed) })
}

// wanted notes that an object is looked at though it need not be.
func (l *life) wanted(o stripefake.Object) versioning.Key {
	l.wished[o.Account+" "+o.ID] = true
	k := l.key(o)
	k.Source = l.source.Number
	return k
}

// glance is a look at what has just changed, which an answer that is a little old does not show.
func (l *life) glance() {
	l.wait(time.Duration(l.chance.Int64N(int64(time.Second))))
	k := l.wanted(last(l.fake.Truth()))
	l.ask(reconcile.Order{What: reconcile.Object, Account: k.Account, Type: k.Type, ID: k.ID})
	l.carry()
}

// trouble lets something be wrong with the key, perhaps, until the function is called.
func (l *life) trouble(with func(*stripefake.Faults)) (over func()) {
	f := l.account.Faults
	if l.chance.IntN(100) < l.wrongKey {
		with(&f)
	}
	l.fake.SetFaults(f)
	return func() { l.fake.SetFaults(l.account.Faults) }
}

// anyOrder is mostly what a schedule asks for: the events since the last time. A person may ask for a time, or to be told what would happen.
func (l *life) anyOrder() reconcile.Order {
	o := reconcile.Order{What: reconcile.Events, Account: l.anyAccount()}
	some := func() time.Duration { return time.Duration(l.chance.IntN(120)) * time.Second }
	if l.sweeps && l.chance.IntN(3) == 0 {
		all := l.lists()
		o = all[l.chance.IntN(len(all))]
		o.DryRun = l.chance.IntN(5) == 0
		return o
	}
	switch l.chance.IntN(9) {
	case 0:
		o.Since = l.fake.Now().Add(-some())
		fallthrough
	case 1:
		o.Until = l.fake.Now().Add(-some())
	case 2:
		o.DryRun = l.chance.IntN(2) == 0
	case 3, 4:
		if k, ok := l.anyObject(); ok {
			o.What, o.Account, o.Type, o.ID = reconcile.Object, k.Account, k.Type, k.ID
		}
	}
	return o
}

// lists are a sweep of each type and account that there is.
func (l *life) lists() (all []reconcile.Order) {
	for _, account := range l.accounts() {
		for _, objectType := range []string{"charge", "customer", "invoice", "price", "product", "subscription"} {
			kept := l.key(stripefake.Object{Account: account, Type: objectType}).Account
			all = append(all, reconcile.Order{What: reconcile.Objects, Account: kept, Type: objectType})
		}
	}
	return all
}

// unseen lets something change that no event tells.
func (l *life) unseen() {
	all := l.fake.Truth()
	if !l.sweeps || len(all) == 0 {
		return
	}
	if o := all[l.chance.IntN(len(all))]; !o.Deleted() {
		l.fake.SetQuietly(o.Account, o.ID, map[string]any{"metadata.unseen": fmt.Sprint(l.chance.IntN(3))})
	}
}

func (l *life) accounts() []string { return append([]string{""}, l.account.Accounts...) }

func (l *life) anyAccount() string { return l.accounts()[l.chance.IntN(1+len(l.account.Accounts))] }

// deliver takes what is due of webhooks, as a gateway does, unless that is down; some of it is applied only when the auditor comes.
func (l *life) deliver() {
	l.show()
	var ds []events.Delivery
	up := l.chance.IntN(100) >= l.down
	l.fake.Deliver(func(d *provider.Delivery) bool {
		if up {
			named, err := stripe.Stripe{}.Identify(l.source.Config, d)
			l.must(err)
			ds = append(ds, events.Delivery{Source: l.source.Number, ReceivedAt: l.now(), Origin: events.OriginWebhook, Headers: []byte(`{}`), Verification: []byte(`{}`),
				Body: slices.Clone(d.Body), Events: named})
		}
		return up
	})
	if len(ds) == 0 {
		return
	}
	receipts, err := events.Append(context.Background(), l.db.Pool, ds)
	l.must(err)
	var ids []int64
	for i, r := range receipts {
		l.alone.event(l, &ds[i])
		if r[0].Conflict {
			l.wrong("the log has event %s with other content", r[0].Key)
		}
		if l.chance.IntN(10) > 0 {
			ids = append(ids, r[0].ID)
		}
	}
	l.apply(ids)
}

func (l *life) apply(ids []int64) {
	_, err := l.proc.ApplyStored(context.Background(), processor.Target{}, ids, false)
	l.must(err)
}

// audit applies what has no outcome.
func (l *life) audit() {
	l.show()
	rows, err := l.db.Pool.Query(context.Background(), `SELECT e.id FROM events e WHERE NOT EXISTS (SELECT FROM outcomes o WHERE o.event_id = e.id AND o.run = 0) ORDER BY e.id`)
	l.must(err)
	ids, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	l.must(err)
	l.apply(ids)
}

// ask orders a reconciliation.
func (l *life) ask(o reconcile.Order) int64 {
	l.show()
	o.Source = l.source.Number
	run, err := runs.Ask(context.Background(), l.operator, runs.Order{Job: reconcile.Job, Asked: o, Who: "test"})
	l.must(err)
	return run
}

// carry takes a run that is open, if there is one, and carries it out as runs.Runner does; it may die with the lease in hand. It says whether it took one.
func (l *life) carry() bool {
	h, err := runs.Take(context.Background(), l.runner.Pool, fmt.Sprint("process ", l.processes), applied.Lease*15, reconcile.Job)
	l.must(err)
	if h == nil {
		return false
	}
	l.counts["taken"]++
	var o reconcile.Order
	l.must(json.Unmarshal(h.Asked, &o))
	// Of an account that looks empty nothing can tell a run over events that it is another's.
	defer l.trouble(func(f *stripefake.Faults) {
		f.Revoked, f.Blind = o.What == reconcile.Events, o.What != reconcile.Events
	})()
	var status runs.Status
	died := l.mortally(func(ctx context.Context) { status, err = l.runner.Carry(ctx, h, slog.New(slog.DiscardHandler)) })
	switch {
	case died:
		l.counts["died"]++
	case errors.Is(err, runs.ErrLost):
		l.counts["lost"]++
		l.must(h.Release(context.Background()))
	case refused(err):
		l.counts["failed"]++
		l.must(h.End(context.Background(), runs.Failed, err.Error()))
	case err != nil:
		l.counts["put off"]++
		_, err = h.PutOff(context.Background(), err, time.Second, time.Minute)
		l.must(err)
	case status == runs.Running:
		l.counts["done"]++
		l.must(h.End(context.Background(), runs.Done, ""))
		l.swept(h.Run.Run, &o)
	case status == runs.Proposed:
		l.counts["proposed"]++
		l.must(runs.Approve(context.Background(), l.operator, h.Run.Run, "test", "they are gone"))
	default:
		l.wrong("run %d stands %s after it was carried out", h.Run.Run, status)
	}
	return true
}

// refused says whether runs.Refuse made an error.
func refused(err error) bool {
	for ; err != nil; err = errors.Unwrap(err) {
		if fmt.Sprintf("%T", err) == fmt.Sprintf("%T", runs.Refuse(nil)) {
			return true
		}
	}
	return false
}

// pass makes a pass of looks; it may die with hints in hand. It says how many hints it took.
func (l *life) pass() (n int) {
	var err error
	if l.mortally(func(ctx context.Context) { n, err = l.passes(ctx) }) {
		l.counts["died looking"]++
		return 0
	}
	l.must(err)
	return n
}

// wrong notes what must not be.
func (l *life) wrong(format string, args ...any) {
	if len(l.wrongs) < 5 {
		l.wrongs = append(l.wrongs, fmt.Sprintf(format, args...))
	}
}
