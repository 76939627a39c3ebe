package providerapi

import (
	"context"
	"errors"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
)

// TryTake takes a call from a rate budget if that is possible at once.
func (c *Client) TryTake(ctx context.Context, account, call string) (taken bool, wait time.Duration, err error) {
	b := c.budgetOf(account)
	taken, wait, _, err = b.tryTake(ctx, call, b.monthlyLimit(false))
	return taken, wait, err
}

// TryTakeForOperator does the same for a call that an operator has requested.
func (c *Client) TryTakeForOperator(ctx context.Context, account, call string) (taken bool, wait time.Duration,
	err error) {
	b := c.budgetOf(account)
	taken, wait, _, err = b.tryTake(ctx, call, b.monthlyLimit(true))
	return taken, wait, err
}

// MonthlyBudgetWait returns how long, and until when, calls must wait by an error of
// MonthlyBudgetError.
func MonthlyBudgetWait(err error) (wait time.Duration, until time.Time, ok bool) {
	var spent *MonthlyBudgetError
	if ok = errors.As(err, &spent); ok {
		wait, until = spent.Wait, spent.until
	}
	return wait, until, ok
}

// Release ends a call of a rate budget.
func (c *Client) Release(ctx context.Context, account, call string, v provider.Verdict) error {
	return c.budgetOf(account).release(ctx, call, v)
}

// Observe records a response in the clock.
func (c *Clock) Observe(now time.Time, elapsed time.Duration, date time.Time,
	skew time.Duration) (largest time.Duration, first bool) {
	return c.observe(now, elapsed, date, skew)
}

// Widen compares a response with the database's clock. The database read its clock at some time
// from before to after. The call lasted from began to now.
func (r *Response) Widen(database, before, after, began, now time.Time) {
	r.widen(clockReading{database: database, before: before, after: after}, began, now)
}

// WidenForEvents widens the time range of a response for the clock that stamps events. Events
// arrive at least this long after their stamps.
func (r *Response) WidenForEvents(database, before, after, began, now time.Time, least time.Duration) {
	r.widenForEvents(clockReading{database: database, before: before, after: after},
		eventDelay{least: least, known: true}, began, now)
}

// ClosePool closes the database pool of a client.
func (c *Client) ClosePool() { c.options.Pool.Close() }
