package retention

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/redaction"
)

// Partition is one day of the log.
type Partition struct {
	Name string `json:"name"`
	// From is inclusive, To exclusive.
	From events.Instant `json:"from"`
	To   events.Instant `json:"to"`
	// Events is PostgreSQL's estimate. Bytes includes indexes.
	Events int64 `json:"events"`
	Bytes  int64 `json:"bytes"`
	// Counted is false if PostgreSQL has no estimate yet; Events is 0 then.
	Counted bool `json:"-"`
	// Due says that all of it is older than the policy keeps.
	Due bool `json:"due"`
	// KeptReason says why a due partition is not dropped, "" if nothing prevents it.
	KeptReason string `json:"kept,omitempty"`
	// DropNote describes when the partition is dropped.
	DropNote string `json:"goes"`
	// Dead is the number of its dead events, which an operator has given up or must examine before
	// the drop. It is set only if the partition is due.
	Dead int64 `json:"dead,omitempty"`

	lo, hi int64 // ids, hi exclusive
	// attached says that it belongs to the log; pending that its detaching was interrupted.
	attached, pending bool
	// prepared says that all data that must outlive the partition is kept. recreated says that
	// retention has dropped it and that a table of its name exists again, because the clock went
	// back or an operator restored it. Retention leaves such a table.
	prepared, recreated bool
}

// querier is a connection or a pool.
type querier interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// partitionsSQL lists the tables of the log's days. A detached table counts only if retention
// detached it, because a table that an operator detached belongs to the operator. A dropped
// partition may exist again.
const partitionsSQL = `
SELECT p.relname, p.id_from, p.id_to, p.events, p.events > 0 OR coalesce(pg_relation_size(p.oid), 0) = 0,
	coalesce(pg_total_relation_size(p.oid), 0), i.inhrelid IS NOT NULL,
	coalesce(i.inhdetachpending, false),
  r.ready_at IS NOT NULL AND r.dropped_at IS NULL, r.dropped_at IS NOT NULL
FROM (SELECT c.oid, c.relname::text, (extract(epoch FROM to_date(substr(c.relname, 8), 'YYYYMMDD')) * 1000)::bigint <<
	20 AS id_from,
    (extract(epoch FROM to_date(substr(c.relname, 8), 'YYYYMMDD') + 1) * 1000)::bigint << 20 AS id_to,
    	greatest(c.reltuples, 0)::bigint AS events
  FROM pg_class c WHERE c.relnamespace = 'postern'::regnamespace AND c.relkind = 'r'
  	AND c.relname ~ '^events_[0-9]{8}$') p
LEFT JOIN pg_inherits i ON i.inhrelid = p.oid AND i.inhparent = 'events'::regclass
LEFT JOIN dropped_partitions r ON r.name = p.relname
WHERE i.inhrelid IS NOT NULL OR r.ready_at IS NOT NULL ORDER BY p.id_from`

// partitions returns the partitions of the log, oldest first.
func partitions(ctx context.Context, db querier) ([]Partition, error) {
	parts, err := postgres.Collect(ctx, db, func(row pgx.CollectableRow) (Partition, error) {
		var p Partition
		err := row.Scan(&p.Name, &p.lo, &p.hi, &p.Events, &p.Counted, &p.Bytes, &p.attached, &p.pending, &p.prepared,
			&p.recreated)
		p.From.Time, p.To.Time = events.Time(p.lo), events.Time(p.hi)
		return p, err
	}, partitionsSQL)
	if err != nil {
		return nil, fmt.Errorf("list partitions: %w", err)
	}
	return parts, nil
}

// markDue marks the partitions that are past their age, and those whose drop has begun.
func (o *Params) markDue(parts []Partition) {
	before := o.cutoff(o.Bodies)
	for i := range parts {
		p := &parts[i]
		invisible := !p.attached || p.pending // readers do not find it any more
		p.Due = !p.recreated && (invisible && p.prepared || !invisible && !before.IsZero() && !p.To.After(before))
	}
}

const (
	// unprocessedSQL finds events of a partition above the republisher's cursor. Every event below
	// the cursor has an outcome.
	unprocessedSQL = `SELECT id FROM events WHERE id >= greatest($1, 1 + coalesce((SELECT c.cursor FROM checkpoints c
		WHERE c.job = 'republisher' AND c.run = 0), 0)) AND id < $2
ORDER BY id LIMIT 1`

	failedSQL = `SELECT count(*), coalesce(min(event_id), 0) FROM outcomes WHERE status = 'failed' AND run = 0
		AND event_id >= $1 AND event_id < $2`

	deadSQL = `SELECT count(*) FROM outcomes WHERE status = 'dead' AND run = 0 AND event_id >= $1 AND event_id < $2`

	// readingRunSQL finds a run that still has to read the partition. A rebuild goes on from its
	// bound to a newer one, so it still reads events above its bound.
	readingRunSQL = `SELECT r.run, r.job, r.status FROM runs r LEFT JOIN checkpoints c ON c.job = r.job
		AND c.run = r.run
WHERE r.ended_at IS NULL AND r.job <> 'retention' AND coalesce(c.cursor, 0) < $2::bigint - 1 AND (r.job = 'rebuild'
	OR coalesce(r.bound, $1::bigint) >= $1::bigint)
ORDER BY r.run LIMIT 1`
)

// keptReason returns why a partition must stay for now, "" if it may be dropped. It stays if it
// contains unfinished events, if a run must still read it, or if a sender's redaction request in it
// is unanswered.
func keptReason(ctx context.Context, db querier, p *Partition) (string, error) {
	// readers do not find it any more, and no other partition can be detached before this
	// detaching is finished
	if !p.attached || p.pending {
		return "", nil
	}
	var event, n, run int64
	var job, status string
	switch err := db.QueryRow(ctx, unprocessedSQL, p.lo, p.hi).Scan(&event); {
	case err == nil:
		return fmt.Sprintf("the republisher has not passed event %d yet: the event has no outcome, or no pass has "+
			"run; is a processor running?", event), nil
	case !noRows(err):
		return "", fmt.Errorf("find unfinished events in %s: %w", p.Name, err)
	}
	if err := db.QueryRow(ctx, failedSQL, p.lo, p.hi).Scan(&n, &event); err != nil {
		return "", fmt.Errorf("find failed events in %s: %w", p.Name, err)
	}
	if n > 0 {
		return fmt.Sprintf("%d failed events are still to be retried, the first of them %d", n, event), nil
	}
	switch err := db.QueryRow(ctx, readingRunSQL, p.lo, p.hi).Scan(&run, &job, &status); {
	case err == nil:
		return fmt.Sprintf("run %d (%s, %s) must still read it: let the run end, or cancel it with "+
			"postern runs cancel %d", run, job, status, run), nil
	case !noRows(err):
		return "", fmt.Errorf("find runs over %s: %w", p.Name, err)
	}
	switch n, first, err := redaction.CountOpenRequests(ctx, db, p.lo, p.hi); {
	case err != nil:
		return "", fmt.Errorf("find senders' requests in %s: %w", p.Name, err)
	case n > 0:
		return fmt.Sprintf("it has senders' requests without a response: %d, the first of them event %d: see "+
			"postern redact --from-event %d --preview", n, first, first), nil
	}
	return "", nil
}
