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

const patience = 30 * time.Second

type testBundle struct {
	nats     *testkit.Server
	conn     *stream.Conn
	limits   stream.Limits
	registry *prometheus.Registry
	*stream.Publisher
	// heard are the messages that nobody answers.
	heard chan *nats.Msg
}

// setup connects by way of a proxy if one is given, makes the streams and a publisher that does not run yet.
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
	if b.conn, err = stream.Connect(stream.Options{URL: url, Name: t.Name(), Logger: log}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.conn.Close)
	testkit.Eventually(t, patience, func() error { return b.conn.Ensure(t.Context(), b.limits) })
	if b.Publisher, err = stream.NewPublisher(b.conn, b.limits, log, b.registry); err != nil {
		t.Fatal(err)
	}
	return b
}

// publish publishes events, each of which must be taken.
func (b *testBundle) publish(t *testing.T, evs ...stream.Event) {
	t.Helper()
	for i, ack := range b.conn.PublishEvents(t.Context(), evs) {
		if ack.Err != nil {
			t.Fatalf("message %d: %v", i, ack.Err)
		}
	}
}

// drained waits until no message waits for the processors.
func (b *testBundle) drained(t *testing.T, exact bool) {
	t.Helper()
	testkit.Eventually(t, patience, func() error {
		lag, err := b.conn.Lag(t.Context(), exact)
		if err == nil && (lag.Messages != 0 || exact && (lag.Span != 0 || lag.OldestAge != 0)) {
			err = fmt.Errorf("%+v", lag)
		}
		return err
	})
}

// consume acknowledges what comes until stop is called.
func (b *testBundle) consume(t *testing.T) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	consumed := make(chan error, 1)
	go func() {
		consumed <- b.conn.Consume(ctx, 10, func(m stream.Message) error { return m.Ack() }, func(err error) { t.Error(err) })
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

// result is how many publishes ended so.
func (b *testBundle) result(t *testing.T, name string) int {
	t.Helper()
	families, err := b.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == "postern_publishes_total" && m.GetLabel()[0].GetValue() == name {
				return int(m.GetCounter().GetValue())
			}
		}
	}
	t.Fatalf("no result %s", name)
	return 0
}

func (b *testBundle) until(t *testing.T, name string, n int) {
	t.Helper()
	testkit.Eventually(t, patience, func() error {
		if got := b.result(t, name); got < n {
			return fmt.Errorf("%d publishes %s, want %d", got, name, n)
		}
		return nil
	})
}

func event(n int) stream.Event {
	return stream.Event{Source: "s", Stored: provider.Stored{ID: int64(n), Key: fmt.Sprint(n), Type: "t", ReceivedAt: time.Unix(1, 0), Body: []byte("{}")}}
}

// A gateway publishes nothing while the lag is above a quarter of the limit, and goes on when it is worked off.
func TestGateFollowsTheLag(t *testing.T) {
	t.Parallel()
	b, _ := setup(t, 100, false)
	b.run(t)
	for n := range 40 {
		b.Offer(event(n))
	}
	b.until(t, "acknowledged", 40) // at the last reading of the lag there was none
	testkit.Eventually(t, patience, func() error {
		b.Offer(event(100))
		if b.result(t, "withheld") == 0 {
			return errors.New("nothing is withheld at a lag of 40 %")
		}
		return nil
	})
	stop := b.consume(t)
	b.drained(t, false) // the server counts an acknowledgement a moment after it came
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	before := b.result(t, "acknowledged")
	testkit.Eventually(t, patience, func() error {
		b.Offer(event(101))
		if b.result(t, "acknowledged") == before {
			return errors.New("nothing is published though the lag is gone")
		}
		return nil
	})
}

// Offer never blocks: what waits and what does not fit are counted.
func TestOfferNeverBlocks(t *testing.T) {
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
	case <-time.After(patience):
		t.Fatal("Offer blocks while nobody publishes")
	}
	if n := b.result(t, "overflowed"); n != 7 {
		t.Errorf("%d events overflowed, want 7", n)
	}
	events, bytes := b.gauge(t, "postern_publish_queue_events"), b.gauge(t, "postern_publish_queue_bytes")
	if events != stream.QueueSize || bytes != 2*stream.QueueSize {
		t.Errorf("%v events of %v bytes wait, want %d of two each", events, bytes, stream.QueueSize)
	}
}

// A server that hangs is noticed within about a second, no publish blocks longer than that, and what was withheld or failed
// is counted. When it is back, publishing goes on.
func TestHungServerIsNoticed(t *testing.T) {
	t.Parallel()
	b, proxy := setup(t, 1000, true)
	window, err := b.Window()
	if err != nil {
		t.Fatal(err)
	}
	b.PublishOnce(t.Context(), window, event(0))
	proxy.Stall()
	began, longest := time.Now(), time.Duration(0)
	testkit.Eventually(t, patience, func() error {
		call := time.Now()
		b.PublishOnce(t.Context(), window, event(1))
		longest = max(longest, time.Since(call))
		if b.conn.Connected() {
			return errors.New("still thought connected")
		}
		return nil
	})
	if took := time.Since(began); took > 8*time.Second || longest > 4*time.Second { // about 1 s and 0.5 s on an idle machine
		t.Errorf("noticed after %s, longest publish %s", took, longest)
	}
	proxy.Restore()
	b.run(t)
	testkit.Eventually(t, patience, func() error {
		b.Offer(event(2))
		if b.result(t, "acknowledged") == 0 {
			return errors.New("nothing is published after the server is back")
		}
		return nil
	})
}

