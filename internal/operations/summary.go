package operations

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/activity"
	"github.com/postern-gateway/postern/internal/apply"
	"github.com/postern-gateway/postern/internal/effects"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/processor"
)

// Summary lists what needs the attention of an operator.
type Summary struct {
	// At is the time of the summary by the database's clock.
	At    events.Instant `json:"at"`
	Items []SummaryItem  `json:"items"`
}

// SummaryItem is one kind of things that need attention.
type SummaryItem struct {
	// One of events_without_outcome (for more than two minutes), dead_outcomes, failed_runs (of the
	// last 24 hours), runs_awaiting_approval, rebuilds_awaiting_decision,
	// effects_awaiting_approval, effects_needing_review, effects_with_unknown_outcome,
	// refetches_suspended, silent_types, spools_not_empty, processes_not_ready,
	// outdated_configurations, or sources_only_rejected (of the last 15 minutes).
	Kind string `json:"kind"`
	// Count is the number of things, and stops at 1000. AtLeast: there may be more.
	Count   int64 `json:"count"`
	AtLeast bool  `json:"at_least"`
	// Since is the time of the oldest of the counted things; null if it is unknown.
	Since events.Instant `json:"since"`
	// Text says what they are.
	Text string `json:"text"`
	// Path and Params are the list that shows them: a route below /api/v1, and its query.
	Path   string            `json:"path"`
	Params map[string]string `json:"params"`
}

// attention is a kind of things that need attention.
type attention struct {
	kind, singular, plural, path string
	params                       map[string]string
}

// attentions are the kinds in the order of summarySQL and of the summary.
var attentions = []attention{
	{"sources_only_rejected", "a source had only rejected deliveries in the last 15 minutes",
		"%s sources had only rejected deliveries in the last 15 minutes", "/rejections",
		map[string]string{"since": "15m"}},
	{"dead_outcomes", "an event is dead: Postern does not retry it automatically",
		"%s events are dead: Postern does not retry them automatically", "/outcomes",
		map[string]string{"status": "dead"}},
	{"effects_with_unknown_outcome", "an effect has an unknown outcome", "%s effects have an unknown outcome",
		"/effects", map[string]string{"unknown_outcome": "true"}},
	{"effects_needing_review", "an effect needs review", "%s effects need review", "/effects",
		map[string]string{"state": "needs_review"}},
	{"effects_awaiting_approval", "an effect awaits approval", "%s effects await approval", "/effects",
		map[string]string{"state": "awaiting_approval"}},
	{"runs_awaiting_approval", "a run awaits approval", "%s runs await approval", "/runs",
		map[string]string{"status": "awaiting_approval"}},
	{"failed_runs", "a run has failed in the last 24 hours", "%s runs have failed in the last 24 hours", "/runs",
		map[string]string{"status": "failed"}},
	{"refetches_suspended", "the refetch of an object is suspended", "the refetches of %s objects are suspended",
		"/refetches", map[string]string{"suspended": "true"}},
	{"spools_not_empty", "a spool has deliveries that are not in the log",
		"%s spools have deliveries that are not in the log", "/spools", nil},
	{"processes_not_ready", "a process is not ready, or does not report",
		"%s processes are not ready, or do not report", "/processes", nil},
	{"outdated_configurations", "a process does not use its current configuration file",
		"%s processes do not use their current configuration file", "/processes", nil},
	{"silent_types", "an event type has become silent", "%s event types have become silent", "/source-types",
		map[string]string{"silent": "true"}},
	{"rebuilds_awaiting_decision", "a rebuild awaits a decision: swap or discard its staged objects",
		"%s rebuilds await a decision: swap or discard their staged objects", "/runs",
		map[string]string{"job": "rebuild", "status": "paused"}},
}

// maxAttention bounds each count of the summary.
const maxAttention = 1000

// firstDead and firstAwaiting are at most $1 events and effects that need an operator.
const (
	firstDead     = `(SELECT o.event_id FROM ` + apply.DeadEvents + ` LIMIT $1) d`
	firstAwaiting = `(SELECT planned_at FROM effects WHERE state = 'awaiting_approval' ORDER BY effect LIMIT $1) e`
)

