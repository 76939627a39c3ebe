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

func numbered(n int) []stream.Event {
	evs := make([]stream.Event, n)
	for i := range evs {
		evs[i] = event(i)
	}
	return evs
}

// Every message has its own answer, in order, however many there are.
func TestEachMessageIsAnswered(t *testing.T) {
	t.Parallel()
	b, _ := setup(t, 5000, false)
	const n = 3*stream.InFlight + 7
	subscribed := b.conn.JetStream().Conn().NumSubscriptions()
	for i, ack := range b.conn.PublishEvents(t.Context(), numbered(n)) {
		if ack.Err != nil || ack.Sequence != uint64(i+1) {
			t.Fatalf("message %d: sequence %d, %v", i, ack.Sequence, ack.Err)
		}
	}
	if acks := b.conn.PublishEvents(t.Context(), nil); len(acks) != 0 {
		t.Errorf("%d answers to nothing", len(acks))
	}
	if now := b.conn.JetStream().Conn().NumSubscriptions(); now != subscribed {
		t.Errorf("%d subscriptions, there were %d", now, subscribed)
	}
}

// What the stream refuses fails alone, and with the stream's words.
func TestRefusalsAreTold(t *testing.T) {
	t.Parallel()
	b, _ := setup(t, 1000, false)
	js := b.conn.JetStream()
	s, err := js.Stream(t.Context(), stream.EventsStream)
	if err != nil {
		t.Fatal(err)
	}
	c := s.CachedInfo().Config
	c.MaxMsgs, c.Discard = 2, jetstream.DiscardNew
	if _, err := js.UpdateStream(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	for i, ack := range b.conn.PublishEvents(t.Context(), numbered(4)) {
		var refused *jetstream.APIError
		if ok := i < 2; ok != (ack.Err == nil) || ok != (ack.Sequence > 0) || !ok && !errors.As(ack.Err, &refused) {
			t.Errorf("message %d: sequence %d, %v", i, ack.Sequence, ack.Err)
		}
	}
	if err := js.DeleteStream(t.Context(), stream.EventsStream); err != nil {
		t.Fatal(err)
	}
	for i, ack := range b.conn.PublishEvents(t.Context(), numbered(2)) {
		if !stream.Gone(ack.Err) {
			t.Errorf("message %d without a stream: %v", i, ack.Err)
		}
	}
}

// Messages that are never answered fail: at once where the connection was lost or ctx ended, else after the time for an answer.
func TestNoAnswer(t *testing.T) {
	t.Parallel()
	silent := func(t *testing.T, proxied bool) (*testBundle, *testkit.FaultProxy) {
		b, proxy := setup(t, 1000, proxied)
		if err := b.conn.JetStream().DeleteStream(t.Context(), stream.EventsStream); err != nil {
			t.Fatal(err)
		}
		other, err := nats.Connect(b.nats.URL)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(other.Close)
		heard := make(chan *nats.Msg, 100)
		if _, err := other.ChanSubscribe("postern.events.>", heard); err != nil {
			t.Fatal(err)
		}
		if err := other.Flush(); err != nil {
			t.Fatal(err)
		}
		b.heard = heard
		return b, proxy
	}
	t.Run("in time", func(t *testing.T) {
		t.Parallel()
		b, _ := silent(t, false)
		began := time.Now()
		for i, ack := range b.conn.PublishEvents(t.Context(), numbered(3)) {
			if ack.Err == nil {
				t.Errorf("message %d has an answer", i)
			}
		}
		if took := time.Since(began); took < 4*time.Second {
			t.Errorf("given up after %s", took)
		}
	})
	t.Run("ctx", func(t *testing.T) {
		t.Parallel()
		b, _ := silent(t, false)
		ctx, cancel := context.WithCancelCause(t.Context())
		done := make(chan []stream.Ack, 1)
		go func() { done <- b.conn.PublishEvents(ctx, numbered(1)) }()
		<-b.heard
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
		go func() { done <- b.conn.PublishEvents(t.Context(), numbered(1)) }()
		<-b.heard
		proxy.Cut()
		proxy.Restore()
		acks := <-done
		if took := time.Since(began); acks[0].Err == nil || took > 4*time.Second { // under a second on an idle machine
			t.Errorf("told after %s: %v", took, acks[0].Err)
		}
	})
}

// The short way of reading an answer reads what the decoder reads.
func TestReadAck(t *testing.T) {
	t.Parallel()
	for answer, ok := range map[string]bool{
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
		ack := stream.ReadAck(&nats.Msg{Data: []byte(answer)})
		if ok != (ack.Err == nil) || ok && ack.Sequence != 7 || !ok && ack.Sequence != 0 {
			t.Errorf("%s: %+v", answer, ack)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		want := struct {
			Stream   string `json:"stream"`
			Domain   string `json:"domain,omitempty"`
			Sequence uint64 `json:"seq"`
		}{rapid.String().Draw(t, "stream"), rapid.SampledFrom([]string{"", "hub"}).Draw(t, "domain"), rapid.Uint64Min(1).Draw(t, "seq")}
		text, err := json.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		if ack := stream.ReadAck(&nats.Msg{Data: text}); ack != (stream.Ack{Sequence: want.Sequence}) {
			t.Fatalf("%s: %v", text, fmt.Sprint(ack))
		}
	})
}

// overhear gives all messages of the feed of events as they were sent, reply and all.
func overhear(t *testing.T, b *testBundle) <-chan *nats.Msg {
	t.Helper()
	nc, err := nats.Connect(b.nats.URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	heard := make(chan *nats.Msg, 10_000)
	if _, err := nc.ChanSubscribe("postern.events.>", heard); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	return heard
}

// next takes so many messages, and says how many of them ask for an answer.
func next(t *testing.T, heard <-chan *nats.Msg, n int) (msgs []*nats.Msg, asking int) {
	t.Helper()
	for range n {
		select {
		case m := <-heard:
			msgs = append(msgs, m)
			if m.Reply != "" {
				asking++
			}
		case <-time.After(patience):
			t.Fatalf("%d messages came, want %d", len(msgs), n)
		}
	}
	return msgs, asking
}

// What is offered together goes out in runs, in its order, and each message says what its event does and nothing of one that had its memory before.
func TestPublishedTogether(t *testing.T) {
	t.Parallel()
	b, _ := setup(t, 100_000, false)
	heard := overhear(t, b)
	b.run(t)
	const n = 2*stream.LongestRun + 22
	for round := range 3 {
		evs := make([]stream.Event, n)
		for i := range evs {
			evs[i] = event(round*n + i)
			evs[i].Body = fmt.Appendf(nil, "%d of round %d", i, round)
			if round%2 == 0 { // has what the next in its memory lacks
				evs[i].ObjectType, evs[i].ObjectID, evs[i].Account, evs[i].APIVersion, evs[i].Retry = "customer", fmt.Sprint("cus_", i), "acct", "v1", true
				evs[i].BodyInLog, evs[i].Index, evs[i].Trace, evs[i].OccurredAt = i%3 == 0, i, "00-a-b-01", time.Unix(2, 0)
			}
		}
		b.Offer(evs...)
		msgs, asking := next(t, heard, n)
		if asking != 3 {
			t.Errorf("%d answers asked for, want 3", asking)
		}
		for i, m := range msgs {
			want, _, err := stream.RoundTrip(evs[i])
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff([]any{want.Subject, want.Header, string(want.Data)}, []any{m.Subject, m.Header, string(m.Data)}); diff != "" {
				t.Fatalf("message %d of round %d (-want +got):\n%s", i, round, diff)
			}
		}
		b.until(t, "acknowledged", (round+1)*n)
	}
}

// A run is no larger than its bytes allow, and a body that is larger goes alone.
func TestLargeBodiesGoInShortRuns(t *testing.T) {
	t.Parallel()
	b, _ := setup(t, 100_000, false)
	heard := overhear(t, b)
	b.run(t)
	const n, each = 10, 2*stream.LargestRun/5 + 1 // two to a run
	evs := make([]stream.Event, n)
	for i := range evs {
		evs[i] = event(i)
		evs[i].Body = bytes.Repeat([]byte{'x'}, each)
	}
	b.Offer(evs...)
	if _, asking := next(t, heard, n); asking != n/2 {
		t.Errorf("%d answers asked for, want %d", asking, n/2)
	}
	b.until(t, "acknowledged", n)
}

// Events that come one by one go out no more often than at the publisher's pace.
func TestPublishedAtItsPace(t *testing.T) {
	t.Parallel()
	b, _ := setup(t, 100_000, false)
	heard := overhear(t, b)
	b.run(t)
	began, asked := time.Now(), 0
	const n = 50
	for i := range n {
		b.Offer(event(i))
		_, asking := next(t, heard, 1)
		asked += asking
	}
	if most := int(time.Since(began)/stream.Pace) + 1; asked > most {
		t.Errorf("%d answers asked for within %s, want at most %d", asked, time.Since(began), most)
	}
	b.until(t, "acknowledged", n)
}
