package reconcile

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/runs"
)

const (
	// walkAtOnce is how many rows of the mirror one step of the walk looks at, and confirmAtOnce how many objects are asked for by their names between two checkpoints.
	walkAtOnce, confirmAtOnce = 5000, 100
	// More than fewGhosts tombstones that are more than one in ghostShare of the living objects want a person's approval, of a type and of all types of the run, and so do as many more than were approved.
	fewGhosts, ghostShare = 20, 100
)

// walkSQL is a stretch of the walk through the mirror: the last object of it, and those that live here, were not listed, and were seen before the list began, or may have been: an event that came late
// tells of any time before it came. What was listed is
// looked up for each object: a NOT EXISTS may become a join that reads all that was listed, in each stretch. Only of what was not listed the rows themselves are read; the index tells the rest.
const walkSQL = `
WITH page AS MATERIALIZED (
  SELECT o.object_id FROM objects o WHERE o.source = $1 AND o.account = $2 AND o.object_type = $3 AND o.object_id > $4 ORDER BY o.object_id LIMIT $7
), unlisted AS MATERIALIZED (
  SELECT p.object_id FROM page p WHERE (SELECT true FROM listed l WHERE l.run = $6 AND l.object_type = $3 AND l.object = hashtextextended(p.object_id, 0)) IS NULL
)
SELECT coalesce((SELECT p.object_id FROM page p ORDER BY p.object_id DESC LIMIT 1), ''), coalesce(array_agg(u.object_id ORDER BY u.object_id), '{}')
FROM unlisted u CROSS JOIN LATERAL (SELECT FROM objects o WHERE o.source = $1 AND o.account = $2 AND o.object_type = $3 AND o.object_id = u.object_id AND NOT o.deleted
  AND o.version_at > -9223372036854775808 AND o.window_lo < $5 LIMIT 1) o`

// walk walks through the mirror for objects that were not listed, and asks for each by its name. What is missing there is kept until the whole walk is done.
func (s *sweep) walk(ctx context.Context) (runs.Status, error) {
	if s.asked > 0 && s.hold.Detail != "" { // it was approved, and waits for nobody any more
		if err := s.hold.Note(ctx, ""); err != nil {
			return "", err
		}
	}
	for {
		var last string
		var found []string
		err := s.Pool.QueryRow(ctx, walkSQL, s.order.Source, s.order.Account, s.objectType, s.cursor, s.began.UnixMicro(), s.hold.Run.Run, walkAtOnce).Scan(&last, &found)
		if err != nil {
			return "", fmt.Errorf("look for objects of type %s that were not listed: %w", s.objectType, err)
		}
		for len(found) > confirmAtOnce { // the rest goes with the end of the stretch
			some := found[:confirmAtOnce]
			found = found[confirmAtOnce:]
			if status, err := s.confirm(ctx, some, &place{phase: inGhosts, cursor: some[len(some)-1]}); err != nil || status != runs.Running {
				return status, err
			}
		}
		to := &place{phase: inGhosts, cursor: last}
		if last == "" {
			to.phase = inGraves
		}
		if status, err := s.confirm(ctx, found, to); err != nil || status != runs.Running {
			return status, err
		}
		if last == "" {
			return runs.Running, nil
		}
	}
}

// confirm asks for objects that were not listed. Those that are there are compared and mended like listed ones.
func (s *sweep) confirm(ctx context.Context, ids []string, to *place) (runs.Status, error) {
	items := make([]*item, len(ids))
	for i, id := range ids {
		items[i] = &item{id: id}
	}
	if err := s.ask(ctx, items); err != nil {
		return "", err
	}
	items = choose(items, func(it *item) bool { return !it.out })
	to.gone = choose(items, (*item).gone)
	if err := s.believeAll(ctx, to.gone); err != nil {
		return "", err
	}
	to.gone = choose(to.gone, (*item).gone)
	to.met = choose(items, func(it *item) bool { return !it.gone() })
	to.hidden = choose(to.met, (*item).alive)
	return s.pass(ctx, to.met, to)
}

