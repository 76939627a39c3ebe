package replay

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/effects"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/versioning"
)

// Counts of a run with Force: of the effects of its events, those that it has planned again, and those that it could not.
const (
	EffectsAgain = "effects_again"
	EffectsLeft  = "effects_left"
)

const (
	// againWithin bounds one transaction that plans effects again.
	againWithin = time.Minute
	// againAtOnce is of how many events at most one plans them, since it may lock the object of each.
	againAtOnce = 500
)

// force applies events, and has the effects happen again that they had when the run was asked for. It comes before the checkpoint, and may be repeated.
func (w *walk) force(ctx context.Context, c *processor.Chunk) (runs.Status, error) {
	status, err := w.apply(ctx, c)
	if err != nil || status != runs.Running {
		return status, err
	}
	rules := w.Processor.Rules()
	for ids := range slices.Chunk(c.IDs, againAtOnce) {
		if err := w.planAgain(ctx, rules, ids); err != nil {
			return "", err
		}
	}
	return runs.Running, nil
}

// planAgain plans effects of events again, under the locks of objects whose changes may want something else at the same time.
func (w *walk) planAgain(ctx context.Context, rules *effects.Rules, ids []int64) error {
	var n effects.Again
	err := postgres.InTx(ctx, w.Pool, "plan effects again", againWithin, func(ctx context.Context, tx pgx.Tx) error {
		if err := w.hold.Guard(ctx, tx); err != nil {
			return err
		}
		rivals, err := effects.Rivals(ctx, tx, rules, ids)
		if err != nil {
			return err
		}
		if len(rivals) > 0 {
			keys := make([]versioning.Key, len(rivals))
			for i, o := range rivals {
				keys[i] = versioning.Key(o)
			}
			if err := processor.LockObjects(ctx, tx, keys); err != nil {
				return err
			}
		}
		n, err = effects.PlanAgain(ctx, tx, rules, w.hold.Run.Run, w.hold.MadeAt.Time, ids)
		return err
	})
	if err != nil {
		return err
	}
	if len(n.Due) > 0 && w.Processor.Planned != nil {
		w.Processor.Planned(n.Due)
	}
	w.hold.Counts[EffectsAgain] += n.Planned
	w.hold.Counts[EffectsLeft] += n.Left
	return nil
}

// AgainPreview is how many effects a replay with Force would have happen again at most: what their rules say by then may leave some out.
type AgainPreview struct {
	Effects int64 `json:"effects"`
	// Exact: the effects of all events were counted; otherwise there may be more.
	Exact bool `json:"exact"`
}

// PreviewAgain counts the effects that an order's events had, up to those of some hundred thousand events; with exact, of all.
func PreviewAgain(ctx context.Context, pool *pgxpool.Pool, o *Order, exact bool) (p AgainPreview, err error) {
	bound, err := events.Newest(ctx, pool)
	if err != nil {
		return p, err
	}
	var ids []int64
	for cursor, n := int64(0), 0; cursor < bound; n++ {
		if n == previewWindows && !exact {
			return p, nil
		}
		if ids, cursor, err = events.Match(ctx, pool, &o.Filter, cursor, bound); err != nil {
			return p, err
		}
		if len(ids) == 0 {
			continue
		}
		found, err := effects.CountAgain(ctx, pool, ids)
		if err != nil {
			return p, err
		}
		p.Effects += found
	}
	p.Exact = true
	return p, nil
}
