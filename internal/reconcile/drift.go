package reconcile

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/versioning"
)

// Report is what a run over objects has met.
type Report struct {
	Run     int64  `json:"run"`
	Source  string `json:"source"`
	Account string `json:"account"`
	// Types are in the order of their names; those that the run has not come to are not among them.
	Types []TypeReport `json:"types"`
	// SkewSeconds is by how much the API's clock and the database's have differed; 0 where it is no more than is tolerated, or where the run has not ended.
	SkewSeconds int64 `json:"skew_seconds"`
	// VersionsAlone are those of the types that were listed whole by versions alone, which not every change is known to move: what moves none is neither found nor proven.
	VersionsAlone []string `json:"versions_alone"`
}

// TypeReport is what a run has met of the objects of a type.
type TypeReport struct {
	ObjectType string `json:"object_type"`
	// Phase is what the run does: list, ghosts (what was not listed is asked for by its name), graves (what is missing becomes tombstones), proposed (it waits until a person can
	// be asked for all types), done, rare (it was passed over: the mirror has none, and the list costs much), unlisted (it was passed over: the API refuses its list).
	Phase string `json:"phase"`
	// Since and Until bound the changes that were asked for, on the provider's clock; zero where everything was.
	Since events.Instant `json:"since"`
	Until events.Instant `json:"until"`
	// Began is up to when, on the provider's clock, the list tells of everything.
	Began events.Instant `json:"began"`
	// Restarts is how often the list was begun again, since its cursor was no longer known.
	Restarts int `json:"restarts"`
	// PassedOver are the parts of the list (repositories) that could not be read, or not to their end.
	PassedOver []PassedOver `json:"passed_over"`
	// Why is what the API answered of a type that is unlisted; "" of others.
	Why string `json:"why"`
	Tally
}

const (
	reportSQL = `SELECT s.name, w.account, coalesce((SELECT r.counts ->> 'skew_seconds' FROM runs r WHERE r.run = w.run)::bigint, 0),
  ARRAY(SELECT t.object_type FROM sweeps t WHERE t.run = w.run AND t.versions_alone ORDER BY t.object_type)
FROM sweeps w JOIN sources s ON s.number = w.source WHERE w.run = $1 LIMIT 1`

	typesSQL = `SELECT s.object_type, ` + progressColumns + ` FROM sweeps s WHERE s.run = $1 ORDER BY s.object_type`
)

// Drift returns what a run over objects has met so far. Errors: events.ErrNotFound.
func Drift(ctx context.Context, pool *pgxpool.Pool, run int64) (*Report, error) {
	r := &Report{Run: run, Types: []TypeReport{}}
	err := pool.QueryRow(ctx, reportSQL, run).Scan(&r.Source, &r.Account, &r.SkewSeconds, &r.VersionsAlone)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, fmt.Errorf("drift of run %d: %w: no run over objects that has begun has this number", run, events.ErrNotFound)
	}
	var rows pgx.Rows
	if err == nil {
		rows, err = pool.Query(ctx, typesSQL, run)
	}
	if err == nil {
		r.Types, err = pgx.CollectRows(rows, scanType)
	}
	if err != nil {
		return nil, fmt.Errorf("show drift of run %d: %w", run, err)
	}
	return r, nil
}

func scanType(row pgx.CollectableRow) (t TypeReport, err error) {
	var p progress
	err = p.scan(after{row, &t.ObjectType})
	t.Phase, t.Restarts, t.PassedOver, t.Why, t.Tally = p.phase, p.restarts, p.passed, p.why, p.Tally
	t.Since.Time, t.Until.Time, t.Began.Time = p.from, p.upTo, p.began
	return t, err
}

// after is a row whose first column goes elsewhere.
type after struct {
	row   pgx.CollectableRow
	first any
}

func (a after) Scan(to ...any) error { return a.row.Scan(append([]any{a.first}, to...)...) }

// Difference is an object at which the mirror differed from the provider.
type Difference struct {
	Account    string `json:"account"`
	ObjectType string `json:"object_type"`
	ObjectID   string `json:"object_id"`
	// Kind is missing, behind, different or ghost.
	Kind string `json:"kind"`
	// Fields are where it differed: before is here, after is there. More is how many there are besides.
	Fields []versioning.Change `json:"fields"`
	More   int                 `json:"more"`
	// Result is mended or left, "" while nothing was done, and Reason why it is left.
	Result string `json:"result"`
	Reason string `json:"reason"`
	// EventID is the look that was appended; null where none was.
	EventID *int64 `json:"event_id,string"`
}

const differencesSQL = `
SELECT d.account, d.object_type, d.object_id, d.kind, d.fields, d.more, d.result, d.reason, d.event_id FROM drifts d
WHERE d.run = $1 AND (d.object_type, d.object_id) > ($2, $3) AND ($4::text IS NULL OR d.kind = $4) AND ($5::text IS NULL OR d.result = $5)
ORDER BY d.object_type, d.object_id LIMIT $6`

// Differences returns a page of the objects at which a run has met a difference, of the first thousand; kind and result choose, "" all. Errors: events.ErrInvalid.
func Differences(ctx context.Context, pool *pgxpool.Pool, run int64, kind, result, cursor string, limit int) (events.Page[Difference], error) {
	var page events.Page[Difference]
	limit, err := events.PageSize(limit)
	if err != nil {
		return page, err
	}
	var objectType, id string
	if err := events.ReadCursor(cursor, &objectType, &id); err != nil {
		return page, err
	}
	rows, err := pool.Query(ctx, differencesSQL, run, objectType, id, events.Optional(kind), events.Optional(result), limit)
	if err == nil {
		page.Items, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (d Difference, err error) {
			err = row.Scan(&d.Account, &d.ObjectType, &d.ObjectID, &d.Kind, &d.Fields, &d.More, &d.Result, &d.Reason, &d.EventID)
			return d, err
		})
	}
	if err != nil {
		return page, fmt.Errorf("list differences of run %d: %w", run, err)
	}
	if len(page.Items) == limit {
		last := page.Items[limit-1]
		page.Next = events.MakeCursor(last.ObjectType, last.ObjectID)
	}
	return page, nil
}
