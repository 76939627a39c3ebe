package reconcile

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/versioning"
)

// keepWithin bounds a transaction that keeps how far a sweep is; forgetting what was listed may take a while.
const keepWithin = 5 * time.Minute

// progressColumns are in the order of progress.scan.
const progressColumns = `s.phase, s.cursor, s.hand, s.since, s.until, s.began, s.restarts, s.asked, s.checked, s.missing, s.behind, s.ahead, s.different, s.hidden, s.ghosts, s.mended, s.remaining, s.passed_over, s.scope, s.rereads, s.why`

const (
	loadSweepSQL = `SELECT ` + progressColumns + ` FROM sweeps s WHERE s.run = $1 AND s.object_type = $2`

	// forgetListedSQL hops over the runs whose listed objects there are, and forgets those of runs that have ended.
	forgetListedSQL = `
WITH RECURSIVE hop(run) AS (
  SELECT min(l.run) FROM listed l
  UNION ALL
  SELECT (SELECT min(l.run) FROM listed l WHERE l.run > hop.run) FROM hop WHERE hop.run IS NOT NULL
)
DELETE FROM listed l WHERE l.run IN (SELECT h.run FROM hop h WHERE NOT EXISTS (SELECT FROM runs r WHERE r.run = h.run AND r.ended_at IS NULL))`

	forgetGhostsSQL = `DELETE FROM ghosts g USING runs r WHERE r.run = g.run AND r.ended_at IS NOT NULL`
)

// forget drops what ended runs have left behind.
func (w *work) forget(ctx context.Context) error {
	for _, sql := range []string{forgetListedSQL, forgetGhostsSQL} {
		if _, err := w.Pool.Exec(ctx, sql); err != nil {
			return fmt.Errorf("forget what ended runs have listed: %w", err)
		}
	}
	return nil
}

// load reads how far the sweep is. Errors: pgx.ErrNoRows.
func (s *sweep) load(ctx context.Context) error {
	err := s.scan(s.Pool.QueryRow(ctx, loadSweepSQL, s.hold.Run.Run, s.objectType))
	if err != nil {
		return fmt.Errorf("read how far the sweep of type %s is: %w", s.objectType, err)
	}
	return nil
}

// scan reads what is stored; with an error the progress stays as it was.
func (p *progress) scan(row pgx.Row) error {
	var q progress
	var since, until *time.Time
	if err := row.Scan(&q.phase, &q.cursor, &q.hand, &since, &until, &q.began, &q.restarts, &q.asked, &q.Checked, &q.Missing, &q.Behind, &q.Ahead, &q.Different, &q.Hidden, &q.Ghosts,
		&q.Mended, &q.Left, &q.passed, &q.scope, &q.rereads, &q.why); err != nil {
		return err
	}
	q.from, q.upTo, q.began = zeroTime(since), zeroTime(until), q.began.UTC()
	q.Equal = q.Checked - q.Missing - q.Behind - q.Ahead - q.Different
	*p = q
	return nil
}

func zeroTime(at *time.Time) time.Time {
	if at == nil {
		return time.Time{}
	}
	return at.UTC()
}

func nullTime(at time.Time) *time.Time {
	if at.IsZero() {
		return nil
	}
	return &at
}

// change changes what is stored of the sweep in one transaction, while the run is this process's. It does not wait for the disk: a crash of the server may undo the last of these
// changes, all of each, and what is appended afterwards waits for them.
func (s *sweep) change(ctx context.Context, name string, fn func(context.Context, pgx.Tx) error) error {
	return s.changeAfter(ctx, name, func(context.Context, pgx.Tx) error { return nil }, fn)
}

// changeAfter is change, with what comes before the run is guarded: the locks of objects come first.
func (s *sweep) changeAfter(ctx context.Context, name string, first, fn func(context.Context, pgx.Tx) error) error {
	return postgres.InTx(ctx, s.Pool, name, keepWithin, func(ctx context.Context, tx pgx.Tx) error {
		if err := first(ctx, tx); err != nil {
			return err
		}
		if err := s.hold.Guard(ctx, tx); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `SET LOCAL synchronous_commit = off`); err != nil {
			return err
		}
		return fn(ctx, tx)
	})
}

// place is where a sweep goes on.
type place struct {
	phase, cursor string
	// met are the objects that the provider has told of on the way there; what differs of them is in hand from then on.
	met []*item
	// hidden are those of them that are alive and were not listed.
	hidden []*item
	// gone are those that it has said to be missing.
	gone []*item
	// passed are the parts of the list that were passed over on the way there.
	passed []PassedOver
}

