package reconcile_test

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/testkit"
)

// mortality lets what reconciles die before or after any of its statements and calls, as a killed process does: what is
// under way at the server is done, and nothing comes after it.
type mortality struct {
	mu sync.Mutex
	// left are the moments until death; 0: it lives on.
	left int
	die  context.CancelCauseFunc
	// waits are how often in a row somebody has asked whether events have their outcomes.
	waits int
}

var errKilled = errors.New("killed")

// mortally does something that may die on the way, and says whether it has.
func (l *life) mortally(do func(context.Context)) (died bool) {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	left := 0
	if l.chance.IntN(100) < l.deaths {
		left = 1 + l.chance.IntN(10+l.chance.IntN(60))
	}
	left, die := l.mortal.change(left, cancel)
	do(ctx)
	l.mortal.change(left, die)
	if died = context.Cause(ctx) == errKilled; died {
		l.begin()
	}
	return died
}

// change makes death come after so many moments, and returns what was before.
func (m *mortality) change(left int, die context.CancelCauseFunc) (int, context.CancelCauseFunc) {
	m.mu.Lock()
	defer m.mu.Unlock()
	left, m.left = m.left, left
	die, m.die = m.die, die
	return left, die
}

// moment is one at which death may come.
func (m *mortality) moment() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.left == 0 {
		return
	}
	if m.left--; m.left == 0 {
		m.die(errKilled)
	}
}

// mortalPool is a pool of a role on which one may die.
func (l *life) mortalPool(t *testing.T, role string) *pgxpool.Pool {
	t.Helper()
	return tracedPool(t, l.db, role, l)
}

// tracedPool is a pool of a role whose statements somebody sees.
func tracedPool(t *testing.T, db *testkit.DB, role string, by pgx.QueryTracer) *pgxpool.Pool {
	t.Helper()
	cfg := db.Role(t, role).Config()
	cfg.ConnConfig.Tracer = by
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// statement is the text of the one that contains something.
func statement(of []string, has string) string {
	for _, sql := range of {
		if strings.Contains(sql, has) {
			return sql
		}
	}
	panic("no statement has " + has)
}

var (
	pendingSQL = statement(processor.Statements(), "o.status IS NULL OR o.status = 'failed'")
	provenSQL  = statement(reconcile.Statements(), "'run ' || $6")
	raiseSQL   = statement(reconcile.Statements(), "AS w(what), sweeps s")
	dropSQL    = statement(reconcile.Statements(), "DELETE FROM hints WHERE source = $1 AND account = $2 AND object_type = $3 AND object_id = $4 AND taken_by = $5")
)

type tracedKey struct{}

// TraceQueryStart is called before each statement. While somebody waits for outcomes, the auditor comes.
func (l *life) TraceQueryStart(ctx context.Context, _ *pgx.Conn, d pgx.TraceQueryStartData) context.Context {
	if strings.HasPrefix(d.SQL, "SET ROLE") { // by another goroutine
		return ctx
	}
	l.mortal.moment()
	switch d.SQL {
	case pendingSQL:
		if l.mortal.waits++; l.mortal.waits > 3 {
			l.mortal.waits = 0
			l.audit()
		}
	case raiseSQL:
		l.typeProven(d.Args)
	case dropSQL:
		l.needless(d.Args)
	case reconcile.WalkSQL:
		if l.chance.IntN(100) < l.between {
			l.something()
		}
	}
	return context.WithValue(ctx, tracedKey{}, d.SQL)
}

// TraceQueryEnd is called after each.
func (l *life) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, d pgx.TraceQueryEndData) {
	sql, ok := ctx.Value(tracedKey{}).(string)
	if !ok {
		return
	}
	if sql == provenSQL && d.Err == nil {
		l.eventsProven()
	}
	l.mortal.moment()
}

// caller calls the API for what reconciles, on the provider's clock. A sweep reads ahead in goroutines of its own, which
// leave alone what the others choose: only the provider's life goes on there.
type caller struct {
	*reconcile.Client
	life *life

	mu sync.Mutex
	// luck chooses for sweeps.
	luck *rand.Rand
	// told is the time that the last answer told, and at when that was.
	told, at time.Time
	// looked is how often each object was answered to a look.
	looked map[string]int
	// met are the objects that the API has told each run of.
	met   map[int64]map[string]bool
	calls int
	// stranger is the client of another account, nil before there is one.
	stranger *reconcile.Client
}

// runKey is the run in whose name a call is made.
type runKey struct{}

// Now is the provider's time as the last answer told it, as reconcile.Clock keeps it.
func (c *caller) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.life.Now()
	if c.told.IsZero() {
		return now
	}
	return c.told.Add(now.Sub(c.at))
}

// Do calls the API, perhaps after something else has happened, for small pages. Where the budget makes it wait, that
// time passes.
func (c *caller) Do(ctx context.Context, call provider.Call) (*reconcile.Response, error) {
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
	call.Query = maps.Clone(call.Query)
	for _, name := range []string{"limit", "per_page"} {
		if call.Query.Get(name) == "100" {
			call.Query.Set(name, map[bool]string{true: "3", false: "7"}[what.list || name == "per_page"])
		}
	}
	if a := l.sick(what.object); a != nil {
		c.tells(ctx, call, nil)
		return a, nil
	}
	a, err := c.answer(ctx, call)
	l.mortal.moment()
	if err != nil {
		return nil, err
	}
	c.learn(what.object, a)
	c.tells(ctx, call, a.Body)
	return a, nil
}

// answer makes a call. It takes no time on the provider's clock. Where that is held against the database's, both stand
// meanwhile, whatever else goes on: what passes between is real time, by which an answer tells how long it took. Else
// that must hide no lag.
func (c *caller) answer(ctx context.Context, call provider.Call) (*reconcile.Response, error) {
	l := c.life
	if l.clocks {
		l.calling.RLock()
		defer l.calling.RUnlock()
		l.show()
		return c.client(ctx).Do(ctx, call)
	}
	a, err := c.client(ctx).Do(ctx, call)
	if err == nil && l.fake != nil {
		a.Date, _ = http.ParseTime(a.Header.Get("Date"))
		a.Elapsed = 0
	}
	return a, err
}

// meanwhile lets the provider live on between two pages of objects.
func (c *caller) meanwhile() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.life.over && c.luck.IntN(100) < c.life.between {
		for range 1 + c.luck.IntN(3) {
			c.life.goes(c.life.Step)
		}
	}
}

func (c *caller) learn(object string, a *reconcile.Response) {
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.life
	if c.calls++; c.calls > 100_000 {
		panic("calls without end")
	}
	if a.Verdict.Wait > 0 {
		var until time.Time
		l.must(l.db.Pool.QueryRow(context.Background(), `SELECT max(blocked_until) FROM budgets`).Scan(&until))
		l.wait(until.Sub(l.now()))
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
