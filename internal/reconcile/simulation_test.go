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

	"github.com/postern-gateway/postern/internal/apply"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/providerapi"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/refetch"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/stripefake"
	"github.com/postern-gateway/postern/internal/versioning"
)

// scenario configures a simulation. Percentages are from 0 to 100.
type scenario struct {
	// long: other scenarios have all its faults, so that only full runs execute it.
	long bool
	// newProvider makes the provider from a seed and a start time. Nil means a Stripe account with
	// the options in stripe.
	newProvider func(t *testing.T, seed uint64, start time.Time) liveProvider
	stripe      stripefake.Options
	// actionPercent is the percentage of steps before which a random action happens: time passes,
	// the republisher runs, or a reconciliation runs.
	actionPercent int
	// duringCallPercent is the percentage of calls to the API during which the same happens.
	duringCallPercent int
	// killPercent is the percentage of reconciliations and refetch passes that are killed in the
	// middle.
	killPercent int
	// gatewayDownPercent is the percentage of deliveries that the gateway does not accept.
	gatewayDownPercent int
	// clockAhead is how far this machine's clock is ahead of the provider's.
	clockAhead time.Duration
	// learnsClocks: the offsets of the API's clock and of the clock that stamps events are learned
	// from responses. Otherwise they are exact.
	learnsClocks bool
	// wrongKeyPercent is the percentage of reconciliations and refetch passes with a wrong key.
	wrongKeyPercent int
	// unreadablePercent is the percentage of objects that cannot be fetched by id for some minutes.
	unreadablePercent int
	// applyFailurePercent is the percentage of appended events that can be applied only by the
	// republisher.
	applyFailurePercent int
	// scanPercent is the percentage of runs that are object scans. If it is not 0, some objects of
	// an account change without an event.
	scanPercent int
	// hidePercent is the percentage of actions in which the API begins or ceases to report an
	// object as missing.
	hidePercent int
	// onlyAtEnd: reconciliations run only at the end.
	onlyAtEnd bool
	// maxWait is the longest time that an action lets pass. Zero means 10 s.
	maxWait time.Duration
	// outage is a time in the middle of each era in which no webhook is accepted and the provider
	// drops its deliveries. Zero means no outage.
	outage time.Duration
}

// simulation is a changing provider, the log and the mirror of its source, and the reconciler.
// Everything happens in the goroutine of the test and on the provider's clock, so that a seed and a
// number of steps reproduce it.
type simulation struct {
	*scenario
	liveProvider
	t      *testing.T
	db     *testkit.DB
	seed   uint64
	chance *rand.Rand
	// fake is the account of a Stripe provider, whose history is used for checks. It is nil for
	// other providers.
	fake         *stripefake.Fake
	webhooksOnly map[versioning.Key]*versioning.Row // the mirror that webhooks alone would give
	// newestAtKill is the newest event when a refetch pass was last killed. Events that this pass
	// appended and did not apply are left to the republisher.
	newestAtKill int64

	operator, gateway *pgxpool.Pool
	reconcileSource   *providerapi.Source
	processorSource   apply.Source
	types             []string
	proc              *apply.Applier // of webhooks and the republisher
	runner            *reconcile.Runner
	caller            *simulationCaller
	refetchPass       func(context.Context) (int, error)
	processCount      int // number of processes so far; one is alive
	killer            killSwitch
	depth             int          // nesting of actions
	providerStopped   bool         // the provider makes no more steps
	clockLock         sync.RWMutex // holds the provider's clock
	leasedRuns        []int64      // runs that are leased by living processes
	// guards the following fields: pages are read ahead while another process uses another key
	keyLock      sync.Mutex
	key          keyState
	keyRun       int64             // the run that uses the key; 0: refetches
	otherAccount *stripefake.Fake  // the other account, for its key
	lastScan     *reconcile.Params // the last requested object scan
	visibilities map[versioning.Key]*visibility
	eraEndedAt   time.Time // the end of the last era

	// extraReads are objects that are refetched without need. manualRefetches are the reasons of
	// the last manual refetch of each object. loggedReasons are the reasons of the refetches in the
	// log, up to lastChecked.
	extraReads      map[string]bool
	manualRefetches map[versioning.Key]string
	loggedReasons   map[string]bool
	lastChecked     int64
	hashes          map[string]versioning.Hash
	failures        []string
	counts          map[string]int
}

