package reconcile

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/runs"
)

const (
	// appendAtOnce and appendBytes bound what is appended at once.
	appendAtOnce, appendBytes = 500, 8 << 20
	// visitsAtOnce is the most calls of one sweep at a time, also where the API bears more.
	visitsAtOnce = 20
)

// errListedAndMissing: what is listed and yet missing may have been deleted between, or cannot be asked for by that name; a later run sees it.
var errListedAndMissing = errors.New("the API lists it, and says that it is missing when asked for it by its name")

// visit asks for objects by their names, and judges them again by what is answered.
func (s *sweep) visit(ctx context.Context, items []*item) error {
	if err := s.ask(ctx, items); err != nil {
		return err
	}
	for _, it := range items {
		if it.look != nil && it.look.Missing && !s.lateGone(it.known) {
			it.bad = errListedAndMissing.Error()
		}
		it.kind = judge(it.known, it)
	}
	return nil
}

// lateGone: the object is deleted here, since so short a time that the list cannot know.
func (s *sweep) lateGone(row *known) bool {
	return row != nil && row.deleted && !row.ambiguous && row.hi >= s.began.UnixMicro()
}

// ask makes a look at each of some objects, several at a time.
func (s *sweep) ask(ctx context.Context, items []*item) error {
	g, within := errgroup.WithContext(ctx)
	g.SetLimit(min(max(1, s.source.API.Concurrency), visitsAtOnce))
	for _, it := range items {
		g.Go(func() error { return s.lookAt(within, it) })
	}
	return g.Wait()
}

func (s *sweep) lookAt(ctx context.Context, it *item) (err error) {
	defer func() {
		if r := recover(); r != nil { // Carry recovers its own goroutine alone
			err = runs.Refuse(panicked(r))
		}
	}()
	at, ok, err := s.find(ctx, s.key(it.id), it.told)
	if err != nil {
		return err
	}
	if over := s.over(at.call); over != nil {
		it.out, it.bad = true, over.Text()
		return nil
	}
	if it.where = at; !ok {
		if it.look == nil { // else what the list tells is all there is
			it.bad = errNoFetch.Error()
		}
		return nil
	}
	a, err := s.calmly(ctx, func() (*Response, error) { return s.fetch(ctx, s.key(it.id), at.call) })
	var refused *refusedError
	var passing *passingError
	switch {
	case errors.As(err, &refused): // it alone may be kept from the key
		it.bad = refused.text
		_, err := s.control(ctx, s.order.Account)
		return err
	case errors.As(err, &passing) && !passing.throttled: // it alone may be in trouble, and for ever: an answer too large, for example
		if _, down := s.control(ctx, s.order.Account); down != nil {
			return err
		}
		it.bad = passing.text
		return nil
	case err != nil:
		return err
	case a.Date.IsZero():
		return s.noDate()
	}
	it.fetched, it.look = true, s.lookOf(it.id, a)
	if it.look.Missing = a.Verdict.Kind == provider.Missing; !it.look.Missing {
		it.look.Body = a.Body
	}
	s.understand(it)
	return nil
}

// mend appends the looks at objects that differ, waits for their outcomes, and sees what differs still.
func (s *sweep) mend(ctx context.Context, items []*item) (runs.Status, error) {
	if len(items) == 0 {
		return runs.Running, nil
	}
	ds, of, err := s.deliveries(ctx, items)
	if err != nil {
		return "", err
	}
	ids, err := s.enter(ctx, ds)
	if err != nil {
		return "", err
	}
	for i, it := range of {
		it.event = ids[i]
	}
	if status, err := s.settled(ctx, ids); err != nil || status != runs.Running {
		return status, err
	}
	all, err := s.became(ctx, items)
	if err != nil {
		return "", err
	}
	return runs.Running, s.mended(ctx, all)
}

// deliveries are the looks at objects as they are appended, and whose each is. What cannot be read says so of its object.
func (s *sweep) deliveries(ctx context.Context, items []*item) (ds []events.Delivery, of []*item, err error) {
	if err := s.raiseLooks(ctx, s.key(""), items); err != nil {
		return nil, nil, err
	}
	for _, it := range items {
		if it.bad != "" {
			continue
		}
		d, err := s.event(s.key(it.id), it.look)
		if err != nil {
			it.bad = err.Error()
			continue
		}
		ds, of = append(ds, *d), append(of, it)
	}
	return ds, of, nil
}

// enter appends deliveries of one event each, in batches, and enters them into the mirror. It returns the events, those that the log had already among them.
func (s *sweep) enter(ctx context.Context, ds []events.Delivery) (ids []int64, err error) {
	for len(ds) > 0 {
		n, bytes := 0, 0
		for n < min(len(ds), appendAtOnce) && (n == 0 || bytes+len(ds[n].Body) <= appendBytes) {
			bytes += len(ds[n].Body)
			n++
		}
		receipts, err := events.Append(ctx, s.Log, ds[:n])
		if err != nil {
			return nil, err
		}
		some := make([]int64, n)
		for i, r := range receipts {
			some[i] = r[0].ID
		}
		if err := s.apply(ctx, some); err != nil {
			return nil, err
		}
		ids, ds = append(ids, some...), ds[n:]
	}
	return ids, nil
}

