package versioning

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
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
	// pageStateBytes limits the size of the states on a page. A page that reaches it ends early.
	pageStateBytes = 8 << 20
	// stateBatch is how many rows with states one query reads.
	stateBatch = 100
	// maxKeys is the maximum number of keys that FindKeys returns.
	maxKeys = 10_000
)

const viewColumns = `
SELECT o.source, s.name, o.account, o.object_type, o.object_id, o.version_final, o.version_at, o.version_seen,
	o.version_rank, o.state,
  o.deleted, o.ambiguous, provider_time(o.refetch_after), provider_time(o.overwritten_at), o.revision, o.last_event_id,
  	o.sanitized, o.rule_version, o.created_at, o.updated_at,
  o.tied_states = '[]' AND o.version_at > -9223372036854775808
`

const (
	windowEndSQL = `SELECT o.source, o.account, o.object_type, o.object_id FROM objects o
WHERE (o.source, o.account, o.object_type, o.object_id) > ($1, $2, $3, $4) AND o.source <= $5
ORDER BY o.source, o.account, o.object_type, o.object_id OFFSET $6 LIMIT 1`

	// objectsSQL reads the keys of a window, at most $22, and then the rows of those that the
	// filter may select. Some keys may be after the window's end; the condition after LIMIT
	// removes them. LIMIT is necessary because an index scan of PostgreSQL 15 ends at the last
	// object of the end's source, not at the end.
	objectsSQL = viewColumns + `
FROM (SELECT k.* FROM (SELECT o.source, o.account, o.object_type, o.object_id FROM objects o
    WHERE (o.source, o.account, o.object_type, o.object_id) > ($1, $2, $3, $4) AND o.source <= $21
    ORDER BY o.source, o.account, o.object_type, o.object_id LIMIT $22) k
  WHERE (k.source, k.account, k.object_type, k.object_id) <= ($5, $6, $7, $8)
    AND ($9::int IS NULL OR k.source = $9) AND ($10::text IS NULL OR k.account = $10)
    AND ($11::text IS NULL OR k.object_type = $11) AND ($12::text IS NULL OR k.object_id = $12)) k
CROSS JOIN LATERAL (SELECT * FROM objects x WHERE x.source = k.source AND x.account = k.account
  AND x.object_type = k.object_type AND x.object_id = k.object_id LIMIT 1) o
JOIN sources s ON s.number = k.source
WHERE ($13::bool IS NULL OR o.deleted = $13) AND ($14::bool IS NULL OR o.ambiguous = $14)
  AND ($15::bool IS NULL OR (o.refetch_after <> 0) = $15) AND ($16::timestamptz IS NULL OR o.updated_at >= $16)
  AND ($17::timestamptz IS NULL OR o.updated_at < $17) AND ($19::bool IS NULL OR (o.rule_version < $20) = $19)
ORDER BY k.source, k.account, k.object_type, k.object_id LIMIT $18`

	// foundObjects walks the accounts of the sources from $1 to $2 through the primary key, one
	// index lookup for each, because no index begins with the id. $3 is the only account; null for
	// all.
	foundObjects = `hop(source, account) AS (
  (SELECT o.source, o.account FROM objects o WHERE o.source >= $1 AND o.source <= $2 AND $3::text IS NULL
   ORDER BY o.source, o.account LIMIT 1)
  UNION ALL
  SELECT k.source, k.account FROM hop CROSS JOIN LATERAL (
    SELECT o.source, o.account FROM objects o
    WHERE (o.source, o.account) > (hop.source, hop.account) AND o.source <= $2 ORDER BY o.source, o.account LIMIT 1) k
), wanted AS (
  SELECT source, account FROM hop
  UNION ALL SELECT number, $3 FROM sources WHERE number >= $1 AND number <= $2 AND $3::text IS NOT NULL
), found AS (
  SELECT k.source, k.account, k.object_type, k.object_id FROM wanted w CROSS JOIN LATERAL
    (SELECT o.source, o.account, o.object_type, o.object_id FROM objects o
     WHERE o.source = w.source AND o.account = w.account AND o.object_type = $4 AND o.object_id = $5 LIMIT 1) k
)`

	findKeysSQL = "WITH RECURSIVE " + foundObjects + `
SELECT source, account, object_type, object_id FROM (SELECT * FROM found LIMIT $6) f ORDER BY source, account`

	findSQL = "WITH RECURSIVE " + foundObjects + viewColumns + `
FROM objects o JOIN sources s ON s.number = o.source JOIN (SELECT * FROM found LIMIT $6) f
USING (source, account, object_type, object_id) ORDER BY o.account`
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
	err = postgres.ReadSnapshot(ctx, pool, func(tx pgx.Tx) error {
		return f.readPage(ctx, tx, &page, after, events.Windows(limit), limit)
	})
	if err != nil {
		return page, fmt.Errorf("list objects: %w", err)
	}
	return page, nil
}

