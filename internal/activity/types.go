package activity

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
)

const (
	// maxTypes is the maximum number of event types of a source. More are counted as otherTypes,
	// and so are types longer than maxTypeLength bytes.
	maxTypes      = 500
	maxTypeLength = 200
	otherTypes    = "(other)"
)

// Types collects the types of stored events until they are reported. The zero value is ready to
// use, and a nil pointer collects nothing.
type Types struct {
	mu  sync.Mutex
	all map[sourceType]*typeCount
	// types is the number of types by source in all.
	types map[string]int
}

type sourceType struct{ source, eventType string }

type typeCount struct {
	first, last time.Time
	count       int64
}

// Add adds a stored event with its id.
func (t *Types) Add(source, eventType string, id int64) {
	if t == nil {
		return
	}
	at := events.Time(id)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.add(sourceType{source, eventType}, typeCount{at, at, 1})
}

func (t *Types) add(key sourceType, more typeCount) {
	c := t.all[key]
	if c == nil && (len(key.eventType) > maxTypeLength || t.types[key.source] >= maxTypes) {
		key.eventType = otherTypes
		c = t.all[key]
	}
	if c == nil {
		if t.all == nil {
			t.all, t.types = map[sourceType]*typeCount{}, map[string]int{}
		}
		t.all[key] = &more
		t.types[key.source]++
		return
	}
	if more.first.Before(c.first) {
		c.first = more.first
	}
	if more.last.After(c.last) {
		c.last = more.last
	}
	c.count += more.count
}

// take returns what was collected and forgets it.
func (t *Types) take() map[sourceType]*typeCount {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := t.all
	t.all, t.types = nil, nil
	return all
}

// putBack adds what could not be reported.
func (t *Types) putBack(all map[sourceType]*typeCount) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for key, c := range all {
		t.add(key, *c)
	}
}

// addTypesSQL adds to the event types, in the order of their keys. $6 is the maximum number of
// types of a source; more become $7. In a new week, the longest interval of the week before moves
// to longest_last_week.
const addTypesSQL = `
WITH d AS MATERIALIZED (
  SELECT s.number AS source, d.event_type, d.first_at, d.last_at, d.count, EXISTS (SELECT FROM source_types t
  	WHERE t.source = s.number AND t.event_type = d.event_type) AS known
  FROM unnest($1::text[], $2::text[], $3::timestamptz[], $4::timestamptz[], $5::bigint[])
    AS d(name, event_type, first_at, last_at, count)
  JOIN sources s ON s.name = d.name
), named AS (
  SELECT d.source, CASE WHEN d.known THEN d.event_type
    WHEN (SELECT count(*) FROM source_types t WHERE t.source = d.source)
    	+ row_number() OVER (PARTITION BY d.source, d.known ORDER BY d.event_type) <= $6 THEN d.event_type
    ELSE $7 END AS event_type, d.first_at, d.last_at, d.count
  FROM d
)
INSERT INTO source_types AS t (source, event_type, first_at, last_at, count)
SELECT source, event_type, min(first_at), max(last_at), sum(count)::bigint FROM named GROUP BY source, event_type
	ORDER BY source, event_type
ON CONFLICT (source, event_type) DO UPDATE SET first_at = least(t.first_at, excluded.first_at),
  last_at = greatest(t.last_at, excluded.last_at), count = t.count + excluded.count,
  longest_this_week = greatest(excluded.first_at - t.last_at,
    CASE WHEN ` + weekOfReport + ` <= ` + weekOfType + ` THEN t.longest_this_week ELSE interval '0' END),
  longest_last_week = CASE WHEN ` + weekOfReport + ` <= ` + weekOfType + ` THEN t.longest_last_week
    WHEN ` + weekOfReport + ` = ` + weekOfType + ` + interval '7 days' THEN t.longest_this_week
    ELSE interval '0' END`

