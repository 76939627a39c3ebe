package reconcile

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/lifecycle"
	"github.com/postern-gateway/postern/internal/provider"
)

const (
	// giveWithin bounds taking and giving back, which happen also where the caller has gone.
	giveWithin = 5 * time.Second
	// crowdedWait is for calls of other processes to end, of which nobody tells us.
	crowdedWait = 50 * time.Millisecond
	// longestSleep bounds a sleep, so that a row that was changed by hand is seen.
	longestSleep = 30 * time.Second
	// allotted is for how many days after its own a call counts: so no thirty days, from whichever hour on, have more calls than are allotted.
	allotted = 30
)

// budget is the bucket of calls that all processes may make for one account. It lies in the database: a call takes a token and a place among
// those under way before it begins, and gives the place back with what the provider said.
type budget struct {
	pool    *pgxpool.Pool
	source  int32
	account string
	// refill is how many tokens come back a second, burst the most there are, places the most calls at once.
	refill, burst float64
	places        int
	// monthly is the most calls within thirty days, 0 for no bound.
	monthly int
	// lease is when a call whose process died counts as ended.
	lease time.Duration
	// turn lets one of this process ask at a time; freed tells it that a place came back.
	turn, freed chan struct{}
	// log tells when all calls are used, once for as long as they are, which told notes.
	log  *slog.Logger
	told atomic.Bool
}

// burstOf is how many calls may come at once.
func burstOf(api *provider.API) float64 { return max(1, float64(api.Rate)/10) }

// newBudget makes a bucket that lets no more than rate calls begin in any second: what can come at once is taken off what comes back.
func newBudget(pool *pgxpool.Pool, source int32, account string, api *provider.API, log *slog.Logger) *budget {
	burst := burstOf(api)
	return &budget{pool: pool, source: source, account: account, refill: float64(api.Rate) - (burst - 1), burst: burst, places: api.Concurrency, monthly: api.Monthly,
		lease: api.Timeout + giveWithin, turn: make(chan struct{}, 1), freed: make(chan struct{}, 1), log: log}
}

// bound is how many of the calls of thirty days may be made so far, 0 for all: the last tenth is for what a person asks for.
func (b *budget) bound(asked bool) int {
	if asked {
		return b.monthly
	}
	return b.monthly - b.monthly/10
}

// takeSQL refills, takes and counts in one statement, which waits for others of the row and then sees what they left. What is under way past its time counts
// no more, nor do the calls of days that are over; a day that has not come yet, by a clock that was set back, counts as today. That a crash of the server may undo the last of these commits
// is no harm, so none waits for the disk.
const takeSQL = `
UPDATE budgets b SET (tokens, refilled_at, in_flight, calls) = (
  SELECT d.tokens - CASE WHEN d.taken THEN 1 ELSE 0 END, d.now,
    d.live || CASE WHEN d.taken THEN jsonb_build_object($3::text, extract(epoch FROM d.now) + $7::float8) ELSE '{}' END,
    d.calls || CASE WHEN d.taken THEN jsonb_build_object(d.today::text, coalesce((d.calls ->> d.today::text)::bigint, 0) + 1) ELSE '{}' END
  FROM (
    SELECT t.now, t.today, t.tokens, t.live, t.calls, t.tokens >= 1 AND b.blocked_until <= t.now AND (SELECT count(*) FROM jsonb_object_keys(t.live)) < $6::int
      AND ($8::int = 0 OR (SELECT coalesce(sum(c.value::bigint), 0) FROM jsonb_each_text(t.calls) c) < $8) AS taken
    FROM (
      SELECT n.now, n.today, least($5::float8, b.tokens + $4::float8 * greatest(0, extract(epoch FROM n.now - b.refilled_at)::float8)) AS tokens,
        (SELECT coalesce(jsonb_object_agg(f.key, f.value), '{}') FROM jsonb_each(b.in_flight) f WHERE f.value::float8 > extract(epoch FROM n.now)) AS live,
        (SELECT coalesce(jsonb_object_agg(c.day, c.calls), '{}') FROM (
          SELECT least(e.key::int, n.today) AS day, sum(e.value::bigint) AS calls FROM jsonb_each_text(b.calls) e WHERE e.key::int >= n.today - $9::int GROUP BY 1) c) AS calls
      FROM (SELECT m.now, floor(extract(epoch FROM m.now) / 86400)::int AS today FROM (SELECT clock_now() AS now OFFSET 0) m OFFSET 0) n OFFSET 0
    ) t OFFSET 0
  ) d)
WHERE b.source = $1 AND b.account = $2
RETURNING b.in_flight ? $3, b.tokens, extract(epoch FROM b.blocked_until - b.refilled_at)::float8, b.refilled_at, b.calls, set_config('synchronous_commit', 'off', true)`

