package events

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/postgres"
)

// Filter selects events; a zero field selects all.
type Filter struct {
	// Source is the number of a source.
	Source int32 `json:"source,omitzero"`
	// Account is the tenant; a pointer to "" selects events without one.
	Account *string `json:"account,omitzero"`
	// Type is the event type; * matches any text: "invoice.*".
	Type string `json:"type,omitzero"`
	// ObjectType and ObjectID are those that the ingest endpoint identified.
	ObjectType string `json:"object_type,omitzero"`
	ObjectID   string `json:"object_id,omitzero"`
	// Objects are hashes of object keys (versioning.ObjectKey). It selects the events that were
	// applied to one of them, by their outcomes, so it does not find events without an outcome. Nil
	// selects all, empty none.
	Objects []int64 `json:"objects,omitzero"`
	// IDs are Postern's event ids; nil selects all.
	IDs []int64 `json:"ids,omitzero"`
	// Key is the provider's id of the event.
	Key string `json:"key,omitzero"`
	// Since (inclusive) and Until (exclusive) bound the time in the event's id, which is
	// received_at in the receipt.
	Since time.Time `json:"since,omitzero"`
	Until time.Time `json:"until,omitzero"`
	// OccurredSince (inclusive) and OccurredUntil (exclusive) bound the provider's time of the
	// event.
	OccurredSince time.Time `json:"occurred_since,omitzero"`
	OccurredUntil time.Time `json:"occurred_until,omitzero"`
	// Status is the status of the live outcome, or "pending" for events without one.
	Status string `json:"status,omitzero"`
	Origin string `json:"origin,omitzero"`
	// AfterID excludes this id and all below it. Callers that follow the log set it.
	AfterID int64 `json:"after,omitzero"`
}

// Item is an event in a list.
type Item struct {
	ID         int64   `json:"id,string"`
	Source     string  `json:"source"`
	EventID    string  `json:"event_id"`
	EventType  string  `json:"event_type"`
	Account    string  `json:"account"`
	ObjectType string  `json:"object_type"`
	ObjectID   string  `json:"object_id"`
	OccurredAt Instant `json:"occurred_at"`
	// ReceivedAt is the gateway's time of receipt; StoredAt is the time in the id and in the
	// receipt.
	ReceivedAt    Instant `json:"received_at"`
	StoredAt      Instant `json:"stored_at"`
	Origin        string  `json:"origin"`
	APIVersion    string  `json:"api_version"`
	DeliveryID    int64   `json:"delivery_id,string"`
	DeliveryIndex int     `json:"delivery_index"`
	// Status is the status of the live outcome; "pending" if there is none yet.
	Status string `json:"status"`
	// Redacted is true if body and headers were cleared permanently.
	Redacted bool `json:"redacted"`
}

// windowSQL are the three ways to walk the log in one direction: by id, by the objects that events
// were applied to, and by dead outcomes. Each statement finds the end of a window of some rows.
type windowSQL struct{ all, byObjects, dead string }

var (
	backwards = windowSQL{listWindowSQL, listObjectsWindowSQL, listDeadWindowSQL}
	forwards  = windowSQL{walkWindowSQL, walkObjectsWindowSQL, walkDeadWindowSQL}
)

const (
	listWindowSQL = `SELECT id FROM events WHERE id < $1 AND id >= $2 ORDER BY id DESC OFFSET $3 LIMIT 1`

	listObjectsWindowSQL = `SELECT DISTINCT event_id FROM outcomes WHERE object = ANY($4::bigint[]) AND object <> 0
  AND event_id < $1 AND event_id >= $2 ORDER BY event_id DESC LIMIT $3`

	listDeadWindowSQL = `SELECT event_id FROM outcomes WHERE status = 'dead' AND run = 0 AND event_id < $1
		AND event_id >= $2
  ORDER BY event_id DESC LIMIT $3`
)

const itemColumns = `
SELECT e.id, s.name, e.event_id, e.event_type, e.account, e.object_type, e.object_id, e.occurred_at, e.received_at,
	e.origin, e.api_version,
  e.delivery_id, e.delivery_index, coalesce(o.status, 'pending'), EXISTS (SELECT FROM redacted_events d
  	WHERE d.event = e.id)
FROM events e JOIN sources s ON s.number = e.source
LEFT JOIN LATERAL (SELECT o.status FROM outcomes o WHERE o.event_id = e.id AND o.run = 0 LIMIT 1) o ON true
WHERE `

// itemFilter: $1 and $2 are the ids or their range.
const itemFilter = conditions + `
ORDER BY e.id DESC LIMIT $13`

const (
	listRangeSQL = itemColumns + `e.id < $1 AND e.id >= $2` + itemFilter
	listIDsSQL   = itemColumns + `e.id = ANY($1::bigint[]) AND e.id < $2` + itemFilter
)

// List returns a page of events, the newest first. Errors: ErrInvalid.
func List(ctx context.Context, pool *pgxpool.Pool, f Filter, cursor string, limit int) (Page[Item], error) {
	start, from := f.bounds()
	var first int64
	var more bool
	page, err := ReadPage("list events", cursor, limit, start, func(i *Item) int64 { return i.ID },
		func(below int64, limit int) (items []Item, err error) {
			for rows := range Windows(limit) {
				var ids []int64
				if first, ids, more, err = f.window(ctx, pool, backwards, below, from, rows); err != nil {
					return nil, err
				}
				sql, args := listRangeSQL, []any{below, first}
				if ids != nil {
					sql, args = listIDsSQL, []any{ids, below}
				}
				found, err := postgres.Collect(ctx, pool, scanItem, sql,
					append(append(args, f.conditions()...), limit-len(items))...)
				if items = append(items, found...); err != nil || len(items) == limit || !more {
					return items, err
				}
				below = first
			}
			return items, nil
		})
	if err == nil && page.Next == "" && more {
		page.Next = MakeCursor(first)
	}
	return page, err
}

