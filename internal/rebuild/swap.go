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

// The counts of a swap: objects that were replaced, those of them whose revision grew, and those of
// them that were removed from the mirror because the log does not produce them any more.
const (
	Swapped        = "swapped"
	RevisionsGrown = "grown"
	Emptied        = "emptied"
)

// noVersion is the version_at of versioning.NoVersion.
const noVersion = `-9223372036854775808`

// differsExceptRule tells that a live and a staged row differ in more than the rule version. It
// ignores the revision, the last event, the times of the row and the pending refetch, which may
// depend on the order of arrival. See docs/explanation/versions.md.
const differsExceptRule = `(o.exact_hash, o.version_at, o.version_final, o.version_seen, o.version_rank, o.time_from,
	o.time_to, o.ambiguous, o.deleted, o.overflow,
  o.state_hash, o.sanitized, o.tied_states, o.state, o.overwritten_at, o.overwrite_seen) IS DISTINCT FROM
  (s.exact_hash, s.version_at, s.version_final, s.version_seen, s.version_rank, s.time_from, s.time_to, s.ambiguous,
  	s.deleted, s.overflow,
  s.state_hash, s.sanitized, s.tied_states, s.state, s.overwritten_at, s.overwrite_seen)`

const differs = `(o.rule_version <> s.rule_version OR ` + differsExceptRule + `)`

// unknownObject tells that a row has no version and no pending refetch.
const unknownObject = `o.version_at = ` + noVersion + ` AND o.refetch_after = 0`

// announceWritten inserts the changes of the written rows into the outbox and counts them. The rows
// get an old created_at ($3 ago), so that the next resend publishes them at once.
const announceWritten = `, announced AS (
  INSERT INTO outbox (sources, accounts, types, ids, created_at, forward_pending)
  SELECT array_agg($1::int), array_agg(t.account), array_agg(t.object_type), array_agg(t.object_id),
  	clock_now() - $3::interval, true
  FROM (SELECT w.account, w.object_type, w.object_id, (row_number() OVER () - 1) / 200 AS part FROM written w
  	WHERE w.grew) t GROUP BY t.part
)
SELECT (SELECT count(*) FROM found), (SELECT count(*) FROM written), (SELECT count(*) FROM written w WHERE w.grew)`

// The parts of a swap: changed objects, new objects, and objects that the log does not produce any
// more. Each finds its rows, in the whole source or by keys, writes them, and announces the
// changes. A revision grows if readers see a difference, as in versioning.Save, and never
// decreases.
const (
	changed = `
  SELECT o.ctid AS live, s.ctid AS staged, o.exact_hash <> s.exact_hash OR o.ambiguous <> s.ambiguous
  	OR o.state IS DISTINCT FROM s.state
    OR (o.version_at = ` + noVersion + `) <> (s.version_at = ` + noVersion + `) AS grew
  FROM %s WHERE o.source = $1 AND s.source = $1 AND ($2 = '' OR o.object_type = $2 AND s.object_type = $2)
  	AND ` + differs

	changeSQL = `), written AS (
  UPDATE objects o SET version_final = s.version_final, version_at = s.version_at, version_seen = s.version_seen,
  	version_rank = s.version_rank,
    tied_states = s.tied_states, overflow = s.overflow, time_from = s.time_from, time_to = s.time_to,
    	refetch_after = s.refetch_after, ambiguous = s.ambiguous,
    deleted = s.deleted, state_hash = s.state_hash, exact_hash = s.exact_hash, state = s.state, sanitized = s.sanitized,
    	last_event_id = s.last_event_id,
    revision = o.revision + CASE WHEN f.grew THEN 1 ELSE 0 END, rule_version = s.rule_version,
    	updated_at = (SELECT clock_now()), overwritten_at = s.overwritten_at,
    overwrite_seen = s.overwrite_seen
  FROM found f, staged_objects s WHERE o.ctid = f.live AND s.ctid = f.staged
  RETURNING o.account, o.object_type, o.object_id, f.grew
)` + announceWritten

	added = `
  SELECT s.ctid AS staged FROM %s WHERE s.source = $1 AND ($2 = '' OR s.object_type = $2) AND o.source IS NULL`

	addSQL = `), written AS (
  INSERT INTO objects AS o (` + columns + `)
  SELECT s.source, s.account, s.object_type, s.object_id, s.version_final, s.version_at, s.version_seen, s.version_rank,
  	s.tied_states, s.overflow, s.time_from,
    s.time_to, s.refetch_after, s.ambiguous, s.deleted, s.state_hash, s.exact_hash, s.state, s.sanitized,
    	s.last_event_id,
    CASE WHEN s.version_at > ` + noVersion + ` THEN 1 ELSE 0 END, s.rule_version, now.at, now.at, s.overwritten_at,
	s.overwrite_seen
  FROM found f JOIN staged_objects s ON s.ctid = f.staged, (SELECT clock_now() AS at) now
  RETURNING o.account, o.object_type, o.object_id, o.revision > 0 AS grew
)` + announceWritten

	emptied = `
  SELECT o.ctid AS live, o.version_at > ` + noVersion + ` AS grew FROM %s
  WHERE o.source = $1 AND ($2 = '' OR o.object_type = $2) AND NOT (` + unknownObject + `) AND s.source IS NULL`

	// emptySQL keeps the rows of objects that the log does not produce any more, without a version
	// and a state. If a row were deleted, its revision would be lost, and the object's next
	// revision would be lower.
	emptySQL = `), written AS (
  UPDATE objects o SET version_final = false, version_at = ` +
		noVersion + `, version_seen = 0, version_rank = 0, tied_states = '[]', overflow = false,
    time_from = ` + noVersion + `, time_to = ` + noVersion + `, refetch_after = 0, ambiguous = false, deleted = false,
	state_hash = $4, exact_hash = $5, state = NULL,
    sanitized = false, last_event_id = 0, revision = o.revision + CASE WHEN f.grew THEN 1 ELSE 0 END, rule_version = $6,
    	updated_at = (SELECT clock_now()), overwritten_at = 0,
    overwrite_seen = 0
  FROM found f WHERE o.ctid = f.live
  RETURNING o.account, o.object_type, o.object_id, f.grew
)` + announceWritten
)

