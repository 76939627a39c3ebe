package processor

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/versioning"
)

// UnfoldedError says which event of the log cannot be joined into the bases, and why: its partition must stay. So of one that cannot be joined again into what a
// person has settled.
type UnfoldedError struct {
	Event  int64
	Source string
	Reason string
}

func (e *UnfoldedError) Error() string {
	return fmt.Sprintf("event %d of source %s: %s", e.Event, e.Source, e.Reason)
}

// Fold joins events of the log, each of which must have its final outcome, into the bases, as they were joined into the mirror; it
// records nothing and announces nothing, and folding again changes nothing. Events that are dead never entered the mirror and are left
// out. Of a source that is not configured here nothing can be read, so its objects' rows are copied as the mirror has them now; these
// sources are returned by name. Errors: *UnfoldedError; any other is trouble of our own.
func (p *Processor) Fold(ctx context.Context, ids []int64) (copied []string, err error) {
	ids, err = p.finished(ctx, ids)
	if err != nil {
		return nil, err
	}
	recs, err := events.Read(ctx, p.Pool, ids, smallBody)
	if err != nil {
		return nil, unavailable(err)
	}
	if err := p.nameSources(ctx, recs); err != nil {
		return nil, err
	}
	slices.SortFunc(recs, func(a, b events.Record) int { return cmp.Compare(a.ID, b.ID) }) // what is owed a look may depend on the order
	var foreign []int64
	recs = slices.DeleteFunc(recs, func(r events.Record) bool {
		name := p.sources.name(r.Source)
		if _, ok := p.sources.source(name); ok {
			return false
		}
		if foreign = append(foreign, r.ID); !slices.Contains(copied, name) {
			copied = append(copied, name)
		}
		return true
	})
	if err := p.copyBases(ctx, foreign); err != nil {
		return nil, err
	}
	if err := p.copySettled(ctx, ids); err != nil {
		return nil, err
	}
	g, work := errgroup.WithContext(ctx)
	for _, lane := range p.spread(recs) {
		g.Go(func() error { return p.foldLane(work, versioning.Bases, lane, refuse) })
	}
	return copied, g.Wait()
}

// refuse is for events that cannot be read.
func refuse(it *item) error {
	return &UnfoldedError{Event: it.ev.ID, Source: it.ev.Source, Reason: it.outcome.reason}
}

// Join joins events of the log that were applied before into another table of objects, as Fold does into the bases; it records nothing. What cannot be read now, is dead or
// redacted is left out. Any error is trouble of our own.
func (p *Processor) Join(ctx context.Context, into versioning.Table, ids []int64) error {
	recs, err := p.records(ctx, ids, smallBody)
	if err != nil {
		return err
	}
	evs := make([]stream.Event, len(recs))
	for i := range recs {
		evs[i] = p.sourceEvent(&recs[i])
	}
	return p.foldLane(ctx, into, evs, func(*item) error { return nil })
}

const finishedSQL = `
SELECT d.id, coalesce(bool_or(o.run = 0 AND o.status <> 'failed'), false), coalesce(bool_or(o.status NOT IN ('failed', 'dead', 'ignored')), false)
FROM unnest($1::bigint[]) AS d(id) LEFT JOIN outcomes o ON o.event_id = d.id
  AND NOT EXISTS (SELECT FROM runs r WHERE r.run = o.run AND r.job = 'rebuild' AND r.status <> 'done') GROUP BY d.id`

// finished are the events that entered the mirror under some run; what a rebuild has staged and not swapped never did. One without a final outcome is an error.
func (p *Processor) finished(ctx context.Context, ids []int64) ([]int64, error) {
	rows, err := p.Pool.Query(ctx, finishedSQL, ids)
	if err != nil {
		return nil, unavailable(fmt.Errorf("read outcomes of %d events: %w", len(ids), err))
	}
	var id, open int64
	var final, entered bool
	var in []int64
	_, err = pgx.ForEachRow(rows, []any{&id, &final, &entered}, func() error {
		if !final {
			open = id
		}
		if entered {
			in = append(in, id)
		}
		return nil
	})
	if err != nil {
		return nil, unavailable(fmt.Errorf("read outcomes of %d events: %w", len(ids), err))
	}
	if open != 0 {
		return nil, &UnfoldedError{Event: open, Source: "?", Reason: "it has no final outcome yet"}
	}
	return in, nil
}

func (p *Processor) foldLane(ctx context.Context, into versioning.Table, evs []stream.Event, unread func(*item) error) error {
	for len(evs) > 0 {
		n, bytes := 0, 0
		for n < len(evs) && n < p.Settings.Batch && bytes < laneBytes {
			bytes += weigh(&evs[n])
			n++
		}
		batch := evs[:n]
		if err := p.fetchBodies(ctx, p.Pool, batch); err != nil {
			return err
		}
		items := make([]*item, 0, n)
		for i := range batch {
			it := p.read(p.Logger, &batch[i])
			if it.outcome != nil && it.outcome.status == versioning.Failed {
				if err := unread(it); err != nil {
					return err
				}
			}
			items = append(items, it)
		}
		if err := p.foldBatch(ctx, into, items); err != nil {
			return unavailable(err)
		}
		evs = evs[n:]
	}
	return nil
}

