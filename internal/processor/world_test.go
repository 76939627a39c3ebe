package processor_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/applied"
	"github.com/postern-gateway/postern/internal/testkit/sim"
)

const maxWait = applied.MaxWait

// world is a database with a stream and running processors.
type world struct {
	*testBundle
	nats   *testkit.Server
	limits stream.Limits
	// conn publishes as a gateway does.
	conn *stream.Conn
	// appended is the number of events that the test has appended.
	appended int
}

func newWorld(t *testing.T, tune func(*stream.Limits)) *world {
	t.Helper()
	return newWorldOn(t, testkit.JetStream(t), tune)
}

// newWorldWithMaxPayload has a server that accepts messages only up to a size.
func newWorldWithMaxPayload(t *testing.T, maxPayload int32) *world {
	t.Helper()
	return newWorldOn(t, testkit.JetStreamMaxPayload(t, maxPayload), nil)
}

func newWorldOn(t *testing.T, server *testkit.Server, tune func(*stream.Limits)) *world {
	t.Helper()
	w := &world{testBundle: setup(t), nats: server, limits: stream.DefaultLimits}
	w.limits.MaxBytes = 256 << 20
	if tune != nil {
		tune(&w.limits)
	}
	w.conn = w.connect(t, w.nats.URL)
	w.awaitReconnect(t)
	return w
}

func (w *world) connect(t *testing.T, url string) *stream.Conn {
	t.Helper()
	conn, err := stream.Connect(stream.Options{URL: url, Name: t.Name(), Logger: slog.New(slog.DiscardHandler)})
	must(t, err)
	t.Cleanup(conn.Close)
	return conn
}

// processorOptions are the differences of a running processor from the default.
type processorOptions struct {
	provider provider.Provider
	id       string
	// database and stream are URLs of a proxy, "" for a direct connection.
	database, stream string
	tune             func(*processor.Settings)
}

// live is a running processor.
type live struct {
	*processor.Processor
	registry *prometheus.Registry
	cancel   context.CancelFunc
	done     chan struct{}
	once     sync.Once
}

// quickSettings are settings with short intervals.
func quickSettings(s *processor.Settings) {
	s.RepublishInterval, s.RepublishMinAge, s.ResendAfter = 50*time.Millisecond, 0, 200*time.Millisecond
	s.BackOff = []time.Duration{100 * time.Millisecond, 100 * time.Millisecond, 100 * time.Millisecond}
	s.StopTimeout = 5 * time.Second
}

// start runs a processor until the test ends or stop is called.
func (w *world) start(t *testing.T, o processorOptions) *live {
	t.Helper()
	if o.provider == nil {
		o.provider = sim.Provider{}
	}
	l := &live{registry: prometheus.NewRegistry(), done: make(chan struct{})}
	with := w.options(t, o.provider)
	quickSettings(&with.Settings)
	if o.tune != nil {
		o.tune(&with.Settings)
	}
	if o.database != "" {
		with.Pool = (&testkit.DB{URL: o.database}).Role(t, "processor")
	}
	with.Conn, with.Limits, with.Metrics = w.connect(t, cmp.Or(o.stream, w.nats.URL)), w.limits, l.registry
	with.ID += o.id
	l.Processor = newProcessor(t, with)
	var ctx context.Context
	ctx, l.cancel = context.WithCancel(context.WithoutCancel(t.Context()))
	go func() {
		defer close(l.done)
		if err := l.Run(ctx); err != nil {
			t.Errorf("run processor: %v", err)
		}
	}()
	t.Cleanup(func() {
		if r, ok := o.provider.(*readCounter); ok && r.gate != nil {
			r.open()
		}
		l.stop(t)
	})
	return l
}

// stop stops a processor in an orderly way.
func (l *live) stop(t *testing.T) {
	t.Helper()
	l.cancel()
	select {
	case <-l.done:
	case <-time.After(maxWait):
		l.once.Do(func() { t.Errorf("processor did not stop within %s", maxWait) })
	}
}

// metric returns the value of a counter or gauge, for one label if there are labels.
func (l *live) metric(t *testing.T, name, label string) float64 {
	t.Helper()
	return metricValue(t, l.registry, name, label)
}

