package rebuild

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/apply"
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
// more. Each finds the rows of some keys, writes them, and announces the changes. A revision grows
// if readers see a difference, as in versioning.Save, and never decreases.
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

// part is one part of a swap as a statement. Its last three parameters are the keys.
type part struct {
	count, sql string
	args       []any
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
	join := "JOIN"
	if outer {
		join = "LEFT JOIN"
	}
	n := 4 + len(more)
	rows := fmt.Sprintf("unnest($%d::text[], $%d::text[], $%d::text[]) AS k(account, object_type, object_id) JOIN "+
		"%s ON true %s %s ON true", n, n+1, n+2, from.rowOf(), join, to.rowOf())
	return part{count: count, sql: "WITH found AS MATERIALIZED (" + fmt.Sprintf(find, rows) + write, args: more}
}

func parts() []part {
	null := versioning.NullState(false)
	return []part{newPart("", changed, changeSQL, liveTable, stagedTable, false),
		newPart("", added, addSQL, stagedTable, liveTable, true),
		newPart(Emptied, emptied, emptySQL, liveTable, stagedTable, true, null.Hash[:], null.ExactHash[:],
			versioning.RuleVersion)}
}

// updateRuleVersionSQL writes the staged rule version to live rows that differ in nothing else.
// Readers see no difference, so these rows are not counted.
const updateRuleVersionSQL = `
UPDATE objects o SET rule_version = s.rule_version, updated_at = clock_now()
FROM unnest($2::text[], $3::text[], $4::text[]) AS k(account, object_type, object_id)
	JOIN staged_objects s USING (account, object_type, object_id)
WHERE s.source = $1 AND o.source = $1 AND o.account = k.account AND o.object_type = k.object_type
	AND o.object_id = k.object_id
  AND o.rule_version <> s.rule_version AND NOT ` + differsExceptRule

// swap replaces the live objects with the staged ones, in key order and some at a time, and ends
// the run. It may be interrupted anywhere: the next owner of the run compares again, and replaced
// objects are equal then.
//
// Each object is replaced under its lock, when its staged row contains every event that its live
// row contains. An object that is equal when it is compared needs nothing: an event that is part of
// one row does not change the other. Events that are applied live later are applied by the current
// rule to equal rows.
func (w *work) swap(ctx context.Context) (runs.Status, error) {
	status, err := w.stageMissed(ctx)
	if err == nil && status == runs.Running {
		err = w.findFailed(ctx)
	}
	if err != nil || status != runs.Running {
		return status, err
	}
	c := &comparison{pool: w.Pool, run: &w.lease.Run, params: w.params, rows: swapRows, limit: 2 * swapRows}
	for last := false; !last; {
		if last, status, err = w.swapPage(ctx, c); err != nil || status != runs.Running {
			return status, err
		}
	}
	for _, count := range []string{Swapped, RevisionsGrown, Emptied} {
		w.lease.Counts[count] += 0
	}
	if err := postgres.InTx(ctx, w.Pool, "end the swap", stageTimeout, w.lease.CompleteInTx); err != nil {
		return "", err
	}
	w.log.Info("swapped", "objects", w.lease.Counts[Swapped], "grown", w.lease.Counts[RevisionsGrown],
		"emptied", w.lease.Counts[Emptied])
	return runs.Done, nil
}

// swapPage compares a page of objects and swaps those that differ.
func (w *work) swapPage(ctx context.Context, c *comparison) (last bool, status runs.Status, err error) {
	if err := w.beforeStep("compare"); err != nil {
		return false, "", err
	}
	page := &Page{}
	end, err := c.readPart(ctx, page)
	if err != nil {
		return false, "", fmt.Errorf("compare rebuild %d: %w", w.lease.Run.ID, err)
	}
	for items := range slices.Chunk(page.Items, w.Settings.Batch) {
		if status, err := w.swapBatch(ctx, items); err != nil || status != runs.Running {
			return false, status, err
		}
	}
	if end != nil {
		c.after = *end
	}
	status, err = w.lease.Advance(ctx, w.lease.Cursor)
	return end == nil, status, err
}

// swapBatch swaps some objects in one transaction. It first stages their newer events, so that only
// few remain to be staged under the locks.
func (w *work) swapBatch(ctx context.Context, items []Difference) (runs.Status, error) {
	b := w.newBatch(items)
	for {
		if status, err := w.stageNewer(ctx, b); err != nil || status != runs.Running {
			return status, err
		}
		if err := w.beforeStep("lock"); err != nil {
			return "", err
		}
		var counts map[string]int64
		err := postgres.InTx(ctx, w.Pool, "swap", stageTimeout, func(ctx context.Context, tx pgx.Tx) error {
			counts = maps.Clone(w.lease.Counts)
			return w.swapInTx(ctx, tx, b, counts)
		})
		if err == nil {
			w.lease.Counts = counts
			return runs.Running, nil
		}
		if !errors.Is(err, errNotStaged) {
			return "", err
		}
	}
}

// swapInTx locks the objects of a batch as applying does, stages the events that were applied to
// them just before, and replaces the live rows. Events of other objects are applied meanwhile.
func (w *work) swapInTx(ctx context.Context, tx pgx.Tx, b *batch, counts map[string]int64) error {
	if err := apply.LockStagedObjects(ctx, tx, b.keys); err != nil {
		return err
	}
	if err := w.beforeStep("locked"); err != nil {
		return err
	}
	if err := w.stageLocked(ctx, tx, b); err != nil {
		return err
	}
	rows := slices.SortedFunc(slices.Values(b.keys), versioning.Key.Compare)
	if err := versioning.LockRows(ctx, tx, rows); err != nil {
		return err
	}
	columns := []any{b.accounts, b.types, b.ids}
	if _, err := tx.Exec(ctx, updateRuleVersionSQL, slices.Concat([]any{w.params.Source}, columns)...); err != nil {
		return fmt.Errorf("update rule versions: %w", err)
	}
	for _, p := range parts() {
		args := slices.Concat([]any{w.params.Source, w.params.Type, w.Settings.ResendAfter}, p.args, columns)
		var found, written, grown int64
		if err := tx.QueryRow(ctx, p.sql, args...).Scan(&found, &written, &grown); err != nil {
			return fmt.Errorf("swap objects: %w", err)
		}
		if found != written {
			return fmt.Errorf("swap objects: only %d of %d rows were unchanged since they were found: another "+
				"client writes to the mirror without taking the locks", written, found)
		}
		if written > 0 {
			counts[Swapped] += written
			counts[RevisionsGrown] += grown
		}
		if p.count != "" {
			counts[p.count] += written
		}
	}
	if err := w.beforeStep("written"); err != nil {
		return err
	}
	return w.lease.SaveCountsInTx(ctx, tx, counts)
}
