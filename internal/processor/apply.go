package processor

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

// lockSQL takes the locks of the batch's sources, shared, and then those of its objects in order. Row locks cannot lock rows that do not exist
// yet. Only a swap takes a source's lock alone: it waits for the batches under way and holds up those that come.
const lockSQL = `
WITH sources AS MATERIALIZED (SELECT count(pg_advisory_xact_lock_shared($3, s)) AS n FROM unnest($2::int[]) AS s)
SELECT count(pg_advisory_xact_lock(l)) FROM sources, unnest($1::bigint[]) AS l WHERE sources.n >= 0`

// tryLockSQL is lockSQL for who will not wait for a swap: where it cannot have a source's lock at once it takes no object's, and says which source that is.
const tryLockSQL = `
WITH sources AS MATERIALIZED (SELECT s, pg_try_advisory_xact_lock_shared($3, s) AS got FROM unnest($2::int[]) AS s)
SELECT (SELECT coalesce(min(s.s), 0)::bigint FROM sources s WHERE NOT s.got),
  (SELECT count(pg_advisory_xact_lock(l)) FROM unnest($1::bigint[]) AS l WHERE NOT EXISTS (SELECT FROM sources s WHERE NOT s.got))`

// SwapError says that objects of some sources are being swapped, so that no event of theirs was applied; those of all others in the batch were.
// It is an events.ErrUnavailable: applying again later is safe, and costs no attempt.
type SwapError struct {
	// Sources are their numbers.
	Sources []int32
}

func (e *SwapError) Error() string {
	return fmt.Sprintf("the objects of %d sources are being swapped: their events wait", len(e.Sources))
}

func (e *SwapError) Unwrap() error { return events.ErrUnavailable }

// Apply decides a batch of events under a run and commits objects, outcomes and the change row together. When it returns nil
// every event of the batch has its outcome (a failed one too) and may be acknowledged. An error is trouble of our own: nothing may
// be acknowledged, and applying again is safe; so is a right that is missing, or a table or column, whatever the event. An event that cannot be written fails alone: the batch is split until it stands apart. It waits for
// no swap: of a *SwapError, all events but those of its sources may be acknowledged.
func (p *Processor) Apply(ctx context.Context, run int64, batch []stream.Event) error {
	return p.apply(ctx, Target{Run: run, passing: true}, batch)
}

// Target is what events are applied under and to.
type Target struct {
	// Run is whose outcomes they get; events.LiveRun is the run of what is applied as it arrives.
	Run int64
	// Again is the run by which a person has failed and dead outcomes of Run tried again, with all their attempts; 0: what is not due, or dead, stays so.
	Again int64
	// Effects: what Run changes has effects, planned by it; what the live run changes always has.
	Effects bool
	// Into is where their objects are. Only what goes into the mirror is announced.
	Into versioning.Table
	// Type: events that concern objects of another type are passed over and get no outcome; "" passes over none.
	Type string
	// Guard begins each transaction and may refuse it; nil: none does.
	Guard func(context.Context, pgx.Tx) error
	// Wrote is told which objects a committed transaction has written, by several goroutines; nil: nobody is.
	Wrote func([]*versioning.Object)
	// Found is told how many events of a committed transaction had a final outcome already, by several goroutines; nil: nobody is.
	Found func(n int)
	// passing: it does not wait for a swap.
	passing bool
	// Log names the run in what is logged; nil: nobody carries out a run, and the processor's own logger is used.
	Log *slog.Logger
}

// met is the run whose events the rows have met: of the mirror the live one.
func (to *Target) met() int64 {
	if to.Into == versioning.Mirror {
		return events.LiveRun
	}
	return to.Run
}

// live says that events are applied as they arrive.
func (to *Target) live() bool { return to.Run == events.LiveRun && to.Again == 0 }

// passes says whether an event that was read is none of the target's.
func (to *Target) passes(it *item) bool {
	return to.Type != "" && it.key.Type != "" && it.key.Type != to.Type
}

