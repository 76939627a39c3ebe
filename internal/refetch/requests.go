package refetch

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/versioning"
)

// Request is an object that waits for a refetch, as operators see it.
type Request struct {
	Source     string `json:"source"`
	Account    string `json:"account"`
	ObjectType string `json:"object_type"`
	ObjectID   string `json:"object_id"`
	// Reason is why the object is refetched.
	Reason string `json:"reason"`
	// RequestedBy is the operator who requested the refetch; "" if the mirror did.
	RequestedBy string         `json:"requested_by"`
	RequestedAt events.Instant `json:"requested_at"`
	// Due is the earliest time of the next attempt; zero for none. Suspended means that no attempt
	// is made, and Error has the reason.
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
const (
	listRefetchRequestsSQL   = requestsPart + objectsPart + bothParts
	listSuspendedRequestsSQL = requestsPart + ` AND h.due = 'infinity'` + objectsPart +
		` AND NOT 'object' = ANY(coalesce(s.api_reads, '{object}'))` + bothParts

	requestsPart = `
SELECT * FROM (
  (SELECT ` + refetchRequestColumns + `
  FROM refetch_requests h JOIN sources s ON s.number = h.source
  WHERE (h.source, h.account, h.object_type, h.object_id) > ($1, $2, $3, $4) AND h.source BETWEEN $5 AND $6`
	objectsPart = `
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
      AND h.object_id = o.object_id)`
	bothParts = `
  ORDER BY o.source, o.account, o.object_type, o.object_id LIMIT $7)
) r (source, name, account, object_type, object_id, reason, requested_by, requested_at, due, suspended, start_after,
	attempts, error,
	lease_owner, lease_until)
ORDER BY source, account, object_type, object_id LIMIT $7`
)

// Reasons why an object with a pending refetch has no request.
const (
	noProcessorReport = "no processor has reported yet whether it can read the source's API"
	noReadableAPI     = "the source has no section api that reads objects; until it has one, only the object's next " +
		"event updates it"
)

// Requests returns a page of the objects that wait for a refetch, in the order of their
// keys: the mirror's objects with a pending refetch, and those that operators requested. Source 0
// means all sources. suspended selects only those without a further attempt. Errors:
// events.ErrInvalid.
func Requests(ctx context.Context, pool *pgxpool.Pool, source int32, suspended bool, cursor string,
	limit int) (events.Page[Request], error) {
	var page events.Page[Request]
	limit, err := events.PageSize(limit)
	if err != nil {
		return page, err
	}
	var after int32 // source numbers begin at 1
	var account, objectType, id string
	if err := events.ReadCursor(cursor, &after, &account, &objectType, &id); err != nil {
		return page, err
	}
	first, last := events.SourceInterval(source)
	sql := listRefetchRequestsSQL
	if suspended {
		sql = listSuspendedRequestsSQL
	}
	page.Items, err = postgres.Collect(ctx, pool, scanRefetchRequest, sql, after, account,
		objectType, id, first, last, limit, noProcessorReport, noReadableAPI)
	if err != nil {
		return page, fmt.Errorf("list refetch requests: %w", err)
	}
	if len(page.Items) == limit {
		h := page.Items[limit-1]
		page.Next = events.MakeCursor(h.sourceNumber, h.Account, h.ObjectType, h.ObjectID)
	}
	return page, nil
}

func scanRefetchRequest(row pgx.CollectableRow) (h Request, err error) {
	return h, row.Scan(&h.sourceNumber, &h.Source, &h.Account, &h.ObjectType, &h.ObjectID, &h.Reason, &h.RequestedBy,
		&h.RequestedAt, &h.Due, &h.Suspended, &h.After, &h.Attempts, &h.Error, &h.LeaseOwner, &h.LeaseUntil)
}

const refetchRequestSQL = `SELECT ` + refetchRequestColumns + `
FROM refetch_requests h JOIN sources s ON s.number = h.source
WHERE h.source = $1 AND h.account = $2 AND h.object_type = $3 AND h.object_id = $4`

// Find returns the refetch request of an object, or nil if it has none.
func Find(ctx context.Context, db postgres.DB, k versioning.Key) (*Request, error) {
	h, err := postgres.CollectOne(ctx, db, scanRefetchRequest, refetchRequestSQL, k.Source, k.Account, k.Type, k.ID)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("find the refetch request of %s %s: %w", k.Type, k.ID, err)
	}
	return &h, nil
}

// requestRefetchSQL requests a refetch of an object, due at once. An object has one request; a new
// one replaces the reason of an earlier one.
const requestRefetchSQL = `
WITH h AS (
  INSERT INTO refetch_requests AS h (source, account, object_type, object_id, reason, requested_by, requested_at, due,
  	start_after)
  SELECT $1, $2, $3, $4, $5, $6, n.at, n.at, 0 FROM (SELECT clock_now() AS at) n
  ON CONFLICT (source, account, object_type, object_id) DO UPDATE SET reason = excluded.reason,
  	requested_by = excluded.requested_by,
    requested_at = greatest(excluded.requested_at, h.requested_at + interval '1 microsecond'), due = excluded.due,
    	attempts = 0,
    	error = ''
  RETURNING *
)
SELECT ` + refetchRequestColumns + ` FROM h JOIN sources s ON s.number = h.source`

// Add requests a manual refetch of an object. A running processor makes it at its next
// pass, or later if the object's pending refetch must begin later.
func Add(ctx context.Context, db postgres.DB, k versioning.Key, actor, reason string) (*Request,
	error) {
	return changeRequest(ctx, db, k, "insert", requestRefetchSQL, k.Source, k.Account, k.Type, k.ID,
		events.SanitizeText(reason), events.SanitizeText(actor))
}

// deleteAnyRequestSQL deletes a request. InsertPendingSQL inserts it again if the object still has
// a pending refetch.
const deleteAnyRequestSQL = `
WITH h AS (
  DELETE FROM refetch_requests h WHERE h.source = $1 AND h.account = $2 AND h.object_type = $3 AND h.object_id = $4
  	RETURNING *
)
SELECT ` + refetchRequestColumns + ` FROM h JOIN sources s ON s.number = h.source`

// Cancel deletes a manual or suspended request. It does not stop a refetch in progress.
// Errors: events.ErrNotFound.
func Cancel(ctx context.Context, db postgres.DB, k versioning.Key) (*Request, error) {
	return changeRequest(ctx, db, k, "delete", deleteAnyRequestSQL, k.Source, k.Account, k.Type, k.ID)
}

func changeRequest(ctx context.Context, db postgres.DB, k versioning.Key, verb, sql string,
	args ...any) (*Request, error) {
	rows, err := db.Query(ctx, sql, args...)
	var h Request
	if err == nil {
		h, err = pgx.CollectExactlyOneRow(rows, scanRefetchRequest)
	}
	if errors.Is(err, pgx.ErrNoRows) {
		err = events.ErrNotFound
	}
	if err != nil {
		return nil, fmt.Errorf("%s refetch request of %s %s: %w", verb, k.Type, k.ID, err)
	}
	return &h, nil
}
