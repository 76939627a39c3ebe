package shopify_test

import (
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/providertest"
	"github.com/postern-gateway/postern/internal/provider/shopify"
	"github.com/postern-gateway/postern/internal/testkit"
)

const shop = "postern-demo.myshopify.com"

func suite() providertest.Suite {
	return providertest.Suite{
		Provider: shopify.Shopify{},
		Source: &provider.Source{Name: "shopify", Account: shop, Secrets: []provider.Secret{
			{Name: "new", Value: []byte("shpss_test_new")}, {Name: "old", Value: []byte("shpss_test_old")}}},
		VariantsChange: true,
		Signature:      "X-Shopify-Hmac-Sha256",
		NoKey: func(_ *testing.T, _ *provider.Source, d *provider.Delivery) {
			d.Header.Del("X-Shopify-Webhook-Id")
		},
	}
}

func TestProvider_conforms(t *testing.T) {
	t.Parallel()
	providertest.Conform(t, suite())
}

// The requests of the three compliance webhooks. A body of another shop, of another topic or
// without a person is not trusted. Only a body with exactly the members of its topic is
// FullySigned.
func TestErasure_bodies_giveRequest(t *testing.T) {
	t.Parallel()
	const shop = "x.myshopify.com"
	const dataRequest = `{"shop_id": 1, "shop_domain": "x.myshopify.com", "customer": {"id": 3, "email": "a@b.c"}, ` +
		`"orders_requested": [9], "data_request": {"id": 9999}}`
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
		{"shop/redact", `{"shop_id": 1, "shop_domain": "X.myshopify.com"}`,
			&provider.Erasure{Kind: "redact", Account: shop, AllEvents: true, FullySigned: true}},
		{"shop/redact", `{"shop_domain": "X.myshopify.com"}`, &provider.Erasure{Kind: "redact", Account: shop,
			AllEvents: true}},
		{"shop/redact", `{"shop_id": 1, "shop_domain": "x.myshopify.com", "new": 2}`,
			&provider.Erasure{Kind: "redact", Account: shop, AllEvents: true}},
		{"customers/redact",
			`{"shop_id": 1, "shop_domain": "x.myshopify.com", "customer": {"id": 3}, "orders_to_redact": []}`,
			&provider.Erasure{Kind: "redact", Account: shop, FullySigned: true, Objects: [][2]string{{"customer", "3"}},
				Values: values("$.customer.id", "3", "$.customer_id", "3")}},
		{"customers/redact", `{"shop_domain": "x.myshopify.com", "customer": {"id": 3}}`,
			&provider.Erasure{Kind: "redact", Account: shop, Objects: [][2]string{{"customer", "3"}},
				Values: values("$.customer.id", "3", "$.customer_id", "3")}},
		{"customers/redact",
			`{"shop_domain": "x.myshopify.com", "customer": {"id": 9007199254740993, "email": "a@b.c"}, ` +
				`"orders_to_redact": [7, 8], "new": [9]}`,
			&provider.Erasure{Kind: "redact", Account: shop, Objects: [][2]string{{"order", "7"}, {"order", "8"},
				{"customer", "9007199254740993"}},
				Values: values("$.order_id", "7", "$.order_id", "8", "$.customer.id", "9007199254740993",
					"$.customer_id", "9007199254740993", "$.email", "a@b.c", "$.customer.email", "a@b.c",
					"$.contact_email", "a@b.c")}},
		{"customers/data_request", `{"shop_domain": "x.myshopify.com", "customer": {"id": 3}, "orders_requested": [9]}`,
			&provider.Erasure{Kind: "report", Account: shop, Objects: [][2]string{{"order", "9"}, {"customer", "3"}},
				Values: values("$.order_id", "9", "$.customer.id", "3", "$.customer_id", "3")}},
		{"customers/redact", `{"shop_domain": "y.myshopify.com", "customer": {"id": 1}}`, nil},
		{"shop/redact", `{"shop_id": 1}`, nil},
		{"customers/redact",
			`{"shop_domain": "x.myshopify.com", "customer": {"id": "1 OR 1"}, "orders_to_redact": [{}]}`,
			nil},
		{"customers/redact", `[]`, nil},
		// Bodies sent under another topic must not request more.
		{"shop/redact",
			`{"shop_id": 1, "shop_domain": "x.myshopify.com", "customer": {"id": 3}, "orders_to_redact": [9]}`, nil},
		{"shop/redact", `{"shop_id": 1, "shop_domain": "x.myshopify.com", "customer": {"id": 3}}`, nil},
		{"shop/redact", `{"shop_id": 1, "shop_domain": "x.myshopify.com", "data_request": null}`, nil},
		{"shop/redact", dataRequest, nil},
		{"customers/redact", dataRequest, nil},
		{"customers/redact",
			`{"shop_id": 1, "shop_domain": "x.myshopify.com", "customer": {"id": 3}, "orders_requested": []}`, nil},
		{"customers/data_request",
			`{"shop_id": 1, "shop_domain": "x.myshopify.com", "customer": {"id": 3}, "orders_to_redact": []}`, nil},
		{"orders/create", `{"shop_domain": "x.myshopify.com", "customer": {"id": 1}}`, nil},
	} {
		got, err := shopify.Shopify{}.Erasure(&provider.StoredEvent{Type: c.topic, Account: shop, Body: []byte(c.body)})
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

// newDelivery returns a delivery with the given headers, in pairs.
func newDelivery(body string, headers ...string) *provider.Delivery {
	d := &provider.Delivery{Header: http.Header{}, Body: []byte(body)}
	for pair := range slices.Chunk(headers, 2) {
		d.Header.Set(pair[0], pair[1])
	}
	return d
}

func identify(t *testing.T, src *provider.Source, d *provider.Delivery) provider.Event {
	t.Helper()
	events, err := shopify.Shopify{}.Identify(src, d)
	if err != nil || len(events) != 1 {
		t.Fatalf("identify: %d events, %v", len(events), err)
	}
	return events[0]
}

func TestIdentify_event_isNamed(t *testing.T) {
	t.Parallel()
	d := newDelivery(`{"id": 7}`, "X-Shopify-Topic", "orders/delete", "X-Shopify-Shop-Domain", "My-Shop.myshopify.com",
		"X-Shopify-Webhook-Id", "w-1", "X-Shopify-Event-Id", "e-1", "X-Shopify-API-Version", "2026-07",
		"X-Shopify-Triggered-At", "2026-01-01T00:00:00.5Z")
	src := &provider.Source{Account: "my-shop.myshopify.com"}
	want := provider.Event{Key: "w-1", Type: "orders/delete", Account: "my-shop.myshopify.com", ObjectType: "order",
		ObjectID:   "7",
		OccurredAt: time.Date(2026, 1, 1, 0, 0, 0, 5e8, time.UTC), APIVersion: "2026-07",
		Fingerprint: provider.BodyFingerprint([]byte(`{"id": 7}`))}
	if diff := cmp.Diff(want, identify(t, src, d)); diff != "" {
		t.Error(diff)
	}
	src.Key = "event-id"
	if e := identify(t, src, d); e.Key != "e-1" {
		t.Errorf("key %s, want the event's id", e.Key)
	}
	src.Key = "webhook-id"
	if e := identify(t, src, d); e.Key != "w-1" {
		t.Errorf("key %s, want the webhook's id", e.Key)
	}
}

func TestIdentify_invalidKeyHeader_getsContentKey(t *testing.T) {
	t.Parallel()
	src := &provider.Source{Accounts: []string{"*"}}
	for _, id := range []string{"", "\xff", strings.Repeat("x", 256)} {
		a := identify(t, src, newDelivery(`{"id": 7}`, "X-Shopify-Topic", "orders/delete", "X-Shopify-Shop-Domain",
			"a.myshopify.com", "X-Shopify-Webhook-Id", id))
		b := identify(t, src, newDelivery(`{"id": 7}`, "X-Shopify-Topic", "orders/delete", "X-Shopify-Shop-Domain",
			"b.myshopify.com", "X-Shopify-Webhook-Id", id))
		if !a.ContentKey || a.Key == "" || a.Key == b.Key {
			t.Errorf("id %q: keys %s and %s of two shops", id, a.Key, b.Key)
		}
	}
}

func TestIdentify_shops_areAllowedOrRejected(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		src    provider.Source
		header string
		want   string
		reason provider.Reason
	}{
		"pinned":                   {provider.Source{Account: "a.example"}, "a.example", "a.example", ""},
		"own shop, other case":     {provider.Source{Account: "A.Example"}, "a.EXAMPLE", "a.example", ""},
		"own shop, no header":      {provider.Source{Account: "a.example"}, "", "a.example", ""},
		"own shop, another header": {provider.Source{Account: "a.example"}, "b.example", "", provider.ForbiddenAccount},
		"listed": {provider.Source{Accounts: []string{"a.example", "b.example"}}, "b.example",
			"b.example", ""},
		"not listed": {provider.Source{Accounts: []string{"a.example"}}, "b.example", "",
			provider.ForbiddenAccount},
		"any":                 {provider.Source{Accounts: []string{"*"}}, "b.example", "b.example", ""},
		"any shop, no header": {provider.Source{Accounts: []string{"*"}}, "", "", provider.MissingHeader},
		"any shop, header is no domain": {provider.Source{Accounts: []string{"*"}}, "b.example/x", "",
			provider.ForbiddenAccount},
		"any shop, header is not ASCII": {provider.Source{Accounts: []string{"*"}}, "bé.example", "",
			provider.ForbiddenAccount},
		"nothing configured":       {provider.Source{}, "b.example", "", provider.ForbiddenAccount},
		"own shop, star as header": {provider.Source{Account: "a.example"}, "*", "", provider.ForbiddenAccount},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDelivery(`{"id": 7}`, "X-Shopify-Topic", "orders/delete", "X-Shopify-Shop-Domain", test.header)
			events, err := shopify.Shopify{}.Identify(&test.src, d)
			var r *provider.Rejection
			if errors.As(err, &r); test.reason != "" {
				if r == nil || r.Reason != test.reason {
					t.Errorf("identify: %v, want %s", err, test.reason)
				}
				return
			}
			if err != nil || events[0].Account != test.want {
				t.Errorf("identify: %+v, %v, want %s", events, err, test.want)
			}
		})
	}
}

