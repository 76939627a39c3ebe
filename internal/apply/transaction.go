package apply

import (
	"context"
	"math"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/effects"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/versioning"
)

// transaction applies the events of a batch. If PostgreSQL aborts it, it is repeated.
type transaction struct {
	*Applier
	to    Target
	tx    pgx.Tx
	batch []*event
	// holdsLocks: the caller's transaction holds locks already.
	holdsLocks bool
	// rules are the rules that see the changes, nil if there are none. They may be replaced at any
	// time, so a transaction loads them once.
	rules *effects.Rules
	// objects are the events' objects, before is the part of them that tells what changed.
	objects map[versioning.Key]*versioning.Object
	before  map[versioning.Key]rowState
	// reloaded are the events that are reduced again, because an operator overwrites their object.
	reloaded []*event
	// observed is what the rules see.
	observed *transitions
	// written are the objects to write, announced those whose revision grows.
	written, announced []*versioning.Object
	ambiguityChanges   map[string]int
	planned            effects.PlanResult
	// changeBatch is the row of the outbox that announces the changes.
	changeBatch        int64
	startedAt, endedAt time.Time
}

// commit applies events in one transaction, and reports it.
func (a *Applier) commit(ctx context.Context, to Target, batch []*event) error {
	t := &transaction{}
	began := time.Now()
	err := postgres.InTx(ctx, a.Pool, "apply", a.Settings.ApplyTimeout, func(ctx context.Context, tx pgx.Tx) error {
		*t = transaction{Applier: a, to: to, tx: tx, batch: copyBatch(batch), startedAt: began}
		return t.run(ctx)
	})
	t.endedAt = time.Now()
	a.traceBatch(t, err)
	if err == nil {
		t.report()
	}
	return err
}

// ApplyInTx applies events of the log to a table separate from the mirror, in the caller's
// transaction. It needs no other connection, so the caller may hold locks, and waits for none. The
// target has no guard. An event that cannot be read or applied gets an outcome that says so; after
// an error the caller must roll back. Errors: ErrLocked.
func (a *Applier) ApplyInTx(ctx context.Context, tx pgx.Tx, to Target, ids []int64) error {
	recs, err := events.Read(ctx, tx, ids, events.UnlimitedBody)
	if err != nil {
		return err
	}
	evs := make([]stream.Event, len(recs))
	for i := range recs {
		evs[i] = a.sourceEvent(&recs[i])
	}
	batch, err := a.readBatch(ctx, evs)
	if batch = slices.DeleteFunc(batch, to.excludes); err != nil || len(batch) == 0 {
		return err
	}
	return (&transaction{Applier: a, to: to, tx: tx, batch: batch, holdsLocks: true, startedAt: time.Now()}).run(ctx)
}

