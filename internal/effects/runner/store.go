package runner

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/effects"
	"github.com/postern-gateway/postern/internal/effects/rules"
)

// claimSQL takes effects whose next step goes to a destination and is due. What another process is taking is passed over. From the first attempt of a round the age of its retries counts. The time is asked for once, and
// what is taken is an array too, so that both are looked up by an index whatever PostgreSQL thinks of how many there are.
const claimSQL = `
WITH due AS MATERIALIZED (
  SELECT effect, tried_since FROM effects WHERE destination = $1 AND state IN ('planned', 'failed') AND due <= (SELECT clock_now()) ORDER BY due LIMIT $2 FOR UPDATE SKIP LOCKED
)
UPDATE effects e SET state = 'running', due = NULL, taken_by = $3, taken_until = clock_now() + $4::interval, claims = e.claims + 1, attempts = e.attempts + 1, updated_at = clock_now(),
  tried_since = coalesce(e.tried_since, CASE WHEN e.attempts > 0 THEN e.planned_at ELSE clock_now() END)
FROM due WHERE e.effect = due.effect AND e.effect = ANY(ARRAY(SELECT effect FROM due))
RETURNING e.effect, e.claims, e.key, e.rule_version, e.forced, e.rule, e.undoing, e.attempts, e.facts, clock_now() - e.tried_since, due.tried_since IS NULL, clock_now()`

// begunSQL reads what was begun. A step that was begun before known_since was kept may have been known since its effect was planned.
const begunSQL = `
SELECT effect, s.step, s.undo, s.state, coalesce(s.request, 'null'), s.attempts, s.captured, s.destination, coalesce(clock_now() - s.ended_at, interval '-1 s'), clock_now() - coalesce(s.known_since, CASE WHEN s.attempts > 1 THEN e.planned_at ELSE s.reserved_at END), s.doubt, s.once
FROM effect_steps s JOIN effects e USING (effect) WHERE effect = ANY($1::bigint[])`

// reserveSQL enters steps before their calls are made. Of an attempt that was not done the other side knows nothing; of any other it may.
const reserveSQL = `
INSERT INTO effect_steps AS s (effect, step, undo, place, state, destination, request, fingerprint, doubt, once, undoable, captures, attempts, reserved_at, known_since)
SELECT d.effect, d.step, d.undo, d.place, 'reserved', d.destination, d.request, d.fingerprint, d.doubt, d.once, d.undoable, string_to_array(d.captures, ','), 1, now.at, now.at
FROM unnest($1::bigint[], $2::text[], $3::bool[], $4::int[], $5::text[], $6::jsonb[], $7::bytea[], $8::text[], $9::bool[], $10::bool[], $11::text[])
  AS d(effect, step, undo, place, destination, request, fingerprint, doubt, once, undoable, captures), (SELECT clock_now() AS at) now
ON CONFLICT (effect, step, undo) DO UPDATE SET state = 'reserved', destination = excluded.destination, request = excluded.request, fingerprint = excluded.fingerprint,
  doubt = excluded.doubt, once = excluded.once, undoable = excluded.undoable, captures = excluded.captures, attempts = s.attempts + 1, reserved_at = excluded.reserved_at,
  known_since = CASE WHEN s.state = 'failed' THEN excluded.known_since ELSE coalesce(s.known_since, CASE WHEN s.attempts > 1 THEN (SELECT planned_at FROM effects WHERE effect = s.effect) ELSE s.reserved_at END) END, ended_at = NULL, status = NULL, error = ''`

// ownSQL locks the effects of endings before anything of them is written, as whoever redacts does, so that what is written next sees what was redacted before it, and neither waits for the other in a circle.
const ownSQL = `SELECT FROM effects WHERE effect = ANY($1::bigint[]) ORDER BY effect FOR UPDATE`

