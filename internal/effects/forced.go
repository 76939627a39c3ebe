package effects

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/postgres"
)

// repeatable selects effects that a forced replay may plan again. They are done or expired, are not
// compensated, and still have their template data.
const repeatable = `e.forced = 0 AND e.state IN ('done', 'expired') AND NOT e.compensating
	AND e.template_data IS NOT NULL`

const (
	// planForcedSQL plans effects of events again, under the number of a run. It uses the stored
	// template data and the current rules. A rule that supersedes repeats only the effect of the
	// object's last change. The run's own effects stay, whatever their rule version, because the
	// run may continue after a crash and after the version was raised.
	planForcedSQL = `
WITH chosen AS (
  SELECT e.key, e.rule_version, r.rule, r.version, e.source, e.account, e.object_type, e.object_id, e.event_id,
  	e.template_data,
  	r.state, r.destination, r.expires
  FROM effects e JOIN unnest($4::text[], $5::int[], $6::bool[], $7::text[], $8::text[], $9::bigint[]) AS r(rule,
  	version, supersedes, state, destination, expires) ON r.rule = e.rule
  WHERE e.event_id = ANY($1::bigint[]) AND e.updated_at < $3 AND ` + repeatable + ` AND (NOT r.supersedes
	OR NOT EXISTS (
    SELECT FROM effects l WHERE l.source = e.source AND l.account = e.account AND l.object_type = e.object_type
    	AND l.object_id = e.object_id AND l.rule = e.rule AND l.forced = 0 AND l.event_id > e.event_id))
), entered AS (
  INSERT INTO effects (key, rule_version, forced, rule, source, account, object_type, object_id, event_id, run,
  	template_data,
  	state, destination, due, expires_at, planned_at, updated_at)
  SELECT c.key, c.version, $2::bigint::int, c.rule, c.source, c.account, c.object_type, c.object_id, c.event_id, $2,
  	c.template_data, c.state, c.destination, CASE WHEN c.state = 'planned' THEN now.at END,
    CASE WHEN c.state = 'awaiting_approval' AND c.expires > 0 THEN now.at + c.expires * interval '1 microsecond' END,
    	now.at,
    	now.at
  FROM chosen c, (SELECT clock_now() AS at) now
  WHERE NOT EXISTS (SELECT FROM effects x WHERE x.key = c.key AND x.rule = c.rule AND x.forced = $2::bigint::int)
  	ORDER BY c.key, c.rule_version DESC
  ON CONFLICT (key, rule_version, forced) DO NOTHING
  RETURNING state, destination
)
SELECT (SELECT count(*) FROM entered) + (SELECT count(*) FROM effects x WHERE x.event_id = ANY($1::bigint[])
	AND x.forced = $2::bigint::int),
  (SELECT count(DISTINCT (e.key, e.rule)) FROM effects e WHERE e.event_id = ANY($1::bigint[]) AND e.updated_at < $3
  	AND e.forced = 0 AND e.state IN ('done', 'expired')
    AND NOT EXISTS (SELECT FROM chosen c WHERE c.key = e.key AND c.rule = e.rule) AND NOT EXISTS (SELECT FROM effects x
    	WHERE x.key = e.key AND x.rule = e.rule AND x.forced = $2::bigint::int)),
  coalesce((SELECT array_agg(DISTINCT destination) FROM entered WHERE state = 'planned'), '{}')`

	// supersedingObjectsSQL finds the objects that have effects to repeat of rules that supersede.
	supersedingObjectsSQL = `SELECT DISTINCT e.source, e.account, e.object_type, e.object_id FROM effects e
		WHERE e.event_id = ANY($1::bigint[]) AND e.rule = ANY($2::text[]) AND ` + repeatable

	countForcedSQL = `SELECT count(DISTINCT (e.key, e.rule)) FROM effects e WHERE e.event_id = ANY($1::bigint[]) AND ` +
		repeatable
)

// ForcedPlan is the result of PlanForced.
type ForcedPlan struct {
	// Planned counts the effects that the ledger has for the run, also those that it inserted
	// before it was killed. Skipped counts those that it cannot plan. Their rule is not configured,
	// their template data is cleared, they were compensated, or their rule supersedes and the
	// object has changed since.
	Planned, Skipped int64
	// DueDestinations are the destinations that now have a step to execute.
	DueDestinations []string
}

// Object identifies an object that has effects. Source is the number of its source.
type Object struct {
	Source            int32
	Account, Type, ID string
}

// SupersedingObjects returns the objects of events that have effects to repeat of rules that
// supersede. The caller of PlanForced locks them first. Otherwise a concurrent change could plan an
// effect that the older, repeated one supersedes.
func SupersedingObjects(ctx context.Context, tx pgx.Tx, r *Rules, ids []int64) (all []Object, err error) {
	if r.Empty() {
		return nil, nil
	}
	var names []string
	for name, rule := range r.byName {
		if rule.Supersede {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return nil, nil
	}
	all, err = postgres.Collect(ctx, tx, pgx.RowToStructByPos[Object], supersedingObjectsSQL, ids, names)
	if err != nil {
		return nil, fmt.Errorf("find objects of rules that supersede: %w", err)
	}
	return all, nil
}

// PlanForced plans the effects of events again for a run, on purpose. It chooses effects that ended
// before a time, usually the creation of the run. Their steps get new keys, so that the destination
// executes them again. Rules require approval as for any effect that a run plans. The call may be
// repeated. The caller holds the locks of SupersedingObjects.
func PlanForced(ctx context.Context, tx pgx.Tx, r *Rules, run int64, before time.Time, ids []int64) (n ForcedPlan,
	err error) {
	if r.Empty() || len(ids) == 0 {
		return n, nil
	}
	var names, states, destinations []string
	var versions []int32
	var supersedes []bool
	var expires []int64
	for name, rule := range r.byName {
		names, versions, supersedes = append(names, name), append(versions, int32(rule.Version)),
			append(supersedes, rule.Supersede)
		expires = append(expires, rule.ApprovalExpires.Microseconds())
		states, destinations = append(states, string(initialState(rule, run))),
			append(destinations, rule.Steps[0].Destination)
	}
	if err := tx.QueryRow(ctx, planForcedSQL, ids, run, before, names, versions, supersedes, states, destinations,
		expires).Scan(&n.Planned, &n.Skipped, &n.DueDestinations); err != nil {
		return n, fmt.Errorf("plan effects of %d events again: %w", len(ids), err)
	}
	return n, nil
}

// CountForced returns how many effects of events a forced replay would plan now, at most.
func CountForced(ctx context.Context, db postgres.DB, ids []int64) (n int64, err error) {
	if err := db.QueryRow(ctx, countForcedSQL, ids).Scan(&n); err != nil {
		return 0, fmt.Errorf("count effects of %d events: %w", len(ids), err)
	}
	return n, nil
}
