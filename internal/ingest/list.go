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
	"github.com/postern-gateway/postern/internal/provider"
)

// Rejected is a refused delivery as a list shows it.
type Rejected struct {
	ID         int64          `json:"id"`
	Source     string         `json:"source"`
	ReceivedAt events.Instant `json:"received_at"`
	Reason     string         `json:"reason"`
	// Explanation says what the reason means and what usually causes it, Detail what exactly was seen.
	Explanation string `json:"explanation"`
	Detail      string `json:"detail"`
	Remote      string `json:"remote"`
	// Bytes is the size of the body as it came; Cut says that not all of it was kept, so that it cannot be verified again.
	Bytes int64 `json:"bytes"`
	Cut   bool  `json:"cut"`
}

// RejectedDetail is a refused delivery with what was kept of it.
type RejectedDetail struct {
	Rejected
	Headers json.RawMessage `json:"headers"`
	events.Content
}

// RejectionFilter chooses refused deliveries; what is zero chooses all. Since is inclusive, Until exclusive.
type RejectionFilter struct {
	// Source is a source's number.
	Source int32
	// Reason is one of provider's.
	Reason       string
	Since, Until time.Time
}

// rejectionScan is how many rows one page looks at; what is kept is bounded per source, so this bounds only many sources.
const rejectionScan = 10_000

const rejectedColumns = `
SELECT r.id, s.name, r.received_at, r.reason, r.detail, r.remote, r.bytes, octet_length(r.body) < r.bytes
FROM rejections r JOIN sources s ON s.number = r.source WHERE `

const (
	rejectionWindowSQL = `SELECT id FROM rejections WHERE id < $1 ORDER BY id DESC OFFSET $2 LIMIT 1`

	rejectionsSQL = rejectedColumns + `r.id < $1 AND r.id >= $2 AND ($3::int IS NULL OR r.source = $3) AND ($4::text IS NULL OR r.reason = $4)
  AND ($5::timestamptz IS NULL OR r.received_at >= $5) AND ($6::timestamptz IS NULL OR r.received_at < $6)
ORDER BY r.id DESC LIMIT $7`

	oneRejectionSQL = rejectedColumns + `r.id = $1`

	rejectionRestSQL = `SELECT headers, body FROM rejections WHERE id = $1`
)

func listStatements() []string {
	return []string{rejectionWindowSQL, rejectionsSQL, oneRejectionSQL, rejectionRestSQL}
}

// ListRejections returns a page of refused deliveries, the newest first. Errors: events.ErrInvalid.
func ListRejections(ctx context.Context, pool *pgxpool.Pool, f RejectionFilter, cursor string, limit int) (events.Page[Rejected], error) {
	var page events.Page[Rejected]
	limit, err := events.PageSize(limit)
	if err != nil {
		return page, err
	}
	below, first := int64(math.MaxInt64), int64(0)
	if err := events.ReadCursor(cursor, &below); err != nil {
		return page, err
	}
	err = pool.QueryRow(ctx, rejectionWindowSQL, below, rejectionScan-1).Scan(&first)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return page, fmt.Errorf("list rejections: %w", err)
	}
	rows, err := pool.Query(ctx, rejectionsSQL, below, first, events.Optional(f.Source), events.Optional(f.Reason), events.Optional(f.Since), events.Optional(f.Until), limit)
	if err == nil {
		page.Items, err = pgx.CollectRows(rows, scanRejected)
	}
	if err != nil {
		return page, fmt.Errorf("list rejections: %w", err)
	}
	switch {
	case len(page.Items) == limit:
		page.Next = events.MakeCursor(page.Items[limit-1].ID)
	case first > 0:
		page.Next = events.MakeCursor(first)
	}
	return page, nil
}

// ShowRejection returns one refused delivery whole. Errors: events.ErrNotFound.
func ShowRejection(ctx context.Context, pool *pgxpool.Pool, id int64) (*RejectedDetail, error) {
	r := &RejectedDetail{}
	rows, err := pool.Query(ctx, oneRejectionSQL, id)
	if err == nil {
		r.Rejected, err = pgx.CollectExactlyOneRow(rows, scanRejected)
	}
	var body []byte
	if err == nil {
		err = pool.QueryRow(ctx, rejectionRestSQL, id).Scan(&r.Headers, &body)
	}
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, fmt.Errorf("rejection %d: %w: it never was, or newer ones took its place", id, events.ErrNotFound)
	}
	if err != nil {
		return nil, fmt.Errorf("show rejection %d: %w", id, err)
	}
	r.Content = events.MakeContent(body)
	return r, nil
}

func scanRejected(row pgx.CollectableRow) (Rejected, error) {
	var r Rejected
	err := row.Scan(&r.ID, &r.Source, &r.ReceivedAt.Time, &r.Reason, &r.Detail, &r.Remote, &r.Bytes, &r.Cut)
	r.Explanation = provider.Reason(r.Reason).Explain()
	return r, err
}
