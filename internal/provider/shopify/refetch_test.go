package shopify_test

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/shopify"
	"github.com/postern-gateway/postern/internal/testkit/shopifyfake"
)

// read makes a refetch: Fetch, and the second call if there is one.
func read(t *testing.T, fake *shopifyfake.Fake, objectType, id string) (provider.Verdict, []byte) {
	t.Helper()
	src, api := apiOf(t, fake)
	call, ok := shopify.Shopify{}.Fetch(src, api, shopifyfake.Shop, objectType, id)
	if !ok {
		t.Fatalf("%s %s is not read", objectType, id)
	}
	v, _, body := callAPI(t, api, call)
	if next, ok := (shopify.Shopify{}).SecondCall(api, shopifyfake.Shop, objectType, id, body); ok &&
		v.Kind == provider.Found {
		v, _, body = callAPI(t, api, next)
	}
	return v, body
}

// Every object is read completely, in the format and version of its webhook. A deleted object is
// reported as missing.
func TestSnapshot_everyType_isRead(t *testing.T) {
	t.Parallel()
	fake := shopifyfake.New(t, shopifyfake.Options{Seed: 4})
	fake.RunSteps(700)
	counts := map[string]int{}
	for _, o := range fake.CurrentObjects() {
		v, body := read(t, fake, o.Type, o.ID)
		if o.Body == nil {
			if counts[o.Type+" deleted"]++; v.Kind != provider.Missing {
				t.Errorf("%s %s is deleted: %+v: %s", o.Type, o.ID, v, body)
			}
			continue
		}
		counts[o.Type]++
		refetched := snapshot(t, o.Type, o.ID, body)
		topic := o.Type + "s/update"
		if o.Type == "order" {
			topic = "orders/updated"
		}
		event, err := shopify.Shopify{}.Observe(&provider.Source{},
			&provider.StoredEvent{Type: topic, Account: shopifyfake.Shop, Body: o.Body})
		if err != nil || v.Kind != provider.Found || refetched.ObjectID != event.ObjectID || refetched.At != event.At ||
			refetched.Unit != event.Unit || refetched.OwnVersion != event.OwnVersion ||
			refetched.MayNotAdvance != event.MayNotAdvance ||
			string(refetched.State.Raw()) != string(event.State.Raw()) {
			t.Errorf("%s %s: %+v, refetched %+v, event %+v, %v", o.Type, o.ID, v, refetched, event, err)
		}
	}
	for _, objectType := range fakeTypes {
		if counts[objectType] == 0 || counts[objectType+" deleted"] == 0 && objectType != "location" {
			t.Errorf("%s: %d found, %d deleted, so this test proves nothing", objectType, counts[objectType],
				counts[objectType+" deleted"])
		}
	}
}

// A refund is read below its order, equals its webhook, and is missing if its order is.
func TestSecondCall_refund_readsBelowOrder(t *testing.T) {
	t.Parallel()
	fake := shopifyfake.New(t, shopifyfake.Options{Seed: 4})
	id := fake.Create("refund")
	var event provider.Observation
	fake.Deliver(func(d *provider.Delivery) bool {
		if topic := d.Header.Get("X-Shopify-Topic"); topic == "refunds/create" {
			var err error
			if event, err = (shopify.Shopify{}).Observe(&provider.Source{},
				&provider.StoredEvent{Type: topic, Account: shopifyfake.Shop, Body: d.Body}); err != nil {
				t.Fatal(err)
			}
		}
		return true
	})
	v, body := read(t, fake, "refund", id)
	refetched := snapshot(t, "refund", id, body)
	if v.Kind != provider.Found || event.ObjectID != id || refetched.ObjectID != id || refetched.OwnVersion ||
		refetched.At != event.At || string(refetched.State.Raw()) != string(event.State.Raw()) {
		t.Errorf("%+v, refetched %+v, event %+v", v, refetched, event)
	}
	for _, o := range fake.CurrentObjects() {
		if o.Type == "order" {
			fake.Delete("order", o.ID, true)
		}
	}
	if v, body := read(t, fake, "refund", id); v.Kind != provider.Missing {
		t.Errorf("the order is deleted: %+v: %s", v, body)
	}
}

