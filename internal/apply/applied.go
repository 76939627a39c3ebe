package apply

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/events"
)

// RepublisherJob is the name of the republisher's row in the table checkpoints. Every event up to
// its cursor has an outcome.
const RepublisherJob = "republisher"

// openSQL looks for an event without an outcome above the republisher's cursor. Its form makes the
// planner use the index even if its estimates are wrong.
const openSQL = `
SELECT EXISTS (
  SELECT FROM (SELECT e.id FROM events e WHERE e.source = $1 AND e.id > (SELECT coalesce(max(c.cursor), 0)
  	FROM checkpoints c WHERE c.job = '` + RepublisherJob + `' AND c.run = 0) AND e.id < $2 ORDER BY e.id) d
  LEFT JOIN LATERAL (SELECT true AS had FROM outcomes o WHERE o.event_id = d.id AND o.run = 0 LIMIT 1) o ON true
  	WHERE o.had IS NULL)`

// Applied reports whether all events of a source that were stored before a time have an outcome. A
// failed event has one, and is retried later.
func Applied(ctx context.Context, tx pgx.Tx, source int32, before time.Time) (bool, error) {
	var open bool
	if err := tx.QueryRow(ctx, openSQL, source, events.FirstID(before)).Scan(&open); err != nil {
		return false, fmt.Errorf("find unapplied events: %w", err)
	}
	return !open, nil
}
