package events

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/postgres"
)

const fullRecordColumns = `
SELECT id, source, event_id, event_type, account, object_type, object_id, api_version, origin, occurred_at, received_at,
	headers, verification,
  fingerprint, delivery_id, delivery_index, body
FROM events WHERE `

const (
	walkRangeSQL = fullRecordColumns + `id > $1 AND id <= $2 ORDER BY id LIMIT $3`
	walkIDsSQL   = fullRecordColumns + `id = ANY($1::bigint[]) ORDER BY id`

	walkBodySQL = `SELECT body FROM events WHERE id = $1`
)

// partitionsSQL lists the partitions that a reader of the log sees now and that have ids in a
// range. A partition whose detaching has begun is not visible. The CASE is needed because a plan
// may evaluate to_date for tables that are no partitions.
const partitionsSQL = `
SELECT name, hi FROM (SELECT name, (extract(epoch FROM day) * 1000)::bigint << 20 AS lo,
	(extract(epoch FROM day + 1) * 1000)::bigint << 20 AS hi
  FROM (SELECT c.relname::text AS name, CASE WHEN c.relname ~ '^events_[0-9]{8}$' THEN to_date(substr(c.relname, 8),
  	'YYYYMMDD') END AS day
    FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid WHERE i.inhparent = 'events'::regclass
    	AND NOT i.inhdetachpending) d) p
WHERE hi > $1 AND lo <= $2 ORDER BY lo`

// Partition is a partition of the log.
type Partition struct {
	Name string `json:"name"`
	// End is the first id after it.
	End int64 `json:"end,string"`
}

// ListPartitions returns the partitions with ids in the range of a filter, above after and up to
// bound, in order. If a partition is listed before a walk and not after it, the walk may have
// missed events of it.
func ListPartitions(ctx context.Context, pool *pgxpool.Pool, f *Filter, after, bound int64) ([]Partition, error) {
	below, from := f.bounds()
	partitions, err := postgres.Collect(ctx, pool, pgx.RowToStructByPos[Partition], partitionsSQL, max(after+1, from),
		min(bound, below-1))
	if err != nil {
		return nil, fmt.Errorf("list the partitions of the log: %w", err)
	}
	return partitions, nil
}

// walkSessionSQL disables the timeout of 10 s after which the server drops a client that reads
// nothing. A walk writes to a pipe, which may stall for longer.
const walkSessionSQL = `SET tcp_user_timeout = 0`

// maxWalkRows is how many events Walk reads with one statement, so that no statement holds a
// snapshot for long.
const maxWalkRows = 4096

// FullRecord is everything that the log stores of an event. Its bytes are valid only until the
// handler returns.
type FullRecord struct {
	ID         int64
	Source     int32
	Key, Type  []byte
	Account    []byte
	ObjectType []byte
	ObjectID   []byte
	APIVersion []byte
	Origin     []byte
	// OccurredAt is zero if the provider gave no time.
	OccurredAt, ReceivedAt time.Time
	// Headers and Verification are JSON objects.
	Headers, Verification []byte
	Fingerprint           []byte
	// DeliveryID is equal for all events of a delivery; Index is the position in it.
	DeliveryID int64
	Index      int
	// Body is the body of the whole delivery; nil if the log no longer has it.
	Body []byte
}

// Walk calls handle for the events above after that the filter selects, in ascending order. Each
// call of Walk reads one part of the log. It returns the id up to which it has read, or the bound
// if there is nothing more. It reads nothing above the bound; with a bound from FreezeBound nothing
// is ever skipped. It uses two connections of the pool, and memory for some megabytes of bodies or
// one larger body. An error of handle ends the walk and is returned.
func Walk(ctx context.Context, pool *pgxpool.Pool, f *Filter, after, bound int64,
	handle func(*FullRecord) error) (end int64, err error) {
	w := walk{pool: pool, handle: handle}
	if !f.isIDRange() {
		ids, end, err := Match(ctx, pool, f, after, bound)
		for err == nil && len(ids) > 0 {
			n := min(len(ids), maxWalkRows)
			err = w.run(ctx, postgres.Statement{Name: "postern_walk_ids", SQL: walkIDsSQL, SetupSQL: walkSessionSQL},
				func(p *postgres.Params) {
					p.Array(pgtype.Int8OID, n, func(i int) { p.Int64(ids[i]) })
				})
			ids = ids[n:]
		}
		return end, err
	}
	below, from := f.bounds()
	after, last := max(after, from-1), min(bound, below-1)
	if after >= last {
		return bound, nil
	}
	err = w.run(ctx, postgres.Statement{Name: "postern_walk_range", SQL: walkRangeSQL, SetupSQL: walkSessionSQL},
		func(p *postgres.Params) {
			p.Int64(after)
			p.Int64(last)
			p.Int64(maxWalkRows)
		})
	if w.rows < maxWalkRows {
		return bound, err
	}
	return w.lastID, err
}

