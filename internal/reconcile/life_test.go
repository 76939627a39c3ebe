package reconcile_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/stripefake"
	"github.com/postern-gateway/postern/internal/versioning"
)

// conditions are what a life meets. Percentages are from 0 to 100.
type conditions struct {
	// ward makes the provider, with a seed and the time at which it begins; nil: a Stripe account of these options.
	ward    func(t *testing.T, seed uint64, start time.Time) ward
	account stripefake.Options
	// before is the percentage of steps before which something of ours happens besides deliveries: time passes,
	// the auditor comes, somebody reconciles.
	before int
	// between is the percentage of calls to the API before which the same happens, in the middle of whoever calls.
	between int
	// deaths is the percentage of reconciliations and passes of looks that end in the middle, as a process does that is killed.
	deaths int
	// down is the percentage of pulls of deliveries that nobody takes.
	down int
	// ahead is how far this machine's clock is ahead of the provider's.
	ahead time.Duration
	// clocks: what is known of the API's clock and the clock that stamps events comes from the responses; else it is exact.
	clocks bool
	// wrongKey is the percentage of reconciliations and of rounds of looks whose process has a wrong key.
	wrongKey int
	// sickness is the percentage of objects that cannot be fetched by their names for some minutes.
	sickness int
	// unready is the percentage of what is appended that cannot be applied when it comes, and can be when the auditor does.
	unready int
	// sweeps is the percentage of orders that are sweeps; where there are any, some objects of an account change and no
	// event tells it.
	sweeps int
	// hides is the percentage of things of ours in which the API begins to say of an object that it is missing, or ceases to.
	hides int
	// quiet: nobody reconciles before the end.
	quiet bool
	// waits is the longest time that passes between two things; 0: 10 s.
	waits time.Duration
	// away is a time in which nobody takes a webhook and the provider forgets what it has sent, in the middle of each
	// era; 0: none.
	away time.Duration
}

// life is a provider that lives, the log and mirror of its source, and what reconciles them. All of it happens in the
// test's goroutine and on the provider's clock, so that a seed and a number of steps make it again.
type life struct {
	*conditions
	ward
	t      *testing.T
	db     *testkit.DB
	seed   uint64
	chance *rand.Rand
	// fake is the account of a ward at Stripe, whose history claims are held against; nil for others.
	fake  *stripefake.Fake
	alone map[versioning.Key]*versioning.Row // the mirror of webhooks alone
	// diedAt is the newest event as a pass of looks last died. What that pass appended and did not apply is the auditor's.
	diedAt int64

	operator, gateway *pgxpool.Pool
	reads             *reconcile.Source
	source            processor.Source
	types             []string
	proc              *processor.Processor // of webhooks and the auditor
	runner            *reconcile.Runner
	caller            *caller
	passes            func(context.Context) (int, error)
	processes         int // so many have been, of which one is alive
	mortal            mortality
	depth             int          // of what happens in the middle of something
	over              bool         // the provider lives no longer
	calling           sync.RWMutex // keeps the provider's clock where it is
	holding           []int64      // the runs in the hands of processes that live
	spelling          sync.Mutex   // holds what follows: pages are read ahead, while another process has another key
	spell             spell
	spelled           int64            // the run whose key it is; 0: that of looks
	other             *stripefake.Fake // whose key it may be
	swept             *reconcile.Order // the last sweep that was asked for during the life
	hidden            map[versioning.Key]*hiding
	settledAt         time.Time // when the last era ended

	// wished are the reads of objects that are looked at without need, wishes the words of the last wish for each, and
	// granted those that looks have been made for, up to the one that was seen last.
	wished  map[string]bool
	wishes  map[versioning.Key]string
	granted map[string]bool
	seen    int64
	hashes  map[string]versioning.Hash
	wrongs  []string
	counts  map[string]int
}

// lease is for how long a run is one process's that says nothing.
const lease = 2 * time.Minute

// broken ends a life whose test cannot go on.
type broken struct{ error }

func (l *life) must(err error) {
	if err != nil {
		panic(broken{fmt.Errorf("seed %d: %w", l.seed, err)})
	}
}

