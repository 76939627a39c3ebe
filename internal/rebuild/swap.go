package rebuild

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/lifecycle"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/versioning"
)

// The counts of a swap: objects that were written, whose revision grew, and of which the log makes nothing any more.
const (
	Swapped = "swapped"
	Grown   = "grown"
	Emptied = "emptied"
)

// noVersion is what an object's row has that nothing but hints made.
const noVersion = `-9223372036854775808`

// differsBut says that a live and a staged row are not the same object, whatever rule made them: VERSIONS, as docs/architecture.md puts it. The
// revision, the last event, the times and the look that is owed may depend on the order of arrival.
const differsBut = `(o.exact_hash, o.version_at, o.version_final, o.version_seen, o.version_rank, o.window_lo, o.window_hi, o.ambiguous, o.deleted, o.overflow,
  o.state_hash, o.repaired, o.tie_set, o.state, o.settled, o.overwrite_seen) IS DISTINCT FROM
  (s.exact_hash, s.version_at, s.version_final, s.version_seen, s.version_rank, s.window_lo, s.window_hi, s.ambiguous, s.deleted, s.overflow,
  s.state_hash, s.repaired, s.tie_set, s.state, s.settled, s.overwrite_seen)`

const differs = `(o.rule_version <> s.rule_version OR ` + differsBut + `)`

// empty says that a row is that of an object of which nothing is known.
const empty = `o.version_at = ` + noVersion + ` AND o.look_after = 0`

// tell leaves the changes of the written rows in the outbox, as if they had waited for the sweep already ($3 long), and counts.
const tell = `, told AS (
  INSERT INTO outbox (sources, accounts, types, ids, made_at)
  SELECT array_agg($1::int), array_agg(t.account), array_agg(t.object_type), array_agg(t.object_id), clock_now() - $3::interval
  FROM (SELECT w.account, w.object_type, w.object_id, (row_number() OVER () - 1) / 200 AS part FROM written w WHERE w.grew) t GROUP BY t.part
)
SELECT (SELECT count(*) FROM found), (SELECT count(*) FROM written), (SELECT count(*) FROM written w WHERE w.grew)`

// The parts of a swap: what has changed, what is new, and what the log makes no more. Each finds its rows, among all of the source or among
// some keys, writes them, and leaves their changes. A revision grows where readers see something else, as versioning.Save has it, and never falls.
const (
	changed = `
  SELECT o.ctid AS live, s.ctid AS staged, o.exact_hash <> s.exact_hash OR o.ambiguous <> s.ambiguous OR o.state IS DISTINCT FROM s.state
    OR (o.version_at = ` + noVersion + `) <> (s.version_at = ` + noVersion + `) AS grew
  FROM %s WHERE o.source = $1 AND s.source = $1 AND ($2 = '' OR o.object_type = $2 AND s.object_type = $2) AND ` + differs

	changeSQL = `), written AS (
  UPDATE objects o SET version_final = s.version_final, version_at = s.version_at, version_seen = s.version_seen, version_rank = s.version_rank,
    tie_set = s.tie_set, overflow = s.overflow, window_lo = s.window_lo, window_hi = s.window_hi, look_after = s.look_after, ambiguous = s.ambiguous,
    deleted = s.deleted, state_hash = s.state_hash, exact_hash = s.exact_hash, state = s.state, repaired = s.repaired, last_event_id = s.last_event_id,
    revision = o.revision + CASE WHEN f.grew THEN 1 ELSE 0 END, rule_version = s.rule_version, updated_at = (SELECT clock_now()), settled = s.settled,
    overwrite_seen = s.overwrite_seen
  FROM found f, staged s WHERE o.ctid = f.live AND s.ctid = f.staged
  RETURNING o.account, o.object_type, o.object_id, f.grew
)` + tell

	added = `
  SELECT s.ctid AS staged FROM %s WHERE s.source = $1 AND ($2 = '' OR s.object_type = $2) AND o.source IS NULL`

	addSQL = `), written AS (
  INSERT INTO objects AS o (` + columns + `)
  SELECT s.source, s.account, s.object_type, s.object_id, s.version_final, s.version_at, s.version_seen, s.version_rank, s.tie_set, s.overflow, s.window_lo,
    s.window_hi, s.look_after, s.ambiguous, s.deleted, s.state_hash, s.exact_hash, s.state, s.repaired, s.last_event_id,
    CASE WHEN s.version_at > ` + noVersion + ` THEN 1 ELSE 0 END, s.rule_version, now.at, now.at, s.settled, s.overwrite_seen
  FROM found f JOIN staged s ON s.ctid = f.staged, (SELECT clock_now() AS at) now
  RETURNING o.account, o.object_type, o.object_id, o.revision > 0 AS grew
)` + tell

	emptied = `
  SELECT o.ctid AS live, o.version_at > ` + noVersion + ` AS grew FROM %s
  WHERE o.source = $1 AND ($2 = '' OR o.object_type = $2) AND NOT (` + empty + `) AND s.source IS NULL`

	// emptySQL keeps the rows of objects of which the log makes nothing any more, without a version and a state: a row that went would take
	// its revision along, and the object's next one would be lower.
	emptySQL = `), written AS (
  UPDATE objects o SET version_final = false, version_at = ` + noVersion + `, version_seen = 0, version_rank = 0, tie_set = '[]', overflow = false,
    window_lo = ` + noVersion + `, window_hi = ` + noVersion + `, look_after = 0, ambiguous = false, deleted = false, state_hash = $4, exact_hash = $5, state = NULL,
    repaired = false, last_event_id = 0, revision = o.revision + CASE WHEN f.grew THEN 1 ELSE 0 END, rule_version = $6, updated_at = (SELECT clock_now()), settled = 0,
    overwrite_seen = 0
  FROM found f WHERE o.ctid = f.live
  RETURNING o.account, o.object_type, o.object_id, f.grew
)` + tell
)

