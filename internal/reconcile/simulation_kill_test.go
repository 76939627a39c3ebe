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

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/providerapi"
	"github.com/postern-gateway/postern/internal/testkit"
)

// killSwitch kills the reconciler before or after any of its statements and calls. As with a killed
// process, the current statement is executed and no further one.
type killSwitch struct {
	mu sync.Mutex
	// remaining is the number of moments until the kill. Zero means no kill.
	remaining int
	kill      context.CancelCauseFunc
	// outcomeQueries is the number of consecutive queries for the outcomes of events.
	outcomeQueries int
}

var errKilled = errors.New("killed")

// mayBeKilled calls a function that may be killed, and returns whether it was.
func (l *simulation) mayBeKilled(do func(context.Context)) (died bool) {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	left := 0
	if l.chance.IntN(100) < l.killPercent {
		left = 1 + l.chance.IntN(10+l.chance.IntN(60))
	}
	left, die := l.killer.arm(left, cancel)
	do(ctx)
	l.killer.arm(left, die)
	if died = context.Cause(ctx) == errKilled; died {
		l.startProcess()
	}
	return died
}

// arm sets the number of moments until the kill, and returns the previous values.
func (m *killSwitch) arm(left int, die context.CancelCauseFunc) (int, context.CancelCauseFunc) {
	m.mu.Lock()
	defer m.mu.Unlock()
	left, m.remaining = m.remaining, left
	die, m.kill = m.kill, die
	return left, die
}

// step is a moment at which the kill may happen.
func (m *killSwitch) step() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.remaining == 0 {
		return
	}
	if m.remaining--; m.remaining == 0 {
		m.kill(errKilled)
	}
}

// killablePool returns a pool of a role with the kill switch.
func (l *simulation) killablePool(t *testing.T, role string) *pgxpool.Pool {
	t.Helper()
	return tracedPool(t, l.db, role, l)
}

// tracedPool returns a pool of a role with a tracer.
func tracedPool(t *testing.T, db *testkit.DB, role string, by pgx.QueryTracer) *pgxpool.Pool {
	t.Helper()
	cfg := db.Role(t, role).Config()
	cfg.ConnConfig.Tracer = by
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	testkit.Must(t, err)
	t.Cleanup(pool.Close)
	return pool
}

var (
	pendingOutcomesSQL   = testkit.Statement("internal/apply", "SELECT count(*) FROM events e LEFT JOIN LATERAL")
	raiseWatermarkSQL    = testkit.Statement("internal/watermarks", "'run ' || $6")
	moveTypeWatermarkSQL = testkit.Statement("internal/watermarks", "AS w(subject) ON CONFLICT")
	walkSQL              = testkit.Statement("internal/objectscan", "not_listed AS MATERIALIZED")
	deleteRequestSQL     = testkit.Statement("internal/refetch", "DELETE FROM refetch_requests WHERE source = $1 AND "+
		"account = $2 AND object_type = $3 AND object_id = $4 AND lease_owner = $5")
)

type tracedKey struct{}

// TraceQueryStart is called before each statement. While a run waits for outcomes, the republisher
// runs.
func (l *simulation) TraceQueryStart(ctx context.Context, _ *pgx.Conn, d pgx.TraceQueryStartData) context.Context {
	if strings.HasPrefix(d.SQL, "SET ROLE") { // by another goroutine
		return ctx
	}
	l.killer.step()
	switch d.SQL {
	case pendingOutcomesSQL:
		if l.killer.outcomeQueries++; l.killer.outcomeQueries > 3 {
			l.killer.outcomeQueries = 0
			l.republish()
		}
	case moveTypeWatermarkSQL:
		l.checkTypeComplete(d.Args)
	case deleteRequestSQL:
		l.checkRequestDone(d.Args)
	case walkSQL:
		if l.chance.IntN(100) < l.duringCallPercent {
			l.act()
		}
	}
	return context.WithValue(ctx, tracedKey{}, d.SQL)
}

