package operations

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/adminauth"
	"github.com/postern-gateway/postern/internal/effects"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
)

// EffectParams select effects. Type has two names.
type EffectParams struct {
	State      string  `json:"state,omitzero" validate:"omitempty,effect_state"`
	Rule       string  `json:"rule,omitzero"`
	Source     string  `json:"source,omitzero"`
	Account    *string `json:"account,omitzero"`
	Type       string  `json:"type,omitzero"`
	ObjectType string  `json:"object_type,omitzero"`
	ObjectID   string  `json:"object_id,omitzero"`
	Key        string  `json:"key,omitzero"`
	Event      string  `json:"event,omitzero"`
	Since      Time    `json:"since,omitzero"`
	Until      Time    `json:"until,omitzero"`
	// UnknownOutcome selects only effects with such a step.
	UnknownOutcome bool `json:"unknown_outcome,omitzero"`
	Page
}

// Effects lists effects. Errors: events.ErrInvalid, events.ErrNotFound and
// *events.AmbiguousKeyError for the event.
func Effects(ctx context.Context, pool *pgxpool.Pool, p EffectParams) (page events.Page[effects.Effect], err error) {
	f := effects.Filter{Account: p.Account, ID: p.ObjectID, Rule: p.Rule, State: p.State, Key: p.Key,
		Since: p.Since.at, Until: p.Until.at, UnknownOutcome: p.UnknownOutcome}
	if f.Type, err = either("type", p.Type, "object_type", p.ObjectType); err != nil {
		return page, err
	}
	if f.Source, err = checkSource(ctx, pool, p, p.Source); err != nil {
		return page, err
	}
	if p.Event != "" {
		if f.Event, err = events.Find(ctx, pool, p.Event, f.Source); err != nil {
			return page, err
		}
	}
	return effects.List(ctx, pool, f, p.Cursor, p.limit())
}

// Effect returns one effect. Errors: events.ErrNotFound.
func Effect(ctx context.Context, db postgres.DB, id int64) (*effects.View, error) {
	all, err := effects.Show(ctx, db, id)
	if err != nil {
		return nil, err
	}
	return &all[0], nil
}

// EffectsParams name several effects to change.
type EffectsParams struct {
	IDs IDs `json:"ids,omitzero"`
	ReasonParams
}

// CompensateParams say how effects are undone.
type CompensateParams struct {
	ReasonParams
	// Partial undoes what can be undone and keeps the rest.
	Partial bool `json:"partial,omitzero"`
}

// ResolveParams are the outcome of a step, which an operator has found out.
type ResolveParams struct {
	ReasonParams
	Step string `json:"step,omitzero"`
	// Done is required.
	Done *bool `json:"done,omitzero"`
	// Captured are the values of its response to capture, as a JSON object.
	Captured json.RawMessage `json:"captured,omitzero"`
}

// ApproveEffects approves effects that await approval, all or none. Errors: events.ErrInvalid,
// events.ErrNotFound, as for the other changes of effects.
func ApproveEffects(ctx context.Context, pool *pgxpool.Pool, ids []int64, p ReasonParams,
	by Requester) ([]effects.View, error) {
	return changeEffects(ctx, pool, ids, "approve", p, p.Reason, by, func(ctx context.Context,
		tx pgx.Tx) ([]effects.View, error) {
		return effects.Approve(ctx, tx, ids...)
	})
}

// RejectEffects rejects effects permanently, all or none; completed steps stay.
func RejectEffects(ctx context.Context, pool *pgxpool.Pool, ids []int64, p ReasonParams,
	by Requester) ([]effects.View, error) {
	return changeEffects(ctx, pool, ids, "reject", p, p.Reason, by, func(ctx context.Context,
		tx pgx.Tx) ([]effects.View, error) {
		return effects.Reject(ctx, tx, p.Reason, ids...)
	})
}

// RetryEffects retries failed effects now, all or none.
func RetryEffects(ctx context.Context, pool *pgxpool.Pool, ids []int64, p ReasonParams,
	by Requester) ([]effects.View, error) {
	return changeEffects(ctx, pool, ids, "retry", p, p.Reason, by, func(ctx context.Context,
		tx pgx.Tx) ([]effects.View, error) {
		return effects.Retry(ctx, tx, ids...)
	})
}

// CompensateEffects undoes the completed steps of effects, all or none.
func CompensateEffects(ctx context.Context, pool *pgxpool.Pool, ids []int64, p CompensateParams,
	by Requester) ([]effects.View, error) {
	return changeEffects(ctx, pool, ids, "compensate", p, p.Reason, by, func(ctx context.Context,
		tx pgx.Tx) ([]effects.View, error) {
		return effects.Compensate(ctx, tx, p.Partial, ids...)
	})
}

// ResolveEffect records the outcome of a step of one effect.
func ResolveEffect(ctx context.Context, pool *pgxpool.Pool, ids []int64, p ResolveParams,
	by Requester) ([]effects.View, error) {
	if p.Step == "" || p.Done == nil {
		return nil, invalid("give the step, and done: true or false")
	}
	return changeEffects(ctx, pool, ids, "resolve", p, p.Reason, by, func(ctx context.Context,
		tx pgx.Tx) ([]effects.View, error) {
		return effects.Resolve(ctx, tx, ids[0], effects.ResolveParams{Step: p.Step, Done: *p.Done,
			Captured: p.Captured})
	})
}

// ownEffectChanges are the changes of effects that approve nothing, so their requester may make
// them too.
var ownEffectChanges = []string{"reject", "retry"}

// EffectCauses returns the runs that planned or repeated effects, and the events that they follow.
func EffectCauses(all ...effects.View) (of Causes) {
	for i := range all {
		e := &all[i].Effect
		of.Runs, of.Events = append(of.Runs, e.Run, int64(e.Forced)), append(of.Events, e.Event)
	}
	return of
}

// MaxChangedEffects is the maximum number of effects that one request changes.
const MaxChangedEffects = 100

// changeEffects executes a change of effects in one transaction. The audit has an entry for each
// effect, with all parameters.
func changeEffects(ctx context.Context, pool *pgxpool.Pool, ids []int64, name string, params any, reason string,
	by Requester, do func(context.Context, pgx.Tx) ([]effects.View, error)) ([]effects.View, error) {
	ids = slices.Sorted(slices.Values(ids))
	ids = slices.Compact(ids)
	switch {
	case strings.TrimSpace(reason) == "":
		return nil, invalid("give a reason: it is stored in the audit")
	case len(ids) == 0 || len(ids) > MaxChangedEffects:
		return nil, invalid("ids: %d effects are named: name 1 to %d", len(ids), MaxChangedEffects)
	}
	return change(ctx, pool, by, "effects "+name, reason,
		func(ctx context.Context, tx pgx.Tx, e *adminauth.AuditEntry) ([]effects.View, error) {
			all, err := do(ctx, tx)
			if err == nil && !slices.Contains(ownEffectChanges, name) {
				err = OwnRequest(ctx, tx, by, EffectCauses(all...))
			}
			if err != nil {
				return nil, err
			}
			given := ""
			if texts := Texts(params, "reason"); len(texts) > 0 {
				given = "; " + encode(texts)
			}
			for i, id := range ids {
				e.Target = fmt.Sprintf("effect %d%s", id, given)
				if i == len(ids)-1 {
					break // change writes the last entry
				}
				if err := adminauth.WriteAudit(ctx, tx, by.Actor, *e); err != nil {
					return nil, err
				}
			}
			return all, nil
		})
}
