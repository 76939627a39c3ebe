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

const wholeColumns = `
SELECT id, source, event_id, event_type, account, object_type, object_id, api_version, origin, occurred_at, received_at, headers, verification,
  fingerprint, delivery_id, delivery_index, body
FROM events WHERE `

const (
	wholeRangeSQL = wholeColumns + `id > $1 AND id <= $2 ORDER BY id LIMIT $3`
	wholeIDsSQL   = wholeColumns + `id = ANY($1::bigint[]) ORDER BY id`

	wholeBodySQL = `SELECT body FROM events WHERE id = $1`
)

// daysSQL lists the partitions that whoever reads the log now sees, of those with ids in a range. One whose detaching has begun is seen no more.
// A plan may look at all tables' names before it knows which are partitions.
const daysSQL = `
SELECT name, hi FROM (SELECT name, (extract(epoch FROM day) * 1000)::bigint << 20 AS lo, (extract(epoch FROM day + 1) * 1000)::bigint << 20 AS hi
  FROM (SELECT c.relname::text AS name, CASE WHEN c.relname ~ '^events_[0-9]{8}$' THEN to_date(substr(c.relname, 8), 'YYYYMMDD') END AS day
    FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid WHERE i.inhparent = 'events'::regclass AND NOT i.inhdetachpending) d) p
WHERE hi > $1 AND lo <= $2 ORDER BY lo`

// Day is a partition of the log.
type Day struct {
	Name string `json:"name"`
	// End is the first id behind it.
	End int64 `json:"end,string"`
}

// Days are the partitions of the log with ids in the range of a filter, above after and up to bound, in their order. One that was among them before a walk
// and is not any more after it may have had events that the walk has missed.
func Days(ctx context.Context, pool *pgxpool.Pool, f *Filter, after, bound int64) ([]Day, error) {
	below, from := f.bounds()
	rows, err := pool.Query(ctx, daysSQL, max(after+1, from), min(bound, below-1))
	if err != nil {
		return nil, fmt.Errorf("list the days of the log: %w", err)
	}
	days, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Day])
	if err != nil {
		return nil, fmt.Errorf("list the days of the log: %w", err)
	}
	return days, nil
}

// wholeSession lets who reads take its time: sessions of ours give up on a peer that takes nothing for 10 s, and a pipe may stand still for longer.
const wholeSession = `SET tcp_user_timeout = 0`

// wholeRows is how many events Walk reads by one statement, so that none of them keeps a snapshot for long.
const wholeRows = 4096

// Whole is all that the log holds of an event. Its bytes may be used only until the function it was given to returns.
type Whole struct {
	ID         int64
	Source     int32
	Key, Type  []byte
	Account    []byte
	ObjectType []byte
	ObjectID   []byte
	APIVersion []byte
	Origin     []byte
	// OccurredAt is zero where the provider gave no time.
	OccurredAt, ReceivedAt time.Time
	// Headers and Verification are JSON objects.
	Headers, Verification []byte
	Fingerprint           []byte
	// DeliveryID is the same for all events of a delivery, Index the place in it.
	DeliveryID int64
	Index      int
	// Body is the whole delivery's body; nil where the log no longer has it.
	Body []byte
}

// Walk gives take the events above after that the filter chooses, ascending, one part of the log for each call, and returns how far it has looked: the
// bound where there is nothing more. None is above the bound; with one from FreezeBound nothing is ever skipped. Memory does not grow with the
// number of events: it holds some megabytes of bodies, or one that is larger. Two connections of the pool are used. An error of take ends the walk and is returned.
func Walk(ctx context.Context, pool *pgxpool.Pool, f *Filter, after, bound int64, take func(*Whole) error) (end int64, err error) {
	w := walk{pool: pool, take: take}
	if !f.plain() {
		ids, end, err := Match(ctx, pool, f, after, bound)
		for err == nil && len(ids) > 0 {
			n := min(len(ids), wholeRows)
			err = w.run(ctx, postgres.Statement{Name: "postern_whole_ids", SQL: wholeIDsSQL, Session: wholeSession}, func(p *postgres.Params) {
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
	err = w.run(ctx, postgres.Statement{Name: "postern_whole_range", SQL: wholeRangeSQL, Session: wholeSession}, func(p *postgres.Params) {
		p.Int64(after)
		p.Int64(last)
		p.Int64(wholeRows)
	})
	if w.n < wholeRows {
		return bound, err
	}
	return w.last, err
}

// plain: the filter asks for nothing but a range of ids.
func (f *Filter) plain() bool {
	rest := *f
	rest.Since, rest.Until, rest.After = time.Time{}, time.Time{}, 0
	return reflect.DeepEqual(rest, Filter{})
}

// keptBodies is about how many bytes of bodies a walk remembers. The events of one delivery lie as near to each other as those of one append.
const keptBodies = 4 << 20

// walk is one call of Walk.
type walk struct {
	pool *pgxpool.Pool
	take func(*Whole) error
	n    int
	last int64
	// bodies are the last ones, at are their places there by the ids of their events; a place that ends before it begins: the log has none.
	bodies []byte
	at     map[int64]span
	one    Whole
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
	if _, err := p.Run(ctx, func(r postgres.Row) error { return w.row(ctx, r) }); err != nil {
		return fmt.Errorf("read events after %d: %w", w.last, err)
	}
	return nil
}

func (w *walk) row(ctx context.Context, r postgres.Row) error {
	w.n, w.last = w.n+1, r.Int64(0)
	w.one = Whole{ID: w.last, Source: int32(r.Int64(1)), Key: r.Bytes(2), Type: r.Bytes(3), Account: r.Bytes(4), ObjectType: r.Bytes(5),
		ObjectID: r.Bytes(6), APIVersion: r.Bytes(7), Origin: r.Bytes(8), OccurredAt: r.Time(9), ReceivedAt: r.Time(10), Headers: r.JSON(11),
		Verification: r.JSON(12), Fingerprint: r.Bytes(13), DeliveryID: r.Int64(14), Index: int(r.Int64(15)), Body: r.Bytes(16)}
	e := &w.one
	switch {
	case e.Body != nil:
		w.keep(e.ID, e.Body)
	case e.DeliveryID != e.ID:
		if err := w.borrow(ctx, e); err != nil {
			return err
		}
	}
	return w.take(e)
}

// keep remembers the body of an event.
func (w *walk) keep(id int64, body []byte) {
	if w.at == nil || len(w.bodies)+len(body) > keptBodies {
		w.at, w.bodies = map[int64]span{}, append(w.bodies[:0], 0)
	}
	if body == nil {
		w.at[id] = span{from: 1}
		return
	}
	w.at[id] = span{len(w.bodies), len(w.bodies) + len(body)}
	w.bodies = append(w.bodies, body...)
}

// borrow gives an event the body of its delivery, which lies with another; nil where the log no longer has it.
func (w *walk) borrow(ctx context.Context, e *Whole) error {
	at, ok := w.at[e.DeliveryID]
	if !ok {
		body, err := w.fetch(ctx, e.DeliveryID)
		if err != nil {
			return err
		}
		w.keep(e.DeliveryID, body)
		at = w.at[e.DeliveryID]
	}
	if at.to >= at.from {
		e.Body = w.bodies[at.from:at.to:at.to]
	}
	return nil
}

// fetch reads the body of an event that the walk does not come to, or came to long ago.
func (w *walk) fetch(ctx context.Context, holder int64) (body []byte, err error) {
	err = w.pool.QueryRow(ctx, wholeBodySQL, holder).Scan(&body)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	return body, err
}
