package apply

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/effects"
	"github.com/postern-gateway/postern/internal/effects/rules"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/versioning"
)

// Rules about events are evaluated for each event when it gets its outcome, whether it changes its
// object or not.

// hadOutcomeSQL finds events that were applied live or by another replay. A rebuild does not count:
// its staged objects are not part of the mirror until the swap.
const hadOutcomeSQL = `
SELECT DISTINCT o.event_id FROM outcomes o
WHERE o.event_id = ANY($1::bigint[]) AND o.run <> $2 AND o.status IN ('applied', 'unchanged', 'stale', 'ambiguous')
  AND (o.run = 0 OR NOT EXISTS (SELECT FROM runs r WHERE r.run = o.run AND r.job <> 'replay'))`

// planForEvents evaluates the rules about events, once for each event. An event that a run applies
// again was evaluated at its arrival. An event that a replay has applied, even without effects, is
// not evaluated when it arrives later.
func (w *transitions) planForEvents(ctx context.Context, tx pgx.Tx, batch []*event) error {
	if w == nil || !w.plansEffects {
		return nil
	}
	var all []*event
	var ids []int64
	for _, e := range batch {
		if w.isRuleEvent(e) {
			all, ids = append(all, e), append(ids, e.ev.ID)
		}
	}
	had := map[int64]bool{}
	if len(ids) > 0 {
		var id int64
		if err := postgres.ForEach(ctx, tx, hadOutcomeSQL, []any{ids, w.run}, []any{&id},
			func() error { had[id] = true; return nil }); err != nil {
			return fmt.Errorf("read other outcomes of %d events: %w", len(ids), err)
		}
	}
	for _, e := range all {
		if !had[e.ev.ID] {
			w.planForEvent(e)
		}
	}
	return nil
}

// isRuleEvent reports whether rules are evaluated for an event. This is true if a sender delivered
// it, so that it is no refetch, and if this transaction applies it to its object, whatever the
// result.
func (w *transitions) isRuleEvent(e *event) bool {
	if e.finished || e.outcome == nil || isRefetch(e.ev) || !w.rules.HasEventRules(e.ev.Source, e.key.Type) {
		return false
	}
	switch e.outcome.status {
	case versioning.Applied, versioning.Unchanged, versioning.Stale, versioning.Ambiguous:
		return true
	case versioning.Ignored, versioning.Failed, versioning.Dead:
	}
	return false
}

// planForEvent adds the effects that rules plan for an event.
func (w *transitions) planForEvent(e *event) {
	t := effects.Transition{On: rules.OnEvent, Source: e.ev.Source, Number: e.key.Source, Account: e.key.Account,
		Type: e.key.Type, ID: e.key.ID, Event: eventOf(e.ev)}
	if e.input.Partial == "" {
		t.New, t.Deleted = e.input.State.JSON, e.input.State.Deleted
	}
	w.plannedEffects = append(w.plannedEffects, w.rules.Evaluate(&t)...)
}
