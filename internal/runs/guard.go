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

// A statement that has waited for a row goes on with that row as it is then, and with all others as they were when it began. So the run's row is
// locked by one statement, and whose the lease is read by the next: who takes a run has both in one transaction.
const (
	lockRunSQL = `SELECT true FROM runs WHERE run = $1 AND ended_at IS NULL FOR SHARE`

	// lockAloneSQL is for who changes the run.
	lockAloneSQL = `SELECT true FROM runs WHERE run = $1 AND ended_at IS NULL FOR NO KEY UPDATE`

	leasedSQL = `SELECT true FROM checkpoints WHERE job = $1 AND run = $2 AND leased_by = $3`
)

// Guard lets a transaction go on only while the run is this process's. Until it ends nobody else can take the run or end it, so that
// whoever has lost it cannot write after the next holder has begun. Errors: ErrLost.
func (h *Hold) Guard(ctx context.Context, tx pgx.Tx) error { return h.guard(ctx, tx, lockRunSQL) }

// guard sends both statements at once.
func (h *Hold) guard(ctx context.Context, tx pgx.Tx, lock string) error {
	var both pgx.Batch
	var open, held bool
	both.Queue(lock, h.Run.Run).QueryRow(func(row pgx.Row) error { return row.Scan(&open) })
	both.Queue(leasedSQL, h.Job, h.Run.Run, h.by).QueryRow(func(row pgx.Row) error { return row.Scan(&held) })
	err := tx.SendBatch(ctx, &both).Close()
	if errors.Is(err, pgx.ErrNoRows) {
		return ErrLost
	}
	if err != nil {
		return fmt.Errorf("guard run %d: %w", h.Run.Run, err)
	}
	return nil
}

const extendSQL = `
UPDATE runs r SET bound = $4, updated_at = clock_now() FROM checkpoints c
WHERE r.run = $2 AND c.job = $1 AND c.run = r.run AND c.leased_by = $3 RETURNING r.bound`

// Extend gives the run another bound, or its first. Errors: ErrLost.
func (h *Hold) Extend(ctx context.Context, bound int64) error {
	err := h.pool.QueryRow(ctx, extendSQL, h.Job, h.Run.Run, h.by, bound).Scan(&h.Bound)
	if errors.Is(err, pgx.ErrNoRows) {
		return ErrLost
	}
	if err != nil {
		return fmt.Errorf("extend run %d: %w", h.Run.Run, err)
	}
	return nil
}

const restSQL = `
UPDATE runs r SET status = CASE WHEN r.asked = $4::jsonb THEN 'paused' ELSE r.status END, detail = '', updated_at = clock_now() FROM checkpoints c
WHERE r.run = $2 AND r.status = 'running' AND c.job = $1 AND c.run = r.run AND c.leased_by = $3 RETURNING r.status, r.asked`

// Rest pauses the run until a person lets it go on, unless what is asked for has changed meanwhile: then it stays Running, and Asked is
// what is asked for now. Errors: ErrLost.
func (h *Hold) Rest(ctx context.Context) (Status, error) {
	var asked json.RawMessage
	err := pgx.BeginFunc(ctx, h.pool, func(tx pgx.Tx) error {
		if err := h.guard(ctx, tx, lockAloneSQL); err != nil {
			return err
		}
		return tx.QueryRow(ctx, restSQL, h.Job, h.Run.Run, h.by, h.Asked).Scan(&h.Status, &asked)
	})
	if errors.Is(err, pgx.ErrNoRows) || errors.Is(err, ErrLost) {
		return h.Advance(ctx, h.Cursor) // a person was faster, or another process
	}
	if err != nil {
		return "", fmt.Errorf("pause run %d: %w", h.Run.Run, err)
	}
	h.Asked = asked
	return h.Status, nil
}

const proposeSQL = `
UPDATE runs r SET status = 'proposed', detail = $4, proposal = $5, approved_by = '', approval = '', updated_at = clock_now() FROM checkpoints c
WHERE r.run = $2 AND r.status = 'running' AND c.job = $1 AND c.run = r.run AND c.leased_by = $3 RETURNING r.status`

// Propose lets the run wait for a person's approval, in the transaction that keeps why; the detail says it in words. Whoever takes the run then is to go on without asking
// that again, since what is Approved then. Errors: ErrLost, also where a person has paused or cancelled the run.
func (h *Hold) Propose(ctx context.Context, tx pgx.Tx, what, detail string) error {
	if err := h.guard(ctx, tx, lockAloneSQL); err != nil {
		return err
	}
	err := tx.QueryRow(ctx, proposeSQL, h.Job, h.Run.Run, h.by, events.Text(detail), what).Scan(&h.Status)
	if errors.Is(err, pgx.ErrNoRows) {
		return ErrLost
	}
	if err != nil {
		return fmt.Errorf("propose run %d: %w", h.Run.Run, err)
	}
	return nil
}

// Approved says whether a person has approved what the run was proposed for.
func (h *Hold) Approved(what string) bool {
	return slices.ContainsFunc(h.Approvals, func(a Approval) bool { return a.What == what })
}

const doneSQL = `
WITH ended AS (
  UPDATE runs r SET status = 'done', detail = '', counts = $4, ended_at = clock_now(), updated_at = clock_now() FROM checkpoints c
  WHERE r.run = $2 AND r.status = 'running' AND c.job = $1 AND c.run = r.run AND c.leased_by = $3 RETURNING r.schedule
), seen AS (
  UPDATE schedules s SET succeeded_at = clock_now() FROM ended e WHERE s.name = e.schedule
)
SELECT true FROM ended`

// Done ends the run in the transaction that does the last of it, so that the one is never without the other. Errors: ErrLost, also where
// a person has paused or cancelled the run.
func (h *Hold) Done(ctx context.Context, tx pgx.Tx) error {
	counts, err := json.Marshal(h.Counts)
	if err != nil {
		return err
	}
	if err := h.guard(ctx, tx, lockAloneSQL); err != nil {
		return err
	}
	var done bool
	err = tx.QueryRow(ctx, doneSQL, h.Job, h.Run.Run, h.by, counts).Scan(&done)
	if errors.Is(err, pgx.ErrNoRows) {
		return ErrLost
	}
	if err != nil {
		return fmt.Errorf("end run %d: %w", h.Run.Run, err)
	}
	return nil
}
