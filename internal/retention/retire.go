package retention

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/processor"
)

// retire drops one partition, step by step; why says what keeps it.
func (w *work) retire(ctx context.Context, p *Partition) (why string, err error) {
	if why, err := held(ctx, w.conn, p); why != "" || err != nil {
		return why, err
	}
	if p.attached && !p.again {
		if why, err := w.prepare(ctx, p); why != "" || err != nil {
			return why, err
		}
		// A run that began meanwhile may count on what the partition holds.
		if why, err := held(ctx, w.conn, p); why != "" || err != nil {
			return why, err
		}
	}
	if why, err := w.detach(ctx, p); why != "" || err != nil {
		return why, err
	}
	p.attached = false
	if why, err := refilled(ctx, w.conn, p); why != "" || err != nil { // what came while it was detached
		return why, err
	}
	return w.drop(ctx, p)
}

const (
	beginSQL = `
INSERT INTO retired AS r (name, lo, hi, folded_to, events, bytes, run, updated_at) VALUES ($1, $2::bigint, $3, $2::bigint - 1, 0, $4, $5, clock_now())
ON CONFLICT (name) DO UPDATE SET run = excluded.run, bytes = excluded.bytes, updated_at = excluded.updated_at
WHERE r.dropped_at IS NULL`

	placeSQL = `SELECT folded_to, events FROM retired WHERE name = $1 AND dropped_at IS NULL`

	foldedSQL = `UPDATE retired SET folded_to = $3, events = events + $4, updated_at = clock_now() WHERE name = $1 AND folded_to = $2`

	againSQL = `UPDATE retired SET folded_to = lo - 1, events = 0, ready_at = NULL, updated_at = clock_now() WHERE name = $1 AND dropped_at IS NULL`

	readySQL = `UPDATE retired SET ready_at = clock_now(), updated_at = clock_now() WHERE name = $1`

	droppedAtSQL = `UPDATE retired SET dropped_at = clock_now(), updated_at = clock_now() WHERE name = $1 AND dropped_at IS NULL AND ready_at IS NOT NULL`
)

// prepare keeps what must outlive a partition: its events, in a file where that is wanted, and folded into the bases. Only where these are as many as the partition holds is it ready.
func (w *work) prepare(ctx context.Context, p *Partition) (why string, err error) {
	if err := w.begin(ctx, p); err != nil {
		return "", err
	}
	if p.ready { // and was kept all the same: a run may have applied more of it since
		if err := w.again(ctx, p); err != nil {
			return "", err
		}
	}
	if why, err := w.export(ctx, p); why != "" || err != nil {
		return why, err
	}
	for try := range 2 {
		folded, n, err := w.fold(ctx, p)
		if err != nil {
			var not *processor.UnfoldedError
			if errors.As(err, &not) {
				return "it cannot be kept as a base: " + err.Error(), nil
			}
			return "", err
		}
		if err := w.at("count"); err != nil {
			return "", err
		}
		var stored int64
		if err := w.conn.QueryRow(ctx, "SELECT count(*) FROM "+pgx.Identifier{p.Name}.Sanitize()).Scan(&stored); err != nil {
			return "", fmt.Errorf("count the events of %s: %w", p.Name, err)
		}
		if stored == n {
			break
		}
		if try > 0 {
			return fmt.Sprintf("it holds %d events, and %d are in the bases up to %d: does something else write into it?", stored, n, folded), nil
		}
		if err := w.again(ctx, p); err != nil {
			return "", err
		}
	}
	if err := w.at("ready"); err != nil {
		return "", err
	}
	if _, err := w.Pool.Exec(ctx, readySQL, p.Name); err != nil {
		return "", fmt.Errorf("note that %s is ready: %w", p.Name, err)
	}
	return "", nil
}

// begin notes that the partition is to go.
func (w *work) begin(ctx context.Context, p *Partition) error {
	if err := w.at("begin"); err != nil {
		return err
	}
	if _, err := w.Pool.Exec(ctx, beginSQL, p.Name, p.lo, p.hi, p.Bytes, w.hold.Run.Run); err != nil {
		return fmt.Errorf("begin to retire %s: %w", p.Name, err)
	}
	return nil
}

// again has the partition folded from its first event on; what the bases hold of it already stays as it is.
func (w *work) again(ctx context.Context, p *Partition) error {
	if _, err := w.Pool.Exec(ctx, againSQL, p.Name); err != nil {
		return fmt.Errorf("begin %s again: %w", p.Name, err)
	}
	return nil
}

