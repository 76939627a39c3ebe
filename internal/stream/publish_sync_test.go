package stream_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"pgregory.net/rapid"

	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/testkit"
)

func numberedEvents(n int) []stream.Event {
	evs := make([]stream.Event, n)
	for i := range evs {
		evs[i] = event(i)
	}
	return evs
}

// Every message has its own Ack, in order, however many there are.
func TestPublishEvents_manyMessages_eachHasAck(t *testing.T) {
	t.Parallel()
	b, _ := setup(t, 5000, false)
	const n = 3*stream.InFlight + 7
	subscribed := b.conn.JetStream().Conn().NumSubscriptions()
	for i, ack := range b.conn.PublishEvents(t.Context(), numberedEvents(n)) {
		if ack.Err != nil || ack.Sequence != uint64(i+1) {
			t.Fatalf("message %d: sequence %d, %v", i, ack.Sequence, ack.Err)
		}
	}
	if acks := b.conn.PublishEvents(t.Context(), nil); len(acks) != 0 {
		t.Errorf("%d responses without a message", len(acks))
	}
	if now := b.conn.JetStream().Conn().NumSubscriptions(); now != subscribed {
		t.Errorf("%d subscriptions, %d before", now, subscribed)
	}
}

// A message that the stream rejects fails alone, with the stream's error.
func TestPublishEvents_rejectedMessage_hasError(t *testing.T) {
	t.Parallel()
	b, _ := setup(t, 1000, false)
	js := b.conn.JetStream()
	s, err := js.Stream(t.Context(), stream.EventsStream)
	testkit.Must(t, err)
	c := s.CachedInfo().Config
	c.MaxMsgs, c.Discard = 2, jetstream.DiscardNew
	testkit.Must(t, errOf(js.UpdateStream(t.Context(), c)))
	for i, ack := range b.conn.PublishEvents(t.Context(), numberedEvents(4)) {
		var apiErr *jetstream.APIError
		if ok := i < 2; ok != (ack.Err == nil) || ok != (ack.Sequence > 0) || !ok && !errors.As(ack.Err, &apiErr) {
			t.Errorf("message %d: sequence %d, %v", i, ack.Sequence, ack.Err)
		}
	}
	testkit.Must(t, js.DeleteStream(t.Context(), stream.EventsStream))
	for i, ack := range b.conn.PublishEvents(t.Context(), numberedEvents(2)) {
		if !stream.IsNotFound(ack.Err) {
			t.Errorf("message %d without a stream: %v", i, ack.Err)
		}
	}
}

// Messages without a response fail: at once after a lost connection or the end of ctx, otherwise
// after the timeout.
func TestPublishEvents_noResponse_fails(t *testing.T) {
	t.Parallel()
	silent := func(t *testing.T, proxied bool) (*testBundle, *testkit.FaultProxy) {
		b, proxy := setup(t, 1000, proxied)
		testkit.Must(t, b.conn.JetStream().DeleteStream(t.Context(), stream.EventsStream))
		b.unanswered = subscribeEvents(t, b)
		return b, proxy
	}
	t.Run("in time", func(t *testing.T) {
		t.Parallel()
		b, _ := silent(t, false)
		began := time.Now()
		for i, ack := range b.conn.PublishEvents(t.Context(), numberedEvents(3)) {
			if ack.Err == nil {
				t.Errorf("message %d has a response", i)
			}
		}
		if elapsed := time.Since(began); elapsed < 4*time.Second {
			t.Errorf("failed after %s", elapsed)
		}
	})
	t.Run("ctx", func(t *testing.T) {
		t.Parallel()
		b, _ := silent(t, false)
		ctx, cancel := context.WithCancelCause(t.Context())
		done := make(chan []stream.Ack, 1)
		go func() { done <- b.conn.PublishEvents(ctx, numberedEvents(1)) }()
		<-b.unanswered
		why := errors.New("enough")
		cancel(why)
		if acks := <-done; !errors.Is(acks[0].Err, why) {
			t.Error(acks[0].Err)
		}
	})
	t.Run("lost", func(t *testing.T) {
		t.Parallel()
		b, proxy := silent(t, true)
		began, done := time.Now(), make(chan []stream.Ack, 1)
		go func() { done <- b.conn.PublishEvents(t.Context(), numberedEvents(1)) }()
		<-b.unanswered
		proxy.Cut()
		proxy.Restore()
		acks := <-done
		// under a second on an idle machine
		if elapsed := time.Since(began); acks[0].Err == nil || elapsed > 4*time.Second {
			t.Errorf("returned after %s: %v", elapsed, acks[0].Err)
		}
	})
}

