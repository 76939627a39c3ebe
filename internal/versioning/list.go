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
)

// View is an object as readers see it.
type View struct {
	Source     string `json:"source"`
	Account    string `json:"account"`
	ObjectType string `json:"object_type"`
	ObjectID   string `json:"object_id"`
	// Version is null where only events without a whole state were seen.
	Version   Version         `json:"version"`
	State     json.RawMessage `json:"state"`
	Deleted   bool            `json:"deleted"`
	Ambiguous bool            `json:"ambiguous"`
	// LookAfter is the provider's time after which a look must begin to settle what is owed; null where none is owed.
	LookAfter events.Instant `json:"look_after"`
	// Settled: what was received before this point of our clock does not count, since a person had a look of then win over it; null where nobody had.
	Settled     events.Instant `json:"settled"`
	Revision    int64          `json:"revision"`
	LastEventID int64          `json:"last_event_id,string"`
	// Repaired: the state is not quite what the body said, since jsonb cannot hold that; the event's body keeps the truth.
	Repaired bool `json:"repaired"`
	// Redacted: the state was cleared for good. A newer event or refetch makes it false again.
	Redacted    bool           `json:"redacted"`
	RuleVersion int            `json:"rule_version"`
	CreatedAt   events.Instant `json:"created_at"`
	UpdatedAt   events.Instant `json:"updated_at"`
	// key is where a page that ends here goes on.
	key Key
}

// Key names the object, with the number of its source.
func (v *View) Key() Key { return v.key }

// ObjectFilter chooses objects; what is zero chooses all.
type ObjectFilter struct {
	// Source is a source's number.
	Source  int32
	Account *string
	// Type is the object type; ID needs no type.
	Type, ID string
	// Deleted, Ambiguous and LookOwed choose by flag; nil: either.
	Deleted, Ambiguous, LookOwed *bool
	// Outdated: an older rule made the row.
	Outdated *bool
	// Since (inclusive) and Until (exclusive) bound the time of the last change of the row.
	Since, Until time.Time
}

const (
	// objectScan is how many rows one page looks at.
	objectScan = 10_000
	// stateBytes bounds the states of a page; a page that reaches it ends early.
	stateBytes = 8 << 20
	// stateRows is how many states are fetched at a time on the way to that bound.
	stateRows = 100
)

const viewColumns = `
SELECT o.source, s.name, o.account, o.object_type, o.object_id, o.version_final, o.version_at, o.version_seen, o.version_rank, o.state,
  o.deleted, o.ambiguous, provider_time(o.look_after), provider_time(o.settled), o.revision, o.last_event_id, o.repaired, o.rule_version, o.created_at, o.updated_at,
  o.tie_set = '[]' AND o.version_at > -9223372036854775808
FROM objects o JOIN sources s ON s.number = o.source
`

const (
	windowSQL = `SELECT o.source, o.account, o.object_type, o.object_id FROM objects o
WHERE (o.source, o.account, o.object_type, o.object_id) > ($1, $2, $3, $4) AND o.source <= $5
ORDER BY o.source, o.account, o.object_type, o.object_id OFFSET $6 LIMIT 1`

	objectsSQL = viewColumns + `
WHERE (o.source, o.account, o.object_type, o.object_id) > ($1, $2, $3, $4)
  AND (o.source, o.account, o.object_type, o.object_id) <= ($5, $6, $7, $8)
  AND ($9::int IS NULL OR o.source = $9) AND ($10::text IS NULL OR o.account = $10) AND ($11::text IS NULL OR o.object_type = $11)
  AND ($12::text IS NULL OR o.object_id = $12) AND ($13::bool IS NULL OR o.deleted = $13) AND ($14::bool IS NULL OR o.ambiguous = $14)
  AND ($15::bool IS NULL OR (o.look_after <> 0) = $15) AND ($16::timestamptz IS NULL OR o.updated_at >= $16)
  AND ($17::timestamptz IS NULL OR o.updated_at < $17) AND ($19::bool IS NULL OR (o.rule_version < $20) = $19)
ORDER BY o.source, o.account, o.object_type, o.object_id LIMIT $18`

	// findSQL hops over the accounts of a source by its primary key, one index look-up each, since no index leads with the id.
	findSQL = `
WITH RECURSIVE hop(account) AS (
  (SELECT o.account FROM objects o WHERE o.source = $1 AND $2::text IS NULL ORDER BY o.account LIMIT 1)
  UNION ALL
  SELECT (SELECT o.account FROM objects o WHERE o.source = $1 AND o.account > hop.account ORDER BY o.account LIMIT 1) FROM hop WHERE hop.account IS NOT NULL
), wanted(account) AS (
  SELECT account FROM hop WHERE account IS NOT NULL UNION ALL SELECT $2 WHERE $2::text IS NOT NULL
), found AS (
  SELECT k.source, k.account, k.object_type, k.object_id FROM wanted CROSS JOIN LATERAL
    (SELECT o.source, o.account, o.object_type, o.object_id FROM objects o
     WHERE o.source = $1 AND o.account = wanted.account AND o.object_type = $3 AND o.object_id = $4 LIMIT 1) k
  LIMIT $5
)` + viewColumns + `JOIN found USING (source, account, object_type, object_id) ORDER BY o.account`
)