// keepSQL moves the sweep on: $5 are the objects that it has met, $6 and $7 those that are not equal and how, of which those with $8 are in hand from now on, $9 the parts that it has passed over, $10 those of $5 that are hidden, which none is that was met before, and $11 those that are wrong.
// An object counts when it is met first; one that was left then and is right by now is left no more.
const keepSQL = `
WITH fresh AS (
  INSERT INTO listed (run, object_type, object, odd) SELECT $1, $2, hashtextextended(d.id, 0), d.id = ANY($11::text[]) FROM unnest($5::text[]) AS d(id) ON CONFLICT DO NOTHING RETURNING object
), odd AS (
  SELECT d.id, d.kind, d.hand, f.object IS NOT NULL AS counted, d.id = ANY($10::text[]) AS hidden FROM unnest($6::text[], $7::text[], $8::bool[]) AS d(id, kind, hand) LEFT JOIN fresh f ON f.object = hashtextextended(d.id, 0)
), righted AS (
  UPDATE listed l SET remains = false WHERE l.run = $1 AND l.object_type = $2 AND l.remains AND (SELECT s.remaining > 0 FROM sweeps s WHERE s.run = $1 AND s.object_type = $2)
    AND l.object = ANY(ARRAY(SELECT hashtextextended(d.id, 0) FROM unnest($5::text[]) AS d(id) WHERE d.id <> ALL($11::text[]))) RETURNING l.odd
), n AS (
  SELECT count(*) FILTER (WHERE kind = 'missing') AS missing, count(*) FILTER (WHERE kind = 'behind') AS behind, count(*) FILTER (WHERE kind = 'ahead') AS ahead,
    count(*) FILTER (WHERE kind = 'different') AS different FROM odd WHERE counted
)
UPDATE sweeps s SET phase = $3, cursor = $4, passed_over = s.passed_over || $9, updated_at = clock_now(), checked = s.checked + (SELECT count(*) FROM fresh),
  missing = s.missing + n.missing, behind = s.behind + n.behind, ahead = s.ahead + n.ahead, different = s.different + n.different,
  hidden = s.hidden + cardinality($10::text[]), remaining = s.remaining - (SELECT count(*) FROM righted), mended = s.mended + (SELECT count(*) FILTER (WHERE odd) FROM righted),
  hand = (SELECT coalesce(jsonb_agg(jsonb_build_object('id', o.id, 'kind', o.kind, 'counted', o.counted, 'hidden', o.hidden)), '[]') FROM odd o WHERE o.hand)
FROM n WHERE s.run = $1 AND s.object_type = $2 RETURNING ` + progressColumns

// keep moves the sweep on to a place, with what it has met on the way there.
func (s *sweep) keep(ctx context.Context, to *place, items []*item) error {
	met, hidden := names(to.met), names(to.hidden)
	var ids, kinds []string
	var hand []bool
	for _, it := range items {
		if it.kind != equal {
			ids, kinds, hand = append(ids, it.id), append(kinds, string(it.kind)), append(hand, it.kind.wrong() && !s.order.DryRun)
		}
	}
	wrong := choose(items, func(it *item) bool { return it.kind.wrong() })
	return s.detailed(ctx, wrong, func(ctx context.Context, tx pgx.Tx) error {
		if err := s.scan(tx.QueryRow(ctx, keepSQL, s.hold.Run.Run, s.objectType, to.phase, to.cursor, met, ids, kinds, hand, append([]PassedOver{}, to.passed...), hidden, names(wrong))); err != nil {
			return err
		}
		counted := map[string]bool{}
		for _, h := range s.hand {
			counted[h.ID] = h.Counted
		}
		for _, it := range wrong {
			it.counted = counted[it.id]
		}
		return s.keepGhosts(ctx, tx, to.gone)
	})
}

func names(items []*item) []string {
	ids := make([]string, len(items))
	for i, it := range items {
		ids[i] = it.id
	}
	return ids
}