// endStepsSQL records what came of steps, as long as no other attempt was begun; of what was redacted meanwhile it keeps no word of the other side's. Of a doubt that nothing new is told of it keeps what was told, and that it ended now where that was not known or is yet to come.
const endStepsSQL = `
UPDATE effect_steps s SET state = d.state, ended_at = CASE WHEN s.state = 'unknown' AND d.state = 'unknown' THEN least(s.ended_at, clock_now()) ELSE clock_now() END, status = CASE WHEN d.state = 'unknown' AND d.error = '' THEN s.status ELSE nullif(d.status, 0) END, doubt = CASE WHEN d.person THEN 'person' ELSE s.doubt END,
  captured = CASE WHEN e.facts IS NULL THEN '{}' ELSE d.captured END, error = CASE WHEN e.facts IS NULL THEN '' WHEN d.state = 'unknown' AND d.error = '' THEN s.error ELSE d.error END
FROM unnest($1::bigint[], $2::text[], $3::bool[], $4::text[], $5::int[], $6::jsonb[], $7::text[], $8::bigint[], $9::bool[]) AS d(effect, step, undo, state, status, captured, error, claims, person)
JOIN effects e ON e.effect = d.effect AND e.state = 'running' AND e.claims = d.claims
WHERE s.effect = d.effect AND s.step = d.step AND s.undo = d.undo`

const endSQL = `
UPDATE effects e SET state = d.state, reason = CASE WHEN e.facts IS NULL THEN '' ELSE d.reason END, due = CASE WHEN d.state IN ('planned', 'failed') THEN clock_now() + d.wait * interval '1 microsecond' END, destination = d.destination,
  attempts = d.attempts, tried_since = CASE WHEN NOT d.afresh THEN e.tried_since END, taken_by = '', taken_until = NULL, updated_at = clock_now()
FROM unnest($1::bigint[], $2::text[], $3::text[], $4::bigint[], $5::text[], $6::int[], $7::bigint[], $8::bool[]) AS d(effect, state, reason, wait, destination, attempts, claims, afresh)
WHERE e.effect = d.effect AND e.state = 'running' AND e.claims = d.claims
RETURNING e.effect, e.claims`

// lapseSQL gives back what a process had taken that has not told what came of it: whether a step that was reserved was done nobody knows. Its attempt ended with the lease that it was made under. It says of
// which effects nobody knows that since then.
const lapseSQL = `
WITH ended AS MATERIALIZED (
  SELECT effect, taken_until FROM effects WHERE state = 'running' AND taken_until <= clock_now() ORDER BY effect LIMIT 1000 FOR UPDATE SKIP LOCKED
), lapsed AS (
  UPDATE effects e SET state = 'failed', due = clock_now(), taken_by = '', taken_until = NULL, reason = 'the process that had taken it ended', updated_at = clock_now()
  FROM ended WHERE e.effect = ended.effect AND e.effect = ANY(ARRAY(SELECT effect FROM ended))
  RETURNING e.effect, e.rule, e.destination, ended.taken_until
), doubted AS (
  UPDATE effect_steps s SET state = 'unknown', ended_at = lapsed.taken_until, error = 'the process ended before there was an answer' FROM lapsed WHERE s.effect = lapsed.effect AND s.state = 'reserved'
  RETURNING s.effect, coalesce(s.known_since < s.reserved_at, false) AS before
)
SELECT effect, rule, destination, effect IN (SELECT effect FROM doubted WHERE NOT before) FROM lapsed ORDER BY effect`

// Statements are all SQL statements of this package, for the test that prepares each.
func Statements() []string {
	return []string{claimSQL, begunSQL, reserveSQL, ownSQL, endStepsSQL, endSQL, lapseSQL, straysSQL, strayedSQL, datedSQL, expireSQL, statesSQL, unknownSQL, dueSQL}
}

