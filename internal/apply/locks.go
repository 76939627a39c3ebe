package apply

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/versioning"
)

// LockKeys returns the keys of the locks that applying events of the log takes: the hashes of their
// objects, or the event ids if they concern no object. While a caller holds these locks, none of
// the events is being applied.
func (a *Applier) LockKeys(ctx context.Context, ids []int64) (locks []int64, err error) {
	err = a.readEach(ctx, ids, func(e *event) { locks = append(locks, e.lockKey) })
	return locks, err
}

// EventsWithState returns those of the given events whose state matches, in the form in which a
// table of objects would store it.
func (a *Applier) EventsWithState(ctx context.Context, ids []int64, matches func(state []byte) bool) (found []int64,
	err error) {
	err = a.readEach(ctx, ids, func(e *event) {
		if e.outcome == nil && matches(e.input.State.JSON) {
			found = append(found, e.ev.ID)
		}
	})
	return found, err
}

// readEach calls do with each of the given events as its provider reads it. It holds one large body
// at a time.
func (a *Applier) readEach(ctx context.Context, ids []int64, do func(*event)) error {
	evs, err := a.Events(ctx, ids, maxInlineBody)
	if err != nil {
		return err
	}
	for _, ev := range evs {
		one := []stream.Event{ev}
		if err := a.fetchBodies(ctx, a.Pool, one); err != nil {
			return err
		}
		do(a.read(&one[0]))
	}
	return nil
}

// lockSQL takes shared locks of the batch's sources and then the locks of its objects, in order.
// They are advisory locks, because a row that does not exist yet cannot be locked. An object scan
// finds the open batches of a source by its lock.
const lockSQL = `
WITH sources AS MATERIALIZED (SELECT count(pg_advisory_xact_lock_shared($3, s)) AS n FROM unnest($2::int[]) AS s)
SELECT count(pg_advisory_xact_lock(l)) FROM sources, unnest($1::bigint[]) AS l WHERE sources.n >= 0`

// inTable returns the lock of a table's object. Each table has its own locks, so that a rebuild and
// live events do not wait for each other.
func inTable(key int64, table versioning.ObjectTable) int64 {
	const tableSeed = 0x5851f42d4c957f2d
	return key ^ int64(table)*tableSeed
}

// tryLockSQL takes the locks that are free, and reports whether these are all.
const tryLockSQL = `SELECT coalesce(bool_and(pg_try_advisory_xact_lock(l)), true) FROM unnest($1::bigint[]) AS l`

// ErrLocked says that another transaction holds a lock of the events or of their objects.
var ErrLocked = errors.New("an event or its object is locked")

// tryLock is like lock, for a transaction that already holds locks. It does not wait, because its
// order differs from that of other transactions. Errors: ErrLocked.
func tryLock(ctx context.Context, tx pgx.Tx, table versioning.ObjectTable, batch []*event) error {
	keys := make([]int64, 0, 2*len(batch))
	for _, e := range batch {
		keys = append(keys, inTable(e.lockKey, table), inTable(e.ev.ID, table))
	}
	var all bool
	if err := tx.QueryRow(ctx, tryLockSQL, keys).Scan(&all); err != nil {
		return fmt.Errorf("lock %d objects: %w", len(keys), err)
	}
	if !all {
		return ErrLocked
	}
	return nil
}

// lock takes the locks of the events' objects in a table. A writer to the mirror first takes the
// locks of its sources. eventsToo also takes the locks of the event ids, because a redaction with
// another configuration may read the events as other objects. A live event does not need this: its
// outcome shows that it was redacted.
func lock(ctx context.Context, tx pgx.Tx, table versioning.ObjectTable, batch []*event, eventsToo bool) error {
	var sources []int32
	keys := make([]int64, 0, 2*len(batch))
	for _, e := range batch {
		keys = append(keys, inTable(e.lockKey, table))
		if eventsToo {
			keys = append(keys, inTable(e.ev.ID, table))
		}
		if table == versioning.Mirror && e.key.Type != "" && !slices.Contains(sources, e.key.Source) {
			sources = append(sources, e.key.Source)
		}
	}
	return takeLocks(ctx, tx, keys, sources)
}

// takeLocks takes locks of sources and of objects, each in order.
func takeLocks(ctx context.Context, tx pgx.Tx, keys []int64, sources []int32) error {
	slices.Sort(keys)
	keys = slices.Compact(keys)
	slices.Sort(sources)
	p := postgres.NewParams(tx.Conn(), postgres.Statement{Name: "postern_lock", SQL: lockSQL})
	defer p.Release()
	p.Array(pgtype.Int8OID, len(keys), func(i int) { p.Int64(keys[i]) })
	p.Array(pgtype.Int4OID, len(sources), func(i int) { p.Int32(sources[i]) })
	p.Int32(versioning.SourceLock)
	if _, err := p.Run(ctx, nil); err != nil {
		return fmt.Errorf("lock %d objects: %w", len(keys), err)
	}
	return nil
}

// LockObjects takes the locks of objects in the mirror, as applying does, until the transaction
// ends.
func LockObjects(ctx context.Context, tx pgx.Tx, keys []versioning.Key) error {
	return lockObjects(ctx, tx, keys, versioning.Mirror)
}

// LockStagedObjects is LockObjects with the locks of the same staged objects.
func LockStagedObjects(ctx context.Context, tx pgx.Tx, keys []versioning.Key) error {
	return lockObjects(ctx, tx, keys, versioning.Mirror, versioning.Staged)
}

func lockObjects(ctx context.Context, tx pgx.Tx, keys []versioning.Key, tables ...versioning.ObjectTable) error {
	var locks []int64
	var sources []int32
	for _, k := range keys {
		for _, table := range tables {
			locks = append(locks, inTable(k.Hash(), table))
		}
		if !slices.Contains(sources, k.Source) {
			sources = append(sources, k.Source)
		}
	}
	return takeLocks(ctx, tx, locks, sources)
}

const redactedSQL = `SELECT r.event FROM redacted_events r WHERE r.event = ANY($1::bigint[])`

// ignoreRedacted makes events ignored that were redacted after they were read. The caller holds the
// locks that a redaction takes. Live events do not need this: a redaction gives each an outcome.
func ignoreRedacted(ctx context.Context, tx pgx.Tx, batch []*event) error {
	ids := make([]int64, len(batch))
	for i, e := range batch {
		ids[i] = e.ev.ID
	}
	redactedIDs, err := postgres.Collect(ctx, tx, pgx.RowTo[int64], redactedSQL, ids)
	if err != nil {
		return fmt.Errorf("find redacted events: %w", err)
	}
	for _, e := range batch {
		if slices.Contains(redactedIDs, e.ev.ID) {
			e.key, e.lockKey = versioning.Key{Source: e.key.Source}, e.ev.ID
			e.outcome, e.refetchPending = redacted(), false
		}
	}
	return nil
}

// redacted returns the outcome of a redacted event.
func redacted() *outcome {
	return &outcome{status: versioning.Ignored, reason: "the event was redacted"}
}