// part is one part of a swap as two statements. allRows writes all objects of the source, byKeys
// those whose keys are in the last three parameters.
type part struct {
	count           string
	allRows, byKeys string
	args            []any
}

// table is one of the two tables with its alias in the statements.
type table struct{ name, alias string }

var (
	liveTable   = table{"objects", "o"}
	stagedTable = table{"staged_objects", "s"}
)

// rowOf finds the table's row of a key by its index, whatever the planner estimates for a table
// that has just been filled.
func (t table) rowOf() string {
	return fmt.Sprintf(`LATERAL (SELECT x.ctid, x.* FROM %s x WHERE x.source = $1 AND x.account = k.account
		AND x.object_type = k.object_type AND x.object_id = k.object_id
    LIMIT 1) %s`, t.name, t.alias)
}

// newPart makes a part that reads one table and joins another. With outer, rows without a match are
// included.
func newPart(count, find, write string, from, to table, outer bool, more ...any) part {
	join, same := "JOIN", "s.source = o.source AND s.account = o.account AND s.object_type = o.object_type AND "+
		"s.object_id = o.object_id"
	if outer {
		join = "LEFT JOIN"
	}
	all := fmt.Sprintf("%s %s %s %s %s ON %s", from.name, from.alias, join, to.name, to.alias, same)
	n := 4 + len(more)
	some := fmt.Sprintf("unnest($%d::text[], $%d::text[], $%d::text[]) AS k(account, object_type, object_id) JOIN "+
		"%s ON true %s %s ON true", n, n+1, n+2, from.rowOf(), join, to.rowOf())
	begin := "WITH found AS MATERIALIZED (" + find
	return part{count: count, allRows: fmt.Sprintf(begin, all) + write, byKeys: fmt.Sprintf(begin, some) + write,
		args: more}
}

func parts() []part {
	null := versioning.NullState(false)
	return []part{newPart("", changed, changeSQL, liveTable, stagedTable, false),
		newPart("", added, addSQL, stagedTable, liveTable, true),
		newPart(Emptied, emptied, emptySQL, liveTable, stagedTable, true, null.Hash[:], null.ExactHash[:],
			versioning.RuleVersion)}
}

// lockTimeoutSQL bounds the wait for the exclusive lock of a source, because new batches wait
// behind it.
const lockTimeoutSQL = `SELECT set_config('lock_timeout', $1, true)`

// errNotCaughtUp says that there were more events to catch up with than the time allows while live
// events are blocked.
var errNotCaughtUp = errors.New("not caught up in time")

