package rebuild

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/runs"
)

// uniqueViolation is the SQLSTATE of a second open rebuild of a source.
const uniqueViolation = "23505"

const openSQL = `SELECT r.run FROM runs r WHERE r.job = 'rebuild' AND r.params ->> 'source' = $1::int::text
	AND r.ended_at IS NULL`

// ExplainConflict replaces the database's error about a second open rebuild of a source with one
// that tells the operator what to do. Errors: events.ErrInvalid.
func ExplainConflict(ctx context.Context, pool *pgxpool.Pool, o *Params, err error) error {
	if postgres.Code(err) != uniqueViolation {
		return err
	}
	var open int64
	switch err := pool.QueryRow(ctx, openSQL, o.Source).Scan(&open); {
	case errors.Is(err, pgx.ErrNoRows):
		return fmt.Errorf("%w: the source had an open rebuild a moment ago: try again", events.ErrInvalid)
	case err != nil:
		return fmt.Errorf("find the open rebuild: %w", err)
	}
	return fmt.Errorf("%w: run %d is an open rebuild of this source: swap it or discard it first (postern rebuild "+
		"swap %d, postern rebuild discard %d)", events.ErrInvalid, open, open, open)
}

const requestSwapSQL = `
UPDATE runs SET params = params || '{"swap": true, "seen": true}', status = CASE WHEN status = 'paused' THEN 'queued'
	ELSE status END, updated_at = clock_now()
WHERE run = $1 AND job = 'rebuild' AND ended_at IS NULL`

// Swap makes an open rebuild replace the live objects with the staged ones, as soon as it has
// caught up. Errors: events.ErrNotFound, events.ErrInvalid.
func Swap(ctx context.Context, db postgres.DB, run int64) error {
	done, err := db.Exec(ctx, requestSwapSQL, run)
	if err != nil {
		return fmt.Errorf("request the swap of run %d: %w", run, err)
	}
	if done.RowsAffected() > 0 {
		return nil
	}
	r, err := show(ctx, db, run)
	if err != nil || r.Status == runs.Done {
		return err
	}
	return fmt.Errorf("%w: rebuild %d is %s: start another", events.ErrInvalid, run, r.Status)
}

// Discard ends an open rebuild. The live objects stay as they are, and a processor clears the
// staged ones. Errors: events.ErrNotFound, events.ErrInvalid.
func Discard(ctx context.Context, db postgres.DB, run int64) error {
	if _, err := show(ctx, db, run); err != nil {
		return err
	}
	return runs.ChangeStatus(ctx, db, run, runs.Cancelled)
}

// show returns a run that is a rebuild. Errors: events.ErrNotFound.
func show(ctx context.Context, db postgres.DB, run int64) (*runs.Run, error) {
	r, err := runs.Show(ctx, db, run)
	if err == nil && r.Job != Job {
		err = fmt.Errorf("rebuild %d: %w: that run is a %s", run, events.ErrNotFound, r.Job)
	}
	return r, err
}

// The stages of a rebuild whose objects await a swap or a discard, and of one that has replaced a
// part of the live objects.
const (
	Staged   = "staged"
	Swapping = "swapping"
)

// Stage describes the current step of a rebuild in a word or two. It is "" for any other run.
func Stage(r *runs.Run) string {
	switch {
	case r.Job != Job || r.Status.Ended() || r.Status == runs.Queued:
		return ""
	case r.Counts[Swapped] > 0:
		return Swapping
	case r.Cursor == 0:
		return "clearing older staged objects"
	case r.Bound == 0:
		return "copying retained objects"
	case r.Cursor < r.Bound:
		return "staging"
	case r.Status == runs.Paused:
		return Staged
	}
	return "caught up"
}
