package redaction

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/runs"
)

// openRequests finds senders' requests that are not answered yet. A redaction leaves them alone
// unless they are named, because they could not be read afterwards.
type openRequests struct {
	sources []int32
	types   []string
	since   int64
	// excluded are the requests that were left out so far.
	excluded map[int64]bool
}

func loadOpenRequests(ctx context.Context, db querier) (*openRequests, error) {
	found, err := requestSources(ctx, db)
	if err != nil {
		return nil, err
	}
	// no list of requests shows older ones
	o := &openRequests{excluded: map[int64]bool{}, since: events.FirstID(time.Now().Add(-PendingWithin))}
	for _, s := range found {
		for _, typ := range s.types {
			o.sources, o.types = append(o.sources, s.number), append(o.types, typ)
		}
	}
	return o, nil
}

const unansweredSQL = `
SELECT e.id FROM events e JOIN unnest($2::int[], $3::text[]) AS t(source, event_type) USING (source, event_type)
WHERE e.id = ANY($1::bigint[]) AND e.id >= $4 AND NOT EXISTS (SELECT FROM redactions r WHERE r.requested_by = e.id
	AND r.ended_at IS NOT NULL)
  AND NOT EXISTS (SELECT FROM redacted_events d WHERE d.event = e.id)`

// exclude removes unanswered requests, except one, from ids. It returns the rest and the number of
// requests that it excluded for the first time.
func (o *openRequests) exclude(ctx context.Context, pool *pgxpool.Pool, ids []int64, but int64) (rest []int64, n int64,
	err error) {
	if len(ids) == 0 || len(o.sources) == 0 {
		return ids, 0, nil
	}
	open, err := collect(ctx, pool, unansweredSQL, ids, o.sources, o.types, o.since)
	if err != nil {
		return nil, 0, err
	}
	open = without(open, []int64{but})
	for _, id := range open {
		if !o.excluded[id] {
			o.excluded[id] = true
			n++
		}
	}
	return without(ids, open), n, nil
}

func without(ids, some []int64) []int64 {
	return slices.DeleteFunc(slices.Clone(ids), func(id int64) bool { return slices.Contains(some, id) })
}

// ownRequest returns the events of the delivery that requested the redaction, if the parameters
// select it.
func (w *execution) ownRequest(ctx context.Context) ([]int64, error) {
	if len(w.ownDelivery) == 0 {
		return nil, nil
	}
	first, last := w.ownDelivery[0], w.ownDelivery[len(w.ownDelivery)-1]
	selected, err := w.params.selectEvents(ctx, w.Pool, w.ownDelivery)
	if err != nil {
		return nil, err
	}
	named, err := w.params.namedAtIngest(ctx, w.Pool, first-1, last)
	if err != nil {
		return nil, err
	}
	found := slices.Concat(selected.found, named, w.params.Events)
	for _, o := range w.params.Objects {
		ids, err := collect(ctx, w.Pool, ofObjectSQL, o.hash(), first-1, last, last-first+1)
		if err != nil {
			return nil, err
		}
		found = append(found, ids...)
	}
	if len(without(w.ownDelivery, found)) == len(w.ownDelivery) {
		return nil, nil
	}
	return w.ownDelivery, nil
}

const lockRunSQL = `SELECT r.run FROM runs r WHERE r.run = $1 FOR UPDATE`

// finish clears the delivery that requested the redaction and ends the audit, in one transaction.
// If the run fails or is cancelled at any time, the request is still readable.
func (w *execution) finish(ctx context.Context) (runs.Status, error) {
	own, err := w.ownRequest(ctx)
	if err != nil {
		return "", err
	}
	// an operator may have cancelled the run
	if status, err := w.lease.Advance(ctx, w.lease.Cursor); err != nil || status != runs.Running {
		return status, err
	}
	run := w.lease.Run.ID
	err = w.clear(ctx, own, nil, nil, func(ctx context.Context, tx pgx.Tx, redact func() error) error {
		// the statements below first take a shared lock on it and then an exclusive one
		if _, err := tx.Exec(ctx, lockRunSQL, run); err != nil {
			return err
		}
		if err := redact(); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, endSQL, run)
		return err
	})
	if err != nil {
		return "", fmt.Errorf("end the audit of run %d: %w", run, err)
	}
	if len(own) == 0 {
		return runs.Running, nil
	}
	ids, err := collect(ctx, w.Pool, sameVersionSQL, own)
	if err == nil {
		err = w.reapply(ctx, mirrorTable, ids)
	}
	if err != nil {
		return "", err
	}
	return w.lease.Advance(ctx, w.lease.Cursor) // this saves the counts
}