// begun is a step's row.
type begun struct {
	step     string
	undo     bool
	state    effects.StepState
	request  json.RawMessage
	attempts int
	captured map[string]any
	// destination is the one that its last attempt went to.
	destination string
	// doubt is what clears up a lost answer, by the rule that it was sent by.
	doubt effects.Doubt
	// once: by that rule it is not sent again where the other side does not know of it.
	once bool
	// ended is how long ago its last attempt ended, below zero where that is not known, or was told by a clock that was ahead; known, how long ago the first was reserved that may have been done.
	ended, known time.Duration
}

// taken is an effect that this process has taken.
type taken struct {
	effect int64
	// claims counts how often it was taken: this attempt is the one that it names.
	claims    int64
	key, rule string
	// destination is the one that its next step goes to.
	destination     string
	version, forced int
	undoing         bool
	attempts        int
	facts           []byte
	// age is for how long its step has been tried in this round, which the last step or a person's word began; first: this attempt is the first of it.
	age   time.Duration
	first bool
	// now is when it was taken, by the database's clock, and at a moment before that, by this process's.
	now, at time.Time
	steps   []begun
}

// row is that of a step, nil where it was not begun.
func (t *taken) row(step string, undo bool) *begun {
	for i := range t.steps {
		if t.steps[i].step == step && t.steps[i].undo == undo {
			return &t.steps[i]
		}
	}
	return nil
}

// claim takes effects and reads what was begun of them.
func claim(ctx context.Context, tx pgx.Tx, destination, id string, most int, lease time.Duration) ([]*taken, error) {
	at := time.Now()
	rows, err := tx.Query(ctx, claimSQL, destination, most, id, lease)
	if err != nil {
		return nil, fmt.Errorf("take effects: %w", err)
	}
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (*taken, error) {
		t := &taken{at: at}
		return t, row.Scan(&t.effect, &t.claims, &t.key, &t.version, &t.forced, &t.rule, &t.undoing, &t.attempts, &t.facts, &t.age, &t.first, &t.now)
	})
	if err != nil || len(all) == 0 {
		return nil, err
	}
	byID, ids := map[int64]*taken{}, make([]int64, len(all))
	for i, t := range all {
		byID[t.effect], ids[i] = t, t.effect
	}
	if rows, err = tx.Query(ctx, begunSQL, ids); err != nil {
		return nil, fmt.Errorf("read steps: %w", err)
	}
	var effect int64
	var b begun
	var captured []byte
	_, err = pgx.ForEachRow(rows, []any{&effect, &b.step, &b.undo, &b.state, &b.request, &b.attempts, &captured, &b.destination, &b.ended, &b.known, &b.doubt, &b.once}, func() (err error) {
		if b.captured, err = rules.Decode(captured); err != nil { // which keeps a long number, as of an id, what it is
			return err
		}
		byID[effect].steps = append(byID[effect].steps, b)
		b.request = nil
		return nil
	})
	return all, err
}

// call is one request that is to be made, for a step or to ask whether it was done.
type call struct {
	*taken
	rule  *rules.Rule
	step  *rules.Step
	undo  bool
	check bool
	// doubted: nobody knows whether an attempt before this one did the step.
	doubted bool
	// by is what clears up a lost answer, and once: the step is not sent again for a no of the other side.
	by      effects.Doubt
	once    bool
	place   int
	request rules.Rendered
	facts   *rules.Facts
}

// captures are the names of what the answer is to say, which are of letters, digits and _.
func (c *call) captures() []string {
	if c.undo {
		return nil
	}
	return slices.Sorted(maps.Keys(c.step.Capture))
}

// reserve enters the steps of calls that may do something.
func reserve(ctx context.Context, tx pgx.Tx, calls []*call) error {
	var ids []int64
	var steps, destinations, doubts, captures []string
	var undos, onces, undoable []bool
	var places []int32
	var requests, prints [][]byte
	for _, c := range calls {
		if c.check {
			continue
		}
		stored, print, err := fingerprint(c.request)
		if err != nil {
			return err
		}
		ids, steps, undos, places = append(ids, c.effect), append(steps, c.step.Name), append(undos, c.undo), append(places, int32(c.place))
		destinations, requests, prints = append(destinations, c.step.Destination), append(requests, stored), append(prints, print)
		doubts, onces, undoable = append(doubts, string(c.by)), append(onces, c.once), append(undoable, c.step.Undo != nil)
		captures = append(captures, strings.Join(c.captures(), ","))
	}
	if len(ids) == 0 {
		return nil
	}
	if _, err := tx.Exec(ctx, reserveSQL, ids, steps, undos, places, destinations, requests, prints, doubts, onces, undoable, captures); err != nil {
		return fmt.Errorf("reserve %d steps: %w", len(ids), err)
	}
	return nil
}

