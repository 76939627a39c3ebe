package ingest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/provider"
)

// Rejection is a rejected delivery in a list.
type Rejection struct {
	ID         int64          `json:"id"`
	Source     string         `json:"source"`
	ReceivedAt events.Instant `json:"received_at"`
	// Reason is why it was rejected, as a word. Explanation describes the reason and its usual
	// cause, Detail this delivery.
	Reason      string `json:"reason"`
	Explanation string `json:"explanation"`
	Detail      string `json:"detail"`
	Remote      string `json:"remote"`
	// Bytes is the size of the received body. Truncated is true if only a part of it was stored; it
	// cannot be verified again then.
	Bytes     int64 `json:"bytes"`
	Truncated bool  `json:"truncated"`
}

// RejectionDetail is a rejected delivery with its stored headers and body.
type RejectionDetail struct {
	Rejection
	Headers json.RawMessage `json:"headers"`
	events.Content
}

// RejectionFilter selects rejected deliveries; a zero field selects all. Since is inclusive, Until
// exclusive.
type RejectionFilter struct {
	// Source is the number of a source.
	Source int32
	// Reason is a provider.Reason.
	Reason       string
	Since, Until time.Time
}

// rejectionPageRows is how many rows one page reads at most. Rejections are bounded per source, so
// this matters only with many sources.
const rejectionPageRows = 10_000

const rejectionColumns = `
SELECT r.id, s.name, r.received_at, r.reason, r.detail, r.remote, r.bytes, octet_length(r.body) < r.bytes
FROM rejections r JOIN sources s ON s.number = r.source WHERE `

const (
	rejectionPageStartSQL = `SELECT id FROM rejections WHERE id < $1 ORDER BY id DESC OFFSET $2 LIMIT 1`

	rejectionsSQL = rejectionColumns + `r.id < $1 AND r.id >= $2` + rejectionConditions + `
ORDER BY r.id DESC LIMIT $7`

	rejectionConditions = ` AND ($3::int IS NULL OR r.source = $3) AND ($4::text IS NULL OR r.reason = $4)
  AND ($5::timestamptz IS NULL OR r.received_at >= $5) AND ($6::timestamptz IS NULL OR r.received_at < $6)`

	rejectionPageEndSQL = `SELECT id FROM rejections WHERE id > $1 ORDER BY id OFFSET $2 LIMIT 1`

	rejectionIDsSQL = `SELECT r.id FROM rejections r WHERE r.id > $1 AND r.id <= $2` + rejectionConditions + `
ORDER BY r.id LIMIT $7`

	oneRejectionSQL = rejectionColumns + `r.id = $1`

	rejectionContentSQL = `SELECT headers, body FROM rejections WHERE id = $1`
)

// ListRejections returns a page of rejected deliveries, the newest first. Errors:
// events.ErrInvalid.
func ListRejections(ctx context.Context, pool *pgxpool.Pool, f RejectionFilter, cursor string,
	limit int) (events.Page[Rejection], error) {
	var first int64
	page, err := events.ReadPage("list rejections", cursor, limit, int64(math.MaxInt64),
		func(r *Rejection) int64 { return r.ID },
		func(below int64, limit int) ([]Rejection, error) {
			err := pool.QueryRow(ctx, rejectionPageStartSQL, below, rejectionPageRows-1).Scan(&first)
			if err != nil && !errors.Is(err, pgx.ErrNoRows) {
				return nil, err
			}
			return postgres.Collect(ctx, pool, scanRejection, rejectionsSQL, f.args(below, first, limit)...)
		})
	if err == nil && page.Next == "" && first > 0 {
		page.Next = events.MakeCursor(first)
	}
	return page, err
}

func (f *RejectionFilter) args(from, to int64, limit int) []any {
	return []any{from, to, events.NilIfZero(f.Source), events.NilIfZero(f.Reason), events.NilIfZero(f.Since),
		events.NilIfZero(f.Until), limit}
}

// RejectionIDs returns the ids of at most limit selected deliveries, the oldest first, beginning
// after an id. More follow after next, unless it is 0.
func RejectionIDs(ctx context.Context, db postgres.DB, f RejectionFilter, after int64, limit int) (ids []int64,
	next int64, err error) {
	last := int64(math.MaxInt64)
	err = db.QueryRow(ctx, rejectionPageEndSQL, after, rejectionPageRows-1).Scan(&last)
	if err == nil {
		next = last
	}
	if err == nil || errors.Is(err, pgx.ErrNoRows) {
		ids, err = postgres.Collect(ctx, db, pgx.RowTo[int64], rejectionIDsSQL, f.args(after, last, limit)...)
	}
	if err != nil {
		return nil, 0, fmt.Errorf("select rejections: %w", err)
	}
	if len(ids) == limit {
		next = ids[limit-1]
	}
	return ids, next, nil
}

// ShowRejection returns one rejected delivery with headers and body. Errors: events.ErrNotFound.
func ShowRejection(ctx context.Context, db postgres.DB, id int64) (*RejectionDetail, error) {
	found, err := postgres.CollectOne(ctx, db, scanRejection, oneRejectionSQL, id)
	r := &RejectionDetail{Rejection: found}
	var body []byte
	if err == nil {
		err = db.QueryRow(ctx, rejectionContentSQL, id).Scan(&r.Headers, &body)
	}
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, fmt.Errorf("rejection %d: %w: it does not exist, or newer rejections replaced it", id,
			events.ErrNotFound)
	}
	if err != nil {
		return nil, fmt.Errorf("show rejection %d: %w", id, err)
	}
	r.Content = events.MakeContent(body)
	return r, nil
}

func scanRejection(row pgx.CollectableRow) (Rejection, error) {
	var r Rejection
	err := row.Scan(&r.ID, &r.Source, &r.ReceivedAt.Time, &r.Reason, &r.Detail, &r.Remote, &r.Bytes, &r.Truncated)
	r.Explanation = provider.Reason(r.Reason).Explain()
	return r, err
}
