package activity

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/postern-gateway/postern/internal/postgres"
)

// Counts are what happened to events and deliveries of a source.
type Counts struct {
	// New events of accepted deliveries. Events that reconciliations, refetches and imports append
	// are not counted.
	Stored int64 `json:"stored,omitzero"`
	// Events of accepted deliveries that were stored before.
	Duplicates int64 `json:"duplicates,omitzero"`
	// Events of accepted deliveries whose key was stored with other content.
	Conflicts int64 `json:"conflicts,omitzero"`
	// Rejected deliveries.
	Rejected int64 `json:"rejected,omitzero"`
	// Committed outcomes of this status, live and of runs, as in the counts that follow.
	Applied   int64 `json:"applied,omitzero"`
	Unchanged int64 `json:"unchanged,omitzero"`
	Stale     int64 `json:"stale,omitzero"`
	Ambiguous int64 `json:"ambiguous,omitzero"`
	Ignored   int64 `json:"ignored,omitzero"`
	// Outcomes of this status. A failed event is retried, and counts again each time.
	Failed int64 `json:"failed,omitzero"`
	Dead   int64 `json:"dead,omitzero"`
}

// numbers returns pointers to the counts, in the order of the columns.
func (c *Counts) numbers() []*int64 {
	return []*int64{&c.Stored, &c.Duplicates, &c.Conflicts, &c.Rejected, &c.Applied, &c.Unchanged, &c.Stale,
		&c.Ambiguous, &c.Ignored, &c.Failed, &c.Dead}
}

// The counters of the process that are reported. Each has a label source.
const (
	eventsMetric     = "postern_events_total"
	rejectionsMetric = "postern_rejections_total"
	outcomesMetric   = "postern_outcomes_total"
	verifiedMetric   = "postern_verified_requests_total"
)

// series are the counters of the counts in the order of Counts.numbers: a metric and its result or
// status, or all counters of the metric.
var series = []string{eventsMetric + " stored", eventsMetric + " duplicate", eventsMetric + " conflict",
	rejectionsMetric, outcomesMetric + " applied", outcomesMetric + " unchanged", outcomesMetric + " stale",
	outcomesMetric + " ambiguous", outcomesMetric + " ignored", outcomesMetric + " failed", outcomesMetric + " dead"}

// gather reads the counters of the process: the counts by source, and how many requests each secret
// verified. A collector that fails does not hide the others.
func gather(from prometheus.Gatherer) (all map[string]Counts, verified map[sourceSecret]int64) {
	all, verified = map[string]Counts{}, map[sourceSecret]int64{}
	families, _ := from.Gather()
	for _, f := range families {
		name := f.GetName()
		if name == verifiedMetric {
			for _, m := range f.GetMetric() {
				verified[secretOf(m)] = int64(m.GetCounter().GetValue())
			}
		}
		if name != eventsMetric && name != rejectionsMetric && name != outcomesMetric {
			continue
		}
		for _, m := range f.GetMetric() {
			source, one := "", name
			for _, l := range m.GetLabel() {
				if l.GetName() == "source" {
					source = l.GetValue()
				} else if name != rejectionsMetric {
					one = name + " " + l.GetValue()
				}
			}
			if i := slices.Index(series, one); i >= 0 {
				c := all[source]
				*c.numbers()[i] += int64(m.GetCounter().GetValue())
				all[source] = c
			}
		}
	}
	return all, verified
}

