package events_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/testkit"
)

func (b *testBundle) rejectingDelivery(body string, keys ...string) events.Delivery {
	d := b.delivery(body, keys...)
	d.RejectConflicts = true
	return d
}

// A delivery with RejectConflicts is stored completely or not at all. A conflict is reported and
// not stored.
func TestAppend_rejectConflicts_storesAllOrNothing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.append(t, b.delivery("one", "k"))
	within := b.rejectingDelivery("one", "u", "v", "u")
	within.Events[2].Fingerprint = provider.BodyFingerprint([]byte("other"))
	for name, c := range map[string]struct {
		d    events.Delivery
		want []events.Receipt
	}{
		"one event": {b.rejectingDelivery("two", "k"), []events.Receipt{{Key: "k", Conflict: true}}},
		"one of three": {b.rejectingDelivery("two", "a", "k", "c"),
			[]events.Receipt{{Key: "a"}, {Key: "k", Conflict: true},
				{Key: "c"}}},
		"within the delivery": {within, []events.Receipt{{Key: "u"}, {Key: "v"}, {Key: "u", Conflict: true}}},
	} {
		got := b.append(t, c.d)[0]
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s: receipts (-want +got):\n%s", name, diff)
		}
		if !c.d.Rejected(got) {
			t.Errorf("%s: not rejected", name)
		}
	}
	b.wantEvents(t, 1, 0)
}

// Each delivery of a batch gets the receipts that it would get alone. A repeated delivery gets the
// receipts of the first time.
func TestAppend_mixedBatch_eachAsIfAlone(t *testing.T) {
	t.Parallel()
	b := setup(t)
	batch := []events.Delivery{b.rejectingDelivery("one", "a", "b", "a"), b.delivery("two", "c"),
		b.rejectingDelivery("three", "d"), b.rejectingDelivery("four", "c", "e"), b.delivery("five", "a")}
	got := b.append(t, batch...)
	// the last one was appended first: deliveries without RejectConflicts go together
	for i, rejected := range []bool{true, false, false, true, false} {
		if batch[i].Rejected(got[i]) != rejected {
			t.Errorf("delivery %d: receipts %+v, rejected %t", i, got[i], rejected)
		}
	}
	whole := b.rejectingDelivery("six", "f", "g", "f")
	first, again := b.append(t, whole)[0], b.append(t, whole)[0]
	for i := range first {
		if first[i].ID == 0 || first[i].ID != again[i].ID || first[i].Duplicate != (i == 2) || !again[i].Duplicate ||
			again[i].Conflict {
			t.Errorf("event %d: %+v, again %+v", i, first[i], again[i])
		}
	}
	b.wantEvents(t, 5, 0)
}

// Events with bodies of their own are separate deliveries in the log, but one delivery when
// conflicts are checked.
func TestAppend_separateBodies_areSeparateDeliveries(t *testing.T) {
	t.Parallel()
	b := setup(t)
	own := func(exact bool, keys ...string) events.Delivery {
		d := b.delivery("", keys...)
		d.RejectConflicts, d.Body = exact, nil
		for i, key := range keys {
			d.Bodies = append(d.Bodies, []byte("body of "+key))
			d.Events[i].Fingerprint = provider.BodyFingerprint(d.Bodies[i])
		}
		return d
	}
	for name, d := range map[string]events.Delivery{"exact": own(true, "a", "b"), "one": own(true, "c"),
		"of a spool": own(false, "d", "e")} {
		r := b.append(t, d)[0]
		for i, e := range d.Events {
			var id, index int64
			var body []byte
			testkit.Must(t, b.db.Pool.QueryRow(t.Context(), `SELECT delivery_id, delivery_index, body FROM events
				WHERE id = $1`, r[i].ID).Scan(&id, &index, &body))
			if id != r[i].ID || index != 0 || string(body) != "body of "+e.Key || r[i].Key != e.Key {
				t.Errorf("%s: event %s of delivery %d has index %d and body %q", name, r[i].Key, id, index, body)
			}
		}
		if again := b.append(t, d)[0]; len(again) != len(r) || !again[0].Duplicate || again[0].ID != r[0].ID {
			t.Errorf("%s again: %+v", name, again)
		}
	}
	other := own(true, "x", "a", "y")
	other.Events[1].Fingerprint = provider.BodyFingerprint([]byte("other"))
	testkit.Equal(t, "receipts", []events.Receipt{{Key: "x"}, {Key: "a", Conflict: true}, {Key: "y"}},
		b.append(t, other)[0])
	other.RejectConflicts = false
	if r := b.append(t, other)[0]; r[0].Duplicate || !r[1].Conflict || r[2].Duplicate {
		t.Errorf("receipts %+v", r)
	}
	if n := b.db.QueryStrings(t, `SELECT convert_from(body, 'UTF8') FROM event_conflicts`); len(n) != 1 ||
		n[0] != "body of a" || b.count(t, "events") != 7 {
		t.Errorf("conflicts %q, %d events", n, b.count(t, "events"))
	}
}

