package providerapi

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// The clock that stamps a provider's events can differ from the clock that its API shows. An event
// is appended after it was stamped. So the shortest time from stamp to append, by the database's
// clock, is an upper bound of how far the stamping clock is behind. The window of a refetch must
// hold by that clock too. Otherwise the refetch wins over an event that it does not contain.

const (
	// delayEvents is how many of the newest outcomes of all sources are searched for the source's
	// events.
	delayEvents = 10_000
	// delayAge is the greatest age of an event that counts, and stampAhead is how far ahead its
	// stamp may be.
	delayAge, stampAhead = time.Hour, time.Hour
	// delayKept is how long a measured delay is used. Without a measurement, it is read again after
	// delayRetried.
	delayKept, delayRetried = time.Minute, 10 * time.Second
)

// delaySQL returns the shortest time, in microseconds, from the stamp of a source's event to its
// append, by the database's clock. A stamp further ahead than $4 is a simulated clock or a number,
// and does not count. A refetch, whose version has seen, does not count: the API's clock orders it.
const delaySQL = `
SELECT (SELECT clock_now()), min(d.delay)::bigint FROM (
  SELECT (o.event_id >> 20) * 1000 - (o.version ->> 'at')::numeric AS delay
  FROM (SELECT event_id, source, version FROM outcomes
    WHERE run = 0 AND event_id >= ((extract(epoch FROM (SELECT clock_now())) - $3::float8) * 1000)::bigint << 20
    ORDER BY event_id DESC LIMIT $2) o
  WHERE o.source = $1 AND o.version ->> 'seen' = '0'
) d WHERE d.delay >= -$4::bigint`

// eventDelay is the shortest time that the source's events take from their stamps to their append,
// by the database's clock. Negative: the clock that stamps them is ahead.
type eventDelay struct {
	least time.Duration
	// known is false if no recent event shows the delay, or if it exceeds maxSkew in either
	// direction.
	known bool
}

// eventDelayCache keeps the event delay of a source.
type eventDelayCache struct {
	mu      sync.Mutex
	current eventDelay
	readAt  time.Time // on the database's clock
}

// delayAt returns the delay that holds at a reading of the database's clock. If it reads the delay
// again, it returns a newer reading of that clock as well.
func (d *eventDelayCache) delayAt(ctx context.Context, pool *pgxpool.Pool, source int32, at clockReading) (eventDelay,
	clockReading, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	maxAge := delayRetried
	if d.current.known {
		maxAge = delayKept
	}
	if age := at.database.Sub(d.readAt); age >= 0 && age < maxAge {
		return d.current, at, nil
	}
	least, at, err := readDelay(ctx, pool, source)
	if err != nil {
		return eventDelay{}, at, err
	}
	d.current, d.readAt = eventDelay{}, at.database
	if least != nil && least.Abs() <= EventDelayAllowed {
		d.current = eventDelay{least: *least, known: true}
	}
	return d.current, at, nil
}

// EventDelayAllowed is the greatest delay, either way, that refetches allow for.
const EventDelayAllowed = maxSkew

// ReadEventDelay returns the shortest time that a source's events of the last hour took from the
// provider's stamp to their append, by the database's clock. Negative: the stamping clock is ahead.
// ok is false if no event tells it.
func ReadEventDelay(ctx context.Context, pool *pgxpool.Pool, source int32) (least time.Duration, ok bool, err error) {
	d, _, err := readDelay(ctx, pool, source)
	if err != nil || d == nil {
		return 0, false, err
	}
	return *d, true, nil
}

func readDelay(ctx context.Context, pool *pgxpool.Pool, source int32) (least *time.Duration, at clockReading,
	err error) {
	var us *int64
	at.before = time.Now()
	err = pool.QueryRow(ctx, delaySQL, source, delayEvents, delayAge.Seconds(), stampAhead.Microseconds()).
		Scan(&at.database, &us)
	at.after = time.Now()
	if err != nil {
		return nil, at, fmt.Errorf("read how long events of source %d take to arrive: %w", source, err)
	}
	if us != nil {
		d := time.Duration(*us) * time.Microsecond
		least = &d
	}
	return least, at, nil
}

// widenForEvents widens the interval of a response so that it holds by the clock that stamps
// events. If the API's clock and the database's differ by more than maxSkew, one of them is wrong.
// The delay was measured by the database's clock, so the interval stays as it is. If no event shows
// the delay, the interval stays too, because the response may be a page of a scan. The refetch of
// one object adds Unmeasured itself.
func (r *Response) widenForEvents(at clockReading, events eventDelay, began, now time.Time) {
	switch {
	case r.Date.IsZero() || r.Skew.Abs() > maxSkew:
		return
	case !events.known:
		r.Unmeasured = maxSkew
		return
	}
	from, until := r.Date.Add(-r.Elapsed), r.Date
	first := at.database.Add(began.Sub(at.after) - events.least)
	// The second after Date is the margin for the time of the delivery itself.
	last := at.database.Add(now.Sub(at.before) - min(0, events.least))
	if first.Before(from) {
		from = first
	}
	if events.least < 0 && last.After(until) {
		until = last
	}
	r.Widened += until.Sub(from) - r.Elapsed
	r.Date, r.Elapsed = until, until.Sub(from)
}
