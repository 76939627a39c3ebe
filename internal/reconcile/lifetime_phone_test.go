package reconcile_test

import (
	"context"
	"maps"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/reconcile"
)

// mortally does something that may die on the way, and says whether it has.
func (l *lifetime) mortally(do func(context.Context)) bool {
	died := l.mortal.lets(l.chance, l.deaths, do)
	if died {
		l.begin()
	}
	return died
}

// mortalPool is a pool of a role on which one may die.
func (l *lifetime) mortalPool(t *testing.T, role string) *pgxpool.Pool {
	t.Helper()
	return tracedPool(t, l.db, role, l)
}

// TraceQueryStart is called before each statement. While somebody waits for outcomes, the auditor comes.
func (l *lifetime) TraceQueryStart(ctx context.Context, _ *pgx.Conn, d pgx.TraceQueryStartData) context.Context {
	if strings.HasPrefix(d.SQL, "SET ROLE") { // by another goroutine
		return ctx
	}
	l.mortal.moment()
	if d.SQL == pendingSQL {
		if l.mortal.waits++; l.mortal.waits > 3 {
			l.mortal.waits = 0
			l.audit()
		}
	}
	return context.WithValue(ctx, tracedKey{}, d.SQL)
}

// TraceQueryEnd is called after each.
func (l *lifetime) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, d pgx.TraceQueryEndData) {
	sql, ok := ctx.Value(tracedKey{}).(string)
	if !ok {
		return
	}
	if sql == provenSQL && d.Err == nil {
		l.proven()
	}
	l.mortal.moment()
}

// phone calls the API for what reconciles, on the ward's clock. A sweep reads ahead in goroutines of its own, which leave alone what the others choose: only
// the ward's life goes on there.
type phone struct {
	*reconcile.Client
	life *lifetime

	mu sync.Mutex
	// luck chooses for sweeps.
	luck *rand.Rand
	// told is the time that the last answer told, and at when that was.
	told, at time.Time
	// looked is how often each object was answered to a look.
	looked map[string]int
	calls  int
}

// Now is the provider's time as the last answer told it, as reconcile.Clock keeps it.
func (c *phone) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.life.Now()
	if c.told.IsZero() {
		return now
	}
	return c.told.Add(now.Sub(c.at))
}

// Do calls the API, perhaps after something else has happened, for small pages. Where the budget makes it wait, that time passes.
func (c *phone) Do(ctx context.Context, call provider.Call) (*reconcile.Response, error) {
	l, what := c.life, c.life.asks(call)
	if what.list {
		c.meanwhile()
	} else if l.mortal.waits = 0; l.chance.IntN(100) < l.between {
		l.something()
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	l.mortal.moment()
	if call.Query.Get("per_page") == "100" {
		call.Query = maps.Clone(call.Query)
		call.Query.Set("per_page", "3")
	}
	a, err := c.Client.Do(ctx, call)
	l.mortal.moment()
	if err != nil {
		return nil, err
	}
	c.learn(what.object, a)
	return a, nil
}

// meanwhile lets the ward live on between two pages of objects.
func (c *phone) meanwhile() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.life.over && c.luck.IntN(100) < c.life.between {
		for range 1 + c.luck.IntN(3) {
			c.life.Step()
		}
	}
}

func (c *phone) learn(object string, a *reconcile.Response) {
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.life
	if c.calls++; c.calls > 100_000 {
		panic("calls without end")
	}
	if a.Verdict.Wait > 0 {
		var until time.Time
		l.must(l.db.Pool.QueryRow(context.Background(), `SELECT max(blocked_until) FROM budgets`).Scan(&until))
		l.wait(until.Sub(l.Now()))
	}
	if a.Verdict.Kind != provider.Found && a.Verdict.Kind != provider.Missing {
		return
	}
	if !a.Date.IsZero() {
		c.told, c.at = a.Date, l.Now()
	}
	if object != "" {
		c.looked[object]++
	}
}
