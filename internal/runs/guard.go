package runs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/events"
)

// A statement that has waited for a row lock reads the locked row in its current state, but all
// other rows in their state at the start of the statement. Therefore one statement locks the run's
// row, and the next one reads the lease. A process that acquires a run writes both rows in one
// transaction.
const (
	lockRunSQL = `SELECT true FROM runs WHERE run = $1 AND ended_at IS NULL FOR SHARE`

	// lockRunExclusiveSQL is for transactions that change the run.
	lockRunExclusiveSQL = `SELECT true FROM runs WHERE run = $1 AND ended_at IS NULL FOR NO KEY UPDATE`

	checkLeaseSQL = `SELECT true FROM checkpoints WHERE job = $1 AND run = $2 AND lease_owner = $3`
)

// Guard locks the run for the rest of a transaction and checks that this process has the lease.
// Until the transaction ends, no other process can acquire or end the run. So a process that has
// lost its lease cannot write after the next owner has begun. Errors: ErrLeaseLost.
func (h *Lease) Guard(ctx context.Context, tx pgx.Tx) error {
	return h.lockAndCheck(ctx, tx, lockRunSQL)
}

// lockAndCheck sends both statements in one round trip.
func (h *Lease) lockAndCheck(ctx context.Context, tx pgx.Tx, lock string) error {
	var batch pgx.Batch
	var runOpen, leaseHeld bool
	batch.Queue(lock, h.Run.ID).QueryRow(func(row pgx.Row) error { return row.Scan(&runOpen) })
	batch.Queue(checkLeaseSQL, h.Job, h.Run.ID,
		h.owner).QueryRow(func(row pgx.Row) error { return row.Scan(&leaseHeld) })
	err := tx.SendBatch(ctx, &batch).Close()
	if errors.Is(err, pgx.ErrNoRows) {
		return ErrLeaseLost
	}
	if err != nil {
		return fmt.Errorf("guard run %d: %w", h.Run.ID, err)
	}
	return nil
}

const awaitDecisionSQL = `
UPDATE runs r SET status = CASE WHEN r.params = $4::jsonb THEN 'paused' ELSE r.status END, detail = '',
	updated_at = clock_now() FROM checkpoints c
WHERE r.run = $2 AND r.status = 'running' AND c.job = $1 AND c.run = r.run AND c.lease_owner = $3 RETURNING r.status,
	r.params`

// AwaitDecision pauses the run until an operator decides, unless its parameters have changed
// meanwhile. In that case the run stays Running, and Params are the new parameters. Errors:
// ErrLeaseLost.
func (h *Lease) AwaitDecision(ctx context.Context) (Status, error) {
	var params json.RawMessage
	err := pgx.BeginFunc(ctx, h.pool, func(tx pgx.Tx) error {
		if err := h.lockAndCheck(ctx, tx, lockRunExclusiveSQL); err != nil {
			return err
		}
		return tx.QueryRow(ctx, awaitDecisionSQL, h.Job, h.Run.ID, h.owner, h.Params).Scan(&h.Status, &params)
	})
	if errors.Is(err, pgx.ErrNoRows) || errors.Is(err, ErrLeaseLost) {
		return h.Advance(ctx, h.Cursor) // an operator or another process changed the run first
	}
	if err != nil {
		return "", fmt.Errorf("pause run %d: %w", h.Run.ID, err)
	}
	h.Params = params
	return h.Status, nil
}

const requestApprovalSQL = `
UPDATE runs r SET status = 'awaiting_approval', detail = $4, proposal = $5, approved_by = '', approval_reason = '',
	updated_at = clock_now() FROM checkpoints c
WHERE r.run = $2 AND r.status = 'running' AND c.job = $1 AND c.run = r.run AND c.lease_owner = $3 RETURNING r.status`

// RequestApproval makes the run wait for an operator's approval of subject, in the caller's
// transaction. The detail is the text for the operator. The next owner of the run continues without
// another request, because IsApproved is true then. Errors: ErrLeaseLost, also where an operator
// has paused or cancelled the run.
func (h *Lease) RequestApproval(ctx context.Context, tx pgx.Tx, subject, detail string) error {
	if err := h.lockAndCheck(ctx, tx, lockRunExclusiveSQL); err != nil {
		return err
	}
	err := tx.QueryRow(ctx, requestApprovalSQL, h.Job, h.Run.ID, h.owner, events.SanitizeText(detail),
		subject).Scan(&h.Status)
	if errors.Is(err, pgx.ErrNoRows) {
		return ErrLeaseLost
	}
	if err != nil {
		return fmt.Errorf("request approval of run %d: %w", h.Run.ID, err)
	}
	return nil
}

// IsApproved reports whether an operator has approved the subject.
func (h *Lease) IsApproved(subject string) bool {
	return slices.ContainsFunc(h.Approvals, func(a Approval) bool { return a.Subject == subject })
}

const completeSQL = `
WITH ended AS (
  UPDATE runs r SET status = 'done', detail = '', counts = $4, ended_at = clock_now(), updated_at = clock_now()
  	FROM checkpoints c
  WHERE r.run = $2 AND r.status = 'running' AND c.job = $1 AND c.run = r.run AND c.lease_owner = $3 RETURNING r.schedule
), seen AS (
  UPDATE schedules s SET succeeded_at = clock_now() FROM ended e WHERE s.name = e.schedule
)
SELECT true FROM ended`

// CompleteInTx ends the run in the transaction that does the last of its work, so that both are
// committed or neither. Errors: ErrLeaseLost, also where an operator has paused or cancelled the
// run.
func (h *Lease) CompleteInTx(ctx context.Context, tx pgx.Tx) error {
	return h.saveInTx(ctx, tx, completeSQL, h.Counts)
}

const saveCountsSQL = `
UPDATE runs r SET counts = $4, updated_at = clock_now() FROM checkpoints c
WHERE r.run = $2 AND r.status = 'running' AND c.job = $1 AND c.run = r.run AND c.lease_owner = $3 RETURNING true`

// SaveCountsInTx saves counts in the transaction that does the counted work, so that both are
// committed or neither. The caller sets Counts after the commit. Errors: ErrLeaseLost, also where
// an operator has paused or cancelled the run.
func (h *Lease) SaveCountsInTx(ctx context.Context, tx pgx.Tx, counts map[string]int64) error {
	return h.saveInTx(ctx, tx, saveCountsSQL, counts)
}

// saveInTx executes a statement that saves counts of the run while it is running.
func (h *Lease) saveInTx(ctx context.Context, tx pgx.Tx, sql string, counts map[string]int64) error {
	text, err := json.Marshal(counts)
	if err != nil {
		return err
	}
	if err := h.lockAndCheck(ctx, tx, lockRunExclusiveSQL); err != nil {
		return err
	}
	var saved bool
	err = tx.QueryRow(ctx, sql, h.Job, h.Run.ID, h.owner, text).Scan(&saved)
	if errors.Is(err, pgx.ErrNoRows) {
		return ErrLeaseLost
	}
	if err != nil {
		return fmt.Errorf("save the counts of run %d: %w", h.Run.ID, err)
	}
	return nil
}
