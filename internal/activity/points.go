package activity

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
)

// The steps of points.
const (
	Minute = "minute"
	Hour   = "hour"
)

const (
	// MaxPoints is the maximum number of steps, and MaxPointsBySource the one if each source has
	// points.
	MaxPoints         = 1500
	MaxPointsBySource = 60
)

// Point is what happened in one minute or hour.
type Point struct {
	// At is the start of the minute or hour.
	At events.Instant `json:"at"`
	// Source is the source of a point; left out if the point is the sum of all.
	Source string `json:"source,omitzero"`
	Counts
}

// Points are what happened, by minute or hour. The numbers are not exact: a process that is killed
// loses the counts of its last 10 seconds.
type Points struct {
	// Step is minute or hour. Minutes are kept for 2 days, hours for 90 days.
	Step string `json:"step"`
	// Since and Until are the requested time range, extended to whole steps.
	Since events.Instant `json:"since"`
	Until events.Instant `json:"until"`
	// Points are in order. Steps in which nothing happened have none.
	Points []Point `json:"points"`
}

// Filter selects points.
type Filter struct {
	// Source is the number of the source; 0: all. BySource: each source has points of its own.
	Source   int32
	BySource bool
	// Since and Until are the time range; zero means an hour before Until, and now.
	Since, Until time.Time
	// Step is Minute, Hour, or "": minutes if they are stored and not too many.
	Step string
}

const nowSQL = `SELECT clock_now()`

// $1 and $2 are numbers of steps, $3 and $4 the first and the last source.
const (
	sumCounts = `coalesce(sum(stored), 0), coalesce(sum(duplicates), 0), coalesce(sum(conflicts), 0),
	coalesce(sum(rejected), 0), coalesce(sum(applied), 0), coalesce(sum(unchanged), 0), coalesce(sum(stale), 0),
	coalesce(sum(ambiguous), 0), coalesce(sum(ignored), 0), coalesce(sum(failed), 0), coalesce(sum(dead), 0)`

	minutesSQL = `
SELECT to_timestamp(minute::bigint * 60), '', ` + sumCounts + ` FROM activity_minutes
WHERE minute >= $1 AND minute < $2 AND source BETWEEN $3 AND $4 GROUP BY minute ORDER BY minute`

	minutesBySourceSQL = `
SELECT to_timestamp(a.minute::bigint * 60), s.name, ` + sumCounts + `
FROM activity_minutes a JOIN sources s ON s.number = a.source
WHERE a.minute >= $1 AND a.minute < $2 AND a.source BETWEEN $3 AND $4 GROUP BY a.minute, s.name
ORDER BY a.minute, s.name`

	hoursSQL = `
SELECT to_timestamp(hour::bigint * 3600), '', ` + sumCounts + ` FROM activity_hours
WHERE hour >= $1 AND hour < $2 AND source BETWEEN $3 AND $4 GROUP BY hour ORDER BY hour`

	hoursBySourceSQL = `
SELECT to_timestamp(a.hour::bigint * 3600), s.name, ` + sumCounts + `
FROM activity_hours a JOIN sources s ON s.number = a.source
WHERE a.hour >= $1 AND a.hour < $2 AND a.source BETWEEN $3 AND $4 GROUP BY a.hour, s.name ORDER BY a.hour, s.name`
)

// ReadPoints returns what happened in a time range. Errors: events.ErrInvalid.
func ReadPoints(ctx context.Context, db postgres.DB, f Filter) (*Points, error) {
	var now time.Time
	if err := db.QueryRow(ctx, nowSQL).Scan(&now); err != nil {
		return nil, fmt.Errorf("read activity: %w", err)
	}
	if f.Until.IsZero() || f.Until.After(now) {
		f.Until = now
	}
	if f.Since.IsZero() {
		f.Since = f.Until.Add(-time.Hour)
	}
	out, size, err := f.steps(now)
	if err != nil {
		return nil, err
	}
	sql := map[string]string{Minute: minutesSQL, Hour: hoursSQL}[out.Step]
	if f.BySource {
		sql = map[string]string{Minute: minutesBySourceSQL, Hour: hoursBySourceSQL}[out.Step]
	}
	firstSource, lastSource := events.SourceInterval(f.Source)
	seconds := int64(size.Seconds())
	out.Points, err = postgres.Collect(ctx, db, pgx.RowToStructByPos[Point], sql, out.Since.Unix()/seconds,
		out.Until.Unix()/seconds, firstSource, lastSource)
	if err != nil {
		return nil, fmt.Errorf("read activity: %w", err)
	}
	return out, nil
}

// steps returns the steps of a time range, and their size. Errors: events.ErrInvalid.
func (f *Filter) steps(now time.Time) (*Points, time.Duration, error) {
	most := MaxPoints
	if f.BySource {
		most = MaxPointsBySource
	}
	if !f.Since.Before(f.Until) {
		return nil, 0, fmt.Errorf("%w time range: since must be before until, and in the past", events.ErrInvalid)
	}
	minutes, hours := f.rangeOf(Minute, time.Minute), f.rangeOf(Hour, time.Hour)
	switch {
	case f.Step != Hour && minutes.Until.Sub(minutes.Since.Time) <= time.Duration(most)*time.Minute &&
		(f.Step == Minute || now.Sub(f.Since) <= keepMinutes):
		return minutes, time.Minute, nil
	case f.Step == Minute:
		return nil, 0, fmt.Errorf("%w time range: at most %d minutes; use the step hour, or narrow since and until",
			events.ErrInvalid, most)
	case hours.Until.Sub(hours.Since.Time) > time.Duration(most)*time.Hour:
		return nil, 0, fmt.Errorf("%w time range: at most %d hours; narrow since and until", events.ErrInvalid, most)
	}
	return hours, time.Hour, nil
}

// rangeOf returns the time range as whole steps.
func (f *Filter) rangeOf(step string, size time.Duration) *Points {
	until := f.Until.UTC().Add(size - 1).Truncate(size)
	return &Points{Step: step, Since: events.Instant{Time: f.Since.UTC().Truncate(size)},
		Until: events.Instant{Time: until}}
}