// openSQL opens a budget, full.
const openSQL = `
INSERT INTO budgets (source, account, tokens, refilled_at, blocked_until, throttles, in_flight) VALUES ($1, $2, $3, clock_now(), clock_now(), 0, '{}')
ON CONFLICT (source, account) DO NOTHING`

// take waits until a call may begin, names it, and reads the database's clock. asked: a person has asked for what it reads. Errors: a *spentError where all calls of thirty days are used, the
// context's, or the database's.
func (b *budget) take(ctx context.Context, asked bool) (call string, at reading, err error) {
	select {
	case b.turn <- struct{}{}:
		defer func() { <-b.turn }()
	case <-ctx.Done():
		return "", reading{}, context.Cause(ctx)
	}
	call = rand.Text()
	for {
		if ctx.Err() != nil {
			return "", reading{}, context.Cause(ctx)
		}
		taken, wait, at, err := b.try(ctx, call, b.bound(asked))
		switch spent := (*spentError)(nil); {
		case errors.As(err, &spent):
			b.tell(spent)
			return "", reading{}, err
		case err != nil:
			return "", reading{}, fmt.Errorf("take from the budget of calls: %w", err)
		case taken:
			if !asked {
				b.told.Store(false)
			}
			return call, at, nil
		}
		if err := b.sleep(ctx, wait); err != nil {
			return "", reading{}, err
		}
	}
}

// try takes, or says how long to wait before the next try; 0 where only a place is missing. bound is how many calls there may be within thirty days, 0 for any number. Errors: a *spentError.
func (b *budget) try(ctx context.Context, call string, bound int) (taken bool, wait time.Duration, at reading, err error) {
	// What was taken must be known, so that it can be given back: a caller that goes does not cancel this.
	ctx, cancel := lifecycle.WithTimeout(context.WithoutCancel(ctx), "take from the budget of calls", giveWithin)
	defer cancel()
	var tokens, blocked float64
	var calls map[int64]int64
	var off string
	for {
		at.asked = time.Now()
		err = b.pool.QueryRow(ctx, takeSQL, b.source, b.account, call, b.refill, b.burst, b.places, b.lease.Seconds(), bound, allotted).Scan(&taken, &tokens, &blocked, &at.database, &calls, &off)
		at.told = time.Now()
		if !errors.Is(err, pgx.ErrNoRows) {
			break
		}
		if _, err = b.pool.Exec(ctx, openSQL, b.source, b.account, b.burst); err != nil {
			break
		}
	}
	if err == nil && !taken {
		if until, spent := goesOn(calls, int64(bound)); spent {
			return false, 0, at, &spentError{account: b.account, bound: bound, monthly: b.monthly, until: until, wait: until.Sub(at.database)}
		}
	}
	seconds := max(blocked, (1-tokens)/b.refill, 0)
	return taken, time.Duration(min(seconds, longestSleep.Seconds()) * float64(time.Second)), at, err
}

func (b *budget) sleep(ctx context.Context, wait time.Duration) error {
	freed := b.freed
	if wait > 0 {
		freed = nil
	} else {
		wait = crowdedWait
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-freed:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return nil
}

// giveSQL gives a place back. Where the provider wants to be left alone ($4, seconds) nobody calls for as long; where it was too many calls ($5), twice as
// long each time in a row, up to five minutes or what it asks for. Calls that were under way when the first was told count once.
const giveSQL = `
UPDATE budgets b SET in_flight = b.in_flight - $3::text,
  blocked_until = CASE WHEN $4::float8 > 0 THEN greatest(b.blocked_until, n.now + make_interval(secs =>
    CASE WHEN $5::boolean AND b.blocked_until <= n.now THEN least($4 * (1 << least(b.throttles, 10)), greatest($4, 300)) ELSE $4 END)) ELSE b.blocked_until END,
  throttles = CASE WHEN b.blocked_until > n.now THEN b.throttles WHEN $5 THEN b.throttles + 1 WHEN $4 > 0 THEN b.throttles ELSE 0 END
FROM (SELECT clock_now() AS now OFFSET 0) n
WHERE b.source = $1 AND b.account = $2
RETURNING set_config('synchronous_commit', 'off', true)`

// give ends a call. Where that fails, the place comes back by itself after the lease.
func (b *budget) give(ctx context.Context, call string, v provider.Verdict) error {
	ctx, cancel := lifecycle.WithTimeout(context.WithoutCancel(ctx), "give back to the budget of calls", giveWithin)
	defer cancel()
	_, err := b.pool.Exec(ctx, giveSQL, b.source, b.account, call, v.Wait.Seconds(), v.Kind == provider.Throttled)
	select {
	case b.freed <- struct{}{}:
	default:
	}
	if err != nil {
		return fmt.Errorf("give back to the budget of calls: %w", err)
	}
	return nil
}
