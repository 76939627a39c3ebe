package events

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/provider"
)

// Record is a stored event with the number of its source.
type Record struct {
	provider.StoredEvent
	Source     int32
	ObjectType string
	ObjectID   string
	OccurredAt time.Time
	// DeliveryID is equal for all events that share a body.
	DeliveryID int64
	// BodyOmitted is true if the body is larger than the requested maximum.
	BodyOmitted bool
	// Redacted is true if body and headers were cleared permanently.
	Redacted bool
}

const readSQL = `
SELECT id, source, event_id, event_type, account, object_type, object_id, api_version, origin, received_at, occurred_at,
	delivery_index, delivery_id,
  CASE WHEN octet_length(body) <= $2 THEN body END, body IS NULL, coalesce(octet_length(body) > $2, false)
FROM events WHERE id = ANY($1::bigint[])`

const bodiesSQL = `SELECT id, CASE WHEN octet_length(body) <= $2 THEN body END, body IS NULL FROM events
	WHERE id = ANY($1::bigint[])`

// Reader is a pool, or a transaction that must read its own snapshot.
type Reader interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// UnlimitedBody is a limit for callers that read bodies of any size.
const UnlimitedBody = math.MaxInt32

// Read returns the events with the given ids, in no order. It omits ids that are not stored (any
// more), and bodies of more than maxBody bytes.
func Read(ctx context.Context, db Reader, ids []int64, maxBody int) ([]Record, error) {
	rows, err := db.Query(ctx, readSQL, ids, maxBody)
	if err != nil {
		return nil, fmt.Errorf("read %d events: %w", len(ids), err)
	}
	sharedBodies := map[int64][]int{} // delivery id → records whose body is stored with that event
	var recs []Record
	for rows.Next() {
		var r Record
		var occurred *time.Time
		var shared bool
		if err := rows.Scan(&r.ID, &r.Source, &r.Key, &r.Type, &r.Account, &r.ObjectType, &r.ObjectID, &r.APIVersion,
			&r.Origin, &r.ReceivedAt, &occurred, &r.Index, &r.DeliveryID, &r.Body, &shared,
			&r.BodyOmitted); err != nil {
			return nil, fmt.Errorf("read events: %w", err)
		}
		if occurred != nil {
			r.OccurredAt = *occurred
		}
		// The first event of a delivery has its body, unless that was redacted.
		if r.Redacted = shared && r.DeliveryID == r.ID; shared && !r.Redacted {
			sharedBodies[r.DeliveryID] = append(sharedBodies[r.DeliveryID], len(recs))
		}
		recs = append(recs, r)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read %d events: %w", len(ids), err)
	}
	return recs, fetchBodies(ctx, db, recs, sharedBodies, maxBody)
}

func fetchBodies(ctx context.Context, db Reader, recs []Record, sharedBodies map[int64][]int, maxBody int) error {
	if len(sharedBodies) == 0 {
		return nil
	}
	ids := make([]int64, 0, len(sharedBodies))
	for id := range sharedBodies {
		ids = append(ids, id)
	}
	var id int64
	var body []byte
	var redacted bool
	err := postgres.ForEach(ctx, db, bodiesSQL, []any{ids, maxBody}, []any{&id, &body, &redacted}, func() error {
		for _, i := range sharedBodies[id] {
			recs[i].Body, recs[i].BodyOmitted, recs[i].Redacted = body, body == nil && !redacted, redacted
		}
		body = nil
		return nil
	})
	if err != nil {
		return fmt.Errorf("read %d bodies: %w", len(ids), err)
	}
	return nil
}

const idsAfterSQL = `SELECT id FROM events WHERE id > $1 AND id <= $2 ORDER BY id LIMIT $3`

// IDsAfter returns up to limit ids in (after, bound], ascending. With a bound from FreezeBound
// nothing is ever skipped.
func IDsAfter(ctx context.Context, pool *pgxpool.Pool, after, bound int64, limit int) ([]int64, error) {
	ids, err := queryIDs(ctx, pool, idsAfterSQL, after, bound, limit)
	if err != nil {
		return nil, fmt.Errorf("read ids after %d: %w", after, err)
	}
	return ids, nil
}

