package stream_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/testkit"
)

const waitTime = 30 * time.Second

type testBundle struct {
	nats     *testkit.Server
	conn     *stream.Conn
	limits   stream.Limits
	registry *prometheus.Registry
	*stream.Publisher
	// unanswered receives the messages that get no response.
	unanswered <-chan *nats.Msg
}

// setup connects (through a proxy if requested), creates the streams, and a publisher that does not
// run yet.
func setup(t *testing.T, maxMessages int64, proxied bool) (*testBundle, *testkit.FaultProxy) {
	t.Helper()
	server := testkit.JetStream(t)
	if !proxied {
		return connect(t, server, server.URL, maxMessages), nil
	}
	proxy := testkit.Proxy(t, server.URL)
	return connect(t, server, proxy.URL, maxMessages), proxy
}

func connect(t *testing.T, server *testkit.Server, url string, maxMessages int64) *testBundle {
	t.Helper()
	b := &testBundle{nats: server, limits: stream.DefaultLimits, registry: prometheus.NewRegistry()}
	b.limits.MaxMessages, b.limits.MaxBytes = maxMessages, 64<<20
	log := slog.New(slog.DiscardHandler)
	var err error
	b.conn, err = stream.Connect(stream.Options{URL: url, Name: t.Name(), Logger: log})
	testkit.Must(t, err)
	t.Cleanup(b.conn.Close)
	testkit.Eventually(t, waitTime, func() error { return b.conn.Ensure(t.Context(), b.limits) })
	b.Publisher, err = stream.NewPublisher(b.conn, b.limits, log, b.registry)
	testkit.Must(t, err)
	return b
}

// errOf returns the error of a call and ignores its other result.
func errOf[T any](_ T, err error) error { return err }

// eventually waits for a condition.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	testkit.Eventually(t, waitTime, func() error {
		if !holds() {
			return errors.New(what)
		}
		return nil
	})
}

// publish publishes events, which must all be accepted.
func (b *testBundle) publish(t *testing.T, evs ...stream.Event) {
	t.Helper()
	for i, ack := range b.conn.PublishEvents(t.Context(), evs) {
		if ack.Err != nil {
			t.Fatalf("message %d: %v", i, ack.Err)
		}
	}
}

// waitAcknowledged waits until the processors' consumer has no messages left.
func (b *testBundle) waitAcknowledged(t *testing.T, exact bool) {
	t.Helper()
	testkit.Eventually(t, waitTime, func() error {
		lag, err := b.conn.Lag(t.Context(), exact)
		if err == nil && (lag.Messages != 0 || exact && (lag.Span != 0 || lag.OldestAge != 0)) {
			err = fmt.Errorf("%+v", lag)
		}
		return err
	})
}

// consume acknowledges messages until stop is called.
func (b *testBundle) consume(t *testing.T) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	consumed := make(chan error, 1)
	go func() {
		consumed <- b.conn.Consume(ctx, 10, func(m stream.Message) error { return m.Ack() },
			func(err error) { t.Error(err) })
	}()
	return func() error { cancel(); return <-consumed }
}

