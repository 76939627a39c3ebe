package versioning

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
)

// View is an object as the API and the commands show it.
type View struct {
	Source     string `json:"source"`
	Account    string `json:"account"`
	ObjectType string `json:"object_type"`
	ObjectID   string `json:"object_id"`
	// Version is null when the object has only had events without a whole state.
	Version   Version         `json:"version"`
	State     json.RawMessage `json:"state"`
	Deleted   bool            `json:"deleted"`
	Ambiguous bool            `json:"ambiguous"`
	// RefetchAfter is the provider's time after which the pending refetch must begin. It is null
	// when no refetch is pending.
	RefetchAfter events.Instant `json:"refetch_after"`
	// OverwrittenAt is when an operator overwrote the object from the provider, on our clock.
	// Inputs received before it do not count. It is null when no operator did.
	OverwrittenAt events.Instant `json:"overwritten_at"`
	Revision      int64          `json:"revision"`
	LastEventID   int64          `json:"last_event_id,string"`
	// Sanitized means that the state differs from the body, because jsonb cannot hold the body's
	// text. The event keeps the original body.
	Sanitized bool `json:"sanitized"`
	// Redacted means that the state was erased. A newer event or refetch sets it to false again.
	Redacted    bool           `json:"redacted"`
	RuleVersion int            `json:"rule_version"`
	CreatedAt   events.Instant `json:"created_at"`
	UpdatedAt   events.Instant `json:"updated_at"`
	// key is the position in the list, for the cursor.
	key Key
}

// Key returns the key of the object, with the number of its source.
func (v *View) Key() Key { return v.key }

// ObjectFilter selects objects. A zero field does not restrict the selection.
type ObjectFilter struct {
	// Source is the number of the source.
	Source  int32
	Account *string
	// Type is the object type. ID may be given without a type.
	Type, ID string
	// Deleted, Ambiguous and RefetchPending select by flag. Nil selects both values.
	Deleted, Ambiguous, RefetchPending *bool
	// Outdated selects rows that an older rule wrote.
	Outdated *bool
	// Since (inclusive) and Until (exclusive) bound the time of the row's last change.
	Since, Until time.Time
}

const (
	// pageRows is the maximum number of rows that one page scans.
	pageRows = 10_000
	// pageStateBytes limits the size of the states on a page. A page that reaches it ends early.
	pageStateBytes = 8 << 20
	// stateBatch is how many rows with states one query reads.
	stateBatch = 100
)

const viewColumns = `
SELECT o.source, s.name, o.account, o.object_type, o.object_id, o.version_final, o.version_at, o.version_seen,
	o.version_rank, o.state,
  o.deleted, o.ambiguous, provider_time(o.refetch_after), provider_time(o.overwritten_at), o.revision, o.last_event_id,
  	o.sanitized, o.rule_version, o.created_at, o.updated_at,
  o.tied_states = '[]' AND o.version_at > -9223372036854775808
FROM objects o JOIN sources s ON s.number = o.source
`

const (
	pageEndSQL = `SELECT o.source, o.account, o.object_type, o.object_id FROM objects o
WHERE (o.source, o.account, o.object_type, o.object_id) > ($1, $2, $3, $4) AND o.source <= $5
ORDER BY o.source, o.account, o.object_type, o.object_id OFFSET $6 LIMIT 1`

	objectsSQL = viewColumns + `
WHERE (o.source, o.account, o.object_type, o.object_id) > ($1, $2, $3, $4)
  AND (o.source, o.account, o.object_type, o.object_id) <= ($5, $6, $7, $8)
  AND ($9::int IS NULL OR o.source = $9) AND ($10::text IS NULL OR o.account = $10) AND ($11::text IS NULL
  	OR o.object_type = $11)
  AND ($12::text IS NULL OR o.object_id = $12) AND ($13::bool IS NULL OR o.deleted = $13) AND ($14::bool IS NULL
  	OR o.ambiguous = $14)
  AND ($15::bool IS NULL OR (o.refetch_after <> 0) = $15) AND ($16::timestamptz IS NULL OR o.updated_at >= $16)
  AND ($17::timestamptz IS NULL OR o.updated_at < $17) AND ($19::bool IS NULL OR (o.rule_version < $20) = $19)
ORDER BY o.source, o.account, o.object_type, o.object_id LIMIT $18`

	// findSQL walks the accounts of a source through the primary key, one index lookup for each,
	// because no index begins with the id.
	findSQL = `
WITH RECURSIVE hop(account) AS (
  (SELECT o.account FROM objects o WHERE o.source = $1 AND $2::text IS NULL ORDER BY o.account LIMIT 1)
  UNION ALL
  SELECT (SELECT o.account FROM objects o WHERE o.source = $1 AND o.account > hop.account ORDER BY o.account LIMIT 1)
  	FROM hop WHERE hop.account IS NOT NULL
), wanted(account) AS (
  SELECT account FROM hop WHERE account IS NOT NULL UNION ALL SELECT $2 WHERE $2::text IS NOT NULL
), found AS (
  SELECT k.source, k.account, k.object_type, k.object_id FROM wanted CROSS JOIN LATERAL
    (SELECT o.source, o.account, o.object_type, o.object_id FROM objects o
     WHERE o.source = $1 AND o.account = wanted.account AND o.object_type = $3 AND o.object_id = $4 LIMIT 1) k
  LIMIT $5
)` + viewColumns + `JOIN found USING (source, account, object_type, object_id) ORDER BY o.account`
)

