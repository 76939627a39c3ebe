package reconcile_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
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
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/applied"
	"github.com/postern-gateway/postern/internal/versioning"
)

// trials are what a lifetime meets.
type trials struct {
	// ward makes the provider, with a seed and the time at which it begins.
	ward func(t *testing.T, seed uint64, start time.Time) ward
	// before is the percentage of steps before which something of ours happens besides deliveries.
	before int
	// between is the percentage of calls to the API before which the same happens, in the middle of whoever calls.
	between int
	// deaths is the percentage of reconciliations and passes of looks that end in the middle, as a process does that is killed.
	deaths int
	// wrongKey is the percentage of runs and passes that find the key revoked.
	wrongKey int
	// waits is the longest time that passes between two things; 0: 10 s.
	waits time.Duration
	// away is the time in which nobody takes a webhook and the provider forgets what it has sent, before the middle of each era; 0: none.
	away time.Duration
	// hides is the percentage of things of ours in which an object is hidden, or shown again. Nothing is hidden in the end.
	hides int
}

// lifetime is a ward that lives, the log and mirror of its source, and what reconciles them. All of it happens in the test's goroutine and on the ward's clock,
// but for what sweeps read ahead.
type lifetime struct {
	*trials
	ward
	db     *testkit.DB
	seed   uint64
	chance *rand.Rand
	rows   map[versioning.Key]*versioning.Row // the mirror of webhooks alone

	operator, gateway *pgxpool.Pool
	reads             *reconcile.Source
	stored            processor.Source
	account           string
	types             []string
	proc              *processor.Processor // of webhooks and the auditor
	runner            *reconcile.Runner
	phone             *phone
	passes            func(context.Context) (int, error)
	processes         int
	mortal            mortality
	depth             int
	over              bool
	hidden            map[string]being // now
	hid               map[string]bool  // since the last reconciliation that was waited for
	wished            map[string]bool
	wrongs            []string
	counts            map[string]int
}

// newLifetime makes one that has not begun, in a database of its own.
func newLifetime(t *testing.T, c *trials, seed uint64) *lifetime {
	t.Helper()
	l := &lifetime{trials: c, db: testkit.Database(t), seed: seed, chance: rand.New(rand.NewPCG(seed, 81)), rows: map[versioning.Key]*versioning.Row{}, hidden: map[string]being{}, hid: map[string]bool{},
		wished: map[string]bool{}, counts: map[string]int{}}
	l.ward = c.ward(t, seed, time.Date(2026, time.November, 20, 12, 0, 0, 0, time.UTC))
	standing(t, l.db)
	l.show()
	l.operator, l.gateway = l.db.Role(t, "operator"), l.mortalPool(t, "gateway")
	l.reads = l.source(t)
	l.reads.Name = l.reads.Config.Name
	l.account = l.reads.Config.Account
	known, err := events.RegisterSources(t.Context(), l.db.Pool, map[string]string{l.reads.Name: l.reads.Provider.Name()})
	l.must(err)
	l.reads.Number = known.Number[l.reads.Name]
	l.stored = processor.Source{Number: l.reads.Number, Config: l.reads.Config, Provider: l.reads.Provider, Looker: l.reads.Reader, Reads: l.reads.Reads, Locates: l.reads.Locates}
	l.types = slices.Sorted(maps.Keys(l.reads.Reader.(provider.ObjectLister).Lists(l.reads.Config, l.reads.API, l.account)))
	l.proc = l.processor(l.db.Role(t, "processor"))
	l.reconciler(t)
	return l
}

// show sets the database's clock to the ward's, which others may have moved on since it was read here.
func (l *lifetime) show() {
	_, err := l.db.Pool.Exec(context.Background(), `UPDATE test_clock SET at = greatest(at, $1)`, l.Now())
	l.must(err)
}

// wait lets time pass.
func (l *lifetime) wait(d time.Duration) {
	l.Advance(d)
	l.show()
}

func (l *lifetime) must(err error) {
	if err != nil {
		panic(broken{fmt.Errorf("seed %d: %w", l.seed, err)})
	}
}

func (l *lifetime) processor(pool *pgxpool.Pool) *processor.Processor {
	s := processor.DefaultSettings
	s.Lanes = 1
	p, err := processor.New(processor.Options{Pool: pool, Settings: s, ID: "life", Logger: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(),
		Sources: map[string]processor.Source{l.reads.Name: l.stored}})
	l.must(err)
	return p
}

