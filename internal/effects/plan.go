package effects

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/effects/rules"
)

// planSQL enters effects that are not there. They come ordered by key, so that transactions that plan the same ones wait for each other in one order.
const planSQL = `
INSERT INTO effects (key, rule_version, rule, source, account, object_type, object_id, event_id, run, facts, state, reason, destination, due, expires_at, planned_at, updated_at)
SELECT d.key, d.version, d.rule, d.source, d.account, d.type, d.id, d.event, $13, d.facts, d.state, d.reason, d.destination, CASE WHEN d.state = 'planned' THEN now.at END,
  CASE WHEN d.state = 'waiting' AND d.expires > 0 THEN now.at + d.expires * interval '1 microsecond' END, now.at, now.at
FROM unnest($1::text[], $2::int[], $3::text[], $4::int[], $5::text[], $6::text[], $7::text[], $8::bigint[], $9::jsonb[], $10::text[], $11::text[], $12::text[], $14::bigint[])
  WITH ORDINALITY AS d(key, version, rule, source, account, type, id, event, facts, state, reason, destination, expires, n), (SELECT clock_now() AS at) now
ORDER BY d.n
ON CONFLICT (key, rule_version, forced) DO NOTHING
RETURNING effect, key, rule_version, rule, source, account, object_type, object_id, state, destination`

// knownSQL reads whose the effects are that were there.
const knownSQL = `
SELECT e.effect, e.key, e.rule_version, e.rule, e.source, e.account, e.object_type, e.object_id, e.state, e.destination
FROM unnest($1::text[], $2::int[]) AS d(key, version) JOIN effects e ON e.key = d.key AND e.rule_version = d.version AND e.forced = 0`

// supersedeSQL lets effects take the place of all others of the same rule and object of which nothing was begun. Who plans has the object's lock, so that what is in the ledger is older.
const supersedeSQL = `
UPDATE effects e SET state = 'superseded', due = NULL, reason = 'effect ' || d.effect || ' took its place', updated_at = clock_now()
FROM unnest($1::bigint[], $2::text[], $3::int[], $4::text[], $5::text[], $6::text[]) AS d(effect, rule, source, account, type, id)
WHERE e.source = d.source AND e.account = d.account AND e.object_type = d.type AND e.object_id = d.id AND e.rule = d.rule AND e.effect <> d.effect
  AND e.state IN ('waiting', 'planned') AND NOT EXISTS (SELECT FROM effect_steps s WHERE s.effect = e.effect)`

// reviveSQL plans effects anew that were superseded or have expired, or were between two changes of this transaction ($6), and of which nothing was begun.
const reviveSQL = `
UPDATE effects e SET event_id = d.event, run = $7, facts = d.facts, state = d.state, reason = '', destination = d.destination, due = CASE WHEN d.state = 'planned' THEN now.at END,
  expires_at = CASE WHEN d.state = 'waiting' AND d.expires > 0 THEN now.at + d.expires * interval '1 microsecond' END, planned_at = now.at, tried_since = NULL, updated_at = now.at
FROM unnest($1::bigint[], $2::bigint[], $3::jsonb[], $4::text[], $5::text[], $6::bool[], $8::bigint[]) AS d(effect, event, facts, state, destination, between, expires), (SELECT clock_now() AS at) now
WHERE e.effect = d.effect AND (e.state IN ('superseded', 'expired') OR d.between AND e.state IN ('waiting', 'planned')) AND NOT EXISTS (SELECT FROM effect_steps s WHERE s.effect = e.effect)
RETURNING e.state, e.destination`

// Counted is what became of intents.
type Counted struct {
	// New were entered, Known were there already.
	New, Known int
	// Review are those of the new ones that wait for a person, since their rule could not say what is to follow, or they are Collided.
	Review int
	// Collided are those of the new ones that wait for a person, since their key was that of something else.
	Collided int
	// Due are the destinations that have something to do now.
	Due []string
}

