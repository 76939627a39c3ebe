package processor

import (
	"context"

	"github.com/postern-gateway/postern/internal/effects"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/versioning"
)

// Hindsight says what rules would have wanted of events that some objects have met, in the order of the events' ids: they see the changes of what is certain as they do live.
type Hindsight struct {
	r    *Refold
	objs map[int64]*versioning.Object
	from int64
	w    *transitions
}

// Hindsight begins with objects as their bases have them, by the hashes of their keys. Rules see what events from an id on have changed.
func (r *Refold) Hindsight(rules *effects.Rules, objs map[int64]*versioning.Object, from int64) *Hindsight {
	w := &transitions{rules: rules, objects: map[versioning.Key]*followed{}}
	for _, o := range objs {
		w.objects[o.Key] = &followed{key: o.Key, source: r.p.sources.name(o.Key.Source), certain: o.State, there: o.Version != versioning.NoVersion, ambiguous: o.Ambiguous}
	}
	return &Hindsight{r, objs, from, w}
}

// Follow joins further events into the objects, which come in the order of their ids, and gives visit what the rules want, as much at a time as follows from what is read of the events at once, so that little of it is in
// memory. met is as that of Refold.Fold.
func (h *Hindsight) Follow(ctx context.Context, db events.Reader, met map[Met]bool, ids []int64, visit func([]effects.Intent) error) (odd []Odd, err error) {
	return h.r.each(ctx, db, h.objs, met, ids, false, func(items []*item, byKey map[versioning.Key]*versioning.Object) error {
		for _, it := range items {
			h.w.planned = it.ev.ID >= h.from
			fold([]*item{it}, byKey, h.w.see)
			if h.w.planned && h.w.happens(it) {
				h.w.ask(it)
			}
			if f := h.w.of(it.key); f != nil && f.again { // a person's look: what it ends in is one change
				h.w.pass(f, true)
				f.again = false
			}
		}
		wanted := h.w.intents
		h.w.intents, h.w.order = nil, nil
		if len(wanted) == 0 {
			return nil
		}
		return visit(wanted)
	})
}
