// Package applied makes logs of simulated events and applies them without a stream. The tests of
// apply and of the processor use it, and those of the packages that work on events and objects.
package applied

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/postern-gateway/postern/internal/apply"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/sim"
)

// SourceName is the name of the first source.
const SourceName = "sim"

// Log is a database with a log of events of the simulated provider.
type Log struct {
	DB *testkit.DB
	// Pool is connected as postern_processor, OperatorPool as postern_operator.
	Pool, OperatorPool *pgxpool.Pool
	// Source is the number of the source SourceName.
	Source int32
	// Sources are all sources by name, as a processor uses them.
	Sources map[string]apply.Source
	// Settings are those of appliers that are made from now on, at first the shipped ones.
	Settings apply.Settings
	// Origin is the origin of events that are appended from now on, at first webhook.
	Origin string

	keys int
}

// New makes a log without events.
func New(t testing.TB) *Log {
	t.Helper()
	l := &Log{DB: testkit.Database(t), Sources: map[string]apply.Source{}, Settings: apply.DefaultSettings,
		Origin: events.OriginWebhook}
	l.Pool, l.OperatorPool = l.DB.Role(t, "processor"), l.DB.Role(t, "operator")
	l.Source = l.AddSource(t, SourceName)
	return l
}

// AddSource registers another source and returns its number.
func (l *Log) AddSource(t testing.TB, name string) int32 {
	t.Helper()
	registered, err := events.RegisterSources(t.Context(), l.Pool, map[string]string{name: "sim"})
	testkit.Must(t, err)
	l.Sources[name] = apply.Source{Number: registered.Number[name], Config: &provider.Source{Name: name},
		Provider: sim.Provider{}}
	return registered.Number[name]
}

// Append stores events of a source under new keys and returns their ids.
func (l *Log) Append(t testing.TB, source int32, evs []sim.Event) (ids []int64) {
	t.Helper()
	for _, e := range l.AppendEvents(t, source, evs) {
		ids = append(ids, e.ID)
	}
	return ids
}

// AppendEvents stores events of a source under new keys and returns them in the form of the stream.
func (l *Log) AppendEvents(t testing.TB, source int32, evs []sim.Event) (stored []stream.Event) {
	t.Helper()
	names := map[int32]string{}
	for name, s := range l.Sources {
		names[s.Number] = name
	}
	for chunk := range slices.Chunk(evs, 100) {
		ds := make([]events.Delivery, len(chunk))
		for i, e := range chunk {
			l.keys++
			ds[i] = l.Delivery(source, fmt.Sprint("k", l.keys), e)
		}
		receipts, err := events.Append(t.Context(), l.DB.Pool, ds)
		testkit.Must(t, err)
		for i, e := range chunk {
			m := Message(0, e)
			m.Source, m.ID, m.Key, m.Origin = names[source], receipts[i][0].ID, ds[i].Events[0].Key, l.Origin
			m.ObjectType, m.ObjectID = "thing", e.Object
			stored = append(stored, m)
		}
	}
	return stored
}

// Delivery returns the delivery of an event under a key.
func (l *Log) Delivery(source int32, key string, e sim.Event) events.Delivery {
	return events.Delivery{Source: source, ReceivedAt: e.ReceivedAt, Origin: l.Origin, Headers: []byte(`{}`),
		Verification: []byte(`{}`), Body: e.Body, Events: []provider.Event{{Key: key, Type: "thing",
			ObjectType: "thing", ObjectID: e.Object, Fingerprint: provider.BodyFingerprint(e.Body)}}}
}

// AppendDeliveries appends deliveries to a source as a gateway does, one after the other. It
// returns the receipt of the first event of each delivery.
func AppendDeliveries(t testing.TB, gateway *pgxpool.Pool, s apply.Source,
	deliveries ...*provider.Delivery) (receipts []events.Receipt) {
	t.Helper()
	for _, d := range deliveries {
		identified, err := s.Provider.Identify(s.Config, d)
		testkit.Must(t, err)
		appended, err := events.Append(t.Context(), gateway,
			[]events.Delivery{{Source: s.Number, ReceivedAt: d.ReceivedAt, Origin: events.OriginWebhook,
				Headers: events.AppendHeaders(nil, s.Provider.Headers(), d), Verification: []byte(`{}`), Body: d.Body,
				Events: identified}})
		testkit.Must(t, err)
		receipts = append(receipts, appended[0][0])
	}
	return receipts
}

