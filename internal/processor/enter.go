package processor

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/versioning"
)

// Enter publishes events that somebody beside the gateways has just appended, and applies those that the stream has, without waiting until they
// come back from there; what the stream has not taken is left to the auditor, which looks for events without an outcome. It returns how many of
// the applied ones have which outcome. An error is trouble of our own; the events are in the log.
func (p *Processor) Enter(ctx context.Context, ids []int64) (map[versioning.Status]int64, error) {
	counts := map[versioning.Status]int64{}
	for len(ids) > 0 {
		some := ids[:min(len(ids), publishedAtOnce)]
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

// publishAppended returns the events that the stream has acknowledged; all, where there is no stream.
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
		p.Logger.Debug("event not published; the auditor does", "event", evs[i].ID, "error", ack.Err)
	}
	return published, nil
}

// Pending counts the events of some that have no outcome yet of being applied live, or a failed one that is tried again. What retention has dropped from the
// log is not among them: it had one.
func (p *Processor) Pending(ctx context.Context, ids []int64) (n int64, err error) {
	err = p.Pool.QueryRow(ctx, pendingSQL, ids, events.LiveRun).Scan(&n)
	return n, unavailable(err)
}

// Awaited is the event of some, as Pending counts them, that has failed the earliest, or has no outcome, with the reason of its last attempt; 0 where there is none.
func (p *Processor) Awaited(ctx context.Context, ids []int64) (id int64, reason string, err error) {
	err = p.Pool.QueryRow(ctx, awaitedSQL, ids, events.LiveRun).Scan(&id, &reason)
	if errors.Is(err, pgx.ErrNoRows) {
		err = nil
	}
	return id, reason, unavailable(err)
}

const awaitedSQL = `
SELECT e.id, coalesce(o.reason, '') FROM events e LEFT JOIN LATERAL (SELECT o.status, o.reason FROM outcomes o WHERE o.event_id = e.id AND o.run = $2 LIMIT 1) o ON true
WHERE e.id = ANY($1::bigint[]) AND (o.status IS NULL OR o.status = 'failed') ORDER BY o.status IS NULL, e.id LIMIT 1`

const pendingSQL = `
SELECT count(*) FROM events e LEFT JOIN LATERAL (SELECT o.status FROM outcomes o WHERE o.event_id = e.id AND o.run = $2 LIMIT 1) o ON true
WHERE e.id = ANY($1::bigint[]) AND (o.status IS NULL OR o.status = 'failed')`
