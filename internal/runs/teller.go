package runs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/lifecycle"
)

// Teller publishes each run that has ended, at least once, and counts it. Any number of processes may do so: one of them tells of a run, and
// another where that one was silent for a while.
type Teller struct {
	// Pool is connected as postern_processor.
	Pool *pgxpool.Pool
	// Publish publishes runs and returns an error for each; nil where it has arrived.
	Publish func(ctx context.Context, ended []Run) []error
	Metrics *Metrics
	Logger  *slog.Logger
	// Every is how often is looked for runs that have ended; Again, how long one that was not published waits for the next try.
	Every, Again time.Duration

	hurry chan struct{}
}

// NewTeller returns a teller with its settings; Run starts it.
func NewTeller(t Teller) *Teller {
	t.hurry = make(chan struct{}, 1)
	return &t
}

// Hurry has it look at once; it never blocks.
func (t *Teller) Hurry() {
	select {
	case t.hurry <- struct{}{}:
	default:
	}
}

// Run tells until ctx ends. Trouble is logged once per spell.
func (t *Teller) Run(ctx context.Context) error {
	troubled := false
	for ctx.Err() == nil {
		n, err := t.Tell(ctx)
		if err != nil && !troubled && ctx.Err() == nil {
			t.Logger.Warn("ends of runs not published; tried again", "error", err)
		}
		if troubled = err != nil; !troubled && n == tellMost {
			continue
		}
		select {
		case <-ctx.Done():
		case <-t.hurry:
		case <-time.After(t.Every):
		}
	}
	return nil
}

// claimSQL takes what nobody has told, or nobody has got through for a while. A time from a clock that was put back since is not waited for.
const claimSQL = `
WITH untold AS (
  SELECT u.run, u.tell_after IS NULL AS fresh FROM runs u
  WHERE u.ended_at IS NOT NULL AND u.told_at IS NULL
    AND (u.tell_after IS NULL OR u.tell_after NOT BETWEEN clock_now() AND clock_now() + $1::interval)
  ORDER BY u.run LIMIT $2 FOR UPDATE SKIP LOCKED
), claimed AS (
  UPDATE runs d SET tell_after = clock_now() + $1::interval FROM untold u WHERE d.run = u.run RETURNING d.run
)
SELECT ` + runColumns + `, u.fresh FROM runs r JOIN untold u ON u.run = r.run JOIN claimed d ON d.run = r.run
LEFT JOIN checkpoints c ON c.job = r.job AND c.run = r.run ORDER BY r.run`

const toldSQL = `UPDATE runs SET told_at = clock_now() WHERE run = ANY($1::bigint[])`

// tellMost bounds the runs that are told at once, tellWithin the time of that.
const (
	tellMost   = 100
	tellWithin = 30 * time.Second
)

// Tell publishes what has ended, as far as it is this process's to tell, and returns how many runs it took.
func (t *Teller) Tell(ctx context.Context) (n int, err error) {
	ctx, cancel := lifecycle.WithTimeout(ctx, "tell of runs", tellWithin)
	defer cancel()
	rows, err := t.Pool.Query(ctx, claimSQL, t.Again, tellMost)
	if err != nil {
		return 0, fmt.Errorf("read what has ended: %w", err)
	}
	var fresh []bool
	ended, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (Run, error) {
		var is bool
		r, err := scanWith(row, &is)
		fresh = append(fresh, is)
		return r, err
	})
	if err != nil {
		return 0, fmt.Errorf("read what has ended: %w", err)
	}
	if len(ended) == 0 {
		return 0, nil
	}
	var told []int64
	var bad []error
	for i, err := range t.Publish(ctx, ended) {
		if fresh[i] {
			t.Metrics.ended(&ended[i])
		}
		if err != nil {
			bad = append(bad, err)
			continue
		}
		told = append(told, ended[i].Run)
	}
	if len(bad) > 0 {
		err = fmt.Errorf("publish the end of %d runs: %w", len(bad), bad[0])
	}
	_, failed := t.Pool.Exec(ctx, toldSQL, told)
	return len(ended), errors.Join(err, failed)
}
