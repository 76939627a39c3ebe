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

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/sim"
)

// patience is how long a test waits for what must come; it is never a measure of speed.
const patience = 3 * time.Minute

// world is a database with a stream and running processors.
type world struct {
	*testBundle
	nats    *testkit.Server
	limits  stream.Limits
	gateway *pgxpool.Pool
	// conn publishes as a gateway does.
	conn *stream.Conn
	keys int
	// origin is that of events to append; empty: they came by webhook.
	origin string
}

func newWorld(t *testing.T, tune func(*stream.Limits)) *world {
	t.Helper()
	b := setup(t)
	w := &world{testBundle: b, nats: testkit.JetStream(t), limits: stream.DefaultLimits, gateway: b.db.Role(t, "gateway")}
	w.limits.MaxBytes = 256 << 20
	if tune != nil {
		tune(&w.limits)
	}
	w.conn = w.connect(t, w.nats.URL)
	must(t, w.conn.Ensure(t.Context(), w.limits))
	return w
}

func (w *world) connect(t *testing.T, url string) *stream.Conn {
	t.Helper()
	conn, err := stream.Connect(stream.Options{URL: url, Name: t.Name(), Logger: slog.New(slog.DiscardHandler)})
	must(t, err)
	t.Cleanup(conn.Close)
	return conn
}

