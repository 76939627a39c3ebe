package shopify_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/providertest"
	"github.com/postern-gateway/postern/internal/provider/shopify"
	"github.com/postern-gateway/postern/internal/testkit/shopifyfake"
)

// faked are the types that the fake shop has.
var faked = []string{"collection", "customer", "draft_order", "fulfillment", "inventory_item", "inventory_level", "location", "order", "product", "theme"}

// wholly are those whose objects a list tells whole.
var wholly = map[string]bool{"customer": true, "order": true, "product": true}

// walked reads all pages of a list: the versions of the objects by their ids.
func walked(t *testing.T, fake *shopifyfake.Fake, objectType string, since, until time.Time) map[string]int64 {
	t.Helper()
	src, api := apiOf(t, fake)
	out := map[string]int64{}
	for _, one := range listed(t, src, api, objectType, since, until) {
		if _, twice := out[one.ObjectID]; twice {
			t.Fatalf("%s %s is listed twice", objectType, one.ObjectID)
		}
		out[one.ObjectID] = one.At
		if !one.HasAt {
			t.Fatalf("%s %s is listed without its version", objectType, one.ObjectID)
		}
		if whole := wholly[objectType] || objectType == "fulfillment"; whole != (one.Body != nil) {
			t.Fatalf("%s %s from %s: listed with %q", objectType, one.ObjectID, since, one.Body)
		}
		if one.Body != nil && snapshot(t, objectType, one.ObjectID, one.Body).At != one.At {
			t.Fatalf("%s %s is listed as of %d: %s", objectType, one.ObjectID, one.At, one.Body)
		}
	}
	return out
}

func listed(t *testing.T, src *provider.Source, api *provider.API, objectType string, since, until time.Time) []provider.Listed {
	t.Helper()
	all, _ := providertest.Listing{Lister: shopify.Shopify{}, Source: src, API: api, Account: shopifyfake.Shop, Type: objectType,
		Since: since, Until: until}.Read(t)
	return all
}

func snapshot(t *testing.T, objectType, id string, body []byte) provider.Observation {
	t.Helper()
	o, err := shopify.Shopify{}.Snapshot(nil, &provider.Snapshot{Account: shopifyfake.Shop, ObjectType: objectType, ObjectID: id, Body: body})
	if err != nil {
		t.Fatalf("%s %s: %v: %s", objectType, id, err, body)
	}
	return o
}

// versions are what a walk must find: what is alive, and changed from since on.
func versions(t *testing.T, fake *shopifyfake.Fake, objectType string, since time.Time) map[string]int64 {
	t.Helper()
	out := map[string]int64{}
	for _, o := range fake.Truth() {
		if o.Type != objectType || o.Body == nil {
			continue
		}
		wrapped := fmt.Appendf(nil, `{%q:%s}`, objectType, o.Body)
		if objectType == "inventory_level" {
			wrapped = fmt.Appendf(nil, `{"inventory_levels":[%s]}`, o.Body)
		}
		if at := snapshot(t, objectType, o.ID, wrapped).At; at >= since.UnixMicro() {
			out[o.ID] = at
		}
	}
	return out
}

// Every list tells of all that is there, page by page, with its version, and a list by change of what has changed; nothing that is hidden by default is left out.
func TestLists(t *testing.T) {
	t.Parallel()
	fake := shopifyfake.New(t, shopifyfake.Options{Seed: 3, Page: 3, Objects: 12})
	fake.Live(700)
	middle := fake.Now().Truncate(time.Second)
	src, api := apiOf(t, fake)
	lists := shopify.Shopify{}.Lists(src, api, shopifyfake.Shop)
	if diff := cmp.Diff(faked, slices.Sorted(maps.Keys(lists))); diff != "" {
		t.Errorf("the types that are listed, and those that the fake shop has: %s", diff)
	}
	for _, objectType := range faked {
		want := versions(t, fake, objectType, time.Time{})
		if diff := cmp.Diff(want, walked(t, fake, objectType, time.Time{}, time.Time{})); diff != "" || len(want) < 2 {
			t.Errorf("%s, %d of them: %s", objectType, len(want), diff)
		}
	}
	fake.Live(40)
	for _, objectType := range faked {
		if !lists[objectType].ByChange || objectType == "fulfillment" {
			continue
		}
		want := versions(t, fake, objectType, middle)
		got := walked(t, fake, objectType, middle, fake.Now())
		if all := walked(t, fake, objectType, time.Time{}, time.Time{}); len(got) >= len(all) && objectType != "location" {
			t.Errorf("%s: %d of %d are listed as changed: nothing is proven", objectType, len(got), len(all))
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s by change: %s", objectType, diff)
		}
	}
	all, some := walked(t, fake, "fulfillment", time.Time{}, time.Time{}), walked(t, fake, "fulfillment", middle, fake.Now())
	for id, at := range all {
		if at >= middle.UnixMicro() && some[id] != at {
			t.Errorf("the fulfillment %s changed and is not listed", id)
		}
	}
	if len(some) >= len(all) {
		t.Errorf("%d of %d fulfillments are listed as changed", len(some), len(all))
	}
}

