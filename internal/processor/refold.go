package processor

import (
	"cmp"
	"context"
	"log/slog"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/versioning"
)

// Refold says what objects ought to be: it joins stored events into them as Fold joins them into the bases, in memory, and writes nothing.
// It may be used by several goroutines.
type Refold struct{ p *Processor }

// NewRefold returns one that reads events as the sources, by name, are configured here. known are all sources that the log has events of.
func NewRefold(sources map[string]Source, known events.Sources) (*Refold, error) {
	p, err := New(Options{Sources: sources, Known: known, Settings: DefaultSettings, Logger: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry()})
	return &Refold{p}, err
}

// Reads says whether a source's events can be read.
func (r *Refold) Reads(source int32) bool {
	_, ok := r.p.Knows(source)
	return ok
}

// Met is that an object, by the hash of its key, has met an event.
type Met struct{ Event, Object int64 }

// Odd is an event that an object has met and that says nothing of it now.
type Odd struct {
	Met
	// Unreadable: nobody knows what it says, since its source is not configured here as it must be.
	Unreadable bool
	Reason     string
}

// Fold joins events into objects, by the hashes of their keys, that have met them. The value of met says whether the event's own state entered the object, and not only the look
// that it owes. Looks that a person had settle an object count wherever they come: settling joins these alone, and goes before all other events of such objects. What is not in
// the log any more, or redacted, is left out.
func (r *Refold) Fold(ctx context.Context, db events.Reader, objs map[int64]*versioning.Object, met map[Met]bool, ids []int64, settling bool) (odd []Odd, err error) {
	return r.each(ctx, db, objs, met, ids, settling, func(items []*item, byKey map[versioning.Key]*versioning.Object) error {
		fold(items, byKey, nil)
		return nil
	})
}

// each reads events that objects have met, and gives do what is to be joined into them, some at a time, in the order of their ids where ids are.
func (r *Refold) each(ctx context.Context, db events.Reader, objs map[int64]*versioning.Object, met map[Met]bool, ids []int64, settling bool,
	do func([]*item, map[versioning.Key]*versioning.Object) error) (odd []Odd, err error) {
	of := map[int64][]int64{}
	for m := range met {
		of[m.Event] = append(of[m.Event], m.Object)
	}
	for some := range slices.Chunk(ids, r.p.Settings.Batch) {
		recs, err := events.Read(ctx, db, some, smallBody)
		if err != nil {
			return nil, err
		}
		slices.SortFunc(recs, func(a, b events.Record) int { return cmp.Compare(a.ID, b.ID) })
		evs := make([]stream.Event, len(recs))
		for i := range recs {
			evs[i] = r.p.sourceEvent(&recs[i])
		}
		for len(evs) > 0 {
			n := atOnce(evs, len(evs))
			if err := r.p.fetchBodies(ctx, db, evs[:n]); err != nil {
				return nil, err
			}
			some, items, byKey := r.joins(objs, met, of, evs[:n], settling)
			if err := do(items, byKey); err != nil {
				return nil, err
			}
			odd = append(odd, some...)
			evs = evs[n:]
		}
	}
	return odd, nil
}

// joins are what of some events is to be joined into which objects, and what is odd.
func (r *Refold) joins(objs map[int64]*versioning.Object, met map[Met]bool, of map[int64][]int64, evs []stream.Event, settling bool) (odd []Odd, items []*item, byKey map[versioning.Key]*versioning.Object) {
	byKey = map[versioning.Key]*versioning.Object{}
	for i := range evs {
		it := r.p.read(r.p.Logger, &evs[i])
		entered, joins := met[Met{it.ev.ID, it.lock}]
		joins = joins && it.open() && (entered || it.owesLook) && objs[it.lock].Key == it.key
		for _, object := range of[it.ev.ID] {
			if (!joins || object != it.lock) && !it.ev.Redacted && met[Met{it.ev.ID, object}] {
				odd = append(odd, it.odd(object))
			}
		}
		if joins && (!settling || it.input.Settles != 0) {
			byKey[it.key] = objs[it.lock]
			items = append(items, it)
		}
	}
	return odd, items, byKey
}

// odd says why an item that an object has met is not joined into it.
func (it *item) odd(object int64) Odd {
	o := Odd{Met: Met{it.ev.ID, object}, Reason: "is read as one of another object now: " + it.key.Type + " " + it.key.ID}
	if it.outcome != nil {
		o.Unreadable, o.Reason = it.outcome.status == versioning.Failed, "is "+string(it.outcome.status)+" as it is read now: "+it.outcome.reason
	}
	return o
}

// LookFingerprint is the fingerprint of a stored look; ok is false where the event is none, or cannot be read here.
func (r *Refold) LookFingerprint(rec *events.Record) (sum [16]byte, ok bool) {
	ev := r.p.sourceEvent(rec)
	if !isLook(&ev) {
		return sum, false
	}
	it := r.p.read(r.p.Logger, &ev)
	return [16]byte(it.input.State.Exact[:16]), it.outcome == nil
}