// swap replaces the live objects with the staged ones.
func (w *work) swap(ctx context.Context) (runs.Status, error) {
	for {
		status, err := w.prepareSwap(ctx)
		if err != nil || status != runs.Running {
			return status, err
		}
		if err := w.beforeStep("lock"); err != nil {
			return "", err
		}
		began := time.Now()
		err = w.swapInTx(ctx)
		switch {
		case err == nil:
			w.log.Info("swapped", "objects", w.lease.Counts[Swapped], "grown", w.lease.Counts[RevisionsGrown],
				"emptied", w.lease.Counts[Emptied], "duration_ms", time.Since(began).Milliseconds())
			return runs.Done, nil
		case ctx.Err() != nil || !errors.Is(err, errNotCaughtUp) && !errors.Is(err, runs.ErrLeaseLost) &&
			postgres.Code(err) != lockNotAvailable:
			return "", err
		}
		// an operator may have stopped the run
		if status, err := w.lease.Advance(ctx, w.lease.Cursor); err != nil || status != runs.Running {
			return status, err
		}
		w.log.Warn("not swapped; retrying", "error", err)
		runs.Sleep(ctx, w.Settings.RetryPause)
	}
}

// lockNotAvailable is the SQLSTATE of a lock wait that timed out.
const lockNotAvailable = "55P03"

// swapInTx runs the transaction of a swap. From its lock to its end no live event of the source is
// applied. After the catch-up the staged objects therefore contain every event that the mirror
// contains. The catch-up uses other connections, and its transactions remain if this one fails.
func (w *work) swapInTx(ctx context.Context) error {
	return postgres.InTx(ctx, w.Pool, "swap", w.Settings.SwapTimeout, func(txCtx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(txCtx, lockTimeoutSQL,
			fmt.Sprintf("%dms", w.Settings.LockTimeout.Milliseconds())); err != nil {
			return err
		}
		if _, err := tx.Exec(txCtx, sourceLockSQL, versioning.SourceLock, w.params.Source); err != nil {
			return fmt.Errorf("block live events: %w", err)
		}
		if err := w.beforeStep("locked"); err != nil {
			return err
		}
		if err := w.catchUpLocked(ctx); err != nil {
			return err
		}
		return w.writeSwap(txCtx, tx)
	})
}

// catchUpLocked stages the newest events of the log while live events are blocked.
func (w *work) catchUpLocked(ctx context.Context) error {
	soon, cancel := lifecycle.WithTimeout(ctx, "catch up", w.Settings.CatchUpTimeout)
	defer cancel()
	status := runs.Running
	var err error
	if w.lease.Cursor < w.lease.Bound { // a bound from before the lock, left by a failed attempt
		status, err = w.stageLog(soon)
	}
	if err == nil && status == runs.Running {
		status, err = w.stageLog(soon)
	}
	if err == nil && status == runs.Running {
		status, err = w.stageMissed(soon)
	}
	switch {
	case err != nil && ctx.Err() == nil && soon.Err() != nil:
		return fmt.Errorf("%w (%w)", errNotCaughtUp, err)
	case err == nil && status != runs.Running:
		return runs.ErrLeaseLost
	}
	return err
}

// writeSwap writes the objects and ends the run, in one transaction.
func (w *work) writeSwap(ctx context.Context, tx pgx.Tx) error {
	counts := maps.Clone(w.lease.Counts)
	counts[Swapped], counts[RevisionsGrown], counts[Emptied] = 0, 0, 0 // a previous attempt may have failed at its end
	keys, complete := w.differing.list()
	for _, p := range parts() {
		sql, args := p.allRows, append([]any{w.params.Source, w.params.Type, w.Settings.ResendAfter},
			p.args...)
		if complete {
			sql, args = p.byKeys, append(args, keys.accounts, keys.types, keys.ids)
		}
		var found, written, grown int64
		if err := tx.QueryRow(ctx, sql, args...).Scan(&found, &written, &grown); err != nil {
			return fmt.Errorf("swap objects: %w", err)
		}
		if found != written {
			return fmt.Errorf("swap objects: only %d of %d rows were unchanged since they were found: another "+
				"client writes to the mirror without taking the locks", written, found)
		}
		counts[Swapped] += written
		counts[RevisionsGrown] += grown
		if p.count != "" {
			counts[p.count] += written
		}
	}
	w.lease.Counts = counts
	return w.lease.CompleteInTx(ctx, tx)
}
