package events_test

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/events"
)

// wholes walks the log and copies what it gets.
func (b *testBundle) wholes(t *testing.T, f *events.Filter, after, bound int64) (all []events.Whole) {
	t.Helper()
	for at := after; at < bound; {
		end, err := events.Walk(t.Context(), b.db.Pool, f, at, bound, func(e *events.Whole) error {
			one := *e
			one.Body = bytes.Clone(e.Body)
			one.Key = bytes.Clone(e.Key)
			all = append(all, one)
			return nil
		})
		if err != nil || end <= at {
			t.Fatalf("from %d to %d: %v", at, end, err)
		}
		at = end
	}
	return all
}

// A walk gives each event that the filter chooses once, ascending, over as many windows as it takes.
func TestWholeWalk(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.log(t, listDay, 10_000)
	every, err := events.After(t.Context(), b.db.Pool, 0, 1<<62, 20_000)
	if err != nil {
		t.Fatal(err)
	}
	var even []int64
	for i := 1; i < len(every); i += 2 {
		even = append(even, every[i])
	}
	for name, c := range map[string]struct {
		f            events.Filter
		after, bound int64
		want         []int64
	}{
		"all":        {events.Filter{}, 0, 1 << 62, every},
		"to a bound": {events.Filter{}, every[9], every[9_000], every[10:9_001]},
		"by time":    {events.Filter{Since: listDay.Add(100 * time.Second), Until: listDay.Add(6000 * time.Second)}, 0, 1 << 62, every[99:5999]},
		"by type":    {events.Filter{Type: "invoice.*"}, 0, 1 << 62, even},
		"one":        {events.Filter{Key: "k7"}, 0, 1 << 62, every[6:7]},
		"by ids":     {events.Filter{IDs: []int64{every[3], every[7]}}, every[3], 1 << 62, every[7:8]},
		"none":       {events.Filter{Type: "none.*"}, 0, 1 << 62, nil},
	} {
		var got []int64
		for _, e := range b.wholes(t, &c.f, c.after, c.bound) {
			got = append(got, e.ID)
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	stop := errors.New("enough")
	n := 0
	if _, err := events.Walk(t.Context(), b.db.Pool, &events.Filter{}, 0, 1<<62, func(*events.Whole) error { n++; return stop }); !errors.Is(err, stop) || n != 1 {
		t.Errorf("%d events, %v", n, err)
	}
}

// Each event has the body of its delivery, also where that lies elsewhere, before the walk or between others; an empty body is not a missing one.
func TestWholeBodies(t *testing.T) {
	t.Parallel()
	b := setup(t)
	want := map[string]string{}
	var batch []events.Delivery
	for i := range 20 {
		body := fmt.Sprint("body ", i)
		if i == 7 {
			body = ""
		}
		var keys []string
		for j := range 5 {
			keys = append(keys, fmt.Sprint("k", i, "-", j))
			want[keys[j]] = body
		}
		batch = append(batch, b.delivery(body, keys...))
	}
	b.append(t, batch...)
	want["e1"], want["e2"], want["e3"] = "", "", ""
	b.append(t, b.delivery("", "e1", "e2", "e3")) // side by side
	large := strings.Repeat("large ", 1<<20)
	want["l1"], want["l2"] = large, large
	b.append(t, b.delivery(large, "l1", "l2"), b.delivery("", "e1", "e2"))
	all := b.wholes(t, &events.Filter{}, 0, 1<<62)
	for from := range all {
		got := b.wholes(t, &events.Filter{}, all[from].ID-1, 1<<62)
		for _, e := range got {
			if e.Body == nil || string(e.Body) != want[string(e.Key)] {
				t.Fatalf("from %d: event %s has body %.40q", from, e.Key, e.Body)
			}
		}
		if len(got) != len(want)-from {
			t.Fatalf("%d events from %d", len(got), from)
		}
	}
}

// What Foresee says is what Append then answers, but for the ids of what is new.
func TestForeseenIsWhatComes(t *testing.T) {
	t.Parallel()
	b := setup(t)
	known := b.append(t, b.delivery("one", "a", "b"))
	batch := []events.Delivery{b.delivery("one", "b", "c"), b.delivery("two", "a"), b.delivery("three", "c", "d"), b.delivery("one", "c")}
	before := b.count(t, "events") + b.count(t, "event_keys") + b.count(t, "event_conflicts")
	foreseen, err := new(events.Foresight).Foresee(t.Context(), b.db.Role(t, "operator"), batch)
	if err != nil {
		t.Fatal(err)
	}
	if after := b.count(t, "events") + b.count(t, "event_keys") + b.count(t, "event_conflicts"); after != before {
		t.Errorf("%d rows became %d", before, after)
	}
	if foreseen[0][0].ID != known[0][1].ID {
		t.Errorf("id %d foreseen, it is %d", foreseen[0][0].ID, known[0][1].ID)
	}
	came := b.append(t, batch...)
	for i := range came {
		for j := range came[i] {
			foreseen[i][j].ID, came[i][j].ID = 0, 0
		}
	}
	if diff := cmp.Diff(came, foreseen); diff != "" {
		t.Error(diff)
	}
}

// Events keep their places in a delivery some of whose events are elsewhere.
func TestPlacesInADelivery(t *testing.T) {
	t.Parallel()
	b := setup(t)
	d := b.delivery("body", "a", "b")
	d.Places = []int32{7, 3}
	ids := b.append(t, d)[0]
	recs, err := events.Read(t.Context(), b.db.Pool, []int64{ids[0].ID, ids[1].ID}, events.AnyBody)
	if err != nil || len(recs) != 2 {
		t.Fatal(recs, err)
	}
	for _, r := range recs {
		if want := map[string]int{"a": 7, "b": 3}[r.Key]; r.Index != want || string(r.Body) != "body" {
			t.Errorf("event %s has place %d and body %q", r.Key, r.Index, r.Body)
		}
	}
}
