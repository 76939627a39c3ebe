package apply

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/postern-gateway/postern/internal/effects"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/versioning"
)

// lockSQL takes shared locks of the batch's sources and then the locks of its objects, in order.
// They are advisory locks, because a row that does not exist yet cannot be locked. Only a swap
// takes a source's lock exclusively: it waits for the open batches and blocks new ones.
const lockSQL = `
WITH sources AS MATERIALIZED (SELECT count(pg_advisory_xact_lock_shared($3, s)) AS n FROM unnest($2::int[]) AS s)
SELECT count(pg_advisory_xact_lock(l)) FROM sources, unnest($1::bigint[]) AS l WHERE sources.n >= 0`

// tryLockSQL is lockSQL for a caller that does not wait for a swap. If a source's lock is taken, it
// takes no object lock and returns the number of that source.
const tryLockSQL = `
WITH sources AS MATERIALIZED (SELECT s, pg_try_advisory_xact_lock_shared($3, s) AS got FROM unnest($2::int[]) AS s)
SELECT (SELECT coalesce(min(s.s), 0)::bigint FROM sources s WHERE NOT s.got),
  (SELECT count(pg_advisory_xact_lock(l)) FROM unnest($1::bigint[]) AS l WHERE NOT EXISTS (SELECT FROM sources s
  	WHERE NOT s.got))`

// SwapError reports that the objects of some sources are being swapped. No event of these sources
// was applied; all other events of the batch were. It wraps events.ErrUnavailable: applying again
// later is safe and counts no attempt.
type SwapError struct {
	// Sources are the names of these sources.
	Sources []string
}

func (e *SwapError) Error() string {
	return fmt.Sprintf("the objects of %d sources are being swapped: their events are applied after the swap",
		len(e.Sources))
}

func (e *SwapError) Unwrap() error { return events.ErrUnavailable }

// Apply decides a batch of events under a run and commits objects, outcomes and the outbox row in
// one transaction. After nil, every event of the batch has an outcome (perhaps a failed one) and
// may be acknowledged. An error is an infrastructure failure, for example a missing privilege,
// table or column: nothing may be acknowledged, and applying again is safe. An event that cannot be
// written fails alone, because the batch is split until the event is by itself. Apply does not wait
// for a swap: after a *SwapError, all events may be acknowledged except those of its sources.
func (a *Applier) Apply(ctx context.Context, run int64, batch []stream.Event) error {
	return a.apply(ctx, Target{Run: run, failsDuringSwap: true}, batch)
}

// Target says under which run and to which table events are applied.
type Target struct {
	// Run is the run that owns the outcomes. events.LiveRun is the run of events that are applied
	// as they arrive.
	Run int64
	// RetryRun is the operator's run that applies failed and dead outcomes of Run again, each with
	// all its attempts. With 0, dead outcomes and outcomes that are not due stay as they are.
	RetryRun int64
	// Effects says that changes of Run plan effects. Changes of the live run always do.
	Effects bool
	// Into is the table of the objects. Only changes of the mirror are announced.
	Into versioning.ObjectTable
	// Type limits the target to one object type: events of objects of other types are skipped and
	// get no outcome. "" is no limit.
	Type string
	// Guard runs at the start of each transaction and may return an error to abort it. It may be
	// nil.
	Guard func(context.Context, pgx.Tx) error
	// OnWritten receives the objects that a committed transaction has written. Several goroutines
	// may call it. It may be nil.
	OnWritten func([]*versioning.Object)
	// OnAlreadyFinal receives the number of events of a committed transaction that had a final
	// outcome before. Several goroutines may call it. It may be nil.
	OnAlreadyFinal func(n int)
	// failsDuringSwap says that applying returns a *SwapError instead of waiting for a swap.
	failsDuringSwap bool
	// Log names the run in log lines. With nil no run is executed, and the processor's own logger
	// is used.
	Log *slog.Logger
}

// appliedRun returns the run whose outcomes tell which events are already part of the rows: the
// live run for the mirror, the rebuild's own run for staged objects.
func (to *Target) appliedRun() int64 {
	if to.Into == versioning.Mirror {
		return events.LiveRun
	}
	return to.Run
}

// live reports whether events are applied as they arrive.
func (to *Target) live() bool { return to.Run == events.LiveRun && to.RetryRun == 0 }

// excludes reports whether the target's type excludes an event that was read.
func (to *Target) excludes(it *item) bool {
	return to.Type != "" && it.key.Type != "" && it.key.Type != to.Type
}

// reportFinal reports how many events of a transaction had a final outcome before.
func (to *Target) reportFinal(items ...*item) {
	n := 0
	for _, it := range items {
		if it.hasFinalOutcome {
			n++
		}
	}
	if n > 0 && to.OnAlreadyFinal != nil {
		to.OnAlreadyFinal(n)
	}
}

