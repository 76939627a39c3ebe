package rebuild_test

import (
	"context"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/rebuild"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/applied"
	"github.com/postern-gateway/postern/internal/testkit/sim"
)

func TestMain(m *testing.M) { testkit.Main(m) }

const patience = time.Minute

// kinds are providers of different habits.
var kinds = map[string]sim.Options{
	"event time":  {Objects: 12, Changes: 8, Contents: 4, Unit: 1_000_000, Gap: 700_000, ChangeSets: 60, Partial: 5, Twins: 20, Late: 5_000_000},
	"own version": {Objects: 12, Changes: 8, Contents: 4, Unit: 1_000_000, Gap: 900_000, Own: true, Deletes: 15, Final: true, Timeless: true, Twins: 10, Late: 5_000_000, Noise: true},
	"integers":    {Objects: 12, Changes: 8, Contents: 3, Unit: 1_000_000, Gap: 500_000, Own: true, Integer: true, Twins: 10},
	"ids reused":  {Objects: 12, Changes: 10, Contents: 3, Unit: 1_000_000, Gap: 900_000, Deletes: 30, ChangeSets: 40, Twins: 20},
	"steps":       {Objects: 12, Changes: 8, Contents: 4, Unit: 1_000_000, Gap: 300_000, Frozen: true, Steps: true, ChangeSets: 50, Deletes: 10, Final: true, Skew: 400_000},
	"hints":       {Objects: 12, Changes: 3, Contents: 3, Unit: 1_000_000, Gap: 300_000, Partial: 60},
}

// testBundle is a log of one source or more.
type testBundle struct {
	log            *applied.Log
	db             *testkit.DB
	pool, operator *pgxpool.Pool
	source         int32
	// sources are those that processors know.
	sources map[string]processor.Source
	ids     []int64
}

func setup(t *testing.T) *testBundle {
	t.Helper()
	l := applied.New(t)
	l.BackOff = []time.Duration{time.Hour}
	return &testBundle{log: l, db: l.DB, pool: l.Pool, operator: l.Operator, source: l.Source, sources: l.Sources}
}

func seeded(t *testing.T, salt uint64) *rand.Rand {
	t.Helper()
	return rand.New(rand.NewPCG(testkit.Seed(t), salt))
}

// append stores events of a source in random order.
func (b *testBundle) append(t *testing.T, r *rand.Rand, source int32, evs []sim.Event) (ids []int64) {
	t.Helper()
	evs = slices.Clone(evs)
	r.Shuffle(len(evs), func(i, j int) { evs[i], evs[j] = evs[j], evs[i] })
	for len(evs) > 0 {
		n := min(len(evs), 1+r.IntN(40))
		ids = append(ids, b.log.Append(t, source, evs[:n])...)
		evs = evs[n:]
	}
	b.ids = append(b.ids, ids...)
	return ids
}

// add makes a source.
func (b *testBundle) add(t *testing.T, name string) int32 { return b.log.Add(t, name) }

// processor is one of possibly several; reads, if any, is how it reads events of all sources.
func (b *testBundle) processor(t *testing.T, reads provider.Provider) *processor.Processor {
	return b.log.Processor(t, reads)
}