// foldBatch is one transaction. The locks of bases are those of the mirror: who redacts an object holds them too.
func (p *Processor) foldBatch(ctx context.Context, into versioning.Table, items []*item) error {
	locks := into
	if into == versioning.Bases {
		locks = versioning.Mirror
	}
	return postgres.InTx(ctx, p.Pool, "fold", p.Settings.ApplyTimeout, func(ctx context.Context, tx pgx.Tx) error {
		items := copies(items)
		if err := lock(ctx, tx, locks, items, false); err != nil {
			return err
		}
		if err := forget(ctx, tx, items); err != nil {
			return err
		}
		objs, err := loadObjects(ctx, tx, into, items, nil)
		if err != nil {
			return err
		}
		met, err := p.recall(ctx, tx, events.LiveRun, true, items, objs)
		if err != nil {
			return err
		}
		dirty := fold(append(met, items...), objs, nil)
		if len(dirty) == 0 {
			return nil
		}
		return versioning.Save(ctx, tx, into, dirty)
	})
}

const objectsOfSQL = `
SELECT array(SELECT DISTINCT object FROM outcomes WHERE event_id = ANY($1::bigint[]) AND object <> 0 ORDER BY object),
  array(SELECT DISTINCT source FROM outcomes WHERE event_id = ANY($1::bigint[]) AND object <> 0 ORDER BY source)`

// copyBasesSQL takes the rows of the mirror for bases, where they are not older than what is there.
const copyBasesSQL = `
INSERT INTO bases AS b (source, account, object_type, object_id, version_final, version_at, version_seen, version_rank, tie_set, overflow,
  window_lo, window_hi, look_after, ambiguous, deleted, state_hash, exact_hash, state, repaired, last_event_id, revision, rule_version, created_at, updated_at, settled, overwrite_seen)
SELECT o.source, o.account, o.object_type, o.object_id, o.version_final, o.version_at, o.version_seen, o.version_rank, o.tie_set, o.overflow,
  o.window_lo, o.window_hi, o.look_after, o.ambiguous, o.deleted, o.state_hash, o.exact_hash, o.state, o.repaired, o.last_event_id, o.revision, o.rule_version,
  o.created_at, o.updated_at, o.settled, o.overwrite_seen
FROM (SELECT DISTINCT c.source, c.account, c.object_type, c.object_id FROM outcomes c WHERE c.event_id = ANY($1::bigint[]) AND c.object <> 0) k
JOIN objects o USING (source, account, object_type, object_id)
ON CONFLICT (source, account, object_type, object_id) DO UPDATE SET
  version_final = excluded.version_final, version_at = excluded.version_at, version_seen = excluded.version_seen, version_rank = excluded.version_rank,
  tie_set = excluded.tie_set, overflow = excluded.overflow, window_lo = excluded.window_lo, window_hi = excluded.window_hi,
  look_after = excluded.look_after, ambiguous = excluded.ambiguous, deleted = excluded.deleted, state_hash = excluded.state_hash,
  exact_hash = excluded.exact_hash, state = excluded.state, repaired = excluded.repaired, last_event_id = excluded.last_event_id,
  revision = excluded.revision, rule_version = excluded.rule_version, updated_at = excluded.updated_at, settled = excluded.settled,
  overwrite_seen = excluded.overwrite_seen
WHERE (b.settled, b.version_final, b.version_at, b.version_seen, b.version_rank)
   <= (excluded.settled, excluded.version_final, excluded.version_at, excluded.version_seen, excluded.version_rank)`

// copyBases takes the mirror's rows of the objects that events were applied to for their bases. Those rows hold what newer events said
// too, which does no harm: a rebuild joins these events again.
func (p *Processor) copyBases(ctx context.Context, ids []int64) error {
	if len(ids) == 0 {
		return nil
	}
	return unavailable(postgres.InTx(ctx, p.Pool, "copy bases", p.Settings.ApplyTimeout, func(ctx context.Context, tx pgx.Tx) error {
		var keys []int64
		var sources []int32
		if err := tx.QueryRow(ctx, objectsOfSQL, ids).Scan(&keys, &sources); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, lockSQL, keys, sources, versioning.SourceLock); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, copyBasesSQL, ids)
		return err
	}))
}

// settledAheadSQL finds those events that may have been received since a look began that settles their object, and is not in the bases yet.
const settledAheadSQL = `
SELECT DISTINCT c.event_id FROM outcomes c JOIN objects o USING (source, account, object_type, object_id) LEFT JOIN bases b USING (source, account, object_type, object_id)
WHERE c.event_id = ANY($1::bigint[]) AND c.object <> 0 AND o.settled > coalesce(b.settled, 0) AND c.event_id >= greatest(o.settled / 1000 - $2, 0) << 20`

// copySettled lays the mirror's rows of objects that persons had settled for their bases, where the look is not in these yet. It may be in a later partition, and
// then finds nothing of these events any more that it must not forget; the row has met them.
func (p *Processor) copySettled(ctx context.Context, ids []int64) error {
	rows, err := p.Pool.Query(ctx, settledAheadSQL, ids, clocksApart.Milliseconds())
	if err != nil {
		return unavailable(fmt.Errorf("look for settled objects of %d events: %w", len(ids), err))
	}
	ahead, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return unavailable(fmt.Errorf("look for settled objects of %d events: %w", len(ids), err))
	}
	return p.copyBases(ctx, ahead)
}
