package retention

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/redaction"
)

// Partition is a day of the log.
type Partition struct {
	Name string `json:"name"`
	// From is inclusive, To exclusive.
	From events.Instant `json:"from"`
	To   events.Instant `json:"to"`
	// Events is PostgreSQL's estimate, Bytes with indexes.
	Events int64 `json:"events"`
	Bytes  int64 `json:"bytes"`
	// Due: all of it is older than the policy keeps.
	Due bool `json:"due"`
	// Kept says why it is not dropped though it is due, "" where nothing stands in the way.
	Kept string `json:"kept,omitempty"`
	// Goes says in words when it goes.
	Goes string `json:"goes"`
	// Dead is how many of its events are dead, which a person has given up or must look at before they go; only where it is due.
	Dead int64 `json:"dead,omitempty"`

	lo, hi int64 // ids, hi exclusive
	// attached: it belongs to the log; pending: its detaching was interrupted.
	attached, pending bool
	// ready: all that must outlive it was kept. again: it was dropped before, and was made again since, by a clock that went back; what it held then was kept.
	ready, again bool
}

// querier is a connection or a pool.
type querier interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// partitionsSQL lists the tables of the log's days. One that is not attached counts only if retention detached it: what a person took out of the log
// is theirs. One that was dropped may be there again.
const partitionsSQL = `
SELECT p.relname, p.lo, p.hi, p.events, coalesce(pg_total_relation_size(p.oid), 0), i.inhrelid IS NOT NULL, coalesce(i.inhdetachpending, false),
  r.ready_at IS NOT NULL AND r.dropped_at IS NULL, r.dropped_at IS NOT NULL
FROM (SELECT c.oid, c.relname::text, (extract(epoch FROM to_date(substr(c.relname, 8), 'YYYYMMDD')) * 1000)::bigint << 20 AS lo,
    (extract(epoch FROM to_date(substr(c.relname, 8), 'YYYYMMDD') + 1) * 1000)::bigint << 20 AS hi, greatest(c.reltuples, 0)::bigint AS events
  FROM pg_class c WHERE c.relnamespace = 'postern'::regnamespace AND c.relkind = 'r' AND c.relname ~ '^events_[0-9]{8}$') p
LEFT JOIN pg_inherits i ON i.inhrelid = p.oid AND i.inhparent = 'events'::regclass
LEFT JOIN retired r ON r.name = p.relname
WHERE i.inhrelid IS NOT NULL OR r.ready_at IS NOT NULL ORDER BY p.lo`

// partitions are those of the log, the oldest first.
func partitions(ctx context.Context, db querier) ([]Partition, error) {
	rows, err := db.Query(ctx, partitionsSQL)
	if err != nil {
		return nil, fmt.Errorf("list partitions: %w", err)
	}
	parts, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (Partition, error) {
		var p Partition
		err := row.Scan(&p.Name, &p.lo, &p.hi, &p.Events, &p.Bytes, &p.attached, &p.pending, &p.ready, &p.again)
		p.From.Time, p.To.Time = events.Time(p.lo), events.Time(p.hi)
		return p, err
	})
	if err != nil {
		return nil, fmt.Errorf("list partitions: %w", err)
	}
	return parts, nil
}

// due marks the partitions that are past an age.
func (o *Order) due(parts []Partition) {
	before := o.before(o.Bodies)
	for i := range parts {
		p := &parts[i]
		gone := !p.attached || p.pending // readers find it no more
		p.Due = gone && (p.ready || p.again) || !gone && !before.IsZero() && !p.To.After(before)
	}
}

