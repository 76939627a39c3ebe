package changes

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/versioning"
)

// Query selects a page of changes.
type Query struct {
	Filter
	// After is where the page begins. With Latest it begins after the newest change.
	After  Cursor
	Latest bool
	Limit  int
	// States adds event, version, ambiguity and state, up to about MaxBytes of states on one page.
	States   bool
	MaxBytes int
}

// Item is the last change of an object, with the object as it is when it is read, which is never
// older than the change.
type Item struct {
	// Place of the change in the order. An object that changes again gets a greater number.
	Number     int64  `json:"number"`
	Source     string `json:"source"`
	Account    string `json:"account"`
	ObjectType string `json:"object_type"`
	ObjectID   string `json:"object_id"`
	// It grows with each change of the object.
	Revision int64 `json:"revision"`
	// True if the provider deleted the object, or if a rebuild found that no event makes it.
	Deleted bool `json:"deleted"`
	// True if the state was erased permanently: erase everything that you derived from it.
	Redacted bool `json:"redacted"`
	// Time of the change, or of the change with the previous number if that is later.
	ChangedAt events.Instant `json:"changed_at"`
	// The event whose version the object has. It and the members below are left out with
	// states=false.
	EventID *int64 `json:"event_id,string,omitzero"`
	// Null if no event makes the object.
	Version   *versioning.Version `json:"version,omitzero"`
	Ambiguous *bool               `json:"ambiguous,omitzero"`
	// The object as the provider's API renders it; null if it was erased, or never known.
	State json.RawMessage `json:"state,omitzero"`
}

// Page is a part of the changes, in the order of their numbers.
type Page struct {
	Items []Item `json:"items"`
	// The value of after for the next page. It is never null, and also moves past changes that were
	// not selected.
	Next string `json:"next_cursor"`
	// True if there may be more changes now.
	HasMore bool `json:"has_more"`
	next    Cursor
}

// CursorOf returns the cursor with which a reader continues after an item.
func (p *Page) CursorOf(item int) Cursor { return Cursor{p.next.Epoch, p.Items[item].Number} }

// objectsSQL reads the objects of some changes, in their order, with their states if $6 is true. It
// ends before an object with which the stored sizes of the states would exceed $5, but not before
// the first.
const objectsSQL = `
SELECT f.n, f.revision, f.deleted, f.redacted, f.last_event_id, f.version_final, f.version_at, f.version_seen,
  f.version_rank, f.ambiguous, f.state
FROM (
  SELECT k.n, o.revision, o.deleted OR o.version_at = -9223372036854775808 AS deleted,
    o.state IS NULL AND o.version_at > -9223372036854775808 AND o.tied_states = '[]' AS redacted,
    o.last_event_id, o.version_final, o.version_at, o.version_seen, o.version_rank, o.ambiguous,
    CASE WHEN $6::bool THEN o.state END AS state,
    sum(CASE WHEN $6::bool THEN coalesce(pg_column_size(o.state), 0) ELSE 0 END) OVER (ORDER BY k.n) AS bytes,
    row_number() OVER (ORDER BY k.n)
  FROM unnest($1::int[], $2::text[], $3::text[], $4::text[]) WITH ORDINALITY AS
    k(source, account, object_type, object_id, n)
  CROSS JOIN LATERAL (SELECT o.* FROM objects o WHERE o.source = k.source AND o.account = k.account
    AND o.object_type = k.object_type AND o.object_id = k.object_id LIMIT 1) o
) f WHERE f.bytes <= $5 OR f.row_number = 1 ORDER BY f.n`

// readPage reads a page. Errors: ErrCursorEnded.
func readPage(ctx context.Context, db postgres.DB, q Query) (Page, error) {
	feed, err := ReadFeed(ctx, db)
	if err != nil {
		return Page{}, err
	}
	at := feed.Newest
	if !q.Latest {
		if at, err = feed.Check(q.After); err != nil {
			return Page{}, err
		}
	}
	found, end, err := Read(ctx, db, at, feed.Newest, q.Filter, q.Limit)
	if err != nil {
		return Page{}, err
	}
	page := Page{Items: make([]Item, 0, len(found))}
	if len(found) > 0 {
		if err := page.add(ctx, db, q, found); err != nil {
			return Page{}, fmt.Errorf("read the objects of changes: %w", err)
		}
		if n := len(page.Items); n > 0 && n < len(found) {
			end = page.Items[n-1].Number
		}
	}
	page.next, page.HasMore = feed.At(end), end < feed.Newest
	page.Next = page.next.String()
	return page, nil
}

// add adds the changes with their objects, as many as the query's MaxBytes allows, at least one. It
// leaves out a change without an object, as mirror.changes does. Postern deletes no object, so only
// a manual DELETE causes one.
func (p *Page) add(ctx context.Context, db postgres.DB, q Query, found []Change) error {
	var sources []int32
	var accounts, types, ids []string
	for i := range found {
		sources, accounts = append(sources, found[i].Source), append(accounts, found[i].Account)
		types, ids = append(types, found[i].Type), append(ids, found[i].ID)
	}
	var n, event int64
	var version versioning.Version
	var ambiguous bool
	var object Item
	size, full := 0, false
	return postgres.ForEach(ctx, db, objectsSQL,
		[]any{sources, accounts, types, ids, q.MaxBytes, q.States},
		[]any{&n, &object.Revision, &object.Deleted, &object.Redacted, &event, &version.Final, &version.At,
			&version.Seen, &version.Rank, &ambiguous, &object.State},
		func() error {
			// Text is larger than what is stored, so the page may end before the rows do.
			if size += len(object.State); full || len(p.Items) > 0 && size > q.MaxBytes {
				full = true
				return nil
			}
			c := &found[n-1]
			it := Item{Number: c.Number, Source: c.SourceName, Account: c.Account, ObjectType: c.Type, ObjectID: c.ID,
				Revision: object.Revision, Deleted: object.Deleted, Redacted: object.Redacted, ChangedAt: c.At}
			if q.States {
				it.EventID, it.Version, it.Ambiguous = new(event), new(version), new(ambiguous)
				if it.State = json.RawMessage("null"); object.State != nil {
					it.State = append(json.RawMessage(nil), object.State...)
				}
			}
			p.Items = append(p.Items, it)
			return nil
		})
}