func TestCheck_account_mustBeAShop(t *testing.T) {
	t.Parallel()
	secrets := []provider.Secret{{Name: "s", Value: []byte("x")}}
	tests := map[string]struct {
		src  provider.Source
		want string
	}{
		"none":      {provider.Source{Secrets: secrets}, "name the shop"},
		"no domain": {provider.Source{Secrets: secrets, Account: "my shop"}, "not a shop's domain"},
		"a URL": {provider.Source{Secrets: secrets, Accounts: []string{"https://a.example"}},
			"not a shop's domain"},
		"any":      {provider.Source{Secrets: secrets, Accounts: []string{"*"}}, ""},
		"by event": {provider.Source{Secrets: secrets, Account: "a.example", Key: "event-id"}, ""},
	}
	for name, test := range tests {
		err := shopify.Shopify{}.Check(&test.src)
		if test.want == "" && err != nil || test.want != "" &&
			(err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
	}
}

// A delivery of the Events family is recognized by its signature header, even if both families'
// headers are present.
func TestVerify_eventsFamily_isAccepted(t *testing.T) {
	t.Parallel()
	src := suite().Source
	body := `{"topic": "Product", "action": "update", "data": {"product": {"id": "gid://shopify/Product/7", "title": "Kettle"}}}`
	d, err := shopify.Shopify{}.Sign(src, provider.Sample{Type: "Product/update", Body: []byte(body)},
		time.Unix(1_700_000_000, 0))
	testkit.Must(t, err)
	d.Header.Set("X-Shopify-Topic", "orders/delete")
	d.Header.Set("X-Shopify-Hmac-Sha256", "AAAA")
	v, err := shopify.Shopify{}.Verify(src, d)
	if err != nil || v.Scheme != "shopify-events" {
		t.Fatalf("verify: %+v, %v", v, err)
	}
	e := identify(t, src, d)
	if e.Type != "Product/update" || e.ObjectType != "product" || e.ObjectID != "7" || e.ContentKey {
		t.Errorf("identify: %+v", e)
	}
	d.Header.Set("Shopify-Hmac-Sha256", "AAAA")
	if _, err := (shopify.Shopify{}).Verify(src, d); err == nil {
		t.Error("a wrong signature of the Events family is accepted because of the older header")
	}
}

func TestObserve_eventsFamily_bodies(t *testing.T) {
	t.Parallel()
	const partial = ", partial: the body contains only what the subscription's query requested"
	tests := []struct{ eventType, body, want string }{
		{"Product/update", `{"topic": "Product", "action": "update", "data": {"product": {"id": "gid://shopify/Product/7"}}}`, "product 7" + partial},
		{"Order/create", `{"topic": "Order", "action": "create", "query_variables": {"orderId": "gid://shopify/Order/7"}}`, "order 7" + partial},
		{"ProductVariant/update",
			`{"topic": "ProductVariant", "action": "update", "query_variables": {"productVariantId": "gid://shopify/ProductVariant/7"}}`, "variant 7" + partial},
		{"PriceList/update", `{"topic": "PriceList", "action": "update", "query_variables": {"priceListId": "gid://shopify/PriceList/7"}}`, "price_list 7" + partial},
		{"Product/update", `{"topic": "Product", "action": "update", "fields_changed": ["product[id: 'gid://shopify/Product/7'].title"]}`, "product 7" + partial},
		{"Product/update", `{"topic": "Product", "action": "update", "fields_changed": {"added": [], "updated": ["product[id: 'gid://shopify/Product/7'].title"]}}`, "product 7" + partial},
		{"Product/delete", `{"topic": "Product", "action": "delete", "query_variables": {"productId": "gid://shopify/Product/7"}, "data": {"product": null}}`,
			"product 7, rank 1, deleted, final, no state"},
		{"ProductVariant/delete",
			`{"topic": "ProductVariant", "action": "delete", "query_variables": {"productVariantId": "gid://shopify/ProductVariant/7"}}`,
			"variant 7, partial: the delete has no time, and such an object may return"},
		{"PriceList/delete", `{"topic": "PriceList", "action": "delete", "query_variables": {"priceListId": "gid://shopify/PriceList/7"}}`,
			"price_list 7, partial: the delete has no time, and such an object may return"},
		{"Product/delete", `{"topic": "Product", "action": "delete", "data": {"product": {"id": "gid://shopify/Product/7"}}}`, "product 7" + partial},
		{"Product/update", `{"topic": "Product", "action": "update", "query_variables": {"productId": "gid://shopify/Order/7"}}`,
			"dead: the body does not contain the id of its Product; add the id to the subscription's query"},
		{"Product/delete", `{"topic": "Product", "action": "update", "query_variables": {"productId": "gid://shopify/Product/7"}}`,
			`dead: the headers say Product/delete and the signed body says "Product/update", so the headers ` +
				"are not trusted"},
		{"Product/delete", `{"id": 7}`,
			`dead: the headers say Product/delete and the signed body says "/", so the headers are not trusted`},
	}
	for _, test := range tests {
		if got := observed(test.eventType, test.body); got != test.want {
			t.Errorf("%s %s:\n got %s\nwant %s", test.eventType, test.body, got, test.want)
		}
	}
}

// No body or header causes a panic, an event without key or type, or an observation without one of
// the three shapes.
func FuzzDeliveries(f *testing.F) {
	for _, s := range (shopify.Shopify{}).Samples() {
		f.Add(s.Type, shop, "w-1", s.Body)
	}
	f.Add("Product/update", shop, "w-1",
		[]byte(`{"topic":"Product","action":"update","fields_changed":{"added":["product[id: 'gid://shopify/Product/7']"]}}`))
	f.Add("checkouts/delete", "\xff", "\x00", []byte(`{"name":"#7","id":1e400}`))
	f.Fuzz(func(t *testing.T, topic, domain, id string, body []byte) {
		d := newDelivery(string(body), "X-Shopify-Topic", topic, "X-Shopify-Shop-Domain", domain,
			"X-Shopify-Webhook-Id", id)
		providertest.CheckSound(t, shopify.Shopify{}, &provider.Source{Account: shop}, d)
		providertest.CheckSound(t, shopify.Shopify{}, &provider.Source{Accounts: []string{"*"}, Key: "event-id"}, d)
		noun, action, _ := strings.Cut(topic, "/")
		d = newDelivery(string(body), "Shopify-Hmac-Sha256", "x", "Shopify-Topic", noun, "Shopify-Action", action,
			"Shopify-Shop-Domain", domain)
		providertest.CheckSound(t, shopify.Shopify{}, &provider.Source{Accounts: []string{"*"}}, d)
	})
}
