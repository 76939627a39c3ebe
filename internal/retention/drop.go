package retention

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/apply"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
)

// dropPartition drops one partition, step by step. reason says why it must stay.
func (w *work) dropPartition(ctx context.Context, p *Partition) (reason string, err error) {
	if reason, err := keptReason(ctx, w.conn, p); reason != "" || err != nil {
		return reason, err
	}
	if p.attached {
		if reason, err := w.prepare(ctx, p); reason != "" || err != nil {
			return reason, err
		}
		// A run that began meanwhile may need the content of the partition.
		if reason, err := keptReason(ctx, w.conn, p); reason != "" || err != nil {
			return reason, err
		}
	}
	if reason, err := w.detach(ctx, p); reason != "" || err != nil {
		return reason, err
	}
	return "", w.drop(ctx, p)
}

const (
	beginDropSQL = `
INSERT INTO dropped_partitions AS r (name, id_from, id_to, retained_to, events, bytes, run, updated_at)
	VALUES ($1, $2::bigint, $3, $2::bigint - 1, 0, $4, $5, clock_now())
ON CONFLICT (name) DO UPDATE SET run = excluded.run, bytes = excluded.bytes, updated_at = excluded.updated_at
WHERE r.dropped_at IS NULL`

	progressSQL = `SELECT retained_to, events FROM dropped_partitions WHERE name = $1 AND dropped_at IS NULL`

	advanceProgressSQL = `UPDATE dropped_partitions SET retained_to = $3, events = events + $4, updated_at = clock_now()
		WHERE name = $1
		AND retained_to = $2`

	restartSQL = `UPDATE dropped_partitions SET retained_to = id_from - 1, events = 0, ready_at = NULL,
		updated_at = clock_now()
		WHERE name = $1 AND dropped_at IS NULL`

	markPreparedSQL = `UPDATE dropped_partitions SET ready_at = clock_now(), updated_at = clock_now() WHERE name = $1`

	droppedAtSQL = `UPDATE dropped_partitions SET dropped_at = clock_now(), updated_at = clock_now() WHERE name = $1
		AND dropped_at IS NULL AND ready_at IS NOT NULL`
)

// prepare keeps the data that must outlive a partition: it exports the events, if requested, and
// reduces them into the retained objects. The partition is prepared only if as many events were
// reduced as it contains.
func (w *work) prepare(ctx context.Context, p *Partition) (reason string, err error) {
	if err := w.begin(ctx, p); err != nil {
		return "", err
	}
	if p.prepared { // but not dropped then: a run may have applied more of its events since
		if err := w.restart(ctx, p); err != nil {
			return "", err
		}
	}
	if reason, err := w.export(ctx, p); reason != "" || err != nil {
		return reason, err
	}
	for try := range 2 {
		reducedTo, n, err := w.reduce(ctx, p)
		if err != nil {
			var not *apply.NotReducedError
			if errors.As(err, &not) {
				return "it cannot be reduced into the retained objects: " + err.Error(), nil
			}
			return "", err
		}
		if err := w.beforeStep("count"); err != nil {
			return "", err
		}
		var stored int64
		if err := w.conn.QueryRow(ctx, "SELECT count(*) FROM "+pgx.Identifier{p.Name}.Sanitize()).Scan(
			&stored); err != nil {
			return "", fmt.Errorf("count the events of %s: %w", p.Name, err)
		}
		if stored == n {
			break
		}
		if try > 0 {
			return fmt.Sprintf("it contains %d events, and %d are reduced into the retained objects up to %d: "+
				"does another client write to it?", stored, n, reducedTo), nil
		}
		if err := w.restart(ctx, p); err != nil {
			return "", err
		}
	}
	if err := w.beforeStep("prepared"); err != nil {
		return "", err
	}
	if _, err := w.Pool.Exec(ctx, markPreparedSQL, p.Name); err != nil {
		return "", fmt.Errorf("record that %s is prepared: %w", p.Name, err)
	}
	return "", nil
}

// begin records that the drop of the partition has begun.
func (w *work) begin(ctx context.Context, p *Partition) error {
	if err := w.beforeStep("begin"); err != nil {
		return err
	}
	if _, err := w.Pool.Exec(ctx, beginDropSQL, p.Name, p.lo, p.hi, p.Bytes, w.lease.Run.ID); err != nil {
		return fmt.Errorf("begin to drop %s: %w", p.Name, err)
	}
	return nil
}

// restart makes the partition be reduced again from its first event. The retained objects stay as
// they are.
func (w *work) restart(ctx context.Context, p *Partition) error {
	if _, err := w.Pool.Exec(ctx, restartSQL, p.Name); err != nil {
		return fmt.Errorf("restart %s: %w", p.Name, err)
	}
	return nil
}

