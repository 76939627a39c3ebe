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

// Watermark returns the interval in which a subject (see Completeness) is complete for an account,
// on the provider's clock; zero for none.
func Watermark(ctx context.Context, pool *pgxpool.Pool, source int32, account, subject string) (since, until time.Time,
	err error) {
	err = pool.QueryRow(ctx, watermarkSQL, source, account, subject).Scan(&since, &until)
	if errors.Is(err, pgx.ErrNoRows) {
		return time.Time{}, time.Time{}, nil
	}
	if err != nil {
		return time.Time{}, time.Time{}, fmt.Errorf("read watermark: %w", err)
	}
	return since.UTC(), until.UTC(), nil
}

// raiseWatermarkSQL records a run's own interval ($4 to $5), and joins it with the stored watermark
// if the two touch. If they do not touch, the stored watermark stays, because the time between is
// not complete. With $7 a later interval replaces it all the same: that run started as far back as
// the provider keeps events, so no run can complete the time between. An interval replaces the
// watermark of another scope ($8) once it has reached the same end, if it starts as early, or as
// early as the provider keeps events ($9).
const raiseWatermarkSQL = `
WITH own AS (
  INSERT INTO watermarks AS m (source, account, subject, since, until, run, recorded_at, scope)
  	VALUES ($1, $2, 'run ' || $6::bigint, $4, $5, $6, clock_now(), $8)
  ON CONFLICT (source, account, subject) DO UPDATE SET
    since = CASE WHEN m.scope = excluded.scope THEN m.since ELSE excluded.since END,
    until = CASE WHEN m.scope = excluded.scope THEN greatest(m.until, excluded.until) ELSE excluded.until END,
    	recorded_at = excluded.recorded_at, scope = excluded.scope
  RETURNING since, until
)
INSERT INTO watermarks AS m (source, account, subject, since, until, run, recorded_at, scope) SELECT $1, $2, $3,
	own.since,
	own.until, $6, clock_now(), $8 FROM own
ON CONFLICT (source, account, subject) DO UPDATE SET
  since = CASE WHEN m.scope = excluded.scope AND excluded.since <= m.until THEN least(m.since, excluded.since)
  	ELSE excluded.since END,
  until = CASE WHEN m.scope = excluded.scope THEN greatest(m.until, excluded.until) ELSE excluded.until END,
  	run = excluded.run, recorded_at = excluded.recorded_at, scope = excluded.scope
WHERE CASE WHEN m.scope = excluded.scope THEN excluded.since <= m.until AND excluded.until >= m.since
	OR excluded.since > m.until AND $7 ELSE (excluded.since <= m.since OR excluded.since <= $9)
	AND excluded.until >= m.until END`

// deleteEndedWatermarksSQL deletes the intervals of ended runs.
const deleteEndedWatermarksSQL = `
DELETE FROM watermarks m WHERE m.source = $1 AND m.account = $2 AND m.subject LIKE 'run %' AND NOT EXISTS (SELECT
	FROM runs r WHERE r.run = m.run AND r.ended_at IS NULL)`

// raiseWatermark records that the run's scope is complete from the checkpoint until a time. A dry
// run records nothing.
func (w *execution) raiseWatermark(ctx context.Context, until time.Time) error {
	if w.params.DryRun {
		return nil
	}
	_, err := w.Pool.Exec(ctx, raiseWatermarkSQL, w.params.Source, w.params.Account, w.params.Scope,
		time.UnixMicro(w.lease.Cursor).UTC(), until, w.lease.Run.ID, w.params.Since.IsZero(), w.eventScope(),
		w.source.Caller.Now().Add(-w.eventRetention()))
	if err != nil {
		return fmt.Errorf("raise watermark: %w", err)
	}
	return nil
}

// eventScope is a digest of what a run over events reads: the webhooks or lists, and the accounts
// whose events the source accepts. With another scope, events from before a watermark may be listed
// for the first time.
func (w *execution) eventScope() string {
	api, config := w.source.API, w.source.Config
	parts := append([]string{config.Account}, slices.Sorted(slices.Values(config.Accounts))...)
	switch lister := w.source.Reader.(type) {
	case provider.EventLister: // each account has its own list
		allowed := slices.Contains(config.Accounts, "*") ||
			slices.Contains(config.Accounts, providerAccount(w.source, w.params.Account))
		parts = []string{config.Account, strconv.FormatBool(allowed)}
		parts = append(parts, callParts(lister.ListEvents(api, w.params.Account, epoch, epoch, ""))...)
		if idOnly, ok := lister.(provider.IDOnlyEventLister); ok && api.IDOnlyEvents {
			parts = append(parts, callParts(idOnly.ListIDOnlyEvents(api, w.params.Account, epoch, epoch, ""))...)
		}
	case provider.DeliveryLister:
		parts = append(parts, slices.Sorted(slices.Values(api.Webhooks))...)
	case provider.TimedLister:
		parts = append(parts, callParts(lister.ListTimed(api, epoch, epoch, ""))...)
	}
	return digest(parts)
}

// callParts returns the parts of a call that select data.
func callParts(c provider.Call) []string {
	return []string{c.Method, c.Path, c.Query.Encode(), string(c.Body)}
}
