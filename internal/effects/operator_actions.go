package effects

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/events"
)

// lockSQL locks effects for an operator's action. A processor skips locked effects.
const lockSQL = `SELECT FROM effects WHERE effect = ANY($1::bigint[]) ORDER BY effect FOR UPDATE`

const approveSQL = `UPDATE effects SET state = 'planned', due = clock_now(), updated_at = clock_now()
	WHERE effect = ANY($1::bigint[])`

const rejectSQL = `UPDATE effects SET state = 'rejected', due = NULL, reason = $2, updated_at = clock_now()
	WHERE effect = ANY($1::bigint[])`

// retrySQL makes steps due now. A step that was not executed renders its request again from the
// rule. A step that may have been executed keeps its request.
const retrySQL = `
WITH cleared AS (UPDATE effect_steps SET request = NULL WHERE effect = ANY($1::bigint[]) AND state = 'failed')
UPDATE effects SET state = 'planned', due = clock_now(), first_attempt_at = NULL, attempts = 0, reason = '',
	updated_at = clock_now() WHERE effect = ANY($1::bigint[])`

// resolveSQL records an operator's decision on a step and makes the effect continue. Other steps
// that were not executed render their requests again, with the values that are captured now.
const resolveSQL = `
WITH decided AS (
  UPDATE effect_steps SET state = $4, captured = captured || $5::jsonb, error = $6, ended_at = coalesce(ended_at,
  	clock_now()) WHERE effect = $1 AND step = $2 AND undo = $3
), cleared AS (
  UPDATE effect_steps SET request = NULL WHERE effect = $1 AND state = 'failed' AND (step, undo) <> ($2, $3)
)
UPDATE effects SET state = 'planned', due = clock_now(), first_attempt_at = NULL, attempts = 0, reason = '',
	updated_at = clock_now() WHERE effect = $1`

const compensateSQL = `
UPDATE effects e SET compensating = true, state = 'planned', due = clock_now(), first_attempt_at = NULL, attempts = 0,
	reason = '', updated_at = clock_now(), destination = d.destination
FROM unnest($1::bigint[], $2::text[]) AS d(effect, destination) WHERE e.effect = d.effect`

// ResolveParams is an operator's decision on a step.
type ResolveParams struct {
	Step string
	// Done says that the step was executed; false says that it was not.
	Done bool
	// Captured is a JSON object with values of the step's response, if it was executed. Together
	// with the values that are already captured, it has to hold all that the rule captures. Nil
	// adds nothing.
	Captured json.RawMessage
}

// Approve lets effects start that await approval. Errors: events.ErrNotFound, and events.ErrInvalid
// if one of them does not await approval or has expired. Then none is approved.
func Approve(ctx context.Context, tx pgx.Tx, ids ...int64) ([]View, error) {
	return actOnEffects(ctx, tx, ids, func(v *View) error {
		if v.State != AwaitingApproval {
			return v.wrongState("there is nothing to approve")
		}
		if v.ApprovalExpired {
			return v.invalid("it could be approved until %s (approval_expires of its rule), so none of its steps is "+
				"started any more", v.ExpiresAt)
		}
		return nil
	}, func([]View) error { return exec(ctx, tx, "approve", approveSQL, ids) })
}

// Reject ends effects permanently, with a reason. Steps that are done stay done. Errors:
// events.ErrNotFound, and events.ErrInvalid if one of them is running or has ended. Then none is
// rejected.
func Reject(ctx context.Context, tx pgx.Tx, reason string, ids ...int64) ([]View, error) {
	return actOnEffects(ctx, tx, ids, func(v *View) error {
		return v.requireState("it cannot be rejected", AwaitingApproval, Planned, Failed, Review)
	}, func([]View) error { return exec(ctx, tx, "reject", rejectSQL, ids, events.SanitizeText(reason)) })
}