// What changes while a list is read is listed once, and nothing else is skipped for it.
func TestListsWhileTheyChange(t *testing.T) {
	t.Parallel()
	var fake *shopifyfake.Fake
	busy := false
	fake = shopifyfake.New(t, shopifyfake.Options{Seed: 5, Page: 2, Objects: 12, Meanwhile: func() {
		if busy {
			fake.Live(1)
		}
	}})
	fake.Live(300)
	for _, objectType := range []string{"product", "order", "inventory_level"} {
		before := versions(t, fake, objectType, time.Time{})
		busy = true
		got := walked(t, fake, objectType, time.Time{}, time.Time{})
		busy = false
		after := versions(t, fake, objectType, time.Time{})
		maps.DeleteFunc(before, func(id string, _ int64) bool { _, stays := after[id]; return !stays })
		for id := range before {
			if got[id] == 0 {
				t.Errorf("%s %s was there all the time and is not listed", objectType, id)
			}
		}
	}
}

// A cursor that is no longer known says so, and not that the list is at its end.
func TestExpiredCursor(t *testing.T) {
	t.Parallel()
	fake := shopifyfake.New(t, shopifyfake.Options{Seed: 3, Page: 2, Objects: 12})
	fake.Live(300)
	src, api := apiOf(t, fake)
	for _, objectType := range faked {
		if objectType == "fulfillment" || wholly[objectType] {
			continue // its cursor is an id, which is never forgotten
		}
		list := func(cursor string) provider.Call {
			return shopify.Shopify{}.ListObjects(src, api, shopifyfake.Shop, objectType, time.Time{}, time.Time{}, cursor)
		}
		_, header, body := answered(t, api, list(""))
		_, next, err := shopify.Shopify{}.ObjectPage(src, api, shopifyfake.Shop, objectType, "", header, body)
		if err != nil || next == "" {
			t.Fatalf("%s: %q, %v", objectType, next, err)
		}
		fake.Script(shopifyfake.Expired)
		if v, _, body := answered(t, api, list(next)); v.Kind != provider.Expired {
			t.Errorf("%s: %+v: %s", objectType, v, body)
		}
	}
}

func TestPagesThatAreNone(t *testing.T) {
	t.Parallel()
	for _, objectType := range faked {
		for _, body := range []string{``, `{}`, `{"data":{}}`, `{"data":{"page":null,"locations":null}}`, `[]`, `{"orders":null}`,
			`{"data":{"page":{"nodes":[],"pageInfo":{"hasNextPage":true}}}}`, `{"data":{"page":{"nodes":[{"id":"gid://shopify/Order/x","updatedAt":"2026-01-01T00:00:00Z"}]}}}`,
			`{"data":{"page":{"nodes":[{"id":"gid://shopify/Order/7"}]}}}`, `{"orders":[{"id":7,"updated_at":"2026-01-01T00:00:00Z","fulfillments":[{}]},{"id":6}]}`, `{"products":[{"id":7}]}`,
			`{"customers":[{"id":8,"updated_at":"2026-01-01T00:00:00Z"},{"id":7,"updated_at":"2026-01-01T00:00:00Z"}]}`} {
			if page, next, err := (shopify.Shopify{}).ObjectPage(nil, nil, "", objectType, "", nil, []byte(body)); err == nil {
				t.Errorf("%s: %s is a page of %d, followed by %q", objectType, body, len(page), next)
			}
		}
	}
}
