package objectscan

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/providerapi"
	"github.com/postern-gateway/postern/internal/refetch"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/versioning"
)

const (
	// walkBatch is how many mirrored rows one step compares with the list. confirmBatch is how many
	// objects are refetched between two checkpoints.
	walkBatch, confirmBatch = 5000, 100
)

// walkSQL reads a batch of mirrored objects. It returns the last id of the batch, and the living
// objects that were not listed and may have been observed before the list began. A late event can
// be of any time before it arrived. Listed objects are looked up one by one, because a NOT EXISTS
// may become a join that reads all of them for each batch. Rows are read only for objects that were
// not listed; the index has everything else.
const walkSQL = `
WITH page AS MATERIALIZED (
  SELECT o.object_id FROM objects o WHERE o.source = $1 AND o.account = $2 AND o.object_type = $3 AND o.object_id > $4
  	ORDER BY o.object_id LIMIT $7
), not_listed AS MATERIALIZED (
  SELECT p.object_id FROM page p WHERE (SELECT true FROM listed_objects l WHERE l.run = $6 AND l.object_type = $3
  	AND l.object = hashtextextended(p.object_id, 0)) IS NULL
)
SELECT coalesce((SELECT p.object_id FROM page p ORDER BY p.object_id DESC LIMIT 1), ''), coalesce(array_agg(u.object_id
	ORDER BY u.object_id), '{}')
FROM not_listed u CROSS JOIN LATERAL (SELECT FROM objects o WHERE o.source = $1 AND o.account = $2
  AND o.object_type = $3 AND o.object_id = u.object_id AND NOT o.deleted
  AND o.version_at > -9223372036854775808 AND o.time_from < $5 LIMIT 1) o`

// findOrphans goes through the mirror for objects that were not listed, and refetches each. It
// stores those that are missing until the whole mirror is read.
func (s *objectScan) findOrphans(ctx context.Context) (runs.Status, error) {
	if s.approvalRequested > 0 && s.Lease.Detail != "" { // the run is approved and does not wait any more
		if err := s.Lease.SetDetail(ctx, ""); err != nil {
			return "", err
		}
	}
	for {
		var last string
		var found []string
		err := s.Pool.QueryRow(ctx, walkSQL, s.Source.Number, s.Params.Account, s.objectType, s.cursor,
			s.listedSince.UnixMicro(), s.Lease.Run.ID, walkBatch).Scan(&last, &found)
		if err != nil {
			return "", fmt.Errorf("read objects of type %s that were not listed: %w", s.objectType, err)
		}
		for len(found) > confirmBatch { // the remainder goes with the end of the batch
			some := found[:confirmBatch]
			found = found[confirmBatch:]
			if status, err := s.confirmOrphans(ctx, some, &scanPosition{phase: phaseOrphans,
				cursor: some[len(some)-1]}); err != nil || status != runs.Running {
				return status, err
			}
		}
		to := &scanPosition{phase: phaseOrphans, cursor: last}
		if last == "" {
			to.phase = phaseTombstones
		}
		if status, err := s.confirmOrphans(ctx, found, to); err != nil || status != runs.Running {
			return status, err
		}
		if last == "" {
			return runs.Running, nil
		}
	}
}

// confirmOrphans refetches objects that were not listed. Those that exist are compared and repaired
// like listed ones.
func (s *objectScan) confirmOrphans(ctx context.Context, ids []string, to *scanPosition) (runs.Status, error) {
	items := make([]*item, len(ids))
	for i, id := range ids {
		items[i] = &item{id: id}
	}
	if err := s.refetchAll(ctx, items); err != nil {
		return "", err
	}
	items = filter(items, func(it *item) bool { return !it.skipped })
	to.missing = filter(items, (*item).isMissing)
	if err := s.checkAllMissing(ctx, to.missing); err != nil {
		return "", err
	}
	to.missing = filter(to.missing, (*item).isMissing)
	to.compared = filter(items, func(it *item) bool { return !it.isMissing() })
	to.notListed = filter(to.compared, (*item).isAlive)
	return s.compareAndRepair(ctx, to.compared, to)
}

// checkMissing checks that an object is missing. An object that this attempt listed and that is
// equal in the mirror shows the account of the key as well as the samples of the account check do.
func (s *objectScan) checkMissing(ctx context.Context, k versioning.Key, at refetch.Location, again bool) error {
	err := s.CheckMissing(ctx, k, at, again)
	if !s.sawEqualObject || !errors.As(err, new(*refetch.AccountUnverifiedError)) &&
		!errors.As(err, new(*refetch.MissingUnconfirmedError)) {
		return err
	}
	approved := s.KeyApproved
	s.KeyApproved = true
	err = s.CheckMissing(ctx, k, at, false)
	s.KeyApproved = approved
	return err
}

