package retention

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/lifecycle"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/runs"
)

// Runner carries out retention. Each step may be repeated, so that whoever goes on after a crash ends in the same state.
type Runner struct {
	// Pool is connected as postern_processor, Keeper as postern_maintenance.
	Pool, Keeper *pgxpool.Pool
	Processor    *processor.Processor
	// Folder is where each partition is exported to before it is dropped, where the order names no other; "": it is not.
	Folder string
	// Chunk bounds the events between two checkpoints; 0: 1,000.
	Chunk int
	// step is told of each step before it is taken, and may end it; only tests set it.
	step func(name string) error
}

// What a run counts.
const (
	CountPartitions = "partitions"
	CountEvents     = "processed"
	CountKept       = "kept"
	CountKeys       = "keys"
	CountOutcomes   = "outcomes"
	CountConflicts  = "conflicts"
	CountRejections = "rejections"
	CountRuns       = "runs"
	// CountEffects are effects whose contents were cleared, CountEffectKeys those that were deleted.
	CountEffects    = "effects"
	CountEffectKeys = "effect_keys"
)

// work is a run that is carried out.
type work struct {
	*Runner
	order Order
	hold  *runs.Hold
	log   *slog.Logger
	// folder is where partitions are exported to; "": they are not.
	folder string
	// conn is the one session of the maintenance role; it holds the lock that lets one retention at a time go on.
	conn *pgx.Conn
}

// stopped is how a run stands that a person paused or cancelled.
type stopped struct{ runs.Status }

func (s *stopped) Error() string { return string(s.Status) }

// Carry is a runs.Carry.
func (r *Runner) Carry(ctx context.Context, h *runs.Hold, log *slog.Logger) (runs.Status, error) {
	w := &work{Runner: r, hold: h, log: log}
	asked := json.NewDecoder(bytes.NewReader(h.Asked))
	asked.DisallowUnknownFields()
	if err := asked.Decode(&w.order); err != nil {
		return "", runs.Refuse(fmt.Errorf("read what was asked for: %w", err))
	}
	if w.order.At.IsZero() {
		w.order.At = h.MadeAt.Time
	}
	if err := w.order.Check(); err != nil {
		return "", runs.Refuse(err)
	}
	if w.folder = cmp.Or(w.order.Folder, w.Folder); w.order.Export && w.folder == "" {
		return "", runs.Refuse(errors.New("an export before the drop is asked for, and the processor that took the run has no retention.export: give every processor the setting and the folder"))
	}
	session, err := r.Keeper.Acquire(ctx)
	if err != nil {
		return "", fmt.Errorf("connect for maintenance: %w", err)
	}
	defer session.Release()
	w.conn = session.Conn()
	if err := w.alone(ctx); err != nil {
		return "", err
	}
	defer w.unlock(ctx)
	if h.Detail != "" { // of somebody who ended while waiting
		if err := h.Note(ctx, ""); err != nil {
			return "", err
		}
	}
	err = w.all(ctx)
	var stop *stopped
	if errors.As(err, &stop) {
		return stop.Status, nil
	}
	if err != nil {
		return "", err
	}
	return runs.Running, nil
}

const (
	aloneSQL  = `SELECT pg_try_advisory_lock(hashtextextended('postern.retention', 0))`
	unlockSQL = `SELECT pg_advisory_unlock(hashtextextended('postern.retention', 0))`
)

// alone takes the lock; whoever lost this run may still have it for a moment.
func (w *work) alone(ctx context.Context) error {
	var got bool
	if err := w.conn.QueryRow(ctx, aloneSQL).Scan(&got); err != nil {
		return fmt.Errorf("take the lock of retention: %w", err)
	}
	if !got {
		return errors.New("another process is still at retention; tried again")
	}
	return nil
}

// unlock gives the lock back; a session that is lost has none.
func (w *work) unlock(ctx context.Context) {
	ctx, cancel := lifecycle.WithTimeout(context.WithoutCancel(ctx), "give the lock of retention back", 2*time.Second)
	defer cancel()
	_, _ = w.conn.Exec(ctx, unlockSQL)
}

// all drops what may be dropped, and then forgets what is past its age. What had to stay is an error of the run, which has done the rest.
func (w *work) all(ctx context.Context) error {
	parts, err := partitions(ctx, w.conn)
	if err != nil {
		return err
	}
	w.order.due(parts)
	if err := w.markVanished(ctx); err != nil {
		return err
	}
	if err := w.finalise(ctx, parts); err != nil {
		return err
	}
	var kept []string
	for i := range parts {
		p := &parts[i]
		if !p.Due {
			continue
		}
		why, err := w.retire(ctx, p)
		if err != nil {
			return err
		}
		if why != "" {
			w.log.Warn("partition kept", "partition", p.Name, "reason", why)
			kept = append(kept, p.Name+": "+why)
		}
	}
	if err := w.forget(ctx); err != nil {
		return err
	}
	w.hold.Counts[CountKept] = int64(len(kept))
	if err := w.advance(ctx); err != nil {
		return err
	}
	if len(kept) > 0 {
		return runs.Refuse(fmt.Errorf("%d partitions had to stay, all else is done; %s", len(kept), strings.Join(kept, "; ")))
	}
	return nil
}

// advance keeps the counts, and stops where a person wants that.
func (w *work) advance(ctx context.Context) error {
	status, err := w.hold.Advance(ctx, w.hold.Cursor)
	if err != nil {
		return err
	}
	if status != runs.Running {
		return &stopped{status}
	}
	return context.Cause(ctx)
}

// at tells of a step before it is taken.
func (r *Runner) at(name string) error {
	if r.step == nil {
		return nil
	}
	return r.step(name)
}

func noRows(err error) bool { return errors.Is(err, pgx.ErrNoRows) }