// apiBatch returns a batch of the user's own service: each event has a body of its own.
func (b *testBundle) apiBatch(contents [][2]string) events.Delivery {
	d := b.delivery("")
	d.RejectConflicts, d.Body = true, nil
	for _, c := range contents {
		d.Bodies = append(d.Bodies, []byte(c[1]))
		d.Events = append(d.Events,
			provider.Event{Key: c[0], Type: "t", Fingerprint: provider.BodyFingerprint([]byte(c[1]))})
	}
	return d
}

// Many batches cost as many messages as one, even if some are rejected, so a flood of them does not
// delay others.
func TestAppend_manyAPIBatches_shareMessages(t *testing.T) {
	t.Parallel()
	b := setup(t)
	sent := b.countMessages(t)
	// prepares the statement
	b.append(t, b.apiBatch([][2]string{{"before", "x"}}), b.apiBatch([][2]string{{"there", "x"}, {"also stored", "x"}}))
	const many = 50
	var ones, twos, some, spooled, large []events.Delivery
	for i := range many {
		ones = append(ones, b.apiBatch([][2]string{{fmt.Sprint("one ", i), "x"}}))
		twos = append(twos, b.apiBatch([][2]string{{fmt.Sprint("two ", i), "x"}, {fmt.Sprint("another ", i), "x"}}))
		key := fmt.Sprint("new ", i)
		if i%5 == 0 {
			key = "there"
		}
		stored := b.apiBatch([][2]string{{fmt.Sprint("stored ", i), "x"}, {fmt.Sprint("also stored ", i), "x"}})
		stored.RejectConflicts = false
		spooled = append(spooled, stored)
		some = append(some, b.apiBatch([][2]string{{fmt.Sprint("some ", i), "x"}, {key, "y"}}))
	}
	for i := range 6 {
		var events [][2]string
		for j := range 1000 {
			events = append(events, [2]string{fmt.Sprint("large ", i, " ", j), "x"})
		}
		large = append(large, b.apiBatch(events))
	}
	for _, c := range []struct {
		what  string
		batch []events.Delivery
		want  int64
	}{
		{"of one event", ones, 1},
		{"of two", twos, 3},                           // begin, insert, commit
		{"some of which are rejected", some, 2*3 + 1}, // plus a rollback, and a wait for a standby
		{"all stored", twos, 3},
		{"out of a spool", spooled, 1},
	} {
		before := sent.Load()
		b.append(t, c.batch...)
		if n := sent.Load() - before; n > c.want {
			t.Errorf("%d batches %s: %d messages, want %d", many, c.what, n, c.want)
		}
	}
	for i, receipts := range b.append(t, large...) { // more than fit into one statement
		for j, r := range receipts {
			if r.Key != fmt.Sprint("large ", i, " ", j) || r.ID == 0 || r.Duplicate {
				t.Fatalf("event %d of batch %d: %+v", j, i, r)
			}
		}
	}
	if n := b.count(t, "events"); n != 3+many+2*many+40*2+2*many+6000 {
		t.Errorf("%d events", n)
	}
}

