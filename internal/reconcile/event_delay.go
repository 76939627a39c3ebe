package reconcile

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// The clock that stamps a provider's events is not always the clock that its API shows. Webhooks bound the difference: an event
// is appended after it was stamped, so the database's clock less the stamp, at its least, is at least as far as the stamping
// clock is behind the database's. A refetch's window must hold by that clock too, or the refetch wins over an event that it
// does not contain.

const (
	// delayEvents is how many of the newest outcomes of all sources are searched for the source's events.
	delayEvents = 10_000
	// delayAge is how old an event may be that tells about the clocks of now, and stampAhead how far ahead its stamp may be.
	delayAge, stampAhead = time.Hour, time.Hour
	// delayKept is how long a delay that was read is used; without one it is read again after delayRetried.
	delayKept, delayRetried = time.Minute, 10 * time.Second
)

// delaySQL is the least time, in microseconds, between the stamp of a source's event and its append, by the database's clock.
// What lies further ahead than $4 is no stamp: a simulated clock, or a number. Refetches that were ordered by the API's clock
// have seen.
const delaySQL = `
SELECT (SELECT clock_now()), min(d.delay)::bigint FROM (
  SELECT (o.event_id >> 20) * 1000 - (o.version ->> 'at')::numeric AS delay
  FROM (SELECT event_id, source, version FROM outcomes WHERE run = 0 AND event_id >= ((extract(epoch FROM (SELECT clock_now())) - $3::float8) * 1000)::bigint << 20
    ORDER BY event_id DESC LIMIT $2) o
  WHERE o.source = $1 AND o.version ->> 'seen' = '0'
) d WHERE d.delay >= -$4::bigint`

// eventDelay is how long the source's events take to arrive, at least, counted from their stamps on the database's clock.
// Negative: the clock that stamps them is ahead.
type eventDelay struct {
	least time.Duration
	// known is false where no event of late tells it, or it is more than mostSkew either way.
	known bool
}

// delays keeps the event delay of a source.
type delays struct {
	mu   sync.Mutex
	now  eventDelay
	read time.Time // on the database's clock
}

// of returns the delay as it is when the database's clock was read. Where it had to read the delay again, it returns a newer
// reading of that clock, so that none is older than the call that follows.
func (d *delays) of(ctx context.Context, pool *pgxpool.Pool, source int32, at reading) (eventDelay, reading, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	kept := delayRetried
	if d.now.known {
		kept = delayKept
	}
	if age := at.database.Sub(d.read); age >= 0 && age < kept {
		return d.now, at, nil
	}
	least, at, err := readDelay(ctx, pool, source)
	if err != nil {
		return eventDelay{}, at, err
	}
	d.now, d.read = eventDelay{}, at.database
	if least != nil && least.Abs() <= EventDelayAllowed {
		d.now = eventDelay{least: *least, known: true}
	}
	return d.now, at, nil
}

// EventDelayAllowed is the greatest delay, either way, that refetches allow for.
const EventDelayAllowed = mostSkew

// ReadEventDelay returns how long events of a source took to arrive in the last hour, at least, counted from the provider's stamps
// on the database's clock. Negative: the stamping clock is ahead. ok is false where no event tells it.
func ReadEventDelay(ctx context.Context, pool *pgxpool.Pool, source int32) (least time.Duration, ok bool, err error) {
	d, _, err := readDelay(ctx, pool, source)
	if err != nil || d == nil {
		return 0, false, err
	}
	return *d, true, nil
}

func readDelay(ctx context.Context, pool *pgxpool.Pool, source int32) (least *time.Duration, at reading, err error) {
	var us *int64
	at.asked = time.Now()
	err = pool.QueryRow(ctx, delaySQL, source, delayEvents, delayAge.Seconds(), stampAhead.Microseconds()).Scan(&at.database, &us)
	at.told = time.Now()
	if err != nil {
		return nil, at, fmt.Errorf("read how long events of source %d take to arrive: %w", source, err)
	}
	if us != nil {
		d := time.Duration(*us) * time.Microsecond
		least = &d
	}
	return least, at, nil
}

// holdForEvents lets the window of the response hold by the clock that stamps events too: it begins no later than the call by
// that clock, and ends no earlier. Where the API's clock and the database's differ by more than mostSkew one of them is wrong, and
// the delay was measured by the database's, so that nothing is made up for. Where no event tells the delay, the window is left as it
// is: it is a scan's as well, which would begin earlier for nothing. The refetch of one object takes Unmeasured into account.
func (r *Response) holdForEvents(at reading, events eventDelay, began, now time.Time) {
	switch {
	case r.Date.IsZero() || r.Skew.Abs() > mostSkew:
		return
	case !events.known:
		r.Unmeasured = mostSkew
		return
	}
	from, until := r.Date.Add(-r.Elapsed), r.Date
	first := at.database.Add(began.Sub(at.told) - events.least)
	last := at.database.Add(now.Sub(at.asked) - min(0, events.least)) // Date's second is the margin for the delivery's own time
	if first.Before(from) {
		from = first
	}
	if events.least < 0 && last.After(until) {
		until = last
	}
	r.Widened += until.Sub(from) - r.Elapsed
	r.Date, r.Elapsed = until, until.Sub(from)
}