// setting is what a live processor differs in from the others.
type setting struct {
	provider provider.Provider
	id       string
	// database and stream are URLs by way of a proxy, "" for the straight way.
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

// quick are settings whose ages nobody has to wait for.
func quick(s *processor.Settings) {
	s.AuditEvery, s.AuditAge, s.SweepAfter = 50*time.Millisecond, 0, 200*time.Millisecond
	s.BackOff = []time.Duration{100 * time.Millisecond, 100 * time.Millisecond, 100 * time.Millisecond}
	s.StopWithin = 5 * time.Second
}

// start runs a processor until the test ends or stop is called.
func (w *world) start(t *testing.T, o setting) *live {
	t.Helper()
	if o.provider == nil {
		o.provider = sim.Provider{}
	}
	l := &live{registry: prometheus.NewRegistry(), done: make(chan struct{})}
	with := w.options(t, o.provider)
	quick(&with.Settings)
	if o.tune != nil {
		o.tune(&with.Settings)
	}
	if o.database != "" {
		with.Pool = (&testkit.DB{URL: o.database}).Role(t, "processor")
	}
	with.Conn, with.Limits, with.Metrics = w.connect(t, cmp.Or(o.stream, w.nats.URL)), w.limits, l.registry
	with.ID += o.id
	l.Processor = made(t, with)
	var ctx context.Context
	ctx, l.cancel = context.WithCancel(context.WithoutCancel(t.Context()))
	go func() {
		defer close(l.done)
		if err := l.Run(ctx); err != nil {
			t.Errorf("run processor: %v", err)
		}
	}()
	t.Cleanup(func() {
		if r, ok := o.provider.(*reads); ok && r.gate != nil {
			r.open()
		}
		l.stop(t)
	})
	return l
}

// stop ends a processor in order.
func (l *live) stop(t *testing.T) {
	t.Helper()
	l.cancel()
	select {
	case <-l.done:
	case <-time.After(patience):
		l.once.Do(func() { t.Errorf("processor did not stop within %s", patience) })
	}
}

// metric is a counter or gauge, its value at one label if there are labels.
func (l *live) metric(t *testing.T, name, label string) float64 {
	t.Helper()
	families, err := l.registry.Gather()
	must(t, err)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name && (label == "" || len(m.GetLabel()) > 0 && m.GetLabel()[0].GetValue() == label) {
				return m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return 0 // a label that nothing was counted under yet
}

// audited is how many events the auditor published again because they had no outcome.
func (l *live) audited(t *testing.T) int {
	t.Helper()
	return int(l.metric(t, "postern_audited_events_total", "missing"))
}

// simple are n events of objects of their own.
func (w *world) simple(n int) []sim.Event {
	h := sim.Generate(rand.New(rand.NewPCG(uint64(w.keys), 9)), sim.Options{Objects: n, Changes: 1, Contents: 3, Unit: 1, Gap: 10})
	return h.Events
}

// append stores events under keys of their own and returns them as the stream carries them.
func (w *world) append(t *testing.T, evs ...sim.Event) []stream.Event {
	t.Helper()
	ds := make([]events.Delivery, len(evs))
	out := make([]stream.Event, len(evs))
	for i, e := range evs {
		w.keys++
		out[i] = message(0, e)
		out[i].Key, out[i].ObjectType, out[i].ObjectID = fmt.Sprint("k", w.keys), "thing", e.Object
		ds[i] = w.delivery(out[i].Key, e)
	}
	for from := 0; from < len(ds); from += 500 {
		receipts, err := events.Append(t.Context(), w.gateway, ds[from:min(from+500, len(ds))])
		must(t, err)
		for i, r := range receipts {
			out[from+i].ID = r[0].ID
		}
	}
	return out
}

func (w *world) delivery(key string, e sim.Event) events.Delivery {
	return events.Delivery{Source: w.source, ReceivedAt: e.ReceivedAt, Origin: cmp.Or(w.origin, events.OriginWebhook), Headers: []byte(`{}`), Verification: []byte(`{}`), Body: e.Body,
		Events: []provider.Event{{Key: key, Type: "thing", ObjectType: "thing", ObjectID: e.Object, Fingerprint: provider.BodyFingerprint(e.Body)}}}
}

// publish hands events to the stream, each once.
func (w *world) publish(t *testing.T, evs ...stream.Event) {
	t.Helper()
	for _, ack := range w.conn.PublishEvents(t.Context(), evs) {
		if ack.Err != nil {
			t.Fatal(ack.Err)
		}
	}
}

// outcomes waits until n events of run 0 have one that is final.
func (w *world) outcomes(t *testing.T, n int) {
	t.Helper()
	w.atLeast(t, n, `SELECT count(*) FROM outcomes WHERE status <> 'failed' AND run = 0`)
	var got, events int
	w.scan(t, `SELECT (SELECT count(*) FROM outcomes), (SELECT count(*) FROM events)`, &got, &events)
	if got != n || events != n {
		t.Errorf("%d outcomes of %d events, want %d", got, events, n)
	}
}

// reads counts how often each event was read, which is how often a copy of it came out of the stream.
type reads struct {
	sim.Provider
	mu sync.Mutex
	of map[int64]int
	// gate, if set, holds every read until open closes it.
	gate chan struct{}
	once sync.Once
}

func newReads() *reads { return &reads{of: map[int64]int{}} }

// newGate counts too, and holds every read until it is opened, at the latest when the test ends.
func newGate() *reads {
	r := newReads()
	r.gate = make(chan struct{})
	return r
}

func (r *reads) open() { r.once.Do(func() { close(r.gate) }) }

func (r *reads) Observe(src *provider.Source, e *provider.Stored) (provider.Observation, error) {
	r.mu.Lock()
	r.of[e.ID]++
	r.mu.Unlock()
	if r.gate != nil {
		<-r.gate
	}
	return r.Provider.Observe(src, e)
}

// total is how many copies were read.
func (r *reads) total() (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, k := range r.of {
		n += k
	}
	return n
}

// jetStream is a client of the server beside ours.
func (w *world) jetStream(t *testing.T) jetstream.JetStream {
	t.Helper()
	nc, err := nats.Connect(w.nats.URL, nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond))
	must(t, err)
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	must(t, err)
	return js
}

// drained waits until every message in the stream is acknowledged.
func (w *world) drained(t *testing.T) {
	t.Helper()
	testkit.Eventually(t, patience, func() error {
		lag, err := w.conn.Lag(t.Context(), false)
		if err == nil && lag.Messages > 0 {
			err = fmt.Errorf("%d messages are not acknowledged", lag.Messages)
		}
		return err
	})
}

// passes waits until the auditor began n more passes.
func (w *world) passes(t *testing.T, n int) {
	t.Helper()
	var last time.Time
	testkit.Eventually(t, patience, func() error {
		var at *time.Time
		w.scan(t, `SELECT max(updated_at) FROM checkpoints WHERE job = 'auditor'`, &at)
		if at == nil {
			return errors.New("no auditor yet")
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

// clock sets the database's clock off by an interval.
func (w *world) clock(t *testing.T, off string) {
	t.Helper()
	w.db.Exec(t,
		`CREATE OR REPLACE FUNCTION clock_now() RETURNS timestamptz LANGUAGE sql VOLATILE AS 'SELECT clock_timestamp() + interval ''`+off+`'''`)
}

// awaits waits until a metric has come to a value.
func (l *live) awaits(t *testing.T, name, label string, least float64) {
	t.Helper()
	testkit.Eventually(t, patience, func() error {
		if n := l.metric(t, name, label); n < least {
			return fmt.Errorf("%s is %v, want %v", name, n, least)
		}
		return nil
	})
}

// atLeast waits until a query counts so many.
func (b *testBundle) atLeast(t *testing.T, least int, sql string) {
	t.Helper()
	testkit.Eventually(t, patience, func() error {
		var n int
		if b.scan(t, sql, &n); n < least {
			return fmt.Errorf("%s: %d, want %d", sql, n, least)
		}
		return nil
	})
}