// ListObjects returns one page of objects, ordered by source, account, type and id. It returns
// events.ErrInvalid for a bad cursor or page size.
func ListObjects(ctx context.Context, pool *pgxpool.Pool, f ObjectFilter, cursor string, limit int) (events.Page[View],
	error) {
	var page events.Page[View]
	limit, err := events.PageSize(limit)
	if err != nil {
		return page, err
	}
	after := Key{Source: f.Source - 1, ID: ""}
	if f.Source == 0 {
		after.Source = -1
	}
	if f.Account != nil && f.Source != 0 {
		after = Key{Source: f.Source, Account: *f.Account} // no object has an empty type and id
	}
	if err := events.ReadCursor(cursor, &after.Source, &after.Account, &after.Type, &after.ID); err != nil {
		return page, err
	}
	end, more, err := f.pageEnd(ctx, pool, after)
	if err != nil {
		return page, fmt.Errorf("list objects: %w", err)
	}
	for size := 0; ; {
		found, err := f.loadViews(ctx, pool, after, end, min(limit-len(page.Items), stateBatch))
		if err != nil {
			return page, fmt.Errorf("list objects: %w", err)
		}
		for i := range found {
			size += len(found[i].State)
		}
		page.Items = append(page.Items, found...)
		switch n := len(page.Items); {
		case n == limit || len(found) == stateBatch && size >= pageStateBytes:
			page.Next = page.Items[n-1].key.cursor()
			return page, nil
		case len(found) < stateBatch:
			if more {
				page.Next = end.cursor()
			}
			return page, nil
		default:
			after = page.Items[n-1].key
		}
	}
}

func (k Key) cursor() string { return events.MakeCursor(k.Source, k.Account, k.Type, k.ID) }

// pageEnd returns the last key that this page scans. more reports whether objects may follow it.
func (f *ObjectFilter) pageEnd(ctx context.Context, pool *pgxpool.Pool, after Key) (end Key, more bool, err error) {
	last := f.Source
	if last == 0 {
		last = 1<<31 - 1
	}
	err = pool.QueryRow(ctx, pageEndSQL, after.Source, after.Account, after.Type, after.ID, last, pageRows-1).
		Scan(&end.Source, &end.Account, &end.Type, &end.ID)
	if errors.Is(err, pgx.ErrNoRows) {
		if last == 1<<31-1 {
			last-- // so that last + 1 does not overflow; no source has the greatest number
		}
		return Key{Source: last + 1}, false, nil
	}
	return end, err == nil, err
}

func (f *ObjectFilter) loadViews(ctx context.Context, pool *pgxpool.Pool, after, end Key, limit int) ([]View, error) {
	return postgres.Collect(ctx, pool, scanView, objectsSQL, after.Source, after.Account, after.Type, after.ID,
		end.Source, end.Account, end.Type, end.ID, events.NilIfZero(f.Source), f.Account, events.NilIfZero(f.Type),
		events.NilIfZero(f.ID), f.Deleted, f.Ambiguous, f.RefetchPending, events.NilIfZero(f.Since),
		events.NilIfZero(f.Until), limit, f.Outdated, RuleVersion)
}

// FindObjects returns the objects with this source, type and id: one for each account, at most 100.
// A nil account selects all accounts.
func FindObjects(ctx context.Context, pool *pgxpool.Pool, source int32, account *string, objectType, id string) ([]View,
	error) {
	found, err := postgres.Collect(ctx, pool, scanView, findSQL, source, account, objectType, id, stateBatch)
	if err != nil {
		return nil, fmt.Errorf("find object %s %s: %w", objectType, id, err)
	}
	return found, nil
}

func scanView(row pgx.CollectableRow) (View, error) {
	var v View
	err := row.Scan(&v.key.Source, &v.Source, &v.Account, &v.ObjectType, &v.ObjectID, &v.Version.Final, &v.Version.At,
		&v.Version.Seen, &v.Version.Rank, &v.State, &v.Deleted, &v.Ambiguous, &v.RefetchAfter, &v.OverwrittenAt,
		&v.Revision, &v.LastEventID, &v.Sanitized, &v.RuleVersion, &v.CreatedAt, &v.UpdatedAt, &v.Redacted)
	if v.State == nil {
		v.State = json.RawMessage("null")
	}
	v.key.Account, v.key.Type, v.key.ID = v.Account, v.ObjectType, v.ObjectID
	return v, err
}
