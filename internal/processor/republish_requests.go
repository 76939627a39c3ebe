package processor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/apply"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
)

// requestPollInterval is how often the republisher checks for requested passes.
const requestPollInterval = time.Second

const (
	requestedPassesSQL = `SELECT id FROM republish_passes WHERE id > 0 AND ended_at IS NULL ORDER BY id`

	requestPassSQL = `INSERT INTO republish_passes (requested_at, requested_by, reason) VALUES (clock_now(), $1, $2)
		RETURNING id`

	// recordPassSQL updates row 0, which describes the republisher's own passes, and the requested
	// passes. A process without the lease records nothing.
	recordPassSQL = `
UPDATE republish_passes a SET detail = $4::text,
  ended_at = CASE WHEN $4::text = '' THEN clock_now() ELSE a.ended_at END,
  published_at = CASE WHEN $2::bigint + $3::bigint > 0 THEN clock_now() ELSE a.published_at END,
  missing = CASE WHEN a.id > 0 THEN a.missing + $2::bigint WHEN $2::bigint + $3::bigint > 0 THEN $2::bigint
  	ELSE a.missing END,
  due = CASE WHEN a.id > 0 THEN a.due + $3::bigint WHEN $2::bigint + $3::bigint > 0 THEN $3::bigint ELSE a.due END
WHERE (a.id = 0 OR a.id = ANY($1::bigint[]))
  AND EXISTS (SELECT FROM checkpoints c WHERE c.job = $5 AND c.run = 0 AND c.lease_owner = $6)`

	renewLeaseSQL = `UPDATE checkpoints SET lease_until = clock_now() + $3::interval, updated_at = clock_now()
		WHERE job = $1 AND run = 0 AND lease_owner = $2`

	republishRequestSQL = `SELECT id, requested_at, requested_by, reason, ended_at, published_at, missing, due, detail
		FROM republish_passes
		WHERE id = $1 AND id > 0`
)

// RequestRepublish requests a pass of the republisher, in whichever process it runs. The pass does
// not wait for the minimum age of events: it publishes events that have no outcome and are not in
// the stream. It returns the id for ShowRepublish. Concurrent requests share one pass. It runs as
// postern_operator.
func RequestRepublish(ctx context.Context, db postgres.DB, actor, reason string) (id int64, err error) {
	if err := db.QueryRow(ctx, requestPassSQL, actor, reason).Scan(&id); err != nil {
		return 0, fmt.Errorf("request a pass of the republisher: %w", err)
	}
	return id, nil
}

// RepublishView is a requested pass.
type RepublishView struct {
	ID          int64          `json:"pass"`
	RequestedAt events.Instant `json:"requested_at"`
	RequestedBy string         `json:"requested_by"`
	Reason      string         `json:"reason"`
	// EndedAt is when the pass ended, nil if it has not. Detail says why the last try did not end.
	EndedAt *events.Instant `json:"ended_at"`
	RepublishCounts
	Detail string `json:"detail,omitzero"`
}

// RepublishCounts are the counts of events that the republisher has published again.
type RepublishCounts struct {
	// PublishedAt is the last time it published anything, nil if never.
	PublishedAt *events.Instant `json:"published_at"`
	// Missing are events that had no outcome. Due are failed events that were due.
	Missing int64 `json:"missing"`
	Due     int64 `json:"due"`
}

// ShowRepublish returns the progress of a requested pass. Errors: events.ErrNotFound.
func ShowRepublish(ctx context.Context, db postgres.DB, id int64) (*RepublishView, error) {
	v := &RepublishView{}
	var ended, published *time.Time
	err := db.QueryRow(ctx, republishRequestSQL, id).Scan(&v.ID, &v.RequestedAt.Time, &v.RequestedBy, &v.Reason, &ended,
		&published, &v.Missing, &v.Due, &v.Detail)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, fmt.Errorf("republish request %d: %w", id, events.ErrNotFound)
	}
	if err != nil {
		return nil, fmt.Errorf("show republish request %d: %w", id, err)
	}
	v.EndedAt, v.PublishedAt = optionalInstant(ended), optionalInstant(published)
	return v, nil
}

func optionalInstant(t *time.Time) *events.Instant {
	if t == nil {
		return nil
	}
	return &events.Instant{Time: *t}
}

// awaitNextPass returns true when the next pass is due or requested, false when ctx has ended.
func (a *republisher) awaitNextPass(ctx context.Context, tick, poll <-chan time.Time) bool {
	for {
		select {
		case <-ctx.Done():
			return false
		case <-tick:
			return true
		case <-poll:
			if requested, err := a.requestedPasses(ctx); err == nil && len(requested) > 0 {
				return true
			}
		}
	}
}

// requestedPasses returns the ids of the passes that operators have requested.
func (a *republisher) requestedPasses(ctx context.Context) ([]int64, error) {
	ids, err := postgres.Collect(ctx, a.p.Pool, pgx.RowTo[int64], requestedPassesSQL)
	if err != nil {
		return nil, fmt.Errorf("find requested passes: %w", err)
	}
	return ids, nil
}

// recordPass records the result of a pass. If the process ends before this, the messages of the
// pass are not counted and the pass runs again.
func (a *republisher) recordPass(ctx context.Context, requested []int64, stopReason string, failed error) error {
	if failed != nil {
		stopReason = failed.Error()
	}
	if _, err := a.p.Pool.Exec(ctx, recordPassSQL, requested, a.publishedByCause[causeMissing],
		a.publishedByCause[causeDue], stopReason, apply.RepublisherJob, a.p.ID); err != nil {
		return fmt.Errorf("record the result of the republisher's pass: %w", err)
	}
	return nil
}

// waitForRate waits until n events may be published, and then renews the lease. stopReason says
// that another process has the lease.
func (a *republisher) waitForRate(ctx context.Context, n int) (stopReason string, err error) {
	if wait := time.Until(a.nextPublish); wait > 0 {
		select {
		case <-ctx.Done():
			return "", context.Cause(ctx)
		case <-time.After(wait):
		}
	}
	now := time.Now()
	if a.nextPublish.Before(now) {
		a.nextPublish = now
	}
	a.nextPublish = a.nextPublish.Add(time.Duration(n) * time.Second / time.Duration(a.p.Settings.RepublishRate))
	leased, err := a.p.Pool.Exec(ctx, renewLeaseSQL, apply.RepublisherJob, a.p.ID, a.p.Settings.RepublishLease)
	if err != nil {
		return "", fmt.Errorf("renew the republisher's lease: %w", err)
	}
	if leased.RowsAffected() == 0 {
		return leaseLostReason, nil
	}
	return "", nil
}
