package events_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/shopify"
)

// One event rendered in two signed versions of the provider's API is a duplicate. In one version, in one that is not told or not signed, or as what tells of something else,
// other content is a conflict. What is foreseen is what comes, whether the first stands in the log, in an earlier batch or in the same.
func TestRenderingsAreNoConflicts(t *testing.T) {
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
		"another version":    {"2026-08-26", "2020-08-27", nil, false},
		"the same version":   {"2026-08-26", "2026-08-26", nil, true},
		"second is untold":   {"2026-08-26", "", nil, true},
		"first is untold":    {"", "2020-08-27", nil, true},
		"not signed":         {"2026-08-26", "2020-08-27", func(e *provider.Event) { e.VersionSigned = false }, true},
		"of another object":  {"2026-08-26", "2020-08-27", func(e *provider.Event) { e.ObjectID = "2" }, true},
		"of another kind":    {"2026-08-26", "2020-08-27", func(e *provider.Event) { e.ObjectType = "refund" }, true},
		"of another type":    {"2026-08-26", "2020-08-27", func(e *provider.Event) { e.Type = "orders/updated" }, true},
		"of another account": {"2026-08-26", "2020-08-27", func(e *provider.Event) { e.Account = "b" }, true},
		"of another time":    {"2026-08-26", "2020-08-27", func(e *provider.Event) { e.OccurredAt = occurred.Add(time.Microsecond) }, true},
		"of no time":         {"2026-08-26", "2020-08-27", func(e *provider.Event) { e.OccurredAt = time.Time{} }, true},
	} {
		t.Run(name, func(t *testing.T) {
			first, second := in(tc.first, "first "+name, nil, name), in(tc.second, "second "+name, tc.edit, name)
			foresee := func(f *events.Foresight, ds ...events.Delivery) []events.Receipt {
				t.Helper()
				seen, err := f.Foresee(t.Context(), b.gateway, ds)
				if err != nil {
					t.Fatal(err)
				}
				return seen[len(seen)-1]
			}
			var batches events.Foresight
			foresee(&batches, first)
			foreseen := map[string]events.Receipt{"an earlier batch": foresee(&batches, second)[0], "the same batch": foresee(new(events.Foresight), first, second)[0]}
			twin := b.append(t, in(tc.first, "first "+name, nil, name+" twin"), in(tc.second, "second "+name, tc.edit, name+" twin"))
			b.append(t, first)
			foreseen["the log"] = foresee(new(events.Foresight), second)[0]
			got := b.append(t, second)[0][0]
			if !got.Duplicate || got.Conflict != tc.conflict || !twin[1][0].Duplicate || twin[1][0].Conflict != tc.conflict {
				t.Errorf("%+v, in one batch %+v", got, twin)
			}
			for where, r := range foreseen {
				if !r.Duplicate || r.Conflict != tc.conflict {
					t.Errorf("where the first stands in %s, foreseen %+v", where, r)
				}
			}
		})
	}
	if n := b.count(t, "event_conflicts"); n != 2*10 {
		t.Errorf("%d conflicts", n)
	}
}

// A captured body of Shopify's, sent again under a key that is another event's to be and with a version that is nobody's, cannot make that event vanish: key and version are headers,
// which nothing signs.
func TestNoForgedVersionHidesAnEvent(t *testing.T) {
	t.Parallel()
	b := setup(t)
	post := func(version, body string) events.Receipt {
		t.Helper()
		h := http.Header{}
		for name, value := range map[string]string{"Topic": "orders/updated", "Shop-Domain": "a.myshopify.com", "Webhook-Id": "b-1", "Api-Version": version} {
			h.Set("X-Shopify-"+name, value)
		}
		d := b.delivery(body)
		var err error
		if d.Events, err = (shopify.Shopify{}).Identify(&provider.Source{Name: "shop", Account: "a.myshopify.com"}, &provider.Delivery{Header: h, Body: d.Body, ReceivedAt: d.ReceivedAt}); err != nil {
			t.Fatal(err)
		}
		return b.append(t, d)[0][0]
	}
	post("9999-99", `{"id":1,"updated_at":"2026-01-01T00:00:00Z"}`)
	order2 := `{"id":2,"updated_at":"2026-01-02T00:00:00Z","total_price":"99.00"}`
	if r := post("2026-10", order2); !r.Duplicate || !r.Conflict {
		t.Errorf("%+v", r)
	}
	if kept := b.db.Rows(t, `SELECT convert_from(body, 'UTF8') FROM event_conflicts`); len(kept) != 1 || kept[0] != order2 {
		t.Errorf("kept %q", kept)
	}
}