// runLease is how long a process may be silent before another takes over its run.
const runLease = 2 * time.Minute

// fatalError ends a simulation that cannot continue.
type fatalError struct{ error }

func (l *simulation) must(err error) {
	if err != nil {
		panic(fatalError{fmt.Errorf("seed %d: %w", l.seed, err)})
	}
}

// queryAll returns the values of a query of one column.
func queryAll[T any](l *simulation, sql string, args ...any) []T {
	rows, err := l.db.Pool.Query(context.Background(), sql, args...)
	l.must(err)
	all, err := pgx.CollectRows(rows, pgx.RowTo[T])
	l.must(err)
	return all
}

// runSteps executes the given number of steps of the provider, with all faults.
func (l *simulation) runSteps(steps int) {
	for n := range steps {
		if n == steps/2 && l.outage > 0 {
			l.moveProviderClock(func() { l.Advance(l.outage) })
			l.Deliver(func(*provider.Delivery) bool { return true })
			l.syncDatabaseClock()
		}
		if l.chance.IntN(100) < l.actionPercent {
			l.act()
		}
		l.moveProviderClock(l.Step)
		if l.chance.IntN(3) == 0 {
			l.deliver()
		}
	}
	if !l.onlyAtEnd {
		l.refetchLastChanged()
	}
}

// act executes a random action on this side of the API.
func (l *simulation) act() {
	l.depth++
	defer func() { l.depth-- }()
	waits := l.maxWait
	if waits == 0 {
		waits = 10 * time.Second
	}
	if !l.providerStopped && l.hidePercent > 0 && l.chance.IntN(100) < l.hidePercent {
		l.hideRandom()
	}
	switch n := l.chance.IntN(12); {
	case n < 3:
		l.wait(time.Duration(l.chance.Int64N(int64(waits))))
		l.changeWithoutEvent()
	case n < 4:
		l.republish()
	case n < 5 && !l.providerStopped:
		for range l.chance.IntN(3) {
			l.moveProviderClock(l.Step)
		}
		l.changeWithoutEvent()
	case n < 6:
		l.deliver()
	case n < 7:
		l.requestManualRefetch()
	case l.onlyAtEnd && !l.providerStopped:
	case n < 9 && l.depth < 3:
		l.startRun(l.randomRun())
		l.executeRun()
	case n < 12 && l.depth < 3:
		l.syncDatabaseClock()
		defer l.withRandomKey(actionRefetch, 0)()
		for range 1 + l.chance.IntN(5) {
			l.runRefetchPass()
		}
	}
}

// requestManualRefetch requests a manual refetch of a random object.
func (l *simulation) requestManualRefetch() {
	if k, ok := l.randomObject(); ok {
		l.counts["manual refetches"]++
		l.manualRefetches[k] = fmt.Sprint("to see, ", l.counts["manual refetches"])
		_, err := refetch.Add(context.Background(), l.operator, k, "test", l.manualRefetches[k])
		l.must(err)
	}
}

// randomObject returns an object for a refetch without need: often the one that changed last, which
// is the most difficult case.
func (l *simulation) randomObject() (k versioning.Key, ok bool) {
	all := l.objects()
	if len(all) == 0 {
		return k, false
	}
	b := all[l.chance.IntN(len(all))]
	if l.chance.IntN(2) == 0 {
		b = lastChanged(all)
	}
	return l.markExtraRead(b)
}

// lastChanged returns the object that changed last.
func lastChanged(all []liveObject) liveObject {
	return slices.MaxFunc(all, func(a, b liveObject) int { return a.Changed.Compare(b.Changed) })
}

// markExtraRead records that an object is refetched without need. It returns false if the object
// has no address.
func (l *simulation) markExtraRead(b liveObject) (k versioning.Key, ok bool) {
	k = l.keyOf(b)
	if l.fake == nil {
		if _, known := l.mirrored(k); !known {
			return k, false
		}
	}
	l.extraReads[b.readKey] = true
	return k, true
}

// refetchLastChanged refetches the object that changed last. A response that is a little old does
// not show the change.
func (l *simulation) refetchLastChanged() {
	l.wait(time.Duration(l.chance.Int64N(int64(time.Second))))
	if k, ok := l.markExtraRead(lastChanged(l.objects())); ok {
		l.startRun(reconcile.Params{Scope: reconcile.Object, Account: k.Account, Type: k.Type, ID: k.ID})
		l.executeRun()
	}
}

