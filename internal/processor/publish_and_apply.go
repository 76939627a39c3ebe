package processor

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/versioning"
)

// PublishAndApply publishes events that a job, not a gateway, has just appended. It applies at once
// those that the stream has acknowledged, without waiting for their delivery. The republisher later
// publishes the others, because they have no outcome. It returns the counts of the applied events
// by outcome. An error is an infrastructure failure; the events are in the log.
func (p *Processor) PublishAndApply(ctx context.Context, ids []int64) (map[versioning.Status]int64, error) {
	counts := map[versioning.Status]int64{}
	for len(ids) > 0 {
		some := ids[:min(len(ids), maxPublishBatch)]
		ids = ids[len(some):]
		published, err := p.publishAppended(ctx, some)
		if err != nil {
			return counts, err
		}
		done, err := p.ApplyStored(ctx, Target{}, published, false)
		if err != nil {
			return counts, err
		}
		for status, n := range done {
			counts[status] += n
		}
	}
	return counts, nil
}

// publishAppended returns the events that the stream has acknowledged, or all events if there is no
// stream.
func (p *Processor) publishAppended(ctx context.Context, ids []int64) ([]int64, error) {
	if p.Conn == nil {
		return ids, nil
	}
	recs, err := p.records(ctx, ids, stream.MaxBody)
	if err != nil {
		return nil, err
	}
	evs := make([]stream.Event, len(recs))
	for i := range recs {
		evs[i] = p.sourceEvent(&recs[i])
	}
	var published []int64
	for i, ack := range p.Conn.PublishEvents(ctx, evs) {
		if ack.Err == nil {
			published = append(published, evs[i].ID)
			continue
		}
		p.Logger.Debug("event not published; the republisher publishes it later", "event", evs[i].ID, "error", ack.Err)
	}
	return published, nil
}

// CountPending counts those of the given events that have no live outcome yet, or a failed one that
// is retried. It does not count events that retention has dropped from the log, because those had a
// final outcome.
func (p *Processor) CountPending(ctx context.Context, ids []int64) (n int64, err error) {
	err = p.Pool.QueryRow(ctx, countPendingSQL, ids, events.LiveRun).Scan(&n)
	return n, unavailable(err)
}

// OldestPending returns the first pending event of the given ones, as CountPending counts them:
// failed events come before events without an outcome. It also returns the reason of the last
// attempt. The id is 0 if there is none.
func (p *Processor) OldestPending(ctx context.Context, ids []int64) (id int64, reason string, err error) {
	err = p.Pool.QueryRow(ctx, oldestPendingSQL, ids, events.LiveRun).Scan(&id, &reason)
	if errors.Is(err, pgx.ErrNoRows) {
		err = nil
	}
	return id, reason, unavailable(err)
}

const oldestPendingSQL = `
SELECT e.id, coalesce(o.reason, '') FROM events e LEFT JOIN LATERAL (SELECT o.status, o.reason FROM outcomes o
	WHERE o.event_id = e.id AND o.run = $2 LIMIT 1) o ON true
WHERE e.id = ANY($1::bigint[]) AND (o.status IS NULL OR o.status = 'failed') ORDER BY o.status IS NULL, e.id LIMIT 1`

const countPendingSQL = `
SELECT count(*) FROM events e LEFT JOIN LATERAL (SELECT o.status FROM outcomes o WHERE o.event_id = e.id AND o.run = $2
	LIMIT 1) o ON true
WHERE e.id = ANY($1::bigint[]) AND (o.status IS NULL OR o.status = 'failed')`