// tellFinal tells how many events of a transaction were settled before by a final outcome.
func (to *Target) tellFinal(items ...*item) {
	n := 0
	for _, it := range items {
		if it.final {
			n++
		}
	}
	if n > 0 && to.Found != nil {
		to.Found(n)
	}
}

// errGuarded: the target's guard has refused a transaction.
var errGuarded = errors.New("the transaction may not begin")

// guard begins a transaction.
func (to *Target) guard(ctx context.Context, tx pgx.Tx) error {
	if to.Guard == nil {
		return nil
	}
	if err := to.Guard(ctx, tx); err != nil {
		return fmt.Errorf("%w: %w", errGuarded, err)
	}
	return nil
}

// log is the target's logger.
func (p *Processor) log(to Target) *slog.Logger { return cmp.Or(to.Log, p.Logger) }

func (p *Processor) apply(ctx context.Context, to Target, batch []stream.Event) error {
	items, err := p.items(ctx, p.log(to), batch)
	if err != nil {
		return err
	}
	if items = slices.DeleteFunc(items, to.passes); len(items) == 0 {
		return nil
	}
	return p.applySplit(ctx, to, items)
}

// items are the events of a batch, each once, as their providers read them.
func (p *Processor) items(ctx context.Context, log *slog.Logger, batch []stream.Event) ([]*item, error) {
	if err := p.fetchBodies(ctx, p.Pool, batch); err != nil {
		return nil, err
	}
	if err := p.learnSources(ctx, batch); err != nil {
		return nil, err
	}
	items := make([]*item, 0, len(batch))
	seen := make(map[int64]bool, len(batch))
	for i := range batch {
		if !seen[batch[i].ID] { // a copy that arrives while the first is still in hand
			seen[batch[i].ID] = true
			items = append(items, p.read(log, &batch[i]))
		}
	}
	return items, nil
}

// outOfMemory is also what a batch gets that takes more locks than the server has room for; a smaller one may pass.
const outOfMemory = "53200"

// learnSources looks for the sources that this process does not know yet.
func (p *Processor) learnSources(ctx context.Context, batch []stream.Event) error {
	for i := range batch {
		if p.sources.number(batch[i].Source) == 0 {
			return unavailable(p.sources.refresh(ctx, p.Pool))
		}
	}
	return nil
}

func (p *Processor) applySplit(ctx context.Context, to Target, items []*item) error {
	err := p.commit(ctx, to, items)
	var swap *SwapError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &swap):
		return p.applyOthers(ctx, to, items, swap)
	case ctx.Err() != nil || errors.Is(err, errGuarded) || postgres.IsRefused(err) || postgres.IsUnavailable(err) && (postgres.Code(err) != outOfMemory || len(items) == 1):
		return fmt.Errorf("apply %d events: %w: %w", len(items), events.ErrUnavailable, err)
	case len(items) == 1:
		it := *items[0]
		it.outcome = &outcome{status: versioning.Failed, reason: err.Error()}
		p.log(to).Warn("event failed", "event", it.ev.ID, "source", it.ev.Source, "error", err)
		return p.commit(ctx, to, []*item{&it})
	}
	met := &SwapError{}
	for _, half := range [][]*item{items[:len(items)/2], items[len(items)/2:]} {
		if err := p.applySplit(ctx, to, half); !met.also(err) {
			return err
		}
	}
	return met.orNil()
}

// applyOthers applies what a swap does not concern.
func (p *Processor) applyOthers(ctx context.Context, to Target, items []*item, met *SwapError) error {
	others := slices.DeleteFunc(slices.Clone(items), func(it *item) bool { return slices.Contains(met.Sources, it.key.Source) })
	if len(others) == 0 {
		return met
	}
	if err := p.applySplit(ctx, to, others); !met.also(err) {
		return err
	}
	return met
}

