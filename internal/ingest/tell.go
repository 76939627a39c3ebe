package ingest

import (
	"context"
	"fmt"
	"time"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/spool"
)

const (
	// tellEvery is how often a gateway says what its spool holds. A redaction waits until it says that it is empty.
	tellEvery = 2 * time.Second
	// untellWithin bounds the last word of a gateway that stops.
	untellWithin = time.Second

	clockSQL = `SELECT clock_now()`

	// tellSQL says at $3 what a spool holds; $7: it was empty then.
	tellSQL = `
INSERT INTO spools AS s (spool, place, empty_at, told_at, deliveries, bytes, oldest_at) VALUES ($1, $2, CASE WHEN $7 THEN $3::timestamptz ELSE '-infinity' END, $3, $4, $5, $6)
ON CONFLICT (spool) DO UPDATE SET place = excluded.place, empty_at = greatest(s.empty_at, excluded.empty_at), told_at = excluded.told_at, deliveries = excluded.deliveries, bytes = excluded.bytes,
  oldest_at = excluded.oldest_at`

	untellSQL = `DELETE FROM spools WHERE spool = $1`
)

// tell says in the database what the spool holds. The time is asked for before the spool is: what is kept in between came later. While it is drained nobody says that it is empty, whatever is counted:
// what stands behind a damaged head is drained and was not counted. Errors: events.ErrUnavailable.
func (s *Server) tell(ctx context.Context, draining bool) error {
	ctx, cancel := context.WithTimeout(ctx, s.within())
	defer cancel()
	var now time.Time
	if err := s.Pool.QueryRow(ctx, clockSQL).Scan(&now); err != nil {
		return fmt.Errorf("%w: tell of the spool: %w", events.ErrUnavailable, err)
	}
	holds := s.Spool.Stats()
	if _, err := s.Pool.Exec(ctx, tellSQL, s.SpoolName, s.SpoolPlace, now, holds.Records, holds.Bytes, oldestAt(now, holds), holds.Records == 0 && !draining); err != nil {
		return fmt.Errorf("%w: tell of the spool: %w", events.ErrUnavailable, err)
	}
	return nil
}

// oldestAt is when the oldest of what is kept came, by the database's clock, which tells now: the two clocks may differ, so its age is by ours alone. nil: nothing is kept, or nobody knows.
func oldestAt(now time.Time, holds spool.Stats) *time.Time {
	if holds.Records == 0 || holds.Oldest.IsZero() {
		return nil
	}
	at := now.Add(-max(0, time.Since(holds.Oldest)))
	return &at
}

// tellUntil tells of a spool that is drained every tellEvery, beside whoever drains it, until that has ended. What cannot be told is told the next time: nobody waits for it.
func (s *Server) tellUntil(ctx context.Context, ended <-chan struct{}) {
	tick := time.NewTicker(tellEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if err := s.tell(ctx, true); err != nil {
				s.Logger.Debug("the spool is drained and not told of", "error", err)
			}
		case <-ended:
			return
		}
	}
}

// untell takes back what was told, where the spool is left behind empty: then nobody need wait for this gateway to come again. It is for after the last that may be kept (spool.Seal).
func (s *Server) untell(ctx context.Context) {
	if s.unproven.Load() || s.Spool.Stats().Records > 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), untellWithin)
	defer cancel()
	if _, err := s.Pool.Exec(ctx, untellSQL, s.SpoolName); err != nil {
		s.Logger.Warn("the spool is empty, and the database could not be told: redactions wait until the gateway runs again, or postern spool forget is told its name", "spool", s.SpoolName, "error", err)
	}
}
