package effects

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/effects/rules"
	"github.com/postern-gateway/postern/internal/postgres"
)

// planSQL inserts effects that do not exist yet. They come ordered by key, so that concurrent
// transactions lock the same keys in one order.
const planSQL = `
INSERT INTO effects (key, rule_version, rule, source, account, object_type, object_id, event_id, run, template_data,
	state,
	reason, destination, due, expires_at, in_order, planned_at, updated_at)
SELECT d.key, d.version, d.rule, d.source, d.account, d.type, d.id, d.event, $13, d.template_data, d.state, d.reason,
	d.destination, CASE WHEN d.state = 'planned' THEN now.at END,
  CASE WHEN d.state = 'awaiting_approval' AND d.expires > 0 THEN now.at + d.expires * interval '1 microsecond' END,
  	d.in_order, now.at, now.at
FROM unnest($1::text[], $2::int[], $3::text[], $4::int[], $5::text[], $6::text[], $7::text[], $8::bigint[], $9::jsonb[],
	$10::text[], $11::text[], $12::text[], $14::bigint[], $15::bool[])
  WITH ORDINALITY AS d(key, version, rule, source, account, type, id, event, template_data, state, reason, destination,
  	expires, in_order,
  	n), (SELECT clock_now() AS at) now
ORDER BY d.n
ON CONFLICT (key, rule_version, forced) DO NOTHING
RETURNING effect, key, rule_version, rule, source, account, object_type, object_id, state, destination`

// existingSQL reads the subjects of the effects that already existed.
const existingSQL = `
SELECT e.effect, e.key, e.rule_version, e.rule, e.source, e.account, e.object_type, e.object_id, e.state, e.destination
FROM unnest($1::text[], $2::int[]) AS d(key, version) JOIN effects e ON e.key = d.key AND e.rule_version = d.version
	AND e.forced = 0`

// supersedeSQL replaces all other effects of the same rule and object that have no started step.
// The caller holds the object's lock, or that of forwards, so that every effect in the ledger is
// older.
const supersedeSQL = `
UPDATE effects e SET state = 'superseded', due = NULL, reason = 'effect ' || d.effect || ' superseded it',
	updated_at = clock_now()
FROM unnest($1::bigint[], $2::text[], $3::int[], $4::text[], $5::text[], $6::text[]) AS d(effect, rule, source, account,
	type, id)
WHERE e.source = d.source AND e.account = d.account AND e.object_type = d.type AND e.object_id = d.id
	AND e.rule = d.rule AND e.effect <> d.effect
  AND e.state IN ('awaiting_approval', 'planned') AND NOT EXISTS (SELECT FROM effect_steps s WHERE s.effect = e.effect)`

// supersedeInOrderSQL does the same for effects in order. It reads only the unfinished ones: an
// object may have a forwarded change for each of its revisions.
const supersedeInOrderSQL = `
UPDATE effects e SET state = 'superseded', due = NULL, reason = 'effect ' || d.effect || ' superseded it',
	updated_at = clock_now()
FROM unnest($1::bigint[], $2::text[], $3::int[], $4::text[], $5::text[], $6::text[]) AS d(effect, rule, source, account,
	type, id)
WHERE e.source = d.source AND e.account = d.account AND e.object_type = d.type AND e.object_id = d.id
	AND e.rule = d.rule AND e.effect < d.effect AND e.in_order AND e.state = 'planned'
	AND NOT EXISTS (SELECT FROM effect_steps s WHERE s.effect = e.effect)`

// reviveSQL plans existing effects again that have no started step. They were superseded, have
// expired, or were interrupted by another key in this transaction ($6).
const reviveSQL = `
UPDATE effects e SET event_id = d.event, run = $7, template_data = d.template_data, state = d.state, reason = '',
	destination = d.destination, due = CASE WHEN d.state = 'planned' THEN now.at END,
  expires_at = CASE WHEN d.state = 'awaiting_approval' AND d.expires > 0 THEN now.at + d.expires * interval
  	'1 microsecond' END,
  	planned_at = now.at, first_attempt_at = NULL, updated_at = now.at
FROM unnest($1::bigint[], $2::bigint[], $3::jsonb[], $4::text[], $5::text[], $6::bool[], $8::bigint[]) AS d(effect,
	event, template_data, state, destination, between, expires), (SELECT clock_now() AS at) now
WHERE e.effect = d.effect AND (e.state IN ('superseded', 'expired') OR d.between AND e.state IN ('awaiting_approval',
	'planned'))
	AND NOT EXISTS (SELECT FROM effect_steps s WHERE s.effect = e.effect)
RETURNING e.state, e.destination`