// To a key without read_all_orders an old order looks like a missing one. The credential check says
// that it is not to be treated as missing.
func TestObjectCredentialCheck_oldOrders_needTheirScope(t *testing.T) {
	t.Parallel()
	scopes := []string{"read_orders", "read_products", "read_fulfillments"}
	fake := shopifyfake.New(t, shopifyfake.Options{Scopes: scopes})
	id, product := fake.Create("order"), fake.Create("product")
	fake.Advance(61 * 24 * time.Hour)
	if v, _ := read(t, fake, "order", id); v.Kind != provider.Missing {
		t.Fatalf("an old order: %+v, so this test proves nothing", v)
	}
	src, api := apiOf(t, fake)
	credentialCheck := func(objectType, id string) provider.Verdict {
		v, _, _ := callAPI(t, api, shopify.Shopify{}.ObjectCredentialCheck(src, api, shopifyfake.Shop, objectType, id))
		return v
	}
	if v := credentialCheck("order", id); v.Kind != provider.Rejected ||
		!strings.Contains(v.Detail, "read_all_orders") {
		t.Errorf("the check for an order: %+v", v)
	}
	if v := credentialCheck("draft_order", id); v.Kind != provider.Found { // the scope does not apply to it
		t.Errorf("the check for a draft order: %+v", v)
	}
	if v := credentialCheck("product", product); v.Kind != provider.Found {
		t.Errorf("the check for a product: %+v", v)
	}
	every := shopifyfake.New(t, shopifyfake.Options{Scopes: append(scopes, "read_all_orders")})
	src, api = apiOf(t, every)
	if v := credentialCheck("order", id); v.Kind != provider.Found {
		t.Errorf("the check for an order with read_all_orders: %+v", v)
	}
}

func TestSnapshot_malformedBody_isDead(t *testing.T) {
	t.Parallel()
	many := `{"product":{"id":7,` + wholeProduct + `,"variants":[` + strings.Repeat(`{},`, 99) + `{}]}}`
	tests := []struct{ objectType, id, body, want string }{
		{"order", "7", `{"order":{"id":8,` + wholeOrder + `}}`, `returned "8"`},
		{"order", "7", `{"id":7,` + wholeOrder + `}`, "something else"},
		{"order", "7", `{"order":{"id":7,` + updated + `}}`, "the body has no line_items"},
		{"product", "7", many, "100 variants"},
		{"inventory_level", "7:8", `{"inventory_levels":[{"inventory_item_id":7,"location_id":9,"available":1,` +
			updated + `}]}`, `returned "7:9"`},
		{"inventory_level", "7:8", `{"inventory_levels":[{},{}]}`, "something else"},
		{"cart", "x", `{"cart":{}}`, "not read"},
		{"company", "7", `{"company":{"id":7,` + updated + `}}`, "not read"},
		{"moon", "7", `{"moon":{}}`, `returned ""`},
		{"moon", "7", `{"moon":{"id":7}}`, "the body has no updated_at"},
	}
	for _, test := range tests {
		_, err := shopify.Shopify{}.Snapshot(nil, &provider.Snapshot{ObjectType: test.objectType, ObjectID: test.id,
			Body: []byte(test.body)})
		var dead *provider.Dead
		if !errors.As(err, &dead) || !strings.Contains(dead.Reason, test.want) {
			t.Errorf("%s %s: %v, want %q", test.objectType, test.body, err, test.want)
		}
	}
	whole := snapshot(t, "product", "7", []byte(strings.Replace(many, "{},", "", 1)))
	if !whole.HasAt || whole.State == nil {
		t.Errorf("a product of 99 variants: %+v", whole)
	}
}

// Objects that no call can read are not requested, and no name leads to another address.
func TestFetch_types_makeCalls(t *testing.T) {
	t.Parallel()
	src, api := &provider.Source{Account: "fake.myshopify.com"}, &provider.API{Version: "2026-10"}
	tests := []struct{ objectType, id, want string }{
		{"order", "7", " /admin/api/2026-10/orders/7.json?"},
		{"inventory_level", "7:8", " /admin/api/2026-10/inventory_levels.json?inventory_item_ids=7&location_ids=8"},
		{"fulfillment", "7", "POST /admin/api/2026-10/graphql.json?"},
		{"refund", "7", "POST /admin/api/2026-10/graphql.json?"},
		{"shop", "7", " /admin/api/2026-10/shop.json?"},
		{"order", "../7", ""}, {"order", "7:8", ""}, {"order", "", ""}, {"inventory_level", "7", ""},
		{"cart", "abc", ""}, {"refund", "7:8", ""}, {"order_transaction", "7", ""}, {"moon", "7", ""},
	}
	for _, test := range tests {
		call, ok := shopify.Shopify{}.Fetch(src, api, "fake.myshopify.com", test.objectType, test.id)
		if got := fmt.Sprintf("%s %s?%s", call.Method, call.Path, call.Query.Encode()); ok != (test.want != "") || ok &&
			got != test.want {
			t.Errorf("%s %s: %s, %t, want %s", test.objectType, test.id, got, ok, test.want)
		}
	}
	if v := (shopify.Shopify{}).Answer(http.StatusOK, nil,
		[]byte(`{"data":{"object":{"order":{"legacyResourceId":"../x"}}}}`)); v.Kind != provider.Found {
		t.Errorf("%+v", v)
	}
	for _, objectType := range []string{"fulfillment", "refund", "order"} {
		if _, ok := (shopify.Shopify{}).SecondCall(api, "", objectType, "7",
			[]byte(`{"data":{"object":{"order":{"legacyResourceId":"../x"}}}}`)); ok {
			t.Error("a second call with an id that is no number")
		}
	}
	if next, ok := (shopify.Shopify{}).SecondCall(api, "", "refund", "7",
		[]byte(`{"data":{"object":{"order":{"legacyResourceId":"8"}}}}`)); !ok ||
		next.Path != "/admin/api/2026-10/orders/8/refunds/7.json" {
		t.Errorf("%+v", next)
	}
}