// isIDRange returns true if the filter restricts only the ids.
func (f *Filter) isIDRange() bool {
	rest := *f
	rest.Since, rest.Until, rest.AfterID = time.Time{}, time.Time{}, 0
	return reflect.DeepEqual(rest, Filter{})
}

// bodyCacheSize is approximately how many bytes of bodies a walk caches. The events of one delivery
// are close together in the log.
const bodyCacheSize = 4 << 20

// walk is one call of Walk.
type walk struct {
	pool   *pgxpool.Pool
	handle func(*FullRecord) error
	rows   int
	lastID int64
	// bodies are the latest bodies; cached are their positions by event id. A position whose end is
	// before its start means that the log has no body.
	bodies []byte
	cached map[int64]span
	record FullRecord
}

type span struct{ from, to int }

func (w *walk) run(ctx context.Context, s postgres.Statement, add func(*postgres.Params)) error {
	conn, err := w.pool.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("read events: %w", err)
	}
	defer conn.Release()
	p := postgres.NewParams(conn.Conn(), s)
	defer p.Release()
	add(p)
	if _, err := p.Run(ctx, func(r postgres.Row) error { return w.handleRow(ctx, r) }); err != nil {
		return fmt.Errorf("read events after %d: %w", w.lastID, err)
	}
	return nil
}

func (w *walk) handleRow(ctx context.Context, r postgres.Row) error {
	w.rows, w.lastID = w.rows+1, r.Int64(0)
	w.record = FullRecord{ID: w.lastID, Source: int32(r.Int64(1)), Key: r.Bytes(2), Type: r.Bytes(3),
		Account: r.Bytes(4), ObjectType: r.Bytes(5), ObjectID: r.Bytes(6), APIVersion: r.Bytes(7), Origin: r.Bytes(8),
		OccurredAt: r.Time(9), ReceivedAt: r.Time(10), Headers: r.JSON(11), Verification: r.JSON(12),
		Fingerprint: r.Bytes(13), DeliveryID: r.Int64(14), Index: int(r.Int64(15)), Body: r.Bytes(16)}
	e := &w.record
	switch {
	case e.Body != nil:
		w.cacheBody(e.ID, e.Body)
	case e.DeliveryID != e.ID:
		if err := w.loadSharedBody(ctx, e); err != nil {
			return err
		}
	}
	return w.handle(e)
}

// cacheBody adds the body of an event to the cache; a nil body means that the log has none.
func (w *walk) cacheBody(id int64, body []byte) {
	if w.cached == nil || len(w.bodies)+len(body) > bodyCacheSize {
		w.cached, w.bodies = map[int64]span{}, append(w.bodies[:0], 0)
	}
	if body == nil {
		w.cached[id] = span{from: 1}
		return
	}
	w.cached[id] = span{len(w.bodies), len(w.bodies) + len(body)}
	w.bodies = append(w.bodies, body...)
}

// loadSharedBody sets the body of an event whose delivery stores it with another event; nil if the
// log no longer has it.
func (w *walk) loadSharedBody(ctx context.Context, e *FullRecord) error {
	position, ok := w.cached[e.DeliveryID]
	if !ok {
		body, err := w.fetchBody(ctx, e.DeliveryID)
		if err != nil {
			return err
		}
		w.cacheBody(e.DeliveryID, body)
		position = w.cached[e.DeliveryID]
	}
	if position.to >= position.from {
		e.Body = w.bodies[position.from:position.to:position.to]
	}
	return nil
}

// fetchBody reads the body of an event that is not in the cache.
func (w *walk) fetchBody(ctx context.Context, id int64) (body []byte, err error) {
	err = w.pool.QueryRow(ctx, walkBodySQL, id).Scan(&body)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	return body, err
}