// PlanResult counts the results of Plan.
type PlanResult struct {
	// New effects were inserted, Existing ones were already in the ledger.
	New, Existing int
	// Review counts the new effects that need an operator, because their rule failed or they are
	// Collided.
	Review int
	// Collided counts the new effects that need an operator, because their key belongs to an effect
	// of another account.
	Collided int
	// DueDestinations are the destinations that now have a step to execute.
	DueDestinations []string
}

func (n *PlanResult) count(state State, destination string) {
	if state == Review {
		n.Review++
	}
	if state == Planned && !slices.Contains(n.DueDestinations, destination) {
		n.DueDestinations = append(n.DueDestinations, destination)
	}
}

// Plan adds effects to the ledger, each key and version once, in the transaction of the changes.
// The effects come in the order of their changes. run is the run that plans them, 0 for live
// events. Of a rule that supersedes, the last effect of an object replaces all others that have no
// started step, whether that last one is new or existed.
func Plan(ctx context.Context, tx pgx.Tx, run int64, effects []PlannedEffect) (n PlanResult, err error) {
	if len(effects) == 0 {
		return n, nil
	}
	candidates := mergeCandidates(effects)
	inserted, err := insert(ctx, tx, run, firstPerKey(candidates), &n)
	if err != nil {
		return n, err
	}
	existing, err := readExisting(ctx, tx, candidates, inserted)
	if err != nil {
		return n, err
	}
	var collided []*candidate
	var superseding, toRevive []newestEffect
	for _, c := range candidates {
		entry, isNew := inserted[c.ledgerKey()]
		if !isNew {
			entry = existing[c.ledgerKey()]
		}
		switch {
		case entry.effect == 0:
			return n, fmt.Errorf("plan the effect of key %s: it existed, and was removed meanwhile", c.Key)
		case !entry.subject.sharesKeys(c.subject()):
			collided = append(collided, c.asCollision(entry))
		case c.isLast:
			superseding = append(superseding, newestEffect{entry.effect, c})
			if !isNew {
				toRevive = append(toRevive, newestEffect{entry.effect, c})
			}
		}
	}
	collisions, err := insert(ctx, tx, run, collided, &n)
	if err != nil {
		return n, err
	}
	n.Collided, n.Existing = len(collisions), len(effects)-n.New
	if err := supersede(ctx, tx, superseding); err != nil {
		return n, err
	}
	return n, revive(ctx, tx, run, toRevive, &n)
}

// subject is the rule and the object of an effect.
type subject struct {
	rule                    string
	source                  int32
	account, objectType, id string
}

// sharesKeys reports whether two subjects may share a key. Objects and rules of one account may, on
// purpose, for example one welcome mail for all orders of a customer. Ids of another account
// identify other things.
func (a subject) sharesKeys(b subject) bool { return a.source == b.source && a.account == b.account }

// ledgerKey is unique among the effects that no run forced.
type ledgerKey struct {
	key     string
	version int
}

// ledgerEntry is an effect in the ledger.
type ledgerEntry struct {
	effect  int64
	subject subject
}

// insert inserts the candidates that do not exist yet and returns them.
func insert(ctx context.Context, tx pgx.Tx, run int64, candidates []*candidate,
	n *PlanResult) (map[ledgerKey]ledgerEntry, error) {
	if len(candidates) == 0 {
		return nil, nil
	}
	inserted, err := collectEntries(ctx, tx, planSQL, planArgs(run, candidates), n.count)
	if err != nil {
		return nil, fmt.Errorf("plan %d effects: %w", len(candidates), err)
	}
	n.New += len(inserted)
	return inserted, nil
}

// readExisting reads the candidates that were not inserted.
func readExisting(ctx context.Context, tx pgx.Tx, candidates []*candidate, inserted map[ledgerKey]ledgerEntry) (
	map[ledgerKey]ledgerEntry, error) {
	var keys []string
	var versions []int32
	for _, c := range firstPerKey(candidates) {
		if _, ok := inserted[c.ledgerKey()]; !ok {
			keys, versions = append(keys, c.Key), append(versions, int32(c.Rule.Version))
		}
	}
	if len(keys) == 0 {
		return nil, nil
	}
	existing, err := collectEntries(ctx, tx, existingSQL, []any{keys, versions}, func(State, string) {})
	if err != nil {
		return nil, fmt.Errorf("read %d existing effects: %w", len(keys), err)
	}
	return existing, nil
}

