package reconcile

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/provider"
)

// Watermark is from when until when something of an account is proven complete, on the provider's clock; zero: nothing is.
func Watermark(ctx context.Context, pool *pgxpool.Pool, source int32, account, what string) (since, until time.Time, err error) {
	err = pool.QueryRow(ctx, watermarkSQL, source, account, what).Scan(&since, &until)
	if errors.Is(err, pgx.ErrNoRows) {
		return time.Time{}, time.Time{}, nil
	}
	if err != nil {
		return time.Time{}, time.Time{}, fmt.Errorf("read watermark: %w", err)
	}
	return since.UTC(), until.UTC(), nil
}

// provenSQL notes how far a run has come ($4 to $5 without a gap, under its own name), and joins that with what is proven where the two touch. Of two that do not
// touch the one that is there stays: what lies between is not proven. Only a run that began as far back as the provider knows ($7) may leave such a gap behind,
// which nobody can close any more. What was proven of other lists ($8) gives way to a run that goes as far back, or as the provider knows ($9), once it has come as far.
const provenSQL = `
WITH own AS (
  INSERT INTO watermarks AS m (source, account, what, since, until, run, at, scope) VALUES ($1, $2, 'run ' || $6::bigint, $4, $5, $6, clock_now(), $8)
  ON CONFLICT (source, account, what) DO UPDATE SET
    since = CASE WHEN m.scope = excluded.scope THEN m.since ELSE excluded.since END,
    until = CASE WHEN m.scope = excluded.scope THEN greatest(m.until, excluded.until) ELSE excluded.until END, at = excluded.at, scope = excluded.scope
  RETURNING since, until
)
INSERT INTO watermarks AS m (source, account, what, since, until, run, at, scope) SELECT $1, $2, $3, own.since, own.until, $6, clock_now(), $8 FROM own
ON CONFLICT (source, account, what) DO UPDATE SET
  since = CASE WHEN m.scope = excluded.scope AND excluded.since <= m.until THEN least(m.since, excluded.since) ELSE excluded.since END,
  until = CASE WHEN m.scope = excluded.scope THEN greatest(m.until, excluded.until) ELSE excluded.until END, run = excluded.run, at = excluded.at, scope = excluded.scope
WHERE CASE WHEN m.scope = excluded.scope THEN excluded.since <= m.until AND excluded.until >= m.since OR excluded.since > m.until AND $7 ELSE (excluded.since <= m.since OR excluded.since <= $9) AND excluded.until >= m.until END`

// forgottenSQL forgets what runs have read that have ended.
const forgottenSQL = `
DELETE FROM watermarks m WHERE m.source = $1 AND m.account = $2 AND m.what LIKE 'run %' AND NOT EXISTS (SELECT FROM runs r WHERE r.run = m.run AND r.ended_at IS NULL)`

// proven notes how far the run has come. A dry run proves nothing.
func (w *work) proven(ctx context.Context, until time.Time) error {
	if w.order.DryRun {
		return nil
	}
	_, err := w.Pool.Exec(ctx, provenSQL, w.order.Source, w.order.Account, w.order.What, time.UnixMicro(w.hold.Cursor).UTC(), until, w.hold.Run.Run, w.order.Since.IsZero(), w.reads(),
		w.source.Caller.Now().Add(-w.kept()))
	if err != nil {
		return fmt.Errorf("raise watermark: %w", err)
	}
	return nil
}

// reads is a digest of what a run over events reads: the webhooks or lists, and of which accounts the source takes events. With another one, events from before a watermark may be told for the
// first time.
func (w *work) reads() string {
	api, config := w.source.API, w.source.Config
	parts := append([]string{config.Account}, slices.Sorted(slices.Values(config.Accounts))...)
	switch lister := w.source.Reader.(type) {
	case provider.EventLister: // each account has a list of its own
		allowed := slices.Contains(config.Accounts, "*") || slices.Contains(config.Accounts, w.source.of(w.order.Account))
		parts = []string{config.Account, strconv.FormatBool(allowed)}
		parts = append(parts, lines(lister.ListEvents(api, w.order.Account, epoch, epoch, ""))...)
		if thin, ok := lister.(provider.ThinLister); ok && api.ThinEvents {
			parts = append(parts, lines(thin.ListThinEvents(api, w.order.Account, epoch, epoch, ""))...)
		}
	case provider.DeliveryLister:
		parts = append(parts, slices.Sorted(slices.Values(api.Hooks))...)
	case provider.TimedLister:
		parts = append(parts, lines(lister.ListTimed(api, epoch, epoch, ""))...)
	}
	return digest(parts)
}

// lines are what a call asks for.
func lines(c provider.Call) []string {
	return []string{c.Method, c.Path, c.Query.Encode(), string(c.Body)}
}
