package objectscan

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/versioning"
)

// stateTimeout bounds a transaction that stores a scan's progress. Deleting the listed objects may
// take a while.
const stateTimeout = 5 * time.Minute

// progressColumns are the columns that progress.scan reads.
const progressColumns = `s.phase, s.cursor, s.in_progress, s.since, s.until, s.started_at, s.restarts,
  s.tombstones_proposed, s.checked, s.missing, s.mirror_older, s.mirror_newer, s.content_differs, s.not_listed,
  s.orphans, s.repaired, s.unrepaired, s.skipped_parts, s.scope, s.rereads, s.reason`

const (
	loadScanSQL = `SELECT ` + progressColumns + ` FROM object_scans s WHERE s.run = $1 AND s.object_type = $2`

	// deleteEndedListedSQL steps over the runs with listed objects, and deletes those of ended
	// runs.
	deleteEndedListedSQL = `
WITH RECURSIVE hop(run) AS (
  SELECT min(l.run) FROM listed_objects l
  UNION ALL
  SELECT (SELECT min(l.run) FROM listed_objects l WHERE l.run > hop.run) FROM hop WHERE hop.run IS NOT NULL
)
DELETE FROM listed_objects l WHERE l.run IN (SELECT h.run FROM hop h WHERE NOT EXISTS (SELECT FROM runs r
	WHERE r.run = h.run
	AND r.ended_at IS NULL))`

	deleteEndedOrphansSQL = `DELETE FROM orphans g USING runs r WHERE r.run = g.run AND r.ended_at IS NOT NULL`
)

// deleteEndedState deletes the intermediate data of ended runs.
func (r *Run) deleteEndedState(ctx context.Context) error {
	for _, sql := range []string{deleteEndedListedSQL, deleteEndedOrphansSQL} {
		if _, err := r.Pool.Exec(ctx, sql); err != nil {
			return fmt.Errorf("delete the intermediate data of ended runs: %w", err)
		}
	}
	return nil
}

// load reads the scan's progress. Errors: pgx.ErrNoRows.
func (s *objectScan) load(ctx context.Context) error {
	err := s.scan(s.Pool.QueryRow(ctx, loadScanSQL, s.Lease.Run.ID, s.objectType))
	if err != nil {
		return fmt.Errorf("read the progress of the scan of type %s: %w", s.objectType, err)
	}
	return nil
}

// scan reads the stored progress. With an error the progress stays as it was.
func (p *progress) scan(row pgx.Row) error {
	var q progress
	var since, until *time.Time
	if err := row.Scan(&q.phase, &q.cursor, &q.pendingRepairs, &since, &until, &q.listedSince, &q.restarts,
		&q.approvalRequested, &q.Checked, &q.Missing, &q.MirrorOlder, &q.MirrorNewer, &q.ContentDiffers, &q.NotListed,
		&q.Orphans, &q.Repaired, &q.Unrepaired, &q.skipped, &q.scope, &q.rereads, &q.reason); err != nil {
		return err
	}
	q.changedFrom, q.changedUntil, q.listedSince = zeroTime(since), zeroTime(until), q.listedSince.UTC()
	q.Equal = q.Checked - q.Missing - q.MirrorOlder - q.MirrorNewer - q.ContentDiffers
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

// change changes the stored scan in one transaction, while this process has the run's lease. It
// does not wait for the disk. A server crash may undo the last of these changes, each as a whole.
// Later appends do wait for the disk, and for these changes too.
func (s *objectScan) change(ctx context.Context, name string, fn func(context.Context, pgx.Tx) error) error {
	return s.changeAfter(ctx, name, func(context.Context, pgx.Tx) error { return nil }, fn)
}

// changeAfter is change with a step before the lease is checked, because locks of objects come
// first.
func (s *objectScan) changeAfter(ctx context.Context, name string, first,
	fn func(context.Context, pgx.Tx) error) error {
	return postgres.InTx(ctx, s.Pool, name, stateTimeout, func(ctx context.Context, tx pgx.Tx) error {
		if err := first(ctx, tx); err != nil {
			return err
		}
		if err := s.Lease.Guard(ctx, tx); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `SET LOCAL synchronous_commit = off`); err != nil {
			return err
		}
		return fn(ctx, tx)
	})
}

// scanPosition is where a scan continues.
type scanPosition struct {
	phase, cursor string
	// compared are the objects that were compared up to there. Those that differ become pending
	// repairs.
	compared []*item
	// notListed are those of them that are alive and were not listed.
	notListed []*item
	// missing are the objects that the API reports as missing.
	missing []*item
	// skipped are the parts of the list that were skipped up to there.
	skipped []SkippedPart
}