// errGuardFailed marks a transaction that the target's guard has aborted.
var errGuardFailed = errors.New("the transaction may not begin")

// guard calls the target's guard at the start of a transaction.
func (to *Target) guard(ctx context.Context, tx pgx.Tx) error {
	if to.Guard == nil {
		return nil
	}
	if err := to.Guard(ctx, tx); err != nil {
		return fmt.Errorf("%w: %w", errGuardFailed, err)
	}
	return nil
}

// log returns the target's logger.
func (a *Applier) log(to Target) *slog.Logger { return cmp.Or(to.Log, a.Logger) }

func (a *Applier) apply(ctx context.Context, to Target, batch []stream.Event) error {
	items, err := a.readItems(ctx, a.log(to), batch)
	if err != nil {
		return err
	}
	if items = slices.DeleteFunc(items, to.excludes); len(items) == 0 {
		return nil
	}
	return a.applySplit(ctx, to, items)
}

// readItems returns the events of a batch, each once, as their providers read them.
func (a *Applier) readItems(ctx context.Context, log *slog.Logger, batch []stream.Event) ([]*item, error) {
	if err := a.fetchBodies(ctx, a.Pool, batch); err != nil {
		return nil, err
	}
	if err := a.refreshUnknownSources(ctx, batch); err != nil {
		return nil, err
	}
	items := make([]*item, 0, len(batch))
	seen := make(map[int64]bool, len(batch))
	for i := range batch {
		if !seen[batch[i].ID] { // a second delivery that arrives while the first is in progress
			seen[batch[i].ID] = true
			items = append(items, a.read(log, &batch[i]))
		}
	}
	return items, nil
}

// outOfMemory is the SQLSTATE for a lack of memory, and for a batch that takes more locks than the
// server has space for. A smaller batch may succeed.
const outOfMemory = "53200"

// refreshUnknownSources reads the sources again if this process does not know one of the batch.
func (a *Applier) refreshUnknownSources(ctx context.Context, batch []stream.Event) error {
	for i := range batch {
		if a.sources.number(batch[i].Source) == 0 {
			return unavailable(a.sources.refresh(ctx, a.Pool))
		}
	}
	return nil
}

func (a *Applier) applySplit(ctx context.Context, to Target, items []*item) error {
	err := a.commit(ctx, to, items)
	var swap *SwapError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &swap):
		return a.applyOthers(ctx, to, items, swap)
	case ctx.Err() != nil || errors.Is(err, errGuardFailed) || postgres.NeedsOperator(err) ||
		postgres.IsUnavailable(err) && (postgres.Code(err) != outOfMemory || len(items) == 1):
		return fmt.Errorf("apply %d events: %w: %w", len(items), events.ErrUnavailable, err)
	case len(items) == 1:
		it := *items[0]
		it.outcome = &outcome{status: versioning.Failed, reason: err.Error()}
		a.log(to).Warn("event failed", "event", it.ev.ID, "source", it.ev.Source, "error", err)
		return a.commit(ctx, to, []*item{&it})
	}
	swaps := &SwapError{}
	for _, half := range [][]*item{items[:len(items)/2], items[len(items)/2:]} {
		if err := a.applySplit(ctx, to, half); !swaps.mergeSwaps(err) {
			return err
		}
	}
	return swaps.orNil()
}

// applyOthers applies the items whose sources are not being swapped.
func (a *Applier) applyOthers(ctx context.Context, to Target, items []*item, swaps *SwapError) error {
	others := slices.DeleteFunc(slices.Clone(items),
		func(it *item) bool { return slices.Contains(swaps.Sources, it.ev.Source) })
	if len(others) == 0 {
		return swaps
	}
	if err := a.applySplit(ctx, to, others); !swaps.mergeSwaps(err) {
		return err
	}
	return swaps
}

// mergeSwaps adds the sources of another part's *SwapError. It returns false for any other error.
func (e *SwapError) mergeSwaps(err error) bool {
	var other *SwapError
	if err == nil || !errors.As(err, &other) {
		return err == nil
	}
	e.Sources = append(e.Sources, other.Sources...)
	return true
}

func (e *SwapError) orNil() error {
	if len(e.Sources) == 0 {
		return nil
	}
	return e
}

// appliedBatch describes one apply transaction for logs, metrics and traces.
type appliedBatch struct {
	Target
	items              []*item
	objects            map[versioning.Key]*versioning.Object
	ambiguityChanges   map[string]int
	planned            effects.PlanResult
	startedAt, endedAt time.Time
}

