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

// lockSQL takes effects for a person's word. A processor passes over them meanwhile, or has taken them before.
const lockSQL = `SELECT FROM effects WHERE effect = ANY($1::bigint[]) ORDER BY effect FOR UPDATE`

const approveSQL = `UPDATE effects SET state = 'planned', due = clock_now(), updated_at = clock_now() WHERE effect = ANY($1::bigint[])`

const rejectSQL = `UPDATE effects SET state = 'rejected', due = NULL, reason = $2, updated_at = clock_now() WHERE effect = ANY($1::bigint[])`

// retrySQL has steps tried now. The request of a step that was not done is made anew of its rule; one that may have been done stays as it was sent.
const retrySQL = `
WITH anew AS (UPDATE effect_steps SET request = NULL WHERE effect = ANY($1::bigint[]) AND state = 'failed')
UPDATE effects SET state = 'planned', due = clock_now(), tried_since = NULL, attempts = 0, reason = '', updated_at = clock_now() WHERE effect = ANY($1::bigint[])`

// resolveSQL takes a person's word on a step, and has the effect go on. The requests of other steps that were not done are made anew, of what is captured now.
const resolveSQL = `
WITH said AS (
  UPDATE effect_steps SET state = $4, captured = captured || $5::jsonb, error = $6, ended_at = coalesce(ended_at, clock_now()) WHERE effect = $1 AND step = $2 AND undo = $3
), anew AS (
  UPDATE effect_steps SET request = NULL WHERE effect = $1 AND state = 'failed' AND (step, undo) <> ($2, $3)
)
UPDATE effects SET state = 'planned', due = clock_now(), tried_since = NULL, attempts = 0, reason = '', updated_at = clock_now() WHERE effect = $1`

const compensateSQL = `
UPDATE effects e SET undoing = true, state = 'planned', due = clock_now(), tried_since = NULL, attempts = 0, reason = '', updated_at = clock_now(), destination = d.destination
FROM unnest($1::bigint[], $2::text[]) AS d(effect, destination) WHERE e.effect = d.effect`

// Word is a person's word on a step.
type Word struct {
	Step string
	// Done says that the step was done; else that it was not.
	Done bool
	// Captured is a JSON object of what the step's answer said or should have said, where it was done: with what is known already, all that its rule captures; nil: nothing is added.
	Captured json.RawMessage
}

// Approve lets effects begin that wait for a person. Errors: events.ErrNotFound, and events.ErrInvalid where one of them does not wait, or not any more; then none is approved.
func Approve(ctx context.Context, tx pgx.Tx, ids ...int64) ([]View, error) {
	return act(ctx, tx, ids, func(v *View) error {
		if v.State != Waiting {
			return v.not("there is nothing to approve")
		}
		if v.late {
			return v.refused("it could be approved until %s (approval_expires of its rule), so nothing of it is begun any more", v.ExpiresAt)
		}
		return nil
	}, func([]View) error { return exec(ctx, tx, "approve", approveSQL, ids) })
}

// Reject ends effects for good, for a reason; what was done of them stays. Errors: events.ErrNotFound, and events.ErrInvalid where one of them is being carried out or has ended; then none is rejected.
func Reject(ctx context.Context, tx pgx.Tx, reason string, ids ...int64) ([]View, error) {
	return act(ctx, tx, ids, func(v *View) error {
		return v.among("it cannot be rejected", Waiting, Planned, Failed, Review)
	}, func([]View) error { return exec(ctx, tx, "reject", rejectSQL, ids, events.Text(reason)) })
}

// Retry has effects that failed, or that a person has seen to, tried now. Errors: events.ErrNotFound, and events.ErrInvalid where one of them cannot be; then none is.
func Retry(ctx context.Context, tx pgx.Tx, ids ...int64) ([]View, error) {
	return act(ctx, tx, ids, func(v *View) error {
		if err := v.among("there is nothing to try again", Failed, Review); err != nil {
			return err
		}
		if v.redacted() {
			return v.refused("what it was planned with was redacted, so nothing can be sent for it any more: postern effects reject %d ends it", v.Effect.Effect)
		}
		if v.troubled() {
			return v.refused("its rule could not say what is to follow, nor whether: %s, and reject this effect", v.byHand())
		}
		if s := v.doubtful(); s != nil && s.Doubt == DoubtPerson {
			return v.refused("nobody knows whether %s was done, and it must not be done twice: look there, and say what happened with postern effects resolve %d --step %s %s, or --not-done", s.name(), v.Effect.Effect, s.Step, s.asDone())
		}
		return nil
	}, func([]View) error { return exec(ctx, tx, "retry", retrySQL, ids) })
}

// Resolve takes a person's word on a step that is in doubt, or that is done and whose answer lacked what was to be captured, and has the effect go on; to what a step that is done has captured a person
// may add while the effect is in review. Errors: events.ErrNotFound, and events.ErrInvalid where there is nothing to resolve, or where what later steps need is missing.
func Resolve(ctx context.Context, tx pgx.Tx, id int64, w Word) ([]View, error) {
	captured, err := w.captured()
	if err != nil {
		return nil, err
	}
	return act(ctx, tx, []int64{id}, func(v *View) error {
		if err := v.among("nothing can be resolved", Planned, Failed, Review); err != nil {
			return err
		}
		s := v.step(w.Step, v.Undoing)
		switch {
		case s == nil:
			return v.refused("step %q was not begun%s", w.Step, v.begun())
		case s.State == StepFailed:
			return v.refused("%s was not done, so nothing is in doubt; postern effects retry %d has it tried again", s.name(), id)
		case s.State == StepDone && !s.lacks() && !(w.Done && v.State == Review && string(captured) != "{}"):
			return v.refused("%s is done, so nothing is in doubt", s.name())
		case w.Done && len(s.missing(captured)) > 0 && !v.redacted():
			return v.refused("%s was to capture %s, which later steps may need: give what the other side has, with --captured, or null where it has none", s.name(), strings.Join(s.missing(captured), ", "))
		}
		return nil
	}, func(all []View) error {
		state, trouble := StepDone, ""
		if !w.Done {
			state, trouble = StepFailed, "a person said that it was not done"
		}
		return exec(ctx, tx, "resolve", resolveSQL, id, w.Step, all[0].Undoing, state, captured, trouble)
	})
}

