package apply

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
)

// OutcomeFilter selects outcomes. A zero field does not restrict.
type OutcomeFilter struct {
	// Source is the number of a source.
	Source int32
	// Account is the tenant. A pointer to "" selects outcomes without an account.
	Account *string
	// ObjectType and ObjectID name the object to which the event was applied.
	ObjectType, ObjectID string
	// Objects are hashes of object keys (versioning.ObjectKey), to use the index for an object
	// whose key is completely given. Nil does not restrict; an empty slice selects none.
	Objects []int64
	// Event is an event id.
	Event int64
	// Status is a versioning.Status.
	Status string
	// Pattern is the FailurePattern of the reason.
	Pattern string
	// Run selects one run (0 is the live run), nil all runs.
	Run *int64
	// Since (inclusive) and Until (exclusive) bound the time in the event's id.
	Since, Until time.Time
}

// These three statements find the end of a window of outcomes. Each walks the outcomes
// backwards by (event, run), with another index.
const (
	outcomeRangeSQL = `SELECT c.event_id, c.run FROM outcomes c WHERE (c.event_id, c.run) < ($1, $2)
		AND c.event_id >= $3
ORDER BY c.event_id DESC, c.run DESC OFFSET $4 LIMIT 1`

	objectRangeSQL = `SELECT c.event_id, c.run FROM outcomes c WHERE c.object = ANY($5::bigint[]) AND c.object <> 0
  AND (c.event_id, c.run) < ($1, $2) AND c.event_id >= $3 ORDER BY c.event_id DESC, c.run DESC OFFSET $4 LIMIT 1`

	deadRangeSQL = `SELECT c.event_id, c.run FROM outcomes c WHERE c.status = 'dead' AND (c.event_id, c.run) < ($1, $2)
		AND c.event_id >= $3
ORDER BY c.event_id DESC, c.run DESC OFFSET $4 LIMIT 1`
)

const outcomeList = `SELECT ` + events.OutcomeColumns + ` FROM outcomes c JOIN sources s ON s.number = c.source
WHERE (c.event_id, c.run) < ($1, $2) AND (c.event_id, c.run) >= ($3, $4)
  AND ($5::int IS NULL OR c.source = $5) AND ($6::text IS NULL OR c.account = $6) AND ($7::text IS NULL
  	OR c.object_type = $7)
  AND ($8::text IS NULL OR c.object_id = $8) AND ($9::bigint IS NULL OR c.event_id = $9) AND ($10::text IS NULL
  	OR c.status = $10)
  AND ($11::bigint IS NULL OR c.run = $11) AND ($12::text IS NULL OR left(c.reason, $13) LIKE $12) `

const outcomeOrder = ` ORDER BY c.event_id DESC, c.run DESC LIMIT $14`

const (
	outcomePageSQL = outcomeList + outcomeOrder
	objectPageSQL  = outcomeList + `AND c.object = ANY($15::bigint[]) AND c.object <> 0` + outcomeOrder
	deadPageSQL    = outcomeList + `AND c.status = 'dead'` + outcomeOrder
)

// outcomePosition is the position of an outcome in the list.
type outcomePosition struct{ event, run int64 }

// ListOutcomes returns a page of outcomes, newest events first. Errors: events.ErrInvalid.
func ListOutcomes(ctx context.Context, pool *pgxpool.Pool, f OutcomeFilter, cursor string,
	limit int) (events.Page[events.Outcome], error) {
	var page events.Page[events.Outcome]
	limit, err := events.PageSize(limit)
	if err != nil {
		return page, err
	}
	below, from := f.bounds()
	if err := events.ReadCursor(cursor, &below.event, &below.run); err != nil {
		return page, err
	}
	page.Items = []events.Outcome{}
	for rows := range events.Windows(limit) {
		end, more, err := f.windowEnd(ctx, pool, below, from, rows)
		if err != nil {
			return page, fmt.Errorf("list outcomes: %w", err)
		}
		found, err := f.outcomes(ctx, pool, below, end, limit-len(page.Items))
		if err != nil {
			return page, fmt.Errorf("list outcomes: %w", err)
		}
		page.Items = append(page.Items, found...)
		if n := len(page.Items); n == limit {
			page.Next = events.MakeCursor(page.Items[n-1].EventID, page.Items[n-1].Run)
			break
		}
		if page.Next = ""; !more {
			break
		}
		page.Next, below = events.MakeCursor(end.event, end.run), end
	}
	if f.Pattern != "" { // LIKE may select more
		page.Items = slices.DeleteFunc(page.Items, func(o events.Outcome) bool {
			reason := []rune(o.Reason)
			return FailurePattern(string(reason[:min(len(reason), maxFailureReason)])) != f.Pattern
		})
	}
	return page, nil
}

func (f *OutcomeFilter) bounds() (below outcomePosition, from int64) {
	below = outcomePosition{math.MaxInt64, 0}
	switch {
	case f.Event != 0:
		return outcomePosition{f.Event + 1, 0}, f.Event
	case !f.Until.IsZero():
		below.event = events.FirstID(f.Until.Add(time.Millisecond - 1)) // ids have a resolution of milliseconds
	}
	if !f.Since.IsZero() {
		from = events.FirstID(f.Since.Add(time.Millisecond - 1))
	}
	return below, from
}

// windowEnd returns the lowest position of the next rows outcomes. more says that there may be
// outcomes below it.
func (f *OutcomeFilter) windowEnd(ctx context.Context, pool *pgxpool.Pool, below outcomePosition,
	from int64, rows int) (end outcomePosition, more bool, err error) {
	sql, args := outcomeRangeSQL, []any{below.event, below.run, from, rows - 1}
	switch {
	case f.Objects != nil:
		sql, args = objectRangeSQL, append(args, f.Objects)
	case f.Status == "dead":
		sql = deadRangeSQL
	}
	err = pool.QueryRow(ctx, sql, args...).Scan(&end.event, &end.run)
	if errors.Is(err, pgx.ErrNoRows) {
		return outcomePosition{from, 0}, false, nil
	}
	return end, err == nil, err
}

func (f *OutcomeFilter) outcomes(ctx context.Context, pool *pgxpool.Pool, below, end outcomePosition,
	limit int) ([]events.Outcome, error) {
	sql := outcomePageSQL
	args := []any{below.event, below.run, end.event, end.run, events.NilIfZero(f.Source), f.Account,
		events.NilIfZero(f.ObjectType), events.NilIfZero(f.ObjectID), events.NilIfZero(f.Event),
		events.NilIfZero(f.Status), f.Run, events.NilIfZero(likePattern(f.Pattern)), maxFailureReason, limit}
	switch {
	case f.Objects != nil:
		sql, args = objectPageSQL, append(args, f.Objects)
	case f.Status == "dead":
		sql = deadPageSQL
	}
	return postgres.Collect(ctx, pool, events.ScanOutcome, sql, args...)
}
