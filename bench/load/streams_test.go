package load

import (
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	events   = "EVENTS"
	consumer = "processor"
)

// startJetStream starts a server in this process for the duration of a test.
func startJetStream(t *testing.T) jetstream.JetStream {
	t.Helper()
	ns, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true, NoLog: true,
		JetStream: true, StoreDir: t.TempDir(),
		JetStreamMaxMemory: 1 << 20, JetStreamMaxStore: 64 << 20})
	if err != nil {
		t.Fatal(err)
	}
	ns.Start()
	t.Cleanup(func() { ns.Shutdown(); ns.WaitForShutdown() })
	if !ns.ReadyForConnections(30 * time.Second) {
		t.Fatal("the NATS server does not start")
	}
	nc, err := nats.Connect(ns.ClientURL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return js
}

func ensure(t *testing.T, js jetstream.JetStream) {
	t.Helper()
	if _, err := js.CreateOrUpdateStream(t.Context(),
		jetstream.StreamConfig{Name: events, Subjects: []string{"events.>"}}); err != nil {
		t.Fatal(err)
	}
	c := jetstream.ConsumerConfig{Durable: consumer, AckPolicy: jetstream.AckExplicitPolicy}
	if _, err := js.CreateOrUpdateConsumer(t.Context(), events, c); err != nil {
		t.Fatal(err)
	}
}

// Pending counts undelivered messages and unacknowledged ones. A deleted consumer begins again.
func TestLag_consumerStates_countsUnacknowledged(t *testing.T) {
	t.Parallel()
	m := &Machine{JS: startJetStream(t)}
	ensure(t, m.JS)
	for range 10 {
		if _, err := m.JS.Publish(t.Context(), "events.a", nil); err != nil {
			t.Fatal(err)
		}
	}
	want := func(name string, done, pending int64) {
		t.Helper()
		for began := time.Now(); ; {
			lag, err := m.Lag(t.Context(), events, name)
			if err != nil {
				t.Fatal(err)
			}
			if lag.Done() == done && lag.Pending == pending && lag.Last == 10 && lag.Messages == 10 {
				return
			}
			if time.Since(began) > 30*time.Second {
				t.Fatalf("%d done, %d pending of %d (%d stored); want %d and %d", lag.Done(), lag.Pending, lag.Last,
					lag.Messages, done, pending)
			}
		}
	}
	want("missing", 0, 10)
	c, err := m.JS.Consumer(t.Context(), events, consumer)
	if err != nil {
		t.Fatal(err)
	}
	batch, err := c.Fetch(4)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for msg := range batch.Messages() {
		if n++; n <= 3 {
			if err := msg.DoubleAck(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := batch.Error(); err != nil || n != 4 {
		t.Fatalf("fetched %d: %v", n, err)
	}
	want(consumer, 3, 7)
	if err := m.DeleteConsumers(t.Context(), events, consumer, "missing"); err != nil {
		t.Fatal(err)
	}
	ensure(t, m.JS)
	want(consumer, 0, 10)
}
