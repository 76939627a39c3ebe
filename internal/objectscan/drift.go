package objectscan

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/versioning"
)

// DriftReport is the result of an object scan.
type DriftReport struct {
	Run     int64  `json:"run"`
	Source  string `json:"source"`
	Account string `json:"account"`
	// Types are in the order of their names. Types that the run has not reached are absent.
	Types []TypeDrift `json:"types"`
	// SkewSeconds is by how much the API's clock and the database's differed. It is 0 within the
	// tolerated skew, and until the run has ended.
	SkewSeconds int64 `json:"skew_seconds"`
	// VersionOnlyTypes are the types that were listed completely by versions alone. The run does
	// not find a change that did not advance a version, and the watermark does not cover it.
	VersionOnlyTypes []string `json:"versions_only"`
}

// TypeDrift is the result of a run for the objects of one type.
type TypeDrift struct {
	ObjectType string `json:"object_type"`
	// Phase is what the run does: list, orphans (it refetches what was not listed), tombstones (it
	// writes tombstones for orphans), awaiting_approval (it waits until approval can be requested
	// for all types), done, skipped (the mirror has no objects of the type, and the list is
	// expensive), not_listable (the API rejects its list).
	Phase string `json:"phase"`
	// Since and Until bound the requested changes, on the provider's clock; zero if everything was
	// requested.
	Since events.Instant `json:"since"`
	Until events.Instant `json:"until"`
	// ListedSince is the provider's time up to which the list contains every change.
	ListedSince events.Instant `json:"started_at"`
	// Restarts is how often the list was started again because its cursor had expired.
	Restarts int `json:"restarts"`
	// Skipped are the parts of the list (repositories) that could not be read, or not to their end.
	Skipped []SkippedPart `json:"skipped_parts"`
	// Reason is the API's response if the type is not listable; otherwise "".
	Reason string `json:"reason"`
	ScanCounts
}

const (
	reportSQL = `SELECT s.name, w.account, coalesce((SELECT r.counts ->> 'skew_seconds' FROM runs r
		WHERE r.run = w.run)::bigint, 0),
  ARRAY(SELECT t.object_type FROM object_scans t WHERE t.run = w.run AND t.versions_only ORDER BY t.object_type)
FROM object_scans w JOIN sources s ON s.number = w.source WHERE w.run = $1 LIMIT 1`

	typesSQL = `SELECT s.object_type, ` + progressColumns + ` FROM object_scans s WHERE s.run = $1
		ORDER BY s.object_type`
)