// Retry makes effects due now that failed or need review. Errors: events.ErrNotFound, and
// events.ErrInvalid if one of them cannot be retried. Then none is retried.
func Retry(ctx context.Context, tx pgx.Tx, ids ...int64) ([]View, error) {
	return actOnEffects(ctx, tx, ids, func(v *View) error {
		if err := v.requireState("there is nothing to retry", Failed, Review); err != nil {
			return err
		}
		if v.isRedacted() {
			return v.invalid("its template data was redacted, so no request can be sent for it: postern "+
				"effects reject %d ends it", v.Effect.ID)
		}
		if v.hasRuleFailure() {
			return v.invalid("its rule failed, so it is unknown what has to follow: %s, and reject this effect",
				v.describeManualWork())
		}
		if s := v.unknownStep(); s != nil && s.Recovery == RecoverByOperator {
			return v.invalid("it is unknown whether %s was executed, and it must not be executed twice: check at the "+
				"destination, then run postern effects resolve %d --step %s %s, or --not-done", s.describe(),
				v.Effect.ID, s.Step, s.resolveFlags())
		}
		return nil
	}, func([]View) error { return exec(ctx, tx, "retry", retrySQL, ids) })
}

// Resolve records an operator's decision on a step and makes the effect continue. The outcome of
// the step is unknown, the destination could not be asked about it before its first attempt, or the
// step is done and its response lacked a value to capture. While the effect is in review, an
// operator may also add captured values to a step that is done. Errors: events.ErrNotFound, and
// events.ErrInvalid if there is nothing to resolve or if a value that later steps need is missing.
func Resolve(ctx context.Context, tx pgx.Tx, id int64, params ResolveParams) ([]View, error) {
	captured, err := params.validCaptured()
	if err != nil {
		return nil, err
	}
	return actOnEffects(ctx, tx, []int64{id}, func(v *View) error {
		if err := v.requireState("there is nothing to resolve", Planned, Failed, Review); err != nil {
			return err
		}
		s := v.findStep(params.Step, v.Compensating)
		switch {
		case s == nil:
			return v.invalid("step %q has not started%s", params.Step, v.describeStartedSteps())
		case s.State == Skipped:
			return v.invalid("%s was skipped, so there is nothing to resolve", s.describe())
		case s.State == StepFailed:
			return v.invalid("%s was not executed, so there is nothing to resolve; postern effects retry %d retries it",
				s.describe(), id)
		case s.State == StepDone && !s.lacksCaptures() &&
			!(params.Done && v.State == Review && string(captured) != "{}"):
			return v.invalid("%s is done, so there is nothing to resolve", s.describe())
		case params.Done && len(s.missingCaptures(captured)) > 0 && !v.isRedacted():
			return v.invalid("%s has to capture %s, which later steps may need: pass the values that the destination "+
				"has with --captured, or null for a value that it does not have", s.describe(),
				strings.Join(s.missingCaptures(captured), ", "))
		}
		return nil
	}, func(all []View) error {
		state, message := StepDone, ""
		if !params.Done {
			state, message = StepFailed, "an operator said that it was not executed"
		}
		return exec(ctx, tx, "resolve", resolveSQL, id, params.Step, all[0].Compensating, state, captured, message)
	})
}

// validCaptured returns the captured values that an operator passes, a JSON object. Errors:
// events.ErrInvalid.
func (params *ResolveParams) validCaptured() (json.RawMessage, error) {
	empty := json.RawMessage(`{}`)
	if len(params.Captured) == 0 {
		return empty, nil
	}
	var fields map[string]any
	if err := json.Unmarshal(params.Captured, &fields); err != nil || fields == nil {
		return nil, fmt.Errorf(`%w: the captured values are not a JSON object: write them like {"id": "in_1"}`,
			events.ErrInvalid)
	}
	if bytes.Contains(params.Captured, []byte(`\u0000`)) {
		return nil, fmt.Errorf("%w: the captured values contain NUL, which PostgreSQL cannot store", events.ErrInvalid)
	}
	if !params.Done && len(fields) > 0 {
		return nil, fmt.Errorf("%w: a step that was not executed has no captured values", events.ErrInvalid)
	}
	if len(fields) == 0 {
		return empty, nil
	}
	return params.Captured, nil
}

// Compensate undoes the steps of effects that are done, the last one first. With partial, steps
// without a compensation stay done. Errors: events.ErrNotFound, and events.ErrInvalid if one of the
// effects cannot be compensated. Then none is.
func Compensate(ctx context.Context, tx pgx.Tx, partial bool, ids ...int64) ([]View, error) {
	return actOnEffects(ctx, tx, ids, func(v *View) error {
		return v.checkCompensable(partial)
	}, func(all []View) error {
		destinations := make([]string, len(all))
		ids := make([]int64, len(all))
		for i := range all {
			ids[i], destinations[i] = all[i].Effect.ID, all[i].firstToUndo(partial).Destination
		}
		return exec(ctx, tx, "compensate", compensateSQL, ids, destinations)
	})
}

