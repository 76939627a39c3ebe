package stripefake_test

import (
	"fmt"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/testkit/stripefake"
)

// While nothing changes, pages of any size contain each object once, newest first, in either
// direction.
func TestList_pages_haveNoGapsOrDuplicates(t *testing.T) {
	t.Parallel()
	f := stripefake.New(t, stripefake.Options{Seed: 3, ReusedIDs: 50, Objects: 10})
	f.RunSteps(1600)
	c := newClient(t, f)
	truth := map[string][]string{}
	for _, e := range f.Events() {
		truth["events"] = append(truth["events"], e.ID)
	}
	for _, o := range f.CurrentObjects() {
		if !o.Deleted() && o.Type != "subscription" && (o.Type != "price" || tree(t, o.Body)["active"] == true) {
			truth[o.Type+"s"] = append(truth[o.Type+"s"], o.ID)
		}
	}
	for plural, want := range truth {
		path := "/v1/" + plural
		all := c.all(path, nil, 100)
		if got := slices.Sorted(slices.Values(all)); !slices.Equal(got, slices.Sorted(slices.Values(want))) {
			t.Errorf("%s are %v, want %v", plural, got, want)
		}
		for _, limit := range []int{1, 7, len(all)} {
			if len(all) > 200 && limit == 1 || limit > 100 {
				continue
			}
			if got := c.all(path, nil, limit); !slices.Equal(got, all) {
				t.Errorf("%s in pages of %d are %v, in pages of 100 %v", plural, limit, got, all)
			}
		}
		if got := ids(c.get(path, nil)); !slices.Equal(got, all[:min(10, len(all))]) {
			t.Errorf("a page of %s without a limit is %v", plural, got)
		}
		before := ids(c.get(path, url.Values{"ending_before": {all[9]}, "limit": {"4"}}))
		if !slices.Equal(before, all[5:9]) {
			t.Errorf("the 4 of %s before %s are %v, want %v", plural, all[9], before, all[5:9])
		}
		if got := c.get(path, url.Values{"ending_before": {all[4]}, "limit": {"4"}}); got["has_more"] != false ||
			got["url"] != path || got["object"] != "list" {
			t.Errorf("the first page of %s is %v", plural, got)
		}
	}
}

// The bounds of the creation time are seconds. Several bounds apply together.
func TestList_createdBounds_areInclusiveOrExclusive(t *testing.T) {
	t.Parallel()
	f := stripefake.New(t, stripefake.Options{})
	start := f.Now().Unix()
	for range 5 {
		f.Create("", "charge", nil)
		f.Advance(700 * time.Millisecond) // seconds 0, 0, 1, 2, 2
	}
	c := newClient(t, f)
	for _, k := range []struct {
		bounds string
		want   []int
	}{
		{"[gte]=1", []int{2, 2, 1}}, {"[gt]=1", []int{2, 2}}, {"[lte]=1", []int{1, 0, 0}}, {"[lt]=1", []int{0, 0}},
		{"=2", []int{2, 2}}, {"[gte]=3", nil},
	} {
		var op string
		var after int64
		if _, err := fmt.Sscanf(k.bounds[slices.Index([]byte(k.bounds), '=')+1:], "%d", &after); err != nil {
			t.Fatal(err)
		}
		op = k.bounds[:slices.Index([]byte(k.bounds), '=')]
		query := url.Values{"created" + op: {strconv.FormatInt(start+after, 10)}}
		for _, path := range []string{"/v1/charges", "/v1/events"} {
			var got []int
			for _, item := range c.get(path, query)["data"].([]any) {
				got = append(got, int(int64(item.(map[string]any)["created"].(float64))-start))
			}
			if !slices.Equal(got, k.want) {
				t.Errorf("%s with created%s have the seconds %v, want %v", path, k.bounds, got, k.want)
			}
		}
	}
}

func TestListEvents_filters_selectEvents(t *testing.T) {
	t.Parallel()
	f := stripefake.New(t, stripefake.Options{Seed: 4})
	f.RunSteps(300)
	c := newClient(t, f)
	count := func(types ...string) int {
		n := 0
		for _, e := range f.Events() {
			if slices.Contains(types, e.Type) {
				n++
			}
		}
		return n
	}
	for _, k := range []struct {
		query url.Values
		want  int
	}{
		{url.Values{"type": {"invoice.created"}}, count("invoice.created")},
		{url.Values{"type": {"customer.subscription.*"}}, count("customer.subscription.created",
			"customer.subscription.updated", "customer.subscription.deleted")},
		{url.Values{"types[0]": {"invoice.created"}, "types[1]": {"invoice.updated"}},
			count("invoice.created", "invoice.updated")},
		{url.Values{"types[]": {"invoice.created", "charge.updated"}}, count("invoice.created", "charge.updated")},
	} {
		if got := c.all("/v1/events", k.query, 9); len(got) != k.want || k.want < 3 {
			t.Errorf("events by %v are %d, want %d", k.query, len(got), k.want)
		}
	}
	for path, name := range map[string]string{"invoice": "status", "customer": "email", "price": "product",
		"charge": "customer"} {
		values := map[string]int{}
		for _, o := range f.CurrentObjects() {
			if o.Type == path && !o.Deleted() && (path != "price" || tree(t, o.Body)["active"] == true) {
				values[fmt.Sprint(tree(t, o.Body)[name])]++
			}
		}
		for value, want := range values {
			if got := c.all("/v1/"+path+"s", url.Values{name: {value}}, 3); len(got) != want {
				t.Errorf("%ss with %s %s are %v, want %d", path, name, value, got, want)
			}
		}
		if len(values) < 2 {
			t.Errorf("all %ss have the %s %v", path, name, values)
		}
	}
}

