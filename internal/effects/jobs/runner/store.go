package runner

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/effects"
	"github.com/postern-gateway/postern/internal/effects/rules"
	"github.com/postern-gateway/postern/internal/postgres"
)

// leaseSQL leases effects whose next step goes to a destination and is due. It skips effects that
// another process is leasing, and effects in order that wait for an earlier one of their object.
// first_attempt_at starts the age limit of the retries of a round. The statement reads the time
// once and passes the selected effects also as an array. PostgreSQL then uses an index for both,
// whatever it estimates.
const leaseSQL = `
WITH due AS MATERIALIZED (
  SELECT effect, first_attempt_at FROM effects n WHERE destination = $1 AND state IN ('planned', 'failed')
  	AND due <= (SELECT clock_now()) AND (NOT n.in_order OR NOT EXISTS (SELECT FROM effects b
  	WHERE b.source = n.source AND b.account = n.account AND b.object_type = n.object_type
  	AND b.object_id = n.object_id AND b.rule = n.rule AND b.effect < n.effect AND b.in_order
  	AND b.state IN ('planned', 'running', 'failed')))
  	ORDER BY due LIMIT $2 FOR UPDATE SKIP LOCKED
)
UPDATE effects e SET state = 'running', due = NULL, lease_owner = $3, lease_until = clock_now() + $4::interval,
	lease_epoch = e.lease_epoch + 1, attempts = e.attempts + 1, updated_at = clock_now(),
  first_attempt_at = coalesce(e.first_attempt_at, CASE WHEN e.attempts > 0 THEN e.planned_at ELSE clock_now() END)
FROM due WHERE e.effect = due.effect AND e.effect = ANY(ARRAY(SELECT effect FROM due))
RETURNING e.effect, e.lease_epoch, e.key, e.rule_version, e.forced, e.rule, e.compensating, e.attempts, e.template_data,
	clock_now() - e.first_attempt_at, due.first_attempt_at IS NULL, clock_now()`

// stepsSQL reads the steps that have started. For a step older than the column first_attempt_at,
// the time of planning is the earliest possible one.
const stepsSQL = `
SELECT effect, s.step, s.undo, s.state, coalesce(s.request, 'null'), s.attempts, s.captured, s.destination,
	coalesce(clock_now() - s.ended_at, interval '-1 s'), clock_now() - coalesce(s.first_attempt_at, CASE
	WHEN s.attempts > 1 THEN e.planned_at ELSE s.reserved_at END), s.resolved_by, s.at_most_once
FROM effect_steps s JOIN effects e USING (effect) WHERE effect = ANY($1::bigint[]) ORDER BY effect, s.position, s.undo`

// reserveSQL inserts steps before their calls, and skipped steps. first_attempt_at restarts after
// an attempt that was not executed. After any other attempt the destination may know the step. A
// check before the first attempt is no attempt.
const reserveSQL = `
INSERT INTO effect_steps AS s (effect, step, undo, position, state, destination, request, fingerprint, resolved_by,
	at_most_once,
	undoable, captures, attempts, reserved_at, first_attempt_at, ended_at, reason)
SELECT d.effect, d.step, d.undo, d.position, d.state, d.destination, d.request, d.fingerprint, d.resolved_by,
	d.at_most_once,
	d.undoable, string_to_array(d.captures, ','), (d.state = 'reserved')::int, now.at,
	CASE WHEN d.state = 'reserved' THEN now.at END, CASE WHEN d.state = 'skipped' THEN now.at END, d.reason
FROM unnest($1::bigint[], $2::text[], $3::bool[], $4::int[], $5::text[], $6::jsonb[], $7::bytea[], $8::text[],
	$9::bool[], $10::bool[], $11::text[], $12::text[], $13::text[])
  AS d(effect, step, undo, position, destination, request, fingerprint, resolved_by, at_most_once, undoable, captures,
  	state, reason), (SELECT clock_now() AS at) now
ON CONFLICT (effect, step, undo) DO UPDATE SET state = excluded.state, destination = excluded.destination,
	request = excluded.request, fingerprint = excluded.fingerprint,
  resolved_by = excluded.resolved_by, at_most_once = excluded.at_most_once, undoable = excluded.undoable,
  	captures = excluded.captures,
  	attempts = s.attempts + excluded.attempts, reserved_at = excluded.reserved_at,
  first_attempt_at = CASE WHEN s.state IN ('failed', 'checking') THEN excluded.first_attempt_at
  	ELSE coalesce(s.first_attempt_at, CASE WHEN s.attempts > 1 THEN (SELECT planned_at FROM effects
  		WHERE effect = s.effect) ELSE s.reserved_at END) END,
  	ended_at = NULL, status = NULL, error = ''`

