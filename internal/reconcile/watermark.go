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

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
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
		w.Source.Caller.Now().Add(-w.EventRetention()))
	if err != nil {
		return fmt.Errorf("raise watermark: %w", err)
	}
	return nil
}

// eventScope is a digest of what a run over events reads: the webhooks or lists, and the accounts
// whose events the source accepts. With another scope, events from before a watermark may be listed
// for the first time.
func (w *execution) eventScope() string {
	api, config := w.Source.API, w.Source.Config
	parts := append([]string{config.Account}, slices.Sorted(slices.Values(config.Accounts))...)
	switch lister := w.Source.Reader.(type) {
	case provider.EventLister: // each account has its own list
		allowed := slices.Contains(config.Accounts, "*") ||
			slices.Contains(config.Accounts, providerAccount(w.Source, w.params.Account))
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

// Completeness is the interval in which the log or the mirror is complete for an account.
type Completeness struct {
	Source  string `json:"source"`
	Account string `json:"account"`
	// Subject is Events; "type T": all objects of type T and their deletions; "versions T": the
	// same if the list has versions only, so that an object can change without a new version; or
	// "changes T": the objects that the API lists as changed, without deletions.
	Subject string `json:"subject"`
	// Since and Until are times on the provider's clock.
	Since events.Instant `json:"since"`
	Until events.Instant `json:"until"`
	// Run raised the watermark last, at At.
	Run int64          `json:"run"`
	At  events.Instant `json:"at"`
	// NotListableRun is the newest run in which the API rejected the type's list, and
	// NotListableReason the reason; 0 and "" for none. The watermark does not advance meanwhile.
	NotListableRun    int64  `json:"not_listable_since_run"`
	NotListableReason string `json:"not_listable"`
	// DisconnectedSince is when a run first found that the key no longer works for the account, and
	// DisconnectedReason the API's response; null and "" if it works. The watermark does not
	// advance meanwhile.
	DisconnectedSince  events.Instant `json:"disconnected_since"`
	DisconnectedReason string         `json:"disconnected"`

	sourceNumber int32
}

// watermarksSQL returns the watermarks. The name of a part of an account begins with the account's
// name and a slash.
const watermarksSQL = `
SELECT m.source, s.name, m.account, m.subject, m.since, m.until, m.run, m.recorded_at, coalesce(u.run, 0),
	coalesce(u.reason, ''),
	g.since, coalesce(g.reason, '')
FROM watermarks m JOIN sources s ON s.number = m.source AND m.subject NOT LIKE 'run %' LEFT
	JOIN disconnected_accounts g ON g.source = m.source AND (g.account = m.account
		OR starts_with(m.account, g.account || '/'))
	LEFT JOIN LATERAL (
  SELECT u.run, u.reason, u.object_type FROM object_scans u WHERE u.phase = 'not_listable' AND u.source = m.source
  	AND u.account = m.account AND u.object_type = substring(m.subject FROM '^(?:type|versions|changes) (.*)$')
  	ORDER BY u.run DESC LIMIT 1
) u ON NOT EXISTS (SELECT FROM object_scans d WHERE d.phase = 'done' AND d.source = m.source AND d.account = m.account
	AND d.object_type = u.object_type AND d.run > u.run)
WHERE (m.source, m.account, m.subject) > ($1, $2, $3) AND m.source BETWEEN $4 AND $5
ORDER BY m.source, m.account, m.subject LIMIT $6`

// Watermarks returns a page of the watermarks, by source, account and subject. Source 0 means all
// sources. Errors: events.ErrInvalid.
func Watermarks(ctx context.Context, pool *pgxpool.Pool, source int32, cursor string,
	limit int) (events.Page[Completeness], error) {
	var page events.Page[Completeness]
	limit, err := events.PageSize(limit)
	if err != nil {
		return page, err
	}
	var after int32
	var account, subject string
	if err := events.ReadCursor(cursor, &after, &account, &subject); err != nil {
		return page, err
	}
	first, last := events.SourceInterval(source)
	page.Items, err = postgres.Collect(ctx, pool, func(row pgx.CollectableRow) (p Completeness, err error) {
		return p, row.Scan(&p.sourceNumber, &p.Source, &p.Account, &p.Subject, &p.Since, &p.Until, &p.Run, &p.At,
			&p.NotListableRun, &p.NotListableReason, &p.DisconnectedSince, &p.DisconnectedReason)
	}, watermarksSQL, after, account, subject, first, last, limit)
	if err != nil {
		return page, fmt.Errorf("list watermarks: %w", err)
	}
	if len(page.Items) == limit {
		p := page.Items[limit-1]
		page.Next = events.MakeCursor(p.sourceNumber, p.Account, p.Subject)
	}
	return page, nil
}
