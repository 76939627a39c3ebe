package processor_test

import (
	"context"
	"log/slog"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

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
	if err != nil {
		t.Fatal(err)
	}
	b.source = known.Number["sim"]
	return b
}

// processor returns one of possibly several; only what tests need of a stream is there.
func (b *testBundle) processor(t *testing.T, p provider.Provider, tune func(*processor.Settings)) *processor.Processor {
	t.Helper()
	s := processor.DefaultSettings
	if tune != nil {
		tune(&s)
	}
	proc, err := processor.New(processor.Options{Pool: b.pool, Settings: s, ID: t.Name(), Logger: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(),
		Sources: map[string]processor.Source{"sim": {Number: b.source, Config: &provider.Source{Name: "sim"}, Provider: p}}})
	if err != nil {
		t.Fatal(err)
	}
	return proc
}

// message is event number n of a history as the stream carries it.
func message(n int, e sim.Event) stream.Event {
	return stream.Event{Source: "sim", Stored: provider.Stored{ID: int64(n + 1), Key: e.Key, Type: "thing", Origin: events.OriginWebhook, ReceivedAt: e.ReceivedAt, Body: e.Body}}
}

// object reads a row back through the store's own reader.
func (b *testBundle) object(t *testing.T, id string) *versioning.Object {
	t.Helper()
	tx, err := b.db.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	objs, err := versioning.Load(t.Context(), tx, versioning.Mirror, []versioning.Wanted{{Key: versioning.Key{Source: b.source, Type: "thing", ID: id}, Lo: -1 << 63, Hi: 1<<63 - 1}})
	if err != nil {
		t.Fatal(err)
	}
	return objs[0]
}

func (b *testBundle) scan(t *testing.T, sql string, into ...any) {
	t.Helper()
	if err := b.db.Pool.QueryRow(t.Context(), sql).Scan(into...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}
