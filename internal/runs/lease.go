package runs

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
)

// ErrLeaseLost means that another process owns the lease now. The previous owner stops. Its work
// counts only up to the checkpoint that the new owner read.
var ErrLeaseLost = errors.New("another process has the lease on the run now")

// Lease is the right to execute a run while the lease is renewed.
type Lease struct {
	Run
	// Abandoned is true if the previous owner did not release the run. The work itself may have
	// crashed it.
	Abandoned bool
	pool      *pgxpool.Pool
	owner     string
	duration  time.Duration
}

// acquireSQL leases the open run without a valid lease that was tried or created the longest ago.
// Of a schedule's runs it takes only the first open one. Two concurrent callers get different runs,
// or one of them gets none.
const acquireSQL = `
WITH free AS (
  SELECT r.run, r.job, coalesce(c.lease_owner, '') <> '' AS abandoned FROM runs r LEFT
  	JOIN checkpoints c ON c.job = r.job
  	AND c.run = r.run
  WHERE r.status IN ('queued', 'running') AND r.job = ANY($1::text[]) AND (c.run IS NULL
  	OR c.lease_until < clock_now())
    AND (r.schedule IS NULL OR NOT EXISTS (SELECT FROM runs e WHERE e.schedule = r.schedule AND e.run < r.run
    	AND e.ended_at IS NULL))
  ORDER BY coalesce(c.updated_at, r.created_at), r.run LIMIT 1 FOR UPDATE OF r SKIP LOCKED
), c AS (
  INSERT INTO checkpoints AS h (job, run, cursor, lease_owner, lease_until, updated_at)
  SELECT f.job, f.run, 0, $2, clock_now() + $3::interval, clock_now() FROM free f
  ON CONFLICT (job, run) DO UPDATE SET lease_owner = excluded.lease_owner, lease_until = excluded.lease_until,
  	updated_at = excluded.updated_at
  WHERE h.lease_until < clock_now()
  RETURNING job, run, cursor, lease_owner, lease_until, deferrals
)
UPDATE runs r SET status = 'running', started_at = coalesce(r.started_at, clock_now()), updated_at = clock_now()
FROM c JOIN free f ON f.run = c.run WHERE r.run = c.run
RETURNING ` + runColumns + `, f.abandoned`

// Acquire leases an open run of the given jobs that no process executes, or returns nil if there is
// none. It chooses the run that was created or tried the longest ago. process names this process;
// each lease adds a random suffix.
func Acquire(ctx context.Context, pool *pgxpool.Pool, process string, lease time.Duration, jobs ...string) (*Lease,
	error) {
	// One process may execute several runs, and may acquire a run again that it has lost.
	owner := process + "/" + rand.Text()[:8]
	h, err := postgres.CollectOne(ctx, pool, pgx.RowToAddrOfStructByPos[Lease], acquireSQL, jobs, owner, lease)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("acquire a run: %w", err)
	}
	if h.pool, h.owner, h.duration = pool, owner, lease; h.Counts == nil {
		h.Counts = map[string]int64{}
	}
	return h, nil
}

const setBoundSQL = `
UPDATE runs r SET bound = $4, updated_at = clock_now() FROM checkpoints c
WHERE r.run = $2 AND c.job = $1 AND c.run = r.run AND c.lease_owner = $3 RETURNING r.bound`

// SetBound sets the run's bound, also where it has one. Errors: ErrLeaseLost.
func (h *Lease) SetBound(ctx context.Context, bound int64) error {
	err := h.pool.QueryRow(ctx, setBoundSQL, h.Job, h.Run.ID, h.owner, bound).Scan(&h.Bound)
	if errors.Is(err, pgx.ErrNoRows) {
		return ErrLeaseLost
	}
	if err != nil {
		return fmt.Errorf("set the bound of run %d: %w", h.Run.ID, err)
	}
	return nil
}

const advanceSQL = `
WITH held AS (
  UPDATE checkpoints c SET cursor = $4, lease_until = clock_now() + $5::interval, updated_at = clock_now(),
    deferrals = CASE WHEN c.cursor = $4 AND o.counts = $6::jsonb THEN c.deferrals ELSE 0 END
  FROM runs o WHERE c.job = $1 AND c.run = $2 AND c.lease_owner = $3 AND o.run = c.run RETURNING c.run, c.deferrals
)
UPDATE runs r SET counts = $6, in_progress = '{}', detail = CASE WHEN $7 AND h.deferrals = 0 THEN '' ELSE r.detail END,
	updated_at = clock_now()
FROM held h WHERE r.run = h.run RETURNING r.status, h.deferrals`

// Advance saves the cursor and the counts in one statement and renews the lease. Every event up to
// the cursor must have its outcome. Progress resets ConsecutiveFailures. Advance returns the run's
// status: the caller continues only while it is Running. Errors: ErrLeaseLost.
func (h *Lease) Advance(ctx context.Context, cursor int64) (Status, error) {
	counts, err := json.Marshal(h.Counts)
	if err != nil {
		return "", err
	}
	err = h.pool.QueryRow(ctx, advanceSQL, h.Job, h.Run.ID, h.owner, cursor, h.duration, counts,
		h.ConsecutiveFailures > 0).Scan(&h.Status, &h.ConsecutiveFailures)
	if errors.Is(err, pgx.ErrNoRows) {
		return "", ErrLeaseLost
	}
	if err != nil {
		return "", fmt.Errorf("advance run %d: %w", h.Run.ID, err)
	}
	h.Cursor, h.InProgress = cursor, nil
	return h.Status, nil
}

