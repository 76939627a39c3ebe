package redaction

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/runs"
)

const (
	// siblingsSQL: one body is all of a delivery's; its events were made in one millisecond.
	siblingsSQL = `
SELECT DISTINCT e.id FROM (SELECT DISTINCT d.delivery_id FROM events d WHERE d.id = ANY($1::bigint[])) d
CROSS JOIN LATERAL (SELECT e.id FROM events e WHERE e.id >= (d.delivery_id >> 20) << 20 AND e.id <= d.delivery_id | 1048575 AND e.delivery_id = d.delivery_id) e`

	ofObjectSQL = `SELECT DISTINCT event_id FROM outcomes WHERE object = $1 AND object <> 0 AND event_id > $2 AND event_id <= $3 ORDER BY event_id LIMIT $4`

	auditedSQL = `SELECT coalesce(max(cursor), 0) FROM checkpoints WHERE job = 'auditor' AND run = 0`
)

// siblings are the events and all others of their deliveries.
func siblings(ctx context.Context, pool *pgxpool.Pool, ids []int64) ([]int64, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	all, err := collect(ctx, pool, siblingsSQL, ids)
	if err != nil {
		return nil, err
	}
	all = append(all, ids...) // those that retention has dropped have none
	slices.Sort(all)
	return slices.Compact(all), nil
}

// eachOf gives the events of an object up to a bound, some at a time: those that were applied to it, and those that named it at the door and have no outcome yet,
// which lie above the auditor's checkpoint.
func eachOf(ctx context.Context, pool *pgxpool.Pool, o Object, bound int64, do func(ids []int64) error) error {
	for after := int64(0); ; {
		ids, err := collect(ctx, pool, ofObjectSQL, o.hash(), after, bound, redactAtOnce)
		if err != nil {
			return err
		}
		if len(ids) == 0 {
			break
		}
		if err := do(ids); err != nil {
			return err
		}
		after = ids[len(ids)-1]
	}
	var at int64
	if err := pool.QueryRow(ctx, auditedSQL).Scan(&at); err != nil {
		return fmt.Errorf("read the auditor's checkpoint: %w", err)
	}
	f := &events.Filter{Source: o.Source, Account: &o.Account, ObjectType: o.Type, ObjectID: o.ID}
	for at < bound {
		ids, end, err := events.Match(ctx, pool, f, at, bound)
		if err != nil {
			return err
		}
		for some := range slices.Chunk(ids, redactAtOnce) {
			if err := do(some); err != nil {
				return err
			}
		}
		at = end
	}
	return nil
}

// Preview is what a redaction would clear, as of now.
type Preview struct {
	// Events counts those of whole deliveries; Already, how many of them are redacted.
	Events  int64 `json:"events"`
	Already int64 `json:"already"`
	Objects int64 `json:"objects"`
	// Dropped are events that retention has dropped, of which only outcomes are left.
	Dropped int64 `json:"dropped"`
	// Shared: some deliveries carry more events than were asked for, and go whole.
	Shared bool `json:"shared"`
	// From and To are the times that the first and last id carry.
	From events.Instant `json:"from"`
	To   events.Instant `json:"to"`
	// Looked is how many events were looked at.
	Looked int64 `json:"looked_at"`
}

const previewSQL = `
SELECT (SELECT count(*) FROM redacted r WHERE r.event = ANY($1::bigint[])), (SELECT count(*) FROM events e WHERE e.id = ANY($1::bigint[])),
  ARRAY(SELECT DISTINCT o.object FROM outcomes o WHERE o.event_id = ANY($1::bigint[]) AND o.object <> 0)`

// look gathers a preview.
type look struct {
	Preview
	pool    *pgxpool.Pool
	seen    map[int64]bool
	objects map[int64]bool
	tell    func(Preview)
}

// Look says what an order would clear, without clearing anything. tell, if not nil, hears now and then how far it is.
func Look(ctx context.Context, pool *pgxpool.Pool, o *Order, tell func(Preview)) (*Preview, error) {
	if err := o.read(); err != nil {
		return nil, err
	}
	bound, err := events.Newest(ctx, pool)
	if err != nil {
		return nil, err
	}
	l := &look{pool: pool, seen: map[int64]bool{}, objects: map[int64]bool{}, tell: tell}
	add := func(ids []int64) error { return l.add(ctx, ids) }
	for _, object := range o.Objects {
		l.objects[object.hash()] = true
		if err := eachOf(ctx, pool, object, bound, add); err != nil {
			return nil, err
		}
	}
	if err := add(o.Events); err != nil {
		return nil, err
	}
	for at := int64(0); o.scans() && at < bound; {
		ids, end, err := events.Match(ctx, pool, o.filter(), at, bound)
		if err != nil {
			return nil, err
		}
		for some := range slices.Chunk(ids, lookAtOnce) {
			found, err := o.choose(ctx, pool, some)
			if err == nil {
				err = add(found)
			}
			if err != nil {
				return nil, err
			}
			l.Looked += int64(len(some))
		}
		if at = end; tell != nil {
			tell(l.Preview)
		}
	}
	if o.scans() {
		if _, err := o.eachShown(ctx, pool, l.shown); err != nil {
			return nil, err
		}
	}
	l.Objects = int64(len(l.objects))
	return &l.Preview, nil
}

// shown takes objects into the preview.
func (l *look) shown(found []Object) (runs.Status, error) {
	for _, o := range found {
		l.objects[o.hash()] = true
	}
	return runs.Running, nil
}

// add takes events into the preview, each once.
func (l *look) add(ctx context.Context, ids []int64) error {
	all, err := siblings(ctx, l.pool, ids)
	if err != nil || len(all) == 0 {
		return err
	}
	l.Shared = l.Shared || len(all) > len(ids)
	all = slices.DeleteFunc(all, func(id int64) bool { return l.seen[id] })
	var already, stored int64
	var objects []int64
	if err := l.pool.QueryRow(ctx, previewSQL, all).Scan(&already, &stored, &objects); err != nil {
		return fmt.Errorf("preview a redaction: %w", err)
	}
	for _, id := range all {
		l.seen[id] = true
		at := events.Time(id)
		if l.From.IsZero() || at.Before(l.From.Time) {
			l.From.Time = at
		}
		if at.After(l.To.Time) {
			l.To.Time = at
		}
	}
	for _, object := range objects {
		l.objects[object] = true
	}
	l.Events += stored
	l.Already += already
	l.Dropped += int64(len(all)) - stored
	l.Objects = int64(len(l.objects))
	return nil
}