// randomRun is mostly a run of a schedule: over the events or the objects that changed since the
// last run. An operator may request a time range, an object or a dry run.
func (l *simulation) randomRun() reconcile.Params {
	o := reconcile.Params{Scope: reconcile.Events, Account: l.randomAccount()}
	some := func() time.Duration { return time.Duration(l.chance.IntN(120)) * time.Second }
	n := l.chance.IntN(9)
	if scan := l.chance.IntN(100) < l.scanPercent; scan && (l.fake != nil || n > 1) {
		return l.randomScan()
	}
	switch n {
	case 0, 1:
		if k, ok := l.randomObject(); ok {
			o.Scope, o.Account, o.Type, o.ID = reconcile.Object, k.Account, k.Type, k.ID
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

// randomScan is an object scan of a type, or of all types. Often there are two of one type at once.
func (l *simulation) randomScan() reconcile.Params {
	all := l.scansOfAllTypes()
	if l.lastScan == nil || l.chance.IntN(2) == 0 {
		l.lastScan = &all[l.chance.IntN(len(all))]
	}
	o := *l.lastScan
	o.DryRun = l.chance.IntN(5) == 0
	if l.fake == nil {
		o.Full = l.chance.IntN(3) == 0
		if l.chance.IntN(4) == 0 {
			o.Type = ""
		}
	}
	return o
}

// scansOfAllTypes returns a full object scan for each type and account.
func (l *simulation) scansOfAllTypes() (all []reconcile.Params) {
	for _, account := range l.accounts() {
		for _, objectType := range l.types {
			kept := account
			if l.fake != nil {
				kept = mirrorAccount(account, objectType)
			}
			all = append(all, reconcile.Params{Scope: reconcile.Objects, Account: kept, Type: objectType,
				Full: l.fake == nil})
		}
	}
	return all
}

// changeWithoutEvent changes or deletes an object of an account without an event.
func (l *simulation) changeWithoutEvent() {
	if l.fake == nil || l.scanPercent == 0 || l.providerStopped {
		return
	}
	all := l.fake.CurrentObjects()
	if len(all) == 0 {
		return
	}
	switch o := all[l.chance.IntN(len(all))]; {
	case o.Deleted():
	case l.chance.IntN(2) == 0 && slices.Contains([]string{"customer", "price", "product"}, o.Type):
		l.fake.DeleteWithoutEvent(o.Account, o.ID)
	default:
		l.fake.SetWithoutEvent(o.Account, o.ID, map[string]any{"metadata.unseen": fmt.Sprint(l.chance.IntN(3))})
	}
}

func (l *simulation) accounts() []string {
	return append([]string{l.reconcileSource.Config.Account}, l.scenario.stripe.Accounts...)
}

func (l *simulation) randomAccount() string {
	all := l.accounts()
	return all[l.chance.IntN(len(all))]
}

// deliver accepts the due webhooks as a gateway does, unless that is down. The republisher applies
// some of them later.
func (l *simulation) deliver() {
	l.syncDatabaseClock()
	var ds []events.Delivery
	up := l.chance.IntN(100) >= l.gatewayDownPercent
	l.Deliver(func(d *provider.Delivery) bool {
		if !up {
			return false
		}
		src, reads := l.reconcileSource.Config, l.reconcileSource.Provider
		_, err := reads.Verify(src, d)
		l.must(err)
		named, err := reads.Identify(src, d)
		l.must(err)
		ds = append(ds, events.Delivery{Source: l.reconcileSource.Number, ReceivedAt: l.now(),
			Origin: events.OriginWebhook, Headers: events.AppendHeaders(nil, reads.Headers(), d),
			Verification: []byte(`{}`), Body: slices.Clone(d.Body), Events: named})
		return true
	})
	if len(ds) == 0 {
		return
	}
	receipts, err := events.Append(context.Background(), l.db.Pool, ds)
	l.must(err)
	var ids []int64
	for i, r := range receipts {
		l.applyToWebhooksOnly(&ds[i])
		if r[0].Conflict {
			l.fail("the log has event %s with another content", r[0].Key)
		}
		if l.chance.IntN(10) > 0 {
			ids = append(ids, r[0].ID)
		}
	}
	l.apply(ids)
}

func (l *simulation) apply(ids []int64) {
	_, err := l.proc.ApplyStored(context.Background(), apply.Target{}, ids, false)
	l.must(err)
}

// unappliedSQL selects the events without an outcome, and those that could not be applied.
const unappliedSQL = `SELECT e.id FROM events e WHERE NOT EXISTS
	(SELECT FROM outcomes o WHERE o.event_id = e.id AND o.run = 0 AND o.status <> 'failed') ORDER BY e.id`

// republish applies events without an outcome, and again those that could not be applied.
func (l *simulation) republish() {
	l.syncDatabaseClock()
	_, err := l.db.Pool.Exec(context.Background(), `UPDATE outcomes SET due = clock_now() WHERE status = 'failed'`)
	l.must(err)
	l.apply(queryAll[int64](l, unappliedSQL))
}

// StartRun requests a reconciliation.
func (l *simulation) startRun(o reconcile.Params) int64 {
	l.syncDatabaseClock()
	o.Source = l.reconcileSource.Number
	run, err := runs.Create(context.Background(), l.operator, runs.Request{Job: reconcile.Job, Params: o,
		Actor: "test"})
	l.must(err)
	return run
}

// executeRun leases an open run, if there is one, and executes it as runs.Runner does. The process
// may be killed while it has the lease. It returns whether it leased a run.
func (l *simulation) executeRun() bool {
	h, err := runs.Acquire(context.Background(), l.runner.Pool, fmt.Sprint("process ", l.processCount), runLease,
		reconcile.Job)
	l.must(err)
	if h == nil {
		return false
	}
	l.counts["runs leased"]++
	var o reconcile.Params
	l.must(json.Unmarshal(h.Params, &o))
	defer l.withRandomKey(l.actionOf(&o), h.Run.ID)()
	defer l.checkDeleted()
	var status runs.Status
	l.leasedRuns = append(l.leasedRuns, h.Run.ID)
	died := l.mayBeKilled(func(ctx context.Context) {
		status, err = l.runner.Execute(context.WithValue(ctx, runKey{}, h.Run.ID), h, slog.New(slog.DiscardHandler))
	})
	l.leasedRuns = l.leasedRuns[:len(l.leasedRuns)-1]
	switch {
	case died:
		l.counts["runs killed"]++
	case errors.Is(err, runs.ErrLeaseLost):
		l.counts["leases lost"]++
		l.must(h.Release(context.Background()))
	case isPermanent(err):
		l.counts["failed"]++
		l.must(h.End(context.Background(), runs.Failed, err.Error()))
	case err != nil:
		l.counts["deferred"]++
		_, err = h.Defer(context.Background(), err, time.Second, time.Minute)
		l.must(err)
	case status == runs.Running:
		l.counts["done"]++
		l.must(h.End(context.Background(), runs.Done, ""))
		l.checkCounts(h.Run.ID, &o, h.Counts)
		l.checkScan(h.Run.ID, &o)
	case status == runs.AwaitingApproval:
		l.counts["approvals requested"]++
		l.must(runs.Approve(context.Background(), l.operator, h.Run.ID, "test", "they are gone"))
	default:
		l.fail("run %d has the status %s after it was executed", h.Run.ID, status)
	}
	return true
}

// isPermanent reports whether runs.Permanent made an error.
func isPermanent(err error) bool {
	for ; err != nil; err = errors.Unwrap(err) {
		if fmt.Sprintf("%T", err) == fmt.Sprintf("%T", runs.Permanent(nil)) {
			return true
		}
	}
	return false
}

// runRefetchPass makes a refetch pass, which may be killed while it has leases. It returns the
// number of leased requests.
func (l *simulation) runRefetchPass() (n int) {
	var err error
	if l.mayBeKilled(func(ctx context.Context) { n, err = l.refetchPass(ctx) }) {
		l.counts["passes killed"]++
		l.must(l.db.Pool.QueryRow(context.Background(), `SELECT coalesce(max(id), 0) FROM events`).Scan(
			&l.newestAtKill))
		return 0
	}
	l.must(err)
	if n > 0 {
		l.checkDeleted()
	}
	return n
}

// fail records a failure.
func (l *simulation) fail(format string, args ...any) {
	if len(l.failures) < 5 {
		l.failures = append(l.failures, fmt.Sprintf(format, args...))
	}
}
