package stream_test

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/testkit"
)

// warnings are a log's, as its lines come.
type warnings struct {
	slog.Handler
	told chan string
}

func (w warnings) Handle(_ context.Context, r slog.Record) error {
	text := r.Message
	r.Attrs(func(a slog.Attr) bool { text += " " + a.String(); return true })
	select {
	case w.told <- text:
	default:
	}
	return nil
}

func (w warnings) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelWarn }

// However much waits, and however slowly it is taken, each message comes once: what the server says between messages takes nobody's place.
func TestNothingFetchedIsLost(t *testing.T) {
	t.Parallel()
	const n, prefetch = 3000, 20
	b, _ := setup(t, 2*n, false)
	for i, ack := range b.conn.PublishEvents(t.Context(), numbered(n)) {
		if ack.Err != nil {
			t.Fatalf("message %d: %v", i, ack.Err)
		}
	}
	log := warnings{told: make(chan string, 10)}
	conn, err := stream.Connect(stream.Options{URL: b.nats.URL, Name: t.Name(), Logger: slog.New(log)})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	times := map[int64]uint64{}
	take := func(m stream.Message) error {
		if times[m.ID] = max(times[m.ID], m.Delivered); len(times)%(3*prefetch) == 0 {
			<-time.After(5 * time.Millisecond) // what was asked for has time to come
		}
		if len(times) == n {
			cancel()
		}
		return m.Ack()
	}
	lost := 0 // where a machine is so busy that the server is not heard for 2 s, the consumer is opened again, as a processor does
	for ; len(times) < n && ctx.Err() == nil; lost++ {
		err = conn.Consume(ctx, prefetch, take, func(err error) { t.Error(err) })
	}
	if len(times) != n {
		t.Errorf("%d of %d messages came: %v", len(times), n, err)
	}
	again := ""
	for id, delivered := range times {
		if delivered > 1 {
			again += fmt.Sprintf(" %d", id)
		}
	}
	if again != "" && lost == 1 {
		t.Errorf("messages that came again:%s", again)
	}
	select {
	case text := <-log.told:
		t.Errorf("the connection warns: %s", text)
	default:
	}
}

// What was fetched ahead goes back when the consuming ends; nobody has to miss it first.
func TestTheRestGoesBack(t *testing.T) {
	t.Parallel()
	const n = 1000
	b, _ := setup(t, 2*n, false)
	consumer, err := b.conn.JetStream().Consumer(t.Context(), stream.EventsStream, stream.ProcessorConsumer)
	if err != nil {
		t.Fatal(err)
	}
	c := consumer.CachedInfo().Config
	c.AckWait = time.Hour
	if _, err := b.conn.JetStream().UpdateConsumer(t.Context(), stream.EventsStream, c); err != nil {
		t.Fatal(err)
	}
	for i, ack := range b.conn.PublishEvents(t.Context(), numbered(n)) {
		if ack.Err != nil {
			t.Fatalf("message %d: %v", i, ack.Err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		done <- b.conn.Consume(ctx, n, func(m stream.Message) error {
			<-ctx.Done()
			return m.HandBack(0)
		}, func(err error) { t.Error(err) })
	}()
	testkit.Eventually(t, patience, func() error {
		info, err := consumer.Info(t.Context())
		if err == nil && info.NumAckPending < n {
			err = fmt.Errorf("%d of %d messages are out", info.NumAckPending, n)
		}
		return err
	})
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if got := b.take(t, n); len(got) != n {
		t.Errorf("%d of %d came back", len(got), n)
	}
}
