package providerapi

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
	// budgetTimeout bounds taking and releasing a slot. Both happen even if the caller is gone.
	budgetTimeout = 5 * time.Second
	// slotPollInterval is how often a waiting call checks for a free slot. Other processes do not
	// notify this one.
	slotPollInterval = 50 * time.Millisecond
	// maxSleep bounds a sleep, so that a manual change of the row takes effect.
	maxSleep = 30 * time.Second
	// A call counts on its own day and for monthlyWindowDays after it. Any thirty days, from any
	// hour on, therefore have at most as many calls as configured.
	monthlyWindowDays = 30
)

// budget is the token bucket of the calls that all processes may make for one account. It is stored
// in the database. A call takes a token and a slot before it begins. It releases the slot with the
// provider's verdict.
type budget struct {
	pool    *pgxpool.Pool
	source  int32
	account string
	// refillPerSecond is how many tokens come back per second, burst the most tokens, and slots the
	// most calls at once.
	refillPerSecond, burst float64
	slots                  int
	// monthly is the most calls within thirty days, 0 for no limit.
	monthly int
	// lease is after how long a call of a crashed process counts as ended.
	lease time.Duration
	// takeTurn lets one goroutine of this process query the database at a time. slotFreed wakes it
	// when this process has released a slot.
	takeTurn, slotFreed chan struct{}
	log                 *slog.Logger
	// spentLogged: the log has a message that all calls are used, and no call was made since.
	spentLogged atomic.Bool
}

// burstOf returns how many calls may begin at once.
func burstOf(api *provider.API) float64 { return max(1, float64(api.Rate)/10) }

// newBudget makes a bucket that lets at most rate calls begin in any second. The refill is lower
// than the rate, because a burst can begin in the same second.
func newBudget(pool *pgxpool.Pool, source int32, account string, api *provider.API, log *slog.Logger) *budget {
	burst := burstOf(api)
	return &budget{pool: pool, source: source, account: account, refillPerSecond: float64(api.Rate) - (burst - 1),
		burst: burst, slots: api.Concurrency, monthly: api.MonthlyCalls,
		lease: api.Timeout + budgetTimeout, takeTurn: make(chan struct{}, 1), slotFreed: make(chan struct{}, 1),
		log: log}
}

// monthlyLimit returns how many calls within thirty days this caller may use, 0 for any number. The
// last tenth is reserved for requests of an operator.
func (b *budget) monthlyLimit(byOperator bool) int {
	if byOperator {
		return b.monthly
	}
	return b.monthly - b.monthly/10
}

// takeTokenSQL refills, takes and counts in one statement, which waits for other writers of the row
// and sees their result. Calls in flight beyond their lease do not count, nor do calls of days
// outside the window. A day in the future, after a clock was set back, counts as today. A server
// crash may undo the last of these commits without harm, so the commit does not wait for the disk.
const takeTokenSQL = `
UPDATE rate_budgets b SET (tokens, refilled_at, in_flight, calls) = (
  SELECT d.tokens - CASE WHEN d.taken THEN 1 ELSE 0 END, d.now,
    d.live || CASE WHEN d.taken THEN jsonb_build_object($3::text, extract(epoch FROM d.now) + $7::float8) ELSE '{}' END,
    d.calls || CASE WHEN d.taken THEN jsonb_build_object(d.today::text, coalesce((d.calls ->> d.today::text)::bigint,
    	0) + 1) ELSE '{}' END
  FROM (
    SELECT t.now, t.today, t.tokens, t.live, t.calls, t.tokens >= 1 AND b.blocked_until <= t.now AND (SELECT count(*)
    	FROM jsonb_object_keys(t.live)) < $6::int
      AND ($8::int = 0 OR (SELECT coalesce(sum(c.value::bigint), 0) FROM jsonb_each_text(t.calls) c) < $8) AS taken
    FROM (
      SELECT n.now, n.today, least($5::float8, b.tokens + $4::float8 * greatest(0, extract(epoch
      	FROM n.now - b.refilled_at)::float8)) AS tokens,
        (SELECT coalesce(jsonb_object_agg(f.key, f.value), '{}') FROM jsonb_each(b.in_flight) f
        	WHERE f.value::float8 > extract(epoch FROM n.now)) AS live,
        (SELECT coalesce(jsonb_object_agg(c.day, c.calls), '{}') FROM (
          SELECT least(e.key::int, n.today) AS day, sum(e.value::bigint) AS calls FROM jsonb_each_text(b.calls) e
          	WHERE e.key::int >= n.today - $9::int GROUP BY 1) c) AS calls
      FROM (SELECT m.now, floor(extract(epoch FROM m.now) / 86400)::int AS today
      	FROM (SELECT clock_now() AS now OFFSET 0) m OFFSET 0) n OFFSET 0
    ) t OFFSET 0
  ) d)
WHERE b.source = $1 AND b.account = $2
RETURNING b.in_flight ? $3, b.tokens, extract(epoch FROM b.blocked_until - b.refilled_at)::float8, b.refilled_at,
	b.calls, set_config('synchronous_commit', 'off', true)`

// openBudgetSQL inserts a full budget.
const openBudgetSQL = `
INSERT INTO rate_budgets (source, account, tokens, refilled_at, blocked_until, throttles, in_flight)
	VALUES ($1, $2, $3, clock_now(), clock_now(), 0, '{}')
ON CONFLICT (source, account) DO NOTHING`

// OpenBudget inserts the budget of the key's account, which shows that this process reads the
// source's API.
func OpenBudget(ctx context.Context, pool *pgxpool.Pool, source int32, api *provider.API) error {
	if _, err := pool.Exec(ctx, openBudgetSQL, source, "", burstOf(api)); err != nil {
		return fmt.Errorf("open the budget: %w", err)
	}
	return nil
}

