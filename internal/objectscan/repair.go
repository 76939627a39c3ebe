package objectscan

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/providerapi"
	"github.com/postern-gateway/postern/internal/refetch"
	"github.com/postern-gateway/postern/internal/runs"
)

const (
	// appendBatch and appendBytes bound one append.
	appendBatch, appendBytes = 500, 8 << 20
	// maxConcurrentRefetches is the most calls of one scan at a time, even if the API allows more.
	maxConcurrentRefetches = 20
)

// errListedAndMissing: the object was deleted in between, or the API cannot read it by that id. A
// later run shows which.
var errListedAndMissing = errors.New("the API lists it, and reports it as missing when it is refetched")

// refetchAndClassify refetches objects and classifies them by the responses.
func (s *objectScan) refetchAndClassify(ctx context.Context, items []*item) error {
	if err := s.refetchAll(ctx, items); err != nil {
		return err
	}
	for _, it := range items {
		if it.refetch != nil && it.refetch.Missing && !s.wasDeletedDuringScan(it.row) {
			it.problem = errListedAndMissing.Error()
		}
		it.kind = classify(it.row, it)
	}
	return nil
}

// wasDeletedDuringScan reports whether the mirror's object was deleted so recently that the list
// may still have it.
func (s *objectScan) wasDeletedDuringScan(row *mirrorRow) bool {
	return row != nil && row.deleted && !row.ambiguous && row.hi >= s.listedSince.UnixMicro()
}

// refetchAll refetches some objects, several at a time.
func (s *objectScan) refetchAll(ctx context.Context, items []*item) error {
	g, within := errgroup.WithContext(ctx)
	g.SetLimit(min(max(1, s.Source.API.Concurrency), maxConcurrentRefetches))
	for _, it := range items {
		g.Go(func() error { return s.refetchItem(within, it) })
	}
	return g.Wait()
}

func (s *objectScan) refetchItem(ctx context.Context, it *item) (err error) {
	defer func() {
		if r := recover(); r != nil { // Execute recovers its own goroutine only
			err = runs.Permanent(refetch.PanicError(r))
		}
	}()
	location, ok, err := s.Locate(ctx, s.key(it.id), it.listed)
	if err != nil {
		return err
	}
	if skippedPart := s.skippedPartOf(location.Call); skippedPart != nil {
		it.skipped, it.problem = true, skippedPart.Message()
		return nil
	}
	if it.location = location; !ok {
		if it.refetch == nil { // otherwise the list has the whole object
			it.problem = refetch.ErrNoFetch.Error()
		}
		return nil
	}
	a, err := s.fetchWithRetry(ctx,
		func() (*providerapi.Response, error) { return s.FetchObject(ctx, s.key(it.id), location.Call) })
	var rejected *refetch.RejectedError
	var temporary *providerapi.TemporaryError
	switch {
	case errors.As(err, &rejected): // the key may lack access to this object only
		it.problem = rejected.Text
		_, err := s.CheckKey(ctx, s.Params.Account)
		return err
	// this object alone may fail for ever: its response may be too large
	case errors.As(err, &temporary) && !temporary.Throttled:
		if _, down := s.CheckKey(ctx, s.Params.Account); down != nil {
			return err
		}
		it.problem = temporary.Text
		return nil
	case err != nil:
		return err
	case a.Date.IsZero():
		return s.NoDateError()
	}
	it.fetchedByID, it.refetch = true, s.newRefetch(it.id, a)
	if it.refetch.Missing = a.Verdict.Kind == provider.Missing; !it.refetch.Missing {
		it.refetch.Body = a.Body
	}
	s.toInput(it)
	return nil
}

// repair appends the refetches of differing objects, waits for their outcomes, and records which
// still differ.
func (s *objectScan) repair(ctx context.Context, items []*item) (runs.Status, error) {
	if len(items) == 0 {
		return runs.Running, nil
	}
	ds, repaired, err := s.toDeliveries(ctx, items)
	if err != nil {
		return "", err
	}
	ids, err := s.appendAndApply(ctx, ds)
	if err != nil {
		return "", err
	}
	for i, it := range repaired {
		it.event = ids[i]
	}
	if status, err := s.WaitForOutcomes(ctx, ids); err != nil || status != runs.Running {
		return status, err
	}
	all, err := s.loadOutcomes(ctx, items)
	if err != nil {
		return "", err
	}
	return runs.Running, s.recordRepairs(ctx, all)
}

// toDeliveries returns the deliveries that append the refetches, and the item of each. An item that
// cannot be read gets a problem.
func (s *objectScan) toDeliveries(ctx context.Context, items []*item) (ds []events.Delivery, sent []*item, err error) {
	versioned := filter(items, func(it *item) bool { return it.problem == "" && it.input.OwnVersion })
	if len(versioned) > 0 {
		rows, err := s.SeenVersions(ctx, s.key(""), itemIDs(versioned))
		if err != nil {
			return nil, nil, err
		}
		for _, it := range versioned {
			if row, ok := rows[it.id]; ok {
				it.refetch.Reversioned = row.NeedsReversion(&it.input)
			}
		}
	}
	for _, it := range items {
		if it.problem != "" {
			continue
		}
		d, err := s.Delivery(s.key(it.id), it.refetch)
		if err != nil {
			it.problem = err.Error()
			continue
		}
		ds, sent = append(ds, *d), append(sent, it)
	}
	return ds, sent, nil
}

