package rebuild

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/versioning"
)

// apply stages events. What fails although it is in the mirror must not be missing from what is staged: after some tries it ends the run.
func (w *work) apply(ctx context.Context, to processor.Target, c *processor.Chunk, alone bool) (map[versioning.Status]int64, runs.Status, error) {
	for try := 1; ; try++ {
		if err := w.known(); err != nil { // what cannot be read here would fail without end
			return nil, "", err
		}
		counts, err := w.Processor.ApplyChunk(ctx, to, c, alone)
		if err != nil || counts[versioning.Failed]+counts[versioning.Dead] == 0 {
			return counts, runs.Running, err
		}
		again, err := w.again(ctx, c.IDs, try)
		if err != nil || !again {
			return counts, runs.Running, err
		}
		if status, err := w.hold.Advance(ctx, w.hold.Cursor); err != nil || status != runs.Running { // a person may have stopped it
			return counts, status, err
		}
		runs.Pause(ctx, w.Settings.Again)
		alone = true
	}
}

// entered says that the event of an outcome o is in the mirror by another run than o's. The offset keeps the planner to a look for each event: a join may
// read the ledger from end to end.
const entered = `EXISTS (SELECT FROM outcomes l WHERE l.event_id = o.event_id AND l.run <> o.run AND l.status NOT IN ('failed', 'dead', 'ignored')
    AND NOT EXISTS (SELECT FROM runs r WHERE r.run = l.run AND r.job = 'rebuild' AND r.status <> 'done') OFFSET 0)`

const (
	// refused says of an outcome that the event cannot be applied as its provider is read, which trying again does not change.
	refused = `(o.status = 'dead' AND o.reason NOT LIKE 'given up after%')`

	// brokenSQL finds events that failed in a run though they are in the mirror.
	brokenSQL = `
SELECT o.event_id, o.reason, o.status = 'dead' OR o.attempts >= $3 FROM outcomes o
WHERE o.run = $1 AND o.event_id = ANY($2::bigint[]) AND o.status IN ('failed', 'dead') AND NOT ` + refused + ` AND ` + entered + `
ORDER BY 3 DESC, 1 LIMIT 1`
)

// dueSQL lets failed events be tried again at once.
const dueSQL = `UPDATE outcomes SET due = clock_now() - interval '1 millisecond' WHERE run = $1 AND event_id = ANY($2::bigint[]) AND status = 'failed' AND attempts < $3`

// tries is how often an event is staged that fails; a process that is ended twice while it tries one alone is no proof against that event.
const tries = 3

// again says whether some of the events must be tried again after so many tries, and makes them due.
func (w *work) again(ctx context.Context, ids []int64, try int) (bool, error) {
	event, reason, given := int64(0), "", false
	switch err := w.Pool.QueryRow(ctx, brokenSQL, w.hold.Run.Run, ids, tries).Scan(&event, &reason, &given); {
	case errors.Is(err, pgx.ErrNoRows):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("look for failures of run %d: %w", w.hold.Run.Run, err)
	case given || try >= tries:
		return false, runs.Refuse(fmt.Errorf("event %d was applied live and fails now, so its object would be lost: %s", event, reason))
	}
	_, err := w.Pool.Exec(ctx, dueSQL, w.hold.Run.Run, ids, tries)
	return true, err
}