// run takes the steps of a transaction, for every target in the same order. Each step says for
// which targets it does nothing.
func (t *transaction) run(ctx context.Context) error {
	for _, step := range []func(context.Context) error{
		t.checkGuard,
		t.lockObjects,
		t.skipFinished,
		t.skipRedacted,
		t.loadObjects,
		t.loadLiveOutcomes,
		t.reloadOverwritten,
		t.observeTransitions,
		t.decide,
		t.writeObjects,
		t.requestRefetches,
		t.recordOutcomes,
		t.planEffects,
		t.insertChanges,
	} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// checkGuard ends the transaction of a rebuild that has lost its lease.
func (t *transaction) checkGuard(ctx context.Context) error { return t.to.guard(ctx, t.tx) }

// lockObjects locks the sources and the objects of the events.
func (t *transaction) lockObjects(ctx context.Context) error {
	if t.holdsLocks {
		return tryLock(ctx, t.tx, t.to.table(), t.batch)
	}
	return lock(ctx, t.tx, t.to.table(), t.batch, !t.to.live())
}

// skipFinished marks events that have a final outcome, or a failed one that is not due.
func (t *transaction) skipFinished(ctx context.Context) error {
	return t.markFinished(ctx, t.tx, t.to, t.batch)
}

// skipRedacted makes events ignored that were redacted after they were read. A live one has an
// outcome then.
func (t *transaction) skipRedacted(ctx context.Context) error {
	if t.to.live() {
		return nil
	}
	return ignoreRedacted(ctx, t.tx, t.batch)
}

// loadObjects reads the events' objects.
func (t *transaction) loadObjects(ctx context.Context) (err error) {
	if t.to.toMirror() {
		t.rules = t.Rules()
	}
	t.objects, err = loadObjects(ctx, t.tx, t.to.table(), t.batch, stateNeededBy(t.rules))
	t.before = rowStates(t.objects)
	return err
}

// loadLiveOutcomes finds events of a replay that were applied live before.
func (t *transaction) loadLiveOutcomes(ctx context.Context) error {
	return t.to.loadLiveOutcomes(ctx, t.tx, t.batch, t.objects)
}

// reloadOverwritten reads the events again that are part of an object and were received since a
// refetch began that overwrites the object now.
func (t *transaction) reloadOverwritten(ctx context.Context) (err error) {
	t.reloaded, err = t.reloadHistory(ctx, t.tx, t.to.appliedRun(), false, t.batch, t.objects)
	return err
}

// observeTransitions starts to observe the objects that rules of effects concern.
func (t *transaction) observeTransitions(ctx context.Context) (err error) {
	t.observed, err = t.track(ctx, t.tx, t.rules, t.to, t.objects, t.reloaded)
	return err
}

// decide applies each event to its object in memory, with one write for each object.
func (t *transaction) decide(context.Context) error {
	t.written = reduce(slices.Concat(t.reloaded, t.batch), t.objects, t.observed.observe)
	if t.to.toMirror() {
		t.ambiguityChanges = countAmbiguityChanges(t.before, t.written)
		t.announced = slices.DeleteFunc(slices.Clone(t.written),
			func(o *versioning.Object) bool { return !o.NeedsRevision() })
	}
	return nil
}

// writeObjects writes the objects that changed. The statement compares the versions again.
func (t *transaction) writeObjects(ctx context.Context) error {
	if len(t.written) == 0 {
		return nil
	}
	return versioning.Save(ctx, t.tx, t.to.table(), t.written)
}

// requestRefetches requests refetches of objects of the mirror that missed a change, as live events
// report it, or that a late event has changed.
func (t *transaction) requestRefetches(ctx context.Context) error {
	if !t.to.toMirror() {
		return nil
	}
	var reporting []*event
	if t.to.live() {
		reporting = t.batch
	}
	return t.recordMissedChanges(ctx, t.tx, reporting, stateChanges(t.before, t.written),
		slices.Concat(t.reloaded, t.batch))
}

// recordOutcomes writes one outcome for each event that is not finished.
func (t *transaction) recordOutcomes(ctx context.Context) error {
	return t.record(ctx, t.tx, t.to, t.batch)
}

// planEffects inserts the effects that rules plan for the events and for the changes. It waits for
// other transactions, so it comes after all other steps that do.
func (t *transaction) planEffects(ctx context.Context) (err error) {
	if err := t.observed.planForEvents(ctx, t.tx, t.batch); err != nil {
		return err
	}
	t.planned, err = t.observed.plan(ctx, t.tx)
	return err
}

// insertChanges inserts the row of the outbox that announces the changes of the mirror.
func (t *transaction) insertChanges(ctx context.Context) (err error) {
	forward := slices.ContainsFunc(t.announced, func(o *versioning.Object) bool {
		return t.rules.HasForwards(t.sources.name(o.Source), o.Type)
	})
	t.changeBatch, err = insertChanges(ctx, t.tx, t.announced, forward)
	return err
}

// report counts and logs a committed transaction, and passes on its changes and effects.
func (t *transaction) report() {
	t.count()
	if len(t.planned.DueDestinations) > 0 && t.Planned != nil {
		t.Planned(t.planned.DueDestinations)
	}
	t.to.countFinal(t.batch...)
	if len(t.announced) > 0 && t.Changed != nil {
		t.Changed(t.changeBatch, t.announced)
	}
}

// rowState is the part of an object's row that tells its state and its ambiguity.
type rowState struct {
	ambiguous    bool
	refetchAfter int64
	state        versioning.Hash
	// absent says that the object is not stored or is deleted.
	absent bool
}

// rowStates returns the states of objects.
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

// copyBatch copies the events, so that a transaction that is repeated starts from the events as
// they were read.
func copyBatch(batch []*event) []*event {
	out := make([]*event, len(batch))
	for i, e := range batch {
		c := *e
		out[i] = &c
	}
	return out
}

// loadObjects reads the events' objects. It always reads the state of an object for an event that
// needsStates selects.
func loadObjects(ctx context.Context, tx pgx.Tx, from versioning.ObjectTable, batch []*event,
	needsStates func(*event) bool) (map[versioning.Key]*versioning.Object, error) {
	var requests []versioning.LoadRequest
	position := map[versioning.Key]int{}
	for _, e := range batch {
		if !e.isOpen() {
			continue
		}
		i, ok := position[e.key]
		if !ok {
			i = len(requests)
			position[e.key] = i
			requests = append(requests, versioning.LoadRequest{Key: e.key, MinAt: math.MaxInt64, MaxAt: math.MinInt64})
		}
		at := e.input.Version.At
		requests[i].MinAt, requests[i].MaxAt = min(requests[i].MinAt, at), max(requests[i].MaxAt, at)
		if needsStates != nil && needsStates(e) {
			requests[i].MinAt, requests[i].MaxAt = math.MinInt64, math.MaxInt64
		}
	}
	objs := make(map[versioning.Key]*versioning.Object, len(requests))
	if len(requests) == 0 {
		return objs, nil
	}
	slices.SortFunc(requests, func(a, b versioning.LoadRequest) int { return a.Compare(b.Key) })
	loaded, err := versioning.Load(ctx, tx, from, requests)
	for _, o := range loaded {
		objs[o.Key] = o
	}
	return objs, err
}
