package runner

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/effects"
	"github.com/postern-gateway/postern/internal/postgres"
)

// destinationsSQL are the destinations that effects are to be carried out at, and null. It goes from one to the next in the index, however many effects each has.
const destinationsSQL = `
WITH RECURSIVE names AS (
  (SELECT e.destination FROM effects e WHERE e.state IN ('planned', 'failed') ORDER BY e.destination LIMIT 1)
  UNION ALL
  SELECT (SELECT e.destination FROM effects e WHERE e.state IN ('planned', 'failed') AND e.destination > n.destination ORDER BY e.destination LIMIT 1) FROM names n WHERE n.destination IS NOT NULL
)`

// straysSQL are these destinations, but some.
const straysSQL = destinationsSQL + `
SELECT destination FROM names WHERE destination <> ALL($1::text[])`

// Strays are effects that wait for a rule or a destination that is not configured, with since when they are there: of each destination among the 2,000 that are due last, up to a minute ahead, as what waits so is; more says that
// it has as many, so that there may be more of them. One that is running has what it waited for, whatever its reason still is.
const Strays = `(` + destinationsSQL + `
  SELECT l.effect, l.destination, coalesce(l.tried_since, l.planned_at) AS since, l.seen = 2000 AS more
  FROM names n CROSS JOIN LATERAL (SELECT d.*, count(*) OVER () AS seen FROM (SELECT e.effect, e.destination, e.state, e.reason, e.tried_since, e.planned_at FROM effects e
    WHERE e.destination = n.destination AND e.state IN ('planned', 'failed') AND e.due <= (SELECT clock_now() + interval '1 minute') ORDER BY e.due DESC LIMIT 2000) d) l
  WHERE l.state = 'planned' AND strpos(l.reason, '` + effects.NotConfigured + `') > 0
)`

// straysMost bounds how many effects of one destination are seen to at once.
const straysMost = 500

// strays sees to effects that are due at destinations that are not configured, which nobody takes: they were renamed, or are another process's.
func (r *Runner) strays(ctx context.Context) error {
	r.mu.Lock()
	rules, all := r.rules, r.destinations
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
		if err := r.stray(ctx, rules, all, configured, name); err != nil {
			return err
		}
	}
	return nil
}

// stray hands effects of a destination that is not configured over to the one that their rule says by now; those that have none wait.
func (r *Runner) stray(ctx context.Context, rules *effects.Rules, sides sides, configured []string, name string) error {
	var over []ending
	var waiting []*ending
	err := postgres.InTx(ctx, r.Pool, "hand effects over", r.Settings.Within, func(ctx context.Context, tx pgx.Tx) error {
		over, waiting = nil, nil
		all, err := claim(ctx, tx, name, r.ID, straysMost, r.Settings.Margin)
		if err != nil || len(all) == 0 {
			return err
		}
		for _, t := range all {
			t.destination = name
			_, end := r.decide(t, func() (*call, *ending) { return next(t, rules.Named(t.rule), sides) })
			unruled, stays := end != nil && end.unruled, false
			if end == nil || (end.state == effects.Planned || end.state == effects.Failed) && !slices.Contains(configured, end.destination) {
				stays = true
				end = t.back(effects.Planned, notHere, t.attempts-1, fmt.Sprintf("destination %s %s, nor a rule that has another for it; it waits for either", name, effects.NotConfigured))
			}
			end.claims, end.rule, end.unruled = t.claims, t.rule, unruled
			if over = append(over, *end); stays {
				waiting = append(waiting, end)
			}
		}
		_, err = record(ctx, tx, over)
		return err
	})
	if err != nil {
		return err
	}
	r.tellStray(name, waiting)
	r.tellUnruled(over)
	r.tellPeople(name, over)
	r.Wake(following(over))
	return nil
}
