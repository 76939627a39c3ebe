package events

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Filter chooses events; what is zero chooses all.
type Filter struct {
	// Source is a source's number.
	Source int32 `json:"source,omitzero"`
	// Account is the tenant; a pointer to "" chooses events without one.
	Account *string `json:"account,omitzero"`
	// Type is the event type; * stands for any text: "invoice.*".
	Type string `json:"type,omitzero"`
	// ObjectType and ObjectID are what the event was identified with at the door.
	ObjectType string `json:"object_type,omitzero"`
	ObjectID   string `json:"object_id,omitzero"`
	// Objects are hashes of object keys (versioning.ObjectKey); the events that were applied to any of them are found
	// through their outcomes, so an event without an outcome yet is not among them. Nil: not asked; empty: none.
	Objects []int64 `json:"objects,omitzero"`
	// IDs are our ids of events; nil: not asked.
	IDs []int64 `json:"ids,omitzero"`
	// Key is the provider's id of the event.
	Key string `json:"key,omitzero"`
	// Since (inclusive) and Until (exclusive) bound the time that the event's id carries, which is the receipt's received_at.
	Since time.Time `json:"since,omitzero"`
	Until time.Time `json:"until,omitzero"`
	// OccurredSince (inclusive) and OccurredUntil (exclusive) bound the provider's time of the event.
	OccurredSince time.Time `json:"occurred_since,omitzero"`
	OccurredUntil time.Time `json:"occurred_until,omitzero"`
	// Status is that of the live outcome, or "pending" for events that have none yet.
	Status string `json:"status,omitzero"`
	Origin string `json:"origin,omitzero"`
	// After leaves out this id and all below it; a follower's place.
	After int64 `json:"after,omitzero"`
}

// Item is an event as a list shows it.
type Item struct {
	ID         int64   `json:"id,string"`
	Source     string  `json:"source"`
	EventID    string  `json:"event_id"`
	EventType  string  `json:"event_type"`
	Account    string  `json:"account"`
	ObjectType string  `json:"object_type"`
	ObjectID   string  `json:"object_id"`
	OccurredAt Instant `json:"occurred_at"`
	// ReceivedAt is the gateway's own time of receipt, StoredAt the one that the id and the receipt carry.
	ReceivedAt    Instant `json:"received_at"`
	StoredAt      Instant `json:"stored_at"`
	Origin        string  `json:"origin"`
	APIVersion    string  `json:"api_version"`
	DeliveryID    int64   `json:"delivery_id,string"`
	DeliveryIndex int     `json:"delivery_index"`
	// Status is that of the live outcome; "pending" where there is none yet.
	Status string `json:"status"`
	// Redacted: body and headers were cleared for good.
	Redacted bool `json:"redacted"`
}

// The three ways to walk the log backwards: by id, by the objects that events were applied to, and by what needs a person.
// Each has a statement that says where a window of scanRows rows ends.
const (
	logWindowSQL = `SELECT id FROM events WHERE id < $1 AND id >= $2 ORDER BY id DESC OFFSET $3 LIMIT 1`

	objectWindowSQL = `SELECT DISTINCT event_id FROM outcomes WHERE object = ANY($4::bigint[]) AND object <> 0
  AND event_id < $1 AND event_id >= $2 ORDER BY event_id DESC LIMIT $3`

	deadWindowSQL = `SELECT event_id FROM outcomes WHERE status = 'dead' AND run = 0 AND event_id < $1 AND event_id >= $2
  ORDER BY event_id DESC LIMIT $3`
)