// bounds returns the range of ids, [from, below), that the filter's times select.
func (f *Filter) bounds() (below, from int64) {
	below, from = math.MaxInt64, f.AfterID+1
	if !f.Until.IsZero() {
		below = FirstID(f.Until.Add(time.Millisecond - 1)) // ids have whole milliseconds
	}
	if !f.Since.IsZero() {
		from = max(from, FirstID(f.Since.Add(time.Millisecond-1)))
	}
	return below, from
}

// window returns the part of the log that one call reads, from start towards end: to the id last,
// or the given ids, the last of which is last; at most rows events. more is true if there are more
// events before end.
func (f *Filter) window(ctx context.Context, pool *pgxpool.Pool, sql windowSQL, start, end int64, rows int) (
	last int64, ids []int64, more bool, err error) {
	switch {
	case f.Objects != nil:
		ids, err = queryIDs(ctx, pool, sql.byObjects, start, end, rows, f.Objects)
	case f.Status == "dead":
		ids, err = queryIDs(ctx, pool, sql.dead, start, end, rows)
	default:
		err = pool.QueryRow(ctx, sql.all, start, end, rows-1).Scan(&last)
		if errors.Is(err, pgx.ErrNoRows) {
			return end, nil, false, nil
		}
		return last, nil, err == nil, err
	}
	if len(ids) == rows {
		return ids[len(ids)-1], ids, true, err
	}
	return end, ids, false, err
}

// queryIDs never returns nil without an error.
func queryIDs(ctx context.Context, pool *pgxpool.Pool, sql string, args ...any) ([]int64, error) {
	return postgres.Collect(ctx, pool, pgx.RowTo[int64], sql, args...)
}

func scanItem(row pgx.CollectableRow) (Item, error) {
	var it Item
	var occurred *time.Time
	err := row.Scan(&it.ID, &it.Source, &it.EventID, &it.EventType, &it.Account, &it.ObjectType, &it.ObjectID,
		&occurred, &it.ReceivedAt.Time, &it.Origin, &it.APIVersion, &it.DeliveryID, &it.DeliveryIndex,
		&it.Status, &it.Redacted)
	if occurred != nil {
		it.OccurredAt.Time = *occurred
	}
	it.StoredAt.Time = Time(it.ID)
	return it, err
}

// Outcome is the result of applying an event in one run.
type Outcome struct {
	// EventID is Postern's id of the event.
	EventID    int64  `json:"event_id,string"`
	Run        int64  `json:"run"`
	Source     string `json:"source"`
	Account    string `json:"account"`
	ObjectType string `json:"object_type"`
	ObjectID   string `json:"object_id"`
	Status     string `json:"status"`
	// Reason explains the status.
	Reason string `json:"reason"`
	// Version is the event's own version, DecidedBy the version that the object had at the
	// decision; null if there is none.
	Version   json.RawMessage `json:"version"`
	DecidedBy json.RawMessage `json:"decided_by"`
	// DecidedByEvent is the event that made the version DecidedBy. It is found where one event is
	// shown, not in lists, and left out if the event itself made it or it is too far back.
	DecidedByEvent int64   `json:"decided_by_event,string,omitempty"`
	Attempts       int     `json:"attempts"`
	Due            Instant `json:"due"`
	At             Instant `json:"at"`
	RuleVersion    int     `json:"rule_version"`
	// Original is the live outcome of the same event; null for a live outcome itself, and if there
	// is none.
	Original *Original `json:"original"`
}

// Original is the live outcome of an event.
type Original struct {
	Run    int64  `json:"run"`
	Status string `json:"status"`
}

// OutcomeColumns are the columns that ScanOutcome reads, of outcomes c and sources s.
const OutcomeColumns = `c.event_id, c.run, s.name, c.account, c.object_type, c.object_id, c.status, c.reason, c.version,
	c.decided_by,
  c.attempts, c.due, c.at, c.rule_version, (SELECT l.status FROM outcomes l WHERE c.run <> 0 AND l.event_id = c.event_id
  	AND l.run = 0)`

// ScanOutcome reads a row of OutcomeColumns.
func ScanOutcome(row pgx.CollectableRow) (Outcome, error) {
	var o Outcome
	var due *time.Time
	var live *string
	err := row.Scan(&o.EventID, &o.Run, &o.Source, &o.Account, &o.ObjectType, &o.ObjectID, &o.Status, &o.Reason,
		&o.Version, &o.DecidedBy, &o.Attempts, &due, &o.At.Time, &o.RuleVersion, &live)
	if live != nil {
		o.Original = &Original{Run: LiveRun, Status: *live}
	}
	if due != nil {
		o.Due.Time = *due
	}
	return o, err
}

// ParseID parses one of Postern's event ids.
func ParseID(text string) (int64, bool) {
	id, err := strconv.ParseInt(text, 10, 64)
	return id, err == nil && id > 0
}
