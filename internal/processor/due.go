package processor

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/events"
)

// Due is what the log and the mirror say of work that is left, and of the auditor that sees to it.
type Due struct {
	// Unapplied are events without an outcome: they wait in the stream, or are missing there.
	Unapplied Left `json:"unapplied"`
	// Failed are events that wait for their next attempt; Retries are those of them whose time has come.
	Failed  Left `json:"failed"`
	Retries Left `json:"retries"`
	// Unsent are batches of changes that are not in the feed yet.
	Unsent  Left    `json:"unsent"`
	Auditor Auditor `json:"auditor"`
}

// Left is how many of a kind are left to do.
type Left struct {
	// Count stops at DueMost, so that as many may be more.
	Count int64 `json:"count"`
	// Since is of the oldest: its receipt, or when it was due; nil: there is none. Seconds is how long ago that is, by the database's clock.
	Since   *events.Instant `json:"since"`
	Seconds float64         `json:"seconds"`
}

// DueMost is how many of a kind are counted: beyond it the number tells nobody more.
const DueMost = countMost

// Auditor is what the processes tell each other of the auditor.
type Auditor struct {
	// Process has its work now; "": none.
	Process string `json:"process"`
	// Passed is up to which time of receipt all events have an outcome.
	Passed *events.Instant `json:"passed"`
	// EndedAt is when a pass last came to its end; nil: none did. Detail says why the last one did not.
	EndedAt *events.Instant `json:"ended_at"`
	// Published is what the last pass that published anything has.
	Published
	Detail string `json:"detail,omitzero"`
	// Wanted are passes that somebody has asked for and that are not at their end.
	Wanted int64 `json:"wanted"`
}

const (
	// unappliedSQL begins where the auditor does: it has seen an outcome of each event before.
	unappliedSQL = `
SELECT count(*), coalesce(min(id), 0), clock_now() FROM (
  SELECT e.id FROM events e WHERE e.id > coalesce((SELECT c.cursor FROM checkpoints c WHERE c.job = $1 AND c.run = 0), 0)
    AND NOT EXISTS (SELECT FROM outcomes o WHERE o.event_id = e.id AND o.run = 0) ORDER BY e.id LIMIT $2) e`

	// laterSQL reads small partial indexes only, each up to a bound.
	laterSQL = `
SELECT f.n, f.since, d.n, d.since, u.n, u.since
FROM (SELECT count(*) AS n, min(at) AS since FROM (SELECT o.at FROM outcomes o WHERE o.status = 'failed' AND o.run = 0 ORDER BY o.due LIMIT $1) f) f,
  (SELECT count(*) AS n, min(due) AS since FROM (SELECT o.due FROM outcomes o WHERE o.status = 'failed' AND o.run = 0 AND o.due <= clock_now() ORDER BY o.due LIMIT $1) d) d,
  (SELECT count(*) AS n, min(made_at) AS since FROM (SELECT b.made_at FROM outbox b WHERE b.sent_at IS NULL LIMIT $1) u) u`

	auditSQL = `
SELECT coalesce((SELECT c.leased_by FROM checkpoints c WHERE c.job = $1 AND c.run = 0 AND c.leased_until > clock_now()), ''),
  coalesce((SELECT c.cursor FROM checkpoints c WHERE c.job = $1 AND c.run = 0), 0), a.ended_at, a.published_at, a.missing, a.due, a.detail,
  (SELECT count(*) FROM auditor_passes w WHERE w.id > 0 AND w.ended_at IS NULL)
FROM auditor_passes a WHERE a.id = 0`
)

// ReadDue reads what is left to do, as postern_operator.
func ReadDue(ctx context.Context, pool *pgxpool.Pool) (*Due, error) {
	d := &Due{}
	var first, cursor int64
	var now time.Time
	if err := pool.QueryRow(ctx, unappliedSQL, auditorJob, DueMost).Scan(&d.Unapplied.Count, &first, &now); err != nil {
		return nil, fmt.Errorf("count events without an outcome: %w", err)
	}
	if first > 0 {
		d.Unapplied.since(now, new(events.Time(first)))
	}
	var failed, retries, unsent *time.Time
	if err := pool.QueryRow(ctx, laterSQL, DueMost).Scan(&d.Failed.Count, &failed, &d.Retries.Count, &retries, &d.Unsent.Count, &unsent); err != nil {
		return nil, fmt.Errorf("count what is left to do: %w", err)
	}
	d.Failed.since(now, failed)
	d.Retries.since(now, retries)
	d.Unsent.since(now, unsent)
	a := &d.Auditor
	var ended, published *time.Time
	if err := pool.QueryRow(ctx, auditSQL, auditorJob).Scan(&a.Process, &cursor, &ended, &published, &a.Missing, &a.Due, &a.Detail, &a.Wanted); err != nil {
		return nil, fmt.Errorf("read what the auditor has come to: %w", err)
	}
	a.EndedAt, a.PublishedAt = instant(ended), instant(published)
	if cursor > 0 {
		a.Passed = &events.Instant{Time: events.Time(cursor)}
	}
	return d, nil
}

func (l *Left) since(now time.Time, at *time.Time) {
	if l.Since = instant(at); at != nil {
		l.Seconds = max(0, now.Sub(*at).Seconds())
	}
}
