package processor

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/effects"
	"github.com/postern-gateway/postern/internal/effects/rules"
	"github.com/postern-gateway/postern/internal/versioning"
)

// Rules about events are asked about each event when it gets its outcome, whether it changes its object or not.

// hadOutcomeSQL finds events that happened, as they arrived or in a replay other than this one. What a rebuild makes anew is not the mirror's before its end, and happens beside it.
const hadOutcomeSQL = `
SELECT DISTINCT o.event_id FROM outcomes o
WHERE o.event_id = ANY($1::bigint[]) AND o.run <> $2 AND o.status IN ('applied', 'unchanged', 'stale', 'ambiguous')
  AND (o.run = 0 OR NOT EXISTS (SELECT FROM runs r WHERE r.run = o.run AND r.job <> 'replay'))`

// happened asks rules about events, of each once: what a run applies again happened as it arrived, and what a replay applied, be it one that has no effects on purpose, does not happen when it arrives later.
func (w *transitions) happened(ctx context.Context, tx pgx.Tx, items []*item) error {
	if w == nil || !w.planned {
		return nil
	}
	var all []*item
	var ids []int64
	for _, it := range items {
		if w.happens(it) {
			all, ids = append(all, it), append(ids, it.ev.ID)
		}
	}
	had := map[int64]bool{}
	if len(ids) > 0 {
		rows, err := tx.Query(ctx, hadOutcomeSQL, ids, w.run)
		if err != nil {
			return fmt.Errorf("read other outcomes of %d events: %w", len(ids), err)
		}
		var id int64
		if _, err := pgx.ForEachRow(rows, []any{&id}, func() error { had[id] = true; return nil }); err != nil {
			return fmt.Errorf("read other outcomes of %d events: %w", len(ids), err)
		}
	}
	for _, it := range all {
		if !had[it.ev.ID] {
			w.ask(it)
		}
	}
	return nil
}

// happens says whether a rule is to be asked about an event: what a sender has told, that has met its object now. A look of ours is no event of a sender.
func (w *transitions) happens(it *item) bool {
	if it.settled || it.outcome == nil || isLook(it.ev) || !w.rules.Ask(it.ev.Source, it.key.Type) {
		return false
	}
	switch it.outcome.status {
	case versioning.Applied, versioning.Unchanged, versioning.Stale, versioning.Ambiguous:
		return true
	case versioning.Ignored, versioning.Failed, versioning.Dead:
	}
	return false
}

// ask notes what rules want of an event.
func (w *transitions) ask(it *item) {
	t := effects.Transition{On: rules.OnEvent, Source: it.ev.Source, Number: it.key.Source, Account: it.key.Account, Type: it.key.Type, ID: it.key.ID, Event: eventOf(it.ev)}
	if it.input.Partial == "" {
		t.New, t.Deleted = it.input.State.JSON, it.input.State.Deleted
	}
	w.intents = append(w.intents, w.rules.Intents(&t)...)
}
