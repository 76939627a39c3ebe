package redaction

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/all"
)

// Request is an event by which a sender asks that something be redacted, or told.
type Request struct {
	Event   int64  `json:"event,string"`
	Source  string `json:"source"`
	Type    string `json:"type"`
	Account string `json:"account"`
	// Kind is redact or tell.
	Kind       string         `json:"kind"`
	ReceivedAt events.Instant `json:"received_at"`
	// Due is when it must be done.
	Due events.Instant `json:"due"`
	// Problem says why the event cannot be read; a person must find out what it asks for.
	Problem string `json:"problem,omitempty"`

	number int32 // of the source
}

// PendingWithin is how far back requests are looked for: three times the longest term.
const PendingWithin = 90 * 24 * time.Hour

// unanswered are the events e of some types of a source, of a stretch of the log, that no redaction has answered.
const unanswered = ` FROM events e WHERE e.id >= $1 AND e.id < $2 AND e.source = $3 AND e.event_type = ANY($4::text[])
  AND NOT EXISTS (SELECT FROM redactions r WHERE r.requested_by = e.id AND r.ended_at IS NOT NULL)`

const (
	erasersSQL = `SELECT number, name, provider FROM sources ORDER BY number`

	pendingSQL = `SELECT e.id` + unanswered + ` ORDER BY e.id`

	// heldSQL leaves out what tells nothing any more, since it was redacted.
	heldSQL = `SELECT count(*), coalesce(min(e.id), 0)` + unanswered + ` AND NOT EXISTS (SELECT FROM redacted d WHERE d.event = e.id)`

	providerOfSQL = `SELECT name, provider FROM sources WHERE number = $1`
)

// querier is a connection or a pool.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// asker is a source whose provider sends requests, of some types.
type asker struct {
	number int32
	name   string
	types  []string
}

func askers(ctx context.Context, db querier) ([]asker, error) {
	rows, err := db.Query(ctx, erasersSQL)
	if err != nil {
		return nil, fmt.Errorf("read sources: %w", err)
	}
	var found []asker
	var s asker
	var kind string
	if _, err := pgx.ForEachRow(rows, []any{&s.number, &s.name, &kind}, func() error {
		p, _ := all.Named(kind)
		if eraser, ok := p.(provider.Eraser); ok {
			s.types = eraser.ErasureTypes()
			found = append(found, s)
		}
		return nil
	}); err != nil {
		return nil, fmt.Errorf("read sources: %w", err)
	}
	return found, nil
}

// Pending are the requests of a time that no redaction has answered yet, the oldest first. It reads the log of that time.
func Pending(ctx context.Context, pool *pgxpool.Pool, since time.Time) ([]Request, error) {
	sources, err := askers(ctx, pool)
	if err != nil {
		return nil, err
	}
	pending := []Request{}
	for _, s := range sources {
		ids, err := collect(ctx, pool, pendingSQL, events.FirstID(since), int64(math.MaxInt64), s.number, s.types)
		if err != nil {
			return nil, err
		}
		for _, id := range ids {
			r, _, err := request(ctx, pool, id)
			if err != nil {
				return nil, err
			}
			pending = append(pending, *r)
		}
	}
	return pending, nil
}

// Unanswered counts the requests among the events from lo to below hi that nobody has answered and that can still be read, and tells the first.
func Unanswered(ctx context.Context, db querier, lo, hi int64) (n, first int64, err error) {
	sources, err := askers(ctx, db)
	if err != nil {
		return 0, 0, err
	}
	for _, s := range sources {
		var some, least int64
		if err := db.QueryRow(ctx, heldSQL, lo, hi, s.number, s.types).Scan(&some, &least); err != nil {
			return 0, 0, fmt.Errorf("look for requests of source %s: %w", s.name, err)
		}
		if some > 0 && (n == 0 || least < first) {
			first = least
		}
		n += some
	}
	return n, first, nil
}

