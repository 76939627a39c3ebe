package reconcile

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/events"
)

// HintView is an object that owes a look, as a person sees it.
type HintView struct {
	Source     string `json:"source"`
	Account    string `json:"account"`
	ObjectType string `json:"object_type"`
	ObjectID   string `json:"object_id"`
	Reason     string `json:"reason"`
	// WantedBy is who asked for the look; "" where the mirror did.
	WantedBy string         `json:"wanted_by"`
	MadeAt   events.Instant `json:"made_at"`
	// Due is when the next attempt is, at the earliest; zero where it is Parked: none is made, as Error says why.
	Due    events.Instant `json:"due"`
	Parked bool           `json:"parked"`
	// After is the provider's time after which the look must begin; zero where it may begin at any.
	After events.Instant `json:"after"`
	// Attempts came to nothing so far, the last one because of Error.
	Attempts int    `json:"attempts"`
	Error    string `json:"error"`
	// TakenBy is the process whose look it is, until TakenUntil; "" where it is nobody's.
	TakenBy    string         `json:"taken_by"`
	TakenUntil events.Instant `json:"taken_until"`

	number int32
}

// hintColumns are what scanHint reads.
const hintColumns = `h.source, s.name, h.account, h.object_type, h.object_id, h.reason, h.wanted_by, h.made_at, nullif(h.due, 'infinity'), h.due = 'infinity', provider_time(h.after), h.attempts, h.error,
  h.taken_by, nullif(h.taken_until, '-infinity')`

// hintsSQL walks the primary keys of requests and of flagged objects; one source is an interval of them. An object without
// a request has none yet, or its source cannot be read, which due and error say.
const hintsSQL = `
SELECT * FROM (
  (SELECT ` + hintColumns + `
  FROM hints h JOIN sources s ON s.number = h.source
  WHERE (h.source, h.account, h.object_type, h.object_id) > ($1, $2, $3, $4) AND h.source BETWEEN $5 AND $6
  ORDER BY h.source, h.account, h.object_type, h.object_id LIMIT $7)
  UNION ALL
  (SELECT o.source, s.name, o.account, o.object_type, o.object_id, 'in doubt', '', o.updated_at,
    CASE WHEN 'object' = ANY(s.api_reads) THEN clock_now() END, NOT 'object' = ANY(coalesce(s.api_reads, '{object}')),
    provider_time(o.look_after), 0, CASE WHEN s.api_reads IS NULL THEN $8
      WHEN NOT 'object' = ANY(s.api_reads) THEN $9 ELSE '' END, '', NULL
  FROM objects o JOIN sources s ON s.number = o.source
  WHERE o.look_after <> 0 AND (o.source, o.account, o.object_type, o.object_id) > ($1, $2, $3, $4) AND o.source BETWEEN $5 AND $6
    AND NOT EXISTS (SELECT FROM hints h WHERE h.source = o.source AND h.account = o.account AND h.object_type = o.object_type
      AND h.object_id = o.object_id)
  ORDER BY o.source, o.account, o.object_type, o.object_id LIMIT $7)
) r (source, name, account, object_type, object_id, reason, wanted_by, made_at, due, parked, after, attempts, error, taken_by, taken_until)
ORDER BY source, account, object_type, object_id LIMIT $7`

// Why a flagged object has no request.
const (
	noReport = "no processor has said yet whether it can read the source's API"
	noAPI    = "the source has no section api that reads objects; until it has one, the object's next event is waited for"
)

// Hints returns a page of the objects that are to be read again, in the order of their keys, of one source or, with 0, of
// all: those that are flagged in the mirror, and those that a person asked for. Errors: events.ErrInvalid.
func Hints(ctx context.Context, pool *pgxpool.Pool, source int32, cursor string, limit int) (events.Page[HintView], error) {
	var page events.Page[HintView]
	limit, err := events.PageSize(limit)
	if err != nil {
		return page, err
	}
	var after int32 // numbers begin at 1
	var account, objectType, id string
	if err := events.ReadCursor(cursor, &after, &account, &objectType, &id); err != nil {
		return page, err
	}
	first, last := interval(source)
	rows, err := pool.Query(ctx, hintsSQL, after, account, objectType, id, first, last, limit, noReport, noAPI)
	if err == nil {
		page.Items, err = pgx.CollectRows(rows, scanHint)
	}
	if err != nil {
		return page, fmt.Errorf("list hints: %w", err)
	}
	if len(page.Items) == limit {
		h := page.Items[limit-1]
		page.Next = events.MakeCursor(h.number, h.Account, h.ObjectType, h.ObjectID)
	}
	return page, nil
}

