package reconcile

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
)

// Try takes from a budget if it can at once.
func (c *Client) Try(ctx context.Context, account, call string) (taken bool, wait time.Duration, err error) {
	b := c.budget(account)
	taken, wait, _, err = b.try(ctx, call, b.bound(false))
	return taken, wait, err
}

// TryAsked takes as what a person has asked for does.
func (c *Client) TryAsked(ctx context.Context, account, call string) (taken bool, wait time.Duration, err error) {
	b := c.budget(account)
	taken, wait, _, err = b.try(ctx, call, b.bound(true))
	return taken, wait, err
}

// Forget has whose the keys are shown again, as another configuration does.
func (s *Sources) Forget() { s.shows.forget() }

// UsedUp is what a call meets whose account has no calls left for a while.
func UsedUp(wait time.Duration) error {
	return fmt.Errorf("call it: %w", &spentError{bound: 9, monthly: 10, wait: wait})
}

// Spent is how long calls must wait that an error says are used, and until when.
func Spent(err error) (wait time.Duration, until time.Time, ok bool) {
	var spent *spentError
	if ok = errors.As(err, &spent); ok {
		wait, until = spent.wait, spent.until
	}
	return wait, until, ok
}

// Give ends a call of a budget.
func (c *Client) Give(ctx context.Context, account, call string, v provider.Verdict) error {
	return c.budget(account).give(ctx, call, v)
}

// Told lets the clock learn from an answer.
func (c *Clock) Told(now time.Time, elapsed time.Duration, date time.Time, skew time.Duration) (of time.Duration, first bool) {
	return c.told(now, elapsed, date, skew)
}

// Widen holds an answer against the database's clock, which showed a time at some moment from asked to told; its call was made from began to now.
func (r *Response) Widen(database, asked, told, began, now time.Time) {
	r.widen(reading{database: database, asked: asked, told: told}, began, now)
}

// HoldForEvents lets a window hold by the clock that stamps events, which arrive so long after their stamps.
func (r *Response) HoldForEvents(database, asked, told, began, now time.Time, least time.Duration) {
	r.holdForEvents(reading{database: database, asked: asked, told: told}, eventDelay{least: least, known: true}, began, now)
}

// ClosePool takes the database away from a client.
func (c *Client) ClosePool() { c.o.Pool.Close() }

// Passes is what makes one pass over the hints of a source, as Run does again and again.
func (l *Looks) Passes(s *Source) func(context.Context) (int, error) {
	l.entering = make(chan struct{}, Entering)
	h := &hinted{fetcher: fetcher{Runner: l.Runner, source: s, proof: []byte(`{"scheme":"api"}`)}, looks: l}
	return h.pass
}

// WalkSQL is a stretch of the walk through the mirror.
const WalkSQL = walkSQL

// Changing says whether a field changes without a version.
func Changing(volatile []string, path string) bool {
	return (&item{volatile: volatile}).changing(path)
}

// GatherSQL makes hints of what owes a look, and TakeHintsSQL takes those that are due.
const (
	GatherSQL       = gatherSQL
	ForgetParkedSQL = forgetParkedSQL
	TakeHintsSQL    = takeHintsSQL
)

// ScopeOf is what the list of a type is asked for, as a sweep keeps it.
func ScopeOf(s *Source, objectType string) string {
	of := &sweep{work: &work{fetcher: fetcher{source: s}}, lister: s.Reader.(provider.ObjectLister), objectType: objectType}
	return of.asks()
}