// ReportDrift returns the result of an object scan so far. Errors: events.ErrNotFound.
func ReportDrift(ctx context.Context, pool *pgxpool.Pool, run int64) (*DriftReport, error) {
	r := &DriftReport{Run: run, Types: []TypeDrift{}}
	err := pool.QueryRow(ctx, reportSQL, run).Scan(&r.Source, &r.Account, &r.SkewSeconds, &r.VersionOnlyTypes)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, fmt.Errorf("drift of run %d: %w: run %d is not an object scan that has started", run,
			events.ErrNotFound, run)
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

func scanType(row pgx.CollectableRow) (t TypeDrift, err error) {
	var p progress
	err = p.scan(skipFirstColumn{row, &t.ObjectType})
	t.Phase, t.Restarts, t.Skipped, t.Reason, t.ScanCounts = p.phase, p.restarts, p.skipped, p.reason, p.ScanCounts
	t.Since.Time, t.Until.Time, t.ListedSince.Time = p.changedFrom, p.changedUntil, p.listedSince
	return t, err
}

// skipFirstColumn scans the first column of a row into a variable of its own.
type skipFirstColumn struct {
	row   pgx.CollectableRow
	first any
}

func (a skipFirstColumn) Scan(to ...any) error { return a.row.Scan(append([]any{a.first}, to...)...) }

// Difference is an object in which the mirror differed from the provider.
type Difference struct {
	Account    string `json:"account"`
	ObjectType string `json:"object_type"`
	ObjectID   string `json:"object_id"`
	// Kind is missing, mirror_older, content_differs or orphan.
	Kind string `json:"kind"`
	// Fields are the fields that differed: before is the mirror's value, after the provider's. More
	// is the number of further fields.
	Fields []versioning.Difference `json:"fields"`
	More   int                     `json:"more"`
	// Result is repaired or unrepaired, "" before the repair. Reason is why the object is
	// unrepaired.
	Result string `json:"result"`
	Reason string `json:"reason"`
	// EventID is the refetch that was appended; null if none was.
	EventID *int64 `json:"event_id,string"`
}

const differencesSQL = `
SELECT d.account, d.object_type, d.object_id, d.kind, d.fields, d.more_fields, d.result, d.reason, d.event_id
	FROM drifts d
WHERE d.run = $1 AND (d.object_type, d.object_id) > ($2, $3) AND ($4::text IS NULL OR d.kind = $4) AND ($5::text IS NULL
	OR d.result = $5)
ORDER BY d.object_type, d.object_id LIMIT $6`

// Differences returns a page of the objects that differed in a run. The run stores the first
// thousand of them. An empty kind or result selects all. Errors: events.ErrInvalid.
func Differences(ctx context.Context, pool *pgxpool.Pool, run int64, kind, result, cursor string,
	limit int) (events.Page[Difference], error) {
	var page events.Page[Difference]
	limit, err := events.PageSize(limit)
	if err != nil {
		return page, err
	}
	var objectType, id string
	if err := events.ReadCursor(cursor, &objectType, &id); err != nil {
		return page, err
	}
	page.Items, err = postgres.Collect(ctx, pool, func(row pgx.CollectableRow) (d Difference, err error) {
		return d, row.Scan(d.columns()...)
	}, differencesSQL, run, objectType, id, events.NilIfZero(kind), events.NilIfZero(result), limit)
	if err != nil {
		return page, fmt.Errorf("list differences of run %d: %w", run, err)
	}
	if len(page.Items) == limit {
		last := page.Items[limit-1]
		page.Next = events.MakeCursor(last.ObjectType, last.ObjectID)
	}
	return page, nil
}

func (d *Difference) columns() []any {
	return []any{&d.Account, &d.ObjectType, &d.ObjectID, &d.Kind, &d.Fields, &d.More, &d.Result, &d.Reason, &d.EventID}
}

// ObjectDifference is a difference of one object, with the run that found it.
type ObjectDifference struct {
	Run int64 `json:"run"`
	// RunCreatedAt is null if the run was deleted.
	RunCreatedAt events.Instant `json:"run_created_at"`
	Difference
}

const objectDifferencesSQL = `
SELECT d.run, r.created_at, d.account, d.object_type, d.object_id, d.kind, d.fields, d.more_fields, d.result, d.reason,
	d.event_id
FROM drifts d LEFT JOIN runs r ON r.run = d.run
WHERE d.source = $1 AND d.account = $2 AND d.object_type = $3 AND d.object_id = $4 AND d.run < $5
ORDER BY d.run DESC LIMIT $6`

// DifferencesOf returns a page of the differences that were found for an object, those of the
// newest runs first. Errors: events.ErrInvalid.
func DifferencesOf(ctx context.Context, pool *pgxpool.Pool, key versioning.Key, cursor string,
	limit int) (events.Page[ObjectDifference], error) {
	return events.ReadPage("list differences of an object", cursor, limit, int64(math.MaxInt64),
		func(d *ObjectDifference) int64 { return d.Run }, func(below int64, limit int) ([]ObjectDifference, error) {
			return postgres.Collect(ctx, pool, func(row pgx.CollectableRow) (d ObjectDifference, err error) {
				return d, row.Scan(append([]any{&d.Run, &d.RunCreatedAt}, d.columns()...)...)
			}, objectDifferencesSQL, key.Source, key.Account, key.Type, key.ID, below, limit)
		})
}