// also adds what another part of a batch has met, and says whether that was swaps at most.
func (e *SwapError) also(err error) bool {
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

// committed is one apply transaction, for those who are told of it.
type committed struct {
	Target
	items        []*item
	objects      map[versioning.Key]*versioning.Object
	doubts       map[string]int
	planned      effects.Counted
	began, ended time.Time
}

// commit is one transaction: locks, reads, decisions, writes.
func (p *Processor) commit(ctx context.Context, to Target, items []*item) error {
	done := &committed{Target: to, began: time.Now()}
	var announce, dirty []*versioning.Object
	var batchID int64
	err := postgres.InTx(ctx, p.Pool, "apply", p.Settings.ApplyTimeout, func(ctx context.Context, tx pgx.Tx) (err error) {
		done.items = copies(items)
		rules := p.ruling(to)
		if err := to.guard(ctx, tx); err != nil {
			return err
		}
		if err := to.lock(ctx, tx, done.items); err != nil {
			return err
		}
		if err := p.settle(ctx, tx, to, done.items); err != nil {
			return err
		}
		if !to.live() {
			if err := forget(ctx, tx, done.items); err != nil {
				return err
			}
		}
		if done.objects, err = loadObjects(ctx, tx, to.Into, done.items, ruled(rules)); err != nil {
			return err
		}
		if err := to.meet(ctx, tx, done.items, done.objects); err != nil {
			return err
		}
		before := rowsOf(done.objects)
		met, err := p.recall(ctx, tx, to.met(), false, done.items, done.objects)
		if err != nil {
			return err
		}
		watched, err := p.watch(ctx, tx, rules, to, done.objects, met)
		if err != nil {
			return err
		}
		all := append(met, done.items...)
		dirty = fold(all, done.objects, watched.see)
		if announce = nil; to.Into == versioning.Mirror {
			done.doubts = doubts(before, dirty)
			announce = slices.DeleteFunc(slices.Clone(dirty), func(o *versioning.Object) bool { return !o.Grew() })
		}
		if len(dirty) > 0 {
			if err := versioning.Save(ctx, tx, to.Into, dirty); err != nil {
				return err
			}
		}
		if to.Into == versioning.Mirror {
			if err := p.keepGaps(ctx, tx, to.telling(done.items), shifts(before, dirty), all); err != nil {
				return err
			}
		}
		if err := p.record(ctx, tx, to, done.items); err != nil {
			return err
		}
		if err := watched.happened(ctx, tx, done.items); err != nil {
			return err
		}
		if done.planned, err = watched.plan(ctx, tx); err != nil {
			return err
		}
		batchID, err = keepChanges(ctx, tx, announce)
		return err
	})
	done.ended = time.Now()
	p.traceBatch(done, err)
	if err != nil {
		return err
	}
	p.applied(done)
	if len(done.planned.Due) > 0 && p.Planned != nil {
		p.Planned(done.planned.Due)
	}
	to.tellFinal(done.items...)
	if to.Wrote != nil {
		to.Wrote(dirty)
	}
	if len(announce) > 0 {
		p.changes.offer(batchID, announce)
	}
	return nil
}

// seen is what an object's row says of its state, and of doubt.
type seen struct {
	ambiguous bool
	lookAfter int64
	state     versioning.Hash
	// gone: there is no such object, or not any more.
	gone bool
}

func rowsOf(objs map[versioning.Key]*versioning.Object) map[versioning.Key]seen {
	rows := make(map[versioning.Key]seen, len(objs))
	for k, o := range objs {
		rows[k] = seen{o.Ambiguous, o.LookAfter, o.State.Hash, o.State.Deleted || o.Version == versioning.NoVersion}
	}
	return rows
}

// doubts counts how doubt changed from what was read to what is written.
func doubts(before map[versioning.Key]seen, dirty []*versioning.Object) map[string]int {
	n := map[string]int{}
	for _, o := range dirty {
		was := before[o.Key]
		if o.Ambiguous && !was.ambiguous {
			n["ambiguous"]++
		}
		if !o.Ambiguous && was.ambiguous {
			n["settled"]++
		}
		if o.LookAfter != 0 && was.lookAfter == 0 {
			n["look_owed"]++
		}
	}
	return n
}

// copies lets a transaction that is tried again start from the items as they were read.
func copies(items []*item) []*item {
	out := make([]*item, len(items))
	for i, it := range items {
		c := *it
		out[i] = &c
	}
	return out
}

// lock takes the locks of the items' objects in a table, having waited for a swap unless the target passes by it.
func (to *Target) lock(ctx context.Context, tx pgx.Tx, items []*item) error {
	if !to.passing || to.Into != versioning.Mirror {
		return lock(ctx, tx, to.Into, items, to.live())
	}
	var swapped int64
	err := lockWith(ctx, tx, postgres.Statement{Name: "postern_try_lock", SQL: tryLockSQL}, to.Into, items, to.live(), func(r postgres.Row) error {
		swapped = r.Int64(0)
		return nil
	})
	if err == nil && swapped != 0 {
		return &SwapError{Sources: []int32{int32(swapped)}}
	}
	return err
}

// lock takes the locks of the items' objects in a table; each table's are others, so that a rebuild and live events do not wait for each
// other. Whoever writes into the mirror has the locks of its sources first. Runs have those of the events as well: who redacts them may read them otherwise, by
// another configuration. A live event has its outcome to tell.
func lock(ctx context.Context, tx pgx.Tx, into versioning.Table, items []*item, live bool) error {
	return lockWith(ctx, tx, postgres.Statement{Name: "postern_lock", SQL: lockSQL}, into, items, live, nil)
}

func lockWith(ctx context.Context, tx pgx.Tx, statement postgres.Statement, into versioning.Table, items []*item, live bool, each func(postgres.Row) error) error {
	const apart = 0x5851f42d4c957f2d
	var sources []int32
	keys := make([]int64, 0, 2*len(items))
	for _, it := range items {
		keys = append(keys, it.lock^int64(into)*apart)
		if !live {
			keys = append(keys, it.ev.ID^int64(into)*apart)
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
	if _, err := p.Run(ctx, each); err != nil {
		return fmt.Errorf("lock %d objects: %w", len(keys), err)
	}
	return nil
}

// loadObjects reads the items' objects; those for which whole says so with their states.
func loadObjects(ctx context.Context, tx pgx.Tx, from versioning.Table, items []*item, whole func(*item) bool) (map[versioning.Key]*versioning.Object, error) {
	var wanted []versioning.Wanted
	place := map[versioning.Key]int{}
	for _, it := range items {
		if !it.open() {
			continue
		}
		i, ok := place[it.key]
		if !ok {
			i = len(wanted)
			place[it.key] = i
			wanted = append(wanted, versioning.Wanted{Key: it.key, Lo: math.MaxInt64, Hi: math.MinInt64})
		}
		at := it.input.Version.At
		wanted[i].Lo, wanted[i].Hi = min(wanted[i].Lo, at), max(wanted[i].Hi, at)
		if whole != nil && whole(it) {
			wanted[i].Lo, wanted[i].Hi = math.MinInt64, math.MaxInt64
		}
	}
	objs := make(map[versioning.Key]*versioning.Object, len(wanted))
	if len(wanted) == 0 {
		return objs, nil
	}
	slices.SortFunc(wanted, func(a, b versioning.Wanted) int {
		return cmp.Or(cmp.Compare(a.Source, b.Source), cmp.Compare(a.Account, b.Account), cmp.Compare(a.Type, b.Type), cmp.Compare(a.ID, b.ID))
	})
	loaded, err := versioning.Load(ctx, tx, from, wanted)
	for _, o := range loaded {
		objs[o.Key] = o
	}
	return objs, err
}

// fetchBodies reads from the log what was too large to travel. What is no longer there stays marked and fails.
func (p *Processor) fetchBodies(ctx context.Context, db events.Reader, batch []stream.Event) error {
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
	recs, err := events.Read(ctx, db, ids, events.AnyBody)
	if err != nil {
		return fmt.Errorf("%w: %w", events.ErrUnavailable, err)
	}
	for i := range recs {
		for _, j := range at[recs[i].ID] {
			retry, trace := batch[j].Retry, batch[j].Trace
			batch[j] = p.sourceEvent(&recs[i])
			batch[j].Retry, batch[j].Trace = retry, trace
		}
	}
	return nil
}