const (
	// of and among are where outcomes of a run that are not applied are looked for: all of them, or those of some events.
	of    = `outcomes o WHERE o.run = $1 AND o.status IN ('failed', 'dead')`
	among = `unnest($2::bigint[]) AS k(id), LATERAL (SELECT x.* FROM outcomes x WHERE x.event_id = k.id AND x.run = $1 OFFSET 0) o WHERE o.status IN ('failed', 'dead')`

	// missedSQL finds events that failed in a run and have entered the mirror since, as a retry or a replay has had them applied.
	missedSQL      = missed + of + missedBut + ` AND o.event_id > $2 ORDER BY o.event_id LIMIT $3`
	missedAmongSQL = missed + among + missedBut + ` AND o.event_id > $3 ORDER BY o.event_id LIMIT $4`
	missed         = `
SELECT o.event_id, o.status FROM `
	missedBut = ` AND NOT ` + refused + ` AND ` + entered

	deadSQL      = dead + of + deadBut
	deadAmongSQL = dead + among + deadBut
	dead         = `
SELECT count(*), coalesce(min(o.event_id), 0), coalesce((array_agg(o.reason ORDER BY o.event_id))[1], '') FROM `
	deadBut = ` AND o.status = 'dead' AND ` + refused + ` AND NOT ` + outranked + ` AND ` + entered

	// outranked says that what an event said is in the mirror no more, since a delete for good was applied after it, and that it is dead here because it comes after that delete.
	outranked = `(o.reason = '` + versioning.FoundAlive + `' AND EXISTS (SELECT FROM objects m
    WHERE m.source = o.source AND m.account = o.account AND m.object_type = o.object_type AND m.object_id = o.object_id AND m.version_final OFFSET 0))`
)

// missed stages what has entered the mirror only after it had failed here: the swap would take it out of the mirror for good. What is in the mirror and
// dead here stops a swap that nobody has looked at. It looks at some events, or at all where some is nil.
func (w *work) missed(ctx context.Context, some []int64) (runs.Status, error) {
	findMissed, findDead, args := missedSQL, deadSQL, []any{w.hold.Run.Run}
	if some != nil {
		findMissed, findDead, args = missedAmongSQL, deadAmongSQL, append(args, some)
	}
	for after := int64(0); ; {
		var ids []int64
		was := map[versioning.Status]int64{}
		rows, err := w.Pool.Query(ctx, findMissed, append(slices.Clone(args), after, w.Settings.Chunk)...)
		if err != nil {
			return "", fmt.Errorf("look for what run %d has missed: %w", w.hold.Run.Run, err)
		}
		var status versioning.Status
		if _, err := pgx.ForEachRow(rows, []any{&after, &status}, func() error { ids = append(ids, after); was[status]++; return nil }); err != nil {
			return "", fmt.Errorf("look for what run %d has missed: %w", w.hold.Run.Run, err)
		}
		if len(ids) == 0 {
			break
		}
		if status, err := w.stageAgain(ctx, ids, was); err != nil || status != runs.Running {
			return status, err
		}
	}
	dead, err := deadIn(ctx, w.Pool, findDead, args...)
	if err != nil {
		return "", err
	}
	if dead.Events > 0 && !w.order.Seen {
		return "", runs.Refuse(fmt.Errorf("%d events that were applied live are dead now, the first of them %d (%s), and the mirror would lose what they said: "+
			"rebuild without --yes, compare, and swap it then if that is meant", dead.Events, dead.First, dead.Reason))
	}
	return runs.Running, nil
}

// stageAgain tries events again that have the given outcomes.
func (w *work) stageAgain(ctx context.Context, ids []int64, was map[versioning.Status]int64) (runs.Status, error) {
	to := w.target()
	to.Again = w.hold.Run.Run
	c, err := w.Processor.ReadChunk(ctx, ids)
	if err != nil {
		return "", err
	}
	counts, status, err := w.apply(ctx, to, c, w.hold.Abandoned)
	if err != nil || status != runs.Running {
		return status, err
	}
	for status, n := range was {
		w.hold.Counts[string(status)] -= n
	}
	for status, n := range counts {
		w.hold.Counts[string(status)] += n
	}
	return runs.Running, nil
}

// DeadEvents are events that are in the mirror and dead in a rebuild: the provider, as it is read now, refuses them.
type DeadEvents struct {
	Events int64 `json:"events"`
	// First is the least id of them, and Reason why that one is dead.
	First  int64  `json:"first,string"`
	Reason string `json:"reason"`
}

// deadIn counts them by deadSQL or deadAmongSQL; the first argument is the run.
func deadIn(ctx context.Context, db querier, sql string, args ...any) (d DeadEvents, err error) {
	if err := db.QueryRow(ctx, sql, args...).Scan(&d.Events, &d.First, &d.Reason); err != nil {
		return d, fmt.Errorf("look for dead events of run %d: %w", args[0], err)
	}
	return d, nil
}

// querier is a pool or a transaction.
type querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}