func listStatements() []string { return []string{windowSQL, objectsSQL, findSQL} }

// ListObjects returns a page of objects, ordered by source, account, type and id. Errors: events.ErrInvalid.
func ListObjects(ctx context.Context, pool *pgxpool.Pool, f ObjectFilter, cursor string, limit int) (events.Page[View], error) {
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
	end, more, err := f.window(ctx, pool, after)
	if err != nil {
		return page, fmt.Errorf("list objects: %w", err)
	}
	for size := 0; ; {
		found, err := f.views(ctx, pool, after, end, min(limit-len(page.Items), stateRows))
		if err != nil {
			return page, fmt.Errorf("list objects: %w", err)
		}
		for i := range found {
			size += len(found[i].State)
		}
		page.Items = append(page.Items, found...)
		switch n := len(page.Items); {
		case n == limit || len(found) == stateRows && size >= stateBytes:
			page.Next = page.Items[n-1].key.cursor()
			return page, nil
		case len(found) < stateRows:
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

// window is the last key this page looks at; more says that there may be others behind it.
func (f *ObjectFilter) window(ctx context.Context, pool *pgxpool.Pool, after Key) (end Key, more bool, err error) {
	last := f.Source
	if last == 0 {
		last = 1<<31 - 1
	}
	err = pool.QueryRow(ctx, windowSQL, after.Source, after.Account, after.Type, after.ID, last, objectScan-1).
		Scan(&end.Source, &end.Account, &end.Type, &end.ID)
	if errors.Is(err, pgx.ErrNoRows) {
		if last == 1<<31-1 {
			last-- // no source has this number
		}
		return Key{Source: last + 1}, false, nil
	}
	return end, err == nil, err
}

func (f *ObjectFilter) views(ctx context.Context, pool *pgxpool.Pool, after, end Key, limit int) ([]View, error) {
	rows, err := pool.Query(ctx, objectsSQL, after.Source, after.Account, after.Type, after.ID, end.Source, end.Account, end.Type, end.ID,
		events.Optional(f.Source), f.Account, events.Optional(f.Type), events.Optional(f.ID), f.Deleted, f.Ambiguous, f.LookOwed, events.Optional(f.Since),
		events.Optional(f.Until), limit, f.Outdated, RuleVersion)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, scanView)
}

// FindObjects returns the objects of a source, type and id: one per account that has it, at most 100. A nil account means any.
func FindObjects(ctx context.Context, pool *pgxpool.Pool, source int32, account *string, objectType, id string) ([]View, error) {
	rows, err := pool.Query(ctx, findSQL, source, account, objectType, id, stateRows)
	if err != nil {
		return nil, fmt.Errorf("find object %s %s: %w", objectType, id, err)
	}
	found, err := pgx.CollectRows(rows, scanView)
	if err != nil {
		return nil, fmt.Errorf("find object %s %s: %w", objectType, id, err)
	}
	return found, nil
}

func scanView(row pgx.CollectableRow) (View, error) {
	var v View
	var look, settled *time.Time
	err := row.Scan(&v.key.Source, &v.Source, &v.Account, &v.ObjectType, &v.ObjectID, &v.Version.Final, &v.Version.At, &v.Version.Seen,
		&v.Version.Rank, &v.State, &v.Deleted, &v.Ambiguous, &look, &settled, &v.Revision, &v.LastEventID, &v.Repaired, &v.RuleVersion,
		&v.CreatedAt.Time, &v.UpdatedAt.Time, &v.Redacted)
	if look != nil {
		v.LookAfter.Time = *look
	}
	if settled != nil {
		v.Settled.Time = *settled
	}
	if v.State == nil {
		v.State = json.RawMessage("null")
	}
	v.key.Account, v.key.Type, v.key.ID = v.Account, v.ObjectType, v.ObjectID
	return v, err
}
