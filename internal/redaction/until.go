package redaction

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/runs"
)

const (
	receivedSQL = `SELECT e.received_at FROM events e WHERE e.id = $1`

	laterSQL = `SELECT e.id FROM events e WHERE e.id = ANY($1::bigint[]) AND e.received_at > $2`
)

// receivedAt returns when an event was received; nil if no event is named.
func receivedAt(ctx context.Context, db querier, id int64) (*time.Time, error) {
	if id == 0 {
		return nil, nil //nolint:nilnil // no event, no time
	}
	var at time.Time
	err := db.QueryRow(ctx, receivedSQL, id).Scan(&at)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, runs.Permanent(fmt.Errorf("event %d, which requested this: %w", id, events.ErrNotFound))
	}
	if err != nil {
		return nil, fmt.Errorf("read when event %d was received: %w", id, err)
	}
	return &at, nil
}

// withoutLater removes events that were received after the request, because the shop may have
// installed the app again. Events of dropped partitions are old and stay in the list.
func (w *execution) withoutLater(ctx context.Context, ids []int64) ([]int64, error) {
	if w.requestedAt == nil || len(ids) == 0 {
		return ids, nil
	}
	later, err := collect(ctx, w.Pool, laterSQL, ids, *w.requestedAt)
	if err != nil || len(later) == 0 {
		return ids, err
	}
	return without(ids, later), nil
}