func (v *View) checkCompensable(partial bool) error {
	if err := v.requireState("there is nothing to compensate", Done, Review, Failed, Rejected); err != nil {
		return err
	}
	if v.Compensating {
		return v.invalid("it is already being compensated, or was; see postern effects show %d", v.Effect.ID)
	}
	if v.isRedacted() {
		return v.invalid("its template data was redacted or has expired (retention.effects), so Postern cannot " +
			"compensate any of its steps")
	}
	if s := v.unknownStep(); s != nil && v.State == Rejected {
		return v.invalid("it is unknown whether %s was executed, and the effect was rejected: check at the "+
			"destination, and undo by hand if it was", s.describe())
	}
	if s := v.unknownStep(); s != nil {
		return v.invalid("it is unknown whether %s was executed: first say what happened, with postern effects "+
			"resolve %d --step %s %s, or --not-done", s.describe(), v.Effect.ID, s.Step, s.resolveFlags())
	}
	lasting := v.notUndoableSteps()
	anyDone := len(lasting)+len(v.undoableSteps()) > 0
	switch {
	case !anyDone && (v.State == Rejected || v.State == Done):
		return v.invalid("none of its steps has changed something, so there is nothing to compensate")
	case !anyDone:
		return v.invalid("none of its steps has changed something; postern effects reject %d ends it", v.Effect.ID)
	case len(lasting) > 0 && !partial:
		return v.invalid("its rule had no compensate for %s when they were executed: --partial compensates the other "+
			"steps, and these too if the rule has a compensate for them by now", strings.Join(lasting, ", "))
	}
	return nil
}

// firstToUndo returns the last step that is done and can be compensated.
func (v *View) firstToUndo(partial bool) *Step {
	for i := range slices.Backward(v.Steps) {
		if s := &v.Steps[i]; s.State == StepDone && !s.Undo && (s.Undoable || partial) {
			return s
		}
	}
	return &Step{Destination: v.Destination}
}

// actOnEffects applies an operator's action to all of the effects, or to none.
func actOnEffects(ctx context.Context, tx pgx.Tx, ids []int64, check func(*View) error,
	update func([]View) error) ([]View, error) {
	if len(ids) == 0 {
		return nil, fmt.Errorf("%w: name at least one effect", events.ErrInvalid)
	}
	if _, err := tx.Exec(ctx, lockSQL, ids); err != nil {
		return nil, fmt.Errorf("lock effects: %w", err)
	}
	all, err := Show(ctx, tx, ids...)
	if err != nil {
		return nil, err
	}
	var errs []error
	for i := range all {
		errs = append(errs, check(&all[i]))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	if err := update(all); err != nil {
		return nil, err
	}
	return Show(ctx, tx, ids...)
}

func exec(ctx context.Context, tx pgx.Tx, verb, sql string, args ...any) error {
	if _, err := tx.Exec(ctx, sql, args...); err != nil {
		return fmt.Errorf("%s effects: %w", verb, err)
	}
	return nil
}

// requireState returns an error if the effect is in none of the states.
func (v *View) requireState(consequence string, states ...State) error {
	switch {
	case slices.Contains(states, v.State):
		return nil
	case v.State == Running:
		return v.invalid("a processor is executing its next step now: try again in a moment")
	}
	return v.wrongState(consequence)
}

func (v *View) wrongState(consequence string) error {
	return v.invalid("it is %s, so %s", v.State, consequence)
}

func (v *View) invalid(format string, args ...any) error {
	return fmt.Errorf("%w: effect %d: "+format, append([]any{events.ErrInvalid, v.Effect.ID}, args...)...)
}

// describeStartedSteps lists the steps that have started.
func (v *View) describeStartedSteps() string {
	var names []string
	for _, s := range v.Steps {
		if s.Undo == v.Compensating && s.State != Skipped {
			names = append(names, s.Step)
		}
	}
	if len(names) == 0 {
		return "; none of its steps has started"
	}
	return "; these steps have started: " + strings.Join(names, ", ")
}
