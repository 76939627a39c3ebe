package apply

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/versioning"
)

// FailureFilter selects failed and dead live outcomes; a zero field selects all.
type FailureFilter struct {
	// Source is the number of a source.
	Source int32
	// Status is failed or dead.
	Status versioning.Status
	// Type is the event type; * matches any text.
	Type       string
	ObjectType string
	// Since (inclusive) bounds the time in the event's id.
	Since time.Time
}

// Failures are equal failures: outcomes with the same status, reason, source and types.
type Failures struct {
	// Event is the newest of the events.
	Event      int64
	Status     string
	Reason     string
	Source     string
	EventType  string
	ObjectType string
	Count      int
	// FirstAt and LastAt are the times of the first and the last outcome, Due that of the next
	// attempt; zero if there is none.
	FirstAt, LastAt, Due events.Instant
}

// MaxFailures is how many outcomes ListFailures reads.
const MaxFailures = 10_000

// maxFailureReason is how much of each reason it returns, in characters. A failure pattern is of as
// much.
const maxFailureReason = 400

// The windows of outcomes, the newest first. That of dead outcomes has those of runs too.
const (
	unfinishedWindow = `
SELECT c.* FROM outcomes c WHERE c.run = 0 AND c.status IN ('failed', 'dead') AND c.event_id >= $1
ORDER BY c.event_id DESC LIMIT $2`
	deadWindow = `
SELECT c.* FROM outcomes c WHERE c.status = 'dead' AND c.event_id >= $1 ORDER BY c.event_id DESC LIMIT $2`
)

// failureGroups groups the outcomes of a window. Its first row only has the size of the window.
const failureGroups = `
), sized AS (SELECT count(*) AS n FROM w)
SELECT 0::bigint, '', '', '', '', '', sized.n::int, NULL::timestamptz, NULL::timestamptz, NULL::timestamptz FROM sized
UNION ALL
(SELECT max(c.event_id), c.status, left(c.reason, $3), s.name, coalesce(e.event_type, ''), c.object_type,
  count(*)::int, min(c.at), max(c.at), min(c.due)
FROM w c JOIN sources s ON s.number = c.source
LEFT JOIN LATERAL (SELECT e.event_type FROM events e WHERE e.id = c.event_id LIMIT 1) e ON true
WHERE c.run = 0 AND ($4::int IS NULL OR c.source = $4) AND ($5::text IS NULL OR c.status = $5)
  AND ($6::text IS NULL OR e.event_type LIKE $6) AND ($7::text IS NULL OR c.object_type = $7)
GROUP BY c.status, left(c.reason, $3), s.name, e.event_type, c.object_type)`

const (
	failuresSQL = `WITH w AS MATERIALIZED (` + unfinishedWindow + failureGroups
	deadSQL     = `WITH w AS MATERIALIZED (` + deadWindow + failureGroups
)

// ListFailures returns the newest failures, and how many outcomes it has read.
func ListFailures(ctx context.Context, db postgres.Querier, f FailureFilter) (all []Failures, read int, err error) {
	sql, from := failuresSQL, int64(0)
	if f.Status == versioning.Dead {
		sql = deadSQL
	}
	if !f.Since.IsZero() {
		from = events.FirstID(f.Since.Add(time.Millisecond - 1))
	}
	all, err = postgres.Collect(ctx, db, pgx.RowToStructByPos[Failures], sql, from, MaxFailures, maxFailureReason,
		events.NilIfZero(f.Source), events.NilIfZero(string(f.Status)), events.Like(f.Type),
		events.NilIfZero(f.ObjectType))
	if err != nil {
		return nil, 0, fmt.Errorf("list failures: %w", err)
	}
	return all[1:], all[0].Count, nil
}