// Lists do not show all objects: some objects are listed only on request, as Stripe documents.
func TestList_defaultFilters_hideObjects(t *testing.T) {
	t.Parallel()
	f := stripefake.New(t, stripefake.Options{IDOnlyEvents: true})
	sold, old := f.Create("", "price", nil), f.Create("", "price", map[string]any{"active": false})
	open, closed := f.Create("", "v2.core.account", nil),
		f.Create("", "v2.core.account", map[string]any{"closed": true})
	c := newClient(t, f)
	for query, want := range map[string]string{"/v1/prices?": sold, "/v1/prices?active=true": sold,
		"/v1/prices?active=false": old,
		"/v2/core/accounts?":      open, "/v2/core/accounts?closed=false": open,
		"/v2/core/accounts?closed=true": closed} {
		path, rest, _ := strings.Cut(query, "?")
		values, err := url.ParseQuery(rest)
		if err != nil {
			t.Fatal(err)
		}
		if got := ids(c.get(path, values)); len(got) != 1 || got[0] != want {
			t.Errorf("%s shows %v, want %s", query, got, want)
		}
	}
}

// A list may be older than the object itself, and becomes current.
func TestList_listLag_showsOlderObjects(t *testing.T) {
	t.Parallel()
	f := stripefake.New(t, stripefake.Options{Faults: stripefake.Faults{ListLag: 20 * time.Second}})
	id := f.Create("", "customer", nil)
	f.Advance(10 * time.Second)
	c := newClient(t, f)
	missed := 0
	for range 40 {
		missed += 1 - len(ids(c.get("/v1/customers", nil)))
		c.get("/v1/customers/"+id, nil)
	}
	if missed == 0 || missed == 40 {
		t.Errorf("%d of 40 lists missed the customer", missed)
	}
	f.Advance(10 * time.Second)
	for range 40 {
		if got := ids(c.get("/v1/customers", nil)); len(got) != 1 {
			t.Fatalf("after the lag the list shows %v", got)
		}
	}
}

func TestListEvents_olderThan30Days_areNotListed(t *testing.T) {
	t.Parallel()
	f := stripefake.New(t, stripefake.Options{})
	f.Create("", "customer", nil)
	old := f.Events()[0].ID
	f.Advance(30*24*time.Hour - time.Second)
	f.Create("", "customer", nil)
	c := newClient(t, f)
	if got := c.all("/v1/events", nil, 10); len(got) != 2 {
		t.Errorf("before 30 days there are %v", got)
	}
	f.Advance(2 * time.Second)
	if got := c.all("/v1/events", nil, 10); len(got) != 1 {
		t.Errorf("after 30 days there are %v", got)
	}
	if status, _, _, err := c.request("/v1/events/"+old, nil); err != nil || status != 404 {
		t.Errorf("after 30 days the event has the status %d (%v)", status, err)
	}
	if status, _, _, err := c.request("/v1/events", url.Values{"starting_after": {old}}); err != nil || status != 400 {
		t.Errorf("after 30 days the cursor has the status %d (%v)", status, err)
	}
	if got := c.all("/v1/customers", nil, 10); len(got) != 2 {
		t.Errorf("the customers are %v", got)
	}
}

func TestAddObjects_manyObjects_areListedWithoutEvents(t *testing.T) {
	t.Parallel()
	f := stripefake.New(t, stripefake.Options{})
	for _, what := range []string{"customer", "product", "price", "subscription", "invoice", "charge"} {
		f.AddObjects("", what, 250)
	}
	c := newClient(t, f)
	for _, plural := range []string{"customers", "products", "prices", "subscriptions", "invoices", "charges"} {
		all := c.all("/v1/"+plural, nil, 100)
		if len(all) != 250 || len(slices.Compact(slices.Sorted(slices.Values(all)))) != 250 {
			t.Fatalf("there are %d %s", len(all), plural)
		}
		page := c.get("/v1/"+plural, url.Values{"starting_after": {all[249-8]}})["data"].([]any)
		one := page[1].(map[string]any)
		got := c.get("/v1/"+plural+"/"+one["id"].(string), nil)
		for _, tree := range []map[string]any{got, one} {
			delete(tree, "receipt_url") // new in each response
		}
		if !reflect.DeepEqual(got, one) || got["created"].(float64) != float64(f.Now().Unix()-244) {
			t.Errorf("%v differs in the list: %v", got, one)
		}
	}
	if got := c.get("/v1/products/team_Fill0000001", nil); got["updated"] != got["created"] {
		t.Errorf("a product that never changed is %v", got)
	}
	f.Set("", "cus_Fill0000007", map[string]any{"email": nil})
	if got := c.get("/v1/customers/cus_Fill0000007", nil); got["email"] != nil || len(f.Events()) != 1 {
		t.Errorf("a changed object is %v", got)
	}
}
