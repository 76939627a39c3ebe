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
)

// ErrLost says that the lease on a run is another process's now: whoever had it stops, and its last work counts only as far as the
// other's checkpoint comes to tell of it.
var ErrLost = errors.New("the run is another process's now")

// Hold is the right to carry a run out, as long as its lease is renewed.
type Hold struct {
	Run
	// Abandoned: whoever had the run before ended without handing it on, perhaps by what it was doing.
	Abandoned bool
	pool      *pgxpool.Pool
	by        string
	lease     time.Duration
}

// takeSQL gives the open run that nobody holds and that was tried, or made, the longest ago; of a schedule's runs the first that is open. Two
// that ask at once get two, or one of them none.
const takeSQL = `
WITH free AS (
  SELECT r.run, r.job, coalesce(c.leased_by, '') <> '' AS abandoned FROM runs r LEFT JOIN checkpoints c ON c.job = r.job AND c.run = r.run
  WHERE r.status IN ('waiting', 'running') AND r.job = ANY($1::text[]) AND (c.run IS NULL OR c.leased_until < clock_now())
    AND (r.schedule IS NULL OR NOT EXISTS (SELECT FROM runs e WHERE e.schedule = r.schedule AND e.run < r.run AND e.ended_at IS NULL))
  ORDER BY coalesce(c.updated_at, r.made_at), r.run LIMIT 1 FOR UPDATE OF r SKIP LOCKED
), c AS (
  INSERT INTO checkpoints AS h (job, run, cursor, leased_by, leased_until, updated_at)
  SELECT f.job, f.run, 0, $2, clock_now() + $3::interval, clock_now() FROM free f
  ON CONFLICT (job, run) DO UPDATE SET leased_by = excluded.leased_by, leased_until = excluded.leased_until, updated_at = excluded.updated_at
  WHERE h.leased_until < clock_now()
  RETURNING job, run, cursor, leased_by, leased_until, troubles
)
UPDATE runs r SET status = 'running', started_at = coalesce(r.started_at, clock_now()), updated_at = clock_now()
FROM c JOIN free f ON f.run = c.run WHERE r.run = c.run
RETURNING ` + runColumns + `, f.abandoned`

// Take takes the open run of some jobs that nobody carries out and that has waited for longest, be it since it was made or since it was last
// tried; nil where there is none. by names this process; each hold has a name of its own below it.
func Take(ctx context.Context, pool *pgxpool.Pool, by string, lease time.Duration, jobs ...string) (*Hold, error) {
	h := &Hold{pool: pool, by: by + "/" + rand.Text()[:8], lease: lease} // one process may carry out several runs, and take one again that it has lost
	rows, err := pool.Query(ctx, takeSQL, jobs, h.by, lease)
	if err != nil {
		return nil, fmt.Errorf("take a run: %w", err)
	}
	h.Run, err = pgx.CollectExactlyOneRow(rows, func(row pgx.CollectableRow) (Run, error) { return scanWith(row, &h.Abandoned) })
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("take a run: %w", err)
	}
	if h.Counts == nil {
		h.Counts = map[string]int64{}
	}
	return h, nil
}

const boundSQL = `UPDATE runs SET bound = $2, updated_at = clock_now() WHERE run = $1 AND bound IS NULL RETURNING bound`

// Freeze keeps the bound of a run that has none yet.
func (h *Hold) Freeze(ctx context.Context, bound int64) error {
	err := h.pool.QueryRow(ctx, boundSQL, h.Run.Run, bound).Scan(&h.Bound)
	if errors.Is(err, pgx.ErrNoRows) {
		return ErrLost // another has done so
	}
	if err != nil {
		return fmt.Errorf("keep the bound of run %d: %w", h.Run.Run, err)
	}
	return nil
}

const advanceSQL = `
WITH held AS (
  UPDATE checkpoints c SET cursor = $4, leased_until = clock_now() + $5::interval, updated_at = clock_now(),
    troubles = CASE WHEN c.cursor = $4 AND o.counts = $6::jsonb THEN c.troubles ELSE 0 END
  FROM runs o WHERE c.job = $1 AND c.run = $2 AND c.leased_by = $3 AND o.run = c.run RETURNING c.run, c.troubles
)
UPDATE runs r SET counts = $6, hand = '{}', detail = CASE WHEN $7 AND h.troubles = 0 THEN '' ELSE r.detail END, updated_at = clock_now()
FROM held h WHERE r.run = h.run RETURNING r.status, h.troubles`

// Advance moves the checkpoint to the cursor and keeps the counts, which are as of there, in one statement; everything up to the cursor
// must have its outcome. Where that is further than before, the trouble of earlier tries is over. It renews the lease and returns how the run stands now: whoever carries it out goes on only while it is Running.
// Errors: ErrLost.
func (h *Hold) Advance(ctx context.Context, cursor int64) (Status, error) {
	counts, err := json.Marshal(h.Counts)
	if err != nil {
		return "", err
	}
	err = h.pool.QueryRow(ctx, advanceSQL, h.Job, h.Run.Run, h.by, cursor, h.lease, counts, h.Troubles > 0).Scan(&h.Status, &h.Troubles)
	if errors.Is(err, pgx.ErrNoRows) {
		return "", ErrLost
	}
	if err != nil {
		return "", fmt.Errorf("advance run %d: %w", h.Run.Run, err)
	}
	h.Cursor, h.Hand = cursor, nil
	return h.Status, nil
}