const markInProgressSQL = `
UPDATE runs r SET in_progress = $4, updated_at = clock_now() FROM checkpoints c
WHERE r.run = $2 AND c.job = $1 AND c.run = r.run AND c.lease_owner = $3`

// MarkInProgress records events before a job works on them. A job needs this if its work removes
// the events from its own selection. The next owner finds them in InProgress until Advance. Errors:
// ErrLeaseLost.
func (h *Lease) MarkInProgress(ctx context.Context, ids []int64) error {
	tag, err := h.pool.Exec(ctx, markInProgressSQL, h.Job, h.Run.ID, h.owner, ids)
	if err != nil {
		return fmt.Errorf("record the events in progress of run %d: %w", h.Run.ID, err)
	}
	if tag.RowsAffected() == 0 {
		return ErrLeaseLost
	}
	h.InProgress = ids
	return nil
}

const setDetailSQL = `
UPDATE runs r SET detail = $4, updated_at = clock_now() FROM checkpoints c
WHERE r.run = $2 AND (r.ended_at IS NULL OR $4 = '') AND c.job = $1 AND c.run = r.run AND c.lease_owner = $3`

// SetDetail records what the run waits for; "" means nothing. It changes nothing if another process
// owns the lease, or if the detail is the same already.
func (h *Lease) SetDetail(ctx context.Context, detail string) error {
	if detail = events.SanitizeText(detail); detail == h.Detail {
		return nil
	}
	if _, err := h.pool.Exec(ctx, setDetailSQL, h.Job, h.Run.ID, h.owner, detail); err != nil {
		return fmt.Errorf("set the detail of run %d: %w", h.Run.ID, err)
	}
	h.Detail = detail
	return nil
}

const endSQL = `
WITH held AS (
  UPDATE checkpoints SET lease_owner = '', lease_until = clock_now() - interval '1 millisecond',
  	updated_at = clock_now()
  WHERE job = $1 AND run = $2 AND lease_owner = $3 RETURNING run
), ended AS (
  UPDATE runs r SET status = $4, detail = $5, ended_at = CASE WHEN $4 <> 'paused' THEN clock_now() END,
    updated_at = clock_now() FROM held h
  	WHERE r.run = h.run AND r.status = 'running'
  RETURNING r.schedule, r.status
)
UPDATE schedules s SET succeeded_at = clock_now() FROM ended e WHERE s.name = e.schedule AND e.status = 'done'`

// End ends the run as Done or Failed, or pauses it; detail is the reason. It changes nothing if an
// operator has paused or cancelled the run.
func (h *Lease) End(ctx context.Context, status Status, detail string) error {
	if _, err := h.pool.Exec(ctx, endSQL, h.Job, h.Run.ID, h.owner, status, events.SanitizeText(detail)); err != nil {
		return fmt.Errorf("end run %d: %w", h.Run.ID, err)
	}
	return nil
}

const releaseSQL = `UPDATE checkpoints SET lease_owner = '', lease_until = clock_now() - interval '1 millisecond'
	WHERE job = $1 AND run = $2 AND lease_owner = $3`

// Release lets another process continue the run immediately.
func (h *Lease) Release(ctx context.Context) error {
	_, err := h.pool.Exec(ctx, releaseSQL, h.Job, h.Run.ID, h.owner)
	return err
}

const requeueSQL = `
WITH held AS (
  UPDATE checkpoints SET lease_owner = '', lease_until = clock_now() + $4::interval, updated_at = clock_now()
  	WHERE job = $1 AND run = $2 AND lease_owner = $3 RETURNING run
)
UPDATE runs r SET detail = $5, updated_at = clock_now() FROM held h WHERE r.run = h.run AND r.status = 'running'
	AND r.detail <> $5`

// requeue lets another process continue the run after a wait (Requeue).
func (h *Lease) requeue(ctx context.Context, r *requeueError) error {
	if _, err := h.pool.Exec(ctx, requeueSQL, h.Job, h.Run.ID, h.owner, r.after,
		events.SanitizeText(r.reason)); err != nil {
		return fmt.Errorf("requeue run %d: %w", h.Run.ID, err)
	}
	return nil
}

const deferSQL = `
WITH held AS (
  UPDATE checkpoints SET lease_owner = '', lease_until = clock_now() + least($5::interval * (1 << least(deferrals, 20)),
  	$6::interval), deferrals = deferrals + 1,
    updated_at = clock_now()
  WHERE job = $1 AND run = $2 AND lease_owner = $3 RETURNING run, deferrals
), detailed AS (
  UPDATE runs r SET detail = $4, updated_at = clock_now() FROM held h WHERE r.run = h.run AND r.status = 'running'
)
SELECT deferrals FROM held`

// Defer lets another process continue the run after a wait. The wait after the first failure is
// first. It doubles with each consecutive failure, up to longest. The cause becomes the run's
// Detail. Defer returns the number of consecutive failures, or 0 if another process owns the lease.
func (h *Lease) Defer(ctx context.Context, cause error, first, longest time.Duration) (failures int, err error) {
	err = h.pool.QueryRow(ctx, deferSQL, h.Job, h.Run.ID, h.owner, events.SanitizeText(cause.Error()), first,
		longest).Scan(&failures)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return 0, fmt.Errorf("defer run %d: %w", h.Run.ID, err)
	}
	return failures, nil
}
