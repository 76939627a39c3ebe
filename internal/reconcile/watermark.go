package reconcile

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Watermark is until when something of an account is proven complete, on the provider's clock; zero: nothing is.
func Watermark(ctx context.Context, pool *pgxpool.Pool, source int32, account, what string) (until time.Time, err error) {
	err = pool.QueryRow(ctx, watermarkSQL, source, account, what).Scan(&until)
	if errors.Is(err, pgx.ErrNoRows) {
		return time.Time{}, nil
	}
	if err != nil {
		return time.Time{}, fmt.Errorf("read watermark: %w", err)
	}
	return until.UTC(), nil
}

// provenSQL raises a watermark from within: what lies between it and a time that begins above it is not proven. Only a run that began as far back as the
// provider knows ($7) may leave such a gap, which nobody can close any more.
const provenSQL = `
INSERT INTO watermarks AS m (source, account, what, since, until, run, at) VALUES ($1, $2, $3, $4, $5, $6, clock_now())
ON CONFLICT (source, account, what) DO UPDATE SET since = CASE WHEN excluded.since <= m.until THEN least(m.since, excluded.since) ELSE excluded.since END,
  until = greatest(m.until, excluded.until), run = excluded.run, at = excluded.at
WHERE excluded.since <= m.until OR excluded.until > m.until AND $7`

// proven notes how far the run has come. A dry run proves nothing.
func (w *work) proven(ctx context.Context, until time.Time) error {
	if w.order.DryRun {
		return nil
	}
	_, err := w.Pool.Exec(ctx, provenSQL, w.order.Source, w.order.Account, w.order.What, time.UnixMicro(w.hold.Cursor).UTC(), until, w.hold.Run.Run, w.order.Since.IsZero())
	if err != nil {
		return fmt.Errorf("raise watermark: %w", err)
	}
	return nil
}
