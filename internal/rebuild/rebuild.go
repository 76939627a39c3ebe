// Package rebuild makes the mirror of a source anew from the log: staged beside the live objects, which stay as they are meanwhile, compared
// with them, and then put in their place in one transaction, or thrown away.
package rebuild

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/versioning"
)

// Job is what rebuilds are called in the ledger of runs.
const Job = "rebuild"

// Order is what a rebuild is asked to do.
type Order struct {
	// Source is the number of the source whose objects are made anew.
	Source int32 `json:"source"`
	// Type is the type of the objects, "" for all.
	Type string `json:"type"`
	// Swap puts them in the place of the live ones as soon as they are staged. It may be said later: until then the run rests, paused.
	Swap bool `json:"swap"`
	// Seen: a person has the swap done although events that were applied live are dead in the rebuild.
	Seen bool `json:"seen,omitzero"`
	// Words are what was asked as the person wrote it, by parameter.
	Words map[string]string `json:"words"`
}

// Settings are a rebuild's numbers; tests shorten them.
type Settings struct {
	// Chunk bounds the events between two checkpoints, and Rows the rows that one statement copies or clears.
	Chunk, Rows int
	// Keys is how many objects may differ for a swap to look at them alone; of more it compares all again.
	Keys int
	// Small is how many events may be left to catch up with while live events are held up.
	Small int64
	// CatchUp bounds the time of that, and Lock how long the swap waits for the batches under way, which holds up those that come.
	CatchUp, Lock time.Duration
	// Swap bounds the whole transaction of a swap.
	Swap time.Duration
	// Again is the pause before events that failed are tried again, and between two tries of a swap.
	Again time.Duration
}

// DefaultSettings are the shipped ones.
var DefaultSettings = Settings{Chunk: 2000, Rows: 5000, Keys: 50_000, Small: 1000, CatchUp: 10 * time.Second, Lock: 10 * time.Second, Swap: 30 * time.Minute,
	Again: time.Second}

// Runner carries out rebuilds.
type Runner struct {
	// Pool is connected as postern_processor.
	Pool      *pgxpool.Pool
	Processor *processor.Processor
	Settings  Settings
	// step is told of each step before it is taken, and may end it; only tests set it.
	step func(name string) error
}

// at tells of a step before it is taken.
func (r *Runner) at(name string) error {
	if r.step == nil {
		return nil
	}
	return r.step(name)
}

// work is one rebuild in this process's hands.
type work struct {
	*Runner
	hold  *runs.Hold
	order Order
	log   *slog.Logger
	// alone: the first events are tried one by one, since the last holder may have ended by one of them.
	alone bool
	// differing are the objects that a swap must look at; nil: nobody has compared yet.
	differing *keySet
	// doubtful is what a swap looks at again under its lock.
	doubtful doubts
}

// Carry stages what the run has not staged yet, then swaps where that is wanted and else lets the run rest; it is a runs.Carry.
func (r *Runner) Carry(ctx context.Context, h *runs.Hold, log *slog.Logger) (runs.Status, error) {
	w := &work{Runner: r, hold: h, log: log, alone: h.Abandoned}
	if err := w.read(); err != nil {
		return "", err
	}
	status, err := w.begin(ctx)
	for err == nil && status == runs.Running {
		if status, err = w.catchUp(ctx); err != nil || status != runs.Running {
			break
		}
		if w.order.Swap {
			return w.swap(ctx)
		}
		if status, err = h.Rest(ctx); err == nil && status == runs.Running {
			err = w.read()
		}
	}
	return status, err
}

// read reads what is asked for now.
func (w *work) read() error {
	w.order = Order{}
	asked := json.NewDecoder(bytes.NewReader(w.hold.Asked))
	asked.DisallowUnknownFields() // an order of a later release may mean something else by what is unknown here
	if err := asked.Decode(&w.order); err != nil {
		return runs.Refuse(fmt.Errorf("read what was asked for: %w", err))
	}
	return w.known()
}

// known refuses where the source is not configured here, so that its events cannot be read.
func (w *work) known() error {
	if name, ok := w.Processor.Knows(w.order.Source); !ok {
		return runs.Refuse(fmt.Errorf("source %q is not in the configuration of the processor that took the run: add it there and start the rebuild again", name))
	}
	return nil
}

// begin clears what another rebuild left, remembers where the log began, and copies the bases of what it no longer holds. Ended in the
// middle it is done again.
func (w *work) begin(ctx context.Context) (runs.Status, error) {
	if w.hold.Cursor == 0 {
		if err := w.clear(ctx); err != nil {
			return "", err
		}
		oldest, err := events.Oldest(ctx, w.Pool)
		if err != nil {
			return "", err
		}
		if status, err := w.hold.Advance(ctx, max(oldest-1, 1)); err != nil || status != runs.Running {
			return status, err
		}
	}
	if w.hold.Bound == 0 {
		if err := w.copyBases(ctx); err != nil {
			return "", err
		}
	}
	return runs.Running, nil
}

