package reconcile

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/provider"
)

// Try takes from a budget if it can at once.
func (c *Client) Try(ctx context.Context, account, call string) (taken bool, wait time.Duration, err error) {
	return c.budget(account).try(ctx, call)
}

// Give ends a call of a budget.
func (c *Client) Give(ctx context.Context, account, call string, v provider.Verdict) error {
	return c.budget(account).give(ctx, call, v)
}

// Told lets the clock learn from an answer.
func (c *Clock) Told(now time.Time, elapsed time.Duration, date time.Time) {
	c.told(now, elapsed, date)
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
	GatherSQL    = gatherSQL
	TakeHintsSQL = takeHintsSQL
)

// FromAfter is from when changes are asked for, after a row of a sweep that asked from a time was read.
func FromAfter(from time.Time, row pgx.Row) (time.Time, error) {
	p := progress{from: from}
	err := p.scan(row)
	return p.from, err
}
