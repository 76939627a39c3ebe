package ingest_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/provider"
)

// A delivery that carries one key twice makes one event of it, and the second gets a duplicate's receipt.
func TestOneKeyTwiceInADelivery(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	a := b.post(t, "many", b.sign(t, "many", provider.Sample{Body: []byte("one\ntwo\none\ntwo\nthree\n")}))
	var list []receipt
	if err := json.Unmarshal(a.body, &list); err != nil || a.status != 200 || len(list) != 5 {
		t.Fatalf("status %d, %s, %v", a.status, a.body, err)
	}
	for i, r := range list {
		first := i % 2
		if i == 4 {
			first = 4
		}
		if r.ID != list[first].ID || r.EventID != list[first].EventID || r.Duplicate != (i == 2 || i == 3) || r.Conflict {
			t.Errorf("receipt %d: %+v", i, r)
		}
	}
	if n := b.count(t, `SELECT count(*) FROM events`); n != 3 {
		t.Errorf("%d events, want 3", n)
	}
	b.publishes(t, 3)
	if stored, again := b.counter(t, "postern_events_total", "result=stored"), b.counter(t, "postern_events_total", "result=duplicate"); stored != 3 || again != 2 {
		t.Errorf("counted %v stored and %v duplicates", stored, again)
	}
}

// A large body of many events is not repeated with each of them: it is read from the log, where it is kept once.
func TestLargeBodyOfManyEventsStaysInTheLog(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	for _, c := range []struct {
		size, events int
		inLog        bool
	}{{16 << 10, 3, false}, {16<<10 + 1, 3, true}, {16<<10 + 1, 1, false}} {
		name := fmt.Sprintf("%d-%d", c.size, c.events)
		var body bytes.Buffer
		for n := range c.events - 1 {
			fmt.Fprintf(&body, "%s-%d\n", name, n)
		}
		fmt.Fprintf(&body, "%s%s", name, strings.Repeat(" ", c.size-body.Len()-len(name)))
		if a := b.post(t, "many", b.sign(t, "many", provider.Sample{Body: body.Bytes()})); a.status != 200 {
			t.Fatalf("status %d: %s", a.status, a.body)
		}
		var ids []int64
		for range c.events {
			e := <-b.published
			ids = append(ids, e.ID)
			if e.BodyInLog != c.inLog || bytes.Equal(e.Body, body.Bytes()) == c.inLog {
				t.Errorf("%s: event %s is published with %d bytes, in the log: %t", name, e.Key, len(e.Body), e.BodyInLog)
			}
		}
		recs, err := events.Read(t.Context(), b.db.Pool, ids, events.AnyBody)
		if err != nil || len(recs) != c.events {
			t.Fatalf("%s: %d records, %v", name, len(recs), err)
		}
		for _, r := range recs {
			if !bytes.Equal(r.Body, body.Bytes()) {
				t.Errorf("%s: the log gives event %s a body of %d bytes", name, r.Key, len(r.Body))
			}
		}
	}
}
