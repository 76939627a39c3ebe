// Package operations implements what operators see and change in an instance. The commands and the
// HTTP API call the same functions. Each takes its parameters as one struct, checks them, and reads
// or changes the database with the rights of postern_operator. It never applies events itself.
package operations

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/adminauth"
	"github.com/postern-gateway/postern/internal/postgres"
)

// Requester requests a change.
type Requester struct {
	adminauth.Actor
	// Role is that of the actor's token.
	Role adminauth.Role
	// Separate: an actor may not approve what he requested (approvals.separate).
	Separate bool
	// StoreResult stores the result in the transaction of the change, for a request with an
	// idempotency key; nil for others.
	StoreResult func(ctx context.Context, tx pgx.Tx, result any) error
}

// ReasonParams are the reason for a change, which the audit stores.
type ReasonParams struct {
	Reason string `json:"reason,omitzero"`
}

// Causes are the runs and events that led to an effect or a run.
type Causes struct {
	// Runs are the runs that made it. Run 0 is that of live events and has no requester.
	Runs []int64
	// Events are the events that made it.
	Events []int64
}

// OwnRequest returns why an actor may not decide about a thing, or nil: he requested one of its
// runs, or what stored one of its events, and both are known by their tokens. Errors:
// adminauth.ErrOwnRequest.
func OwnRequest(ctx context.Context, db postgres.DB, by Requester, of Causes) error {
	if !by.Separate {
		return nil
	}
	event, runs, err := adminauth.RequestedEvent(ctx, db, by.Actor, of.Events)
	if err != nil {
		return err
	}
	if event != 0 {
		return fmt.Errorf("%w: the token %s requested the refetch or reprocessing that stored event %d. With "+
			"approvals.separate it may not decide about the effects of this event. Ask somebody with another token "+
			"of the role approver or operator", adminauth.ErrOwnRequest, by.Name, event)
	}
	run, err := adminauth.RequestedRun(ctx, db, by.Actor, append(runs, of.Runs...)...)
	if err != nil || run == 0 {
		return err
	}
	return fmt.Errorf("%w: the token %s requested run %d, and with approvals.separate its requester may not approve "+
		"what it does. Ask somebody with another token of the role approver or operator", adminauth.ErrOwnRequest,
		by.Name, run)
}

// changeTimeout limits the transaction of a change.
const changeTimeout = 20 * time.Second

// change executes a change in one transaction with its audit entry and with its result stored for
// the requester. Either all are committed or none. do sets the entry's target. If do clears the
// entry's Action, nothing was changed and no entry is written.
func change[T any](ctx context.Context, pool *pgxpool.Pool, by Requester, action, reason string,
	do func(ctx context.Context, tx pgx.Tx, e *adminauth.AuditEntry) (T, error)) (out T, err error) {
	return changeWithin(ctx, changeTimeout, pool, by, action, reason, do)
}

// changeWithin is like change, with a timeout of its own.
func changeWithin[T any](ctx context.Context, timeout time.Duration, pool *pgxpool.Pool, by Requester, action,
	reason string, do func(ctx context.Context, tx pgx.Tx, e *adminauth.AuditEntry) (T, error)) (out T, err error) {
	if err := CheckStorable("reason", reason); err != nil {
		return out, err
	}
	var doErr error
	err = postgres.InTx(ctx, pool, action, timeout, func(ctx context.Context, tx pgx.Tx) error {
		e := adminauth.AuditEntry{Action: action, Reason: reason}
		if out, doErr = do(ctx, tx, &e); doErr != nil {
			return doErr
		}
		if e.Action != "" {
			if err := adminauth.WriteAudit(ctx, tx, by.Actor, e); err != nil {
				return err
			}
		}
		if by.StoreResult == nil {
			return nil
		}
		return by.StoreResult(ctx, tx, out)
	})
	if doErr != nil && ctx.Err() == nil {
		err = doErr // the error already names what failed
	}
	return out, err
}