func (n *Counted) due(state State, destination string) {
	if state == Review {
		n.Review++
	}
	if state == Planned && !slices.Contains(n.Due, destination) {
		n.Due = append(n.Due, destination)
	}
}

// Plan enters intents, which come in the order of their changes, into the ledger, each key and version once, in the transaction of the changes. run is the run that planned them, 0 for events as they
// arrive. Of a rule that supersedes, the last intent about an object takes the place of all others of which nothing was begun, whether it was in the ledger or not.
func Plan(ctx context.Context, tx pgx.Tx, run int64, intents []Intent) (n Counted, err error) {
	if len(intents) == 0 {
		return n, nil
	}
	wanted := wishes(intents)
	entered, err := enter(ctx, tx, run, firsts(wanted), &n)
	if err != nil {
		return n, err
	}
	known, err := readKnown(ctx, tx, wanted, entered)
	if err != nil {
		return n, err
	}
	var collided []*wish
	var over, back []newest
	for _, w := range wanted {
		e, isNew := entered[w.name()]
		if !isNew {
			e = known[w.name()]
		}
		switch {
		case e.effect == 0:
			return n, fmt.Errorf("plan effect of key %s: it was there, and was removed meanwhile", w.Key)
		case !e.about.shares(w.about()):
			collided = append(collided, w.collided(e))
		case w.newest:
			over = append(over, newest{e.effect, w})
			if !isNew {
				back = append(back, newest{e.effect, w})
			}
		}
	}
	troubles, err := enter(ctx, tx, run, collided, &n)
	if err != nil {
		return n, err
	}
	n.Collided, n.Known = len(troubles), len(intents)-n.New
	if err := supersede(ctx, tx, over); err != nil {
		return n, err
	}
	return n, revive(ctx, tx, run, back, &n)
}

// about is the rule and the object of an effect.
type about struct {
	rule                    string
	source                  int32
	account, objectType, id string
}

// shares says whether a key may be that of both: objects and rules of one account may share one on purpose, as one welcome for all orders of a customer; ids of another account name other things.
func (a about) shares(b about) bool { return a.source == b.source && a.account == b.account }

// name is what only one effect has.
type name struct {
	key     string
	version int
}

// entry is an effect in the ledger.
type entry struct {
	effect int64
	about  about
}

// enter enters what is not there and returns that.
func enter(ctx context.Context, tx pgx.Tx, run int64, wanted []*wish, n *Counted) (map[name]entry, error) {
	if len(wanted) == 0 {
		return nil, nil
	}
	rows, err := tx.Query(ctx, planSQL, planArgs(run, wanted)...)
	if err != nil {
		return nil, fmt.Errorf("plan %d effects: %w", len(wanted), err)
	}
	entered, err := entries(rows, n.due)
	if err != nil {
		return nil, fmt.Errorf("plan %d effects: %w", len(wanted), err)
	}
	n.New += len(entered)
	return entered, nil
}

// readKnown reads those wanted that were not entered.
func readKnown(ctx context.Context, tx pgx.Tx, wanted []*wish, entered map[name]entry) (map[name]entry, error) {
	var keys []string
	var versions []int32
	for _, w := range firsts(wanted) {
		if _, ok := entered[w.name()]; !ok {
			keys, versions = append(keys, w.Key), append(versions, int32(w.Rule.Version))
		}
	}
	if len(keys) == 0 {
		return nil, nil
	}
	rows, err := tx.Query(ctx, knownSQL, keys, versions)
	if err != nil {
		return nil, fmt.Errorf("read %d effects that were planned before: %w", len(keys), err)
	}
	known, err := entries(rows, func(State, string) {})
	if err != nil {
		return nil, fmt.Errorf("read %d effects that were planned before: %w", len(keys), err)
	}
	return known, nil
}

