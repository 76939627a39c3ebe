package stream_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/testkit"
)

// recordLog records the lines of a log from a level on.
type recordLog struct {
	slog.Handler
	level slog.Level
	mu    sync.Mutex
	lines []slog.Record
}

func (l *recordLog) Enabled(_ context.Context, level slog.Level) bool { return level >= l.level }

func (l *recordLog) Handle(_ context.Context, r slog.Record) error {
	r.Attrs(func(a slog.Attr) bool { r.Message += " " + a.String(); return true })
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, r)
	return nil
}

// containing returns the lines that contain a text.
func (l *recordLog) containing(text string) []slog.Record {
	l.mu.Lock()
	defer l.mu.Unlock()
	without := func(r slog.Record) bool { return !strings.Contains(r.Message, text) }
	return slices.DeleteFunc(slices.Clone(l.lines), without)
}

// However many messages wait, and however slow the handler is, each message comes once: status
// messages of the server displace none.
func TestConsume_slowHandler_losesNothing(t *testing.T) {
	t.Parallel()
	const n, prefetch = 3000, 20
	b, _ := setup(t, 2*n, false)
	b.publish(t, numberedEvents(n)...)
	log := &recordLog{level: slog.LevelWarn}
	conn, err := stream.Connect(stream.Options{URL: b.nats.URL, Name: t.Name(), Logger: slog.New(log)})
	testkit.Must(t, err)
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	times := map[int64]uint64{}
	take := func(m stream.Message) error {
		if times[m.ID] = max(times[m.ID], m.Delivered); len(times)%(3*prefetch) == 0 {
			<-time.After(5 * time.Millisecond) // gives the requested messages time to arrive
		}
		if len(times) == n {
			cancel()
		}
		return m.Ack()
	}
	// if the server is not heard for 2 s on a busy machine, the consumer is opened again, as a
	// processor does
	lost := 0
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
	if warnings := log.containing(""); len(warnings) > 0 {
		t.Errorf("the connection warns: %v", warnings)
	}
}

// Messages that were fetched but not handled are requeued when Consume ends, so that they need not
// wait for AckWait.
func TestConsume_stop_requeuesPrefetched(t *testing.T) {
	t.Parallel()
	const n = 1000
	b, _ := setup(t, 2*n, false)
	consumer, err := b.conn.JetStream().Consumer(t.Context(), stream.EventsStream, stream.ProcessorConsumer)
	testkit.Must(t, err)
	c := consumer.CachedInfo().Config
	c.AckWait = time.Hour
	testkit.Must(t, errOf(b.conn.JetStream().UpdateConsumer(t.Context(), stream.EventsStream, c)))
	b.publish(t, numberedEvents(n)...)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		done <- b.conn.Consume(ctx, n, func(m stream.Message) error {
			<-ctx.Done()
			return m.Requeue(0)
		}, func(err error) { t.Error(err) })
	}()
	testkit.Eventually(t, waitTime, func() error {
		info, err := consumer.Info(t.Context())
		if err == nil && info.NumAckPending < n {
			err = fmt.Errorf("%d of %d messages are delivered", info.NumAckPending, n)
		}
		return err
	})
	cancel()
	testkit.Must(t, <-done)
	if got := b.consumeAndAck(t, n); len(got) != n {
		t.Errorf("%d of %d were requeued", len(got), n)
	}
}

// evenIDs returns the even ids.
func evenIDs(_ context.Context, ids []int64) ([]int64, error) {
	return slices.DeleteFunc(ids, func(id int64) bool { return id%2 > 0 }), nil
}

// eventIDs returns the event ids of a stream's messages, in order.
func (b *testBundle) eventIDs(t *testing.T, name string) (ids []string) {
	t.Helper()
	s, err := b.conn.JetStream().Stream(t.Context(), name)
	testkit.Must(t, err)
	for i := range s.CachedInfo().State.LastSeq {
		if m, err := s.GetMsg(t.Context(), i+1); err == nil {
			ids = append(ids, m.Header.Get("Postern-Id"))
		}
	}
	return ids
}