// lockSQL locks the effects of results before any other statement, in the same order as a redaction
// does. The next statements then see earlier redactions, and the two cannot deadlock.
const lockSQL = `SELECT FROM effects WHERE effect = ANY($1::bigint[]) ORDER BY effect FOR UPDATE`

// finishStepsSQL records the results of steps, unless another attempt has started. It stores no
// response data of effects that were redacted meanwhile. An unknown outcome without new information
// keeps its old error and status, and gets an end time if it had none or a future one.
const finishStepsSQL = `
UPDATE effect_steps s SET state = d.state, reason = d.reason, ended_at = CASE WHEN d.state = 'checking' THEN NULL
	WHEN s.state = 'unknown' AND d.state = 'unknown' THEN least(s.ended_at, clock_now()) ELSE clock_now() END,
	status = CASE WHEN d.state = 'unknown' AND d.error = '' THEN s.status ELSE nullif(d.status, 0) END,
	resolved_by = CASE WHEN d.person THEN 'operator' ELSE s.resolved_by END,
  captured = CASE WHEN e.template_data IS NULL THEN '{}' ELSE d.captured END, error = CASE
  	WHEN e.template_data IS NULL THEN ''
  	WHEN d.state = 'unknown' AND d.error = '' THEN s.error ELSE d.error END
FROM unnest($1::bigint[], $2::text[], $3::bool[], $4::text[], $5::int[], $6::jsonb[], $7::text[], $8::bigint[],
	$9::bool[], $10::text[]) AS d(effect, step, undo, state, status, captured, error, lease_epoch, person, reason)
JOIN effects e ON e.effect = d.effect AND e.state = 'running' AND e.lease_epoch = d.lease_epoch
WHERE s.effect = d.effect AND s.step = d.step AND s.undo = d.undo`

const finishSQL = `
UPDATE effects e SET state = d.state, reason = CASE WHEN e.template_data IS NULL THEN '' ELSE d.reason END, due = CASE
	WHEN d.state IN ('planned', 'failed') THEN clock_now() + d.wait * interval '1 microsecond' END,
	destination = d.destination,
  attempts = d.attempts, first_attempt_at = CASE WHEN NOT d.afresh THEN e.first_attempt_at END, lease_owner = '',
  	lease_until = NULL,
  	updated_at = clock_now()
FROM unnest($1::bigint[], $2::text[], $3::text[], $4::bigint[], $5::text[], $6::int[], $7::bigint[], $8::bool[]) AS
	d(effect, state, reason, wait, destination, attempts, lease_epoch, afresh)
WHERE e.effect = d.effect AND e.state = 'running' AND e.lease_epoch = d.lease_epoch
RETURNING e.effect, e.lease_epoch`