const newestIDSQL = `SELECT coalesce(max(id), 0) FROM events`

// NewestID returns the greatest id in the log now, 0 if it is empty. Events below it may still be
// appended: see FreezeBound.
func NewestID(ctx context.Context, pool *pgxpool.Pool) (id int64, err error) {
	if err := pool.QueryRow(ctx, newestIDSQL).Scan(&id); err != nil {
		return 0, fmt.Errorf("read the newest id: %w", err)
	}
	return id, nil
}

// raiseFloorToNowSQL raises the floor to now, or to the newest stored event if the clock went back.
// Everything that was committed before is at or below the bound. A function of the owner does this,
// so that a role that may freeze a bound cannot choose one.
const raiseFloorToNowSQL = `SELECT raise_floor()`

const openAppendsSQL = `
SELECT DISTINCT virtualtransaction FROM pg_locks
WHERE locktype = 'relation' AND relation = 'events'::regclass AND mode = 'RowExclusiveLock' AND granted
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`

// boundPollInterval is how often FreezeBound checks whether the open appends have ended.
const boundPollInterval = 5 * time.Millisecond

// FreezeBound returns an id up to which the log is complete: no event at or below it will appear
// later. Commit order is not id order, and clocks are not trusted. FreezeBound therefore raises the
// floor above which ids are made, in its own transaction. Then it lists the transactions that are
// appending and waits until they have ended. Later appends read the raised floor.
func FreezeBound(ctx context.Context, pool *pgxpool.Pool) (int64, error) {
	var ms int64
	if err := pool.QueryRow(ctx, raiseFloorToNowSQL).Scan(&ms); err != nil {
		return 0, fmt.Errorf("raise the log's floor: %w", err)
	}
	waitFor, err := openAppends(ctx, pool)
	for err == nil && len(waitFor) > 0 {
		select {
		case <-ctx.Done():
			return 0, fmt.Errorf("wait for %d appends below the bound: %w", len(waitFor), context.Cause(ctx))
		case <-time.After(boundPollInterval):
		}
		var now map[string]bool
		now, err = openAppends(ctx, pool)
		for tx := range waitFor {
			if !now[tx] {
				delete(waitFor, tx)
			}
		}
	}
	if err != nil {
		return 0, fmt.Errorf("list appending transactions: %w", err)
	}
	return (ms+1)<<20 - 1, nil
}

func openAppends(ctx context.Context, pool *pgxpool.Pool) (map[string]bool, error) {
	set := map[string]bool{}
	var tx string
	return set, postgres.ForEach(ctx, pool, openAppendsSQL, nil, []any{&tx},
		func() error { set[tx] = true; return nil })
}

const itemsAfterSQL = itemColumns + `e.id > $1 AND e.id <= $2 ORDER BY e.id LIMIT $3`

// ItemsAfter returns up to limit events in (after, bound], ascending. With a bound from FreezeBound
// nothing is ever skipped.
func ItemsAfter(ctx context.Context, pool *pgxpool.Pool, after, bound int64, limit int) ([]Item, error) {
	items, err := postgres.Collect(ctx, pool, scanItem, itemsAfterSQL, after, bound, limit)
	if err != nil {
		return nil, fmt.Errorf("read events after %d: %w", after, err)
	}
	return items, nil
}

const itemsSQL = itemColumns + `e.id = ANY($1::bigint[]) ORDER BY e.id`

// Items returns the events with the given ids, ascending. It omits ids that are not stored.
func Items(ctx context.Context, pool *pgxpool.Pool, ids []int64) ([]Item, error) {
	items, err := postgres.Collect(ctx, pool, scanItem, itemsSQL, ids)
	if err != nil {
		return nil, fmt.Errorf("read %d events: %w", len(ids), err)
	}
	return items, nil
}
