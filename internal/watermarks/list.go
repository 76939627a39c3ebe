package watermarks

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
)

// Completeness is the interval in which the log or the mirror is complete for an account.
type Completeness struct {
	Source  string `json:"source"`
	Account string `json:"account"`
	// Subject is "events"; "type T": all objects of type T and their deletions; "versions T": the
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

// listSQL returns the watermarks. The name of a part of an account begins with the account's
// name and a slash.
const listSQL = `
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

// List returns a page of the watermarks, by source, account and subject. Source 0 means all
// sources. Errors: events.ErrInvalid.
func List(ctx context.Context, pool *pgxpool.Pool, source int32, cursor string,
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
	}, listSQL, after, account, subject, first, last, limit)
	if err != nil {
		return page, fmt.Errorf("list watermarks: %w", err)
	}
	if len(page.Items) == limit {
		p := page.Items[limit-1]
		page.Next = events.MakeCursor(p.sourceNumber, p.Account, p.Subject)
	}
	return page, nil
}