// mendedSQL empties the hand. $4 are the objects that are left, $5 those that are right, of those that did not count when they were met: they did so before, and may have been left then. $10 are those of
// $4 that did not count either: where they are odd they had been mended. $6 to $9 are what became of each object, for those whose difference is kept.
const mendedSQL = `
WITH stays AS (
  UPDATE listed l SET remains = true WHERE l.run = $1 AND l.object_type = $2 AND l.object = ANY(ARRAY(SELECT hashtextextended(d.id, 0) FROM unnest($4::text[]) AS d(id))) AND NOT l.remains
  RETURNING l.odd AND l.object = ANY(ARRAY(SELECT hashtextextended(d.id, 0) FROM unnest($10::text[]) AS d(id))) AS mended
), righted AS (
  UPDATE listed l SET remains = false WHERE l.run = $1 AND l.object_type = $2 AND l.object = ANY(ARRAY(SELECT hashtextextended(d.id, 0) FROM unnest($5::text[]) AS d(id))) AND l.remains RETURNING l.odd
), told AS (
  UPDATE drifts d SET event_id = nullif(u.event, 0), result = u.result, reason = u.reason FROM unnest($6::text[], $7::bigint[], $8::text[], $9::text[]) AS u(id, event, result, reason)
  WHERE d.run = $1 AND d.object_type = $2 AND d.object_id = u.id
)
UPDATE sweeps s SET hand = '[]', mended = s.mended + $3 + n.mended - n.worse, remaining = s.remaining + n.stay - n.righted, updated_at = clock_now()
FROM (SELECT st.stay, st.worse, r.righted, r.mended FROM (SELECT count(*) AS stay, count(*) FILTER (WHERE mended) AS worse FROM stays) st, (SELECT count(*) AS righted, count(*) FILTER (WHERE odd) AS mended FROM righted) r) n
WHERE s.run = $1 AND s.object_type = $2 RETURNING ` + progressColumns

// outcome is what became of an object that was to be mended.
type outcome struct {
	id    string
	event int64
	// left says why it is not mended, "" where it is.
	left string
	// counted: the object was counted with its kind.
	counted bool
	// ahead: it was said to be missing, and lives here by what the API could not know then. There was nothing to mend.
	ahead bool
}

// mended keeps what became of the objects in hand. An object that is left though it was not counted was right, mended, or left too, when it was met before; it counts as left once, since nothing is proven with
// it, and no more once it is right. As mended count those that are right and were wrong when they were met first.
func (s *sweep) mended(ctx context.Context, all []outcome) error {
	t := told(all)
	var stay, worse, right []string
	for _, o := range all {
		switch {
		case o.left != "" && !o.counted:
			worse = append(worse, o.id)
			fallthrough
		case o.left != "":
			stay = append(stay, o.id)
		case !o.counted:
			right = append(right, o.id)
		}
	}
	return s.change(ctx, "keep what was mended", func(ctx context.Context, tx pgx.Tx) error {
		return s.scan(tx.QueryRow(ctx, mendedSQL, s.hold.Run.Run, s.objectType, t.mended, stay, right, t.ids, t.events, t.results, t.reasons, worse))
	})
}

// outcomes are what became of some objects, column by column, and how many are mended and left.
type outcomes struct {
	ids, results, reasons []string
	events                []int64
	mended, left          int64
}

func told(all []outcome) (t outcomes) {
	for _, o := range all {
		result := "mended"
		switch {
		case o.left != "":
			t.left++
			result = "left"
		case o.ahead:
			result = "ahead"
		case o.counted:
			t.mended++
		}
		t.ids, t.events, t.results, t.reasons = append(t.ids, o.id), append(t.events, o.event), append(t.results, result), append(t.reasons, o.left)
	}
	return t
}

const renewSweepSQL = `UPDATE sweeps s SET cursor = '', restarts = s.restarts + 1, passed_over = '[]', updated_at = clock_now() WHERE s.run = $1 AND s.object_type = $2 RETURNING ` + progressColumns

// renew lets the list begin again.
func (s *sweep) renew(ctx context.Context) error {
	return s.change(ctx, "begin a list again", func(ctx context.Context, tx pgx.Tx) error {
		return s.scan(tx.QueryRow(ctx, renewSweepSQL, s.hold.Run.Run, s.objectType))
	})
}

const (
	doneSweepSQL = `UPDATE sweeps s SET phase = 'done', cursor = '', versions_alone = $3, updated_at = clock_now() WHERE s.run = $1 AND s.object_type = $2 RETURNING ` + progressColumns

	unlistSQL = `DELETE FROM listed WHERE run = $1 AND object_type = $2`
)

// finish ends the sweep of the type and raises its watermarks, unless something is left.
func (s *sweep) finish(ctx context.Context) error {
	return s.change(ctx, "end the sweep of a type", func(ctx context.Context, tx pgx.Tx) error {
		if err := s.scan(tx.QueryRow(ctx, doneSweepSQL, s.hold.Run.Run, s.objectType, s.list.Blind && s.whole())); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, unlistSQL, s.hold.Run.Run, s.objectType); err != nil {
			return err
		}
		return s.raise(ctx, tx)
	})
}

// key is an object of the sweep.
func (s *sweep) key(id string) versioning.Key {
	return versioning.Key{Source: s.order.Source, Account: s.order.Account, Type: s.objectType, ID: id}
}