// request reads an event that asks for something, and what it asks for; nil where it cannot be read.
func request(ctx context.Context, pool *pgxpool.Pool, id int64) (*Request, *provider.Erasure, error) {
	recs, err := events.Read(ctx, pool, []int64{id}, events.AnyBody)
	if err != nil {
		return nil, nil, err
	}
	if len(recs) == 0 {
		return nil, nil, fmt.Errorf("event %d: %w", id, events.ErrNotFound)
	}
	e, name, kind := &recs[0], "", ""
	if err := pool.QueryRow(ctx, providerOfSQL, e.Source).Scan(&name, &kind); err != nil {
		return nil, nil, fmt.Errorf("read source %d: %w", e.Source, err)
	}
	p, _ := all.Named(kind)
	eraser, ok := p.(provider.Eraser)
	if !ok {
		return nil, nil, fmt.Errorf("%w: event %d: the provider %s asks for nothing by its events", events.ErrInvalid, id, kind)
	}
	r := &Request{Event: id, number: e.Source, Source: name, Type: e.Type, Account: e.Account, ReceivedAt: events.Instant{Time: e.ReceivedAt}}
	asks, err := eraser.Erasure(&e.Stored)
	var dead *provider.Dead
	switch {
	case e.Redacted:
		r.Problem = "its body was redacted"
		return r, nil, nil
	case errors.As(err, &dead):
		r.Problem = dead.Reason
		return r, nil, nil
	case err != nil:
		return nil, nil, fmt.Errorf("read event %d: %w", id, err)
	}
	r.Kind, r.Due.Time = asks.Kind, e.ReceivedAt.Add(asks.Within)
	return r, asks, nil
}

// FromRequest is the order that an event asks for; the event itself goes last. Errors: events.ErrNotFound, events.ErrInvalid.
func FromRequest(ctx context.Context, pool *pgxpool.Pool, id int64) (*Order, *Request, error) {
	r, asks, err := request(ctx, pool, id)
	if err != nil {
		return nil, nil, err
	}
	if asks == nil {
		return nil, r, fmt.Errorf("%w: event %d cannot be read: %s; redact what it means with --object or --path, and name it with --answers %d", events.ErrInvalid, id, r.Problem, id)
	}
	o, err := r.order(asks)
	return o, r, err
}

// order is what a request asks for.
func (r *Request) order(asks *provider.Erasure) (*Order, error) {
	id := r.Event
	o := &Order{Source: r.number, Account: &asks.Account, All: asks.All, RequestedBy: id, Words: map[string]string{"from_event": strconv.FormatInt(id, 10), "type": r.Type}}
	for _, named := range asks.Objects {
		o.Objects = append(o.Objects, Object{Source: o.Source, Account: asks.Account, Type: named[0], ID: named[1]})
	}
	for _, v := range asks.Values {
		f, err := NewFind(v.Path, v.Value)
		if err != nil {
			return nil, err
		}
		o.Finds = append(o.Finds, f)
	}
	o.Events = []int64{id}
	return o, nil
}

// Done is a redaction as the audit has it.
type Done struct {
	Run         int64          `json:"run"`
	Who         string         `json:"who"`
	Reason      string         `json:"reason"`
	RequestedBy int64          `json:"requested_by,string,omitempty"`
	Events      int64          `json:"events"`
	Objects     int64          `json:"objects"`
	Conflicts   int64          `json:"conflicts"`
	Rejections  int64          `json:"rejections"`
	BeganAt     events.Instant `json:"began_at"`
	EndedAt     events.Instant `json:"ended_at"`
}

const auditSQL = `
SELECT run, who, reason, coalesce(requested_by, 0), events, objects, conflicts, rejections, began_at, ended_at FROM redactions WHERE run < $1 ORDER BY run DESC LIMIT $2`

// List returns a page of the audit, the newest first. Errors: events.ErrInvalid.
func List(ctx context.Context, pool *pgxpool.Pool, cursor string, limit int) (events.Page[Done], error) {
	var page events.Page[Done]
	limit, err := events.PageSize(limit)
	if err != nil {
		return page, err
	}
	below := int64(1) << 62
	if err := events.ReadCursor(cursor, &below); err != nil {
		return page, err
	}
	rows, err := pool.Query(ctx, auditSQL, below, limit)
	if err == nil {
		page.Items, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (d Done, err error) {
			var ended *time.Time
			err = row.Scan(&d.Run, &d.Who, &d.Reason, &d.RequestedBy, &d.Events, &d.Objects, &d.Conflicts, &d.Rejections, &d.BeganAt.Time, &ended)
			if ended != nil {
				d.EndedAt.Time = *ended
			}
			return d, err
		})
	}
	if err != nil {
		return page, fmt.Errorf("list redactions: %w", err)
	}
	if len(page.Items) == limit {
		page.Next = events.MakeCursor(page.Items[limit-1].Run)
	}
	return page, nil
}
