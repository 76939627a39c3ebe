package apply

import (
	"cmp"
	"context"
	"log/slog"
	"slices"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/versioning"
)

// Reducer computes the objects that stored events lead to, as Applier.Reduce does, but in memory.
// It writes nothing. Several goroutines may use it.
type Reducer struct{ a *Applier }

// NewReducer returns a Reducer that reads events with these configured sources, by name. known are
// all sources that the log has events of.
func NewReducer(sources map[string]Source, known events.Sources) (*Reducer, error) {
	a, err := New(Options{Sources: sources, Known: known, Settings: DefaultSettings,
		Logger: slog.New(slog.DiscardHandler)})
	return &Reducer{a}, err
}

// CanRead reports whether events of a source can be read.
func (r *Reducer) CanRead(source int32) bool {
	_, ok := r.a.CachedSource(source)
	return ok
}

// AppliedEvent says that an event is part of an object, which is given by the hash of its key.
type AppliedEvent struct{ Event, Object int64 }

// Anomaly is an event that is part of an object's history but cannot be applied to it now.
type Anomaly struct {
	AppliedEvent
	// Unreadable says that the content is unknown, because the configuration of its source is
	// missing or incomplete here.
	Unreadable bool
	Reason     string
}

// Reduce applies events to objects, given by the hashes of their keys. A value of applied says
// whether the event's own state is part of the object, and not only its request of a refetch.
// With overwritesOnly it applies only overwriting refetches. A caller does this first, because such
// a refetch discards the events of its object that were received before it, even those with a
// greater id. Events that are redacted or no longer in the log are skipped.
func (r *Reducer) Reduce(ctx context.Context, db events.Reader, objs map[int64]*versioning.Object,
	applied map[AppliedEvent]bool, ids []int64, overwritesOnly bool) (anomalies []Anomaly, err error) {
	return r.forEachBatch(ctx, db, objs, applied, ids, overwritesOnly,
		func(batch []*event, byKey map[versioning.Key]*versioning.Object) error {
			reduce(batch, byKey, nil)
			return nil
		})
}

// forEachBatch reads events that are part of objects and calls do with the events to apply, some at
// a time. In each call of do, the events are in the order of their ids.
func (r *Reducer) forEachBatch(ctx context.Context, db events.Reader, objs map[int64]*versioning.Object,
	applied map[AppliedEvent]bool, ids []int64, overwritesOnly bool,
	do func([]*event, map[versioning.Key]*versioning.Object) error) (anomalies []Anomaly, err error) {
	objectsOf := map[int64][]int64{}
	for m := range applied {
		objectsOf[m.Event] = append(objectsOf[m.Event], m.Object)
	}
	for some := range slices.Chunk(ids, r.a.Settings.Batch) {
		recs, err := events.Read(ctx, db, some, maxInlineBody)
		if err != nil {
			return nil, err
		}
		slices.SortFunc(recs, func(a, b events.Record) int { return cmp.Compare(a.ID, b.ID) })
		evs := make([]stream.Event, len(recs))
		for i := range recs {
			evs[i] = r.a.sourceEvent(&recs[i])
		}
		for len(evs) > 0 {
			n := batchSize(evs, len(evs))
			if err := r.a.fetchBodies(ctx, db, evs[:n]); err != nil {
				return nil, err
			}
			found, batch, byKey := r.selectBatch(objs, applied, objectsOf, evs[:n], overwritesOnly)
			if err := do(batch, byKey); err != nil {
				return nil, err
			}
			anomalies = append(anomalies, found...)
			evs = evs[n:]
		}
	}
	return anomalies, nil
}

// selectBatch selects the events to apply to objects, and returns the anomalies.
func (r *Reducer) selectBatch(objs map[int64]*versioning.Object, applied map[AppliedEvent]bool,
	objectsOf map[int64][]int64, evs []stream.Event,
	overwritesOnly bool) (anomalies []Anomaly, batch []*event, byKey map[versioning.Key]*versioning.Object) {
	byKey = map[versioning.Key]*versioning.Object{}
	for i := range evs {
		e := r.a.read(&evs[i])
		ownState, selected := applied[AppliedEvent{e.ev.ID, e.lockKey}]
		selected = selected && e.isOpen() && (ownState || e.refetchPending) && objs[e.lockKey].Key == e.key
		for _, object := range objectsOf[e.ev.ID] {
			if (!selected || object != e.lockKey) && !e.ev.Redacted && applied[AppliedEvent{e.ev.ID, object}] {
				anomalies = append(anomalies, e.anomaly(object))
			}
		}
		if selected && (!overwritesOnly || e.input.OverwriteAt != 0) {
			byKey[e.key] = objs[e.lockKey]
			batch = append(batch, e)
		}
	}
	return anomalies, batch, byKey
}

// anomaly says why an event of an object's history is not applied to it.
func (e *event) anomaly(object int64) Anomaly {
	o := Anomaly{AppliedEvent: AppliedEvent{e.ev.ID, object},
		Reason: "is read as one of another object now: " + e.key.Type + " " + e.key.ID}
	if e.outcome != nil {
		o.Unreadable = e.outcome.status == versioning.Failed
		o.Reason = "is " + string(e.outcome.status) + " as it is read now: " + e.outcome.reason
	}
	return o
}

// RefetchFingerprint returns the fingerprint of a stored refetch. ok is false if the event is no
// refetch, or cannot be read here.
func (r *Reducer) RefetchFingerprint(rec *events.Record) (sum [16]byte, ok bool) {
	ev := r.a.sourceEvent(rec)
	if !isRefetch(&ev) {
		return sum, false
	}
	e := r.a.read(&ev)
	return [16]byte(e.input.State.ExactHash[:16]), e.outcome == nil
}
