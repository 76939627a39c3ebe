package runner

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/effects"
	"github.com/postern-gateway/postern/internal/postgres"
)

// straysSQL are the destinations but some that effects are to be carried out at. It goes from one to the next in the index, however many effects each has.
const straysSQL = `
WITH RECURSIVE names AS (
  (SELECT e.destination FROM effects e WHERE e.state IN ('planned', 'failed') ORDER BY e.destination LIMIT 1)
  UNION ALL
  SELECT (SELECT e.destination FROM effects e WHERE e.state IN ('planned', 'failed') AND e.destination > n.destination ORDER BY e.destination LIMIT 1) FROM names n WHERE n.destination IS NOT NULL
)
SELECT destination FROM names WHERE destination <> ALL($1::text[])`

// straysMost bounds how many effects of one destination are seen to at once.
const straysMost = 500

// strays sees to effects that are due at destinations that are not configured, which nobody takes: they were renamed, or are another process's.
func (r *Runner) strays(ctx context.Context) error {
	r.mu.Lock()
	rules := r.rules
	r.mu.Unlock()
	configured := r.names()
	rows, err := r.Pool.Query(ctx, straysSQL, append([]string{}, configured...))
	if err != nil {
		return fmt.Errorf("look for destinations: %w", err)
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return fmt.Errorf("look for destinations: %w", err)
	}
	for _, name := range names {
		if err := r.stray(ctx, rules, configured, name); err != nil {
			return err
		}
	}
	return nil
}

// stray hands effects of a destination that is not configured over to the one that their rule says by now; those that have none wait.
func (r *Runner) stray(ctx context.Context, rules *effects.Rules, configured []string, name string) error {
	var over []ending
	waiting := 0
	err := postgres.InTx(ctx, r.Pool, "hand effects over", r.Settings.Within, func(ctx context.Context, tx pgx.Tx) error {
		over, waiting = nil, 0
		all, err := claim(ctx, tx, name, r.ID, straysMost, r.Settings.Margin)
		if err != nil || len(all) == 0 {
			return err
		}
		for _, t := range all {
			t.destination = name
			_, end := r.decide(t, func() (*call, *ending) { return next(t, rules.Named(t.rule)) })
			if end == nil || (end.state == effects.Planned || end.state == effects.Failed) && !slices.Contains(configured, end.destination) {
				waiting++
				end = t.back(effects.Planned, notHere, t.attempts-1, fmt.Sprintf("destination %s %s, nor a rule that has another for it; it waits for either", name, effects.NotConfigured))
			}
			end.claims = t.claims
			over = append(over, *end)
		}
		_, err = record(ctx, tx, over)
		return err
	})
	if err != nil {
		return err
	}
	if waiting > 0 {
		r.Logger.Warn("effects wait whose destination is not configured: configure it, or name another in their rule", "destination", name, "effects", waiting)
	}
	r.Wake(following(over))
	return nil
}