// part is one of them, as two statements: for all of the source, and for the keys in the three parameters behind the others.
type part struct {
	count     string
	all, some string
	more      []any
}

// table is one of the two tables under the name that the statements have for it.
type table struct{ name, as string }

var (
	live = table{"objects", "o"}
	made = table{"staged", "s"}
)

// of finds the table's row of a key by its index, whatever the planner believes of a table that has just been filled.
func (t table) of() string {
	return fmt.Sprintf(`LATERAL (SELECT x.ctid, x.* FROM %s x WHERE x.source = $1 AND x.account = k.account AND x.object_type = k.object_type AND x.object_id = k.object_id
    LIMIT 1) %s`, t.name, t.as)
}

// newPart makes a part that reads one table and joins another to it; outer: also where the other has no row.
func newPart(count, find, write string, from, to table, outer bool, more ...any) part {
	join, same := "JOIN", "s.source = o.source AND s.account = o.account AND s.object_type = o.object_type AND s.object_id = o.object_id"
	if outer {
		join = "LEFT JOIN"
	}
	all := fmt.Sprintf("%s %s %s %s %s ON %s", from.name, from.as, join, to.name, to.as, same)
	n := 4 + len(more)
	some := fmt.Sprintf("unnest($%d::text[], $%d::text[], $%d::text[]) AS k(account, object_type, object_id) JOIN %s ON true %s %s ON true", n, n+1, n+2, from.of(), join, to.of())
	begin := "WITH found AS MATERIALIZED (" + find
	return part{count: count, all: fmt.Sprintf(begin, all) + write, some: fmt.Sprintf(begin, some) + write, more: more}
}

func parts() []part {
	null := versioning.NullState(false)
	return []part{newPart("", changed, changeSQL, live, made, false), newPart("", added, addSQL, made, live, true),
		newPart(Emptied, emptied, emptySQL, live, made, true, null.Hash[:], null.Exact[:], versioning.RuleVersion)}
}

func swapStatements() (all []string) {
	for _, p := range parts() {
		all = append(all, p.all, p.some)
	}
	return all
}

// aloneSQL takes a source's lock alone, and gives up after a while: batches that come wait behind it.
const aloneSQL = `SELECT set_config('lock_timeout', $1, true)`

// errBehind: there was more to catch up with than live events can be held up for.
var errBehind = errors.New("not caught up in time")