func collectEntries(ctx context.Context, tx pgx.Tx, sql string, args []any, count func(State, string)) (
	map[ledgerKey]ledgerEntry, error) {
	all := map[ledgerKey]ledgerEntry{}
	var e ledgerEntry
	var key ledgerKey
	var state State
	var destination string
	err := postgres.ForEach(ctx, tx, sql, args, []any{&e.effect, &key.key, &key.version, &e.subject.rule,
		&e.subject.source,
		&e.subject.account, &e.subject.objectType, &e.subject.id, &state, &destination}, func() error {
		all[key] = e
		count(state, destination)
		return nil
	})
	return all, err
}

func planArgs(run int64, candidates []*candidate) []any {
	n := len(candidates)
	var texts [8][]string
	for i := range texts {
		texts[i] = make([]string, n)
	}
	versions, sources, events, templateData, expires := make([]int32, n), make([]int32, n), make([]int64, n),
		make([][]byte, n), make([]int64, n)
	inOrder := make([]bool, n)
	for i, c := range candidates {
		state := initialState(c.Rule, run)
		if c.Failure != "" {
			state = Review
		}
		for j, text := range []string{c.Key, c.Rule.Name, c.transition.Account, c.transition.Type, c.transition.ID,
			string(state), c.Failure, c.Rule.Steps[0].Destination} {
			texts[j][i] = text
		}
		versions[i], sources[i], events[i], templateData[i], expires[i] = int32(c.Rule.Version), c.transition.Number,
			c.transition.Event.ID, c.templateData, c.Rule.ApprovalExpires.Microseconds()
		inOrder[i] = c.Rule.On == rules.OnRevision
	}
	return []any{texts[0], versions, texts[1], sources, texts[2], texts[3], texts[4], events, templateData, texts[5],
		texts[6], texts[7], run, expires, inOrder}
}

// initialState returns the first state of an effect.
func initialState(rule *rules.Rule, run int64) State {
	if rule.Approval == rules.ApproveRequired || rule.Approval == rules.ApproveOnReplay && run != 0 {
		return AwaitingApproval
	}
	return Planned
}

// newestEffect is the effect of a candidate that is the last one about its object.
type newestEffect struct {
	effect int64
	*candidate
}

func supersede(ctx context.Context, tx pgx.Tx, newest []newestEffect) error {
	if len(newest) == 0 {
		return nil
	}
	n := len(newest)
	effects, sources := make([]int64, n), make([]int32, n)
	names, accounts, types, ids := make([]string, n), make([]string, n), make([]string, n), make([]string, n)
	for i, c := range newest {
		effects[i], sources[i], names[i], accounts[i], types[i], ids[i] = c.effect, c.transition.Number, c.Rule.Name,
			c.transition.Account, c.transition.Type, c.transition.ID
	}
	sql := supersedeSQL
	if newest[0].Rule.On == rules.OnRevision { // forwards are planned separately from all other effects
		sql = supersedeInOrderSQL
	}
	if _, err := tx.Exec(ctx, sql, effects, names, sources, accounts, types, ids); err != nil {
		return fmt.Errorf("supersede older effects of %d objects: %w", n, err)
	}
	return nil
}

func revive(ctx context.Context, tx pgx.Tx, run int64, newest []newestEffect, n *PlanResult) error {
	if len(newest) == 0 {
		return nil
	}
	count := len(newest)
	effects, events, templateData, interrupted := make([]int64, count), make([]int64, count), make([][]byte, count),
		make([]bool, count)
	states, destinations, expires := make([]string, count), make([]string, count), make([]int64, count)
	for i, c := range newest {
		effects[i], events[i], templateData[i], interrupted[i] = c.effect, c.transition.Event.ID, c.templateData,
			c.interrupted
		states[i], destinations[i], expires[i] = string(initialState(c.Rule, run)), c.Rule.Steps[0].Destination,
			c.Rule.ApprovalExpires.Microseconds()
	}
	var state State
	var destination string
	if err := postgres.ForEach(ctx, tx, reviveSQL, []any{effects, events, templateData, states, destinations,
		interrupted, run, expires}, []any{&state, &destination}, func() error {
		n.count(state, destination)
		return nil
	}); err != nil {
		return fmt.Errorf("plan %d effects again: %w", count, err)
	}
	return nil
}
