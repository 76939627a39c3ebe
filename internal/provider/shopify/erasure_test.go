package shopify_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/shopify"
)

// What the three compliance webhooks ask for; a body under another shop, of another topic, or of nobody, is not believed. Only a body that has what its topic's have and nothing else
// proves it.
func TestErasure(t *testing.T) {
	t.Parallel()
	const shop = "x.myshopify.com"
	const dataRequest = `{"shop_id": 1, "shop_domain": "x.myshopify.com", "customer": {"id": 3, "email": "a@b.c"}, "orders_requested": [9], "data_request": {"id": 9999}}`
	values := func(pairs ...string) (all []provider.PathValue) {
		for i := 0; i < len(pairs); i += 2 {
			all = append(all, provider.PathValue{Path: pairs[i], Value: pairs[i+1]})
		}
		return all
	}
	for _, c := range []struct {
		topic, body string
		want        *provider.Erasure
	}{
		{"shop/redact", `{"shop_id": 1, "shop_domain": "X.myshopify.com"}`, &provider.Erasure{Kind: "redact", Account: shop, All: true, Proven: true}},
		{"shop/redact", `{"shop_domain": "X.myshopify.com"}`, &provider.Erasure{Kind: "redact", Account: shop, All: true}},
		{"shop/redact", `{"shop_id": 1, "shop_domain": "x.myshopify.com", "new": 2}`, &provider.Erasure{Kind: "redact", Account: shop, All: true}},
		{"customers/redact", `{"shop_id": 1, "shop_domain": "x.myshopify.com", "customer": {"id": 3}, "orders_to_redact": []}`,
			&provider.Erasure{Kind: "redact", Account: shop, Proven: true, Objects: [][2]string{{"customer", "3"}}, Values: values("$.customer.id", "3", "$.customer_id", "3")}},
		{"customers/redact", `{"shop_domain": "x.myshopify.com", "customer": {"id": 3}}`,
			&provider.Erasure{Kind: "redact", Account: shop, Objects: [][2]string{{"customer", "3"}}, Values: values("$.customer.id", "3", "$.customer_id", "3")}},
		{"customers/redact", `{"shop_domain": "x.myshopify.com", "customer": {"id": 9007199254740993, "email": "a@b.c"}, "orders_to_redact": [7, 8], "new": [9]}`,
			&provider.Erasure{Kind: "redact", Account: shop, Objects: [][2]string{{"order", "7"}, {"order", "8"}, {"customer", "9007199254740993"}},
				Values: values("$.order_id", "7", "$.order_id", "8", "$.customer.id", "9007199254740993", "$.customer_id", "9007199254740993", "$.email", "a@b.c", "$.customer.email", "a@b.c",
					"$.contact_email", "a@b.c")}},
		{"customers/data_request", `{"shop_domain": "x.myshopify.com", "customer": {"id": 3}, "orders_requested": [9]}`,
			&provider.Erasure{Kind: "tell", Account: shop, Objects: [][2]string{{"order", "9"}, {"customer", "3"}}, Values: values("$.order_id", "9", "$.customer.id", "3", "$.customer_id", "3")}},
		{"customers/redact", `{"shop_domain": "y.myshopify.com", "customer": {"id": 1}}`, nil},
		{"shop/redact", `{"shop_id": 1}`, nil},
		{"customers/redact", `{"shop_domain": "x.myshopify.com", "customer": {"id": "1 OR 1"}, "orders_to_redact": [{}]}`, nil},
		{"customers/redact", `[]`, nil},
		// Bodies of other topics: what they ask for is less, or something else.
		{"shop/redact", `{"shop_id": 1, "shop_domain": "x.myshopify.com", "customer": {"id": 3}, "orders_to_redact": [9]}`, nil},
		{"shop/redact", `{"shop_id": 1, "shop_domain": "x.myshopify.com", "customer": {"id": 3}}`, nil},
		{"shop/redact", `{"shop_id": 1, "shop_domain": "x.myshopify.com", "data_request": null}`, nil},
		{"shop/redact", dataRequest, nil},
		{"customers/redact", dataRequest, nil},
		{"customers/redact", `{"shop_id": 1, "shop_domain": "x.myshopify.com", "customer": {"id": 3}, "orders_requested": []}`, nil},
		{"customers/data_request", `{"shop_id": 1, "shop_domain": "x.myshopify.com", "customer": {"id": 3}, "orders_to_redact": []}`, nil},
		{"orders/create", `{"shop_domain": "x.myshopify.com", "customer": {"id": 1}}`, nil},
	} {
		got, err := shopify.Shopify{}.Erasure(&provider.Stored{Type: c.topic, Account: shop, Body: []byte(c.body)})
		if (err != nil) != (c.want == nil) {
			t.Errorf("%s %s: %v", c.topic, c.body, err)
			continue
		}
		if got != nil {
			got.Within = 0
		}
		if diff := cmp.Diff(c.want, got); c.want != nil && diff != "" {
			t.Errorf("%s %s: %s", c.topic, c.body, diff)
		}
	}
}