// reclaimSQL ends expired leases. The outcome of a reserved step is then unknown, and its attempt
// ended with the lease. It returns which effects have a newly unknown outcome.
const reclaimSQL = `
WITH ended AS MATERIALIZED (
  SELECT effect, lease_until FROM effects WHERE state = 'running' AND lease_until <= clock_now() ORDER BY effect
  	LIMIT 1000 FOR UPDATE SKIP LOCKED
), lapsed AS (
  UPDATE effects e SET state = 'failed', due = clock_now(), lease_owner = '', lease_until = NULL,
  	reason = 'the process that executed it ended', updated_at = clock_now()
  FROM ended WHERE e.effect = ended.effect AND e.effect = ANY(ARRAY(SELECT effect FROM ended))
  RETURNING e.effect, e.rule, e.destination, ended.lease_until
), doubted AS (
  UPDATE effect_steps s SET state = 'unknown', ended_at = lapsed.lease_until,
  	error = 'the process ended before a response arrived' FROM lapsed WHERE s.effect = lapsed.effect
  	AND s.state = 'reserved'
  RETURNING s.effect, coalesce(s.first_attempt_at < s.reserved_at, false) AS before
)
SELECT effect, rule, destination, effect IN (SELECT effect FROM doubted WHERE NOT before) FROM lapsed ORDER BY effect`

// stepRow is the row of a step.
type stepRow struct {
	step     string
	undo     bool
	state    effects.StepState
	request  json.RawMessage
	attempts int
	captured map[string]any
	// destination is the destination of its last attempt.
	destination string
	// recovery is how a lost response is cleared up, according to the rule that rendered the
	// request.
	recovery effects.Recovery
	// neverRepeat says that this rule forbids a repetition even if the destination does not know
	// the step.
	neverRepeat bool
	// endedAgo is the time since the end of its last attempt; negative if unknown or in the future.
	// mayBeDoneFor is the time since the reservation of the first attempt that may have been
	// executed.
	endedAgo, mayBeDoneFor time.Duration
}

// isOwn reports whether Postern did the step. It does not compensate a step that the destination
// had before.
func (b *stepRow) isOwn() bool { return b.state == effects.StepDone && b.attempts > 0 }

// readsOnly reports whether the step changes nothing at the destination.
func (b *stepRow) readsOnly() bool {
	var request rules.RenderedRequest
	return json.Unmarshal(b.request, &request) == nil && request.Method == http.MethodGet
}

// leasedEffect is an effect that this process has leased.
type leasedEffect struct {
	effect int64
	// leaseEpoch counts the leases of the effect and identifies this attempt.
	leaseEpoch int64
	key, rule  string
	// destination is where its next step goes.
	destination     string
	version, forced int
	undoing         bool
	attempts        int
	templateData    []byte
	// roundAge is the time since the first attempt of this round. A round starts with a step or an
	// operator's action. firstOfRound reports that this attempt is the first of the round.
	roundAge     time.Duration
	firstOfRound bool
	// databaseTime is when the database leased it. leasedAt is a moment before that, by the clock
	// of this process.
	databaseTime, leasedAt time.Time
	// decideUntil is until when the lease's transaction decides about further effects and steps.
	decideUntil time.Time
	steps       []stepRow
	// skipped are the steps that were skipped during this lease, for reserve.
	skipped []skippedStep
}

// findStep returns the row of a step, nil if it has not started.
func (t *leasedEffect) findStep(step string, undo bool) *stepRow {
	for i := range t.steps {
		if t.steps[i].step == step && t.steps[i].undo == undo {
			return &t.steps[i]
		}
	}
	return nil
}

// decideShare is the part of a transaction's timeout after which its leased effects are decided
// later. Expressions took that long, and must not make the transaction fail.
const decideShare = 4

