package effects

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/postgres"
)

// again says of an effect that it can happen again: it has happened, and nobody had it undone, or nobody approved it in time, and what it was planned with is there.
const again = `e.forced = 0 AND e.state IN ('done', 'expired') AND NOT e.undoing AND e.facts IS NOT NULL`

const (
	// againSQL plans effects of events again, under the number of a run, with what they were planned with and by their rules as they are now. Of a rule that supersedes, only what the object's last change wanted
	// is told again. What is there of the run stays, under whatever version of its rule: the run may have been killed, and the version raised, before it went on.
	againSQL = `
WITH chosen AS (
  SELECT e.key, e.rule_version, r.rule, r.version, e.source, e.account, e.object_type, e.object_id, e.event_id, e.facts, r.state, r.destination, r.expires
  FROM effects e JOIN unnest($4::text[], $5::int[], $6::bool[], $7::text[], $8::text[], $9::bigint[]) AS r(rule, version, supersedes, state, destination, expires) ON r.rule = e.rule
  WHERE e.event_id = ANY($1::bigint[]) AND e.updated_at < $3 AND ` + again + ` AND (NOT r.supersedes OR NOT EXISTS (
    SELECT FROM effects l WHERE l.source = e.source AND l.account = e.account AND l.object_type = e.object_type AND l.object_id = e.object_id AND l.rule = e.rule AND l.forced = 0 AND l.event_id > e.event_id))
), entered AS (
  INSERT INTO effects (key, rule_version, forced, rule, source, account, object_type, object_id, event_id, run, facts, state, destination, due, expires_at, planned_at, updated_at)
  SELECT c.key, c.version, $2::bigint::int, c.rule, c.source, c.account, c.object_type, c.object_id, c.event_id, $2, c.facts, c.state, c.destination, CASE WHEN c.state = 'planned' THEN now.at END,
    CASE WHEN c.state = 'waiting' AND c.expires > 0 THEN now.at + c.expires * interval '1 microsecond' END, now.at, now.at
  FROM chosen c, (SELECT clock_now() AS at) now
  WHERE NOT EXISTS (SELECT FROM effects x WHERE x.key = c.key AND x.rule = c.rule AND x.forced = $2::bigint::int) ORDER BY c.key, c.rule_version DESC
  ON CONFLICT (key, rule_version, forced) DO NOTHING
  RETURNING state, destination
)
SELECT (SELECT count(*) FROM entered) + (SELECT count(*) FROM effects x WHERE x.event_id = ANY($1::bigint[]) AND x.forced = $2::bigint::int),
  (SELECT count(DISTINCT (e.key, e.rule)) FROM effects e WHERE e.event_id = ANY($1::bigint[]) AND e.updated_at < $3 AND e.forced = 0 AND e.state IN ('done', 'expired')
    AND NOT EXISTS (SELECT FROM chosen c WHERE c.key = e.key AND c.rule = e.rule) AND NOT EXISTS (SELECT FROM effects x WHERE x.key = e.key AND x.rule = e.rule AND x.forced = $2::bigint::int)),
  coalesce((SELECT array_agg(DISTINCT destination) FROM entered WHERE state = 'planned'), '{}')`

	// rivalsSQL finds the objects of which rules that supersede have something to happen again.
	rivalsSQL = `SELECT DISTINCT e.source, e.account, e.object_type, e.object_id FROM effects e WHERE e.event_id = ANY($1::bigint[]) AND e.rule = ANY($2::text[]) AND ` + again

	countAgainSQL = `SELECT count(DISTINCT (e.key, e.rule)) FROM effects e WHERE e.event_id = ANY($1::bigint[]) AND ` + again
)

// Again is what became of effects that are to happen again.
type Again struct {
	// Planned are in the ledger again for the run, whether it entered them now or before it was killed. Left are those that it cannot plan: their rule is not configured, what they were planned with is cleared, a person had
	// them undone, or their rule supersedes and the object has changed since.
	Planned, Left int64
	// Due are the destinations that have something to do now.
	Due []string
}

// Object is one that effects are about: Source is the number of its source.
type Object struct {
	Source            int32
	Account, Type, ID string
}

// Rivals are the objects of events of which rules that supersede have something to happen again. Who plans that has the objects' locks, so that of it and of what a change wants at the same time the change's is the last.
func Rivals(ctx context.Context, tx pgx.Tx, r *Rules, ids []int64) (all []Object, err error) {
	if r.None() {
		return nil, nil
	}
	var names []string
	for name, rule := range r.named {
		if rule.Supersede {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return nil, nil
	}
	rows, err := tx.Query(ctx, rivalsSQL, ids, names)
	if err == nil {
		all, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Object])
	}
	if err != nil {
		return nil, fmt.Errorf("find objects of rules that supersede: %w", err)
	}
	return all, nil
}

// PlanAgain has the effects of events happen again on purpose, for a run: those that had ended before a time, as when the run was made. Their steps have keys of their own, so that the other side does them again, and
// rules ask for approval as for what a run plans. It may be repeated. The caller has the locks of Rivals.
func PlanAgain(ctx context.Context, tx pgx.Tx, r *Rules, run int64, before time.Time, ids []int64) (n Again, err error) {
	if r.None() || len(ids) == 0 {
		return n, nil
	}
	var names, states, destinations []string
	var versions []int32
	var supersedes []bool
	var expires []int64
	for name, rule := range r.named {
		names, versions, supersedes = append(names, name), append(versions, int32(rule.Version)), append(supersedes, rule.Supersede)
		expires = append(expires, rule.ApprovalExpires.Microseconds())
		states, destinations = append(states, string(first(rule, run))), append(destinations, rule.Steps[0].Destination)
	}
	if err := tx.QueryRow(ctx, againSQL, ids, run, before, names, versions, supersedes, states, destinations, expires).Scan(&n.Planned, &n.Left, &n.Due); err != nil {
		return n, fmt.Errorf("plan effects of %d events again: %w", len(ids), err)
	}
	return n, nil
}

// CountAgain says how many effects of events would happen again at most, were they forced now.
func CountAgain(ctx context.Context, db postgres.DB, ids []int64) (n int64, err error) {
	if err := db.QueryRow(ctx, countAgainSQL, ids).Scan(&n); err != nil {
		return 0, fmt.Errorf("count effects of %d events: %w", len(ids), err)
	}
	return n, nil
}
