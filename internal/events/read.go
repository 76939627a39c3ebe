package events

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/provider"
)

// Record is a stored event with the number of its source.
type Record struct {
	provider.Stored
	Source     int32
	ObjectType string
	ObjectID   string
	OccurredAt time.Time
	// DeliveryID is the same of all events that share a body.
	DeliveryID int64
	// BodyLeftOut: the body is larger than was asked for.
	BodyLeftOut bool
	// Redacted: body and headers were cleared for good.
	Redacted bool
}

const readSQL = `
SELECT id, source, event_id, event_type, account, object_type, object_id, api_version, origin, received_at, occurred_at, delivery_index, delivery_id,
  CASE WHEN octet_length(body) <= $2 THEN body END, body IS NULL, coalesce(octet_length(body) > $2, false)
FROM events WHERE id = ANY($1::bigint[])`

const bodiesSQL = `SELECT id, CASE WHEN octet_length(body) <= $2 THEN body END, body IS NULL FROM events WHERE id = ANY($1::bigint[])`

// Reader is a pool, or a transaction that reads what it alone may see.
type Reader interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// AnyBody is the limit of who wants bodies of any length.
const AnyBody = math.MaxInt32

// Read returns the events with the given ids, in no order; ids that are not (or no longer) stored are left out, and so are
// bodies of more than maxBody bytes.
func Read(ctx context.Context, db Reader, ids []int64, maxBody int) ([]Record, error) {
	rows, err := db.Query(ctx, readSQL, ids, maxBody)
	if err != nil {
		return nil, fmt.Errorf("read %d events: %w", len(ids), err)
	}
	elsewhere := map[int64][]int{} // delivery id → records whose body lies there
	var recs []Record
	for rows.Next() {
		var r Record
		var occurred *time.Time
		var shared bool
		if err := rows.Scan(&r.ID, &r.Source, &r.Key, &r.Type, &r.Account, &r.ObjectType, &r.ObjectID, &r.APIVersion, &r.Origin,
			&r.ReceivedAt, &occurred, &r.Index, &r.DeliveryID, &r.Body, &shared, &r.BodyLeftOut); err != nil {
			return nil, fmt.Errorf("read events: %w", err)
		}
		if occurred != nil {
			r.OccurredAt = *occurred
		}
		// The first event of a delivery holds its body, unless that was redacted.
		if r.Redacted = shared && r.DeliveryID == r.ID; shared && !r.Redacted {
			elsewhere[r.DeliveryID] = append(elsewhere[r.DeliveryID], len(recs))
		}
		recs = append(recs, r)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read %d events: %w", len(ids), err)
	}
	return recs, fetchBodies(ctx, db, recs, elsewhere, maxBody)
}

func fetchBodies(ctx context.Context, db Reader, recs []Record, elsewhere map[int64][]int, maxBody int) error {
	if len(elsewhere) == 0 {
		return nil
	}
	ids := make([]int64, 0, len(elsewhere))
	for id := range elsewhere {
		ids = append(ids, id)
	}
	rows, err := db.Query(ctx, bodiesSQL, ids, maxBody)
	if err != nil {
		return fmt.Errorf("read %d bodies: %w", len(ids), err)
	}
	var id int64
	var body []byte
	var redacted bool
	_, err = pgx.ForEachRow(rows, []any{&id, &body, &redacted}, func() error {
		for _, i := range elsewhere[id] {
			recs[i].Body, recs[i].BodyLeftOut, recs[i].Redacted = body, body == nil && !redacted, redacted
		}
		body = nil
		return nil
	})
	return err
}

const afterSQL = `SELECT id FROM events WHERE id > $1 AND id <= $2 ORDER BY id LIMIT $3`

// After returns up to limit ids in (after, bound], ascending. With a bound from FreezeBound nothing is ever skipped.
func After(ctx context.Context, pool *pgxpool.Pool, after, bound int64, limit int) ([]int64, error) {
	rows, err := pool.Query(ctx, afterSQL, after, bound, limit)
	if err != nil {
		return nil, fmt.Errorf("read ids after %d: %w", after, err)
	}
	return pgx.CollectRows(rows, pgx.RowTo[int64])
}

const newestSQL = `SELECT coalesce(max(id), 0) FROM events`

// Newest is the greatest id in the log now, 0 where it is empty. Events below it may still be appended: see FreezeBound.
func Newest(ctx context.Context, pool *pgxpool.Pool) (id int64, err error) {
	if err := pool.QueryRow(ctx, newestSQL).Scan(&id); err != nil {
		return 0, fmt.Errorf("read the newest id: %w", err)
	}
	return id, nil
}

// raiseToNowSQL raises the floor to now, and to the newest stored event where the clock went back meanwhile: whatever was
// committed before is at or below the bound. A function of the owner's does it, so that who may freeze a bound cannot choose one.
const raiseToNowSQL = `SELECT raise_floor()`

const appendersSQL = `
SELECT DISTINCT virtualtransaction FROM pg_locks
WHERE locktype = 'relation' AND relation = 'events'::regclass AND mode = 'RowExclusiveLock' AND granted
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`

// boundPoll is how often FreezeBound looks whether the appends it waits for have ended.
const boundPoll = 5 * time.Millisecond

// FreezeBound returns an id up to which the log is complete: no event at or below it will appear later. Commit order is
// not id order, and no clock is trusted: it raises the floor that ids are made above, in a transaction of its own, notes
// who was appending then, and waits until those have ended. Appends that start later read the raised floor.
func FreezeBound(ctx context.Context, pool *pgxpool.Pool) (int64, error) {
	var ms int64
	if err := pool.QueryRow(ctx, raiseToNowSQL).Scan(&ms); err != nil {
		return 0, fmt.Errorf("raise the log's floor: %w", err)
	}
	waitFor, err := appenders(ctx, pool)
	for err == nil && len(waitFor) > 0 {
		select {
		case <-ctx.Done():
			return 0, fmt.Errorf("wait for %d appends below the bound: %w", len(waitFor), context.Cause(ctx))
		case <-time.After(boundPoll):
		}
		var now map[string]bool
		now, err = appenders(ctx, pool)
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

func appenders(ctx context.Context, pool *pgxpool.Pool) (map[string]bool, error) {
	rows, err := pool.Query(ctx, appendersSQL)
	if err != nil {
		return nil, err
	}
	set := map[string]bool{}
	var tx string
	_, err = pgx.ForEachRow(rows, []any{&tx}, func() error { set[tx] = true; return nil })
	return set, err
}