// The weeks of a report and of the type's last event before it. Weeks are of UTC, in which each has
// seven days.
const (
	weekOfReport = `date_trunc('week', excluded.last_at AT TIME ZONE 'UTC')`
	weekOfType   = `date_trunc('week', t.last_at AT TIME ZONE 'UTC')`
)

// reportTypes adds the event types that were stored since the last report.
func (r *Reporter) reportTypes(ctx context.Context) error {
	if r.Types == nil {
		return nil
	}
	all := r.Types.take()
	if len(all) == 0 {
		return nil
	}
	var sources, types []string
	var first, last []time.Time
	var counts []int64
	for key, c := range all {
		sources, types = append(sources, key.source), append(types, events.SanitizeText(key.eventType))
		first, last, counts = append(first, c.first), append(last, c.last), append(counts, c.count)
	}
	if _, err := r.Pool.Exec(ctx, addTypesSQL, sources, types, first, last, counts, maxTypes, otherTypes); err != nil {
		r.Types.putBack(all)
		return fmt.Errorf("report event types: %w", err)
	}
	return nil
}

// SourceType is an event type that deliveries of a source brought.
type SourceType struct {
	Source string `json:"source"`
	// Type is the event type of the provider; (other) stands for all types above 500, and for very
	// long ones.
	Type string `json:"event_type"`
	// FirstAt and LastAt are when its first and its last event were stored. Count is about the
	// number of events.
	FirstAt events.Instant `json:"first_at"`
	LastAt  events.Instant `json:"last_at"`
	Count   int64          `json:"count"`
	// LongestInterval is the longest time without an event of the type, in seconds. It counts what
	// ended in the week of the last event, and in the week before.
	LongestInterval float64 `json:"longest_interval_seconds"`
	// Silent: the last event is older than twice the longest interval, and than an hour. Nights and
	// weekends without events are part of the longest interval, so only a type is silent that began
	// a week ago or earlier, and has 10 events.
	Silent bool `json:"silent"`

	number int32
}

// IsSilentSQL is true for a row t of source_types whose type is silent. Each subquery reads the
// clock once, not once per row.
const IsSilentSQL = `(t.count >= 10 AND t.first_at < (SELECT clock_now()) - interval '7 days' AND
	t.last_at < (SELECT clock_now()) - greatest(2 * ` + longestInterval + `, interval '1 hour'))`

const (
	longestInterval = `greatest(t.longest_this_week, t.longest_last_week)`
	sourceTypesSQL  = `
SELECT t.source, s.name, t.event_type, t.first_at, t.last_at, t.count,
  extract(epoch FROM ` + longestInterval + `)::float8, ` + IsSilentSQL + `
FROM source_types t JOIN sources s ON s.number = t.source
WHERE (t.source, t.event_type) > ($1::int, $2::text) AND t.source BETWEEN $3 AND $4
  AND ($5::boolean IS NULL OR ` + IsSilentSQL + ` = $5)
ORDER BY t.source, t.event_type LIMIT $6`
)

// SourceTypes returns a page of the event types of a source; 0: of all. silent selects those that
// are silent, or not; nil: both. Errors: events.ErrInvalid.
func SourceTypes(ctx context.Context, db postgres.DB, source int32, silent *bool, cursor string,
	limit int) (events.Page[SourceType], error) {
	type position struct {
		Source int32
		Type   string
	}
	first, last := events.SourceInterval(source)
	return events.ReadPage("list event types", cursor, limit, position{}, func(t *SourceType) position {
		return position{t.number, t.Type}
	}, func(after position, limit int) ([]SourceType, error) {
		return postgres.Collect(ctx, db, func(row pgx.CollectableRow) (t SourceType, err error) {
			return t, row.Scan(&t.number, &t.Source, &t.Type, &t.FirstAt, &t.LastAt, &t.Count, &t.LongestInterval,
				&t.Silent)
		}, sourceTypesSQL, after.Source, after.Type, first, last, silent, limit)
	})
}