const (
	countColumns = `stored, duplicates, conflicts, rejected, applied, unchanged, stale, ambiguous, ignored, failed,
	dead`

	// addExcluded adds the new counts to those of row a.
	addExcluded = `
	stored = coalesce(a.stored + excluded.stored, a.stored, excluded.stored),
	duplicates = coalesce(a.duplicates + excluded.duplicates, a.duplicates, excluded.duplicates),
	conflicts = coalesce(a.conflicts + excluded.conflicts, a.conflicts, excluded.conflicts),
	rejected = coalesce(a.rejected + excluded.rejected, a.rejected, excluded.rejected),
	applied = coalesce(a.applied + excluded.applied, a.applied, excluded.applied),
	unchanged = coalesce(a.unchanged + excluded.unchanged, a.unchanged, excluded.unchanged),
	stale = coalesce(a.stale + excluded.stale, a.stale, excluded.stale),
	ambiguous = coalesce(a.ambiguous + excluded.ambiguous, a.ambiguous, excluded.ambiguous),
	ignored = coalesce(a.ignored + excluded.ignored, a.ignored, excluded.ignored),
	failed = coalesce(a.failed + excluded.failed, a.failed, excluded.failed),
	dead = coalesce(a.dead + excluded.dead, a.dead, excluded.dead)`

	// addCountsSQL adds to the current minute and hour of each source, in the order of the sources,
	// so that two processes cannot deadlock. It returns the sources that are registered.
	addCountsSQL = `
WITH now AS MATERIALIZED (
  SELECT floor(extract(epoch FROM clock_now()) / 60)::int AS minute
), d AS MATERIALIZED (
  SELECT s.number AS source, d.* FROM unnest($1::text[], $2::int[], $3::int[], $4::int[], $5::int[], $6::int[],
  	$7::int[], $8::int[], $9::int[], $10::int[], $11::int[], $12::int[]) AS d(name, ` + countColumns + `)
  JOIN sources s ON s.name = d.name ORDER BY s.number
), minutes AS (
  INSERT INTO activity_minutes AS a (minute, source, ` + countColumns + `)
  SELECT now.minute, source, ` + countColumns + ` FROM now, d
  ON CONFLICT (minute, source) DO UPDATE SET ` + addExcluded + `
), hours AS (
  INSERT INTO activity_hours AS a (hour, source, ` + countColumns + `)
  SELECT now.minute / 60, source, ` + countColumns + ` FROM now, d
  ON CONFLICT (hour, source) DO UPDATE SET ` + addExcluded + `
)
SELECT name FROM d`
)

// reportCounts adds what was counted since the last report; zeros are stored as null, which needs
// no space. After an error that hides a commit, the next report adds the same counts again.
func (r *Reporter) reportCounts(ctx context.Context) error {
	counted, verified := gather(r.Counters)
	if err := r.reportSecrets(ctx, verified); err != nil {
		return err
	}
	var names []string
	columns := make([][]pgtype.Int4, len(new(Counts).numbers()))
	for name, now := range counted {
		before := r.reported[name]
		if now == before {
			continue
		}
		names = append(names, name)
		for i, n := range now.numbers() {
			difference := *n - *before.numbers()[i]
			columns[i] = append(columns[i], pgtype.Int4{Int32: int32(min(difference, math.MaxInt32)),
				Valid: difference != 0})
		}
	}
	if len(names) == 0 {
		return nil
	}
	args := []any{names}
	for _, c := range columns {
		args = append(args, c)
	}
	added, err := postgres.Collect(ctx, r.Pool, pgx.RowTo[string], addCountsSQL, args...)
	if err != nil {
		return fmt.Errorf("report counts: %w", err)
	}
	for _, name := range added {
		r.reported[name] = counted[name]
	}
	return nil
}

const (
	// keepMinutes and keepHours are how long the counts are stored.
	keepMinutes = 2 * 24 * time.Hour
	keepHours   = 90 * 24 * time.Hour

	// A lower bound and a time in a subquery make PostgreSQL use the primary key.
	deleteMinutesSQL = `DELETE FROM activity_minutes
		WHERE minute BETWEEN 0 AND (SELECT floor(extract(epoch FROM clock_now()) / 60)::int - 1 - $1::int)`
	deleteHoursSQL = `DELETE FROM activity_hours
		WHERE hour BETWEEN 0 AND (SELECT floor(extract(epoch FROM clock_now()) / 3600)::int - 1 - $1::int)`
)

// deleteOld deletes the minutes and hours that are too old. Every process does so.
func (r *Reporter) deleteOld(ctx context.Context) error {
	_, err := r.Pool.Exec(ctx, deleteMinutesSQL, int(keepMinutes.Minutes()))
	if err == nil {
		_, err = r.Pool.Exec(ctx, deleteHoursSQL, int(keepHours.Hours()))
	}
	if err == nil {
		_, err = r.Pool.Exec(ctx, deleteSecretsSQL, int(keepSecrets.Hours()))
	}
	if err != nil {
		return fmt.Errorf("delete old counts: %w", err)
	}
	return nil
}