// readPage fills a page with objects after a key. Each window is how many objects are read next.
func (f *ObjectFilter) readPage(ctx context.Context, tx pgx.Tx, page *events.Page[View], after Key,
	windows iter.Seq[int], limit int) error {
	for rows := range windows {
		end, more, err := f.windowEnd(ctx, tx, after, rows)
		if err != nil {
			return err
		}
		full, err := f.readWindow(ctx, tx, page, after, end, rows, limit)
		if full || err != nil {
			return err
		}
		if page.Next = ""; !more {
			return nil
		}
		if page.Next, after = end.cursor(), end; stateBytes(page.Items) >= pageStateBytes {
			return nil
		}
	}
	return nil
}

// readWindow adds the objects after a key up to end to a page. It scans at most rows objects. full
// says that the page ends before end.
func (f *ObjectFilter) readWindow(ctx context.Context, tx pgx.Tx, page *events.Page[View], after, end Key, rows,
	limit int) (full bool, err error) {
	for {
		found, err := f.loadViews(ctx, tx, after, end, rows, min(limit-len(page.Items), stateBatch))
		if err != nil {
			return false, err
		}
		page.Items = append(page.Items, found...)
		switch n := len(page.Items); {
		case n == limit || len(found) == stateBatch && stateBytes(page.Items) >= pageStateBytes:
			page.Next = page.Items[n-1].key.cursor()
			return true, nil
		case len(found) < stateBatch:
			return false, nil
		default:
			after = page.Items[n-1].key
		}
	}
}

func (k Key) cursor() string { return events.MakeCursor(k.Source, k.Account, k.Type, k.ID) }

func stateBytes(all []View) (size int) {
	for i := range all {
		size += len(all[i].State)
	}
	return size
}

// windowEnd returns the last key of the next rows objects. more reports whether objects may follow
// it.
func (f *ObjectFilter) windowEnd(ctx context.Context, tx pgx.Tx, after Key, rows int) (end Key, more bool, err error) {
	_, last := events.SourceInterval(f.Source)
	err = tx.QueryRow(ctx, windowEndSQL, after.Source, after.Account, after.Type, after.ID, last, rows-1).
		Scan(&end.Source, &end.Account, &end.Type, &end.ID)
	if errors.Is(err, pgx.ErrNoRows) {
		if last == 1<<31-1 {
			last-- // so that last + 1 does not overflow; no source has the greatest number
		}
		return Key{Source: last + 1}, false, nil
	}
	return end, err == nil, err
}

func (f *ObjectFilter) loadViews(ctx context.Context, tx pgx.Tx, after, end Key, rows, limit int) ([]View, error) {
	_, last := events.SourceInterval(f.Source)
	return postgres.Collect(ctx, tx, scanView, objectsSQL, after.Source, after.Account, after.Type, after.ID,
		end.Source, end.Account, end.Type, end.ID, events.NilIfZero(f.Source), f.Account, events.NilIfZero(f.Type),
		events.NilIfZero(f.ID), f.Deleted, f.Ambiguous, f.RefetchPending, events.NilIfZero(f.Since),
		events.NilIfZero(f.Until), limit, f.Outdated, RuleVersion, last, rows)
}

// FindObjects returns the objects with this source, type and id: one for each account, at most 100.
// A nil account selects all accounts.
func FindObjects(ctx context.Context, pool *pgxpool.Pool, source int32, account *string, objectType, id string) ([]View,
	error) {
	found, err := postgres.Collect(ctx, pool, scanView, findSQL, source, source, account, objectType, id, stateBatch)
	if err != nil {
		return nil, fmt.Errorf("find object %s %s: %w", objectType, id, err)
	}
	return found, nil
}

// FindKeys returns the keys of all objects with this type and id, in order. Source 0 selects all
// sources, and a nil account all accounts. Errors: events.ErrInvalid for more than 10,000 objects.
func FindKeys(ctx context.Context, pool *pgxpool.Pool, source int32, account *string, objectType, id string) ([]Key,
	error) {
	first, last := events.SourceInterval(source)
	keys, err := postgres.Collect(ctx, pool, pgx.RowToStructByPos[Key], findKeysSQL, first, last, account, objectType,
		id, maxKeys+1)
	switch {
	case err != nil:
		return nil, fmt.Errorf("find object %s %s: %w", objectType, id, err)
	case len(keys) > maxKeys:
		return nil, fmt.Errorf("%w: more than %d objects have the type %s and the id %s: give the source and the "+
			"account", events.ErrInvalid, maxKeys, objectType, id)
	}
	return keys, nil
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