const (
	cameSQL = `SELECT count(*) FROM events WHERE id >= $1 AND id < $2`

	// unauditedSQL: events of a partition above the auditor's checkpoint, below which each has an outcome.
	unauditedSQL = `SELECT id FROM events WHERE id >= greatest($1, 1 + coalesce((SELECT c.cursor FROM checkpoints c WHERE c.job = 'auditor' AND c.run = 0), 0)) AND id < $2
ORDER BY id LIMIT 1`

	failedSQL = `SELECT count(*), coalesce(min(event_id), 0) FROM outcomes WHERE status = 'failed' AND run = 0 AND event_id >= $1 AND event_id < $2`

	deadSQL = `SELECT count(*) FROM outcomes WHERE status = 'dead' AND run = 0 AND event_id >= $1 AND event_id < $2`

	// readingSQL: a rebuild goes on from its bound to another, so what lies above it is still to be read.
	readingSQL = `SELECT r.run, r.job, r.status FROM runs r LEFT JOIN checkpoints c ON c.job = r.job AND c.run = r.run
WHERE r.ended_at IS NULL AND r.job <> 'retention' AND coalesce(c.cursor, 0) < $2::bigint - 1 AND (r.job = 'rebuild' OR coalesce(r.bound, $1::bigint) >= $1::bigint)
ORDER BY r.run LIMIT 1`
)

// held says why a partition must stay for now, "" where nothing speaks for that: it holds unfinished events, a run is still to read it, or
// somebody's request in it is not answered.
func held(ctx context.Context, db querier, p *Partition) (string, error) {
	if !p.attached || p.pending { // nobody finds it any more, and none can be detached before its detaching is finished
		return "", nil
	}
	if why, err := refilled(ctx, db, p); why != "" || err != nil {
		return why, err
	}
	var event, n, run int64
	var job, status string
	switch err := db.QueryRow(ctx, unauditedSQL, p.lo, p.hi).Scan(&event); {
	case err == nil:
		return fmt.Sprintf("the auditor has not passed event %d yet: it has no outcome, or nobody has looked; is a processor running?", event), nil
	case !noRows(err):
		return "", fmt.Errorf("look for unfinished events in %s: %w", p.Name, err)
	}
	if err := db.QueryRow(ctx, failedSQL, p.lo, p.hi).Scan(&n, &event); err != nil {
		return "", fmt.Errorf("look for failed events in %s: %w", p.Name, err)
	}
	if n > 0 {
		return fmt.Sprintf("%d failed events are still to be tried again, the first of them %d", n, event), nil
	}
	switch err := db.QueryRow(ctx, readingSQL, p.lo, p.hi).Scan(&run, &job, &status); {
	case err == nil:
		return fmt.Sprintf("run %d (%s, %s) has yet to read it: let it end, or cancel it with postern runs cancel %d", run, job, status, run), nil
	case !noRows(err):
		return "", fmt.Errorf("look for runs over %s: %w", p.Name, err)
	}
	switch n, first, err := redaction.Unanswered(ctx, db, p.lo, p.hi); {
	case err != nil:
		return "", fmt.Errorf("look for senders' requests in %s: %w", p.Name, err)
	case n > 0:
		return fmt.Sprintf("senders' requests in it that nobody has answered: %d, the first of them event %d: see postern redact --from-event %d --preview", n, first, first), nil
	}
	return "", nil
}

// refilled says why a partition that was made again after its drop must stay: it holds events, which it does not where the floor that ids are made above has held. What its day held before is in the bases.
func refilled(ctx context.Context, db querier, p *Partition) (string, error) {
	if !p.again {
		return "", nil
	}
	sql, args := cameSQL, []any{p.lo, p.hi}
	if !p.attached {
		sql, args = "SELECT count(*) FROM "+pgx.Identifier{p.Name}.Sanitize(), nil
	}
	var n int64
	if err := db.QueryRow(ctx, sql, args...).Scan(&n); err != nil {
		return "", fmt.Errorf("count the events of %s: %w", p.Name, err)
	}
	switch {
	case n == 0:
		return "", nil
	case p.attached:
		return fmt.Sprintf("retention dropped this day before, and %d events have come into it since, when a clock had gone back: they stay until somebody says that they are to be retired like any others, which is DELETE FROM postern.retired WHERE name = '%s' as its owner; "+
			"note the file that the row names first, and move it away", n, p.Name), nil
	}
	return fmt.Sprintf("retention dropped this day before, and this table is no part of the log and holds %d events: attach it again, or give it another name", n), nil
}
