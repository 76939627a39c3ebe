package objectscan

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/versioning"
	"github.com/postern-gateway/postern/internal/watermarks"
)

// openBatchesSQL returns the transactions that hold a source's lock, of those in $3; null means
// all.
const openBatchesSQL = `
SELECT l.virtualtransaction FROM pg_locks l WHERE l.locktype = 'advisory' AND l.database = (SELECT d.oid
	FROM pg_database d WHERE d.datname = current_database())
  AND l.classid = $1::int4::oid AND l.objid = $2::int4::oid AND l.objsubid = 2 AND l.granted AND ($3::text[] IS NULL
  	OR l.virtualtransaction = ANY($3::text[]))`

// batchPause is the pause between two queries for open batches.
const batchPause = 10 * time.Millisecond

// prepare loads the scan's progress, or starts the scan. Events that are applied from then on see
// the scan. If such an event happened before the scan began, it could win over a state that the
// scan found equal, so it requests a refetch of its object.
func (s *objectScan) prepare(ctx context.Context) error {
	if err := s.loadOrStart(ctx); err != nil || s.phase == phaseDone || s.phase == PhaseNotListable {
		return err
	}
	if err := s.waitForOpenBatches(ctx); err != nil {
		return fmt.Errorf("wait for the event batches that are open: %w", err)
	}
	return nil
}

// waitForOpenBatches waits until every apply transaction that is open now has ended. Each attempt
// of a run waits, because the previous attempt may have ended before its wait did. It takes no
// lock, because a waiting lock request would block new transactions.
func (s *objectScan) waitForOpenBatches(ctx context.Context) error {
	var pending []string // nil: all
	for {
		var err error
		pending, err = postgres.Collect(ctx, s.Pool, pgx.RowTo[string], openBatchesSQL, versioning.SourceLock,
			s.Source.Number, pending)
		if err != nil || len(pending) == 0 {
			return err
		}
		if runs.Sleep(ctx, batchPause); ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
}

// loadOrStart loads the scan's progress, or starts the scan. It starts again if the list is now
// requested in another way, for example for other repositories or in another order. The cursor is
// then a position in another list, and the objects compared so far say nothing about the new one. A
// finished scan stays as it is: its result holds for what was requested then.
func (s *objectScan) loadOrStart(ctx context.Context) error {
	err := s.load(ctx)
	if err == nil && (s.phase == phaseDone || s.phase == PhaseSkipped || s.phase == PhaseNotListable ||
		s.scope == s.listScope()) || err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return err
	}
	if err == nil {
		s.Logger.Warn("list started again, because it is now requested in another way than when the scan began",
			"source",
			s.Source.Name, "type", s.objectType)
	}
	a, err := s.CheckKey(ctx, s.Params.Account) // the response also has the provider's time
	if err != nil {
		return err
	}
	since, until, err := s.changeBounds(ctx)
	if err != nil {
		return err
	}
	// The clock that orders rows may have a resolution of one second. A watermark is therefore
	// never in the middle of a second.
	began := a.Date.Add(-a.Elapsed - max(s.list.Lag, s.Source.Reader.Lag())).Truncate(time.Second)
	if err := s.start(ctx, since, until, began); err != nil {
		return err
	}
	return s.load(ctx)
}

// changeBounds returns the interval whose changes are requested. Zero times mean everything.
func (s *objectScan) changeBounds(ctx context.Context) (since, until time.Time, err error) {
	if !s.list.ByChange || s.Params.Full {
		return since, until, nil
	}
	until = s.Source.Caller.Now()
	if !s.Params.Until.IsZero() && s.Params.Until.Before(until) {
		until = s.Params.Until
	}
	if !s.Params.Since.IsZero() {
		return s.Params.Since, until, s.checkBounds(s.Params.Since, until)
	}
	from, completeUntil, err := watermarks.InScope(ctx, s.Pool, s.Source.Number, s.Params.Account,
		watermarks.OfChanges(s.objectType), s.listScope())
	// the time before the watermark is not complete
	if err != nil || completeUntil.IsZero() || from.After(watermarks.Epoch) {
		return time.Time{}, time.Time{}, err
	}
	since = completeUntil.Add(-s.Limits.Overlap - s.list.Lag)
	return since, until, s.checkBounds(since, until)
}

// checkBounds rejects an interval that ends before it begins.
func (s *objectScan) checkBounds(since, until time.Time) error {
	if !until.Before(since) {
		return nil
	}
	return runs.Permanent(fmt.Errorf("type %s: the run asks for changes since %s and until %s, which is an empty "+
		"interval: leave since out to start a little before the watermark", s.objectType,
		since.Format(time.RFC3339), until.Format(time.RFC3339)))
}

// listsEverything reports whether the scan lists all objects, not only those that changed.
func (s *objectScan) listsEverything() bool { return s.changedFrom.IsZero() }

const (
	deleteScanSQL = `DELETE FROM object_scans s WHERE s.run = $1 AND s.object_type = $2`

	insertScanSQL = `
INSERT INTO object_scans (run, source, account, object_type, since, until, started_at, scope, updated_at)
VALUES ($1, $3, $4, $2, $5, $6, $7, $8, clock_now())`
)

// start inserts the scan of the type and deletes an earlier one of the same run.
func (s *objectScan) start(ctx context.Context, since, until, began time.Time) error {
	return s.change(ctx, "start the scan of a type", func(ctx context.Context, tx pgx.Tx) error {
		for _, sql := range []string{deleteListedSQL, deleteOrphansSQL, deleteScanSQL} {
			if _, err := tx.Exec(ctx, sql, s.Lease.Run.ID, s.objectType); err != nil {
				return err
			}
		}
		_, err := tx.Exec(ctx, insertScanSQL, s.Lease.Run.ID, s.objectType, s.Source.Number, s.Params.Account,
			nullTime(since), nullTime(until), began, s.listScope())
		return err
	})
}
