package runner

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/effects"
	"github.com/postern-gateway/postern/internal/postgres"
)

// destinationNames lists the destinations of planned and failed effects, and then null. It skips in
// the index from one destination to the next, however many effects each has.
const destinationNames = `
WITH RECURSIVE names AS (
  (SELECT e.destination FROM effects e WHERE e.state IN ('planned', 'failed') ORDER BY e.destination LIMIT 1)
  UNION ALL
  SELECT (SELECT e.destination FROM effects e WHERE e.state IN ('planned', 'failed') AND e.destination > n.destination
  	ORDER BY e.destination LIMIT 1) FROM names n WHERE n.destination IS NOT NULL
)`

// unconfiguredSQL lists these destinations, except the configured ones.
const unconfiguredSQL = destinationNames + `
SELECT destination FROM names WHERE destination <> ALL($1::text[])`

// DetachedSQL selects effects that wait for a rule or a destination that is not configured, and
// since when. Of each destination it reads the 2,000 that are due last, up to a minute ahead, since
// detached effects are due then. more reports that the limit was reached, so that there may be
// more. A running effect has what it waited for, whatever its reason says.
const DetachedSQL = `(` + destinationNames + `
  SELECT l.effect, l.destination, coalesce(l.first_attempt_at, l.planned_at) AS since, l.seen = 2000 AS more
  FROM names n CROSS JOIN LATERAL (SELECT d.*, count(*) OVER () AS seen FROM (SELECT e.effect, e.destination, e.state,
  	e.reason, e.first_attempt_at, e.planned_at FROM effects e
    WHERE e.destination = n.destination AND e.state IN ('planned', 'failed')
    	AND e.due <= (SELECT clock_now() + interval '1 minute') ORDER BY e.due DESC LIMIT 2000) d) l
  WHERE l.state = 'planned' AND strpos(l.reason, '` + effects.NotConfigured + `') > 0
)`

// maxDetached bounds how many effects of one destination are redirected at once.
const maxDetached = 500

// redirectDetached handles effects that are due at destinations that are not configured. The
// destinations were renamed, or belong to another process.
func (r *Runner) redirectDetached(ctx context.Context) error {
	r.mu.Lock()
	rules, all := r.rules, r.destinations
	r.mu.Unlock()
	configured := r.destinationNames()
	names, err := postgres.Collect(ctx, r.Pool, pgx.RowTo[string], unconfiguredSQL, append([]string{}, configured...))
	if err != nil {
		return fmt.Errorf("look for destinations: %w", err)
	}
	for _, name := range names {
		if err := r.redirectFrom(ctx, rules, all, configured, name); err != nil {
			return err
		}
	}
	return nil
}

// redirectFrom moves effects of an unconfigured destination to the destination that their rule
// names now. Effects whose rule names no configured one wait.
func (r *Runner) redirectFrom(ctx context.Context, rules *effects.Rules, destinations destinationSet,
	configured []string, name string) error {
	var results []result
	var waiting []*result
	var skipped []skippedStep
	err := postgres.InTx(ctx, r.Pool, "redirect effects", r.Settings.TxTimeout,
		func(ctx context.Context, tx pgx.Tx) error {
			results, waiting, skipped = nil, nil, nil
			all, err := r.leaseEffects(ctx, tx, name, maxDetached, r.Settings.LeaseMargin)
			if err != nil || len(all) == 0 {
				return err
			}
			for _, t := range all {
				t.destination = name
				_, end := r.decideSafely(t,
					func() (*call, *result) { return nextCall(t, rules.ByName(t.rule), destinations) })
				skipped = append(skipped, t.skipped...)
				ruleMissing, unconfigured := end != nil && end.ruleMissing, false
				if end == nil || (end.state == effects.Planned || end.state == effects.Failed) &&
					!slices.Contains(configured, end.destination) {
					unconfigured = true
					end = t.endWithoutCall(effects.Planned, missingRuleWait, t.attempts-1,
						fmt.Sprintf("destination %s %s, and its rule names no configured one; it waits until either "+
							"changes", name, effects.NotConfigured))
				}
				end.leaseEpoch, end.rule, end.ruleMissing = t.leaseEpoch, t.rule, ruleMissing
				if results = append(results, *end); unconfigured {
					waiting = append(waiting, end)
				}
			}
			if err := reserve(ctx, tx, nil, skipped); err != nil {
				return err
			}
			_, err = record(ctx, tx, results)
			return err
		})
	if err != nil {
		return err
	}
	r.Metrics.countSkipped(skipped)
	r.logMissingDestination(name, waiting)
	r.logMissingRules(results)
	r.logNeedsReview(name, results)
	r.Wake(dueDestinations(results))
	return nil
}