// Erased messages are no longer in the stream, however many there are. All others stay, the
// processors have no pending message, and a missing message is no error.
func TestEraseMessages_erasesOnlySelected(t *testing.T) {
	t.Parallel()
	const n = 2501
	b, _ := setup(t, 2*n, false)
	evs := numberedEvents(n)
	for range 2 {
		b.publish(t, evs...)
	}
	var want []string
	gone := int64(0)
	for range 2 {
		for _, e := range evs {
			if e.ID%2 > 0 {
				want = append(want, fmt.Sprint(e.ID))
			} else {
				gone++
			}
		}
	}
	for _, expected := range []int64{gone, 0} {
		deleted, err := b.conn.EraseMessages(t.Context(), stream.EventsStream, stream.EraseFilter{Events: evenIDs})
		if err != nil || deleted != expected {
			t.Fatalf("%d are erased, want %d: %v", deleted, expected, err)
		}
	}
	testkit.Equal(t, "events", want, b.eventIDs(t, stream.EventsStream))
	for _, name := range []string{stream.ReplaysStream, stream.ChangesStream} { // no stream, and an empty one
		if deleted, err := b.conn.EraseMessages(t.Context(), name, stream.EraseFilter{Events: evenIDs}); err != nil ||
			deleted != 0 {
			t.Errorf("%s: %d, %v", name, deleted, err)
		}
	}
}

// Two blocks of the server are filled: one of the erased messages is in a closed block, one in the
// open block.
func TestEraseMessages_serverFiles_areOverwritten(t *testing.T) {
	t.Parallel()
	b, _ := setup(t, 1000, false)
	const block = 8 << 20
	evs := numberedEvents(2*block/stream.MaxBody - 8)
	for i := range evs {
		evs[i].Body = bytes.Repeat([]byte(fmt.Sprintf("body-of-%03d ", evs[i].ID)), stream.MaxBody/16)
	}
	for few := range slices.Chunk(evs, 4) { // a slow server drops a connection with all of them at once
		b.publish(t, few...)
	}
	first, last, unerased := evs[0].ID, evs[len(evs)-1].ID, evs[1].ID
	text := func(id int64) string { return fmt.Sprintf("body-of-%03d ", id) }
	testkit.Eventually(t, waitTime, func() error { // the server writes a moment after it has acknowledged
		closed, open := b.nats.FilesContaining(t, text(first)), b.nats.FilesContaining(t, text(last))
		if len(closed) != 1 || len(open) != 1 || closed[0] == open[0] {
			return fmt.Errorf("the first message is in %v, the last in %v, want two blocks", closed, open)
		}
		return nil
	})
	ends := func(_ context.Context, ids []int64) ([]int64, error) {
		return slices.DeleteFunc(ids, func(id int64) bool { return id != first && id != last }), nil
	}
	if n, err := b.conn.EraseMessages(t.Context(), stream.EventsStream, stream.EraseFilter{Events: ends}); err != nil ||
		n != 2 {
		t.Fatal(n, err)
	}
	for _, id := range []int64{first, last} {
		if files := b.nats.FilesContaining(t, text(id)); len(files) > 0 {
			t.Errorf("the body of event %d is still in %v", id, files)
		}
	}
	if files := b.nats.FilesContaining(t, text(unerased)); len(files) != 1 {
		t.Errorf("the body of event %d is in %v, want one block", unerased, files)
	}
}

