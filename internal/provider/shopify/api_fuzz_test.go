package shopify_test

import (
	"net/http"
	"regexp"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/shopify"
)

// No answer makes a panic, a wait that is none, a call to somewhere else, a member without a name, or an observation of another object than was asked for.
func FuzzAnswers(f *testing.F) {
	f.Add("order", "7", "", "32/40", []byte(`{"order":{"id":7,`+wholeOrder+`}}`))
	f.Add("inventory_level", "7:8", "a b", "", []byte(`{"inventory_levels":[{"inventory_item_id":7,"location_id":8,"available":1,`+updated+`}]}`))
	f.Add("inventory_level", "7:8", "", "", []byte(`{"data":{"locations":{"nodes":[{"legacyResourceId":"8","page":{"nodes":[{"updatedAt":"2026-01-01T00:00:00Z","item":{"legacyResourceId":"7"}}],"pageInfo":{"hasNextPage":true,"endCursor":"x"}}}]}}}`))
	f.Add("product", "7", "", "1e9/1", []byte(`{"data":{"page":{"nodes":[{"id":"gid://shopify/Product/7","updatedAt":"2026-01-01T00:00:00Z"}],"pageInfo":{"hasNextPage":false}}},"extensions":{"cost":{"requestedQueryCost":1e300,"throttleStatus":{"maximumAvailable":1e300,"currentlyAvailable":-1,"restoreRate":1e-300}}}}`))
	f.Add("fulfillment", "7", "", "", []byte(`{"data":{"object":{"order":{"legacyResourceId":"8"}}}}`))
	f.Add("fulfillment", "7", "", "", []byte(`{"orders":[{"id":8,"fulfillments":[{"id":7,"updated_at":"2026-01-01T00:00:00Z"}]}]}`))
	f.Add("customer", "7", "6", "", []byte(`{"customers":[{"id":7,"updated_at":"2026-01-01T00:00:00Z"}]}`))
	f.Add("order", "7", "file 4@9", "", []byte(`{"data":{"bulk":{"status":"COMPLETED","objectCount":"7","fileSize":"70","url":"https://files.example/x"}}}`))
	f.Add("order", "7", "", "", []byte(`{"data":{"started":{"bulkOperation":{"id":"gid://shopify/BulkOperation/4"},"userErrors":[]}}}`))
	f.Add("inventory_level", "7:8", "", "", []byte(`{"id":"gid://shopify/InventoryLevel/1","updatedAt":"2026-01-01T00:00:00Z","item":{"legacyResourceId":"7"},"location":{"legacyResourceId":"8"}}`))
	below := regexp.MustCompile(`^/admin/api/2026-07/orders/[1-9][0-9]*/fulfillments/7\.json$`)
	src, api := &provider.Source{Account: shop}, &provider.API{Version: "2026-07"}
	f.Fuzz(func(t *testing.T, objectType, id, cursor, limit string, body []byte) {
		header := http.Header{"X-Shopify-Shop-Api-Call-Limit": {limit}}
		for _, status := range []int{http.StatusOK, http.StatusBadRequest, http.StatusForbidden, http.StatusNotFound} {
			v := shopify.Shopify{}.Answer(status, header, body)
			if v.Wait < 0 || v.Wait > time.Hour || v.Kind == provider.Throttled && v.Wait == 0 || v.Kind == "" {
				t.Fatalf("%d: %+v", status, v)
			}
		}
		if o, err := (shopify.Shopify{}).Snapshot(src, &provider.Snapshot{Account: shop, ObjectType: objectType, ObjectID: id, Body: body}); err == nil && (o.ObjectID != id || o.State == nil || !o.HasAt) {
			t.Fatalf("%+v", o)
		}
		if call, ok := (shopify.Shopify{}).Step(api, shop, objectType, "7", body); ok && !below.MatchString(call.Path) {
			t.Fatalf("%+v", call)
		}
		if file, ok, err := (shopify.Shopify{}).ObjectFile(objectType, cursor, header, body); ok && err == nil && !file.Ready && (file.Wait < time.Second || file.Wait > time.Minute || file.Why == "") {
			t.Fatalf("%+v", file)
		}
		if one, ok, err := (shopify.Shopify{}).ObjectLine(objectType, body); ok && (err != nil || one.ObjectID == "" || !one.HasAt) {
			t.Fatalf("%+v, %v", one, err)
		}
		page, _, err := shopify.Shopify{}.ObjectPage(src, api, shop, objectType, cursor, header, body)
		for _, one := range page {
			if err != nil || one.ObjectID == "" || !one.HasAt {
				t.Fatalf("%+v, %v", one, err)
			}
		}
	})
}
