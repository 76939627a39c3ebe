package shopify_test

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/shopify"
	"github.com/postern-gateway/postern/internal/testkit/shopifyfake"
)

// A type that a source describes is read and listed as those of the table are, by pages and by an operation.
func TestDescribedType(t *testing.T) {
	t.Parallel()
	fake := shopifyfake.New(t, shopifyfake.Options{Page: 3})
	var ids []string
	for range 8 {
		ids = append(ids, fake.Create("gift_card"))
		fake.Advance(time.Second)
	}
	middle := fake.Now()
	fake.Change("gift_card", ids[2], true)
	src, api := apiOf(t, fake)
	if lists := (shopify.Shopify{}).Lists(src, api, shopifyfake.Shop); lists["gift_card"].Lag != 0 {
		t.Errorf("without a description: %+v", lists)
	}
	if _, ok := (shopify.Shopify{}).Fetch(src, api, shopifyfake.Shop, "gift_card", ids[0]); ok {
		t.Error("without a description it is read")
	}
	api.Types = map[string]provider.APIType{"gift_card": {Get: "gift_cards/{id}.json", List: "giftCards", Changed: true}}
	if got := (shopify.Shopify{}).Lists(src, api, shopifyfake.Shop)["gift_card"]; !got.ByChange || got.Lag == 0 {
		t.Errorf("listed as %+v", got)
	}
	list := func(since, until time.Time) (out []string) {
		for cursor := ""; ; {
			v, header, body := answered(t, api, shopify.Shopify{}.ListObjects(src, api, shopifyfake.Shop, "gift_card", since, until, cursor))
			page, next, err := shopify.Shopify{}.ObjectPage(src, api, shopifyfake.Shop, "gift_card", cursor, header, body)
			if err != nil || v.Kind != provider.Found {
				t.Fatalf("%+v, %v: %s", v, err, body)
			}
			for _, one := range page {
				out = append(out, one.ObjectID)
			}
			if cursor = next; next == "" {
				return out
			}
		}
	}
	if diff := cmp.Diff(ids, list(time.Time{}, time.Time{})); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{ids[2]}, list(middle, fake.Now())); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(ids, slices.Sorted(maps.Keys(filed(t, fake, "gift_card", api.Types)))); diff != "" {
		t.Error(diff)
	}
	for i, id := range ids[:2] {
		call, ok := shopify.Shopify{}.Fetch(src, api, shopifyfake.Shop, "gift_card", id)
		if !ok {
			t.Fatal("it is not read")
		}
		v, _, body := answered(t, api, call)
		if look := snapshot(t, "gift_card", id, body); v.Kind != provider.Found || look.ObjectID != id || !look.Own || !look.HasAt {
			t.Errorf("%d: %+v, %+v", i, v, look)
		}
	}
}

func TestCheckType(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		t    provider.APIType
		bad  string
	}{
		{"gift_card", provider.APIType{Get: "gift_cards/{id}.json", List: "giftCards", Changed: true}, ""},
		{"page", provider.APIType{Get: "pages/{id}.json"}, ""},
		{"fulfillment_order", provider.APIType{Get: "fulfillment_orders/{id}.json", List: "fulfillmentOrders(includeClosed: true)", Changed: true}, ""},
		{"variant", provider.APIType{List: "productVariants", Changed: true}, ""},
		{"variant", provider.APIType{Get: "variants/{id}.json", List: "productVariants"}, "leave get out"},
		{"variant", provider.APIType{}, "list: is not set"},
		{"order", provider.APIType{Get: "orders/{id}.json"}, "without being described"},
		{"inventory_level", provider.APIType{List: "x"}, "without being described"},
		{"company", provider.APIType{Get: "companies/{id}.json"}, "in the shape of its webhooks"},
		{"GiftCard", provider.APIType{Get: "gift_cards/{id}.json"}, "no name"},
		{"page", provider.APIType{Get: "pages/{id}.json", Changed: true}, "list: is not set"},
		{"page", provider.APIType{List: "pages"}, "no path"},
		{"page", provider.APIType{Get: "../pages/{id}.json"}, "no path"},
		{"page", provider.APIType{Get: "/pages/{id}.json"}, "no path"},
		{"page", provider.APIType{Get: "pages/{id}.json?x=1"}, "no path"},
		{"page", provider.APIType{Get: "pages/{id}.json", List: "pages { nodes { title } } x: pages"}, "no connection"},
		{"page", provider.APIType{Get: "pages/{id}.json", List: "pages(query: \"x\")"}, "no connection"},
	} {
		err := shopify.Shopify{}.CheckType(test.name, test.t)
		if (err == nil) != (test.bad == "") || err != nil && !strings.Contains(err.Error(), test.bad) {
			t.Errorf("%s %+v: %v, want %q", test.name, test.t, err, test.bad)
		}
	}
	// What a list would leave out is asked for, in a file too.
	api := &provider.API{Types: map[string]provider.APIType{"fulfillment_order": {List: "fulfillmentOrders(includeClosed: true)"}}}
	for _, bulk := range [][]string{nil, {"fulfillment_order"}} {
		api.Bulk = bulk
		if call := (shopify.Shopify{}).ListObjects(nil, api, "", "fulfillment_order", time.Time{}, time.Time{}, ""); !strings.Contains(string(call.Body), "includeClosed: true") {
			t.Errorf("%q: asked for %s", bulk, call.Body)
		}
	}
	// What lies below orders is not believed to be missing without the right to see old ones.
	if call := (shopify.Shopify{}).ControlObject(nil, &provider.API{}, "", "fulfillment_order", "7"); !strings.Contains(string(call.Body), "orderScopes") {
		t.Errorf("asked for %s", call.Body)
	}
}