// advanceScanSQL advances the scan. $5 are the compared objects, $6 and $7 those that are not equal
// and their kinds, of which those with $8 become pending repairs. $9 are the skipped parts, $10
// those of $5 that were not listed (none was compared before), and $11 those that need a repair. An
// object counts when it is compared first. If it was unrepaired then and needs no repair now, it no
// longer counts as unrepaired.
const advanceScanSQL = `
WITH fresh AS (
  INSERT INTO listed_objects (run, object_type, object, drifted) SELECT $1, $2, hashtextextended(d.id, 0),
  	d.id = ANY($11::text[])
  	FROM unnest($5::text[]) AS d(id) ON CONFLICT DO NOTHING RETURNING object
), odd AS (
  SELECT d.id, d.kind, d.in_progress, f.object IS NOT NULL AS counted, d.id = ANY($10::text[]) AS not_listed
  	FROM unnest($6::text[], $7::text[], $8::bool[]) AS d(id, kind, in_progress) LEFT
  	JOIN fresh f ON f.object = hashtextextended(d.id, 0)
), righted AS (
  UPDATE listed_objects l SET unrepaired = false WHERE l.run = $1 AND l.object_type = $2 AND l.unrepaired
  	AND (SELECT s.unrepaired > 0
  	FROM object_scans s WHERE s.run = $1 AND s.object_type = $2)
    AND l.object = ANY(ARRAY(SELECT hashtextextended(d.id, 0) FROM unnest($5::text[]) AS d(id)
    	WHERE d.id <> ALL($11::text[]))) RETURNING l.drifted
), n AS (
  SELECT count(*) FILTER (WHERE kind = 'missing') AS missing, count(*) FILTER (WHERE kind = 'mirror_older') AS
  	mirror_older,
  	count(*) FILTER (WHERE kind = 'mirror_newer') AS mirror_newer,
    count(*) FILTER (WHERE kind = 'content_differs') AS content_differs FROM odd WHERE counted
)
UPDATE object_scans s SET phase = $3, cursor = $4, skipped_parts = s.skipped_parts || $9, updated_at = clock_now(),
	checked = s.checked + (SELECT count(*) FROM fresh),
  missing = s.missing + n.missing, mirror_older = s.mirror_older + n.mirror_older, mirror_newer = s.mirror_newer +
  	n.mirror_newer, content_differs = s.content_differs +
  	n.content_differs,
  not_listed = s.not_listed + cardinality($10::text[]), unrepaired = s.unrepaired - (SELECT count(*) FROM righted),
  	repaired = s.repaired + (SELECT count(*) FILTER (WHERE drifted) FROM righted),
  in_progress = (SELECT coalesce(jsonb_agg(jsonb_build_object('id', o.id, 'kind', o.kind, 'counted', o.counted,
  	'not_listed',
  	o.not_listed)), '[]') FROM odd o WHERE o.in_progress)
FROM n WHERE s.run = $1 AND s.object_type = $2 RETURNING ` + progressColumns

// storeProgress advances the scan to a position with the objects that were compared.
func (s *objectScan) storeProgress(ctx context.Context, to *scanPosition, items []*item) error {
	compared, notListed := itemIDs(to.compared), itemIDs(to.notListed)
	var ids, kinds []string
	var pending []bool
	for _, it := range items {
		if it.kind != equal {
			ids, kinds, pending = append(ids, it.id), append(kinds, string(it.kind)),
				append(pending, it.kind.needsRepair() && !s.Params.DryRun)
		}
	}
	needRepair := filter(items, func(it *item) bool { return it.kind.needsRepair() })
	return s.changeWithDetails(ctx, needRepair, func(ctx context.Context, tx pgx.Tx) error {
		if err := s.scan(tx.QueryRow(ctx, advanceScanSQL, s.Lease.Run.ID, s.objectType, to.phase, to.cursor, compared,
			ids, kinds, pending, append([]SkippedPart{}, to.skipped...), notListed, itemIDs(needRepair))); err != nil {
			return err
		}
		counted := map[string]bool{}
		for _, h := range s.pendingRepairs {
			counted[h.ID] = h.Counted
		}
		for _, it := range needRepair {
			it.counted = counted[it.id]
		}
		return s.insertOrphans(ctx, tx, to.missing)
	})
}

func itemIDs(items []*item) []string {
	ids := make([]string, len(items))
	for i, it := range items {
		ids[i] = it.id
	}
	return ids
}