// believeAll proves that objects are missing, and not only out of the reach of the key: once for all of them, or where that may differ from object to object, for each that it does for. Of one that
// is not believed to be missing this is told, and the run goes on.
func (s *sweep) believeAll(ctx context.Context, gone []*item) error {
	of, each := s.source.Reader.(provider.ObjectControl)
	told := map[string]string{} // why it is not believed, "" where it is, by what proves it
	for _, it := range gone {
		if !it.look.Missing {
			continue
		}
		control := it.where.proof
		if each {
			control = of.ControlObject(s.source.Config, s.source.API, s.order.Account, s.objectType, it.id)
		}
		name := fmt.Sprint(it.where.located) + control.Path + "?" + control.Query.Encode() + "\n" + string(control.Body)
		bad, asked := told[name]
		if !asked {
			err := s.believe(ctx, s.key(it.id), it.where)
			var unseen *unseenError
			if errors.As(err, &unseen) {
				bad = unseen.text
			} else if err != nil {
				return err
			}
			told[name] = bad
		}
		it.bad = bad
	}
	return nil
}

const keepGhostsSQL = `
INSERT INTO ghosts (run, object_type, object_id, date, elapsed_us, body) SELECT $1, $2, d.* FROM unnest($3::text[], $4::timestamptz[], $5::bigint[], $6::bytea[]) AS d
ON CONFLICT (run, object_type, object_id) DO NOTHING`

// keepGhosts keeps when objects were said to be missing.
func (s *sweep) keepGhosts(ctx context.Context, tx pgx.Tx, gone []*item) error {
	if len(gone) == 0 {
		return nil
	}
	var ids []string
	var dates []time.Time
	var elapsed []int64
	var bodies [][]byte
	for _, it := range gone {
		ids, dates, elapsed, bodies = append(ids, it.id), append(dates, it.look.Date), append(elapsed, it.look.Elapsed.Microseconds()), append(bodies, it.look.Body)
	}
	_, err := tx.Exec(ctx, keepGhostsSQL, s.hold.Run.Run, s.objectType, ids, dates, elapsed, bodies)
	return err
}

const (
	someGhostsSQL = `SELECT object_id, date, elapsed_us, body FROM ghosts WHERE run = $1 AND object_type = $2 ORDER BY object_id LIMIT $3`

	// buriedSQL counts ghosts whose tombstones are in the log; $4 and $5 are how many of them are mended and left. All of them are met then, so that no other walk of the run counts one again. What is ahead of its tombstone
	// was no ghost: it is met as what is listed is.
	buriedSQL = `
WITH buried AS (
  DELETE FROM ghosts g WHERE g.run = $1 AND g.object_type = $2 AND g.object_id = ANY($3::text[]) RETURNING g.object_id
), met AS (
  INSERT INTO listed (run, object_type, object, remains, odd) SELECT $1, $2, hashtextextended(d.id, 0), d.result = 'left', d.result <> 'ahead' FROM unnest($3::text[], $6::text[]) AS d(id, result) ON CONFLICT DO NOTHING RETURNING object
), n AS (
  SELECT count(*) FILTER (WHERE b.object_id IS NOT NULL AND d.result <> 'ahead') AS ghosts, count(*) FILTER (WHERE m.object IS NOT NULL AND d.result = 'ahead') AS ahead
  FROM unnest($3::text[], $6::text[]) AS d(id, result) LEFT JOIN buried b ON b.object_id = d.id LEFT JOIN met m ON m.object = hashtextextended(d.id, 0)
)
UPDATE sweeps s SET ghosts = s.ghosts + n.ghosts, checked = s.checked + n.ahead, ahead = s.ahead + n.ahead, mended = s.mended + $4, remaining = s.remaining + $5, updated_at = clock_now()
FROM n WHERE s.run = $1 AND s.object_type = $2 RETURNING ` + progressColumns

	ghostDriftSQL = `
INSERT INTO drifts (run, source, account, object_type, object_id, kind, event_id, result, reason)
SELECT $1, $2, $3, $4, d.id, 'ghost', nullif(d.event, 0), d.result, d.reason FROM unnest($5::text[], $6::bigint[], $7::text[], $8::text[]) AS d(id, event, result, reason)
ON CONFLICT (run, object_type, object_id) DO UPDATE SET kind = excluded.kind, event_id = excluded.event_id, result = excluded.result, reason = excluded.reason`
)

