package apply

import (
	"context"

	"github.com/postern-gateway/postern/internal/effects"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/versioning"
)

// Backtest evaluates which effects rules would have planned for past events of some objects, in the
// order of the events' ids. The rules see the same changes of certain states as they do live.
type Backtest struct {
	r    *Reducer
	objs map[int64]*versioning.Object
	from int64
	w    *transitions
}

// Backtest starts with objects as their retained rows have them, by the hashes of their keys. Rules
// see the changes by events from an id on.
func (r *Reducer) Backtest(rules *effects.Rules, objs map[int64]*versioning.Object, from int64) *Backtest {
	w := &transitions{rules: rules, objects: map[versioning.Key]*trackedObject{}}
	for _, o := range objs {
		w.objects[o.Key] = &trackedObject{key: o.Key, source: r.a.sources.name(o.Key.Source), certain: o.State,
			existed: o.Version != versioning.NoVersion, ambiguous: o.Ambiguous}
	}
	return &Backtest{r, objs, from, w}
}

// Evaluate applies further events, in the order of their ids, to the objects. It passes the planned
// effects to visit in small portions, to bound the memory. applied has the meaning that it has in
// Reducer.Reduce.
func (h *Backtest) Evaluate(ctx context.Context, db events.Reader, applied map[AppliedEvent]bool, ids []int64,
	visit func([]effects.PlannedEffect) error) (anomalies []Anomaly, err error) {
	return h.r.forEachBatch(ctx, db, h.objs, applied, ids, false,
		func(batch []*event, byKey map[versioning.Key]*versioning.Object) error {
			for _, e := range batch {
				h.w.plansEffects = e.ev.ID >= h.from
				reduce([]*event{e}, byKey, h.w.observe)
				if h.w.plansEffects && h.w.isRuleEvent(e) {
					h.w.planForEvent(e)
				}
				// an overwriting refetch: only its final state is a change
				if f := h.w.tracked(e.key); f != nil && f.reapplied {
					h.w.emit(f, true)
					f.reapplied = false
				}
			}
			planned := h.w.plannedEffects
			h.w.plannedEffects, h.w.order = nil, nil
			if len(planned) == 0 {
				return nil
			}
			return visit(planned)
		})
}