// fold joins the partition's events into the bases, from where it was left, and returns how far and how many that are in all.
func (w *work) fold(ctx context.Context, p *Partition) (to, n int64, err error) {
	if err := w.Pool.QueryRow(ctx, placeSQL, p.Name).Scan(&to, &n); err != nil {
		return 0, 0, fmt.Errorf("see how far %s is in the bases: %w", p.Name, err)
	}
	for {
		ids, err := events.After(ctx, w.Pool, to, p.hi-1, w.chunk())
		if err != nil || len(ids) == 0 {
			return to, n, err
		}
		if err := w.at("fold"); err != nil {
			return to, n, err
		}
		copied, err := w.Processor.Fold(ctx, ids)
		if err != nil {
			return to, n, err
		}
		for _, source := range copied {
			w.log.Warn("a source is not in this processor's configuration: its objects are kept as the mirror has them now", "source", source, "partition", p.Name)
		}
		if err := w.at("folded"); err != nil {
			return to, n, err
		}
		last := ids[len(ids)-1]
		moved, err := w.Pool.Exec(ctx, foldedSQL, p.Name, to, last, len(ids))
		if err != nil || moved.RowsAffected() == 0 {
			return to, n, errors.Join(err, fmt.Errorf("note how far %s is in the bases: another process is at it", p.Name))
		}
		to, n = last, n+int64(len(ids))
		w.hold.Counts[CountEvents] += int64(len(ids))
		if err := w.advance(ctx); err != nil {
			return to, n, err
		}
	}
}

func (w *work) chunk() int {
	if w.Chunk > 0 {
		return w.Chunk
	}
	return 1000
}

// finalise ends what was interrupted while a partition was being detached, whatever its age and whoever reads on: readers find it in the log no more, and no other
// can be detached before it. One that was not ours to detach stays a table of its own.
func (w *work) finalise(ctx context.Context, parts []Partition) error {
	for i := range parts {
		p := &parts[i]
		if !p.pending {
			continue
		}
		if err := w.at("finalise"); err != nil {
			return err
		}
		if err := w.alter(ctx, p, "ALTER TABLE events DETACH PARTITION %s FINALIZE"); err != nil {
			return fmt.Errorf("finish detaching %s: %w", p.Name, err)
		}
		if p.attached, p.pending = false, false; !p.ready && !p.again {
			w.log.Warn("a partition whose detaching was interrupted is detached; it is left as a table, since retention had not begun with it", "partition", p.Name)
		}
	}
	return nil
}

// notInState is PostgreSQL's error where a partition is not as it was a moment ago, or another is being detached.
const notInState = "55000"

// detach takes the partition out of the log beside appends and readers: it waits for those who are at it and lets new ones pass. What was interrupted is
// finished the next time. why says what keeps it.
func (w *work) detach(ctx context.Context, p *Partition) (why string, err error) {
	if !p.attached {
		return "", nil
	}
	if err := w.at("detach"); err != nil {
		return "", err
	}
	err = w.alter(ctx, p, "ALTER TABLE events DETACH PARTITION %s CONCURRENTLY")
	switch {
	case postgres.Code(err) == notInState:
		return fmt.Sprintf("it cannot be detached now: %v; the next run tries again", err), nil
	case err != nil:
		return "", fmt.Errorf("detach %s: %w", p.Name, err)
	}
	return "", nil
}

// drop ends the partition; why says what keeps it.
func (w *work) drop(ctx context.Context, p *Partition) (why string, err error) {
	if err := w.at("drop"); err != nil {
		return "", err
	}
	if p.again {
		why, err = w.dropEmpty(ctx, p)
	} else {
		err = w.alter(ctx, p, "DROP TABLE IF EXISTS %s")
	}
	switch {
	case err != nil:
		return "", fmt.Errorf("drop %s: %w", p.Name, err)
	case why != "":
		return why, nil
	}
	if err := w.at("dropped"); err != nil {
		return "", err
	}
	if _, err := w.Pool.Exec(ctx, droppedAtSQL, p.Name); err != nil {
		return "", fmt.Errorf("note that %s is dropped: %w", p.Name, err)
	}
	w.log.Info("partition dropped", "partition", p.Name, "bytes", p.Bytes, "from", p.From, "to", p.To)
	w.hold.Counts[CountPartitions]++
	return "", w.advance(ctx)
}

// dropEmpty drops a partition that is there again, if nothing is in it once all who were at it have ended: a person may be restoring it, whose rows nobody else sees yet.
func (w *work) dropEmpty(ctx context.Context, p *Partition) (why string, err error) {
	err = pgx.BeginFunc(ctx, w.conn, func(tx pgx.Tx) error {
		if err := w.alter(ctx, p, "LOCK TABLE %s IN ACCESS EXCLUSIVE MODE"); err != nil {
			return err
		}
		if why, err = refilled(ctx, tx, p); why != "" || err != nil {
			return err
		}
		_, err := tx.Exec(ctx, "DROP TABLE "+pgx.Identifier{p.Name}.Sanitize())
		return err
	})
	return why, err
}

// vanishedSQL: who dropped these ended before saying so.
const vanishedSQL = `
UPDATE retired r SET dropped_at = clock_now(), updated_at = clock_now()
WHERE r.ready_at IS NOT NULL AND r.dropped_at IS NULL AND NOT EXISTS (SELECT FROM pg_class c WHERE c.relnamespace = 'postern'::regnamespace AND c.relname = r.name)`

func (w *work) markVanished(ctx context.Context) error {
	found, err := w.Pool.Exec(ctx, vanishedSQL)
	if err != nil {
		return fmt.Errorf("note what is dropped: %w", err)
	}
	w.hold.Counts[CountPartitions] += found.RowsAffected()
	return nil
}
