package reconcile

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/events"
)

// RefetchRequest is an object that waits for a refetch, as operators see it.
type RefetchRequest struct {
	Source     string `json:"source"`
	Account    string `json:"account"`
	ObjectType string `json:"object_type"`
	ObjectID   string `json:"object_id"`
	Reason     string `json:"reason"`
	// RequestedBy is the operator who requested the refetch; "" if the mirror did.
	RequestedBy string         `json:"requested_by"`
	RequestedAt events.Instant `json:"requested_at"`
	// Due is the earliest time of the next attempt. It is zero if the request is Suspended: no
	// attempt is made, and Error has the reason.
	Due       events.Instant `json:"due"`
	Suspended bool           `json:"suspended"`
	// After is the provider's time after which the refetch must begin; zero for any time.
	After events.Instant `json:"after"`
	// Attempts is the number of failed attempts. Error is the reason of the last failure.
	Attempts int    `json:"attempts"`
	Error    string `json:"error"`
	// LeaseOwner is the process that makes the refetch, until LeaseUntil; "" for none.
	LeaseOwner string         `json:"lease_owner"`
	LeaseUntil events.Instant `json:"lease_until"`

	sourceNumber int32
}

// refetchRequestColumns are the columns that scanRefetchRequest reads.
const refetchRequestColumns = `h.source, s.name, h.account, h.object_type, h.object_id, h.reason, h.requested_by,
  h.requested_at, nullif(h.due, 'infinity'), h.due = 'infinity', provider_time(h.start_after), h.attempts, h.error,
  h.lease_owner, nullif(h.lease_until, '-infinity')`

// listRefetchRequestsSQL steps over the primary keys of requests, and of objects with a pending
// refetch. The requests of one source are an interval of these keys. Such an object has no request
// yet, or its source cannot be read; due and error show which.
const listRefetchRequestsSQL = `
SELECT * FROM (
  (SELECT ` + refetchRequestColumns + `
  FROM refetch_requests h JOIN sources s ON s.number = h.source
  WHERE (h.source, h.account, h.object_type, h.object_id) > ($1, $2, $3, $4) AND h.source BETWEEN $5 AND $6
  ORDER BY h.source, h.account, h.object_type, h.object_id LIMIT $7)
  UNION ALL
  (SELECT o.source, s.name, o.account, o.object_type, o.object_id, 'ambiguous', '', o.updated_at,
    CASE WHEN 'object' = ANY(s.api_reads) THEN clock_now() END, NOT 'object' = ANY(coalesce(s.api_reads, '{object}')),
    provider_time(o.refetch_after), 0, CASE WHEN s.api_reads IS NULL THEN $8
      WHEN NOT 'object' = ANY(s.api_reads) THEN $9 ELSE '' END, '', NULL
  FROM objects o JOIN sources s ON s.number = o.source
  WHERE o.refetch_after <> 0 AND (o.source, o.account, o.object_type, o.object_id) > ($1, $2, $3, $4)
  	AND o.source BETWEEN $5 AND $6
    AND NOT EXISTS (SELECT FROM refetch_requests h WHERE h.source = o.source AND h.account = o.account
    	AND h.object_type = o.object_type
      AND h.object_id = o.object_id)
  ORDER BY o.source, o.account, o.object_type, o.object_id LIMIT $7)
) r (source, name, account, object_type, object_id, reason, requested_by, requested_at, due, suspended, start_after,
	attempts, error,
	lease_owner, lease_until)
ORDER BY source, account, object_type, object_id LIMIT $7`

// Reasons why an object with a pending refetch has no request.
const (
	noProcessorReport = "no processor has reported yet whether it can read the source's API"
	noReadableAPI     = "the source has no section api that reads objects; until it has one, only the object's next " +
		"event updates it"
)

// RefetchRequests returns a page of the objects that wait for a refetch, in the order of their
// keys: the mirror's objects with a pending refetch, and those that operators requested. Source 0
// means all sources. Errors: events.ErrInvalid.
func RefetchRequests(ctx context.Context, pool *pgxpool.Pool, source int32, cursor string,
	limit int) (events.Page[RefetchRequest], error) {
	var page events.Page[RefetchRequest]
	limit, err := events.PageSize(limit)
	if err != nil {
		return page, err
	}
	var after int32 // source numbers begin at 1
	var account, objectType, id string
	if err := events.ReadCursor(cursor, &after, &account, &objectType, &id); err != nil {
		return page, err
	}
	first, last := sourceInterval(source)
	rows, err := pool.Query(ctx, listRefetchRequestsSQL, after, account, objectType, id, first, last, limit,
		noProcessorReport, noReadableAPI)
	if err == nil {
		page.Items, err = pgx.CollectRows(rows, scanRefetchRequest)
	}
	if err != nil {
		return page, fmt.Errorf("list refetch requests: %w", err)
	}
	if len(page.Items) == limit {
		h := page.Items[limit-1]
		page.Next = events.MakeCursor(h.sourceNumber, h.Account, h.ObjectType, h.ObjectID)
	}
	return page, nil
}

func scanRefetchRequest(row pgx.CollectableRow) (h RefetchRequest, err error) {
	var due, after, leaseUntil *time.Time
	err = row.Scan(&h.sourceNumber, &h.Source, &h.Account, &h.ObjectType, &h.ObjectID, &h.Reason, &h.RequestedBy,
		&h.RequestedAt.Time, &due, &h.Suspended, &after, &h.Attempts, &h.Error, &h.LeaseOwner, &leaseUntil)
	h.Due, h.After, h.LeaseUntil = instantOf(due), instantOf(after), instantOf(leaseUntil)
	return h, err
}

func instantOf(at *time.Time) (i events.Instant) {
	if at != nil {
		i.Time = *at
	}
	return i
}

// sourceInterval returns the first and the last source number of a list of one source or, with 0,
// of all.
func sourceInterval(source int32) (first, last int32) {
	if source == 0 {
		return 1, 1<<31 - 1
	}
	return source, source
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
	first, last := sourceInterval(source)
	rows, err := pool.Query(ctx, watermarksSQL, after, account, subject, first, last, limit)
	if err == nil {
		page.Items, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (p Completeness, err error) {
			var disconnectedSince *time.Time
			err = row.Scan(&p.sourceNumber, &p.Source, &p.Account, &p.Subject, &p.Since.Time, &p.Until.Time, &p.Run,
				&p.At.Time, &p.NotListableRun, &p.NotListableReason, &disconnectedSince, &p.DisconnectedReason)
			p.DisconnectedSince = instantOf(disconnectedSince)
			return p, err
		})
	}
	if err != nil {
		return page, fmt.Errorf("list watermarks: %w", err)
	}
	if len(page.Items) == limit {
		p := page.Items[limit-1]
		page.Next = events.MakeCursor(p.sourceNumber, p.Account, p.Subject)
	}
	return page, nil
}