// AppendAndApply appends deliveries and applies their events.
func AppendAndApply(t testing.TB, gateway *pgxpool.Pool, p *apply.Applier, s apply.Source,
	deliveries ...*provider.Delivery) {
	t.Helper()
	var ids []int64
	for _, r := range AppendDeliveries(t, gateway, s, deliveries...) {
		ids = append(ids, r.ID)
	}
	Apply(t, p, 0, ids)
}

// Options returns the options of an applier. It gets the named sources, or all sources without
// names. A non-nil reader replaces the provider of each source.
func (l *Log) Options(reader provider.Provider, names ...string) apply.Options {
	sources := map[string]apply.Source{}
	for name, s := range l.Sources {
		if reader != nil {
			s.Provider = reader
		}
		if len(names) == 0 || slices.Contains(names, name) {
			sources[name] = s
		}
	}
	return apply.Options{Pool: l.Pool, Settings: l.Settings, Logger: slog.New(slog.DiscardHandler),
		Metrics: prometheus.NewRegistry(), Sources: sources}
}

// Applier makes an applier with such options; a test may make several.
func (l *Log) Applier(t testing.TB, reader provider.Provider, names ...string) *apply.Applier {
	t.Helper()
	a, err := apply.New(l.Options(reader, names...))
	testkit.Must(t, err)
	return a
}

// RefetchingSources returns the sources with an API that reads the objects with some ids.
func (l *Log) RefetchingSources(reads func(id string) bool) map[string]apply.Source {
	all := map[string]apply.Source{}
	for name, s := range l.Sources {
		s.LateEventGrace, s.ReadsByID = time.Minute, func(_, _, id string) bool { return reads(id) }
		all[name] = s
	}
	return all
}

// Apply has a processor apply stored events under a run; 0 is live.
func Apply(t testing.TB, p *apply.Applier, run int64, ids []int64) {
	t.Helper()
	if _, err := p.ApplyStored(t.Context(), apply.Target{Run: run}, ids, false); err != nil {
		t.Fatal(err)
	}
}

// Lease is the lease time of runs: another runner takes over a run whose runner has been silent for
// this long.
const Lease = 2 * time.Second

// StartRunner starts a runner with the given id, which executes runs until the test ends or stop is
// called. It executes one run of each job, and further runs in the given number of slots.
func (l *Log) StartRunner(t testing.TB, id string, slots int, jobs map[string]runs.Executor) (stop func()) {
	t.Helper()
	return StartRunner(t, l.Pool, id, slots, jobs)
}

// StartRunner does the same as Log.StartRunner, over a pool of the role processor.
func StartRunner(t testing.TB, pool *pgxpool.Pool, id string, slots int, jobs map[string]runs.Executor) (stop func()) {
	t.Helper()
	r := runs.NewRunner(runs.Options{Pool: pool, ID: id, Logger: slog.New(slog.DiscardHandler), Jobs: jobs,
		Settings: runs.Settings{PollInterval: 30 * time.Millisecond, LeaseDuration: Lease, SharedSlots: slots,
			DeferMin: 10 * time.Millisecond,
			DeferMax: 100 * time.Millisecond}})
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

// LeaseRun returns the next run of a job, leased by a process.
func LeaseRun(t testing.TB, pool *pgxpool.Pool, by string, lease time.Duration, job string) *runs.Lease {
	t.Helper()
	h, err := runs.Acquire(t.Context(), pool, by, lease, job)
	if err != nil || h == nil {
		t.Fatal(h, err)
	}
	return h
}

// WaitForRun waits until done accepts a run.
func (l *Log) WaitForRun(t testing.TB, run int64, done func(*runs.Run) bool) (r *runs.Run) {
	t.Helper()
	testkit.Eventually(t, time.Minute, func() (err error) {
		if r, err = runs.Show(t.Context(), l.OperatorPool, run); err == nil && !done(r) {
			err = fmt.Errorf("run %+v", r)
		}
		return err
	})
	return r
}