func (b *testBundle) run(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- b.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// metric returns the current value of a publisher's counter or gauge, of the series with the given
// label if it is not "".
func (b *testBundle) metric(t *testing.T, name, label string) float64 {
	t.Helper()
	families, err := b.registry.Gather()
	testkit.Must(t, err)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name && (label == "" || m.GetLabel()[0].GetValue() == label) {
				return m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	t.Fatalf("no metric %s %s", name, label)
	return 0
}

// publishCount returns the number of publishes with a result.
func (b *testBundle) publishCount(t *testing.T, result string) int {
	t.Helper()
	return int(b.metric(t, "postern_publishes_total", result))
}

func (b *testBundle) waitPublishCount(t *testing.T, name string, n int) {
	t.Helper()
	testkit.Eventually(t, waitTime, func() error {
		if got := b.publishCount(t, name); got < n {
			return fmt.Errorf("%d publishes %s, want %d", got, name, n)
		}
		return nil
	})
}

func event(n int) stream.Event {
	return stream.Event{Source: "s", StoredEvent: provider.StoredEvent{ID: int64(n), Key: fmt.Sprint(n), Type: "t",
		ReceivedAt: time.Unix(1, 0), Body: []byte("{}")}}
}

// A gateway publishes nothing while the lag is above a quarter of the limits, and continues when it
// is below.
func TestPublisher_lagAboveRatio_withholds(t *testing.T) {
	t.Parallel()
	b, _ := setup(t, 100, false)
	b.run(t)
	for n := range 40 {
		b.Offer(event(n))
	}
	b.waitPublishCount(t, "acknowledged", 40) // at the last reading there was no lag
	eventually(t, "nothing is withheld at a lag of 40 %", func() bool {
		b.Offer(event(100))
		return b.publishCount(t, "withheld") > 0
	})
	stop := b.consume(t)
	b.waitAcknowledged(t, false) // the server counts an acknowledgement a moment later
	testkit.Must(t, stop())
	before := b.publishCount(t, "acknowledged")
	eventually(t, "nothing is published although there is no lag", func() bool {
		b.Offer(event(101))
		return b.publishCount(t, "acknowledged") != before
	})
}

// Offer never blocks: queued events and those that do not fit are counted.
func TestOffer_fullQueue_neverBlocks(t *testing.T) {
	t.Parallel()
	b, _ := setup(t, 100, false)
	offered := make(chan struct{})
	go func() {
		defer close(offered)
		for n := range stream.QueueSize + 7 {
			b.Offer(event(n))
		}
	}()
	select {
	case <-offered:
	case <-time.After(waitTime):
		t.Fatal("Offer blocks while nothing is published")
	}
	if n := b.publishCount(t, "overflowed"); n != 7 {
		t.Errorf("%d events overflowed, want 7", n)
	}
	events, bytes := b.metric(t, "postern_publish_queue_events", ""), b.metric(t, "postern_publish_queue_bytes", "")
	if events != stream.QueueSize || bytes != 2*stream.QueueSize {
		t.Errorf("%v events of %v bytes are queued, want %d of two each", events, bytes, stream.QueueSize)
	}
}

// A stalled server is noticed within about a second, no publish blocks longer than that, and
// withheld and failed events are counted. When the server works again, publishing continues.
func TestConn_stalledServer_isNoticed(t *testing.T) {
	t.Parallel()
	b, proxy := setup(t, 1000, true)
	window, err := b.Window()
	testkit.Must(t, err)
	b.PublishOnce(t.Context(), window, event(0))
	proxy.Stall()
	began, longest := time.Now(), time.Duration(0)
	eventually(t, "still reported as connected", func() bool {
		call := time.Now()
		b.PublishOnce(t.Context(), window, event(1))
		longest = max(longest, time.Since(call))
		return !b.conn.Connected()
	})
	// about 1 s and 0.5 s on an idle machine
	if elapsed := time.Since(began); elapsed > 8*time.Second || longest > 4*time.Second {
		t.Errorf("noticed after %s, longest publish %s", elapsed, longest)
	}
	proxy.Restore()
	b.run(t)
	eventually(t, "nothing is published after the server is back", func() bool {
		b.Offer(event(2))
		return b.publishCount(t, "acknowledged") > 0
	})
}

// wantPublishCounts waits until the results have these counts, by name; others are 0. The sum is
// the number of offered events.
func (b *testBundle) wantPublishCounts(t *testing.T, want map[string]int) {
	t.Helper()
	testkit.Eventually(t, waitTime, func() error { // the last response is counted a moment after it is received
		got := map[string]int{}
		for _, name := range []string{"acknowledged", "failed", "withheld", "overflowed"} {
			if n := b.publishCount(t, name); n != 0 {
				got[name] = n
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			return fmt.Errorf("publishes, -want +got:\n%s", diff)
		}
		return nil
	})
}

// A stop publishes the current batch and the queue, whether it happens within a batch or while the
// lag is read. Events that are offered later are withheld.
func TestPublisher_stop_publishesQueue(t *testing.T) {
	t.Parallel()
	const most = 6000
	for name, wanted := range map[string]int{"before the first": 0, "within a batch": 1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, _ := setup(t, 100_000, false)
			evs := make([]stream.Event, most)
			for n := range evs {
				evs[n] = event(n)
			}
			b.Offer(evs[:most-10]...)
			for _, e := range evs[most-10:] {
				b.Offer(e)
			}
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			if wanted == 0 {
				cancel()
			}
			go func() { done <- b.Run(ctx) }()
			b.waitPublishCount(t, "acknowledged", wanted)
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
			b.Offer(evs[:3]...)
			b.wantPublishCounts(t, map[string]int{"acknowledged": most, "withheld": 3})
		})
	}
}

// Without responses a stop takes 5 s at most, and the remaining events are counted: failed if they
// were sent, otherwise withheld.
func TestPublisher_stopWithoutResponses_isBounded(t *testing.T) {
	t.Parallel()
	b, _ := setup(t, 100_000, false)
	s, err := b.conn.JetStream().Stream(t.Context(), stream.EventsStream)
	testkit.Must(t, err)
	config := s.CachedInfo().Config
	config.NoAck = true
	testkit.Must(t, errOf(b.conn.JetStream().UpdateStream(t.Context(), config)))
	const most = 4000
	for n := range most {
		b.Offer(event(n))
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	began := time.Now()
	if err := b.Run(ctx); err != nil {
		t.Error(err)
	}
	if elapsed := time.Since(began); elapsed < 4*time.Second || elapsed > 8*time.Second { // 5 s on an idle machine
		t.Errorf("stopped after %s", elapsed)
	}
	failed := b.publishCount(t, "failed")
	if failed < stream.InFlight || failed > 2*stream.InFlight {
		t.Fatalf("%d failed, want those that were sent", failed)
	}
	b.wantPublishCounts(t, map[string]int{"failed": failed, "withheld": most - failed})
}

// A message that Postern did not publish is terminated and reported, and delays no other.
func TestConsume_foreignMessage_isTerminated(t *testing.T) {
	t.Parallel()
	b, _ := setup(t, 1000, false)
	testkit.Must(t, errOf(b.conn.JetStream().Publish(t.Context(), "postern.events.s.t", []byte("hello"))))
	b.publish(t, event(7))
	ctx, cancel := context.WithTimeout(t.Context(), waitTime)
	defer cancel()
	var foreign error
	var got int64
	testkit.Must(t, b.conn.Consume(ctx, 10, func(m stream.Message) error {
		got = m.ID
		cancel()
		return m.Ack()
	}, func(err error) { foreign = err }))
	if got != 7 || foreign == nil || !strings.Contains(foreign.Error(), "Postern-Id") {
		t.Errorf("event %d was read; reported for the foreign message: %v", got, foreign)
	}
	b.waitAcknowledged(t, true)
}

// Two servers in one folder would corrupt it: the second is rejected, and the folder is free after
// the first.
func TestStartEmbedded_folderInUse_isError(t *testing.T) {
	t.Parallel()
	o := stream.EmbeddedOptions{Dir: t.TempDir(), Password: "secret", MaxBytes: 64 << 20}
	first, err := stream.StartEmbedded(t.Context(), o)
	testkit.Must(t, err)
	if second, err := stream.StartEmbedded(t.Context(), o); err == nil {
		second.Stop()
		t.Error("a second server runs in the folder of the first")
	} else if !strings.Contains(err.Error(), "in use by another postern") {
		t.Errorf("the second server: %v", err)
	}
	conn, err := stream.Connect(stream.Options{URL: first.URL(),
		Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
	testkit.Must(t, err)
	if err := conn.Ensure(t.Context(), stream.Limits{MaxMessages: 10, MaxBytes: 1 << 20, Replicas: 1,
		AckWait: time.Second, MaxAckPending: 10}); err != nil {
		t.Error(err)
	}
	conn.Close()
	first.Stop()
	again, err := stream.StartEmbedded(t.Context(), o)
	if err != nil {
		t.Fatalf("after the first has stopped: %v", err)
	}
	again.Stop()
}

// The lag is reported in messages, seconds and as a ratio; it is NaN while the stream does not
// respond.
func TestPublisher_lagMetrics_followTheStream(t *testing.T) {
	t.Parallel()
	b, proxy := setup(t, 100, true)
	b.run(t)
	for n := range 10 {
		b.Offer(event(n))
	}
	messages := func() float64 { return b.metric(t, "postern_stream_lag_messages", "") }
	seconds := func() float64 { return b.metric(t, "postern_stream_lag_seconds", "") }
	ratio := func() float64 { return b.metric(t, "postern_stream_lag_ratio", "") }
	until := func(what string, holds func() bool) {
		t.Helper()
		testkit.Eventually(t, waitTime, func() error {
			if !holds() {
				return fmt.Errorf("%s: %v messages, %v s, ratio %v", what, messages(), seconds(), ratio())
			}
			return nil
		})
	}
	until("ten wait", func() bool { return messages() == 10 && seconds() > 0 && ratio() >= 0.1 && ratio() < 0.2 })
	before := seconds()
	until("they get older", func() bool { return seconds() > before })
	proxy.Stall()
	until("no response", func() bool {
		return math.IsNaN(messages()) && math.IsNaN(seconds()) && math.IsNaN(ratio())
	})
	proxy.Restore()
	until("response again", func() bool { return messages() == 10 })
}

func TestMain(m *testing.M) { testkit.Main(m) }