// ending is what came of a call, or of an effect that could not be called for.
type ending struct {
	effect int64
	// claims is the attempt that came to it.
	claims int64
	// step is empty where no step has changed.
	step     string
	undo     bool
	stepIs   effects.StepState
	status   int
	captured map[string]any
	trouble  string
	// person: only a person can say what came of the step.
	person bool

	state       effects.State
	reason      string
	wait        time.Duration
	destination string
	attempts    int
	// afresh: the next attempt is the first of its round.
	afresh bool

	// rule is the effect's, for the log; unruled: it is not configured here; doubted: the step was in doubt before.
	rule             string
	unruled, doubted bool
}

// record writes what came of effects that were taken, and gives those of which no other attempt was begun meanwhile.
func record(ctx context.Context, tx pgx.Tx, all []ending) (own []ending, err error) {
	n := len(all)
	ids, claims, states, reasons, waits, destinations, attempts, afresh := make([]int64, n), make([]int64, n), make([]string, n), make([]string, n), make([]int64, n), make([]string, n), make([]int32, n), make([]bool, n)
	for i, e := range all {
		ids[i], claims[i], states[i], reasons[i], waits[i], destinations[i], attempts[i], afresh[i] = e.effect, e.claims, string(e.state), e.reason, e.wait.Microseconds(), e.destination, int32(e.attempts), e.afresh
	}
	steps, err := stepArgs(all)
	if err != nil {
		return nil, err
	}
	var b pgx.Batch // one after the other, without waiting for each
	b.Queue(ownSQL, ids)
	if steps != nil {
		b.Queue(endStepsSQL, steps...)
	}
	taken := map[[2]int64]bool{} // by effect and attempt, since two attempts of one effect may end together
	b.Queue(endSQL, ids, states, reasons, waits, destinations, attempts, claims, afresh).Query(func(rows pgx.Rows) error {
		var of [2]int64
		_, err := pgx.ForEachRow(rows, []any{&of[0], &of[1]}, func() error { taken[of] = true; return nil })
		return err
	})
	if err := tx.SendBatch(ctx, &b).Close(); err != nil {
		return nil, fmt.Errorf("record what came of %d effects: %w", n, err)
	}
	return slices.DeleteFunc(slices.Clone(all), func(e ending) bool { return !taken[[2]int64{e.effect, e.claims}] }), nil
}

// stepArgs are the arguments of endStepsSQL; nil where no step has changed.
func stepArgs(all []ending) ([]any, error) {
	var ids, claims []int64
	var steps, states, troubles []string
	var undos, persons []bool
	var statuses []int32
	var captured [][]byte
	for _, e := range all {
		if e.step == "" {
			continue
		}
		if e.captured == nil {
			e.captured = map[string]any{}
		}
		b, err := json.Marshal(e.captured)
		if err != nil {
			return nil, fmt.Errorf("write what was captured: %w", err)
		}
		ids, claims, steps, undos, states = append(ids, e.effect), append(claims, e.claims), append(steps, e.step), append(undos, e.undo), append(states, string(e.stepIs))
		statuses, captured, troubles = append(statuses, int32(e.status)), append(captured, b), append(troubles, e.trouble)
		persons = append(persons, e.person)
	}
	if len(ids) == 0 {
		return nil, nil
	}
	return []any{ids, steps, undos, states, statuses, captured, troubles, claims, persons}, nil
}