// undecidedSQL are those of some events that nobody has decided yet.
const undecidedSQL = `SELECT e.id FROM unnest($1::bigint[]) AS e(id) WHERE (SELECT true FROM outcomes o WHERE o.event_id = e.id AND o.run = 0 LIMIT 1) IS NULL`

// apply enters events into the mirror, also such as another process has appended and not applied any more.
func (s *sweep) apply(ctx context.Context, ids []int64) error {
	rows, err := s.Pool.Query(ctx, undecidedSQL, ids)
	if err == nil {
		ids, err = pgx.CollectRows(rows, pgx.RowTo[int64])
	}
	if err != nil {
		return fmt.Errorf("look for events without an outcome: %w", err)
	}
	slices.Sort(ids)
	_, err = s.Processor.Enter(ctx, slices.Compact(ids))
	return err
}

// outcomesSQL says what became of some events.
const outcomesSQL = `SELECT o.event_id, o.status, o.reason FROM outcomes o WHERE o.event_id = ANY($1::bigint[]) AND o.run = 0`

// became compares objects once more with what was appended of them.
func (s *sweep) became(ctx context.Context, items []*item) ([]outcome, error) {
	whole := choose(items, func(it *item) bool { return it.bad == "" })
	if err := s.compare(ctx, whole); err != nil {
		return nil, err
	}
	var ids []int64
	for _, it := range whole {
		if it.kind.wrong() {
			ids = append(ids, it.event)
		}
	}
	why := map[int64]string{}
	if len(ids) > 0 {
		rows, err := s.Pool.Query(ctx, outcomesSQL, ids)
		if err != nil {
			return nil, fmt.Errorf("read outcomes: %w", err)
		}
		var id int64
		var status, reason string
		if _, err := pgx.ForEachRow(rows, []any{&id, &status, &reason}, func() error {
			why[id] = status + ": " + reason
			return nil
		}); err != nil {
			return nil, fmt.Errorf("read outcomes: %w", err)
		}
	}
	all := make([]outcome, len(items))
	for i, it := range items {
		all[i] = outcome{id: it.id, event: it.event, counted: it.counted, left: events.Text(it.bad)}
		if it.bad == "" && it.kind.wrong() {
			if all[i].left = why[it.event]; all[i].left == "" {
				all[i].left = "the look has no outcome any more"
			}
		}
	}
	return all, nil
}

// again mends what a process that has ended had in hand.
func (s *sweep) again(ctx context.Context) (runs.Status, error) {
	if len(s.hand) == 0 {
		return runs.Running, nil
	}
	var items []*item
	for _, h := range s.hand {
		it := &item{id: h.ID, kind: h.Kind, counted: h.Counted}
		if !provider.ValidName(h.ID) {
			s.understand(it)
		}
		items = append(items, it)
	}
	if err := s.visit(ctx, choose(items, func(it *item) bool { return it.bad == "" })); err != nil {
		return "", err
	}
	if slices.ContainsFunc(items, func(it *item) bool { return it.bad == errNoFetch.Error() }) { // what the list told of them has gone with the process that read it
		return runs.Running, s.reread(ctx)
	}
	return s.mend(ctx, items)
}

// rereadSQL forgets that what is in hand was met, and begins the list again. That uses up none of its restarts.
const rereadSQL = `
WITH hand AS (
  SELECT h ->> 'id' AS id, h ->> 'kind' AS kind, (h ->> 'hidden')::bool AS hidden FROM sweeps s, jsonb_array_elements(s.hand) AS h WHERE s.run = $1 AND s.object_type = $2 AND (h ->> 'counted')::bool
), unmet AS (
  DELETE FROM listed l USING hand h WHERE l.run = $1 AND l.object_type = $2 AND l.object = hashtextextended(h.id, 0)
), n AS (
  SELECT count(*) AS met, count(*) FILTER (WHERE kind = 'missing') AS missing, count(*) FILTER (WHERE kind = 'behind') AS behind, count(*) FILTER (WHERE kind = 'different') AS different,
    count(*) FILTER (WHERE hidden) AS hidden FROM hand
)
UPDATE sweeps s SET phase = 'list', cursor = '', hand = '[]', passed_over = '[]', rereads = s.rereads + 1, updated_at = clock_now(), checked = s.checked - n.met,
  missing = s.missing - n.missing, behind = s.behind - n.behind, different = s.different - n.different, hidden = s.hidden - n.hidden
FROM n WHERE s.run = $1 AND s.object_type = $2 RETURNING ` + progressColumns

// reread begins the list again for what is in hand. What was said to be missing is asked for again, after it.
func (s *sweep) reread(ctx context.Context) error {
	return s.change(ctx, "begin a list again for what is in hand", func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, dropGhostsSQL, s.hold.Run.Run, s.objectType); err != nil {
			return err
		}
		return s.scan(tx.QueryRow(ctx, rereadSQL, s.hold.Run.Run, s.objectType))
	})
}