// metricValue returns the value of a counter or gauge in a registry, for one label if there are
// labels.
func metricValue(t *testing.T, registry *prometheus.Registry, name, label string) float64 {
	t.Helper()
	families, err := registry.Gather()
	must(t, err)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name && (label == "" || len(m.GetLabel()) > 0 && m.GetLabel()[0].GetValue() == label) {
				return m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return 0 // nothing was counted with this label yet
}

// republished returns the number of events that the republisher published because they had no
// outcome.
func (l *live) republished(t *testing.T) int {
	t.Helper()
	return int(l.metric(t, "postern_republisher_events_total", "missing"))
}

// newObjects returns n events, each of a new object.
func (w *world) newObjects(n int) []sim.Event {
	h := sim.Generate(rand.New(rand.NewPCG(uint64(w.appended), 9)), sim.Options{Objects: n, Changes: 1, Contents: 3,
		Unit: 1, Gap: 10})
	return h.Events
}

// append stores events under new keys and returns them in the form of the stream.
func (w *world) append(t *testing.T, evs ...sim.Event) []stream.Event {
	t.Helper()
	w.appended += len(evs)
	return w.AppendEvents(t, w.Source, evs)
}

// publish publishes each event to the stream once.
func (w *world) publish(t *testing.T, evs ...stream.Event) {
	t.Helper()
	for _, ack := range w.conn.PublishEvents(t.Context(), evs) {
		if ack.Err != nil {
			t.Fatal(ack.Err)
		}
	}
}

// awaitOutcomes waits until n live events have a final outcome.
func (w *world) awaitOutcomes(t *testing.T, n int) {
	t.Helper()
	w.AwaitAtLeast(t, n, `SELECT count(*) FROM outcomes WHERE status <> 'failed' AND run = 0`)
	var got, events int
	w.Scan(t, `SELECT (SELECT count(*) FROM outcomes), (SELECT count(*) FROM events)`, &got, &events)
	if got != n || events != n {
		t.Errorf("%d outcomes of %d events, want %d", got, events, n)
	}
}

// readCounter counts how often each event was read, which is the number of its deliveries.
type readCounter struct {
	sim.Provider
	mu     sync.Mutex
	counts map[int64]int
	// gate, if set, blocks every read until open closes it.
	gate chan struct{}
	once sync.Once
}

func newReadCounter() *readCounter { return &readCounter{counts: map[int64]int{}} }

// newGatedCounter also counts, and blocks every read until it is opened, at the latest when the
// test ends.
func newGatedCounter() *readCounter {
	r := newReadCounter()
	r.gate = make(chan struct{})
	return r
}

func (r *readCounter) open() { r.once.Do(func() { close(r.gate) }) }

func (r *readCounter) Observe(src *provider.Source, e *provider.StoredEvent) (provider.Observation, error) {
	r.mu.Lock()
	r.counts[e.ID]++
	r.mu.Unlock()
	if r.gate != nil {
		<-r.gate
	}
	return r.Provider.Observe(src, e)
}

// total returns the number of reads.
func (r *readCounter) total() (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, k := range r.counts {
		n += k
	}
	return n
}

// jetStream is a separate client of the server.
func (w *world) jetStream(t *testing.T) jetstream.JetStream {
	t.Helper()
	nc, err := nats.Connect(w.nats.URL, nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond))
	must(t, err)
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	must(t, err)
	return js
}

// awaitDrained waits until every message in the stream is acknowledged.
func (w *world) awaitDrained(t *testing.T) {
	t.Helper()
	testkit.Eventually(t, maxWait, func() error {
		lag, err := w.conn.Lag(t.Context(), false)
		if err == nil && lag.Messages > 0 {
			err = fmt.Errorf("%d messages are not acknowledged", lag.Messages)
		}
		return err
	})
}

// awaitPasses waits until the republisher has begun n more passes.
func (w *world) awaitPasses(t *testing.T, n int) {
	t.Helper()
	var last time.Time
	testkit.Eventually(t, maxWait, func() error {
		var at *time.Time
		w.Scan(t, `SELECT max(updated_at) FROM checkpoints WHERE job = 'republisher'`, &at)
		if at == nil {
			return errors.New("no republisher yet")
		}
		if at.After(last) {
			last = *at
			n--
		}
		if n >= 0 {
			return fmt.Errorf("%d passes to go", n)
		}
		return nil
	})
}

// setClock shifts the database's clock by an interval.
func (w *world) setClock(t *testing.T, off string) {
	t.Helper()
	w.DB.Exec(t,
		`CREATE OR REPLACE FUNCTION clock_now() RETURNS timestamptz LANGUAGE sql VOLATILE AS
			'SELECT clock_timestamp() + interval ''`+off+`'''`)
}

// awaitMetric waits until a metric has reached a value.
func (l *live) awaitMetric(t *testing.T, name, label string, least float64) {
	t.Helper()
	testkit.Eventually(t, maxWait, func() error {
		if n := l.metric(t, name, label); n < least {
			return fmt.Errorf("%s is %v, want %v", name, n, least)
		}
		return nil
	})
}