// reconciler makes what reconciles, over connections on which it may die. One call is made at a time, and the rate is none: time stands still while somebody waits for it.
func (l *lifetime) reconciler(t *testing.T) {
	pool := l.mortalPool(t, "processor")
	metrics, err := reconcile.NewMetrics(prometheus.NewRegistry(), []string{l.reads.Name})
	l.must(err)
	api := l.reads.API
	api.Rate, api.Concurrency, api.Timeout, api.MaxBytes = 1e9, 1, time.Second, 1<<22
	c, err := reconcile.NewClient(reconcile.Options{Pool: l.db.Role(t, "processor"), Number: l.reads.Number, Source: l.reads.Name, Account: l.account, Reader: l.reads.Reader, API: api,
		Metrics: metrics, Logger: slog.New(slog.DiscardHandler)})
	l.must(err)
	t.Cleanup(c.Close)
	l.phone = &phone{Client: c, life: l, looked: map[string]int{}, luck: rand.New(rand.NewPCG(l.seed, 82))}
	l.reads.Caller = l.phone
	sources := &reconcile.Sources{}
	sources.Replace(l.reads)
	s := reconcile.DefaultSettings
	s.Overlap, s.Settle, s.Again = 30*time.Second, 10*time.Second, time.Microsecond
	l.runner = &reconcile.Runner{Pool: pool, Log: l.gateway, Processor: l.processor(pool), Sources: sources, Settings: s, Now: l.Now}
	l.begin()
}

// begin lets a process take the place of the one that has ended.
func (l *lifetime) begin() {
	l.processes++
	looks := &reconcile.Looks{Runner: l.runner, ID: fmt.Sprint("process ", l.processes), Logger: slog.New(slog.DiscardHandler)}
	l.passes = looks.Passes(l.reads)
}

// lives lets the ward live for so many steps, with all that goes wrong.
func (l *lifetime) lives(steps int) {
	for n := range steps {
		if n == steps/2 && l.away > 0 {
			l.Advance(l.away)
			l.Deliver(func(*provider.Delivery) bool { return true })
			l.show()
		}
		if l.chance.IntN(100) < l.before {
			l.something()
		}
		l.Step()
		if l.chance.IntN(3) == 0 {
			l.deliver()
		}
	}
}

// something of ours happens.
func (l *lifetime) something() {
	l.depth++
	defer func() { l.depth-- }()
	waits := l.waits
	if waits == 0 {
		waits = 10 * time.Second
	}
	if !l.over && l.chance.IntN(100) < l.hides {
		l.hideOne()
	}
	switch n := l.chance.IntN(12); {
	case n < 3:
		l.wait(time.Duration(l.chance.Int64N(int64(waits))))
	case n < 4:
		l.audit()
	case n < 5 && !l.over:
		l.Step()
	case n < 6:
		l.deliver()
	case n < 7:
		if k, ok := l.anyObject(); ok {
			_, err := reconcile.Wish(context.Background(), l.operator, k, "test", "to see")
			l.must(err)
		}
	case n < 9 && l.depth < 3:
		l.ask(l.anyOrder())
		l.carry()
	case n < 12 && l.depth < 3:
		l.show()
		defer l.trouble()()
		for range 1 + l.chance.IntN(5) {
			l.pass()
		}
	}
}

// showAll shows what is hidden.
func (l *lifetime) showAll() {
	for id, b := range l.hidden {
		l.hide(b, false)
		delete(l.hidden, id)
	}
}

// hideOne hides an object, or shows the hidden. It says whether there is any object. What is listed below another would be hidden with it (an order's
// fulfillments, a location's levels), and of a repository nothing shows that it is missing.
func (l *lifetime) hideOne() bool {
	if len(l.hidden) > 0 {
		l.showAll()
		return true
	}
	owners := []string{"order", "location", "repository"}
	all := slices.DeleteFunc(l.beings(), func(b being) bool { return b.Body == nil || slices.Contains(owners, b.Type) })
	if len(all) > 0 {
		b := all[l.chance.IntN(len(all))]
		l.hidden[b.Type+b.ID], l.hid[b.Type+b.ID] = b, true
		l.hide(b, true)
		l.wished[b.read] = true // it is looked at more often
		l.counts["hidden"]++
	}
	return len(all) > 0
}

// trouble lets the key be revoked, perhaps, until the function is called.
func (l *lifetime) trouble() (over func()) {
	if l.chance.IntN(100) < l.wrongKey {
		l.revoke(true)
		return func() { l.revoke(false) }
	}
	return func() {}
}

// anyObject is one that is looked at though it need not be: often the one that has changed last, for that is the worst of times.
func (l *lifetime) anyObject() (k versioning.Key, ok bool) {
	all := l.beings()
	if len(all) == 0 {
		return k, false
	}
	b := all[l.chance.IntN(len(all))]
	if l.chance.IntN(2) == 0 {
		b = slices.MaxFunc(all, func(a, b being) int { return a.Changed.Compare(b.Changed) })
	}
	if _, known := l.mirrored(l.key(b)); !known { // nothing leads to it
		return k, false
	}
	l.wished[b.read] = true
	return l.key(b), true
}

func (l *lifetime) key(b being) versioning.Key {
	return versioning.Key{Source: l.reads.Number, Account: l.account, Type: b.Type, ID: b.ID}
}

