package retention

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/apply"
	"github.com/postern-gateway/postern/internal/lifecycle"
	"github.com/postern-gateway/postern/internal/runs"
)

// Runner executes retention. Each step may be repeated, so that a run that continues after a crash
// ends in the same state.
type Runner struct {
	// Pool is connected as postern_processor, MaintenancePool as postern_maintenance.
	Pool, MaintenancePool *pgxpool.Pool
	Applier               *apply.Applier
	// Folder is the folder to which each partition is exported before its drop, unless the
	// parameters name another. "" is no export.
	Folder string
	// Chunk bounds the events between two checkpoints. 0 is 1,000.
	Chunk int
	// onStep is called before each step with its name and may return an error to end the run. Only
	// tests set it.
	onStep func(name string) error
}

// The counts of a run.
const (
	CountPartitions = "partitions"
	CountEvents     = "processed"
	CountKept       = "kept"
	CountKeys       = "keys"
	CountOutcomes   = "outcomes"
	CountConflicts  = "conflicts"
	CountRejections = "rejections"
	CountRuns       = "runs"
	// CountEffects are effects whose data was cleared, CountEffectKeys effects that were deleted.
	CountEffects    = "effects"
	CountEffectKeys = "effect_keys"
)

// work is a run that this process executes.
type work struct {
	*Runner
	params Params
	lease  *runs.Lease
	log    *slog.Logger
	// folder is the folder for exports, "" for no export.
	folder string
	// conn is the session of the maintenance role. It holds the lock that allows only one retention
	// at a time.
	conn *pgx.Conn
}

// stoppedError is the status of a run that an operator paused or cancelled.
type stoppedError struct{ runs.Status }

func (s *stoppedError) Error() string { return string(s.Status) }

// Execute executes a retention run. It is a runs.Executor.
func (r *Runner) Execute(ctx context.Context, lease *runs.Lease, log *slog.Logger) (runs.Status, error) {
	w := &work{Runner: r, lease: lease, log: log}
	if err := lease.DecodeParams(&w.params); err != nil {
		return "", err
	}
	if w.params.At.IsZero() {
		w.params.At = lease.CreatedAt.Time
	}
	if err := w.params.Check(); err != nil {
		return "", runs.Permanent(err)
	}
	if w.folder = cmp.Or(w.params.Folder, w.Folder); w.params.Export && w.folder == "" {
		return "", runs.Permanent(errors.New("an export before the drop is requested, and the processor that " +
			"executes the run has no retention.export: give every processor the setting and the folder"))
	}
	session, err := r.MaintenancePool.Acquire(ctx)
	if err != nil {
		return "", fmt.Errorf("connect for maintenance: %w", err)
	}
	defer session.Release()
	w.conn = session.Conn()
	if err := w.lock(ctx); err != nil {
		return "", err
	}
	defer w.unlock(ctx)
	if lease.Detail != "" { // left by a process that ended while it waited
		if err := lease.SetDetail(ctx, ""); err != nil {
			return "", err
		}
	}
	err = w.dropAndExpire(ctx)
	var stop *stoppedError
	if errors.As(err, &stop) {
		return stop.Status, nil
	}
	if err != nil {
		return "", err
	}
	return runs.Running, nil
}

const (
	lockSQL   = `SELECT pg_try_advisory_lock(hashtextextended('postern.retention', 0))`
	unlockSQL = `SELECT pg_advisory_unlock(hashtextextended('postern.retention', 0))`
)

// lock takes the lock. A process that has lost this run may still hold it for a moment.
func (w *work) lock(ctx context.Context) error {
	var got bool
	if err := w.conn.QueryRow(ctx, lockSQL).Scan(&got); err != nil {
		return fmt.Errorf("take the lock of retention: %w", err)
	}
	if !got {
		return errors.New("another process still executes retention; retrying later")
	}
	return nil
}

// unlock releases the lock. A lost session holds none.
func (w *work) unlock(ctx context.Context) {
	ctx, cancel := lifecycle.WithTimeout(context.WithoutCancel(ctx), "release the lock of retention", 2*time.Second)
	defer cancel()
	_, _ = w.conn.Exec(ctx, unlockSQL)
}

// dropAndExpire drops partitions and then expires other data. Partitions that must stay make the
// run fail, after everything else is done.
func (w *work) dropAndExpire(ctx context.Context) error {
	parts, err := partitions(ctx, w.conn)
	if err != nil {
		return err
	}
	w.params.markDue(parts)
	if err := w.markVanished(ctx); err != nil {
		return err
	}
	if err := w.finishDetach(ctx, parts); err != nil {
		return err
	}
	var kept []string
	for i := range parts {
		p := &parts[i]
		if !p.Due {
			continue
		}
		reason, err := w.dropPartition(ctx, p)
		if err != nil {
			return err
		}
		if reason != "" {
			w.log.Warn("partition kept", "partition", p.Name, "reason", reason)
			kept = append(kept, p.Name+": "+reason)
		}
	}
	if err := w.expire(ctx); err != nil {
		return err
	}
	w.lease.Counts[CountKept] = int64(len(kept))
	if err := w.advance(ctx); err != nil {
		return err
	}
	if len(kept) > 0 {
		return runs.Permanent(fmt.Errorf("%d partitions could not be dropped, everything else is done; %s", len(kept),
			strings.Join(kept, "; ")))
	}
	return nil
}

// advance records the counts. It returns a *stoppedError if an operator stopped the run.
func (w *work) advance(ctx context.Context) error {
	status, err := w.lease.Advance(ctx, w.lease.Cursor)
	if err != nil {
		return err
	}
	if status != runs.Running {
		return &stoppedError{status}
	}
	return context.Cause(ctx)
}

// beforeStep calls onStep, if it is set.
func (r *Runner) beforeStep(name string) error {
	if r.onStep == nil {
		return nil
	}
	return r.onStep(name)
}

func noRows(err error) bool { return errors.Is(err, pgx.ErrNoRows) }
