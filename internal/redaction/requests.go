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
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/all"
)

// Request is an event in which a sender requests a redaction or a report.
type Request struct {
	Event   int64  `json:"event,string"`
	Source  string `json:"source"`
	Type    string `json:"type"`
	Account string `json:"account"`
	// Kind is redact or tell.
	Kind       string         `json:"kind"`
	ReceivedAt events.Instant `json:"received_at"`
	// Due is the deadline.
	Due events.Instant `json:"due"`
	// Problem says why the event cannot be read. An operator then has to find out the request.
	Problem string `json:"problem,omitempty"`

	number int32 // of the source
}

// PendingWithin is how far back requests are searched: three times the longest deadline.
const PendingWithin = 90 * 24 * time.Hour

// openRequestSQL selects, as e, the events of some types of a source in a part of the log that no
// redaction has answered.
const openRequestSQL = ` FROM events e WHERE e.id >= $1 AND e.id < $2 AND e.source = $3
	AND e.event_type = ANY($4::text[])
  AND NOT EXISTS (SELECT FROM redactions r WHERE r.requested_by = e.id AND r.ended_at IS NOT NULL)`

const (
	allSourcesSQL = `SELECT number, name, provider FROM sources ORDER BY number`

	pendingSQL = `SELECT e.id` + openRequestSQL + ` ORDER BY e.id`

	// countOpenSQL leaves out redacted requests, which cannot be read any more.
	countOpenSQL = `SELECT count(*), coalesce(min(e.id), 0)` + openRequestSQL + ` AND NOT EXISTS (SELECT
		FROM redacted_events d
		WHERE d.event = e.id)`

	providerOfSQL = `SELECT name, provider FROM sources WHERE number = $1`
)

// querier is a connection or a pool.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// requestSource is a source whose provider sends requests, with their event types.
type requestSource struct {
	number int32
	name   string
	types  []string
}

func requestSources(ctx context.Context, db querier) ([]requestSource, error) {
	var found []requestSource
	var s requestSource
	var kind string
	if err := postgres.ForEach(ctx, db, allSourcesSQL, nil, []any{&s.number, &s.name, &kind}, func() error {
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

// PendingRequests returns the requests since a time that no redaction has answered yet, the oldest
// first. It reads the log from that time on.
func PendingRequests(ctx context.Context, pool *pgxpool.Pool, since time.Time) ([]Request, error) {
	sources, err := requestSources(ctx, pool)
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
			r, _, err := readRequest(ctx, pool, id)
			if err != nil {
				return nil, err
			}
			pending = append(pending, *r)
		}
	}
	return pending, nil
}

// CountOpenRequests counts the unanswered, readable requests among the events from lo to below hi,
// and returns the first.
func CountOpenRequests(ctx context.Context, db querier, lo, hi int64) (n, first int64, err error) {
	sources, err := requestSources(ctx, db)
	if err != nil {
		return 0, 0, err
	}
	for _, s := range sources {
		var some, least int64
		if err := db.QueryRow(ctx, countOpenSQL, lo, hi, s.number, s.types).Scan(&some, &least); err != nil {
			return 0, 0, fmt.Errorf("search requests of source %s: %w", s.name, err)
		}
		if some > 0 && (n == 0 || least < first) {
			first = least
		}
		n += some
	}
	return n, first, nil
}

// readRequest reads an event with a request, and what it requests; nil if it cannot be read.
func readRequest(ctx context.Context, pool *pgxpool.Pool, id int64) (*Request, *provider.Erasure, error) {
	recs, err := events.Read(ctx, pool, []int64{id}, events.UnlimitedBody)
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
		return nil, nil, fmt.Errorf("%w: event %d: the provider %s sends no deletion requests", events.ErrInvalid,
			id, kind)
	}
	r := &Request{Event: id, number: e.Source, Source: name, Type: e.Type, Account: e.Account,
		ReceivedAt: events.Instant{Time: e.ReceivedAt}}
	erasure, err := eraser.Erasure(&e.StoredEvent)
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
	r.Kind, r.Due.Time = erasure.Kind, e.ReceivedAt.Add(erasure.Within)
	return r, erasure, nil
}

// ParamsOfRequest returns the parameters of the redaction that an event requests; the event itself
// is cleared last. Errors: events.ErrNotFound, events.ErrInvalid.
func ParamsOfRequest(ctx context.Context, pool *pgxpool.Pool, id int64) (*Params, *Request, error) {
	r, erasure, err := readRequest(ctx, pool, id)
	if err != nil {
		return nil, nil, err
	}
	if erasure == nil {
		return nil, r, fmt.Errorf("%w: event %d cannot be read: %s; redact what it requests with --object or --path, "+
			"and name it with --answers %d", events.ErrInvalid, id, r.Problem, id)
	}
	o, err := r.params(erasure)
	return o, r, err
}

// params returns the parameters of the requested redaction.
func (r *Request) params(erasure *provider.Erasure) (*Params, error) {
	id := r.Event
	o := &Params{Source: r.number, Account: &erasure.Account, All: erasure.AllEvents, RequestedBy: id,
		Description: map[string]string{"from_event": strconv.FormatInt(id, 10), "type": r.Type}}
	for _, named := range erasure.Objects {
		o.Objects = append(o.Objects, Object{Source: o.Source, Account: erasure.Account, Type: named[0], ID: named[1]})
	}
	for _, v := range erasure.Values {
		f, err := NewValueMatcher(v.Path, v.Value)
		if err != nil {
			return nil, err
		}
		o.Matchers = append(o.Matchers, f)
	}
	o.Events = []int64{id}
	return o, nil
}

// AuditEntry is a redaction in the audit.
type AuditEntry struct {
	Run         int64          `json:"run"`
	Actor       string         `json:"actor"`
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
SELECT run, actor, reason, coalesce(requested_by, 0), events, objects, conflicts, rejections, began_at, ended_at
	FROM redactions WHERE run < $1 ORDER BY run DESC LIMIT $2`

// List returns a page of the audit, the newest first. Errors: events.ErrInvalid.
func List(ctx context.Context, db postgres.DB, cursor string, limit int) (events.Page[AuditEntry], error) {
	return events.ReadPage("list redactions", cursor, limit, int64(1)<<62, func(d *AuditEntry) int64 { return d.Run },
		func(below int64, limit int) ([]AuditEntry, error) {
			return postgres.Collect(ctx, db, pgx.RowToStructByPos[AuditEntry], auditSQL, below, limit)
		})
}