// commit runs one transaction: it locks, reads, decides and writes.
func (a *Applier) commit(ctx context.Context, to Target, items []*item) error {
	result := &appliedBatch{Target: to, startedAt: time.Now()}
	var announce, dirty []*versioning.Object
	var batchID int64
	err := postgres.InTx(ctx, a.Pool, "apply", a.Settings.ApplyTimeout,
		func(ctx context.Context, tx pgx.Tx) (err error) {
			result.items = copyItems(items)
			rules := a.rulesFor(to)
			if err := to.guard(ctx, tx); err != nil {
				return err
			}
			if err := a.lock(ctx, tx, &to, result.items); err != nil {
				return err
			}
			if err := a.markFinished(ctx, tx, to, result.items); err != nil {
				return err
			}
			if !to.live() {
				if err := ignoreRedacted(ctx, tx, result.items); err != nil {
					return err
				}
			}
			if result.objects, err = loadObjects(ctx, tx, to.Into, result.items, stateNeededBy(rules)); err != nil {
				return err
			}
			if err := to.loadLiveOutcomes(ctx, tx, result.items, result.objects); err != nil {
				return err
			}
			before := rowStates(result.objects)
			reloaded, err := a.reloadHistory(ctx, tx, to.appliedRun(), false, result.items, result.objects)
			if err != nil {
				return err
			}
			tracked, err := a.track(ctx, tx, rules, to, result.objects, reloaded)
			if err != nil {
				return err
			}
			all := append(reloaded, result.items...)
			dirty = reduce(all, result.objects, tracked.observe)
			if announce = nil; to.Into == versioning.Mirror {
				result.ambiguityChanges = countAmbiguityChanges(before, dirty)
				announce = slices.DeleteFunc(slices.Clone(dirty),
					func(o *versioning.Object) bool { return !o.NeedsRevision() })
			}
			if len(dirty) > 0 {
				if err := versioning.Save(ctx, tx, to.Into, dirty); err != nil {
					return err
				}
			}
			if to.Into == versioning.Mirror {
				if err := a.recordMissedChanges(ctx, tx, to.reportingItems(result.items), stateChanges(before, dirty),
					all); err != nil {
					return err
				}
			}
			if err := a.record(ctx, tx, to, result.items); err != nil {
				return err
			}
			if err := tracked.planForEvents(ctx, tx, result.items); err != nil {
				return err
			}
			if result.planned, err = tracked.plan(ctx, tx); err != nil {
				return err
			}
			batchID, err = insertChanges(ctx, tx, announce)
			return err
		})
	result.endedAt = time.Now()
	a.traceBatch(result, err)
	if err != nil {
		return err
	}
	a.applied(result)
	if len(result.planned.DueDestinations) > 0 && a.Planned != nil {
		a.Planned(result.planned.DueDestinations)
	}
	to.reportFinal(result.items...)
	if to.OnWritten != nil {
		to.OnWritten(dirty)
	}
	if len(announce) > 0 && a.Changed != nil {
		a.Changed(batchID, announce)
	}
	return nil
}

// rowState is the part of an object's row that tells its state and its ambiguity.
type rowState struct {
	ambiguous    bool
	refetchAfter int64
	state        versioning.Hash
	// absent says that the object is not stored or is deleted.
	absent bool
}

func rowStates(objs map[versioning.Key]*versioning.Object) map[versioning.Key]rowState {
	rows := make(map[versioning.Key]rowState, len(objs))
	for k, o := range objs {
		rows[k] = rowState{o.Ambiguous, o.RefetchAfter, o.State.Hash,
			o.State.Deleted || o.Version == versioning.NoVersion}
	}
	return rows
}

// countAmbiguityChanges counts how the ambiguity of objects changed between the read and the write.
func countAmbiguityChanges(before map[versioning.Key]rowState, dirty []*versioning.Object) map[string]int {
	n := map[string]int{}
	for _, o := range dirty {
		was := before[o.Key]
		if o.Ambiguous && !was.ambiguous {
			n["ambiguous"]++
		}
		if !o.Ambiguous && was.ambiguous {
			n["resolved"]++
		}
		if o.RefetchAfter != 0 && was.refetchAfter == 0 {
			n["refetch_pending"]++
		}
	}
	return n
}

// copyItems copies the items, so that a transaction that is repeated starts from the items as they
// were read.
func copyItems(items []*item) []*item {
	out := make([]*item, len(items))
	for i, it := range items {
		c := *it
		out[i] = &c
	}
	return out
}

// lock takes the locks of the items' objects in a table. It waits for a swap, unless the target
// fails during a swap.
func (a *Applier) lock(ctx context.Context, tx pgx.Tx, to *Target, items []*item) error {
	if !to.failsDuringSwap || to.Into != versioning.Mirror {
		return lock(ctx, tx, to.Into, items, to.live())
	}
	var swappedSource int64
	err := lockWith(ctx, tx, postgres.Statement{Name: "postern_try_lock", SQL: tryLockSQL}, to.Into, items, to.live(),
		func(r postgres.Row) error {
			swappedSource = r.Int64(0)
			return nil
		})
	if err == nil && swappedSource != 0 {
		return &SwapError{Sources: []string{a.sources.name(int32(swappedSource))}}
	}
	return err
}