// Erasing a pending message that is the last of the stream leaves no lag.
func TestEraseMessages_pendingMessage_leavesNoLag(t *testing.T) {
	t.Parallel()
	b, _ := setup(t, 1000, false)
	b.publish(t, numberedEvents(10)...)
	all := func(_ context.Context, ids []int64) ([]int64, error) { return ids, nil }
	if deleted, err := b.conn.EraseMessages(t.Context(), stream.EventsStream,
		stream.EraseFilter{Events: all}); err != nil || deleted != 10 {
		t.Fatal(deleted, err)
	}
	stop := b.consume(t)
	b.waitAcknowledged(t, true)
	// the lag may be unknown before the consumer is open
	if err := stop(); err != nil && !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// Changes are erased one by one if the filter selects them; an error of the filter ends the call.
func TestEraseMessages_changes_usesChangeFilter(t *testing.T) {
	t.Parallel()
	b, _ := setup(t, 1000, false)
	for i := range int64(6) {
		b.conn.PublishChanges(t.Context(),
			[]stream.Change{{Source: "s", ObjectType: "t", Batch: i, Event: i, Envelope: fmt.Append(nil, i)}})
	}
	above := func(_ context.Context, envelope []byte) (bool, error) { return string(envelope) > "0", nil }
	if deleted, err := b.conn.EraseMessages(t.Context(), stream.ChangesStream,
		stream.EraseFilter{Events: evenIDs, Change: above}); err != nil || deleted != 2 {
		t.Error(deleted, err)
	}
	testkit.Equal(t, "changes", []string{"0", "1", "3", "5"}, b.eventIDs(t, stream.ChangesStream))
	broken := errors.New("broken")
	fails := stream.EraseFilter{Events: func(context.Context, []int64) ([]int64, error) { return nil, broken }}
	if _, err := b.conn.EraseMessages(t.Context(), stream.ChangesStream, fails); !errors.Is(err, broken) {
		t.Error(err)
	}
}

// published publishes an event and a change, and returns their sequences; 0 without a response.
func (b *testBundle) published(t *testing.T) (ofEvent, ofChange uint64) {
	t.Helper()
	return b.conn.PublishEvents(t.Context(), []stream.Event{event(1)})[0].Sequence, b.conn.PublishChanges(t.Context(),
		[]stream.Change{{Source: "s", ObjectType: "t", Envelope: []byte("{}")}})[0].Sequence
}

func (b *testBundle) wantPublished(t *testing.T, event, change uint64) {
	t.Helper()
	if e, c := b.published(t); e != event || c != change {
		t.Errorf("published as event %d and change %d, want %d and %d", e, c, event, change)
	}
}

// A server that creates a stream while it removes the files of the deleted one gives it the old
// messages. The events stream is created again without them, because the log has the events.
func TestEnsure_newEventsStreamWithOldMessages_isRecreated(t *testing.T) {
	t.Parallel()
	b, _ := setup(t, 100, false)
	b.wantPublished(t, 1, 1)
	b.nats.DeleteStreamMetadata(t, stream.EventsStream)
	testkit.Eventually(t, waitTime, func() error { return b.conn.Ensure(t.Context(), b.limits) })
	b.wantPublished(t, 1, 2)
}

// A changes stream keeps the messages that the server has found again; this is logged once.
func TestEnsure_newChangesStreamWithOldMessages_isKept(t *testing.T) {
	t.Parallel()
	b, _ := setup(t, 100, false)
	b.wantPublished(t, 1, 1)
	b.nats.DeleteStreamMetadata(t, stream.ChangesStream)
	var said bytes.Buffer
	other, err := stream.Connect(stream.Options{URL: b.nats.URL, Name: t.Name(),
		Logger: slog.New(slog.NewTextHandler(&said, nil))})
	testkit.Must(t, err)
	defer other.Close()
	for _, c := range []*stream.Conn{b.conn, other} {
		testkit.Eventually(t, waitTime, func() error { return requestAccount(t, c) })
	}
	testkit.Must(t, other.Ensure(t.Context(), b.limits))
	b.wantPublished(t, 2, 2)
	testkit.Must(t, other.Ensure(t.Context(), b.limits))
	b.wantPublished(t, 3, 3)
	other.Close()
	if log := said.String(); strings.Count(log, "nats stream rm POSTERN_CHANGES") != 1 ||
		strings.Contains(log, "deleted and created again") {
		t.Error(log)
	}
}

// requestAccount makes a request to the server, which fails on a lost connection. Connected does
// not show the loss until the client has noticed it.
func requestAccount(t *testing.T, c *stream.Conn) error {
	_, err := c.JetStream().AccountInfo(t.Context())
	return err
}

// A stream that existed a moment ago is created again after a delay, by this process or by another
// one meanwhile.
func TestEnsure_deletedStream_isRecreated(t *testing.T) {
	t.Parallel()
	for _, meanwhile := range []bool{false, true} {
		b, _ := setup(t, 100, false)
		b.wantPublished(t, 1, 1)
		js := b.conn.JetStream()
		testkit.Must(t, js.DeleteStream(t.Context(), stream.ChangesStream))
		ensured := make(chan error, 1)
		go func() { ensured <- b.conn.Ensure(t.Context(), b.limits) }()
		if meanwhile {
			testkit.Must(t, errOf(js.CreateStream(t.Context(), jetstream.StreamConfig{Name: stream.ChangesStream,
				Subjects: []string{stream.ChangesSubject + ".>"}, Storage: jetstream.FileStorage})))
		}
		testkit.Must(t, <-ensured)
		b.wantPublished(t, 2, 1)
		if s, err := js.Stream(t.Context(), stream.ChangesStream); err != nil || s.CachedInfo().Config.MaxMsgs != 100 {
			t.Errorf("%v: after another process created it", err)
		}
	}
}
