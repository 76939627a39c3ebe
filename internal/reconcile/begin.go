package reconcile

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/versioning"
)

// batchesSQL are the transactions that hold a source's lock. $3 are those that are asked about, null for all.
const batchesSQL = `
SELECT l.virtualtransaction FROM pg_locks l WHERE l.locktype = 'advisory' AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
  AND l.classid = $1::int4::oid AND l.objid = $2::int4::oid AND l.objsubid = 2 AND l.granted AND ($3::text[] IS NULL OR l.virtualtransaction = ANY($3::text[]))`

// batchPause is how long to wait before it is asked again whether batches are still under way.
const batchPause = 10 * time.Millisecond

// open reads how far the sweep is, or begins it. Events that are applied from then on know of the sweep, so that a late one is owed a look (decision 36).
func (s *sweep) open(ctx context.Context) error {
	if err := s.loadOrBegin(ctx); err != nil || s.phase == inDone || s.phase == InUnlisted {
		return err
	}
	if err := s.afterBatches(ctx); err != nil {
		return fmt.Errorf("wait for the events under way: %w", err)
	}
	return nil
}

// afterBatches waits for the batches of events that are under way, in each attempt, since the one before may have ended before it had. It takes no lock: to queue for one would hold up the batches that come.
func (s *sweep) afterBatches(ctx context.Context) error {
	var under []string // nil: all
	for {
		rows, err := s.Pool.Query(ctx, batchesSQL, versioning.SourceLock, s.order.Source, under)
		if err == nil {
			under, err = pgx.CollectRows(rows, pgx.RowTo[string])
		}
		if err != nil || len(under) == 0 {
			return err
		}
		if runs.Pause(ctx, batchPause); ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
}

// loadOrBegin reads how far the sweep is, or begins it. One whose list is asked for in another way by now, of other repositories or of the same in another order, begins anew: its cursor is a place in a list
// that there is no more, and what it has met says nothing of the new one. What is done stays: it is proven of what was asked for then.
func (s *sweep) loadOrBegin(ctx context.Context) error {
	err := s.load(ctx)
	if err == nil && (s.phase == inDone || s.phase == InRare || s.phase == InUnlisted || s.scope == s.asks()) || err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return err
	}
	if err == nil {
		s.log.Warn("list begun anew, for it is asked for in another way than when the sweep began", "source", s.source.Name, "type", s.objectType)
	}
	a, err := s.control(ctx, s.order.Account) // which tells the provider's time
	if err != nil {
		return err
	}
	since, until, err := s.bounds(ctx)
	if err != nil {
		return err
	}
	// The clock that rows are ordered by may tell no more than the second, and nothing is proven in the middle of one.
	began := a.Date.Add(-a.Elapsed - max(s.list.Lag, s.source.Reader.Lag())).Truncate(time.Second)
	if err := s.begin(ctx, since, until, began); err != nil {
		return err
	}
	return s.load(ctx)
}

// bounds are the time whose changes are asked for; zero for everything.
func (s *sweep) bounds(ctx context.Context) (since, until time.Time, err error) {
	if !s.list.ByChange || s.order.Full {
		return since, until, nil
	}
	until = s.source.Caller.Now()
	if !s.order.Until.IsZero() && s.order.Until.Before(until) {
		until = s.order.Until
	}
	if !s.order.Since.IsZero() {
		return s.order.Since, until, s.ordered(s.order.Since, until)
	}
	from, proven, err := s.known(ctx)
	if err != nil || proven.IsZero() || from.After(epoch) { // not all of the time before is proven
		return time.Time{}, time.Time{}, err
	}
	since = proven.Add(-s.Settings.Overlap - s.list.Lag)
	return since, until, s.ordered(since, until)
}

// ordered refuses a time that ends before it begins.
func (s *sweep) ordered(since, until time.Time) error {
	if !until.Before(since) {
		return nil
	}
	return runs.Refuse(fmt.Errorf("type %s: what changed since %s and until %s would be asked for, which is nothing: without a since it is from a little before what is proven", s.objectType,
		since.Format(time.RFC3339), until.Format(time.RFC3339)))
}

// whole: all objects are listed, not only those that changed.
func (s *sweep) whole() bool { return s.from.IsZero() }

const (
	dropSweepSQL = `DELETE FROM sweeps s WHERE s.run = $1 AND s.object_type = $2`

	beginSweepSQL = `
INSERT INTO sweeps (run, source, account, object_type, since, until, began, scope, updated_at)
VALUES ($1, $3, $4, $2, $5, $6, $7, $8, clock_now())`
)

// begin begins the sweep of the type, and forgets one that was begun before.
func (s *sweep) begin(ctx context.Context, since, until, began time.Time) error {
	return s.change(ctx, "begin the sweep of a type", func(ctx context.Context, tx pgx.Tx) error {
		for _, sql := range []string{unlistSQL, dropGhostsSQL, dropSweepSQL} {
			if _, err := tx.Exec(ctx, sql, s.hold.Run.Run, s.objectType); err != nil {
				return err
			}
		}
		_, err := tx.Exec(ctx, beginSweepSQL, s.hold.Run.Run, s.objectType, s.order.Source, s.order.Account, nullTime(since), nullTime(until), began, s.asks())
		return err
	})
}