// recordEqual records that an object is equal in the mirror and at the provider. An object that
// each account may have does not show the account.
func (s *objectScan) recordEqual(items []*item) {
	if slices.Contains(s.SharedTypes(), s.key("").Type) {
		return
	}
	for _, it := range items {
		s.sawEqualObject = s.sawEqualObject || it.kind == equal && it.problem == "" &&
			(it.refetch == nil || !it.input.State.Deleted)
	}
}

// checkAllMissing checks that missing objects are really missing, and not only invisible to the
// key. One check covers all objects of a place. Where the API lists events, it includes another
// account check, since the one of the run's start may be old. An object whose check fails becomes
// unrepaired, and the run goes on.
func (s *objectScan) checkAllMissing(ctx context.Context, missing []*item) error {
	_, listsEvents := s.Source.Reader.(provider.EventLister)
	problems := map[string]string{} // by the check: why the object does not count as missing, "" if it does
	for _, it := range missing {
		if !it.refetch.Missing {
			continue
		}
		place := it.location.VisibilityCheck
		if !it.location.Located {
			place = s.PlaceCheck(s.key(it.id))
		}
		name := fmt.Sprint(it.location.Located) + place.Path + "?" + place.Query.Encode() + "\n" + string(place.Body)
		problem, checked := problems[name]
		if !checked {
			err := s.checkMissing(ctx, s.key(it.id), it.location, listsEvents)
			switch {
			case errors.As(err, new(*refetch.MissingUnconfirmedError)),
				errors.As(err, new(*refetch.AccountUnverifiedError)):
				problem = err.Error()
			case errors.As(err, new(*refetch.OtherAccountError)):
				return runs.Permanent(err)
			case err != nil:
				return err
			}
			problems[name] = problem
		}
		it.problem = problem
	}
	return nil
}

const insertOrphansSQL = `
INSERT INTO orphans (run, object_type, object_id, missing_at, elapsed_us, body) SELECT $1, $2, d.*
	FROM unnest($3::text[], $4::timestamptz[], $5::bigint[], $6::bytea[]) AS d
ON CONFLICT (run, object_type, object_id) DO NOTHING`

// insertOrphans stores missing objects with the responses that reported them as missing.
func (s *objectScan) insertOrphans(ctx context.Context, tx pgx.Tx, missing []*item) error {
	if len(missing) == 0 {
		return nil
	}
	var ids []string
	var dates []time.Time
	var elapsed []int64
	var bodies [][]byte
	for _, it := range missing {
		ids, dates, elapsed, bodies = append(ids, it.id), append(dates, it.refetch.Date),
			append(elapsed, it.refetch.Elapsed.Microseconds()), append(bodies, it.refetch.Body)
	}
	_, err := tx.Exec(ctx, insertOrphansSQL, s.Lease.Run.ID, s.objectType, ids, dates, elapsed, bodies)
	return err
}

const (
	nextOrphansSQL = `SELECT object_id, missing_at, elapsed_us, body FROM orphans WHERE run = $1 AND object_type = $2
		ORDER BY object_id LIMIT $3`

	// finishOrphansSQL counts orphans whose tombstones are in the log; $4 and $5 are how many of
	// them are repaired and unrepaired. All of them are then recorded as compared, so that no other
	// pass of the run counts one again. An object that is newer than its tombstone was no orphan,
	// and counts like a listed one.
	finishOrphansSQL = `
WITH deleted AS (
  DELETE FROM orphans g WHERE g.run = $1 AND g.object_type = $2 AND g.object_id = ANY($3::text[]) RETURNING g.object_id
), met AS (
  INSERT INTO listed_objects (run, object_type, object, unrepaired, drifted) SELECT $1, $2, hashtextextended(d.id, 0),
  	d.result = 'unrepaired', d.result <> 'mirror_newer' FROM unnest($3::text[], $6::text[]) AS d(id, result)
  		ON CONFLICT DO NOTHING
  	RETURNING object
), n AS (
  SELECT count(*) FILTER (WHERE b.object_id IS NOT NULL AND d.result <> 'mirror_newer') AS orphans,
  	count(*) FILTER (WHERE m.object IS NOT NULL AND d.result = 'mirror_newer') AS mirror_newer
  FROM unnest($3::text[], $6::text[]) AS d(id, result) LEFT JOIN deleted b ON b.object_id = d.id LEFT
  	JOIN met m ON m.object = hashtextextended(d.id, 0)
)
UPDATE object_scans s SET orphans = s.orphans + n.orphans, checked = s.checked + n.mirror_newer,
	mirror_newer = s.mirror_newer + n.mirror_newer,
	repaired = s.repaired + $4, unrepaired = s.unrepaired + $5, updated_at = clock_now()
FROM n WHERE s.run = $1 AND s.object_type = $2 RETURNING ` + progressColumns

	insertOrphanDriftSQL = `
INSERT INTO drifts (run, source, account, object_type, object_id, kind, event_id, result, reason)
SELECT $1, $2, $3, $4, d.id, 'orphan', nullif(d.event, 0), d.result, d.reason FROM unnest($5::text[], $6::bigint[],
	$7::text[], $8::text[]) AS d(id, event, result, reason)
ON CONFLICT (run, object_type, object_id) DO UPDATE SET kind = excluded.kind, event_id = excluded.event_id,
	result = excluded.result, reason = excluded.reason`
)

