package changes

import (
	"context"
	"fmt"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/versioning"
)

// scanRows is how many changes one read compares with a filter at most.
const scanRows = 10_000

// Filter selects changes by their objects. Zero values select all.
type Filter struct {
	Source   int32
	Account  *string
	Type, ID string
}

func (f *Filter) selectsAll() bool { return *f == Filter{} }

// selects is the filter of readSQL for one change.
func (f *Filter) selects(c *Change) bool {
	return (f.Source == 0 || c.Source == f.Source) && (f.Account == nil || c.Account == *f.Account) &&
		(f.Type == "" || c.Type == f.Type) && (f.ID == "" || c.ID == f.ID)
}

// Change is the last change of an object.
type Change struct {
	Number int64
	versioning.Key
	// SourceName is the name of the source.
	SourceName string
	// At is the time of the change, or of the change with the previous number if that is later.
	At events.Instant
}

// readSQL compares the next $3 changes in ($1, $2] with the filter. It has a row also if none fits.
const readSQL = `
WITH part AS MATERIALIZED (
  SELECT c.* FROM changes c WHERE c.number > $1 AND c.number <= $2 ORDER BY c.number LIMIT $3
)
SELECT w.rows, w.last, coalesce(c.number, 0), coalesce(c.source, 0), coalesce(c.account, ''),
  coalesce(c.object_type, ''), coalesce(c.object_id, ''), coalesce(s.name, ''), c.changed_at
FROM (SELECT count(*) AS rows, coalesce(max(number), 0) AS last FROM part) w LEFT JOIN LATERAL (
  SELECT p.* FROM part p WHERE ($4::int = 0 OR p.source = $4) AND ($5::text IS NULL OR p.account = $5)
    AND ($6::text = '' OR p.object_type = $6) AND ($7::text = '' OR p.object_id = $7) ORDER BY p.number LIMIT $8
) c ON true LEFT JOIN sources s ON s.number = c.source ORDER BY c.number`

// Read returns up to limit changes that a filter selects, with numbers in (after, upTo], ascending.
// An object that changed several times has its last change only. A reader continues after end,
// which is upTo if there is nothing more. With a rare filter a page may be empty before that.
func Read(ctx context.Context, db postgres.DB, after, upTo int64, f Filter, limit int) (page []Change, end int64,
	err error) {
	compared := limit
	if !f.selectsAll() {
		compared = max(limit, scanRows)
	}
	var c Change
	var rows int
	var last int64
	err = postgres.ForEach(ctx, db, readSQL,
		[]any{after, upTo, compared, f.Source, f.Account, f.Type, f.ID, limit},
		[]any{&rows, &last, &c.Number, &c.Source, &c.Account, &c.Type, &c.ID, &c.SourceName, &c.At}, func() error {
			if c.Number != 0 {
				page = append(page, c)
			}
			return nil
		})
	switch {
	case err != nil:
		return nil, 0, fmt.Errorf("read changes after %d: %w", after, err)
	case len(page) == limit:
		return page, page[limit-1].Number, nil
	case rows == compared:
		return page, last, nil
	}
	return page, max(after, upTo), nil
}