// The fast path of readAck reads what the JSON decoder reads.
func TestReadAck_fastPath_equalsDecoder(t *testing.T) {
	t.Parallel()
	for response, ok := range map[string]bool{
		`{"stream":"POSTERN_EVENTS","seq":7}`:     true,
		`{"stream":"S","seq":7,"duplicate":true}`: true,
		`{"stream":"S","domain":"d","seq":7}`:     true,
		`{"stream":"S\",\"seq\":9","seq":7}`:      true,
		` {"seq":7}`:                              true,
		`{"stream":"S","seq":0}`:                  false,
		`{"stream":"S","seq":-7}`:                 false,
		`{"stream":"S"}`:                          false,
		`{"stream":"S","seq":7`:                   false,
		`{"error":{"code":400,"err_code":10077,"description":"maximum messages exceeded"}}`:  false,
		`{"error":{"code":503,"description":"x"},"stream":"S","seq":7}`:                      false,
		`{"stream":"S","seq":7,"error":{"code":503,"err_code":10077,"description":"maxed"}}`: false,
		`+OK`: false,
		``:    false,
	} {
		ack := stream.ReadAck(&nats.Msg{Data: []byte(response)})
		if ok != (ack.Err == nil) || ok && ack.Sequence != 7 || !ok && ack.Sequence != 0 {
			t.Errorf("%s: %+v", response, ack)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		want := struct {
			Stream   string `json:"stream"`
			Domain   string `json:"domain,omitempty"`
			Sequence uint64 `json:"seq"`
		}{rapid.String().Draw(t, "stream"), rapid.SampledFrom([]string{"", "hub"}).Draw(t, "domain"),
			rapid.Uint64Min(1).Draw(t, "seq")}
		text, err := json.Marshal(want)
		testkit.Must(t, err)
		if ack := stream.ReadAck(&nats.Msg{Data: text}); ack != (stream.Ack{Sequence: want.Sequence}) {
			t.Fatalf("%s: %v", text, fmt.Sprint(ack))
		}
	})
}

// subscribeEvents receives all messages for the events stream as they were sent, with their reply
// subjects.
func subscribeEvents(t *testing.T, b *testBundle) <-chan *nats.Msg {
	t.Helper()
	nc, err := nats.Connect(b.nats.URL)
	testkit.Must(t, err)
	t.Cleanup(nc.Close)
	received := make(chan *nats.Msg, 10_000)
	testkit.Must(t, errOf(nc.ChanSubscribe("postern.events.>", received)))
	testkit.Must(t, nc.Flush())
	return received
}

// nextPublished receives n messages, and returns how many of them request a response.
func nextPublished(t *testing.T, received <-chan *nats.Msg, n int) (msgs []*nats.Msg, requesting int) {
	t.Helper()
	for range n {
		select {
		case m := <-received:
			msgs = append(msgs, m)
			if m.Reply != "" {
				requesting++
			}
		case <-time.After(waitTime):
			t.Fatalf("%d messages received, want %d", len(msgs), n)
		}
	}
	return msgs, requesting
}

// Events that are offered together are published in groups, in order. Each message describes its
// event, without data of an earlier event in the same memory.
func TestPublisher_offeredTogether_goInGroups(t *testing.T) {
	t.Parallel()
	b, _ := setup(t, 100_000, false)
	received := subscribeEvents(t, b)
	b.run(t)
	const n = 2*stream.MaxGroupMessages + 22
	for round := range 3 {
		evs := make([]stream.Event, n)
		for i := range evs {
			evs[i] = event(round*n + i)
			evs[i].Body = fmt.Appendf(nil, "%d of round %d", i, round)
			if round%2 == 0 { // has values that the next event in its memory lacks
				evs[i].ObjectType, evs[i].ObjectID, evs[i].Account, evs[i].APIVersion, evs[i].Retry = "customer",
					fmt.Sprint("cus_", i), "acct", "v1", true
				evs[i].BodyInLog, evs[i].Index, evs[i].Trace, evs[i].OccurredAt = i%3 == 0, i, "00-a-b-01",
					time.Unix(2, 0)
			}
		}
		b.Offer(evs...)
		msgs, requesting := nextPublished(t, received, n)
		if requesting != 3 {
			t.Errorf("%d responses requested, want 3", requesting)
		}
		for i, m := range msgs {
			want, _, err := stream.RoundTrip(evs[i])
			testkit.Must(t, err)
			if diff := cmp.Diff([]any{want.Subject, want.Header, string(want.Data)},
				[]any{m.Subject, m.Header, string(m.Data)}); diff != "" {
				t.Fatalf("message %d of round %d (-want +got):\n%s", i, round, diff)
			}
		}
		b.waitPublishCount(t, "acknowledged", (round+1)*n)
	}
}

// The bodies of a group are bounded in size, and a larger body is published alone.
func TestPublisher_largeBodies_goInSmallGroups(t *testing.T) {
	t.Parallel()
	b, _ := setup(t, 100_000, false)
	received := subscribeEvents(t, b)
	b.run(t)
	const n, each = 10, 2*stream.MaxGroupBytes/5 + 1 // two per group
	evs := make([]stream.Event, n)
	for i := range evs {
		evs[i] = event(i)
		evs[i].Body = bytes.Repeat([]byte{'x'}, each)
	}
	b.Offer(evs...)
	if _, requesting := nextPublished(t, received, n); requesting != n/2 {
		t.Errorf("%d responses requested, want %d", requesting, n/2)
	}
	b.waitPublishCount(t, "acknowledged", n)
}

// Single events are published no more often than publishInterval allows.
func TestPublisher_singleEvents_respectInterval(t *testing.T) {
	t.Parallel()
	b, _ := setup(t, 100_000, false)
	received := subscribeEvents(t, b)
	b.run(t)
	began, requested := time.Now(), 0
	const n = 50
	for i := range n {
		b.Offer(event(i))
		_, requesting := nextPublished(t, received, 1)
		requested += requesting
	}
	if most := int(time.Since(began)/stream.PublishInterval) + 1; requested > most {
		t.Errorf("%d responses requested within %s, want at most %d", requested, time.Since(began), most)
	}
	b.waitPublishCount(t, "acknowledged", n)
}
