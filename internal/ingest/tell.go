package ingest

import (
	"context"
	"fmt"
	"time"

	"github.com/postern-gateway/postern/internal/events"
)

const (
	// tellEvery is how often a gateway says what its spool holds. A redaction waits until it says that it is empty.
	tellEvery = 2 * time.Second
	// untellWithin bounds the last word of a gateway that stops.
	untellWithin = time.Second

	clockSQL = `SELECT clock_now()`

	// tellSQL says at $3 what a spool holds; one that holds nothing was empty then.
	tellSQL = `
INSERT INTO spools AS s (spool, place, empty_at, told_at, deliveries, bytes) VALUES ($1, $2, CASE WHEN $4::bigint > 0 THEN '-infinity' ELSE $3::timestamptz END, $3, $4, $5)
ON CONFLICT (spool) DO UPDATE SET place = excluded.place, empty_at = greatest(s.empty_at, excluded.empty_at), told_at = excluded.told_at, deliveries = excluded.deliveries, bytes = excluded.bytes`

	untellSQL = `DELETE FROM spools WHERE spool = $1`
)

// tell says in the database what the spool holds. The time is asked for before the spool is: what is kept in between came later. Errors: events.ErrUnavailable.
func (s *Server) tell(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.within())
	defer cancel()
	var now time.Time
	if err := s.Pool.QueryRow(ctx, clockSQL).Scan(&now); err != nil {
		return fmt.Errorf("%w: tell of the spool: %w", events.ErrUnavailable, err)
	}
	holds := s.Spool.Stats()
	if _, err := s.Pool.Exec(ctx, tellSQL, s.SpoolName, s.SpoolPlace, now, holds.Records, holds.Bytes); err != nil {
		return fmt.Errorf("%w: tell of the spool: %w", events.ErrUnavailable, err)
	}
	return nil
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
