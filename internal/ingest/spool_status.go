package ingest

import (
	"context"
	"fmt"
	"time"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/spool"
)

const (
	// statusInterval is how often a gateway reports its spool. A redaction waits until the spool is
	// reported empty.
	statusInterval = 2 * time.Second
	// statusDeleteTimeout bounds the last status update of a gateway that stops.
	statusDeleteTimeout = 3 * time.Second

	clockSQL = `SELECT clock_now()`

	// upsertSpoolStatusSQL sets the content of a spool as of $3; $7 is true if it was empty then.
	upsertSpoolStatusSQL = `
INSERT INTO spools AS s (spool, location, drained_at, reported_at, deliveries, bytes, oldest_at) VALUES ($1, $2, CASE
	WHEN $7 THEN $3::timestamptz ELSE '-infinity' END, $3, $4, $5, $6)
ON CONFLICT (spool) DO UPDATE SET location = excluded.location, drained_at = greatest(s.drained_at,
	excluded.drained_at),
	reported_at = excluded.reported_at, deliveries = excluded.deliveries, bytes = excluded.bytes,
  oldest_at = excluded.oldest_at`

	deleteSpoolStatusSQL = `DELETE FROM spools WHERE spool = $1`
)

// reportSpoolStatus writes the status of the spool to the database. It reads the database's clock
// before the spool, so a record that arrives in between is later than the status. While the spool
// is drained it is never reported empty, because records behind a damaged file header are drained
// but not counted. Errors: events.ErrUnavailable.
func (s *Server) reportSpoolStatus(ctx context.Context, draining bool) error {
	ctx, cancel := context.WithTimeout(ctx, s.acquireTimeout())
	defer cancel()
	var now time.Time
	if err := s.Pool.QueryRow(ctx, clockSQL).Scan(&now); err != nil {
		return fmt.Errorf("%w: report the status of the spool: %w", events.ErrUnavailable, err)
	}
	stats := s.Spool.Stats()
	if _, err := s.Pool.Exec(ctx, upsertSpoolStatusSQL, s.SpoolName, s.SpoolLocation, now, stats.Records, stats.Bytes,
		oldestAt(now, stats), stats.Records == 0 && !draining); err != nil {
		return fmt.Errorf("%w: report the status of the spool: %w", events.ErrUnavailable, err)
	}
	return nil
}

// oldestAt returns the time of the oldest record by the database's clock (now). The clocks may
// differ, so the age is measured with the gateway's clock. It returns nil if there is no record or
// its time is unknown.
func oldestAt(now time.Time, stats spool.Stats) *time.Time {
	if stats.Records == 0 || stats.Oldest.IsZero() {
		return nil
	}
	at := now.Add(-max(0, time.Since(stats.Oldest)))
	return &at
}

// reportSpoolStatusUntil reports the spool every statusInterval until ended is closed. A failed
// report is repeated with the next one; draining does not wait for it.
func (s *Server) reportSpoolStatusUntil(ctx context.Context, ended <-chan struct{}) {
	tick := time.NewTicker(statusInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if err := s.reportSpoolStatus(ctx, true); err != nil {
				s.Logger.Debug("the status of the spool could not be reported while it is drained", "error", err)
			}
		case <-ended:
			return
		}
	}
}

// deleteSpoolStatus deletes the spool's status if the spool is empty, so that no redaction waits
// for this gateway to return. Call it only when nothing more can be spooled (Spool.StopAccepting).
func (s *Server) deleteSpoolStatus(ctx context.Context) {
	if s.databaseUnchecked.Load() || s.Spool.Stats().Records > 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), statusDeleteTimeout)
	defer cancel()
	if _, err := s.Pool.Exec(ctx, deleteSpoolStatusSQL, s.SpoolName); err != nil {
		s.Logger.Warn("the spool is empty, but its status could not be deleted: redactions wait until the gateway "+
			"runs again, or until postern spool remove is run with its name", "spool", s.SpoolName, "error", err)
	}
}