// graves appends a tombstone for each object that is missing there, unless a person is to be asked first, and ends the sweep.
func (s *sweep) graves(ctx context.Context) (runs.Status, error) {
	if stopped, err := s.stop(ctx); err != nil || stopped {
		return runs.Running, err
	}
	for {
		ghosts, err := s.ghosts(ctx)
		if err != nil {
			return "", err
		}
		if len(ghosts) == 0 {
			return runs.Running, s.finish(ctx)
		}
		if status, err := s.bury(ctx, ghosts); err != nil || status != runs.Running {
			return status, err
		}
		if status, err := s.tell(ctx, false); err != nil || status != runs.Running {
			return status, err
		}
	}
}

// ghosts are some of the objects that were said to be missing.
func (s *sweep) ghosts(ctx context.Context) ([]*item, error) {
	rows, err := s.Pool.Query(ctx, someGhostsSQL, s.hold.Run.Run, s.objectType, appendAtOnce)
	var all []*item
	if err == nil {
		all, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (*item, error) {
			it := &item{fetched: true, kind: ghost, counted: true}
			a := &Response{}
			var elapsed int64
			err := row.Scan(&it.id, &a.Date, &elapsed, &a.Body)
			a.Date, a.Elapsed = a.Date.UTC(), time.Duration(elapsed)*time.Microsecond
			it.look = s.lookOf(it.id, a)
			it.look.Body, it.look.Missing = a.Body, a.Body == nil
			s.understand(it)
			return it, err
		})
	}
	if err != nil {
		return nil, fmt.Errorf("read ghosts: %w", err)
	}
	return all, nil
}

// bury appends tombstones and counts what became of them.
func (s *sweep) bury(ctx context.Context, ghosts []*item) (runs.Status, error) {
	all := make([]outcome, len(ghosts))
	for i, it := range ghosts {
		all[i] = outcome{id: it.id, counted: true}
	}
	if !s.order.DryRun {
		ds, of, err := s.deliveries(ctx, ghosts)
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
		if all, err = s.became(ctx, ghosts); err != nil {
			return "", err
		}
		for i, it := range ghosts {
			all[i].ahead = it.bad == "" && it.kind == ahead
		}
	}
	return runs.Running, s.buried(ctx, all)
}

// buried keeps what became of ghosts.
func (s *sweep) buried(ctx context.Context, all []outcome) error {
	t := told(all)
	differ := told(slices.DeleteFunc(slices.Clone(all), func(o outcome) bool { return o.ahead }))
	few := min(len(differ.ids), max(0, s.details))
	if s.order.DryRun {
		t.mended, t.left = 0, 0
		clear(t.results)
		clear(differ.results)
	}
	err := s.change(ctx, "keep what became of ghosts", func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, ghostDriftSQL, s.hold.Run.Run, s.order.Source, s.order.Account, s.objectType, differ.ids[:few], differ.events[:few], differ.results[:few], differ.reasons[:few]); err != nil {
			return err
		}
		return s.scan(tx.QueryRow(ctx, buriedSQL, s.hold.Run.Run, s.objectType, t.ids, t.mended, t.left, t.results))
	})
	if err == nil {
		s.details -= few
	}
	return err
}
