package events_test

import (
	"fmt"
	"testing"

	"github.com/postern-gateway/postern/internal/events"
)

// A flood of duplicates takes no ids: each taken one would cost a transaction id and a record in PostgreSQL's log of writes.
func TestDuplicatesBurnNothing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	var flood []events.Delivery
	for i := range 40 {
		flood = append(flood, b.delivery("same", fmt.Sprint("k", i%10)))
	}
	b.append(t, flood...)
	used := func() (n int64) {
		if err := b.db.Pool.QueryRow(t.Context(), `SELECT last_value FROM event_sequence`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	before := used()
	for range 50 {
		for _, r := range b.append(t, flood...) {
			if !r[0].Duplicate || r[0].Conflict || r[0].ID == 0 {
				t.Fatalf("receipt %+v", r[0])
			}
		}
	}
	if after := used(); after != before { // 500 new ids would be more than a session takes at once
		t.Errorf("the sequence went from %d to %d", before, after)
	}
}

// Twins in one batch get what the first of them got; one that differs is kept beside it, whether the key is new or known.
func TestTwinsInOneBatch(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for round := range 2 {
		// The second delivery brings nothing new but its conflict; the third shares a key with the first and has one of its own.
		batch := []events.Delivery{b.delivery("one", "a", "b"), b.delivery("two", "a"), b.delivery("three", "b", "c"), b.delivery("one", "a", "b")}
		r := b.append(t, batch...)
		duplicate := round == 1
		for _, c := range []struct {
			delivery, place     int
			like                events.Receipt
			duplicate, conflict bool
		}{
			{0, 0, r[0][0], duplicate, false}, {0, 1, r[0][1], duplicate, false},
			{1, 0, r[0][0], true, true},
			{2, 0, r[0][1], true, true}, {2, 1, r[2][1], duplicate, false},
			{3, 0, r[0][0], true, false}, {3, 1, r[0][1], true, false},
		} {
			got := r[c.delivery][c.place]
			if got.ID != c.like.ID || got.ID == 0 || got.Duplicate != c.duplicate || got.Conflict != c.conflict {
				t.Errorf("round %d, delivery %d, event %d: %+v", round, c.delivery, c.place, got)
			}
		}
		recs, err := events.Read(t.Context(), b.gateway, []int64{r[0][0].ID, r[0][1].ID, r[2][1].ID}, events.AnyBody)
		if err != nil || len(recs) != 3 {
			t.Fatalf("%d records, %v", len(recs), err)
		}
		for _, rec := range recs {
			if want := map[string]string{"a": "one", "b": "one", "c": "three"}[rec.Key]; string(rec.Body) != want {
				t.Errorf("event %s has body %q, want %q", rec.Key, rec.Body, want)
			}
		}
	}
	if n := b.count(t, "event_conflicts"); n != 2 {
		t.Errorf("%d conflicts kept, want 2", n)
	}
}

// An event belongs to its source: another source's event with the same id is another event.
func TestAppend_idOfAnotherSource_isNoDuplicate(t *testing.T) {
	t.Parallel()
	b := setup(t)
	known, err := events.RegisterSources(t.Context(), b.gateway, map[string]string{"other": "shopify"})
	if err != nil {
		t.Fatal(err)
	}
	other := func(key string) events.Delivery {
		d := b.delivery("of the other", key)
		d.Source = known.Number["other"]
		return d
	}
	stored := b.append(t, b.delivery("of the shop", "a"))
	stored = append(stored, b.append(t, other("a"))...)                                 // an earlier commit has the id
	stored = append(stored, b.append(t, b.delivery("of the shop", "b"), other("b"))...) // its own batch has it
	for i, r := range stored {
		if r[0].Duplicate || r[0].Conflict {
			t.Errorf("append %d: %+v, want a new event", i, r[0])
		}
	}
	for i, r := range b.append(t, other("a"), other("b")) {
		if want := stored[2*i+1][0].ID; r[0].ID != want || !r[0].Duplicate || r[0].Conflict {
			t.Errorf("again: %+v, want a duplicate of event %d", r[0], want)
		}
	}
}