const itemColumns = `
SELECT e.id, s.name, e.event_id, e.event_type, e.account, e.object_type, e.object_id, e.occurred_at, e.received_at, e.origin, e.api_version,
  e.delivery_id, e.delivery_index, coalesce(o.status, 'pending'), EXISTS (SELECT FROM redacted d WHERE d.event = e.id)
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

func listStatements() []string {
	return []string{logWindowSQL, objectWindowSQL, deadWindowSQL, listRangeSQL, listIDsSQL, eventSQL, restSQL, bySourceKeySQL, outcomesOfSQL,
		conflictWindowSQL, conflictsSQL, oneConflictSQL, conflictRestSQL, conflictsOfSQL,
		windowUpSQL, objectsUpSQL, deadUpSQL, matchRangeSQL, matchIDsSQL, countRangeSQL,
		countIDsSQL, countObjectsSQL, countDeadSQL, likelyByObjects, likelyDeadSQL, someOfObjectsSQL, someDeadSQL, endsSQL, rangeSQL, likelyObjectsSQL}
}

// List returns a page of events, the newest first. Errors: ErrInvalid.
func List(ctx context.Context, pool *pgxpool.Pool, f Filter, cursor string, limit int) (Page[Item], error) {
	var page Page[Item]
	limit, err := PageSize(limit)
	if err != nil {
		return page, err
	}
	below, from := f.bounds()
	if err := ReadCursor(cursor, &below); err != nil {
		return page, err
	}
	first, ids, more, err := f.window(ctx, pool, below, from)
	if err != nil {
		return page, fmt.Errorf("list events: %w", err)
	}
	if ids != nil {
		page.Items, err = f.items(ctx, pool, listIDsSQL, ids, below, limit)
	} else {
		page.Items, err = f.items(ctx, pool, listRangeSQL, below, first, limit)
	}
	if err != nil {
		return page, fmt.Errorf("list events: %w", err)
	}
	switch {
	case len(page.Items) == limit:
		page.Next = MakeCursor(page.Items[limit-1].ID)
	case more:
		page.Next = MakeCursor(first)
	}
	return page, nil
}

// bounds is the range of ids, [from, below), that the filter's times leave.
func (f *Filter) bounds() (below, from int64) {
	below, from = math.MaxInt64, f.After+1
	if !f.Until.IsZero() {
		below = FirstID(f.Until.Add(time.Millisecond - 1)) // ids carry whole milliseconds
	}
	if !f.Since.IsZero() {
		from = max(from, FirstID(f.Since.Add(time.Millisecond-1)))
	}
	return below, from
}

// window is the part of the log one page looks at: down to the id first, or the given ids; more says that it goes on below.
func (f *Filter) window(ctx context.Context, pool *pgxpool.Pool, below, from int64) (first int64, ids []int64, more bool, err error) {
	switch {
	case f.Objects != nil:
		ids, err = queryIDs(ctx, pool, objectWindowSQL, below, from, scanRows, f.Objects)
	case f.Status == "dead":
		ids, err = queryIDs(ctx, pool, deadWindowSQL, below, from, scanRows)
	default:
		err = pool.QueryRow(ctx, logWindowSQL, below, from, scanRows-1).Scan(&first)
		if errors.Is(err, pgx.ErrNoRows) {
			return from, nil, false, nil
		}
		return first, nil, err == nil, err
	}
	if len(ids) == scanRows {
		return ids[len(ids)-1], ids, true, err
	}
	return from, ids, false, err
}

// queryIDs never returns nil without an error.
func queryIDs(ctx context.Context, pool *pgxpool.Pool, sql string, args ...any) ([]int64, error) {
	rows, err := pool.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[int64])
}

func (f *Filter) items(ctx context.Context, pool *pgxpool.Pool, sql string, first, second any, limit int) ([]Item, error) {
	rows, err := pool.Query(ctx, sql, append(append([]any{first, second}, f.conditions()...), limit)...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, scanItem)
}

func scanItem(row pgx.CollectableRow) (Item, error) {
	var it Item
	var occurred *time.Time
	err := row.Scan(&it.ID, &it.Source, &it.EventID, &it.EventType, &it.Account, &it.ObjectType, &it.ObjectID, &occurred, &it.ReceivedAt.Time,
		&it.Origin, &it.APIVersion, &it.DeliveryID, &it.DeliveryIndex, &it.Status, &it.Redacted)
	if occurred != nil {
		it.OccurredAt.Time = *occurred
	}
	it.StoredAt.Time = Time(it.ID)
	return it, err
}

// Outcome is what became of an event in one run.
type Outcome struct {
	EventID    int64  `json:"event_id,string"`
	Run        int64  `json:"run"`
	Source     string `json:"source"`
	Account    string `json:"account"`
	ObjectType string `json:"object_type"`
	ObjectID   string `json:"object_id"`
	Status     string `json:"status"`
	Reason     string `json:"reason"`
	// Version is the event's own, DecidedBy the one the object had when the decision fell; null where there is none.
	Version     json.RawMessage `json:"version"`
	DecidedBy   json.RawMessage `json:"decided_by"`
	Attempts    int             `json:"attempts"`
	Due         Instant         `json:"due"`
	At          Instant         `json:"at"`
	RuleVersion int             `json:"rule_version"`
	// Original is the live outcome of the event, beside which this one of a run stands; null for the live one itself, and where there is none.
	Original *Original `json:"original"`
}

// Original is the live outcome of an event.
type Original struct {
	Run    int64  `json:"run"`
	Status string `json:"status"`
}

// OutcomeColumns are the columns that ScanOutcome reads, of outcomes c and sources s.
const OutcomeColumns = `c.event_id, c.run, s.name, c.account, c.object_type, c.object_id, c.status, c.reason, c.version, c.decided_by,
  c.attempts, c.due, c.at, c.rule_version, (SELECT l.status FROM outcomes l WHERE c.run <> 0 AND l.event_id = c.event_id AND l.run = 0)`

// ScanOutcome reads a row of OutcomeColumns.
func ScanOutcome(row pgx.CollectableRow) (Outcome, error) {
	var o Outcome
	var due *time.Time
	var live *string
	err := row.Scan(&o.EventID, &o.Run, &o.Source, &o.Account, &o.ObjectType, &o.ObjectID, &o.Status, &o.Reason, &o.Version, &o.DecidedBy,
		&o.Attempts, &due, &o.At.Time, &o.RuleVersion, &live)
	if live != nil {
		o.Original = &Original{Run: LiveRun, Status: *live}
	}
	if due != nil {
		o.Due.Time = *due
	}
	return o, err
}

// ParseID reads one of our event ids.
func ParseID(text string) (int64, bool) {
	id, err := strconv.ParseInt(text, 10, 64)
	return id, err == nil && id > 0
}