const handSQL = `
UPDATE runs r SET hand = $4, updated_at = clock_now() FROM checkpoints c
WHERE r.run = $2 AND c.job = $1 AND c.run = r.run AND c.leased_by = $3`

// Keep notes events that are about to be worked on, for a job whose work takes them out of what it would choose. Whoever holds the run next finds them
// in Hand, until Advance. Errors: ErrLost.
func (h *Hold) Keep(ctx context.Context, ids []int64) error {
	kept, err := h.pool.Exec(ctx, handSQL, h.Job, h.Run.Run, h.by, ids)
	if err != nil {
		return fmt.Errorf("keep what run %d has in hand: %w", h.Run.Run, err)
	}
	if kept.RowsAffected() == 0 {
		return ErrLost
	}
	h.Hand = ids
	return nil
}

const noteSQL = `
UPDATE runs r SET detail = $4, updated_at = clock_now() FROM checkpoints c
WHERE r.run = $2 AND (r.ended_at IS NULL OR $4 = '') AND c.job = $1 AND c.run = r.run AND c.leased_by = $3`

// Note says in words what the run is waiting for, "" where for nothing any more. Whoever reads the run finds it in Detail. A run that is
// another's stays as it is.
func (h *Hold) Note(ctx context.Context, detail string) error {
	if _, err := h.pool.Exec(ctx, noteSQL, h.Job, h.Run.Run, h.by, detail); err != nil {
		return fmt.Errorf("note what run %d waits for: %w", h.Run.Run, err)
	}
	h.Detail = detail
	return nil
}

const endSQL = `
WITH held AS (
  UPDATE checkpoints SET leased_by = '', leased_until = clock_now() - interval '1 millisecond', updated_at = clock_now()
  WHERE job = $1 AND run = $2 AND leased_by = $3 RETURNING run
), ended AS (
  UPDATE runs r SET status = $4, detail = $5, ended_at = clock_now(), updated_at = clock_now() FROM held h WHERE r.run = h.run AND r.status = 'running'
  RETURNING r.schedule, r.status
)
UPDATE schedules s SET succeeded_at = clock_now() FROM ended e WHERE s.name = e.schedule AND e.status = 'done'`

// End ends the run as Done or Failed, with the reason of a failure, unless a person has paused or cancelled it since.
func (h *Hold) End(ctx context.Context, status Status, detail string) error {
	if _, err := h.pool.Exec(ctx, endSQL, h.Job, h.Run.Run, h.by, status, events.Text(detail)); err != nil {
		return fmt.Errorf("end run %d: %w", h.Run.Run, err)
	}
	return nil
}

const releaseSQL = `UPDATE checkpoints SET leased_by = '', leased_until = clock_now() - interval '1 millisecond' WHERE job = $1 AND run = $2 AND leased_by = $3`

// Release lets another go on with the run at once.
func (h *Hold) Release(ctx context.Context) error {
	_, err := h.pool.Exec(ctx, releaseSQL, h.Job, h.Run.Run, h.by)
	return err
}

const handBackSQL = `
WITH held AS (
  UPDATE checkpoints SET leased_by = '', leased_until = clock_now() + $4::interval, updated_at = clock_now() WHERE job = $1 AND run = $2 AND leased_by = $3 RETURNING run
)
UPDATE runs r SET detail = $5, updated_at = clock_now() FROM held h WHERE r.run = h.run AND r.status = 'running' AND r.detail <> $5`

// handBack lets another go on with the run after a while, as Later says.
func (h *Hold) handBack(ctx context.Context, wait *later) error {
	if _, err := h.pool.Exec(ctx, handBackSQL, h.Job, h.Run.Run, h.by, wait.after, events.Text(wait.why)); err != nil {
		return fmt.Errorf("hand back run %d: %w", h.Run.Run, err)
	}
	return nil
}

const putOffSQL = `
WITH held AS (
  UPDATE checkpoints SET leased_by = '', leased_until = clock_now() + least($5::interval * (1 << least(troubles, 20)), $6::interval), troubles = troubles + 1,
    updated_at = clock_now()
  WHERE job = $1 AND run = $2 AND leased_by = $3 RETURNING run, troubles
), told AS (
  UPDATE runs r SET detail = $4, updated_at = clock_now() FROM held h WHERE r.run = h.run AND r.status = 'running'
)
SELECT troubles FROM held`

// PutOff lets another go on with the run after a while: first at the earliest, each time in a row twice as late, and most at the latest. Why becomes its
// Detail. It returns how often in a row that was, 0 where the run is another process's now.
func (h *Hold) PutOff(ctx context.Context, why error, first, most time.Duration) (times int, err error) {
	err = h.pool.QueryRow(ctx, putOffSQL, h.Job, h.Run.Run, h.by, events.Text(why.Error()), first, most).Scan(&times)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return 0, fmt.Errorf("put off run %d: %w", h.Run.Run, err)
	}
	return times, nil
}