// swap puts the staged objects in the place of the live ones.
func (w *work) swap(ctx context.Context) (runs.Status, error) {
	for {
		status, err := w.ready(ctx)
		if err != nil || status != runs.Running {
			return status, err
		}
		if err := w.at("lock"); err != nil {
			return "", err
		}
		began := time.Now()
		err = w.exchange(ctx)
		switch {
		case err == nil:
			w.log.Info("swapped", "objects", w.hold.Counts[Swapped], "grown", w.hold.Counts[Grown], "emptied", w.hold.Counts[Emptied],
				"duration_ms", time.Since(began).Milliseconds())
			return runs.Done, nil
		case ctx.Err() != nil || !errors.Is(err, errBehind) && !errors.Is(err, runs.ErrLost) && postgres.Code(err) != lockNotAvailable:
			return "", err
		}
		if status, err := w.hold.Advance(ctx, w.hold.Cursor); err != nil || status != runs.Running { // a person may have stopped it
			return status, err
		}
		w.log.Warn("not swapped; tried again", "error", err)
		runs.Pause(ctx, w.Settings.Again)
	}
}

// lockNotAvailable is the error of who has waited for a lock as long as it would.
const lockNotAvailable = "55P03"

// exchange is the swap's transaction: no live event of the source is applied from its lock to its end, so that what is staged by then
// contains all that the mirror shows. It is caught up over connections of its own, whose transactions stand even where this one fails.
func (w *work) exchange(ctx context.Context) error {
	return postgres.InTx(ctx, w.Pool, "swap", w.Settings.Swap, func(held context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(held, aloneSQL, fmt.Sprintf("%dms", w.Settings.Lock.Milliseconds())); err != nil {
			return err
		}
		if _, err := tx.Exec(held, sourceLockSQL, versioning.SourceLock, w.order.Source); err != nil {
			return fmt.Errorf("hold up live events: %w", err)
		}
		if err := w.at("locked"); err != nil {
			return err
		}
		if err := w.catchUpHeld(ctx); err != nil {
			return err
		}
		return w.write(held, tx)
	})
}

// catchUpHeld stages what the log has got since, while live events are held up.
func (w *work) catchUpHeld(ctx context.Context) error {
	soon, cancel := lifecycle.WithTimeout(ctx, "catch up", w.Settings.CatchUp)
	defer cancel()
	status := runs.Running
	var err error
	if w.hold.Cursor < w.hold.Bound { // a bound of before the lock, left by an attempt that failed
		status, err = w.walk(soon)
	}
	if err == nil && status == runs.Running {
		status, err = w.walk(soon)
	}
	if err == nil && status == runs.Running {
		status, err = w.missedSince(soon)
	}
	switch {
	case err != nil && ctx.Err() == nil && soon.Err() != nil:
		return fmt.Errorf("%w (%w)", errBehind, err)
	case err == nil && status != runs.Running:
		return runs.ErrLost
	}
	return err
}

// write ends the run and writes the objects, together.
func (w *work) write(ctx context.Context, tx pgx.Tx) error {
	counts := maps.Clone(w.hold.Counts)
	counts[Swapped], counts[Grown], counts[Emptied] = 0, 0, 0 // an attempt may have failed at its end
	keys, known := w.differing.list()
	for _, p := range parts() {
		sql, args := p.all, append([]any{w.order.Source, w.order.Type, w.Processor.Settings.SweepAfter}, p.more...)
		if known {
			sql, args = p.some, append(args, keys.accounts, keys.types, keys.ids)
		}
		var found, written, grown int64
		if err := tx.QueryRow(ctx, sql, args...).Scan(&found, &written, &grown); err != nil {
			return fmt.Errorf("swap objects: %w", err)
		}
		if found != written {
			return fmt.Errorf("swap objects: only %d of %d rows were as they had been found: somebody writes into the mirror past the locks", written, found)
		}
		counts[Swapped] += written
		counts[Grown] += grown
		if p.count != "" {
			counts[p.count] += written
		}
	}
	w.hold.Counts = counts
	return w.hold.Done(ctx, tx)
}
