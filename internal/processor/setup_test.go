package processor_test

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/postern-gateway/postern/internal/apply"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/sim"
	"github.com/postern-gateway/postern/internal/versioning"
)

type testBundle struct {
	db     *testkit.DB
	pool   *pgxpool.Pool
	source int32
}

func setup(t *testing.T) *testBundle {
	t.Helper()
	db := testkit.Database(t)
	b := &testBundle{db: db, pool: db.Role(t, "processor")}
	known, err := events.RegisterSources(t.Context(), b.pool, map[string]string{"sim": "sim"})
	must(t, err)
	b.source = known.Number["sim"]
	return b
}

// options returns the options of a processor with the source sim and without a stream.
func (b *testBundle) options(t *testing.T, p provider.Provider) processor.Options {
	return processor.Options{Settings: processor.DefaultSettings, ID: t.Name(), Options: apply.Options{Pool: b.pool,
		Logger: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(),
		Sources: map[string]apply.Source{"sim": b.sim(p)}}}
}

// sim returns the source sim.
func (b *testBundle) sim(p provider.Provider) apply.Source {
	return apply.Source{Number: b.source, Config: &provider.Source{Name: "sim"}, Provider: p}
}

func newProcessor(t *testing.T, o processor.Options) *processor.Processor {
	t.Helper()
	p, err := processor.New(o)
	must(t, err)
	return p
}

// processor returns a processor without a stream. A test may use several.
func (b *testBundle) processor(t *testing.T, p provider.Provider, tune func(*processor.Settings)) *processor.Processor {
	t.Helper()
	o := b.options(t, p)
	if tune != nil {
		tune(&o.Settings)
	}
	return newProcessor(t, o)
}

// refetchingProcessor is a processor whose API reads the objects with some ids.
func (b *testBundle) refetchingProcessor(t *testing.T, canRead func(id string) bool) *processor.Processor {
	t.Helper()
	p, source := b.processor(t, sim.Provider{}, nil), b.sim(sim.Provider{})
	source.LateEventGrace, source.ReadsByID = time.Minute, func(_, _, id string) bool { return canRead(id) }
	p.Replace(map[string]apply.Source{"sim": source})
	return p
}

func anyID(string) bool { return true }

// messages returns the events of a history in the form of the stream.
func messages(h *sim.History) (all []stream.Event) {
	for i, e := range h.Events {
		all = append(all, message(i, e))
	}
	return all
}

// shuffledMessages returns the events of a history in random order.
func shuffledMessages(h *sim.History, r *rand.Rand) []stream.Event {
	all := messages(h)
	r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all
}

// inBatches applies events in batches. Each batch also contains one of the earlier events.
func inBatches(t *testing.T, p *processor.Processor, all []stream.Event, r *rand.Rand) {
	t.Helper()
	for rest := all; len(rest) > 0; {
		n := min(1+r.IntN(15), len(rest))
		applyBatch(t, p, append(rest[:n:n], all[r.IntN(len(all)-len(rest)+n)]))
		rest = rest[n:]
	}
}

// message is event number n of a history in the form of the stream.
func message(n int, e sim.Event) stream.Event {
	return stream.Event{Source: "sim", StoredEvent: provider.StoredEvent{ID: int64(n + 1), Key: e.Key, Type: "thing",
		Origin: events.OriginWebhook, ReceivedAt: e.ReceivedAt, Body: e.Body}}
}

// object reads a row with the store's own function.
func (b *testBundle) object(t *testing.T, id string) *versioning.Object {
	t.Helper()
	tx, err := b.db.Pool.Begin(t.Context())
	must(t, err)
	defer func() { _ = tx.Rollback(context.Background()) }()
	objs, err := versioning.Load(t.Context(), tx, versioning.Mirror,
		[]versioning.LoadRequest{{Key: versioning.Key{Source: b.source, Type: "thing", ID: id}, MinAt: -1 << 63,
			MaxAt: 1<<63 - 1}})
	must(t, err)
	return objs[0]
}

func (b *testBundle) scan(t *testing.T, sql string, into ...any) {
	t.Helper()
	if err := b.db.Pool.QueryRow(t.Context(), sql).Scan(into...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// must ends the test on an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// errOf returns the error of a call whose other result is not needed.
func errOf[T any](_ T, err error) error { return err }

// execSQL runs a statement over a pool, a session or a transaction.
func execSQL(t testing.TB, over interface {
	Exec(context.Context, string, ...any) (pgconn.CommandTag, error)
}, sql string, args ...any) {
	t.Helper()
	if _, err := over.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// openTx runs a statement in a transaction that stays open until it is rolled back, at the latest
// at the end of the test.
func openTx(t testing.TB, pool *pgxpool.Pool, sql string, args ...any) pgx.Tx {
	t.Helper()
	tx, err := pool.Begin(t.Context())
	must(t, err)
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	execSQL(t, tx, sql, args...)
	return tx
}

// equal reports the difference between two values.
func equal(t testing.TB, what string, want, got any, opts ...cmp.Option) {
	t.Helper()
	if diff := cmp.Diff(want, got, opts...); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

func TestMain(m *testing.M) {
	if childJob := os.Getenv(childVariable); childJob != "" {
		os.Exit(runChild(childJob))
	}
	testkit.Main(m)
}