// recordRepairsSQL deletes the pending repairs. $4 are the unrepaired objects. $5 are the repaired
// ones that did not count this time: they counted before, and may have been unrepaired then. $10
// are those of $4 that did not count either; if they had a difference before, they had been
// repaired. $6 to $9 are the results of objects whose difference is stored.
const recordRepairsSQL = `
WITH stays AS (
  UPDATE listed_objects l SET unrepaired = true WHERE l.run = $1 AND l.object_type = $2
  	AND l.object = ANY(ARRAY(SELECT hashtextextended(d.id, 0) FROM unnest($4::text[]) AS d(id))) AND NOT l.unrepaired
  RETURNING l.drifted AND l.object = ANY(ARRAY(SELECT hashtextextended(d.id, 0) FROM unnest($10::text[]) AS d(id))) AS
  	repaired
), righted AS (
  UPDATE listed_objects l SET unrepaired = false WHERE l.run = $1 AND l.object_type = $2
  	AND l.object = ANY(ARRAY(SELECT hashtextextended(d.id, 0) FROM unnest($5::text[]) AS d(id))) AND l.unrepaired
  	RETURNING l.drifted
), told AS (
  UPDATE drifts d SET event_id = nullif(u.event, 0), result = u.result, reason = u.reason
  	FROM unnest($6::text[], $7::bigint[], $8::text[], $9::text[]) AS u(id, event, result, reason)
  WHERE d.run = $1 AND d.object_type = $2 AND d.object_id = u.id
)
UPDATE object_scans s SET in_progress = '[]', repaired = s.repaired + $3 + n.repaired - n.worse,
	unrepaired = s.unrepaired + n.stay -
	n.righted, updated_at = clock_now()
FROM (SELECT st.stay, st.worse, r.righted, r.repaired FROM (SELECT count(*) AS stay, count(*) FILTER (WHERE repaired) AS
	worse FROM stays) st, (SELECT count(*) AS righted, count(*) FILTER (WHERE drifted) AS repaired FROM righted) r) n
WHERE s.run = $1 AND s.object_type = $2 RETURNING ` + progressColumns

// outcome is the result of an object that was to be repaired.
type outcome struct {
	id    string
	event int64
	// reason is why it is unrepaired, "" if it is repaired.
	reason string
	// counted: the object was counted with its kind.
	counted bool
	// mirrorNewer: the API reported it as missing, and a newer state shows it alive. No repair was
	// needed.
	mirrorNewer bool
}

// recordRepairs stores the results of the pending repairs. An unrepaired object that did not count
// this time was compared before. It counts as unrepaired once, because the watermark must not
// advance, until it is repaired. An object counts as repaired if it differed when it was first
// compared and does not differ any more.
func (s *objectScan) recordRepairs(ctx context.Context, all []outcome) error {
	t := toColumns(all)
	var unrepaired, unrepairedAgain, repaired []string
	for _, o := range all {
		switch {
		case o.reason != "" && !o.counted:
			unrepairedAgain = append(unrepairedAgain, o.id)
			fallthrough
		case o.reason != "":
			unrepaired = append(unrepaired, o.id)
		case !o.counted:
			repaired = append(repaired, o.id)
		}
	}
	return s.change(ctx, "store the results of repairs", func(ctx context.Context, tx pgx.Tx) error {
		return s.scan(tx.QueryRow(ctx, recordRepairsSQL, s.Lease.Run.ID, s.objectType, t.repaired, unrepaired, repaired,
			t.ids, t.events, t.results, t.reasons, unrepairedAgain))
	})
}

// outcomeColumns are the results of some objects as columns, with the numbers of repaired and
// unrepaired ones.
type outcomeColumns struct {
	ids, results, reasons []string
	events                []int64
	repaired, unrepaired  int64
}

func toColumns(all []outcome) (t outcomeColumns) {
	for _, o := range all {
		result := "repaired"
		switch {
		case o.reason != "":
			t.unrepaired++
			result = "unrepaired"
		case o.mirrorNewer:
			result = "mirror_newer"
		case o.counted:
			t.repaired++
		}
		t.ids, t.events, t.results, t.reasons = append(t.ids, o.id), append(t.events, o.event),
			append(t.results, result), append(t.reasons, o.reason)
	}
	return t
}

const restartListSQL = `UPDATE object_scans s SET cursor = '', restarts = s.restarts + 1, skipped_parts = '[]',
	updated_at = clock_now() WHERE s.run = $1 AND s.object_type = $2 RETURNING ` + progressColumns

// restartList makes the list start again.
func (s *objectScan) restartList(ctx context.Context) error {
	return s.change(ctx, "start a list again", func(ctx context.Context, tx pgx.Tx) error {
		return s.scan(tx.QueryRow(ctx, restartListSQL, s.Lease.Run.ID, s.objectType))
	})
}

const (
	finishScanSQL = `UPDATE object_scans s SET phase = 'done', cursor = '', versions_only = $3, updated_at = clock_now()
		WHERE s.run = $1 AND s.object_type = $2 RETURNING ` + progressColumns

	deleteListedSQL = `DELETE FROM listed_objects WHERE run = $1 AND object_type = $2`
)

// finish ends the scan of the type and raises its watermarks, unless an object is unrepaired.
func (s *objectScan) finish(ctx context.Context) error {
	return s.change(ctx, "end the scan of a type", func(ctx context.Context, tx pgx.Tx) error {
		if err := s.scan(tx.QueryRow(ctx, finishScanSQL, s.Lease.Run.ID, s.objectType, s.list.VersionsOnly &&
			s.listsEverything())); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, deleteListedSQL, s.Lease.Run.ID, s.objectType); err != nil {
			return err
		}
		return s.raiseWatermarks(ctx, tx)
	})
}

// key returns the key of an object of the scan.
func (s *objectScan) key(id string) versioning.Key {
	return versioning.Key{Source: s.Source.Number, Account: s.Params.Account, Type: s.objectType, ID: id}
}
