package apply

import (
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

// NotReducedError reports an event of the log that cannot be reduced into the retained objects, and
// the reason. The event's partition must stay. The error is also returned for an event that cannot
// be applied again to an object that an operator overwrites.
type NotReducedError struct {
	Event  int64
	Source string
	Reason string
}

func (e *NotReducedError) Error() string {
	return fmt.Sprintf("event %d of source %s: %s", e.Event, e.Source, e.Reason)
}

// Reduce applies events of the log to the retained objects, as they were applied to the mirror.
// Each event must have its final outcome. Reduce records no outcome and announces nothing, and a
// repetition changes nothing. Dead events are skipped, because they are not part of the mirror. The
// events of a source without configuration cannot be read: for these, the mirror's current rows are
// copied, and the names of these sources are returned. Errors: *NotReducedError; any other is an
// infrastructure failure.
func (a *Applier) Reduce(ctx context.Context, ids []int64) (copied []string, err error) {
	ids, err = a.eventsInMirror(ctx, ids)
	if err != nil {
		return nil, err
	}
	evs, err := a.Events(ctx, ids, maxInlineBody) // in id order: a pending refetch may depend on it
	if err != nil {
		return nil, err
	}
	var unconfigured []int64
	evs = slices.DeleteFunc(evs, func(e stream.Event) bool {
		if _, ok := a.sources.source(e.Source); ok {
			return false
		}
		if unconfigured = append(unconfigured, e.ID); !slices.Contains(copied, e.Source) {
			copied = append(copied, e.Source)
		}
		return true
	})
	if err := a.copyRetained(ctx, unconfigured); err != nil {
		return nil, err
	}
	if err := a.copyOverwritten(ctx, ids); err != nil {
		return nil, err
	}
	g, work := errgroup.WithContext(ctx)
	for _, share := range a.spreadByObject(evs) {
		g.Go(func() error { return a.reduceEvents(work, versioning.RetainedObjects, share, unreadableError) })
	}
	return copied, g.Wait()
}

// unreadableError returns the error for an event that cannot be read.
func unreadableError(e *event) error {
	return &NotReducedError{Event: e.ev.ID, Source: e.ev.Source, Reason: e.outcome.reason}
}

// ReduceInto applies events of the log that were applied before to another table of objects, as
// Reduce does to the retained objects. It records no outcome. It skips events that are dead,
// redacted or cannot be read now. Any error is an infrastructure failure.
func (a *Applier) ReduceInto(ctx context.Context, into versioning.ObjectTable, ids []int64) error {
	evs, err := a.Events(ctx, ids, maxInlineBody)
	if err != nil {
		return err
	}
	return a.reduceEvents(ctx, into, evs, func(*event) error { return nil })
}

const inMirrorSQL = `
SELECT d.id, coalesce(bool_or(o.run = 0 AND o.status <> 'failed'), false),
	coalesce(bool_or(o.status NOT IN ('failed', 'dead', 'ignored')), false)
FROM unnest($1::bigint[]) AS d(id) LEFT JOIN outcomes o ON o.event_id = d.id
  AND NOT EXISTS (SELECT FROM runs r WHERE r.run = o.run AND ` + UnswappedRebuild + `) GROUP BY d.id`

// eventsInMirror returns the events that are part of the mirror through some run. Events of a
// rebuild that was not swapped are not. An event without a final outcome is an error.
func (a *Applier) eventsInMirror(ctx context.Context, ids []int64) ([]int64, error) {
	var id, open int64
	var final, applied bool
	var in []int64
	err := postgres.ForEach(ctx, a.Pool, inMirrorSQL, []any{ids}, []any{&id, &final, &applied}, func() error {
		if !final {
			open = id
		}
		if applied {
			in = append(in, id)
		}
		return nil
	})
	if err != nil {
		return nil, unavailable(fmt.Errorf("read outcomes of %d events: %w", len(ids), err))
	}
	if open != 0 {
		return nil, &NotReducedError{Event: open, Source: "?", Reason: "it has no final outcome yet"}
	}
	return in, nil
}

func (a *Applier) reduceEvents(ctx context.Context, into versioning.ObjectTable, evs []stream.Event,
	onUnreadable func(*event) error) error {
	for len(evs) > 0 {
		n := batchSize(evs, a.Settings.Batch)
		some := evs[:n]
		if err := a.fetchBodies(ctx, a.Pool, some); err != nil {
			return err
		}
		batch := make([]*event, 0, n)
		for i := range some {
			e := a.read(&some[i])
			if e.outcome != nil && e.outcome.status == versioning.Failed {
				if err := onUnreadable(e); err != nil {
					return err
				}
			}
			batch = append(batch, e)
		}
		if err := a.reduceBatch(ctx, into, batch); err != nil {
			return unavailable(err)
		}
		evs = evs[n:]
	}
	return nil
}

// reduceBatch runs one transaction. Retained objects share the locks of the mirror, because a
// redaction of an object takes only those.
func (a *Applier) reduceBatch(ctx context.Context, into versioning.ObjectTable, batch []*event) error {
	locks := into
	if into == versioning.RetainedObjects {
		locks = versioning.Mirror
	}
	return postgres.InTx(ctx, a.Pool, "reduce events", a.Settings.ApplyTimeout,
		func(ctx context.Context, tx pgx.Tx) error {
			batch := copyBatch(batch)
			if err := lock(ctx, tx, locks, batch, true); err != nil {
				return err
			}
			if err := ignoreRedacted(ctx, tx, batch); err != nil {
				return err
			}
			objs, err := loadObjects(ctx, tx, into, batch, nil)
			if err != nil {
				return err
			}
			reloaded, err := a.reloadHistory(ctx, tx, events.LiveRun, true, batch, objs)
			if err != nil {
				return err
			}
			dirty := reduce(append(reloaded, batch...), objs, nil)
			if len(dirty) == 0 {
				return nil
			}
			return versioning.Save(ctx, tx, into, dirty)
		})
}

const objectsOfSQL = `
SELECT array(SELECT DISTINCT object FROM outcomes WHERE event_id = ANY($1::bigint[]) AND object <> 0 ORDER BY object),
  array(SELECT DISTINCT source FROM outcomes WHERE event_id = ANY($1::bigint[]) AND object <> 0 ORDER BY source)`

// copyRetainedSQL copies rows of the mirror to the retained objects, unless the retained row is
// newer.
const copyRetainedSQL = `
INSERT INTO retained_objects AS b (source, account, object_type, object_id, version_final, version_at, version_seen,
	version_rank,
	tied_states, overflow,
  time_from, time_to, refetch_after, ambiguous, deleted, state_hash, exact_hash, state, sanitized, last_event_id,
  	revision, rule_version, created_at, updated_at, overwritten_at, overwrite_seen)
SELECT o.source, o.account, o.object_type, o.object_id, o.version_final, o.version_at, o.version_seen, o.version_rank,
	o.tied_states, o.overflow,
  o.time_from, o.time_to, o.refetch_after, o.ambiguous, o.deleted, o.state_hash, o.exact_hash, o.state, o.sanitized,
  	o.last_event_id, o.revision, o.rule_version,
  o.created_at, o.updated_at, o.overwritten_at, o.overwrite_seen
FROM (SELECT DISTINCT c.source, c.account, c.object_type, c.object_id FROM outcomes c
	WHERE c.event_id = ANY($1::bigint[]) AND c.object <> 0) k
JOIN objects o USING (source, account, object_type, object_id)
ON CONFLICT (source, account, object_type, object_id) DO UPDATE SET
  version_final = excluded.version_final, version_at = excluded.version_at, version_seen = excluded.version_seen,
  	version_rank = excluded.version_rank,
  tied_states = excluded.tied_states, overflow = excluded.overflow, time_from = excluded.time_from,
  	time_to = excluded.time_to,
  refetch_after = excluded.refetch_after, ambiguous = excluded.ambiguous, deleted = excluded.deleted,
  	state_hash = excluded.state_hash,
  exact_hash = excluded.exact_hash, state = excluded.state, sanitized = excluded.sanitized,
  	last_event_id = excluded.last_event_id,
  revision = excluded.revision, rule_version = excluded.rule_version, updated_at = excluded.updated_at,
  	overwritten_at = excluded.overwritten_at,
  overwrite_seen = excluded.overwrite_seen
WHERE (b.overwritten_at, b.version_final, b.version_at, b.version_seen, b.version_rank)
   <= (excluded.overwritten_at, excluded.version_final, excluded.version_at, excluded.version_seen,
   	excluded.version_rank)`

// copyRetained copies the mirror's rows of the objects that some events were applied to. These rows
// also contain newer events. This is harmless: a rebuild applies those events again.
func (a *Applier) copyRetained(ctx context.Context, ids []int64) error {
	if len(ids) == 0 {
		return nil
	}
	return unavailable(postgres.InTx(ctx, a.Pool, "copy retained objects", a.Settings.ApplyTimeout,
		func(ctx context.Context, tx pgx.Tx) error {
			var keys []int64
			var sources []int32
			if err := tx.QueryRow(ctx, objectsOfSQL, ids).Scan(&keys, &sources); err != nil {
				return err
			}
			if err := takeLocks(ctx, tx, keys, sources); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, copyRetainedSQL, ids)
			return err
		}))
}

// overwrittenAheadSQL finds events that may have been received since the start of an overwriting
// refetch that is not in the retained objects yet.
const overwrittenAheadSQL = `
SELECT DISTINCT c.event_id FROM outcomes c JOIN objects o USING (source, account, object_type, object_id) LEFT
	JOIN retained_objects b USING (source, account, object_type, object_id)
WHERE c.event_id = ANY($1::bigint[]) AND c.object <> 0 AND o.overwritten_at > coalesce(b.overwritten_at, 0)
	AND c.event_id >= greatest(o.overwritten_at / 1000 - $2, 0) << 20`

// copyOverwritten copies the mirror's rows of objects that operators have overwritten, if the
// retained objects do not contain the refetch yet. The refetch may be in a later partition, and it
// could not reload events that were dropped before. The copied row contains these events.
func (a *Applier) copyOverwritten(ctx context.Context, ids []int64) error {
	ahead, err := postgres.Collect(ctx, a.Pool, pgx.RowTo[int64], overwrittenAheadSQL, ids, maxClockSkew.Milliseconds())
	if err != nil {
		return unavailable(fmt.Errorf("find overwritten objects of %d events: %w", len(ids), err))
	}
	return a.copyRetained(ctx, ahead)
}