// summarySQL counts each kind up to $1. It reads small tables, the last minutes of the activity,
// and partial indexes. Its rows are in the order of attentions. A subquery reads the clock once, so
// that an index can be used.
const summarySQL = `
SELECT 0, count(*), to_timestamp(min(a.minute)::bigint * 60), clock_now() FROM (
  SELECT min(minute) AS minute FROM activity_minutes
  WHERE minute BETWEEN (SELECT floor(extract(epoch FROM clock_now()) / 60)::int - 14)
    AND (SELECT floor(extract(epoch FROM clock_now()) / 60)::int)
  GROUP BY source HAVING sum(rejected) > 0 AND coalesce(sum(stored), 0) + coalesce(sum(duplicates), 0) = 0 LIMIT $1) a
UNION ALL
SELECT 1, count(*), to_timestamp((min(d.event_id) >> 20) / 1000.0), clock_now()
FROM ` + firstDead + `
UNION ALL
SELECT 2, count(DISTINCT u.effect), min(u.at), clock_now() FROM (
  SELECT s.effect, coalesce(s.first_attempt_at, s.reserved_at) AS at FROM ` + effects.UnknownStepsSQL + `
  ORDER BY s.effect LIMIT $1) u
UNION ALL
SELECT 3, count(*), min(e.planned_at), clock_now() FROM (SELECT planned_at FROM effects WHERE state = 'needs_review'
  ORDER BY effect LIMIT $1) e
UNION ALL
SELECT 4, count(*), min(e.planned_at), clock_now() FROM ` + firstAwaiting + `
UNION ALL
SELECT 5, count(*), min(r.created_at), clock_now() FROM (SELECT created_at FROM runs
  WHERE status = 'awaiting_approval' AND ended_at IS NULL LIMIT $1) r
UNION ALL
SELECT 6, count(*), min(r.ended_at), clock_now() FROM (SELECT ended_at FROM runs
  WHERE ended_at > (SELECT clock_now() - interval '24 hours') AND status = 'failed' ORDER BY ended_at LIMIT $1) r
UNION ALL
SELECT 7, count(*), min(r.requested_at), clock_now() FROM (SELECT r.requested_at FROM sources s CROSS JOIN LATERAL
  (SELECT r.requested_at FROM refetch_requests r WHERE r.source = s.number AND r.due = 'infinity' LIMIT $1) r
  LIMIT $1) r
UNION ALL
SELECT 8, count(*), min(s.oldest_at), clock_now() FROM (SELECT oldest_at FROM spools WHERE deliveries > 0 LIMIT $1) s
UNION ALL
SELECT 9, count(*), min(p.reported_at), clock_now() FROM (SELECT reported_at FROM processes
  WHERE not_ready <> '' OR reported_at < clock_now() - interval '30 seconds' LIMIT $1) p
UNION ALL
SELECT 10, count(*), NULL, clock_now() FROM (SELECT FROM processes
  WHERE config_problem <> '' AND reported_at >= clock_now() - interval '30 seconds' LIMIT $1) p
UNION ALL
SELECT 11, count(*), min(t.last_at), clock_now() FROM (SELECT t.last_at FROM source_types t
  WHERE ` + activity.IsSilentSQL + ` LIMIT $1) t
UNION ALL
SELECT 12, count(*), min(r.updated_at), clock_now() FROM (SELECT r.updated_at FROM runs r
  JOIN checkpoints c ON c.job = r.job AND c.run = r.run
  WHERE r.job = 'rebuild' AND r.status = 'paused' AND r.ended_at IS NULL AND c.cursor >= r.bound LIMIT $1) r`

// SummaryParams are the parameters of a summary; there are none.
type SummaryParams struct{}

// Summarize returns what needs the attention of an operator. Kinds of which there is nothing are
// left out.
func Summarize(ctx context.Context, pool *pgxpool.Pool, _ SummaryParams) (*Summary, error) {
	out := &Summary{Items: []SummaryItem{}}
	_, err := postgres.Collect(ctx, pool, func(row pgx.CollectableRow) (_ struct{}, err error) {
		var kind int
		var count int64
		var since *time.Time
		if err = row.Scan(&kind, &count, &since, &out.At); err == nil && count > 0 {
			out.Items = append(out.Items, attentions[kind].item(count, since))
		}
		return struct{}{}, err
	}, summarySQL, maxAttention)
	if err != nil {
		return nil, fmt.Errorf("summarize: %w", err)
	}
	unapplied, err := processor.CountUnapplied(ctx, pool, maxUnappliedAge, maxAttention)
	if err != nil {
		return nil, fmt.Errorf("summarize: %w", err)
	}
	if unapplied.Count > 0 {
		out.Items = slices.Insert(out.Items, 0, eventsWithoutOutcome.item(unapplied.Count, &unapplied.Since.Time))
	}
	return out, nil
}

// maxUnappliedAge is how long an event may be without an outcome before it needs attention.
// Normally, the republisher has published a lost one again by then.
const maxUnappliedAge = 2 * time.Minute

var eventsWithoutOutcome = attention{"events_without_outcome",
	"an event has had no outcome for more than two minutes: check that a processor runs",
	"%s events have had no outcome for more than two minutes: check that a processor runs", "/events",
	map[string]string{"status": "pending", "until": "2m"}}

func (a *attention) item(count int64, since *time.Time) SummaryItem {
	i := SummaryItem{Kind: a.kind, Count: count, AtLeast: count >= maxAttention, Text: a.singular, Path: a.path,
		Params: map[string]string{}}
	if a.params != nil {
		i.Params = a.params
	}
	if since != nil {
		i.Since = events.Instant{Time: *since}
	}
	if count != 1 {
		number := fmt.Sprint(count)
		if i.AtLeast {
			number = fmt.Sprintf("at least %d", count)
		}
		i.Text = fmt.Sprintf(a.plural, number)
	}
	return i
}

// MaxWaiting is where the numbers of Waiting stop.
const MaxWaiting = maxAttention

// Waiting are the numbers of things that wait for an operator.
type Waiting struct {
	// DeadEvents are not applied, and Effects await approval. Runs await approval, or are rebuilds
	// that await a swap.
	DeadEvents, Effects, Runs int64
}

const waitingSQL = `
SELECT (SELECT count(*) FROM ` + firstDead + `), (SELECT count(*) FROM ` + firstAwaiting + `),
  (SELECT count(*) FROM (SELECT FROM runs r WHERE r.ended_at IS NULL AND (r.status = 'awaiting_approval'
    OR r.job = 'rebuild' AND r.status = 'paused' AND r.bound > 0 AND EXISTS (SELECT FROM checkpoints c
      WHERE c.job = 'rebuild' AND c.run = r.run AND c.cursor >= r.bound)) LIMIT $1) r)`

// CountWaiting counts what waits for an operator, with one statement.
func CountWaiting(ctx context.Context, pool *pgxpool.Pool) (w Waiting, err error) {
	if err = pool.QueryRow(ctx, waitingSQL, MaxWaiting).Scan(&w.DeadEvents, &w.Effects, &w.Runs); err != nil {
		err = fmt.Errorf("count what waits for an operator: %w", err)
	}
	return w, err
}
