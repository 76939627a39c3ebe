package rebuild_test

import (
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/apply"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/rebuild"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/applied"
	"github.com/postern-gateway/postern/internal/testkit/sim"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// The checks of package testkit by short names, because most lines of these tests use one.
var (
	must, equal, execSQL = testkit.Must, testkit.Equal, testkit.ExecSQL
	openTx, takeRun      = testkit.OpenTx, applied.LeaseRun
)

const maxWait = time.Minute

// providerKinds are the simulated providers of package applied with more objects, and one whose
// events are often partial.
var providerKinds = func() map[string]sim.Options {
	kinds := map[string]sim.Options{
		"partial events": {Changes: 3, Contents: 3, Unit: 1_000_000, Gap: 300_000, Partial: 60}}
	maps.Copy(kinds, applied.ProviderKinds)
	for name, o := range kinds {
		o.Objects = 12
		kinds[name] = o
	}
	return kinds
}()

// kindsOf returns the providers of these names in a short run, and all providers in a full one.
func kindsOf(names ...string) map[string]sim.Options {
	kinds := maps.Clone(providerKinds)
	maps.DeleteFunc(kinds, func(name string, _ sim.Options) bool {
		return testing.Short() && !slices.Contains(names, name)
	})
	return kinds
}

// testBundle is a log of one or more sources.
type testBundle struct {
	log            *applied.Log
	db             *testkit.DB
	pool, operator *pgxpool.Pool
	source         int32
	// sources are the sources that processors know.
	sources map[string]apply.Source
	ids     []int64
}

func setup(t testing.TB) *testBundle {
	t.Helper()
	l := applied.New(t)
	l.Settings.BackOff = []time.Duration{time.Hour}
	return &testBundle{log: l, db: l.DB, pool: l.Pool, operator: l.OperatorPool, source: l.Source, sources: l.Sources}
}

func newRand(t *testing.T, salt uint64) *rand.Rand {
	t.Helper()
	return rand.New(rand.NewPCG(testkit.Seed(t), salt))
}

// setupApplied returns a log with a random history, which is applied live, and the source of
// randomness for more.
func setupApplied(t *testing.T, salt uint64, options sim.Options) (*testBundle, *rand.Rand) {
	t.Helper()
	b, r := setup(t), newRand(t, salt)
	b.applyLiveShuffled(t, r, b.append(t, r, b.source, sim.Generate(r, options).Events))
	return b, r
}

// halves splits the events of a history, which are in the order of objects: into the earlier and
// the later changes of each object. The first object has no later changes, so that it stays damaged
// and at least one object is swapped.
func halves(evs []sim.Event) (before, after []sim.Event) {
	total, seen := map[string]int{}, map[string]int{}
	for _, e := range evs {
		total[e.Object]++
	}
	for _, e := range evs {
		if seen[e.Object]++; e.Object == evs[0].Object || 2*seen[e.Object] <= total[e.Object] {
			before = append(before, e)
		} else {
			after = append(after, e)
		}
	}
	return before, after
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

// add adds a source.
func (b *testBundle) add(t *testing.T, name string) int32 { return b.log.AddSource(t, name) }

// applier returns a processor; reads, if any, is the provider of all sources.
func (b *testBundle) applier(t testing.TB, reads provider.Provider) *apply.Applier {
	return b.log.Applier(t, reads)
}

// applyLiveShuffled applies stored events live, in random order and with repetitions.
func (b *testBundle) applyLiveShuffled(t *testing.T, r *rand.Rand, ids []int64) {
	t.Helper()
	p := b.applier(t, nil)
	ids = append(slices.Clone(ids), ids[:len(ids)/3]...)
	r.Shuffle(len(ids), func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
	for len(ids) > 0 {
		n := min(len(ids), 1+r.IntN(30))
		applied.Apply(t, p, events.LiveRun, ids[:n])
		ids = ids[n:]
	}
}

// quickSettings are settings with short intervals.
func quickSettings() rebuild.Settings {
	s := rebuild.DefaultSettings
	s.Chunk, s.Rows, s.MaxPending, s.Batch, s.RetryPause = 17, 7, 5, 1+rand.IntN(20), 50*time.Millisecond
	return s
}

// batchesOf returns quick settings with which a swap replaces this many objects in a batch. With
// 1000, a step "lock" comes before all objects of a test.
func batchesOf(objects int) rebuild.Settings {
	s := quickSettings()
	s.Batch = objects
	return s
}

// runner returns a runner that is not started; reads, if any, is the provider of all sources.
func (b *testBundle) runner(t *testing.T, reads provider.Provider, s rebuild.Settings) *rebuild.Runner {
	return &rebuild.Runner{Pool: b.pool, Applier: b.applier(t, reads), Settings: s}
}

// start executes rebuilds until the test ends or stop is called.
func (b *testBundle) start(t testing.TB, id string, reads provider.Provider, s rebuild.Settings) (stop func()) {
	t.Helper()
	return b.startRunner(t, id, &rebuild.Runner{Pool: b.pool, Applier: b.applier(t, reads), Settings: s})
}

// startRunner starts a runner.
func (b *testBundle) startRunner(t testing.TB, id string, rebuilds *rebuild.Runner) (stop func()) {
	t.Helper()
	return b.log.StartRunner(t, id, 1, map[string]runs.Executor{rebuild.Job: rebuilds.Execute})
}

func (b *testBundle) request(t testing.TB, o rebuild.Params) int64 {
	t.Helper()
	run, err := rebuild.Request(t.Context(), b.operator, &o, "me", "a test", 0)
	must(t, err)
	return run
}

// awaitRun waits until a run has reached a state.
func (b *testBundle) awaitRun(t testing.TB, run int64, isReached func(*runs.Run) bool) *runs.Run {
	t.Helper()
	return b.log.WaitForRun(t, run, isReached)
}

func done(r *runs.Run) bool   { return r.Status == runs.Done }
func staged(r *runs.Run) bool { return rebuild.Stage(r) == "staged" }

// stage requests a rebuild of the source and waits until it is staged.
func (b *testBundle) stage(t testing.TB) (run int64) {
	t.Helper()
	run = b.request(t, rebuild.Params{Source: b.source})
	b.awaitRun(t, run, staged)
	return run
}

// swap swaps a staged rebuild and returns its finished run.
func (b *testBundle) swap(t testing.TB, run int64) *runs.Run {
	t.Helper()
	must(t, rebuild.Swap(t.Context(), b.operator, run))
	return b.awaitRun(t, run, done)
}

// awaitFailure waits until a run has ended, and checks that it failed with a reason.
func (b *testBundle) awaitFailure(t *testing.T, run int64, reason string) {
	t.Helper()
	ended := b.awaitRun(t, run, func(r *runs.Run) bool { return r.Status.Ended() })
	if ended.Status != runs.Failed || !strings.Contains(ended.Detail, reason) {
		t.Errorf("%s: %s", ended.Status, ended.Detail)
	}
}

// rebuildAndSwap rebuilds a source and returns its finished run.
func (b *testBundle) rebuildAndSwap(t *testing.T, source int32) *runs.Run {
	t.Helper()
	return b.awaitRun(t, b.request(t, rebuild.Params{Source: source, Swap: true}), done)
}

// objectColumns are the columns that make an object. allColumns also contain those that may depend
// on the order of arrival.
const (
	objectColumns = `(to_jsonb(o) - '{revision,created_at,updated_at,refetch_after,last_event_id,state}'::text[])::text
		|| ' ' || coalesce(o.state::text, 'null')`
	allColumns = `to_jsonb(o)::text`
)

// tableRows returns every object of a table with some columns.
func (b *testBundle) tableRows(t *testing.T, columns, table string) []string {
	t.Helper()
	return b.rows(t, `SELECT `+columns+` FROM `+table+` o ORDER BY source, account, object_type, object_id`)
}

func (b *testBundle) rows(t *testing.T, sql string, args ...any) []string {
	t.Helper()
	return b.db.QueryStrings(t, sql, args...)
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

// allDifferences reads a whole comparison, a few items at a time.
func (b *testBundle) allDifferences(t *testing.T, run int64) (counts map[rebuild.Kind]int64,
	items []rebuild.Difference) {
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

// mirrorFromLog returns the objects that the log alone gives, in the order of ids, with a provider.
// It uses the table of retained objects, which is otherwise unused here.
func (b *testBundle) mirrorFromLog(t *testing.T, reads provider.Provider, run int64) []string {
	t.Helper()
	b.exec(t, `TRUNCATE retained_objects`)
	into := apply.Target{Run: run, Staging: &apply.Staging{Table: 2}}
	ids := slices.Sorted(slices.Values(b.ids))
	must(t, errOf(b.applier(t, reads).ApplyStored(t.Context(), into, ids, false)))
	made := b.tableRows(t, objectColumns, "retained_objects")
	b.exec(t, `TRUNCATE retained_objects`)
	return made
}

// errOf returns the error of a call whose other result is not needed.
func errOf[T any](_ T, err error) error { return err }

// checkCount fails unless a query returns a number.
func (b *testBundle) checkCount(t *testing.T, want int, sql string, args ...any) {
	t.Helper()
	if n := b.number(t, sql, args...); n != want {
		t.Errorf("%s: %d, want %d", sql, n, want)
	}
}