// Batches that are appended together get the receipts that each would get alone, one after the
// other.
func TestAppend_randomBatches_equalOneByOne(t *testing.T) {
	t.Parallel()
	b := setup(t)
	stored, round := map[string]string{}, 0
	rapid.Check(t, func(t *rapid.T) {
		round++
		var batch []events.Delivery
		var contents [][][2]string
		for range rapid.IntRange(1, 8).Draw(t, "deliveries") {
			var c [][2]string
			for range rapid.IntRange(2, 4).Draw(t, "events") {
				key := fmt.Sprint(round-rapid.IntRange(0, 1).Draw(t, "of before"), " ",
					rapid.IntRange(0, 12).Draw(t, "key"))
				content := "usual"
				if rapid.IntRange(0, 4).Draw(t, "other") == 0 {
					content = "other"
				}
				c = append(c, [2]string{key, content})
			}
			contents, batch = append(contents, c), append(batch, b.apiBatch(c))
		}
		got, err := events.Append(t.Context(), b.gateway, batch)
		testkit.Must(t, err)
		for i, c := range contents {
			for j := range got[i] {
				if (got[i][j].ID == 0) != batch[i].Rejected(got[i]) {
					t.Fatalf("delivery %d: %+v", i, got[i])
				}
				got[i][j].ID = 0
			}
			if diff := cmp.Diff(expectedReceipts(stored, c), got[i]); diff != "" {
				t.Fatalf("delivery %d of %v (-want +got):\n%s", i, contents, diff)
			}
		}
		if n := b.count(t, "events"); n != len(stored) {
			t.Fatalf("%d events, want %d", n, len(stored))
		}
	})
}

// expectedReceipts returns the receipts of a delivery for a log with the given content. It adds the
// delivery to the content unless it is rejected.
func expectedReceipts(stored map[string]string, contents [][2]string) []events.Receipt {
	out, added, rejected := make([]events.Receipt, len(contents)), map[string]string{}, false
	for i, c := range contents {
		before, there := stored[c[0]]
		if !there {
			before, there = added[c[0]]
		}
		if !there {
			before, added[c[0]] = c[1], c[1]
		}
		out[i] = events.Receipt{Key: c[0], Duplicate: there, Conflict: before != c[1]}
		rejected = rejected || out[i].Conflict
	}
	for i := range out {
		out[i].Duplicate = out[i].Duplicate && !rejected
	}
	if !rejected {
		for key, content := range added {
			stored[key] = content
		}
	}
	return out
}

// Concurrent connections append batches with common keys, one or several each. Each key is stored
// once, and a batch is stored completely or not at all.
func TestAppend_concurrentAPIBatches_storeAllOrNothing(t *testing.T) {
	t.Parallel()
	const rounds, racers = 15, 3
	for _, each := range []int{1, 4} {
		t.Run(fmt.Sprint(each), func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			for round := range rounds {
				got, errs := make([][][]events.Receipt, racers), make([]error, racers)
				batches := make([][]events.Delivery, racers)
				var wg sync.WaitGroup
				for i := range racers {
					for j := range each {
						shared := fmt.Sprint(round, " shared ", (i+j)%each) // in another order on each connection
						own := fmt.Sprint(round, " own ", i, j)
						batch := b.apiBatch([][2]string{{own, "x"}, {shared, fmt.Sprint(i)}, {own + " too", "x"}})
						batches[i] = append(batches[i], batch)
					}
					wg.Go(func() { got[i], errs[i] = events.Append(t.Context(), b.gateway, batches[i]) })
				}
				wg.Wait()
				stored := 0
				for i := range racers {
					if errs[i] != nil {
						t.Fatal(errs[i])
					}
					for j, d := range batches[i] {
						if !d.Rejected(got[i][j]) {
							stored++
						}
					}
				}
				if stored != each {
					t.Fatalf("round %d: %d batches stored, want %d: %+v", round, stored, each, got)
				}
			}
			b.wantEvents(t, 3*each*rounds, 0)
		})
	}
}