// live applies stored events as they would be applied live, in random order and with repeats.
func (b *testBundle) live(t *testing.T, r *rand.Rand, ids []int64) {
	t.Helper()
	p := b.processor(t, nil)
	ids = append(slices.Clone(ids), ids[:len(ids)/3]...)
	r.Shuffle(len(ids), func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
	for len(ids) > 0 {
		n := min(len(ids), 1+r.IntN(30))
		applied.Apply(t, p, events.LiveRun, ids[:n])
		ids = ids[n:]
	}
}

// quick are settings of which a test need not wait for the end.
func quick() rebuild.Settings {
	s := rebuild.DefaultSettings
	s.Chunk, s.Rows, s.Small, s.Keys, s.Again = 17, 7, 5, 1+rand.IntN(20), 50*time.Millisecond
	return s
}

// start carries out rebuilds until the test ends or stop is called.
func (b *testBundle) start(t *testing.T, id string, reads provider.Provider, s rebuild.Settings) (stop func()) {
	t.Helper()
	return b.carry(t, id, &rebuild.Runner{Pool: b.pool, Processor: b.processor(t, reads), Settings: s})
}

// carry starts a runner.
func (b *testBundle) carry(t *testing.T, id string, rebuilds *rebuild.Runner) (stop func()) {
	t.Helper()
	return b.log.Carry(t, id, 1, map[string]runs.Carry{rebuild.Job: rebuilds.Carry})
}

func (b *testBundle) ask(t *testing.T, o rebuild.Order) int64 {
	t.Helper()
	run, err := rebuild.Ask(t.Context(), b.operator, &o, "me", "a test", 0)
	must(t, err)
	return run
}

// until waits until a run stands so.
func (b *testBundle) until(t *testing.T, run int64, so func(*runs.Run) bool) *runs.Run {
	t.Helper()
	return b.log.Until(t, run, so)
}

func done(r *runs.Run) bool   { return r.Status == runs.Done }
func staged(r *runs.Run) bool { return rebuild.Stage(r) == "staged" }

// rebuilt rebuilds a source and returns its run, which is done.
func (b *testBundle) rebuilt(t *testing.T, source int32) *runs.Run {
	t.Helper()
	return b.until(t, b.ask(t, rebuild.Order{Source: source, Swap: true}), done)
}

// The columns that make an object, and those that the order of arrival may make differ.
const (
	object = `(to_jsonb(o) - '{revision,created_at,updated_at,look_after,last_event_id,state}'::text[])::text || ' ' || coalesce(o.state::text, 'null')`
	whole  = `to_jsonb(o)::text`
)

// mirror is every object of a table as some columns show it.
func (b *testBundle) table(t *testing.T, columns, table string) []string {
	t.Helper()
	return b.rows(t, `SELECT `+columns+` FROM `+table+` o ORDER BY source, account, object_type, object_id`)
}

func (b *testBundle) rows(t *testing.T, sql string, args ...any) []string {
	t.Helper()
	return b.db.Rows(t, sql, args...)
}

func (b *testBundle) number(t *testing.T, sql string, args ...any) (n int) {
	t.Helper()
	must(t, b.db.Pool.QueryRow(t.Context(), sql, args...).Scan(&n))
	return n
}

func (b *testBundle) exec(t *testing.T, sql string, args ...any) {
	t.Helper()
	b.db.Exec(t, sql, args...)
}

// compared walks a comparison to its end, a few items at a time.
func (b *testBundle) compared(t *testing.T, run int64) (counts map[rebuild.Kind]int64, items []rebuild.Difference) {
	t.Helper()
	counts = map[rebuild.Kind]int64{}
	for cursor := ""; ; {
		page, err := rebuild.Compare(t.Context(), b.operator, run, cursor, 3)
		must(t, err)
		for kind, n := range page.Counts {
			counts[kind] += n
		}
		items = append(items, page.Items...)
		if page.Next == nil {
			return counts, items
		}
		cursor = *page.Next
	}
}

// fold is the mirror as the log alone makes it, in the order of ids, as a provider reads it: made by a processor into the table of
// bases of another database would do as well, but a table that nobody else uses here is nearer.
func (b *testBundle) fold(t *testing.T, reads provider.Provider, run int64) []string {
	t.Helper()
	b.exec(t, `TRUNCATE bases`)
	into := processor.Target{Run: run, Into: 2}
	ids := slices.Clone(b.ids)
	slices.Sort(ids)
	must(t, errOf(b.processor(t, reads).ApplyStored(t.Context(), into, ids, false)))
	made := b.table(t, object, "bases")
	b.exec(t, `TRUNCATE bases`)
	return made
}

// must ends the test on an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// errOf is the error of a call whose other result is not of interest.
func errOf[T any](_ T, err error) error { return err }

// equal reports how a value differs from the one that is wanted.
func equal(t testing.TB, what string, want, got any, opts ...cmp.Option) {
	t.Helper()
	if diff := cmp.Diff(want, got, opts...); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// execSQL runs a statement over a pool, a session or a transaction.
func execSQL(t testing.TB, over interface {
	Exec(context.Context, string, ...any) (pgconn.CommandTag, error)
}, sql string, args ...any) {
	t.Helper()
	if _, err := over.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// hold runs a statement in a transaction that stays open until it is rolled back, at the latest at
// the end of the test.
func hold(t testing.TB, pool *pgxpool.Pool, sql string, args ...any) pgx.Tx {
	t.Helper()
	tx, err := pool.Begin(t.Context())
	must(t, err)
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	execSQL(t, tx, sql, args...)
	return tx
}

// taken is the next run of a job, taken by a process.
func taken(t testing.TB, pool *pgxpool.Pool, by string, lease time.Duration, job string) *runs.Hold {
	t.Helper()
	h, err := runs.Take(t.Context(), pool, by, lease, job)
	if err != nil || h == nil {
		t.Fatal(h, err)
	}
	return h
}

// counts fails unless a query answers a number.
func (b *testBundle) counts(t *testing.T, want int, sql string, args ...any) {
	t.Helper()
	if n := b.number(t, sql, args...); n != want {
		t.Errorf("%s: %d, want %d", sql, n, want)
	}
}
