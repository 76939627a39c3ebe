package events_test

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/shopify"
	"github.com/postern-gateway/postern/internal/testkit"
)

// walkAll walks the log and copies the records.
func (b *testBundle) walkAll(t *testing.T, f *events.Filter, after, bound int64) (all []events.FullRecord) {
	t.Helper()
	for at := after; at < bound; {
		end, err := events.Walk(t.Context(), b.db.Pool, f, at, bound, func(e *events.FullRecord) error {
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

// A walk returns each selected event once, in ascending order, over several windows.
func TestWalk_filters_returnEachEventOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.insertEvents(t, firstDay, 10_000)
	every, err := events.IDsAfter(t.Context(), b.db.Pool, 0, 1<<62, 20_000)
	testkit.Must(t, err)
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
		"by time": {events.Filter{Since: firstDay.Add(100 * time.Second), Until: firstDay.Add(6000 * time.Second)}, 0,
			1 << 62, every[99:5999]},
		"by type": {events.Filter{Type: "invoice.*"}, 0, 1 << 62, even},
		"one":     {events.Filter{Key: "k7"}, 0, 1 << 62, every[6:7]},
		"by ids":  {events.Filter{IDs: []int64{every[3], every[7]}}, every[3], 1 << 62, every[7:8]},
		"none":    {events.Filter{Type: "none.*"}, 0, 1 << 62, nil},
	} {
		var got []int64
		for _, e := range b.walkAll(t, &c.f, c.after, c.bound) {
			got = append(got, e.ID)
		}
		testkit.Equal(t, name, c.want, got)
	}
	stop := errors.New("enough")
	n := 0
	if _, err := events.Walk(t.Context(), b.db.Pool, &events.Filter{}, 0, 1<<62,
		func(*events.FullRecord) error { n++; return stop }); !errors.Is(err, stop) || n != 1 {
		t.Errorf("%d events, %v", n, err)
	}
}

// Each event has the body of its delivery, even if another event stores it, before the walk or
// between others. An empty body is not a missing one.
func TestWalk_sharedBodies_areReturned(t *testing.T) {
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
	b.append(t, b.delivery("", "e1", "e2", "e3")) // interleaved
	large := strings.Repeat("large ", 1<<20)
	want["l1"], want["l2"] = large, large
	b.append(t, b.delivery(large, "l1", "l2"), b.delivery("", "e1", "e2"))
	all := b.walkAll(t, &events.Filter{}, 0, 1<<62)
	for from := 0; from < len(all); from += 7 { // at each position of a delivery of five events
		got := b.walkAll(t, &events.Filter{}, all[from].ID-1, 1<<62)
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

// AppendDryRun returns the receipts that Append then returns, except for the ids of new events.
func TestAppendDryRun_receipts_equalAppend(t *testing.T) {
	t.Parallel()
	b := setup(t)
	first := b.append(t, b.delivery("one", "a", "b"))
	batch := []events.Delivery{b.delivery("one", "b", "c"), b.delivery("two", "a"), b.delivery("three", "c", "d"),
		b.delivery("one", "c")}
	before := b.count(t, "events") + b.count(t, "event_keys") + b.count(t, "event_conflicts")
	predicted, err := new(events.AppendDryRun).Run(t.Context(), b.db.Role(t, "operator"), batch)
	testkit.Must(t, err)
	if after := b.count(t, "events") + b.count(t, "event_keys") + b.count(t, "event_conflicts"); after != before {
		t.Errorf("%d rows became %d", before, after)
	}
	if predicted[0][0].ID != first[0][1].ID {
		t.Errorf("predicted id %d, got %d", predicted[0][0].ID, first[0][1].ID)
	}
	appended := b.append(t, batch...)
	for i := range appended {
		for j := range appended[i] {
			predicted[i][j].ID, appended[i][j].ID = 0, 0
		}
	}
	testkit.Equal(t, "predicted", appended, predicted)
}

// Events keep their indexes if Events has only some of a delivery.
func TestAppend_indexes_areStored(t *testing.T) {
	t.Parallel()
	b := setup(t)
	d := b.delivery("body", "a", "b")
	d.Indexes = []int32{7, 3}
	ids := b.append(t, d)[0]
	recs, err := events.Read(t.Context(), b.db.Pool, []int64{ids[0].ID, ids[1].ID}, events.UnlimitedBody)
	if err != nil || len(recs) != 2 {
		t.Fatal(recs, err)
	}
	for _, r := range recs {
		if want := map[string]int{"a": 7, "b": 3}[r.Key]; r.Index != want || string(r.Body) != "body" {
			t.Errorf("event %s has index %d and body %q", r.Key, r.Index, r.Body)
		}
	}
}

// An event in two signed versions of the provider's API is a duplicate. Different content is a
// conflict in the same version, in an unknown or unsigned version, or if it describes something
// else. AppendDryRun predicts this, whether the first event is in the log, in an earlier batch or
// in the same one.
func TestAppend_signedVersions_areDuplicates(t *testing.T) {
	t.Parallel()
	b := setup(t)
	occurred := time.Date(2026, 11, 20, 9, 59, 59, 1_000, time.UTC)
	in := func(version, body string, edit func(*provider.Event), keys ...string) events.Delivery {
		d := b.delivery(body, keys...)
		for i := range d.Events {
			e := &d.Events[i]
			e.APIVersion, e.VersionSigned, e.OccurredAt = version, version != "", occurred
			if edit != nil {
				edit(e)
			}
		}
		return d
	}
	for name, tc := range map[string]struct {
		first, second string
		edit          func(*provider.Event)
		conflict      bool
	}{
		"another version":          {"2026-08-26", "2020-08-27", nil, false},
		"the same version":         {"2026-08-26", "2026-08-26", nil, true},
		"no version in the second": {"2026-08-26", "", nil, true},
		"no version in the first":  {"", "2020-08-27", nil, true},
		"not signed": {"2026-08-26", "2020-08-27", func(e *provider.Event) { e.VersionSigned = false },
			true},
		"another object": {"2026-08-26", "2020-08-27", func(e *provider.Event) { e.ObjectID = "2" }, true},
		"another object type": {"2026-08-26", "2020-08-27", func(e *provider.Event) { e.ObjectType = "refund" },
			true},
		"another type": {"2026-08-26", "2020-08-27", func(e *provider.Event) { e.Type = "orders/updated" },
			true},
		"another account": {"2026-08-26", "2020-08-27", func(e *provider.Event) { e.Account = "b" }, true},
		"another time": {"2026-08-26", "2020-08-27",
			func(e *provider.Event) { e.OccurredAt = occurred.Add(time.Microsecond) }, true},
		"no time": {"2026-08-26", "2020-08-27", func(e *provider.Event) { e.OccurredAt = time.Time{} },
			true},
	} {
		t.Run(name, func(t *testing.T) {
			first, second := in(tc.first, "first "+name, nil, name), in(tc.second, "second "+name, tc.edit, name)
			predict := func(f *events.AppendDryRun, ds ...events.Delivery) []events.Receipt {
				t.Helper()
				seen, err := f.Run(t.Context(), b.gateway, ds)
				testkit.Must(t, err)
				return seen[len(seen)-1]
			}
			var batches events.AppendDryRun
			predict(&batches, first)
			predictions := map[string]events.Receipt{"an earlier batch": predict(&batches, second)[0],
				"the same batch": predict(new(events.AppendDryRun), first, second)[0]}
			repeated := b.append(t, in(tc.first, "first "+name, nil, name+" repeated"), in(tc.second, "second "+name,
				tc.edit, name+" repeated"))
			b.append(t, first)
			predictions["the log"] = predict(new(events.AppendDryRun), second)[0]
			got := b.append(t, second)[0][0]
			if !got.Duplicate || got.Conflict != tc.conflict || !repeated[1][0].Duplicate ||
				repeated[1][0].Conflict != tc.conflict {
				t.Errorf("%+v, in one batch %+v", got, repeated)
			}
			for where, r := range predictions {
				if !r.Duplicate || r.Conflict != tc.conflict {
					t.Errorf("with the first in %s, predicted %+v", where, r)
				}
			}
		})
	}
	if n := b.count(t, "event_conflicts"); n != 2*10 {
		t.Errorf("%d conflicts", n)
	}
}

// A captured body of Shopify, sent again with the key of another event and an invalid version, must
// not hide that event. Key and version are headers, which are not signed.
func TestAppend_forgedVersion_isConflict(t *testing.T) {
	t.Parallel()
	b := setup(t)
	post := func(version, body string) events.Receipt {
		t.Helper()
		h := http.Header{}
		for name, value := range map[string]string{"Topic": "orders/updated", "Shop-Domain": "a.myshopify.com",
			"Webhook-Id": "b-1", "Api-Version": version} {
			h.Set("X-Shopify-"+name, value)
		}
		d := b.delivery(body)
		var err error
		if d.Events, err = (shopify.Shopify{}).Identify(&provider.Source{Name: "shop", Account: "a.myshopify.com"},
			&provider.Delivery{Header: h, Body: d.Body, ReceivedAt: d.ReceivedAt}); err != nil {
			t.Fatal(err)
		}
		return b.append(t, d)[0][0]
	}
	post("9999-99", `{"id":1,"updated_at":"2026-01-01T00:00:00Z"}`)
	order2 := `{"id":2,"updated_at":"2026-01-02T00:00:00Z","total_price":"99.00"}`
	if r := post("2026-10", order2); !r.Duplicate || !r.Conflict {
		t.Errorf("%+v", r)
	}
	if stored := b.db.QueryStrings(t, `SELECT convert_from(body, 'UTF8') FROM event_conflicts`); len(stored) != 1 ||
		stored[0] != order2 {
		t.Errorf("stored %q", stored)
	}
}
