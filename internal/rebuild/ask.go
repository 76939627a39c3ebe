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

// uniqueViolation is the error of a second open rebuild of a source.
const uniqueViolation = "23505"

const openSQL = `SELECT r.run FROM runs r WHERE r.job = 'rebuild' AND r.asked ->> 'source' = $1::int::text AND r.ended_at IS NULL`

// Ask enters a rebuild into the ledger; a running processor carries it out. It returns the run's number. Errors: events.ErrInvalid where the
// source has an open rebuild.
func Ask(ctx context.Context, pool *pgxpool.Pool, o *Order, who, reason string, expected int64) (run int64, err error) {
	run, err = runs.Ask(ctx, pool, runs.Order{Job: Job, Asked: o, Who: who, Reason: reason, Expected: expected})
	return run, Explain(ctx, pool, o, err)
}

// Explain makes the refusal of a second open rebuild of a source one that a person can act on. Errors: events.ErrInvalid.
func Explain(ctx context.Context, pool *pgxpool.Pool, o *Order, err error) error {
	if postgres.Code(err) != uniqueViolation {
		return err
	}
	var open int64
	switch err := pool.QueryRow(ctx, openSQL, o.Source).Scan(&open); {
	case errors.Is(err, pgx.ErrNoRows):
		return fmt.Errorf("%w: the source had an open rebuild a moment ago: ask again", events.ErrInvalid)
	case err != nil:
		return fmt.Errorf("look for the open rebuild: %w", err)
	}
	return fmt.Errorf("%w: run %d is an open rebuild of this source: swap it or discard it first (postern rebuild swap %d, postern rebuild discard %d)",
		events.ErrInvalid, open, open, open)
}

const wantSQL = `
UPDATE runs SET asked = asked || '{"swap": true, "seen": true}', status = CASE WHEN status = 'paused' THEN 'waiting' ELSE status END, updated_at = clock_now()
WHERE run = $1 AND job = 'rebuild' AND ended_at IS NULL`

// Swap has an open rebuild put what it stages in the place of the live objects, as soon as it has caught up.
// Errors: events.ErrNotFound, events.ErrInvalid.
func Swap(ctx context.Context, db postgres.DB, run int64) error {
	done, err := db.Exec(ctx, wantSQL, run)
	if err != nil {
		return fmt.Errorf("have run %d swapped: %w", run, err)
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

// Discard ends an open rebuild; the live objects stay as they are, and a processor clears what was staged. Errors: events.ErrNotFound,
// events.ErrInvalid.
func Discard(ctx context.Context, db postgres.DB, run int64) error {
	if _, err := show(ctx, db, run); err != nil {
		return err
	}
	return runs.Change(ctx, db, run, runs.Cancelled)
}

// show is a run that is a rebuild. Errors: events.ErrNotFound.
func show(ctx context.Context, db postgres.DB, run int64) (*runs.Run, error) {
	r, err := runs.Show(ctx, db, run)
	if err == nil && r.Job != Job {
		err = fmt.Errorf("rebuild %d: %w: that run is a %s", run, events.ErrNotFound, r.Job)
	}
	return r, err
}

// Stage is what a rebuild does now, in a word or two; "" for any other run.
func Stage(r *runs.Run) string {
	switch {
	case r.Job != Job || r.Status.Final() || r.Status == runs.Waiting:
		return ""
	case r.Cursor == 0:
		return "clearing what another left"
	case r.Bound == 0:
		return "copying bases"
	case r.Cursor < r.Bound:
		return "staging"
	case r.Status == runs.Paused:
		return "staged"
	}
	return "caught up"
}