// anyOrder is mostly a sweep of what has changed since the last; where the provider lists what it has sent, often that.
func (l *lifetime) anyOrder() reconcile.Order {
	if len(l.told()) > 0 && l.chance.IntN(3) > 0 {
		return reconcile.Order{What: reconcile.Events, DryRun: l.chance.IntN(8) == 0}
	}
	if k, ok := l.anyObject(); ok && l.chance.IntN(5) == 0 {
		return reconcile.Order{What: reconcile.Object, Account: k.Account, Type: k.Type, ID: k.ID}
	}
	o := reconcile.Order{What: reconcile.Objects, Account: l.account, Type: l.types[l.chance.IntN(len(l.types))], Full: l.chance.IntN(3) == 0, DryRun: l.chance.IntN(8) == 0}
	if l.chance.IntN(4) == 0 {
		o.Type = "" // all of them
	}
	return o
}

// deliver takes what is due of webhooks, as a gateway does; some of it is applied only when the auditor comes.
func (l *lifetime) deliver() {
	l.show()
	var ds []events.Delivery
	l.Deliver(func(d *provider.Delivery) bool {
		d.ReceivedAt, d.Body = l.Now(), slices.Clone(d.Body)
		_, err := l.reads.Provider.Verify(l.reads.Config, d)
		l.must(err)
		named, err := l.reads.Provider.Identify(l.reads.Config, d)
		l.must(err)
		ds = append(ds, events.Delivery{Source: l.reads.Number, ReceivedAt: d.ReceivedAt, Origin: events.OriginWebhook, Headers: events.AppendHeaders(nil, l.reads.Provider.Headers(), d),
			Verification: []byte(`{}`), Body: d.Body, Events: named})
		return true
	})
	if len(ds) == 0 {
		return
	}
	receipts, err := events.Append(context.Background(), l.db.Pool, ds)
	l.must(err)
	var ids []int64
	for i, r := range receipts {
		l.byWebhook(&ds[i])
		if r[0].Conflict {
			l.wrong("the log has event %s with other content", r[0].Key)
		}
		if l.chance.IntN(10) > 0 {
			ids = append(ids, r[0].ID)
		}
	}
	l.apply(ids)
}

// byWebhook tells the mirror of webhooks alone, by the pure rule.
func (l *lifetime) byWebhook(d *events.Delivery) {
	e := d.Events[0]
	obs, err := l.reads.Provider.Observe(l.reads.Config, &provider.Stored{Key: e.Key, Type: e.Type, Account: e.Account, APIVersion: e.APIVersion, Origin: d.Origin, ReceivedAt: d.ReceivedAt, Body: d.Body})
	l.must(err)
	if obs.Ignored != "" {
		return
	}
	in, err := versioning.FromObservation(obs, d.ReceivedAt)
	l.must(err)
	k := versioning.Key{Type: obs.ObjectType, ID: obs.ObjectID}
	if l.rows[k] == nil {
		row := versioning.NewRow()
		l.rows[k] = &row
	}
	versioning.Apply(l.rows[k], in)
}

func (l *lifetime) apply(ids []int64) {
	_, err := l.proc.ApplyStored(context.Background(), processor.Target{}, ids, false)
	l.must(err)
}

// audit applies what has no outcome.
func (l *lifetime) audit() {
	l.show()
	rows, err := l.db.Pool.Query(context.Background(), `SELECT e.id FROM events e WHERE NOT EXISTS (SELECT FROM outcomes o WHERE o.event_id = e.id AND o.run = 0) ORDER BY e.id`)
	l.must(err)
	ids, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	l.must(err)
	l.apply(ids)
}

// ask orders a reconciliation.
func (l *lifetime) ask(o reconcile.Order) int64 {
	l.show()
	o.Source = l.reads.Number
	run, err := runs.Ask(context.Background(), l.operator, runs.Order{Job: reconcile.Job, Asked: o, Who: "test"})
	l.must(err)
	return run
}

// carry takes a run that is open, if there is one, and carries it out as runs.Runner does; it may die with the lease in hand. It says whether it took one.
func (l *lifetime) carry() bool {
	h, err := runs.Take(context.Background(), l.runner.Pool, fmt.Sprint("process ", l.processes), applied.Lease*15, reconcile.Job)
	l.must(err)
	if h == nil {
		return false
	}
	l.counts["taken"]++
	var o reconcile.Order
	l.must(json.Unmarshal(h.Asked, &o))
	defer l.trouble()()
	defer l.buried()
	var status runs.Status
	died := l.mortally(func(ctx context.Context) { status, err = l.runner.Carry(ctx, h, slog.New(slog.DiscardHandler)) })
	switch {
	case died:
		l.counts["died"]++
	case errors.Is(err, runs.ErrLost):
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

// pass makes a pass of looks; it may die with hints in hand. It says how many hints it took.
func (l *lifetime) pass() (n int) {
	var err error
	if l.mortally(func(ctx context.Context) { n, err = l.passes(ctx) }) {
		l.counts["died looking"]++
		return 0
	}
	l.must(err)
	if n > 0 {
		l.buried()
	}
	return n
}

// wrong notes what must not be.
func (l *lifetime) wrong(format string, args ...any) {
	if len(l.wrongs) < 5 {
		l.wrongs = append(l.wrongs, fmt.Sprintf(format, args...))
	}
}