// leaseEffects leases effects and reads their steps.
func (r *Runner) leaseEffects(ctx context.Context, tx pgx.Tx, destination string, most int,
	lease time.Duration) ([]*leasedEffect, error) {
	at := time.Now()
	all, err := postgres.Collect(ctx, tx, func(row pgx.CollectableRow) (*leasedEffect, error) {
		t := &leasedEffect{leasedAt: at}
		return t, row.Scan(&t.effect, &t.leaseEpoch, &t.key, &t.version, &t.forced, &t.rule, &t.undoing, &t.attempts,
			&t.templateData, &t.roundAge, &t.firstOfRound, &t.databaseTime)
	}, leaseSQL, destination, most, r.ID, lease)
	if err != nil || len(all) == 0 {
		return nil, err
	}
	byID, ids := map[int64]*leasedEffect{}, make([]int64, len(all))
	for i, t := range all {
		byID[t.effect], ids[i] = t, t.effect
	}
	var effect int64
	var b stepRow
	var captured []byte
	err = postgres.ForEach(ctx, tx, stepsSQL, []any{ids}, []any{&effect, &b.step, &b.undo, &b.state, &b.request,
		&b.attempts, &captured,
		&b.destination, &b.endedAgo, &b.mayBeDoneFor, &b.recovery, &b.neverRepeat}, func() (err error) {
		if b.captured, err = rules.Decode(captured); err != nil { // it keeps long numbers, such as ids, exact
			return err
		}
		byID[effect].steps = append(byID[effect].steps, b)
		b.request = nil
		return nil
	})
	for _, t := range all {
		t.decideUntil = time.Now().Add(r.Settings.TxTimeout / decideShare)
	}
	return all, err
}

// call is a request for a step, or for the check of a step.
type call struct {
	*leasedEffect
	rule  *rules.Rule
	step  *rules.Step
	undo  bool
	check bool
	// first reports that the check runs before the first attempt of the step.
	first bool
	// outcomeUnknown reports that an earlier attempt may have executed the step.
	outcomeUnknown bool
	// recovery is how a lost response is cleared up. neverRepeat forbids to repeat the step after a
	// check says no.
	recovery    effects.Recovery
	neverRepeat bool
	position    int
	request     rules.RenderedRequest
	data        *rules.TemplateData
}

// captureNames returns the names of the values to capture, which consist of letters, digits and _.
func captureNames(step *rules.Step) string {
	return strings.Join(slices.Sorted(maps.Keys(step.Capture)), ",")
}

// reserve inserts the steps of calls that may change something or that run before such a call, and
// skipped steps. A row is the decision that the condition of its step was true or false.
func reserve(ctx context.Context, tx pgx.Tx, calls []*call, skipped []skippedStep) error {
	var ids []int64
	var steps, destinations, recoveries, captures, states, reasons []string
	var undos, neverRepeat, undoable []bool
	var positions []int32
	var requests, fingerprints [][]byte
	for _, c := range calls {
		state := effects.Reserved
		var stored, print []byte
		var err error
		switch {
		case c.first:
			state, print = effects.Checking, []byte{}
		case c.check:
			continue
		default:
			if stored, print, err = fingerprint(c.request); err != nil {
				return err
			}
		}
		names := ""
		if !c.undo {
			names = captureNames(c.step)
		}
		ids, steps, undos, positions = append(ids, c.effect), append(steps, c.step.Name), append(undos, c.undo),
			append(positions, int32(c.position))
		destinations, requests, fingerprints = append(destinations, c.step.Destination), append(requests, stored),
			append(fingerprints, print)
		recoveries, neverRepeat, undoable = append(recoveries, string(c.recovery)), append(neverRepeat, c.neverRepeat),
			append(undoable, c.step.Undo != nil)
		captures, states, reasons = append(captures, names), append(states, string(state)), append(reasons, "")
	}
	for i := range skipped {
		s := &skipped[i]
		by, never := ruleRecovery(s.step, false)
		ids, steps, undos, positions = append(ids, s.effect), append(steps, s.step.Name), append(undos, false),
			append(positions, int32(s.position))
		destinations, requests, fingerprints = append(destinations, s.step.Destination), append(requests, nil),
			append(fingerprints, []byte{})
		recoveries, neverRepeat, undoable = append(recoveries, string(by)), append(neverRepeat, never),
			append(undoable, s.step.Undo != nil)
		captures, states, reasons = append(captures, captureNames(s.step)), append(states, string(effects.Skipped)),
			append(reasons, s.reason)
	}
	if len(ids) == 0 {
		return nil
	}
	if _, err := tx.Exec(ctx, reserveSQL, ids, steps, undos, positions, destinations, requests, fingerprints,
		recoveries, neverRepeat, undoable, captures, states, reasons); err != nil {
		return fmt.Errorf("reserve %d steps: %w", len(ids), err)
	}
	return nil
}

