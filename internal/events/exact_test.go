package events_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/provider"
)

func (b *testBundle) exact(body string, keys ...string) events.Delivery {
	d := b.delivery(body, keys...)
	d.Exact = true
	return d
}

// Of an Exact delivery all is stored or nothing; a conflict is told and not kept.
func TestExactIsAllOrNothing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.append(t, b.delivery("one", "k"))
	within := b.exact("one", "u", "v", "u")
	within.Events[2].Fingerprint = provider.BodyFingerprint([]byte("other"))
	for name, c := range map[string]struct {
		d    events.Delivery
		want []events.Receipt
	}{
		"one event":           {b.exact("two", "k"), []events.Receipt{{Key: "k", Conflict: true}}},
		"one of three":        {b.exact("two", "a", "k", "c"), []events.Receipt{{Key: "a"}, {Key: "k", Conflict: true}, {Key: "c"}}},
		"within the delivery": {within, []events.Receipt{{Key: "u"}, {Key: "v"}, {Key: "u", Conflict: true}}},
	} {
		got := b.append(t, c.d)[0]
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s: receipts (-want +got):\n%s", name, diff)
		}
		if !c.d.Refused(got) {
			t.Errorf("%s: not refused", name)
		}
	}
	if n, conflicts := b.count(t, "events"), b.count(t, "event_conflicts"); n != 1 || conflicts != 0 {
		t.Errorf("%d events and %d conflicts, want one and none", n, conflicts)
	}
	if n := b.count(t, "event_keys"); n != 1 {
		t.Errorf("%d keys, want one", n)
	}
}

// Each delivery of a batch gets what it would get alone, and a delivery that comes again the receipts of the first time.
func TestExactBesideOthers(t *testing.T) {
	t.Parallel()
	b := setup(t)
	batch := []events.Delivery{b.exact("one", "a", "b", "a"), b.delivery("two", "c"), b.exact("three", "d"), b.exact("four", "c", "e"), b.delivery("five", "a")}
	got := b.append(t, batch...)
	for i, refused := range []bool{true, false, false, true, false} { // the last one came into the log first: what is not Exact goes together
		if batch[i].Refused(got[i]) != refused {
			t.Errorf("delivery %d: receipts %+v, refused %t", i, got[i], refused)
		}
	}
	whole := b.exact("six", "f", "g", "f")
	first, again := b.append(t, whole)[0], b.append(t, whole)[0]
	for i := range first {
		if first[i].ID == 0 || first[i].ID != again[i].ID || first[i].Duplicate != (i == 2) || !again[i].Duplicate || again[i].Conflict {
			t.Errorf("event %d: %+v, again %+v", i, first[i], again[i])
		}
	}
	if n, conflicts := b.count(t, "events"), b.count(t, "event_conflicts"); n != 5 || conflicts != 0 {
		t.Errorf("%d events and %d conflicts, want 5 and none", n, conflicts)
	}
}

// Events with bodies of their own are deliveries of their own in the log, and one delivery where it is decided what is stored.
func TestBodiesOfTheirOwn(t *testing.T) {
	t.Parallel()
	b := setup(t)
	own := func(exact bool, keys ...string) events.Delivery {
		d := b.delivery("", keys...)
		d.Exact, d.Body = exact, nil
		for i, key := range keys {
			d.Bodies = append(d.Bodies, []byte("body of "+key))
			d.Events[i].Fingerprint = provider.BodyFingerprint(d.Bodies[i])
		}
		return d
	}
	for name, d := range map[string]events.Delivery{"exact": own(true, "a", "b"), "one": own(true, "c"), "of a spool": own(false, "d", "e")} {
		r := b.append(t, d)[0]
		for i, e := range d.Events {
			var id, index int64
			var body []byte
			if err := b.db.Pool.QueryRow(t.Context(), `SELECT delivery_id, delivery_index, body FROM events WHERE id = $1`, r[i].ID).Scan(&id, &index, &body); err != nil {
				t.Fatal(err)
			}
			if id != r[i].ID || index != 0 || string(body) != "body of "+e.Key || r[i].Key != e.Key {
				t.Errorf("%s: event %s of delivery %d is its %d. and has body %q", name, r[i].Key, id, index, body)
			}
		}
		if again := b.append(t, d)[0]; len(again) != len(r) || !again[0].Duplicate || again[0].ID != r[0].ID {
			t.Errorf("%s again: %+v", name, again)
		}
	}
	other := own(true, "x", "a", "y")
	other.Events[1].Fingerprint = provider.BodyFingerprint([]byte("other"))
	if diff := cmp.Diff([]events.Receipt{{Key: "x"}, {Key: "a", Conflict: true}, {Key: "y"}}, b.append(t, other)[0]); diff != "" {
		t.Errorf("receipts (-want +got):\n%s", diff)
	}
	other.Exact = false
	if r := b.append(t, other)[0]; r[0].Duplicate || !r[1].Conflict || r[2].Duplicate {
		t.Errorf("receipts %+v", r)
	}
	if n := b.db.Rows(t, `SELECT convert_from(body, 'UTF8') FROM event_conflicts`); len(n) != 1 || n[0] != "body of a" || b.count(t, "events") != 7 {
		t.Errorf("conflicts %q, %d events", n, b.count(t, "events"))
	}
}

// Two connections that race for a key, each with events of its own beside it: one stores all of its own, the other nothing, however they meet.
func TestExactRace(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const rounds, racers = 20, 3
	for round := range rounds {
		ds := make([]events.Delivery, racers)
		got := make([][][]events.Receipt, racers)
		errs := make([]error, racers)
		var wg sync.WaitGroup
		for i := range racers {
			ds[i] = b.exact(fmt.Sprint("body ", i), fmt.Sprintf("%d own %d a", round, i), fmt.Sprint(round, " shared"), fmt.Sprintf("%d own %d b", round, i))
			wg.Go(func() { got[i], errs[i] = events.Append(t.Context(), b.gateway, ds[i:i+1]) })
		}
		wg.Wait()
		stored := 0
		for i := range racers {
			if errs[i] != nil {
				t.Fatal(errs[i])
			}
			if !ds[i].Refused(got[i][0]) {
				stored++
			}
		}
		if stored != 1 {
			t.Fatalf("round %d: %d deliveries stored, want one: %+v", round, stored, got)
		}
	}
	if n, keys := b.count(t, "events"), b.count(t, "event_keys"); n != 3*rounds || keys != 3*rounds {
		t.Errorf("%d events and %d keys, want %d", n, keys, 3*rounds)
	}
}