// lock takes the locks of the items' objects in a table. Each table has its own locks, so that a
// rebuild and live events do not wait for each other. A writer to the mirror first takes the locks
// of its sources. A run also takes the locks of the event ids, because a redaction with another
// configuration may read the events as other objects. A live event does not need this: its outcome
// shows that it was redacted.
func lock(ctx context.Context, tx pgx.Tx, into versioning.ObjectTable, items []*item, live bool) error {
	return lockWith(ctx, tx, postgres.Statement{Name: "postern_lock", SQL: lockSQL}, into, items, live, nil)
}

func lockWith(ctx context.Context, tx pgx.Tx, statement postgres.Statement, into versioning.ObjectTable, items []*item,
	live bool, onRow func(postgres.Row) error) error {
	const tableSeed = 0x5851f42d4c957f2d
	var sources []int32
	keys := make([]int64, 0, 2*len(items))
	for _, it := range items {
		keys = append(keys, it.lockKey^int64(into)*tableSeed)
		if !live {
			keys = append(keys, it.ev.ID^int64(into)*tableSeed)
		}
		if into == versioning.Mirror && it.key.Type != "" && !slices.Contains(sources, it.key.Source) {
			sources = append(sources, it.key.Source)
		}
	}
	slices.Sort(keys)
	keys = slices.Compact(keys)
	slices.Sort(sources)
	p := postgres.NewParams(tx.Conn(), statement)
	defer p.Release()
	p.Array(pgtype.Int8OID, len(keys), func(i int) { p.Int64(keys[i]) })
	p.Array(pgtype.Int4OID, len(sources), func(i int) { p.Int32(sources[i]) })
	p.Int32(versioning.SourceLock)
	if _, err := p.Run(ctx, onRow); err != nil {
		return fmt.Errorf("lock %d objects: %w", len(keys), err)
	}
	return nil
}

// loadObjects reads the items' objects. It always reads the state of an object for an item that
// needsStates selects.
func loadObjects(ctx context.Context, tx pgx.Tx, from versioning.ObjectTable, items []*item,
	needsStates func(*item) bool) (map[versioning.Key]*versioning.Object, error) {
	var requests []versioning.LoadRequest
	position := map[versioning.Key]int{}
	for _, it := range items {
		if !it.isOpen() {
			continue
		}
		i, ok := position[it.key]
		if !ok {
			i = len(requests)
			position[it.key] = i
			requests = append(requests, versioning.LoadRequest{Key: it.key, MinAt: math.MaxInt64, MaxAt: math.MinInt64})
		}
		at := it.input.Version.At
		requests[i].MinAt, requests[i].MaxAt = min(requests[i].MinAt, at), max(requests[i].MaxAt, at)
		if needsStates != nil && needsStates(it) {
			requests[i].MinAt, requests[i].MaxAt = math.MinInt64, math.MaxInt64
		}
	}
	objs := make(map[versioning.Key]*versioning.Object, len(requests))
	if len(requests) == 0 {
		return objs, nil
	}
	slices.SortFunc(requests, func(a, b versioning.LoadRequest) int {
		return cmp.Or(cmp.Compare(a.Source, b.Source), cmp.Compare(a.Account, b.Account), cmp.Compare(a.Type, b.Type),
			cmp.Compare(a.ID, b.ID))
	})
	loaded, err := versioning.Load(ctx, tx, from, requests)
	for _, o := range loaded {
		objs[o.Key] = o
	}
	return objs, err
}

// fetchBodies reads from the log the bodies that are too large for a message. An event that is no
// longer in the log keeps its mark and becomes dead.
func (a *Applier) fetchBodies(ctx context.Context, db events.Reader, batch []stream.Event) error {
	var ids []int64
	at := map[int64][]int{}
	for i := range batch {
		if batch[i].BodyInLog {
			ids = append(ids, batch[i].ID)
			at[batch[i].ID] = append(at[batch[i].ID], i)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	recs, err := events.Read(ctx, db, ids, events.UnlimitedBody)
	if err != nil {
		return fmt.Errorf("%w: %w", events.ErrUnavailable, err)
	}
	for i := range recs {
		for _, j := range at[recs[i].ID] {
			retry, trace := batch[j].Retry, batch[j].Trace
			batch[j] = a.sourceEvent(&recs[i])
			batch[j].Retry, batch[j].Trace = retry, trace
		}
	}
	return nil
}