// catchUp walks the log up to a bound, and on to another, until what had come meanwhile was little.
func (w *work) catchUp(ctx context.Context) (runs.Status, error) {
	for {
		before := w.hold.Counts[Processed]
		if status, err := w.walk(ctx); err != nil || status != runs.Running {
			return status, err
		}
		if w.hold.Counts[Processed]-before <= w.Settings.Small {
			return runs.Running, nil
		}
	}
}

// walk stages the log up to the run's bound, or to a new one where that is reached.
func (w *work) walk(ctx context.Context) (runs.Status, error) {
	h := w.hold
	if h.Cursor >= h.Bound {
		bound, err := events.FreezeBound(ctx, w.Pool)
		if err != nil {
			return "", err
		}
		if err := h.Extend(ctx, bound); err != nil {
			return "", err
		}
	}
	match := func(ctx context.Context, pool *pgxpool.Pool, after, bound int64) ([]int64, int64, error) {
		return events.Match(ctx, pool, &events.Filter{Source: w.order.Source}, after, bound)
	}
	way := processor.Walk{Match: match, After: h.Cursor, Bound: h.Bound, Chunk: w.Settings.Chunk}
	for c, err := range w.Processor.Ahead(ctx, way) {
		if err != nil {
			return "", err
		}
		if status, err := w.step(ctx, c); err != nil || status != runs.Running {
			return status, err
		}
		w.alone = w.alone && len(c.IDs) == 0
	}
	return runs.Running, nil
}

// step stages some events and moves the checkpoint behind them.
func (w *work) step(ctx context.Context, c *processor.Chunk) (runs.Status, error) {
	if len(c.IDs) > 0 {
		counts, status, err := w.apply(ctx, w.target(), c, w.alone)
		if err != nil || status != runs.Running {
			return status, err
		}
		for status, n := range counts {
			w.hold.Counts[string(status)] += n
			w.hold.Counts[Processed] += n
		}
	}
	return w.advance(ctx, c.From, c.End)
}

// errShortened: the log has lost events that were not staged yet.
var errShortened = errors.New("partitions of the log were dropped before the rebuild had read them: start the rebuild again, it begins at what is kept of them")

// goneSQL finds a partition between two ids that left the log although its events were not in the bases yet when the run began.
const goneSQL = `
SELECT EXISTS (SELECT FROM retired d JOIN runs r ON r.run = $1 WHERE d.ready_at >= r.started_at AND d.hi > $2::bigint + 1 AND d.lo <= $3 AND (d.dropped_at IS NOT NULL
  OR NOT EXISTS (SELECT FROM pg_inherits i JOIN pg_class p ON p.oid = i.inhrelid WHERE i.inhparent = 'events'::regclass AND NOT i.inhdetachpending AND p.relname = d.name)))`

// advance moves the checkpoint, unless what lies between may have been dropped before it was read.
func (w *work) advance(ctx context.Context, after, cursor int64) (runs.Status, error) {
	oldest, err := events.Oldest(ctx, w.Pool)
	if err != nil {
		return "", err
	}
	gone := oldest-1 > after
	if !gone {
		if err := w.Pool.QueryRow(ctx, goneSQL, w.hold.Run.Run, after, cursor).Scan(&gone); err != nil {
			return "", fmt.Errorf("look for dropped partitions: %w", err)
		}
	}
	if gone {
		return "", runs.Refuse(errShortened)
	}
	return w.hold.Advance(ctx, cursor)
}

// target is where and how events are staged.
func (w *work) target() processor.Target {
	return processor.Target{Run: w.hold.Run.Run, Into: versioning.Staged, Type: w.order.Type, Guard: w.hold.Guard, Wrote: w.differing.add, Log: w.log}
}

// Processed is the count of all events that have an outcome in the run.
const Processed = "processed"

// Statements are all SQL statements of this package, for the test that prepares each.
func Statements() []string {
	return append(swapStatements(), brokenSQL, goneSQL, dueSQL, missedSQL, missedAmongSQL, deadSQL, deadAmongSQL, doubtSQL, sinceSQL, stampSQL, sourceLockSQL, clearSQL, basesSQL, aloneSQL, wantSQL, leftSQL, nextSQL, comparedSQL, windowSQL,
		detailSQL, decidedSQL, sourceSQL, openSQL)
}
