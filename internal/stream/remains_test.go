package stream_test

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/testkit"
)

// published publishes an event and a change, and returns their sequences; 0 where there was no answer.
func (b *testBundle) published(t *testing.T) (ofEvent, ofChange uint64) {
	t.Helper()
	return b.conn.PublishEvents(t.Context(), []stream.Event{event(1)})[0].Sequence, b.conn.PublishChanges(t.Context(), []stream.Change{{Source: "s", ObjectType: "t", Envelope: []byte("{}")}})[0].Sequence
}

func (b *testBundle) wantPublished(t *testing.T, event, change uint64) {
	t.Helper()
	if e, c := b.published(t); e != event || c != change {
		t.Errorf("published as event %d and change %d, want %d and %d", e, c, event, change)
	}
}

// A server that makes a stream while it removes the files of the one that was deleted gives it the old messages. That of events, of which the log is the truth, is made again without them.
func TestAStreamWithRemainsIsMadeAgain(t *testing.T) {
	t.Parallel()
	b, _ := setup(t, 100, false)
	b.wantPublished(t, 1, 1)
	b.nats.HalfDelete(t, stream.EventsStream)
	testkit.Eventually(t, patience, func() error { return b.conn.Ensure(t.Context(), b.limits) })
	b.wantPublished(t, 1, 2)
}

// A stream that nobody else has all of keeps the messages that the server has found again; it is told, once.
func TestAStreamThatIsFoundAgain(t *testing.T) {
	t.Parallel()
	b, _ := setup(t, 100, false)
	b.wantPublished(t, 1, 1)
	b.nats.HalfDelete(t, stream.ChangesStream)
	var said bytes.Buffer
	other, err := stream.Connect(stream.Options{URL: b.nats.URL, Name: t.Name(), Logger: slog.New(slog.NewTextHandler(&said, nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	testkit.Eventually(t, patience, func() error { return errors.Join(connected(other), connected(b.conn)) })
	if err := other.Ensure(t.Context(), b.limits); err != nil {
		t.Fatal(err)
	}
	b.wantPublished(t, 2, 2)
	if err := other.Ensure(t.Context(), b.limits); err != nil {
		t.Fatal(err)
	}
	b.wantPublished(t, 3, 3)
	other.Close()
	if log := said.String(); strings.Count(log, "nats stream rm POSTERN_CHANGES") != 1 || strings.Contains(log, "deleted and made again") {
		t.Error(log)
	}
}

func connected(c *stream.Conn) error {
	if !c.Connected() {
		return errors.New("not connected again yet")
	}
	return nil
}

// A stream that was there a moment ago is made again after a while, be it by whoever misses it or by another process meanwhile.
func TestAStreamIsMadeAgain(t *testing.T) {
	t.Parallel()
	for _, meanwhile := range []bool{false, true} {
		b, _ := setup(t, 100, false)
		b.wantPublished(t, 1, 1)
		js := b.conn.JetStream()
		if err := js.DeleteStream(t.Context(), stream.ChangesStream); err != nil {
			t.Fatal(err)
		}
		ensured := make(chan error, 1)
		go func() { ensured <- b.conn.Ensure(t.Context(), b.limits) }()
		if meanwhile {
			if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: stream.ChangesStream, Subjects: []string{stream.ChangesSubject + ".>"}, Storage: jetstream.FileStorage}); err != nil {
				t.Fatal(err)
			}
		}
		if err := <-ensured; err != nil {
			t.Fatal(err)
		}
		b.wantPublished(t, 2, 1)
		if s, err := js.Stream(t.Context(), stream.ChangesStream); err != nil || s.CachedInfo().Config.MaxMsgs != 100 {
			t.Errorf("%v: as somebody else made it", err)
		}
	}
}
