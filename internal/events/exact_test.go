package events_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

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
	b.wantCounts(t, 1, 0)
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
	b.wantCounts(t, 5, 0)
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

// batchOf is an own service's batch: each event has a body of its own.
func (b *testBundle) batchOf(contents [][2]string) events.Delivery {
	d := b.delivery("")
	d.Exact, d.Body = true, nil
	for _, c := range contents {
		d.Bodies = append(d.Bodies, []byte(c[1]))
		d.Events = append(d.Events, provider.Event{Key: c[0], Type: "t", Fingerprint: provider.BodyFingerprint([]byte(c[1]))})
	}
	return d
}

// Many batches cost what one does, also where some are refused: a flood of them holds nobody else up.
func TestBatchesShareATransaction(t *testing.T) {
	t.Parallel()
	b := setup(t)
	sent := b.counted(t)
	b.append(t, b.batchOf([][2]string{{"before", "x"}}), b.batchOf([][2]string{{"there", "x"}, {"there too", "x"}})) // which prepares the statement
	const many = 50
	var ones, twos, some, spooled, large []events.Delivery
	for i := range many {
		ones = append(ones, b.batchOf([][2]string{{fmt.Sprint("one ", i), "x"}}))
		twos = append(twos, b.batchOf([][2]string{{fmt.Sprint("two ", i), "x"}, {fmt.Sprint("another ", i), "x"}}))
		key := fmt.Sprint("new ", i)
		if i%5 == 0 {
			key = "there"
		}
		kept := b.batchOf([][2]string{{fmt.Sprint("kept ", i), "x"}, {fmt.Sprint("kept too ", i), "x"}})
		kept.Exact = false
		spooled = append(spooled, kept)
		some = append(some, b.batchOf([][2]string{{fmt.Sprint("some ", i), "x"}, {key, "y"}}))
	}
	for i := range 6 {
		var events [][2]string
		for j := range 1000 {
			events = append(events, [2]string{fmt.Sprint("large ", i, " ", j), "x"})
		}
		large = append(large, b.batchOf(events))
	}
	for _, c := range []struct {
		what  string
		batch []events.Delivery
		want  int64
	}{
		{"of one event", ones, 1},
		{"of two", twos, 3},                          // begin, insert, commit
		{"some of which are refused", some, 2*3 + 1}, // and a rollback, and what waits for a standby
		{"all there", twos, 3},
		{"out of a spool", spooled, 1},
	} {
		before := sent.Load()
		b.append(t, c.batch...)
		if n := sent.Load() - before; n > c.want {
			t.Errorf("%d batches %s: %d messages, want %d", many, c.what, n, c.want)
		}
	}
	for i, receipts := range b.append(t, large...) { // more than go into a statement
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

// Whatever batches are appended together, each gets what it would get alone, one after the other.
func TestBatchesTogetherAsOneByOne(t *testing.T) {
	t.Parallel()
	b := setup(t)
	known, round := map[string]string{}, 0
	rapid.Check(t, func(t *rapid.T) {
		round++
		var batch []events.Delivery
		var contents [][][2]string
		for range rapid.IntRange(1, 8).Draw(t, "deliveries") {
			var c [][2]string
			for range rapid.IntRange(2, 4).Draw(t, "events") {
				key := fmt.Sprint(round-rapid.IntRange(0, 1).Draw(t, "of before"), " ", rapid.IntRange(0, 12).Draw(t, "key"))
				content := "usual"
				if rapid.IntRange(0, 4).Draw(t, "other") == 0 {
					content = "other"
				}
				c = append(c, [2]string{key, content})
			}
			contents, batch = append(contents, c), append(batch, b.batchOf(c))
		}
		got, err := events.Append(t.Context(), b.gateway, batch)
		if err != nil {
			t.Fatal(err)
		}
		for i, c := range contents {
			for j := range got[i] {
				if (got[i][j].ID == 0) != batch[i].Refused(got[i]) {
					t.Fatalf("delivery %d: %+v", i, got[i])
				}
				got[i][j].ID = 0
			}
			if diff := cmp.Diff(told(known, c), got[i]); diff != "" {
				t.Fatalf("delivery %d of %v (-want +got):\n%s", i, contents, diff)
			}
		}
		if n := b.count(t, "events"); n != len(known) {
			t.Fatalf("%d events, want %d", n, len(known))
		}
	})
}

// told is what a delivery is answered by a log of these contents, which it then holds too where it is not refused.
func told(known map[string]string, contents [][2]string) []events.Receipt {
	out, fresh, refused := make([]events.Receipt, len(contents)), map[string]string{}, false
	for i, c := range contents {
		before, there := known[c[0]]
		if !there {
			before, there = fresh[c[0]]
		}
		if !there {
			before, fresh[c[0]] = c[1], c[1]
		}
		out[i] = events.Receipt{Key: c[0], Duplicate: there, Conflict: before != c[1]}
		refused = refused || out[i].Conflict
	}
	for i := range out {
		out[i].Duplicate = out[i].Duplicate && !refused
	}
	if !refused {
		for key, content := range fresh {
			known[key] = content
		}
	}
	return out
}

// Connections that race with one batch each, or with several, which share keys: each key is stored once, and a batch is stored
// whole or not at all.
func TestExactRace(t *testing.T) {
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
						shared := fmt.Sprint(round, " shared ", (i+j)%each) // which comes in another order to each
						own := fmt.Sprint(round, " own ", i, j)
						batch := b.batchOf([][2]string{{own, "x"}, {shared, fmt.Sprint(i)}, {own + " too", "x"}})
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
						if !d.Refused(got[i][j]) {
							stored++
						}
					}
				}
				if stored != each {
					t.Fatalf("round %d: %d batches stored, want %d: %+v", round, stored, each, got)
				}
			}
			b.wantCounts(t, 3*each*rounds, 0)
		})
	}
}