// A type that a source describes is read and listed like those of the table, by pages and by a bulk
// operation.
func TestFetch_describedType_isReadAndListed(t *testing.T) {
	t.Parallel()
	fake := shopifyfake.New(t, shopifyfake.Options{MaxPageSize: 3})
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
	api.Types = map[string]provider.APIType{"gift_card": {Get: "gift_cards/{id}.json", List: "giftCards",
		Changed: true}}
	if got := (shopify.Shopify{}).Lists(src, api, shopifyfake.Shop)["gift_card"]; !got.ByChange || got.Lag == 0 {
		t.Errorf("listed as %+v", got)
	}
	list := func(since, until time.Time) (out []string) {
		for _, one := range listObjects(t, src, api, "gift_card", since, until) {
			out = append(out, one.ObjectID)
		}
		return out
	}
	if diff := cmp.Diff(ids, list(time.Time{}, time.Time{})); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{ids[2]}, list(middle, fake.Now())); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(ids, slices.Sorted(maps.Keys(readFile(t, fake, "gift_card", api.Types)))); diff != "" {
		t.Error(diff)
	}
	for i, id := range ids[:2] {
		call, ok := shopify.Shopify{}.Fetch(src, api, shopifyfake.Shop, "gift_card", id)
		if !ok {
			t.Fatal("it is not read")
		}
		v, _, body := callAPI(t, api, call)
		if refetched := snapshot(t, "gift_card", id, body); v.Kind != provider.Found || refetched.ObjectID != id ||
			!refetched.OwnVersion || !refetched.HasAt {
			t.Errorf("%d: %+v, %+v", i, v, refetched)
		}
	}
}

func TestCheckType_descriptions_areChecked(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		t    provider.APIType
		bad  string
	}{
		{"gift_card", provider.APIType{Get: "gift_cards/{id}.json", List: "giftCards", Changed: true}, ""},
		{"page", provider.APIType{Get: "pages/{id}.json"}, ""},
		{"fulfillment_order", provider.APIType{Get: "fulfillment_orders/{id}.json",
			List: "fulfillmentOrders(includeClosed: true)", Changed: true}, ""},
		{"variant", provider.APIType{List: "productVariants", Changed: true}, ""},
		{"variant", provider.APIType{Get: "variants/{id}.json", List: "productVariants"}, "leave get out"},
		{"variant", provider.APIType{}, "list: is not set"},
		{"order", provider.APIType{Get: "orders/{id}.json"}, "without a description"},
		{"inventory_level", provider.APIType{List: "x"}, "without a description"},
		{"company", provider.APIType{Get: "companies/{id}.json"}, "in the format of its webhooks"},
		{"GiftCard", provider.APIType{Get: "gift_cards/{id}.json"}, "is not the name"},
		{"page", provider.APIType{Get: "pages/{id}.json", Changed: true}, "list: is not set"},
		{"page", provider.APIType{List: "pages"}, "is not a path"},
		{"page", provider.APIType{Get: "../pages/{id}.json"}, "is not a path"},
		{"page", provider.APIType{Get: "/pages/{id}.json"}, "is not a path"},
		{"page", provider.APIType{Get: "pages/{id}.json?x=1"}, "is not a path"},
		{"page", provider.APIType{Get: "pages/{id}.json", List: "pages { nodes { title } } x: pages"},
			"is not a connection"},
		{"page", provider.APIType{Get: "pages/{id}.json", List: "pages(query: \"x\")"}, "is not a connection"},
	} {
		err := shopify.Shopify{}.CheckType(test.name, test.t)
		if (err == nil) != (test.bad == "") || err != nil && !strings.Contains(err.Error(), test.bad) {
			t.Errorf("%s %+v: %v, want %q", test.name, test.t, err, test.bad)
		}
	}
	// Objects that a list leaves out by default are requested, in a file too.
	api := &provider.API{Types: map[string]provider.APIType{
		"fulfillment_order": {List: "fulfillmentOrders(includeClosed: true)"}}}
	for _, bulk := range [][]string{nil, {"fulfillment_order"}} {
		api.Bulk = bulk
		if call := (shopify.Shopify{}).ListObjects(nil, api, "", "fulfillment_order", time.Time{}, time.Time{},
			""); !strings.Contains(string(call.Body), "includeClosed: true") {
			t.Errorf("%q: requested %s", bulk, call.Body)
		}
	}
	// Objects below orders are not treated as missing without the right to read old orders.
	if call := (shopify.Shopify{}).ObjectCredentialCheck(nil, &provider.API{}, "", "fulfillment_order",
		"7"); !strings.Contains(string(call.Body), "orderScopes") {
		t.Errorf("requested %s", call.Body)
	}
}