func scanHint(row pgx.CollectableRow) (h HintView, err error) {
	var due, after, taken *time.Time
	err = row.Scan(&h.number, &h.Source, &h.Account, &h.ObjectType, &h.ObjectID, &h.Reason, &h.WantedBy, &h.MadeAt.Time, &due, &h.Parked, &after, &h.Attempts, &h.Error,
		&h.TakenBy, &taken)
	h.Due, h.After, h.TakenUntil = instant(due), instant(after), instant(taken)
	return h, err
}

func instant(at *time.Time) (i events.Instant) {
	if at != nil {
		i.Time = *at
	}
	return i
}

// interval is the first and the last source of a list of one or, with 0, of all.
func interval(source int32) (first, last int32) {
	if source == 0 {
		return 1, 1<<31 - 1
	}
	return source, source
}

// Proven is from when until when something of an account is proven complete.
type Proven struct {
	Source  string `json:"source"`
	Account string `json:"account"`
	// What is what is proven: Events; "type T", all objects of a type, those that are gone too; "versions T", the same where
	// the list tells versions alone, under which objects may change; or "changes T", what the API lists as changed of them and is not gone.
	What string `json:"what"`
	// Since and Until are times on the provider's clock.
	Since events.Instant `json:"since"`
	Until events.Instant `json:"until"`
	// Run raised it last, at At.
	Run int64          `json:"run"`
	At  events.Instant `json:"at"`
	// UnlistedBy is the newest run over the type where the API refused its list, as Unlisted says why; 0 and "" where it did not: what is proven gets no newer then.
	UnlistedBy int64  `json:"unlisted_by"`
	Unlisted   string `json:"unlisted"`
	// DisconnectedSince is when runs first met that the key may not act for the account any more, as Disconnected says in the API's words; null and "" where it may. What is proven gets no newer then.
	DisconnectedSince events.Instant `json:"disconnected_since"`
	Disconnected      string         `json:"disconnected"`

	number int32
}

// watermarksSQL reads what is proven. The part of an account that is kept by a name of its own begins with the account's and a slash.
const watermarksSQL = `
SELECT m.source, s.name, m.account, m.what, m.since, m.until, m.run, m.at, coalesce(u.run, 0), coalesce(u.why, ''), g.since, coalesce(g.why, '')
FROM watermarks m JOIN sources s ON s.number = m.source AND m.what NOT LIKE 'run %' LEFT JOIN disconnected g ON g.source = m.source AND (g.account = m.account OR starts_with(m.account, g.account || '/')) LEFT JOIN LATERAL (
  SELECT u.run, u.why, u.object_type FROM sweeps u WHERE u.phase = 'unlisted' AND u.source = m.source AND u.account = m.account AND u.object_type = substring(m.what FROM '^(?:type|versions|changes) (.*)$') ORDER BY u.run DESC LIMIT 1
) u ON NOT EXISTS (SELECT FROM sweeps d WHERE d.phase = 'done' AND d.source = m.source AND d.account = m.account AND d.object_type = u.object_type AND d.run > u.run)
WHERE (m.source, m.account, m.what) > ($1, $2, $3) AND m.source BETWEEN $4 AND $5
ORDER BY m.source, m.account, m.what LIMIT $6`

// Watermarks returns a page of what is proven, by source, account and what, of one source or, with 0, of all. Errors: events.ErrInvalid.
func Watermarks(ctx context.Context, pool *pgxpool.Pool, source int32, cursor string, limit int) (events.Page[Proven], error) {
	var page events.Page[Proven]
	limit, err := events.PageSize(limit)
	if err != nil {
		return page, err
	}
	var after int32
	var account, what string
	if err := events.ReadCursor(cursor, &after, &account, &what); err != nil {
		return page, err
	}
	first, last := interval(source)
	rows, err := pool.Query(ctx, watermarksSQL, after, account, what, first, last, limit)
	if err == nil {
		page.Items, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (p Proven, err error) {
			var gone *time.Time
			err = row.Scan(&p.number, &p.Source, &p.Account, &p.What, &p.Since.Time, &p.Until.Time, &p.Run, &p.At.Time, &p.UnlistedBy, &p.Unlisted, &gone, &p.Disconnected)
			p.DisconnectedSince = instant(gone)
			return p, err
		})
	}
	if err != nil {
		return page, fmt.Errorf("list watermarks: %w", err)
	}
	if len(page.Items) == limit {
		p := page.Items[limit-1]
		page.Next = events.MakeCursor(p.number, p.Account, p.What)
	}
	return page, nil
}