// lives lets the provider live for so many steps, with all that goes wrong.
func (l *life) lives(steps int) {
	for n := range steps {
		if n == steps/2 && l.away > 0 {
			l.goes(func() { l.Advance(l.away) })
			l.Deliver(func(*provider.Delivery) bool { return true })
			l.show()
		}
		if l.chance.IntN(100) < l.before {
			l.something()
		}
		l.goes(l.Step)
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
	if !l.over && l.hides > 0 && l.chance.IntN(100) < l.hides {
		l.hideOne()
	}
	switch n := l.chance.IntN(12); {
	case n < 3:
		l.wait(time.Duration(l.chance.Int64N(int64(waits))))
		l.unseen()
	case n < 4:
		l.audit()
	case n < 5 && !l.over:
		for range l.chance.IntN(3) {
			l.goes(l.Step)
		}
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
		defer l.cast(looking, 0)()
		for range 1 + l.chance.IntN(5) {
			l.pass()
		}
	}
}

// wish has somebody want a look at an object.
func (l *life) wish() {
	if k, ok := l.anyObject(); ok {
		l.counts["wishes"]++
		l.wishes[k] = fmt.Sprint("to see, ", l.counts["wishes"])
		_, err := reconcile.Wish(context.Background(), l.operator, k, "test", l.wishes[k])
		l.must(err)
	}
}

// anyObject is one that is looked at though it need not be: often the one that has changed last, for that is the worst of times.
func (l *life) anyObject() (k versioning.Key, ok bool) {
	all := l.beings()
	if len(all) == 0 {
		return k, false
	}
	b := all[l.chance.IntN(len(all))]
	if l.chance.IntN(2) == 0 {
		b = last(all)
	}
	return l.wanted(b)
}

// last is the object that has changed last.
func last(all []being) being {
	return slices.MaxFunc(all, func(a, b being) int { return a.Changed.Compare(b.Changed) })
}

// wanted notes that an object is looked at though it need not be. False: nothing leads to it.
func (l *life) wanted(b being) (k versioning.Key, ok bool) {
	k = l.key(b)
	if l.fake == nil {
		if _, known := l.mirrored(k); !known {
			return k, false
		}
	}
	l.wished[b.read] = true
	return k, true
}

// glance is a look at what has just changed, which an answer that is a little old does not show.
func (l *life) glance() {
	l.wait(time.Duration(l.chance.Int64N(int64(time.Second))))
	if k, ok := l.wanted(last(l.beings())); ok {
		l.ask(reconcile.Order{What: reconcile.Object, Account: k.Account, Type: k.Type, ID: k.ID})
		l.carry()
	}
}

// anyOrder is mostly what a schedule asks for: the events or the objects that changed since the last time. A person may
// ask for a time, for an object, or to be told what would happen.
func (l *life) anyOrder() reconcile.Order {
	o := reconcile.Order{What: reconcile.Events, Account: l.anyAccount()}
	some := func() time.Duration { return time.Duration(l.chance.IntN(120)) * time.Second }
	n := l.chance.IntN(9)
	if sweep := l.chance.IntN(100) < l.sweeps; sweep && (l.fake != nil || n > 1) {
		return l.anySweep()
	}
	switch n {
	case 0, 1:
		if k, ok := l.anyObject(); ok {
			o.What, o.Account, o.Type, o.ID = reconcile.Object, k.Account, k.Type, k.ID
		}
	case 2:
		o.Since = l.Now().Add(-some())
		fallthrough
	case 3:
		o.Until = l.Now().Add(-some())
	case 4:
		o.DryRun = l.chance.IntN(2) == 0
	}
	return o
}

// anySweep is a sweep of a type, or of all of them. Often there are two of one type at once.
func (l *life) anySweep() reconcile.Order {
	all := l.lists()
	if l.swept == nil || l.chance.IntN(2) == 0 {
		l.swept = &all[l.chance.IntN(len(all))]
	}
	o := *l.swept
	o.DryRun = l.chance.IntN(5) == 0
	if l.fake == nil {
		o.Full = l.chance.IntN(3) == 0
		if l.chance.IntN(4) == 0 {
			o.Type = ""
		}
	}
	return o
}

// lists are a sweep of each type and account that there is, over all objects.
func (l *life) lists() (all []reconcile.Order) {
	for _, account := range l.accounts() {
		for _, objectType := range l.types {
			kept := account
			if l.fake != nil {
				kept = keptAs(account, objectType)
			}
			all = append(all, reconcile.Order{What: reconcile.Objects, Account: kept, Type: objectType, Full: l.fake == nil})
		}
	}
	return all
}

// unseen lets something of an account change, or go, that no event tells.
func (l *life) unseen() {
	if l.fake == nil || l.sweeps == 0 || l.over {
		return
	}
	all := l.fake.Truth()
	if len(all) == 0 {
		return
	}
	switch o := all[l.chance.IntN(len(all))]; {
	case o.Deleted():
	case l.chance.IntN(2) == 0 && slices.Contains([]string{"customer", "price", "product"}, o.Type):
		l.fake.Vanish(o.Account, o.ID)
	default:
		l.fake.SetQuietly(o.Account, o.ID, map[string]any{"metadata.unseen": fmt.Sprint(l.chance.IntN(3))})
	}
}

func (l *life) accounts() []string {
	return append([]string{l.reads.Config.Account}, l.conditions.account.Accounts...)
}

func (l *life) anyAccount() string {
	all := l.accounts()
	return all[l.chance.IntN(len(all))]
}

// deliver takes what is due of webhooks, as a gateway does, unless that is down; some of it is applied only when the auditor comes.
func (l *life) deliver() {
	l.show()
	var ds []events.Delivery
	up := l.chance.IntN(100) >= l.down
	l.Deliver(func(d *provider.Delivery) bool {
		if !up {
			return false
		}
		src, reads := l.reads.Config, l.reads.Provider
		_, err := reads.Verify(src, d)
		l.must(err)
		named, err := reads.Identify(src, d)
		l.must(err)
		ds = append(ds, events.Delivery{Source: l.reads.Number, ReceivedAt: l.now(), Origin: events.OriginWebhook,
			Headers: events.AppendHeaders(nil, reads.Headers(), d), Verification: []byte(`{}`), Body: slices.Clone(d.Body),
			Events: named})
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

func (l *life) apply(ids []int64) {
	_, err := l.proc.ApplyStored(context.Background(), processor.Target{}, ids, false)
	l.must(err)
}

// unapplied are the events that have no outcome, and those whose outcome is that they could not be applied.
const unapplied = `SELECT e.id FROM events e WHERE NOT EXISTS
	(SELECT FROM outcomes o WHERE o.event_id = e.id AND o.run = 0 AND o.status <> 'failed') ORDER BY e.id`

// audit applies what has no outcome, and again what could not be applied.
func (l *life) audit() {
	l.show()
	_, err := l.db.Pool.Exec(context.Background(), `UPDATE outcomes SET due = clock_now() WHERE status = 'failed'`)
	l.must(err)
	rows, err := l.db.Pool.Query(context.Background(), unapplied)
	l.must(err)
	ids, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	l.must(err)
	l.apply(ids)
}

// ask orders a reconciliation.
func (l *life) ask(o reconcile.Order) int64 {
	l.show()
	o.Source = l.reads.Number
	run, err := runs.Ask(context.Background(), l.operator, runs.Order{Job: reconcile.Job, Asked: o, Who: "test"})
	l.must(err)
	return run
}

// carry takes a run that is open, if there is one, and carries it out as runs.Runner does; it may die with the lease in
// hand. It says whether it took one.
func (l *life) carry() bool {
	h, err := runs.Take(context.Background(), l.runner.Pool, fmt.Sprint("process ", l.processes), lease, reconcile.Job)
	l.must(err)
	if h == nil {
		return false
	}
	l.counts["taken"]++
	var o reconcile.Order
	l.must(json.Unmarshal(h.Asked, &o))
	defer l.cast(l.doing(&o), h.Run.Run)()
	defer l.buried()
	var status runs.Status
	l.holding = append(l.holding, h.Run.Run)
	died := l.mortally(func(ctx context.Context) {
		status, err = l.runner.Carry(context.WithValue(ctx, runKey{}, h.Run.Run), h, slog.New(slog.DiscardHandler))
	})
	l.holding = l.holding[:len(l.holding)-1]
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
		l.addsUp(h.Run.Run, &o, h.Counts)
		l.sweptTruly(h.Run.Run, &o)
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
		l.must(l.db.Pool.QueryRow(context.Background(), `SELECT coalesce(max(id), 0) FROM events`).Scan(&l.diedAt))
		return 0
	}
	l.must(err)
	if n > 0 {
		l.buried()
	}
	return n
}

// wrong notes what must not be.
func (l *life) wrong(format string, args ...any) {
	if len(l.wrongs) < 5 {
		l.wrongs = append(l.wrongs, fmt.Sprintf(format, args...))
	}
}