// writeTombstones appends a tombstone for each missing object, unless an operator must approve
// first, and ends the scan.
func (s *objectScan) writeTombstones(ctx context.Context) (runs.Status, error) {
	if stopped, err := s.stopForApproval(ctx); err != nil || stopped {
		return runs.Running, err
	}
	for {
		orphans, err := s.nextOrphans(ctx)
		if err != nil {
			return "", err
		}
		if len(orphans) == 0 {
			return runs.Running, s.finish(ctx)
		}
		if status, err := s.appendTombstones(ctx, orphans); err != nil || status != runs.Running {
			return status, err
		}
		if status, err := s.report(ctx, false); err != nil || status != runs.Running {
			return status, err
		}
	}
}

// nextOrphans returns a batch of the stored missing objects.
func (s *objectScan) nextOrphans(ctx context.Context) ([]*item, error) {
	all, err := postgres.Collect(ctx, s.Pool, func(row pgx.CollectableRow) (*item, error) {
		it := &item{fetchedByID: true, kind: orphan, counted: true}
		a := &providerapi.Response{}
		var elapsed int64
		err := row.Scan(&it.id, &a.Date, &elapsed, &a.Body)
		a.Date, a.Elapsed = a.Date.UTC(), time.Duration(elapsed)*time.Microsecond
		it.refetch = s.newRefetch(it.id, a)
		it.refetch.Body, it.refetch.Missing = a.Body, a.Body == nil
		s.toInput(it)
		return it, err
	}, nextOrphansSQL, s.Lease.Run.ID, s.objectType, appendBatch)
	if err != nil {
		return nil, fmt.Errorf("read orphans: %w", err)
	}
	return all, nil
}

// appendTombstones appends tombstones and counts their results.
func (s *objectScan) appendTombstones(ctx context.Context, orphans []*item) (runs.Status, error) {
	all := make([]outcome, len(orphans))
	for i, it := range orphans {
		all[i] = outcome{id: it.id, counted: true}
	}
	if !s.Params.DryRun {
		ds, appended, err := s.toDeliveries(ctx, orphans)
		if err != nil {
			return "", err
		}
		ids, err := s.appendAndApply(ctx, ds)
		if err != nil {
			return "", err
		}
		for i, it := range appended {
			it.event = ids[i]
		}
		if status, err := s.WaitForOutcomes(ctx, ids); err != nil || status != runs.Running {
			return status, err
		}
		if all, err = s.loadOutcomes(ctx, orphans); err != nil {
			return "", err
		}
		for i, it := range orphans {
			all[i].mirrorNewer = it.problem == "" && it.kind == mirrorNewer
		}
	}
	return runs.Running, s.recordTombstones(ctx, all)
}

// recordTombstones stores the results of tombstones.
func (s *objectScan) recordTombstones(ctx context.Context, all []outcome) error {
	t := toColumns(all)
	differ := toColumns(slices.DeleteFunc(slices.Clone(all), func(o outcome) bool { return o.mirrorNewer }))
	few := min(len(differ.ids), max(0, s.remainingDetails))
	if s.Params.DryRun {
		t.repaired, t.unrepaired = 0, 0
		clear(t.results)
		clear(differ.results)
	}
	err := s.change(ctx, "store the results of tombstones", func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, insertOrphanDriftSQL, s.Lease.Run.ID, s.Source.Number, s.Params.Account, s.objectType,
			differ.ids[:few], differ.events[:few], differ.results[:few], differ.reasons[:few]); err != nil {
			return err
		}
		return s.scan(tx.QueryRow(ctx, finishOrphansSQL, s.Lease.Run.ID, s.objectType, t.ids, t.repaired, t.unrepaired,
			t.results))
	})
	if err == nil {
		s.remainingDetails -= few
	}
	return err
}
