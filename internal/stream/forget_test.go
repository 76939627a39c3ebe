package stream_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/testkit"
)

// even are the events with even ids.
func even(_ context.Context, ids []int64) ([]int64, error) {
	return slices.DeleteFunc(ids, func(id int64) bool { return id%2 > 0 }), nil
}

// held are the ids of a stream's messages, in order.
func (b *testBundle) held(t *testing.T, name string) (ids []string) {
	t.Helper()
	s, err := b.conn.JetStream().Stream(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	for i := range s.CachedInfo().State.LastSeq {
		if m, err := s.GetMsg(t.Context(), i+1); err == nil {
			ids = append(ids, m.Header.Get("Postern-Id"))
		}
	}
	return ids
}

// What is forgotten is in the stream no more, however many messages there are; all else stays, the processors see nothing that waits, and what is gone already is no error.
func TestForget(t *testing.T) {
	t.Parallel()
	const n = 2501
	b, _ := setup(t, 2*n, false)
	evs := numbered(n)
	for range 2 {
		for i, ack := range b.conn.PublishEvents(t.Context(), evs) {
			if ack.Err != nil {
				t.Fatalf("message %d: %v", i, ack.Err)
			}
		}
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
		deleted, err := b.conn.Forget(t.Context(), stream.EventsStream, stream.Forgotten{Events: even})
		if err != nil || deleted != expected {
			t.Fatalf("%d are deleted, want %d: %v", deleted, expected, err)
		}
	}
	if diff := cmp.Diff(want, b.held(t, stream.EventsStream)); diff != "" {
		t.Error(diff)
	}
	for _, name := range []string{stream.ReplaysStream, stream.ChangesStream} { // none, and an empty one
		if deleted, err := b.conn.Forget(t.Context(), name, stream.Forgotten{Events: even}); err != nil || deleted != 0 {
			t.Errorf("%s: %d, %v", name, deleted, err)
		}
	}
}

// Two blocks are filled: one of the erased messages is in a closed block, one in the open block.
func TestForget_overwritesBodiesInTheFilesOfTheServer(t *testing.T) {
	t.Parallel()
	b, _ := setup(t, 1000, false)
	const block = 8 << 20
	evs := numbered(2*block/stream.MaxBody - 8)
	for i := range evs {
		evs[i].Body = bytes.Repeat([]byte(fmt.Sprintf("body-of-%03d ", evs[i].ID)), stream.MaxBody/16)
	}
	for i, ack := range b.conn.PublishEvents(t.Context(), evs) {
		if ack.Err != nil {
			t.Fatalf("message %d: %v", i, ack.Err)
		}
	}
	first, last, kept := evs[0].ID, evs[len(evs)-1].ID, evs[1].ID
	text := func(id int64) string { return fmt.Sprintf("body-of-%03d ", id) }
	testkit.Eventually(t, patience, func() error { // the server writes a moment after it has acknowledged
		closed, open := b.nats.FilesWith(t, text(first)), b.nats.FilesWith(t, text(last))
		if len(closed) != 1 || len(open) != 1 || closed[0] == open[0] {
			return fmt.Errorf("the first message is in %v, the last in %v, want two blocks", closed, open)
		}
		return nil
	})
	ends := func(_ context.Context, ids []int64) ([]int64, error) {
		return slices.DeleteFunc(ids, func(id int64) bool { return id != first && id != last }), nil
	}
	if n, err := b.conn.Forget(t.Context(), stream.EventsStream, stream.Forgotten{Events: ends}); err != nil || n != 2 {
		t.Fatal(n, err)
	}
	for _, id := range []int64{first, last} {
		if files := b.nats.FilesWith(t, text(id)); len(files) > 0 {
			t.Errorf("the body of event %d is still in %v", id, files)
		}
	}
	if files := b.nats.FilesWith(t, text(kept)); len(files) != 1 {
		t.Errorf("the body of event %d is in %v, want one block", kept, files)
	}
}

// A message that waited for the processors and was the stream's last leaves no lag behind.
func TestForgetWhatWaits(t *testing.T) {
	t.Parallel()
	b, _ := setup(t, 1000, false)
	evs := numbered(10)
	b.conn.PublishEvents(t.Context(), evs)
	all := func(_ context.Context, ids []int64) ([]int64, error) { return ids, nil }
	if deleted, err := b.conn.Forget(t.Context(), stream.EventsStream, stream.Forgotten{Events: all}); err != nil || deleted != 10 {
		t.Fatal(deleted, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- b.conn.Consume(ctx, 10, func(m stream.Message) error { return m.Ack() }, func(err error) { t.Error(err) })
	}()
	testkit.Eventually(t, time.Minute, func() error {
		lag, err := b.conn.Lag(t.Context(), true)
		if err == nil && (lag.Messages != 0 || lag.Span != 0 || lag.OldestAge != 0) {
			err = fmt.Errorf("%+v", lag)
		}
		return err
	})
	cancel()
	if err := <-done; err != nil && !errors.Is(err, context.Canceled) { // the lag may be none before the consumer is open
		t.Error(err)
	}
}

// Changes go one by one, as they are told of; trouble with that is trouble of the whole.
func TestForgetChanges(t *testing.T) {
	t.Parallel()
	b, _ := setup(t, 1000, false)
	for i := range int64(6) {
		b.conn.PublishChanges(t.Context(), []stream.Change{{Source: "s", ObjectType: "t", Batch: i, Event: i, Envelope: fmt.Append(nil, i)}})
	}
	above := func(_ context.Context, envelope []byte) (bool, error) { return string(envelope) > "0", nil }
	if deleted, err := b.conn.Forget(t.Context(), stream.ChangesStream, stream.Forgotten{Events: even, Change: above}); err != nil || deleted != 2 {
		t.Error(deleted, err)
	}
	if diff := cmp.Diff([]string{"0", "1", "3", "5"}, b.held(t, stream.ChangesStream)); diff != "" {
		t.Error(diff)
	}
	broken := errors.New("broken")
	fails := stream.Forgotten{Events: func(context.Context, []int64) ([]int64, error) { return nil, broken }}
	if _, err := b.conn.Forget(t.Context(), stream.ChangesStream, fails); !errors.Is(err, broken) {
		t.Error(err)
	}
}