// captured is what a person gives as captured, an object. Errors: events.ErrInvalid.
func (w *Word) captured() (json.RawMessage, error) {
	nothing := json.RawMessage(`{}`)
	if len(w.Captured) == 0 {
		return nothing, nil
	}
	var fields map[string]any
	if err := json.Unmarshal(w.Captured, &fields); err != nil || fields == nil {
		return nil, fmt.Errorf(`%w: what was captured is no JSON object: write e.g. {"id": "in_1"}`, events.ErrInvalid)
	}
	if bytes.Contains(w.Captured, []byte(`\u0000`)) {
		return nil, fmt.Errorf("%w: what was captured holds NUL, which PostgreSQL cannot keep", events.ErrInvalid)
	}
	if !w.Done && len(fields) > 0 {
		return nil, fmt.Errorf("%w: a step that was not done has captured nothing", events.ErrInvalid)
	}
	if len(fields) == 0 {
		return nothing, nil
	}
	return w.Captured, nil
}

// Compensate has the steps of effects undone that were done, the last first. partial: those that cannot be undone stay. Errors: events.ErrNotFound, and events.ErrInvalid where one of them cannot be undone;
// then none is.
func Compensate(ctx context.Context, tx pgx.Tx, partial bool, ids ...int64) ([]View, error) {
	return act(ctx, tx, ids, func(v *View) error {
		return v.compensable(partial)
	}, func(all []View) error {
		destinations := make([]string, len(all))
		ids := make([]int64, len(all))
		for i := range all {
			ids[i], destinations[i] = all[i].Effect.Effect, all[i].undoneFirst(partial).Destination
		}
		return exec(ctx, tx, "compensate", compensateSQL, ids, destinations)
	})
}

func (v *View) compensable(partial bool) error {
	if err := v.among("nothing can be undone", Done, Review, Failed, Rejected); err != nil {
		return err
	}
	if v.Undoing {
		return v.refused("its steps are undone already, or were; postern effects show %d tells how far that is", v.Effect.Effect)
	}
	if v.redacted() {
		return v.refused("what it was planned with was redacted, or forgotten (retention.effects), so nothing of it can be undone here any more")
	}
	if s := v.doubtful(); s != nil && v.State == Rejected {
		return v.refused("nobody knows whether %s was done, and it was rejected: look there, and undo by hand what was done", s.name())
	}
	if s := v.doubtful(); s != nil {
		return v.refused("nobody knows whether %s was done: say first what happened, with postern effects resolve %d --step %s %s, or --not-done", s.name(), v.Effect.Effect, s.Step, s.asDone())
	}
	stay := v.lasting()
	done := len(stay)+len(v.undoable()) > 0
	switch {
	case !done && v.State == Rejected:
		return v.refused("no step of it was done, so there is nothing to undo")
	case !done:
		return v.refused("no step of it was done; postern effects reject %d ends it", v.Effect.Effect)
	case len(stay) > 0 && !partial:
		return v.refused("its rule had no compensate for %s when that was done: --partial undoes the others, and those whose rule has one by now", strings.Join(stay, ", "))
	}
	return nil
}

// undoneFirst is the last step that was done and is undone.
func (v *View) undoneFirst(partial bool) *Step {
	for i := range slices.Backward(v.Steps) {
		if s := &v.Steps[i]; s.State == StepDone && !s.Undo && (s.Undoable || partial) {
			return s
		}
	}
	return &Step{Destination: v.Destination}
}

// act does something with effects that a person names: all of them, or none.
func act(ctx context.Context, tx pgx.Tx, ids []int64, may func(*View) error, do func([]View) error) ([]View, error) {
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
	var refused []error
	for i := range all {
		refused = append(refused, may(&all[i]))
	}
	if err := errors.Join(refused...); err != nil {
		return nil, err
	}
	if err := do(all); err != nil {
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

// among refuses an effect that is in none of some states.
func (v *View) among(cannot string, states ...State) error {
	switch {
	case slices.Contains(states, v.State):
		return nil
	case v.State == Running:
		return v.refused("a processor is taking its next step now: ask again in a moment")
	}
	return v.not(cannot)
}

func (v *View) not(cannot string) error { return v.refused("it is %s, so %s", v.State, cannot) }

func (v *View) refused(format string, args ...any) error {
	return fmt.Errorf("%w: effect %d: "+format, append([]any{events.ErrInvalid, v.Effect.Effect}, args...)...)
}

// begun names the steps that were begun.
func (v *View) begun() string {
	var names []string
	for _, s := range v.Steps {
		if s.Undo == v.Undoing {
			names = append(names, s.Step)
		}
	}
	if len(names) == 0 {
		return "; none was"
	}
	return "; these were: " + strings.Join(names, ", ")
}