// reduce reduces the partition's events into the retained objects, from the last position. It
// returns the position and the number of events that are reduced in all.
func (w *work) reduce(ctx context.Context, p *Partition) (to, n int64, err error) {
	if err := w.Pool.QueryRow(ctx, progressSQL, p.Name).Scan(&to, &n); err != nil {
		return 0, 0, fmt.Errorf("read how far %s is reduced: %w", p.Name, err)
	}
	for {
		ids, err := events.IDsAfter(ctx, w.Pool, to, p.hi-1, w.chunk())
		if err != nil || len(ids) == 0 {
			return to, n, err
		}
		if err := w.beforeStep("reduce"); err != nil {
			return to, n, err
		}
		copied, err := w.Applier.Reduce(ctx, ids)
		if err != nil {
			return to, n, err
		}
		for _, source := range copied {
			w.log.Warn("a source is not in this processor's configuration: its objects are kept as they are in "+
				"the mirror now", "source", source, "partition", p.Name)
		}
		if err := w.beforeStep("reduced"); err != nil {
			return to, n, err
		}
		last := ids[len(ids)-1]
		moved, err := w.Pool.Exec(ctx, advanceProgressSQL, p.Name, to, last, len(ids))
		if err != nil || moved.RowsAffected() == 0 {
			return to, n, errors.Join(err, fmt.Errorf("record how far %s is reduced: another process reduces it too",
				p.Name))
		}
		to, n = last, n+int64(len(ids))
		w.lease.Counts[CountEvents] += int64(len(ids))
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

// finishDetach finishes interrupted detachings of partitions, whatever their age. Readers do not
// find such a partition in the log, and no other partition can be detached before it. A partition
// that retention did not begin to detach stays as a separate table.
func (w *work) finishDetach(ctx context.Context, parts []Partition) error {
	for i := range parts {
		p := &parts[i]
		if !p.pending {
			continue
		}
		if err := w.beforeStep("finalise"); err != nil {
			return err
		}
		if err := w.execWaiting(ctx, p, "ALTER TABLE events DETACH PARTITION %s FINALIZE"); err != nil {
			return fmt.Errorf("finish detaching %s: %w", p.Name, err)
		}
		if p.attached, p.pending = false, false; !p.prepared {
			w.log.Warn("an interrupted detaching of a partition is finished; it stays as a table, because "+
				"retention had not begun to drop it", "partition", p.Name)
		}
	}
	return nil
}

// notInState is PostgreSQL's error for a partition whose state has changed, and for a second
// detaching at the same time.
const notInState = "55000"

// detach detaches the partition concurrently with appends and readers: it waits for open
// transactions and does not block new ones. The next run finishes an interrupted detaching. reason
// says why the partition must stay.
func (w *work) detach(ctx context.Context, p *Partition) (reason string, err error) {
	if !p.attached {
		return "", nil
	}
	if err := w.beforeStep("detach"); err != nil {
		return "", err
	}
	err = w.execWaiting(ctx, p, "ALTER TABLE events DETACH PARTITION %s CONCURRENTLY")
	switch {
	case postgres.Code(err) == notInState:
		return fmt.Sprintf("it cannot be detached now: %v; the next run tries again", err), nil
	case err != nil:
		return "", fmt.Errorf("detach %s: %w", p.Name, err)
	}
	return "", nil
}

// drop drops the table of the partition.
func (w *work) drop(ctx context.Context, p *Partition) error {
	if err := w.beforeStep("drop"); err != nil {
		return err
	}
	if err := w.execWaiting(ctx, p, "DROP TABLE IF EXISTS %s"); err != nil {
		return fmt.Errorf("drop %s: %w", p.Name, err)
	}
	if err := w.beforeStep("dropped"); err != nil {
		return err
	}
	if _, err := w.Pool.Exec(ctx, droppedAtSQL, p.Name); err != nil {
		return fmt.Errorf("record that %s is dropped: %w", p.Name, err)
	}
	w.log.Info("partition dropped", "partition", p.Name, "bytes", p.Bytes, "from", p.From, "to", p.To)
	w.lease.Counts[CountPartitions]++
	return w.advance(ctx)
}

// vanishedSQL marks partitions whose tables are dropped. A process may end after the drop and
// before it records the drop.
const vanishedSQL = `
UPDATE dropped_partitions r SET dropped_at = clock_now(), updated_at = clock_now()
WHERE r.ready_at IS NOT NULL AND r.dropped_at IS NULL AND NOT EXISTS (SELECT FROM pg_class c
	WHERE c.relnamespace = 'postern'::regnamespace AND c.relname = r.name)`

func (w *work) markVanished(ctx context.Context) error {
	found, err := w.Pool.Exec(ctx, vanishedSQL)
	if err != nil {
		return fmt.Errorf("record dropped partitions: %w", err)
	}
	w.lease.Counts[CountPartitions] += found.RowsAffected()
	return nil
}