// TraceQueryEnd is called after each statement.
func (l *simulation) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, d pgx.TraceQueryEndData) {
	sql, ok := ctx.Value(tracedKey{}).(string)
	if !ok {
		return
	}
	if sql == raiseWatermarkSQL && d.Err == nil {
		l.checkEventsComplete()
	}
	l.killer.step()
}

// simulationCaller calls the API for the reconciler on the provider's clock. An object scan reads
// ahead in other goroutines, in which only the provider makes steps, so that the choices of the
// test stay reproducible.
type simulationCaller struct {
	*providerapi.Client
	sim *simulation

	mu sync.Mutex
	// random chooses for object scans.
	random *rand.Rand
	// lastDate is the Date of the last response, and lastDateAt the time of that response.
	lastDate, lastDateAt time.Time
	// refetched is the number of refetches of each object.
	refetched map[string]int
	// seenByRun are the objects that the API has returned to each run.
	seenByRun map[int64]map[string]bool
	calls     int
	// otherClient is the client of another account, or nil before it is used.
	otherClient *providerapi.Client
}

// runKey is the context key of the run that makes a call.
type runKey struct{}

// Now returns the provider's time by the last response, as providerapi.Clock does.
func (c *simulationCaller) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.sim.Now()
	if c.lastDate.IsZero() {
		return now
	}
	return c.lastDate.Add(now.Sub(c.lastDateAt))
}

// Do calls the API with small pages, sometimes after a random action. If the rate budget makes it
// wait, that time passes.
func (c *simulationCaller) Do(ctx context.Context, call provider.Call) (*providerapi.Response, error) {
	l, what := c.sim, c.sim.classify(call)
	if what.isList {
		c.stepProvider()
	} else if l.killer.outcomeQueries = 0; l.chance.IntN(100) < l.duringCallPercent {
		l.act()
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	l.killer.step()
	call.Query = maps.Clone(call.Query)
	for _, name := range []string{"limit", "per_page"} {
		if call.Query.Get(name) == "100" {
			call.Query.Set(name, map[bool]string{true: "3", false: "7"}[what.isList || name == "per_page"])
		}
	}
	if a := l.unreadableResponse(what.object); a != nil {
		c.recordSeen(ctx, call, nil)
		return a, nil
	}
	a, err := c.call(ctx, call)
	l.killer.step()
	if err != nil {
		return nil, err
	}
	c.recordResponse(what.object, a)
	c.recordSeen(ctx, call, a.Body)
	return a, nil
}

// call makes a call, which takes no time on the provider's clock. If that clock is compared with
// the database's, both stand still during the call, because the elapsed time of a response is real
// time. Otherwise the elapsed time is set to zero.
func (c *simulationCaller) call(ctx context.Context, call provider.Call) (*providerapi.Response, error) {
	l := c.sim
	if l.learnsClocks {
		l.clockLock.RLock()
		defer l.clockLock.RUnlock()
		l.syncDatabaseClock()
		return c.clientOf(ctx).Do(ctx, call)
	}
	a, err := c.clientOf(ctx).Do(ctx, call)
	if err == nil && l.fake != nil {
		a.Date, _ = http.ParseTime(a.Header.Get("Date"))
		a.Elapsed = 0
	}
	return a, err
}

// stepProvider makes steps of the provider between two pages of objects.
func (c *simulationCaller) stepProvider() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.sim.providerStopped && c.random.IntN(100) < c.sim.duringCallPercent {
		for range 1 + c.random.IntN(3) {
			c.sim.moveProviderClock(c.sim.Step)
		}
	}
}

func (c *simulationCaller) recordResponse(object string, a *providerapi.Response) {
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.sim
	if c.calls++; c.calls > 100_000 {
		panic("too many calls")
	}
	if a.Verdict.Wait > 0 {
		var until time.Time
		l.must(l.db.Pool.QueryRow(context.Background(), `SELECT max(blocked_until) FROM rate_budgets`).Scan(&until))
		l.wait(until.Sub(l.now()))
	}
	if a.Verdict.Kind != provider.Found && a.Verdict.Kind != provider.Missing {
		return
	}
	if !a.Date.IsZero() {
		c.lastDate, c.lastDateAt = a.Date, l.Now()
	}
	if object != "" {
		c.refetched[object]++
	}
}
