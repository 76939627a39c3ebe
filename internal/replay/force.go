package replay

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/apply"
	"github.com/postern-gateway/postern/internal/effects"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/versioning"
)

// Counts of a run with Force: effects of its events that it planned again, and effects that it
// could not plan again.
const (
	EffectsReplanned    = "effects_again"
	EffectsNotReplanned = "effects_left"
)

const (
	// replanTimeout bounds one transaction that plans effects again.
	replanTimeout = time.Minute
	// replanChunk bounds the events of such a transaction, because it may lock the object of each.
	replanChunk = 500
)

// applyForced applies events, and plans again the effects that they had when the run was requested.
// It runs before the checkpoint and may be repeated.
func (w *execution) applyForced(ctx context.Context, c *apply.Chunk) (runs.Status, error) {
	status, err := w.apply(ctx, c)
	if err != nil || status != runs.Running {
		return status, err
	}
	rules := w.Applier.Rules()
	for ids := range slices.Chunk(c.IDs, replanChunk) {
		if err := w.replanEffects(ctx, rules, ids); err != nil {
			return "", err
		}
	}
	return runs.Running, nil
}

// replanEffects plans effects of events again. It locks the objects whose changes may plan
// competing effects at the same time.
func (w *execution) replanEffects(ctx context.Context, rules *effects.Rules, ids []int64) error {
	var n effects.ForcedPlan
	err := postgres.InTx(ctx, w.Pool, "plan effects again", replanTimeout, func(ctx context.Context, tx pgx.Tx) error {
		if err := w.lease.Guard(ctx, tx); err != nil {
			return err
		}
		competing, err := effects.SupersedingObjects(ctx, tx, rules, ids)
		if err != nil {
			return err
		}
		if len(competing) > 0 {
			keys := make([]versioning.Key, len(competing))
			for i, o := range competing {
				keys[i] = versioning.Key(o)
			}
			if err := apply.LockObjects(ctx, tx, keys); err != nil {
				return err
			}
		}
		n, err = effects.PlanForced(ctx, tx, rules, w.lease.Run.ID, w.lease.CreatedAt.Time, ids)
		return err
	})
	if err != nil {
		return err
	}
	if len(n.DueDestinations) > 0 && w.Applier.Planned != nil {
		w.Applier.Planned(n.DueDestinations)
	}
	w.lease.Counts[EffectsReplanned] += n.Planned
	w.lease.Counts[EffectsNotReplanned] += n.Skipped
	return nil
}

// ForcePreview is the maximum number of effects that a replay with Force would repeat. The rules
// may exclude some at execution.
type ForcePreview struct {
	Effects int64 `json:"effects"`
	// Complete says that the effects of all events were counted. Otherwise there may be more.
	Complete bool `json:"exact"`
}

// PreviewForce counts the effects that the selected events had. It stops after some hundred
// thousand events, unless complete is set.
func PreviewForce(ctx context.Context, pool *pgxpool.Pool, o *Params, complete bool) (p ForcePreview, err error) {
	bound, err := events.NewestID(ctx, pool)
	if err != nil {
		return p, err
	}
	match := func(ctx context.Context, pool *pgxpool.Pool, after, bound int64) ([]int64, int64, error) {
		return events.Match(ctx, pool, &o.Filter, after, bound)
	}
	p.Complete, err = eachRange(ctx, pool, match, bound, complete, func(ids []int64) error {
		found, err := effects.CountForced(ctx, pool, ids)
		p.Effects += found
		return err
	})
	return p, err
}
