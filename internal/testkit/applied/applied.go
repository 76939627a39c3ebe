// Package applied makes a log whose events were applied, as all need it who do something with such a log.
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

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/sim"
)

// Name is that of the first source.
const Name = "sim"

// Log is a database with a log of events as the simulated provider sends them.
type Log struct {
	DB *testkit.DB
	// Pool is connected as postern_processor, Operator as postern_operator.
	Pool, Operator *pgxpool.Pool
	// Source is the number of the source Name.
	Source int32
	// Sources are all of them, by name, as a processor knows them.
	Sources map[string]processor.Source
	// BackOff are the waits between attempts; nil: the shipped ones.
	BackOff []time.Duration

	keys int
}

// New makes one without an event.
func New(t testing.TB) *Log {
	t.Helper()
	l := &Log{DB: testkit.Database(t), Sources: map[string]processor.Source{}}
	l.Pool, l.Operator = l.DB.Role(t, "processor"), l.DB.Role(t, "operator")
	l.Source = l.Add(t, Name)
	return l
}

// Add makes another source and returns its number.
func (l *Log) Add(t testing.TB, name string) int32 {
	t.Helper()
	known, err := events.RegisterSources(t.Context(), l.Pool, map[string]string{name: "sim"})
	if err != nil {
		t.Fatal(err)
	}
	l.Sources[name] = processor.Source{Number: known.Number[name], Config: &provider.Source{Name: name}, Provider: sim.Provider{}}
	return known.Number[name]
}

// Append stores events of a source, each under a key of its own, and returns their ids.
func (l *Log) Append(t testing.TB, source int32, evs []sim.Event) (ids []int64) {
	t.Helper()
	for some := range slices.Chunk(evs, 100) {
		ds := make([]events.Delivery, len(some))
		for i, e := range some {
			l.keys++
			ds[i] = events.Delivery{Source: source, ReceivedAt: e.ReceivedAt, Origin: events.OriginWebhook, Headers: []byte(`{}`), Verification: []byte(`{}`), Body: e.Body,
				Events: []provider.Event{{Key: fmt.Sprint("k", l.keys), Type: "thing", ObjectType: "thing", ObjectID: e.Object, Fingerprint: provider.BodyFingerprint(e.Body)}}}
		}
		receipts, err := events.Append(t.Context(), l.DB.Pool, ds)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range receipts {
			ids = append(ids, r[0].ID)
		}
	}
	return ids
}

// Take appends deliveries to a source as a gateway does, over a pool of that role, one after the other, and returns the receipt of the first event of each.
func Take(t testing.TB, gateway *pgxpool.Pool, s processor.Source, all ...*provider.Delivery) (receipts []events.Receipt) {
	t.Helper()
	for _, d := range all {
		named, err := s.Provider.Identify(s.Config, d)
		if err != nil {
			t.Fatal(err)
		}
		of, err := events.Append(t.Context(), gateway, []events.Delivery{{Source: s.Number, ReceivedAt: d.ReceivedAt, Origin: events.OriginWebhook,
			Headers: events.AppendHeaders(nil, s.Provider.Headers(), d), Verification: []byte(`{}`), Body: d.Body, Events: named}})
		if err != nil {
			t.Fatal(err)
		}
		receipts = append(receipts, of[0][0])
	}
	return receipts
}

// Deliver is Take, and has a processor apply what was taken.
func Deliver(t testing.TB, gateway *pgxpool.Pool, p *processor.Processor, s processor.Source, all ...*provider.Delivery) {
	t.Helper()
	var ids []int64
	for _, r := range Take(t, gateway, s, all...) {
		ids = append(ids, r.ID)
	}
	Apply(t, p, 0, ids)
}

// Processor is one of possibly several. It knows the named sources, or all where none is named; reads, if any, is how it reads their events.
func (l *Log) Processor(t testing.TB, reads provider.Provider, names ...string) *processor.Processor {
	t.Helper()
	sources := map[string]processor.Source{}
	for name, s := range l.Sources {
		if reads != nil {
			s.Provider = reads
		}
		if len(names) == 0 || slices.Contains(names, name) {
			sources[name] = s
		}
	}
	s := processor.DefaultSettings
	if l.BackOff != nil {
		s.BackOff = l.BackOff
	}
	p, err := processor.New(processor.Options{Pool: l.Pool, Settings: s, ID: t.Name(), Logger: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(), Sources: sources})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// Apply has a processor apply stored events under a run; 0 is live.
func Apply(t testing.TB, p *processor.Processor, run int64, ids []int64) {
	t.Helper()
	if _, err := p.ApplyStored(t.Context(), processor.Target{Run: run}, ids, false); err != nil {
		t.Fatal(err)
	}
}

// Lease is how long one that Carry has started may be silent before another goes on with its run.
const Lease = 2 * time.Second

// Carry starts a process, named by id, that carries out runs until the test ends or stop is called: one of each job, and some beside them.
func (l *Log) Carry(t testing.TB, id string, beside int, jobs map[string]runs.Carry) (stop func()) {
	t.Helper()
	return Carry(t, l.Pool, id, beside, jobs)
}

// Carry is Log.Carry over a pool of the role processor.
func Carry(t testing.TB, pool *pgxpool.Pool, id string, beside int, jobs map[string]runs.Carry) (stop func()) {
	t.Helper()
	r := runs.NewRunner(runs.Options{Pool: pool, ID: id, Logger: slog.New(slog.DiscardHandler), Jobs: jobs,
		Settings: runs.Settings{Poll: 30 * time.Millisecond, Lease: Lease, Slots: beside, PutOff: 10 * time.Millisecond, PutOffMost: 100 * time.Millisecond}})
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

// Until waits until a run stands so.
func (l *Log) Until(t testing.TB, run int64, so func(*runs.Run) bool) (r *runs.Run) {
	t.Helper()
	testkit.Eventually(t, time.Minute, func() (err error) {
		if r, err = runs.Show(t.Context(), l.Operator, run); err == nil && !so(r) {
			err = fmt.Errorf("run %+v", r)
		}
		return err
	})
	return r
}
