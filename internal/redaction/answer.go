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

// others are the sources that send requests: what an order finds by looking leaves alone those that nobody has answered, or nobody could read them any more.
type others struct {
	sources []int32
	types   []string
	since   int64
	// left are the requests that were found.
	left map[int64]bool
}

func requestsOfOthers(ctx context.Context, db querier) (*others, error) {
	found, err := askers(ctx, db)
	if err != nil {
		return nil, err
	}
	o := &others{left: map[int64]bool{}, since: events.FirstID(time.Now().Add(-PendingWithin))} // what is older no list of requests has any more
	for _, s := range found {
		for _, typ := range s.types {
			o.sources, o.types = append(o.sources, s.number), append(o.types, typ)
		}
	}
	return o, nil
}

const unansweredSQL = `
SELECT e.id FROM events e JOIN unnest($2::int[], $3::text[]) AS t(source, event_type) USING (source, event_type)
WHERE e.id = ANY($1::bigint[]) AND e.id >= $4 AND NOT EXISTS (SELECT FROM redactions r WHERE r.requested_by = e.id AND r.ended_at IS NOT NULL)
  AND NOT EXISTS (SELECT FROM redacted d WHERE d.event = e.id)`

// spare takes requests that nobody has answered out of what was found, but for one, and says how many it had not met before.
func (o *others) spare(ctx context.Context, pool *pgxpool.Pool, ids []int64, but int64) (rest []int64, n int64, err error) {
	if len(ids) == 0 || len(o.sources) == 0 {
		return ids, 0, nil
	}
	open, err := collect(ctx, pool, unansweredSQL, ids, o.sources, o.types, o.since)
	if err != nil {
		return nil, 0, err
	}
	open = without(open, []int64{but})
	for _, id := range open {
		if !o.left[id] {
			o.left[id] = true
			n++
		}
	}
	return without(ids, open), n, nil
}

func without(ids, some []int64) []int64 {
	return slices.DeleteFunc(slices.Clone(ids), func(id int64) bool { return slices.Contains(some, id) })
}

// asked are the events of the delivery that asked for all this, where that is among what is chosen.
func (w *work) asked(ctx context.Context) ([]int64, error) {
	if len(w.own) == 0 {
		return nil, nil
	}
	first, last := w.own[0], w.own[len(w.own)-1]
	chosen, err := w.order.choose(ctx, w.Pool, w.own)
	if err != nil {
		return nil, err
	}
	named, err := w.order.atDoor(ctx, w.Pool, first-1, last)
	if err != nil {
		return nil, err
	}
	found := slices.Concat(chosen.found, named, w.order.Events)
	for _, o := range w.order.Objects {
		ids, err := collect(ctx, w.Pool, ofObjectSQL, o.hash(), first-1, last, last-first+1)
		if err != nil {
			return nil, err
		}
		found = append(found, ids...)
	}
	if len(without(w.own, found)) == len(w.own) {
		return nil, nil
	}
	return w.own, nil
}

const lockRunSQL = `SELECT r.run FROM runs r WHERE r.run = $1 FOR UPDATE`

// finish clears the delivery that asked for all this and ends the audit, in one transaction: of a run that fails or is cancelled, whenever that is, a person must be
// able to read what was asked for.
func (w *work) finish(ctx context.Context) (runs.Status, error) {
	own, err := w.asked(ctx)
	if err != nil {
		return "", err
	}
	if status, err := w.hold.Advance(ctx, w.hold.Cursor); err != nil || status != runs.Running { // a person may have stopped it
		return status, err
	}
	run := w.hold.Run.Run
	err = w.clear(ctx, own, nil, nil, func(ctx context.Context, tx pgx.Tx, redact func() error) error {
		if _, err := tx.Exec(ctx, lockRunSQL, run); err != nil { // what follows shares it first and then wants it alone
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
	ids, err := collect(ctx, w.Pool, besideSQL, own)
	if err == nil {
		err = w.join(ctx, mirror, ids)
	}
	if err != nil {
		return "", err
	}
	return w.hold.Advance(ctx, w.hold.Cursor) // it keeps the counts
}
