package rebuild_test

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/rebuild"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit"
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

// testBundle is a database with one source.
type testBundle struct {
	db       *testkit.DB
	pool     *pgxpool.Pool
	operator *pgxpool.Pool
	source   int32
	// meanings are how providers of sources read events.
	sources map[string]processor.Source
	keys    int
	ids     []int64
}

func setup(t *testing.T) *testBundle {
	t.Helper()
	b := &testBundle{db: testkit.Database(t), sources: map[string]processor.Source{}}
	b.pool, b.operator = b.db.Role(t, "processor"), b.db.Role(t, "operator")
	b.source = b.add(t, "sim")
	return b
}

// add makes a source.
func (b *testBundle) add(t *testing.T, name string) int32 {
	t.Helper()
	known, err := events.RegisterSources(t.Context(), b.pool, map[string]string{name: "sim"})
	if err != nil {
		t.Fatal(err)
	}
	b.sources[name] = processor.Source{Number: known.Number[name], Config: &provider.Source{Name: name}, Provider: sim.Provider{}}
	return known.Number[name]
}

func seeded(t *testing.T, salt uint64) *rand.Rand {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, salt))
}

// append stores events of a source in random order.
func (b *testBundle) append(t *testing.T, r *rand.Rand, source int32, evs []sim.Event) (ids []int64) {
	t.Helper()
	evs = slices.Clone(evs)
	r.Shuffle(len(evs), func(i, j int) { evs[i], evs[j] = evs[j], evs[i] })
	for len(evs) > 0 {
		n := min(len(evs), 1+r.IntN(40))
		var ds []events.Delivery
		for _, e := range evs[:n] {
			b.keys++
			ds = append(ds, events.Delivery{Source: source, ReceivedAt: e.ReceivedAt, Origin: events.OriginWebhook, Headers: []byte(`{}`), Verification: []byte(`{}`), Body: e.Body,
				Events: []provider.Event{{Key: fmt.Sprint("k", b.keys), Type: "thing", ObjectType: "thing", ObjectID: e.Object, Fingerprint: provider.BodyFingerprint(e.Body)}}})
		}
		receipts, err := events.Append(t.Context(), b.db.Pool, ds)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range receipts {
			ids = append(ids, r[0].ID)
		}
		evs = evs[n:]
	}
	b.ids = append(b.ids, ids...)
	return ids
}

// processor is one of possibly several; reads, if any, is how it reads events of all sources.
func (b *testBundle) processor(t *testing.T, reads provider.Provider) *processor.Processor {
	t.Helper()
	sources := map[string]processor.Source{}
	for name, s := range b.sources {
		if reads != nil {
			s.Provider = reads
		}
		sources[name] = s
	}
	s := processor.DefaultSettings
	s.BackOff = []time.Duration{time.Hour}
	p, err := processor.New(processor.Options{Pool: b.pool, Settings: s, ID: t.Name(), Logger: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(), Sources: sources})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// live applies stored events as they would be applied live, in random order and with repeats.
func (b *testBundle) live(t *testing.T, r *rand.Rand, ids []int64) {
	t.Helper()
	p := b.processor(t, nil)
	ids = append(slices.Clone(ids), ids[:len(ids)/3]...)
	r.Shuffle(len(ids), func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
	for len(ids) > 0 {
		n := min(len(ids), 1+r.IntN(30))
		if _, err := p.ApplyStored(t.Context(), processor.Target{}, ids[:n], false); err != nil {
			t.Fatal(err)
		}
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
	r := runs.NewRunner(runs.Options{Pool: b.pool, ID: id, Logger: slog.New(slog.DiscardHandler), Jobs: map[string]runs.Carry{rebuild.Job: rebuilds.Carry},
		Settings: runs.Settings{Poll: 10 * time.Millisecond, Lease: 2 * time.Second, Slots: 1, PutOff: 10 * time.Millisecond, PutOffMost: 100 * time.Millisecond}})
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(stop)
	return stop
}

func (b *testBundle) ask(t *testing.T, o rebuild.Order) int64 {
	t.Helper()
	run, err := rebuild.Ask(t.Context(), b.operator, &o, "me", "a test", 0)
	if err != nil {
		t.Fatal(err)
	}
	return run
}

// until waits until a run stands so.
func (b *testBundle) until(t *testing.T, run int64, so func(*runs.Run) bool) (r *runs.Run) {
	t.Helper()
	testkit.Eventually(t, patience, func() (err error) {
		if r, err = runs.Show(t.Context(), b.operator, run); err == nil && !so(r) {
			err = fmt.Errorf("run %+v", r)
		}
		return err
	})
	return r
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
	rows, err := b.db.Pool.Query(t.Context(), sql, args...)
	if err != nil {
		t.Fatal(err)
	}
	texts, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return texts
}

func (b *testBundle) number(t *testing.T, sql string, args ...any) (n int) {
	t.Helper()
	if err := b.db.Pool.QueryRow(t.Context(), sql, args...).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func (b *testBundle) exec(t *testing.T, sql string, args ...any) {
	t.Helper()
	if _, err := b.db.Pool.Exec(t.Context(), sql, args...); err != nil {
		t.Fatal(err)
	}
}

// compared walks a comparison to its end, a few items at a time.
func (b *testBundle) compared(t *testing.T, run int64) (counts map[rebuild.Kind]int64, items []rebuild.Difference) {
	t.Helper()
	counts = map[rebuild.Kind]int64{}
	for cursor := ""; ; {
		page, err := rebuild.Compare(t.Context(), b.operator, run, cursor, 3)
		if err != nil {
			t.Fatal(err)
		}
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
	if _, err := b.processor(t, reads).ApplyStored(t.Context(), into, ids, false); err != nil {
		t.Fatal(err)
	}
	made := b.table(t, object, "bases")
	b.exec(t, `TRUNCATE bases`)
	return made
}
