package runs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/lifecycle"
	"github.com/postern-gateway/postern/internal/postgres"
)

// EndPublisher publishes each run that has ended at least once, and counts it. Any number of
// processes may run one. A process claims a run first; another process claims it again if the first
// does not finish within RetryInterval.
type EndPublisher struct {
	// Pool is connected as postern_processor.
	Pool *pgxpool.Pool
	// Publish publishes runs and returns one error for each; nil means that the stream has
	// acknowledged it.
	Publish func(ctx context.Context, ended []Run) []error
	Metrics *Metrics
	Logger  *slog.Logger
	// Interval is the time between two searches for ended runs. RetryInterval is the wait after a
	// failed publication.
	Interval, RetryInterval time.Duration

	wake chan struct{}
}

// NewEndPublisher returns a publisher with the given settings; Run starts it.
func NewEndPublisher(t EndPublisher) *EndPublisher {
	t.wake = make(chan struct{}, 1)
	return &t
}

// Wake starts a search immediately. It never blocks.
func (t *EndPublisher) Wake() {
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// Run publishes until ctx ends. It logs only the first of consecutive errors.
func (t *EndPublisher) Run(ctx context.Context) error {
	return lifecycle.Repeat(ctx, t.Interval, t.wake, func(err error) {
		t.Logger.Warn("cannot publish the ends of runs; retrying", "error", err)
	}, func(ctx context.Context) (bool, error) {
		n, err := t.PublishEnded(ctx)
		return n == publishBatch, err
	})
}

// claimEndedSQL claims ended runs that no process has claimed, or whose claim is older than the
// retry interval. It ignores claims in the future, which a clock leaves behind that was set back.
const claimEndedSQL = `
WITH unpublished AS (
  SELECT u.run, u.publish_after IS NULL AS fresh FROM runs u
  WHERE u.ended_at IS NOT NULL AND u.published_at IS NULL
    AND (u.publish_after IS NULL OR u.publish_after NOT BETWEEN clock_now() AND clock_now() + $1::interval)
  ORDER BY u.run LIMIT $2 FOR UPDATE SKIP LOCKED
), claimed AS (
  UPDATE runs d SET publish_after = clock_now() + $1::interval FROM unpublished u WHERE d.run = u.run RETURNING d.run
)
SELECT ` + runColumns + `, u.fresh FROM runs r JOIN unpublished u ON u.run = r.run JOIN claimed d ON d.run = r.run
LEFT JOIN checkpoints c ON c.job = r.job AND c.run = r.run ORDER BY r.run`

const markPublishedSQL = `UPDATE runs SET published_at = clock_now() WHERE run = ANY($1::bigint[])`

// publishBatch is the maximum number of runs in one batch, and publishTimeout limits its time.
const (
	publishBatch   = 100
	publishTimeout = 30 * time.Second
)

// claimedRun is an ended run that this process publishes.
type claimedRun struct {
	Run
	FirstAttempt bool
}

// PublishEnded publishes one batch of ended runs and returns how many it claimed.
func (t *EndPublisher) PublishEnded(ctx context.Context) (n int, err error) {
	ctx, cancel := lifecycle.WithTimeout(ctx, "publish ended runs", publishTimeout)
	defer cancel()
	claimed, err := postgres.Collect(ctx, t.Pool, pgx.RowToStructByPos[claimedRun], claimEndedSQL, t.RetryInterval,
		publishBatch)
	if err != nil {
		return 0, fmt.Errorf("read ended runs: %w", err)
	}
	if len(claimed) == 0 {
		return 0, nil
	}
	ended := make([]Run, len(claimed))
	for i := range claimed {
		ended[i] = claimed[i].Run
	}
	var published []int64
	var errs []error
	for i, err := range t.Publish(ctx, ended) {
		if claimed[i].FirstAttempt {
			t.Metrics.countEnded(&ended[i])
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		published = append(published, ended[i].ID)
	}
	if len(errs) > 0 {
		err = fmt.Errorf("publish the end of %d runs: %w", len(errs), errs[0])
	}
	_, markErr := t.Pool.Exec(ctx, markPublishedSQL, published)
	return len(ended), errors.Join(err, markErr)
}