// result is the result of a call, or of an effect that had no call.
type result struct {
	effect int64
	// leaseEpoch identifies the attempt.
	leaseEpoch int64
	// step is empty if no step has changed.
	step      string
	undo      bool
	stepState effects.StepState
	status    int
	captured  map[string]any
	message   string
	// stepReason says why the step is done although its request was never sent.
	stepReason string
	// notFoundBefore reports that a check before the first attempt did not find the step.
	notFoundBefore bool
	// operatorOnly reports that only an operator can say what happened to the step.
	operatorOnly bool

	state       effects.State
	reason      string
	delay       time.Duration
	destination string
	attempts    int
	// newRound makes the next attempt the first of its round.
	newRound bool

	// rule is the effect's rule, for the log. ruleMissing reports that it is not configured here.
	// wasUnknown reports that the outcome of the step was already unknown.
	rule                    string
	ruleMissing, wasUnknown bool
}

// record records the results of leased effects, and returns those whose lease was still valid.
func record(ctx context.Context, tx pgx.Tx, all []result) (recorded []result, err error) {
	n := len(all)
	ids, leaseEpochs, states, reasons, waits, destinations, attempts, newRound := make([]int64, n), make([]int64, n),
		make([]string, n), make([]string, n), make([]int64, n), make([]string, n), make([]int32, n), make([]bool, n)
	for i, e := range all {
		ids[i], leaseEpochs[i], states[i], reasons[i], waits[i], destinations[i], attempts[i], newRound[i] = e.effect,
			e.leaseEpoch, string(e.state), e.reason, e.delay.Microseconds(), e.destination, int32(e.attempts),
			e.newRound
	}
	steps, err := stepArgs(all)
	if err != nil {
		return nil, err
	}
	var b pgx.Batch // pipelined, without waiting for each statement
	b.Queue(lockSQL, ids)
	if steps != nil {
		b.Queue(finishStepsSQL, steps...)
	}
	finished := map[[2]int64]bool{} // by effect and lease epoch, since two attempts of one effect may end together
	b.Queue(finishSQL, ids, states, reasons, waits, destinations, attempts, leaseEpochs,
		newRound).Query(func(rows pgx.Rows) error {
		var of [2]int64
		_, err := pgx.ForEachRow(rows, []any{&of[0], &of[1]}, func() error { finished[of] = true; return nil })
		return err
	})
	if err := tx.SendBatch(ctx, &b).Close(); err != nil {
		return nil, fmt.Errorf("record the results of %d effects: %w", n, err)
	}
	return slices.DeleteFunc(slices.Clone(all),
			func(e result) bool { return !finished[[2]int64{e.effect, e.leaseEpoch}] }),
		nil
}

// stepArgs returns the arguments of finishStepsSQL; nil if no step has changed.
func stepArgs(all []result) ([]any, error) {
	var ids, leaseEpochs []int64
	var steps, states, messages, reasons []string
	var undos, operatorOnly []bool
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
			return nil, fmt.Errorf("write captured values: %w", err)
		}
		ids, leaseEpochs, steps = append(ids, e.effect), append(leaseEpochs, e.leaseEpoch), append(steps, e.step)
		undos, states = append(undos, e.undo), append(states, string(e.stepState))
		statuses, captured, messages = append(statuses, int32(e.status)), append(captured, b),
			append(messages, e.message)
		operatorOnly, reasons = append(operatorOnly, e.operatorOnly), append(reasons, e.stepReason)
	}
	if len(ids) == 0 {
		return nil, nil
	}
	return []any{ids, steps, undos, states, statuses, captured, messages, leaseEpochs, operatorOnly,
		reasons}, nil
}