func entries(rows pgx.Rows, each func(State, string)) (map[name]entry, error) {
	all := map[name]entry{}
	var e entry
	var as name
	var state State
	var destination string
	_, err := pgx.ForEachRow(rows, []any{&e.effect, &as.key, &as.version, &e.about.rule, &e.about.source, &e.about.account, &e.about.objectType, &e.about.id, &state, &destination}, func() error {
		all[as] = e
		each(state, destination)
		return nil
	})
	return all, err
}

func planArgs(run int64, wanted []*wish) []any {
	n := len(wanted)
	var texts [8][]string
	for i := range texts {
		texts[i] = make([]string, n)
	}
	versions, sources, events, facts, expires := make([]int32, n), make([]int32, n), make([]int64, n), make([][]byte, n), make([]int64, n)
	for i, in := range wanted {
		state := first(in.Rule, run)
		if in.Trouble != "" {
			state = Review
		}
		for j, text := range []string{in.Key, in.Rule.Name, in.t.Account, in.t.Type, in.t.ID, string(state), in.Trouble, in.Rule.Steps[0].Destination} {
			texts[j][i] = text
		}
		versions[i], sources[i], events[i], facts[i], expires[i] = int32(in.Rule.Version), in.t.Number, in.t.Event.ID, in.facts, in.Rule.ApprovalExpires.Microseconds()
	}
	return []any{texts[0], versions, texts[1], sources, texts[2], texts[3], texts[4], events, facts, texts[5], texts[6], texts[7], run, expires}
}

// first is an effect's first state.
func first(rule *rules.Rule, run int64) State {
	if rule.Approval == rules.ApproveRequired || rule.Approval == rules.ApproveOnReplay && run != 0 {
		return Waiting
	}
	return Planned
}

// newest is the effect that a wish has, which is the last one about its object.
type newest struct {
	effect int64
	*wish
}

func supersede(ctx context.Context, tx pgx.Tx, over []newest) error {
	if len(over) == 0 {
		return nil
	}
	n := len(over)
	effects, sources := make([]int64, n), make([]int32, n)
	names, accounts, types, ids := make([]string, n), make([]string, n), make([]string, n), make([]string, n)
	for i, o := range over {
		effects[i], sources[i], names[i], accounts[i], types[i], ids[i] = o.effect, o.t.Number, o.Rule.Name, o.t.Account, o.t.Type, o.t.ID
	}
	if _, err := tx.Exec(ctx, supersedeSQL, effects, names, sources, accounts, types, ids); err != nil {
		return fmt.Errorf("supersede the effects before %d: %w", n, err)
	}
	return nil
}

func revive(ctx context.Context, tx pgx.Tx, run int64, back []newest, n *Counted) error {
	if len(back) == 0 {
		return nil
	}
	count := len(back)
	effects, events, facts, between := make([]int64, count), make([]int64, count), make([][]byte, count), make([]bool, count)
	states, destinations, expires := make([]string, count), make([]string, count), make([]int64, count)
	for i, b := range back {
		effects[i], events[i], facts[i], between[i] = b.effect, b.t.Event.ID, b.facts, b.between
		states[i], destinations[i], expires[i] = string(first(b.Rule, run)), b.Rule.Steps[0].Destination, b.Rule.ApprovalExpires.Microseconds()
	}
	rows, err := tx.Query(ctx, reviveSQL, effects, events, facts, states, destinations, between, run, expires)
	if err != nil {
		return fmt.Errorf("plan %d effects anew: %w", count, err)
	}
	var state State
	var destination string
	if _, err := pgx.ForEachRow(rows, []any{&state, &destination}, func() error { n.due(state, destination); return nil }); err != nil {
		return fmt.Errorf("plan %d effects anew: %w", count, err)
	}
	return nil
}

// Statements are all SQL statements of this package, for the test that prepares each.
func Statements() []string {
	return []string{againSQL, rivalsSQL, countAgainSQL, planSQL, knownSQL, supersedeSQL, reviveSQL, listSQL, showSQL, stepsSQL, lockSQL, approveSQL, rejectSQL, retrySQL, resolveSQL, compensateSQL}
}