// appendAndApply appends deliveries of one event each, in batches, and applies them to the mirror.
// It returns the ids of all events, including those that were in the log already.
func (s *objectScan) appendAndApply(ctx context.Context, ds []events.Delivery) (ids []int64, err error) {
	for len(ds) > 0 {
		n, bytes := 0, 0
		for n < min(len(ds), appendBatch) && (n == 0 || bytes+len(ds[n].Body) <= appendBytes) {
			bytes += len(ds[n].Body)
			n++
		}
		receipts, err := events.Append(ctx, s.Log, ds[:n])
		if err != nil {
			return nil, err
		}
		some := make([]int64, n)
		for i, r := range receipts {
			some[i] = r[0].ID
		}
		if err := s.apply(ctx, some); err != nil {
			return nil, err
		}
		ids, ds = append(ids, some...), ds[n:]
	}
	return ids, nil
}

// withoutOutcomeSQL returns those of some events that have no outcome.
const withoutOutcomeSQL = `SELECT e.id FROM unnest($1::bigint[]) AS e(id) WHERE (SELECT true FROM outcomes o
	WHERE o.event_id = e.id AND o.run = 0 LIMIT 1) IS NULL`

// apply applies events to the mirror, also events that another process appended but did not apply.
func (s *objectScan) apply(ctx context.Context, ids []int64) error {
	ids, err := postgres.Collect(ctx, s.Pool, pgx.RowTo[int64], withoutOutcomeSQL, ids)
	if err != nil {
		return fmt.Errorf("find events without an outcome: %w", err)
	}
	slices.Sort(ids)
	_, err = s.Applier.PublishAndApply(ctx, slices.Compact(ids))
	return err
}

// outcomesSQL returns the outcomes of some events.
const outcomesSQL = `SELECT o.event_id, o.status, o.reason FROM outcomes o WHERE o.event_id = ANY($1::bigint[])
	AND o.run = 0`

// loadOutcomes compares objects again after their refetches were applied, and returns the result
// of each.
func (s *objectScan) loadOutcomes(ctx context.Context, items []*item) ([]outcome, error) {
	usable := filter(items, func(it *item) bool { return it.problem == "" })
	if err := s.compare(ctx, usable); err != nil {
		return nil, err
	}
	var ids []int64
	for _, it := range usable {
		if it.kind.needsRepair() {
			ids = append(ids, it.event)
		}
	}
	reasons := map[int64]string{}
	if len(ids) > 0 {
		var id int64
		var status, reason string
		if err := postgres.ForEach(ctx, s.Pool, outcomesSQL, []any{ids}, []any{&id, &status, &reason}, func() error {
			reasons[id] = status + ": " + reason
			return nil
		}); err != nil {
			return nil, fmt.Errorf("read outcomes: %w", err)
		}
	}
	all := make([]outcome, len(items))
	for i, it := range items {
		all[i] = outcome{id: it.id, event: it.event, counted: it.counted, reason: events.SanitizeText(it.problem)}
		if it.problem == "" && it.kind.needsRepair() {
			if all[i].reason = reasons[it.event]; all[i].reason == "" {
				all[i].reason = "the refetch has no outcome any more"
			}
		}
	}
	return all, nil
}

// resume repairs the objects that an ended process left unfinished.
func (s *objectScan) resume(ctx context.Context) (runs.Status, error) {
	if len(s.pendingRepairs) == 0 {
		return runs.Running, nil
	}
	var items []*item
	for _, h := range s.pendingRepairs {
		it := &item{id: h.ID, kind: h.Kind, counted: h.Counted}
		if !provider.ValidName(h.ID) {
			s.toInput(it)
		}
		items = append(items, it)
	}
	if err := s.refetchAndClassify(ctx, filter(items, func(it *item) bool { return it.problem == "" })); err != nil {
		return "", err
	}
	// the listed data was lost with the process that read it
	if slices.ContainsFunc(items, func(it *item) bool { return it.problem == refetch.ErrNoFetch.Error() }) {
		return runs.Running, s.rereadList(ctx)
	}
	return s.repair(ctx, items)
}

// rereadListSQL deletes the record that the pending objects were compared, undoes their counts, and
// starts the list again. This does not count as a restart.
const rereadListSQL = `
WITH hand AS (
  SELECT h ->> 'id' AS id, h ->> 'kind' AS kind, (h ->> 'not_listed')::bool AS not_listed
  	FROM object_scans s, jsonb_array_elements(s.in_progress) AS h WHERE s.run = $1 AND s.object_type = $2
  	AND (h ->> 'counted')::bool
), unmet AS (
  DELETE FROM listed_objects l USING hand h WHERE l.run = $1 AND l.object_type = $2
  	AND l.object = hashtextextended(h.id, 0)
), n AS (
  SELECT count(*) AS met, count(*) FILTER (WHERE kind = 'missing') AS missing,
  	count(*) FILTER (WHERE kind = 'mirror_older')
  	AS mirror_older, count(*) FILTER (WHERE kind = 'content_differs') AS content_differs,
    count(*) FILTER (WHERE not_listed) AS not_listed FROM hand
)
UPDATE object_scans s SET phase = 'list', cursor = '', in_progress = '[]', skipped_parts = '[]',
	rereads = s.rereads + 1,
	updated_at = clock_now(), checked = s.checked - n.met,
  missing = s.missing - n.missing, mirror_older = s.mirror_older - n.mirror_older, content_differs = s.content_differs -
  	n.content_differs,
  	not_listed = s.not_listed - n.not_listed
FROM n WHERE s.run = $1 AND s.object_type = $2 RETURNING ` + progressColumns

// rereadList starts the list again to repair the pending objects. It deletes the stored missing
// objects, which are refetched again after the list.
func (s *objectScan) rereadList(ctx context.Context) error {
	return s.change(ctx, "start a list again for its pending repairs", func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, deleteOrphansSQL, s.Lease.Run.ID, s.objectType); err != nil {
			return err
		}
		return s.scan(tx.QueryRow(ctx, rereadListSQL, s.Lease.Run.ID, s.objectType))
	})
}
