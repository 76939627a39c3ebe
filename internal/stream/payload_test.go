package stream_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/testkit"
)

// small connects to a server that takes messages of up to so many bytes.
func small(t *testing.T, maxPayload int32) *testBundle {
	t.Helper()
	b := &testBundle{nats: testkit.JetStreamMaxPayload(t, maxPayload), limits: stream.DefaultLimits, registry: prometheus.NewRegistry()}
	b.limits.MaxBytes = 64 << 20
	log := slog.New(slog.DiscardHandler)
	var err error
	if b.conn, err = stream.Connect(stream.Options{URL: b.nats.URL, Name: t.Name(), Logger: log}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.conn.Close)
	testkit.Eventually(t, patience, func() error { return b.conn.Ensure(t.Context(), b.limits) })
	if b.Publisher, err = stream.NewPublisher(b.conn, b.limits, log, b.registry); err != nil {
		t.Fatal(err)
	}
	return b
}

// sized is an event of long names, which cost three times their bytes in headers, and a body of so many bytes.
func sized(n, body int) stream.Event {
	return stream.Event{Source: "s", Stored: provider.Stored{ID: int64(n), Key: strings.Repeat("é", 4000), Type: "t", ReceivedAt: time.Unix(1, 0),
		Body: bytes.Repeat([]byte("x"), body)}}
}

// take reads n messages and acknowledges them.
func (b *testBundle) take(t *testing.T, n int) map[int64]stream.Event {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	got := map[int64]stream.Event{}
	err := b.conn.Consume(ctx, n, func(m stream.Message) error {
		if got[m.ID] = m.Event; len(got) == n {
			cancel()
		}
		return m.Ack()
	}, func(err error) { t.Error(err) })
	if err != nil || len(got) != n {
		t.Fatalf("%d of %d messages were read: %v", len(got), n, err)
	}
	return got
}

// Whatever the server's max_payload, every event travels: with its body up to what is left beside the longest names, as a claim
// check above it, and whether published at once or offered.
func TestBodiesFitTheServer(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		maxPayload int32
		largest    int
	}{
		"the server's default": {0, stream.MaxBody},
		"128 KiB":              {128 << 10, 96 << 10},
		"headers only":         {32 << 10, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := small(t, tc.maxPayload)
			if n := b.conn.LargestBody(); n != tc.largest {
				t.Fatalf("the largest body is %d bytes, want %d", n, tc.largest)
			}
			b.run(t)
			bodies := []int{0, tc.largest, tc.largest + 1, stream.MaxBody, stream.MaxBody + 1}
			for i, n := range bodies {
				for j, ack := range b.conn.PublishEvents(t.Context(), []stream.Event{sized(i, n)}) {
					if ack.Err != nil {
						t.Errorf("event %d of %d bytes: %v", j, n, ack.Err)
					}
				}
				b.Offer(sized(100+i, n))
			}
			b.until(t, "acknowledged", len(bodies))
			for id, e := range b.take(t, 2*len(bodies)) {
				n := bodies[id%100]
				if claim := n > tc.largest; e.BodyInLog != claim || !claim && len(e.Body) != n {
					t.Errorf("event %d of %d bytes came with %d, a claim check: %v", id, n, len(e.Body), e.BodyInLog)
				}
			}
		})
	}
}

// A change is found at its sequence by its batch only: not another's, not after a wipe, not where the stream is gone.
func TestHasChange(t *testing.T) {
	t.Parallel()
	b, _ := setup(t, 1000, false)
	acks := b.conn.PublishChanges(t.Context(), []stream.Change{
		{Source: "s", ObjectType: "t", Batch: 7, Envelope: []byte("{}")}, {Source: "s", ObjectType: "t", Batch: 8, Envelope: []byte("{}")}})
	has := func(sequence uint64, batch int64) (has bool) {
		t.Helper()
		testkit.Eventually(t, patience, func() (err error) {
			has, err = b.conn.HasChange(t.Context(), sequence, batch)
			return err
		})
		return has
	}
	for i, batch := range []int64{7, 8} {
		if acks[i].Err != nil {
			t.Fatal(acks[i].Err)
		}
		if !has(acks[i].Sequence, batch) || has(acks[i].Sequence, batch+1) || has(acks[i].Sequence+2, batch) {
			t.Errorf("batch %d is not found at %d, or elsewhere too", batch, acks[i].Sequence)
		}
	}
	b.nats.Wipe(t)
	if has(acks[0].Sequence, 7) {
		t.Error("a change is found in a stream that is gone")
	}
	testkit.Eventually(t, patience, func() error { return b.conn.Ensure(t.Context(), b.limits) })
	if has(acks[0].Sequence, 7) {
		t.Error("a change is found in an empty stream")
	}
}