// hasBudgetSQL returns whether a processor reads the source's API. Each opens the budget of the
// key's account when it starts.
const hasBudgetSQL = `SELECT EXISTS (SELECT FROM rate_budgets WHERE source = $1)`

// ProcessorReadsAPI reports whether a processor has read the source's API. Only such a processor
// makes its refetches.
func ProcessorReadsAPI(ctx context.Context, pool *pgxpool.Pool, source int32) (read bool, err error) {
	if err := pool.QueryRow(ctx, hasBudgetSQL, source).Scan(&read); err != nil {
		return false, fmt.Errorf("check whether a processor reads the API of source %d: %w", source, err)
	}
	return read, nil
}

// take waits until a call may begin, and returns the call's name and a reading of the database's
// clock. byOperator: an operator has requested what the call reads. Errors: a *MonthlyBudgetError
// if all calls of thirty days are used, the context's error, or the database's.
func (b *budget) take(ctx context.Context, byOperator bool) (call string, at clockReading, err error) {
	select {
	case b.takeTurn <- struct{}{}:
		defer func() { <-b.takeTurn }()
	case <-ctx.Done():
		return "", clockReading{}, context.Cause(ctx)
	}
	call = rand.Text()
	for {
		if ctx.Err() != nil {
			return "", clockReading{}, context.Cause(ctx)
		}
		taken, wait, at, err := b.tryTake(ctx, call, b.monthlyLimit(byOperator))
		switch spent := (*MonthlyBudgetError)(nil); {
		case errors.As(err, &spent):
			b.logSpent(spent)
			return "", clockReading{}, err
		case err != nil:
			return "", clockReading{}, fmt.Errorf("take from the rate budget: %w", err)
		case taken:
			if !byOperator {
				b.spentLogged.Store(false)
			}
			return call, at, nil
		}
		if err := b.sleep(ctx, wait); err != nil {
			return "", clockReading{}, err
		}
	}
}

// tryTake takes a token and a slot, or returns how long to wait before the next try. The wait is 0
// if only a slot is missing. limit is the most calls within thirty days, 0 for any number. Errors:
// a *MonthlyBudgetError.
func (b *budget) tryTake(ctx context.Context, call string, limit int) (taken bool, wait time.Duration, at clockReading,
	err error) {
	// The result of this statement must be known, so that the slot can be released. A caller that
	// goes away therefore does not cancel it.
	ctx, cancel := lifecycle.WithTimeout(context.WithoutCancel(ctx), "take from the rate budget", budgetTimeout)
	defer cancel()
	var tokens, blocked float64
	var calls map[int64]int64
	var off string
	for {
		at.before = time.Now()
		err = b.pool.QueryRow(ctx, takeTokenSQL, b.source, b.account, call, b.refillPerSecond, b.burst, b.slots,
			b.lease.Seconds(), limit, monthlyWindowDays).Scan(&taken, &tokens, &blocked, &at.database, &calls, &off)
		at.after = time.Now()
		if !errors.Is(err, pgx.ErrNoRows) {
			break
		}
		if _, err = b.pool.Exec(ctx, openBudgetSQL, b.source, b.account, b.burst); err != nil {
			break
		}
	}
	if err == nil && !taken {
		if until, spent := budgetResumesAt(calls, int64(limit)); spent {
			return false, 0, at, &MonthlyBudgetError{account: b.account, Limit: limit, Monthly: b.monthly, until: until,
				Wait: until.Sub(at.database)}
		}
	}
	seconds := max(blocked, (1-tokens)/b.refillPerSecond, 0)
	return taken, time.Duration(min(seconds, maxSleep.Seconds()) * float64(time.Second)), at, err
}

func (b *budget) sleep(ctx context.Context, wait time.Duration) error {
	slotFreed := b.slotFreed
	if wait > 0 {
		slotFreed = nil
	} else {
		wait = slotPollInterval
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-slotFreed:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return nil
}

// releaseSlotSQL releases a slot. If the provider asks for a pause ($4, seconds), no process calls
// it meanwhile. If there were too many calls ($5), the pause doubles with each time in a row, up to
// five minutes or the requested pause. Calls that were in flight when the first was throttled count
// once.
const releaseSlotSQL = `
UPDATE rate_budgets b SET in_flight = b.in_flight - $3::text,
  blocked_until = CASE WHEN $4::float8 > 0 THEN greatest(b.blocked_until, n.now + make_interval(secs =>
    CASE WHEN $5::boolean AND b.blocked_until <= n.now THEN least($4 * (1 << least(b.throttles, 10)), greatest($4, 300))
    	ELSE $4 END)) ELSE b.blocked_until END,
  throttles = CASE WHEN b.blocked_until > n.now THEN b.throttles WHEN $5 THEN b.throttles + 1
  	WHEN $4 > 0 THEN b.throttles ELSE 0 END
FROM (SELECT clock_now() AS now OFFSET 0) n
WHERE b.source = $1 AND b.account = $2
RETURNING set_config('synchronous_commit', 'off', true)`

// release ends a call. If it fails, the slot is free again after the lease.
func (b *budget) release(ctx context.Context, call string, v provider.Verdict) error {
	ctx, cancel := lifecycle.WithTimeout(context.WithoutCancel(ctx), "release a slot of the rate budget", budgetTimeout)
	defer cancel()
	_, err := b.pool.Exec(ctx, releaseSlotSQL, b.source, b.account, call, v.Wait.Seconds(),
		v.Kind == provider.Throttled)
	select {
	case b.slotFreed <- struct{}{}:
	default:
	}
	if err != nil {
		return fmt.Errorf("release a slot of the rate budget: %w", err)
	}
	return nil
}
