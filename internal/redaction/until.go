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

// receivedAt is when an event was received; nil where none is named.
func receivedAt(ctx context.Context, db querier, id int64) (*time.Time, error) {
	if id == 0 {
		return nil, nil //nolint:nilnil // no event, no time
	}
	var at time.Time
	err := db.QueryRow(ctx, receivedSQL, id).Scan(&at)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, runs.Refuse(fmt.Errorf("event %d, by which this was asked for: %w", id, events.ErrNotFound))
	}
	if err != nil {
		return nil, fmt.Errorf("read when event %d was received: %w", id, err)
	}
	return &at, nil
}

// meant leaves out events that were received after the request: the shop may have come back. Of what retention has dropped nobody knows, and it is old.
func (w *work) meant(ctx context.Context, ids []int64) ([]int64, error) {
	if w.askedAt == nil || len(ids) == 0 {
		return ids, nil
	}
	later, err := collect(ctx, w.Pool, laterSQL, ids, *w.askedAt)
	if err != nil || len(later) == 0 {
		return ids, err
	}
	return without(ids, later), nil
}