// counts waits until the results are these, by name; those not named are 0. So they add up to what was offered.
func (b *testBundle) counts(t *testing.T, want map[string]int) {
	t.Helper()
	testkit.Eventually(t, patience, func() error { // the last answer is counted a moment after it is taken
		got := map[string]int{}
		for _, name := range []string{"acknowledged", "failed", "withheld", "overflowed"} {
			if n := b.result(t, name); n != 0 {
				got[name] = n
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			return fmt.Errorf("publishes, -want +got:\n%s", diff)
		}
		return nil
	})
}

// A stop publishes what is in hand and what waits, whether it comes in the middle of a batch or while the lag is read; what is offered after it
// is withheld.
func TestStopPublishesWhatWaits(t *testing.T) {
	t.Parallel()
	const most = 6000
	for name, wanted := range map[string]int{"before the first": 0, "in the middle": 1} {
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
			b.until(t, "acknowledged", wanted)
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
			b.Offer(evs[:3]...)
			b.counts(t, map[string]int{"acknowledged": most, "withheld": 3})
		})
	}
}

// Where no answer comes a stop takes its 5 s and no more, and what it leaves is counted: failed if it was sent, else withheld.
func TestStopIsBounded(t *testing.T) {
	t.Parallel()
	b, _ := setup(t, 100_000, false)
	s, err := b.conn.JetStream().Stream(t.Context(), stream.EventsStream)
	if err != nil {
		t.Fatal(err)
	}
	mute := s.CachedInfo().Config
	mute.NoAck = true
	if _, err := b.conn.JetStream().UpdateStream(t.Context(), mute); err != nil {
		t.Fatal(err)
	}
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
	if took := time.Since(began); took < 4*time.Second || took > 8*time.Second { // 5 s on an idle machine
		t.Errorf("stopped after %s", took)
	}
	failed := b.result(t, "failed")
	if failed < stream.InFlight || failed > 2*stream.InFlight {
		t.Fatalf("%d failed, want those that were sent", failed)
	}
	b.counts(t, map[string]int{"failed": failed, "withheld": most - failed})
}

// A message that is not ours is dropped and told of, and holds up no other.
func TestForeignMessageIsDropped(t *testing.T) {
	t.Parallel()
	b, _ := setup(t, 1000, false)
	if _, err := b.conn.JetStream().Publish(t.Context(), "postern.events.s.t", []byte("hello")); err != nil {
		t.Fatal(err)
	}
	b.publish(t, event(7))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var foreign error
	var got int64
	if err := b.conn.Consume(ctx, 10, func(m stream.Message) error {
		got = m.ID
		cancel()
		return m.Ack()
	}, func(err error) { foreign = err }); err != nil {
		t.Fatal(err)
	}
	if got != 7 || foreign == nil || !strings.Contains(foreign.Error(), "Postern-Id") {
		t.Errorf("event %d was read; of the foreign message we were told %v", got, foreign)
	}
	b.drained(t, true)
}

// Two servers on one folder would corrupt it: the second is refused, and the folder is free again after the first.
func TestEmbeddedLocksItsFolder(t *testing.T) {
	t.Parallel()
	o := stream.EmbeddedOptions{Dir: t.TempDir(), Password: "secret", MaxBytes: 64 << 20}
	first, err := stream.StartEmbedded(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if second, err := stream.StartEmbedded(t.Context(), o); err == nil {
		second.Stop()
		t.Error("a second server runs on the folder of the first")
	} else if !strings.Contains(err.Error(), "in use by another postern") {
		t.Errorf("refused with: %v", err)
	}
	conn, err := stream.Connect(stream.Options{URL: first.URL(), Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.Ensure(t.Context(), stream.Limits{MaxMessages: 10, MaxBytes: 1 << 20, Replicas: 1, AckWait: time.Second, MaxAckPending: 10}); err != nil {
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

// gauge is a publisher's metric as it is now.
func (b *testBundle) gauge(t *testing.T, name string) float64 {
	t.Helper()
	families, err := b.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	t.Fatalf("no metric %s", name)
	return 0
}

// The lag is told in messages, seconds and as a share; while the stream does not answer nobody knows it, and nobody says a number.
func TestLagIsTold(t *testing.T) {
	t.Parallel()
	b, proxy := setup(t, 100, true)
	b.run(t)
	for n := range 10 {
		b.Offer(event(n))
	}
	const messages, seconds, share = "postern_stream_lag_messages", "postern_stream_lag_seconds", "postern_stream_lag_ratio"
	until := func(what string, ok func() bool) {
		t.Helper()
		testkit.Eventually(t, patience, func() error {
			if !ok() {
				return fmt.Errorf("%s: %v messages, %v s, share %v", what, b.gauge(t, messages), b.gauge(t, seconds), b.gauge(t, share))
			}
			return nil
		})
	}
	until("ten wait", func() bool {
		return b.gauge(t, messages) == 10 && b.gauge(t, seconds) > 0 && b.gauge(t, share) >= 0.1 && b.gauge(t, share) < 0.2
	})
	before := b.gauge(t, seconds)
	until("they grow older", func() bool { return b.gauge(t, seconds) > before })
	proxy.Stall()
	until("nobody knows", func() bool {
		return math.IsNaN(b.gauge(t, messages)) && math.IsNaN(b.gauge(t, seconds)) && math.IsNaN(b.gauge(t, share))
	})
	proxy.Restore()
	until("known again", func() bool { return b.gauge(t, messages) == 10 })
}

func TestMain(m *testing.M) { testkit.Main(m) }
