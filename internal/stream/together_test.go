package stream_test

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"

	"github.com/postern-gateway/postern/internal/stream"
)

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
