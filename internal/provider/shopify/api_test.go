package shopify_test

import (
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/providertest"
	"github.com/postern-gateway/postern/internal/provider/shopify"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/shopifyfake"
)

// apiOf returns the API of a fake shop, and its source.
func apiOf(t *testing.T, fake *shopifyfake.Fake) (*provider.Source, *provider.API) {
	t.Helper()
	src := &provider.Source{Account: "Fake.myshopify.com"}
	api := &provider.API{BaseURL: fake.URL, Key: provider.Secret{Value: []byte(shopifyfake.Key)}}
	testkit.Must(t, (shopify.Shopify{}).CompleteAPI(api))
	testkit.Must(t, (shopify.Shopify{}).SetBaseURL(src, api))
	return src, api
}

// callAPI makes a call and returns its verdict.
func callAPI(t *testing.T, api *provider.API, call provider.Call) (provider.Verdict, http.Header, []byte) {
	t.Helper()
	return providertest.Call(t, shopify.Shopify{}, api, call)
}

func TestCompleteAPI_settings_areCompletedOrRejected(t *testing.T) {
	t.Parallel()
	api := &provider.API{Key: provider.Secret{Value: []byte("shpat_x")}}
	if err := (shopify.Shopify{}).CompleteAPI(api); err != nil || api.Version != "2026-07" || api.Rate != 1 ||
		api.Concurrency != 2 {
		t.Errorf("completed: %+v, %v", api, err)
	}
	set := provider.API{BaseURL: "https://x.example", Version: "2026-10", Rate: 7, Concurrency: 3}
	completed := set
	if err := (shopify.Shopify{}).CompleteAPI(&completed); err != nil || !cmp.Equal(set, completed) {
		t.Errorf("completed: %+v, %v, want it unchanged", completed, err)
	}
	if err := (shopify.Shopify{}).CompleteAPI(&provider.API{Version: "2026-08"}); err == nil ||
		!strings.Contains(err.Error(), "version") {
		t.Errorf("an invalid version: %v", err)
	}
	if err := (shopify.Shopify{}).CompleteAPI(&provider.API{Key: provider.Secret{Value: []byte("shpss_x1y2")}}); err ==
		nil || !strings.Contains(err.Error(), "client secret") || strings.Contains(err.Error(), "x1y2") {
		t.Errorf("the client secret as the key: %v", err)
	}
}

// The key is sent only to the source's own shop.
func TestSetBaseURL_accounts_giveShopAddress(t *testing.T) {
	t.Parallel()
	tests := []struct {
		src       provider.Source
		base      string
		want, bad string
	}{
		{provider.Source{Account: "My-Shop.myshopify.com"}, "", "https://my-shop.myshopify.com", ""},
		{provider.Source{Account: "my-shop.myshopify.com"}, "https://mirror.example", "https://mirror.example", ""},
		{provider.Source{Account: "shop.example"}, "https://mirror.example", "https://mirror.example", ""},
		{provider.Source{Account: "shop.example"}, "", "", "own domain"},
		{provider.Source{Accounts: []string{"my-shop.myshopify.com"}}, "", "", "account"},
		{provider.Source{Accounts: []string{"*"}}, "https://mirror.example", "", "account"},
	}
	for _, test := range tests {
		api := &provider.API{BaseURL: test.base}
		err := shopify.Shopify{}.SetBaseURL(&test.src, api)
		if test.bad != "" && (err == nil || !strings.Contains(err.Error(), test.bad)) || test.bad == "" &&
			(err != nil || api.BaseURL != test.want) {
			t.Errorf("%+v at %q: %q, %v, want %q", test.src, test.base, api.BaseURL, err, test.want+test.bad)
		}
	}
	api := &provider.API{Version: "2026-07"}
	for _, account := range []string{"", "other.myshopify.com", "Fake.myshopify.com"} {
		if _, ok := (shopify.Shopify{}).Fetch(&provider.Source{Account: "fake.myshopify.com"}, api, account, "order",
			"7"); ok {
			t.Errorf("an order of the account %q would be requested with another shop's key", account)
		}
		if len(shopify.Shopify{}.Lists(&provider.Source{Account: "fake.myshopify.com", Accounts: []string{"*"}}, api,
			account)) > 0 {
			t.Errorf("lists of the account %q with another shop's key", account)
		}
	}
}

func TestAnswer_responses_giveVerdict(t *testing.T) {
	t.Parallel()
	const bucket = `"extensions":{"cost":{"requestedQueryCost":252,` +
		`"throttleStatus":{"maximumAvailable":2000,"currentlyAvailable":%d,"restoreRate":100}}}`
	tests := []struct {
		status int
		header http.Header
		body   string
		kind   provider.VerdictKind
		wait   time.Duration
		detail string
	}{
		{200, nil, `{"data":{"page":{}},` + fmt.Sprintf(bucket, 1500) + `}`, provider.Found, 0, ""},
		{200, nil, `{"data":{"page":{}},` + fmt.Sprintf(bucket, 700) + `}`, provider.Found, 3 * time.Second, ""},
		{200, nil, `{"errors":[{"message":"Throttled","extensions":{"code":"THROTTLED"}}],` + fmt.Sprintf(bucket, 200) +
			`}`, provider.Throttled, 8 * time.Second, "points"},
		{200, nil, `{"errors":[{"message":"Throttled","extensions":{"code":"THROTTLED"}}]}`, provider.Throttled,
			time.Second, "points"},
		{200, nil, `{"errors":[{"message":"Field 'giftCardz' doesn't exist on type 'QueryRoot'",` +
			`"extensions":{"code":"undefinedField","typeName":"QueryRoot","fieldName":"giftCardz"}}]}`,
			provider.Rejected, 0, "(undefinedField): if the source describes the type, correct api.types.TYPE.list"},
		{200, nil, `{"errors":[{"message":"Field 'giftCards' doesn't accept argument 'x'",` +
			`"extensions":{"code":"argumentNotAccepted"}}]}`,
			provider.Rejected, 0, "changed"},
		{200, nil, `{"errors":[{"message":"Access denied for orders field. Required access: ` + "`read_orders`" +
			` access scope.","extensions":{"code":"ACCESS_DENIED"}}]}`, provider.Rejected, 0, "read_orders"},
		{200, nil, `{"errors":[{"message":"This app is not approved to access the Order object. See https://shopify.dev/docs/apps/launch/protected-customer-data for more details.",` +
			`"extensions":{"code":"ACCESS_DENIED","documentation":"https://shopify.dev/api/usage/access-scopes"}}]}`,
			provider.Rejected, 0, "protected customer data"},
		{200, nil, `{"errors":[{"message":"This app is not approved to use the email field.",` +
			`"extensions":{"code":"ACCESS_DENIED"}}]}`,
			provider.Rejected, 0, "Partner Dashboard"},
		{200, nil, `{"errors":[{"message":"no","extensions":{"code":"SHOP_INACTIVE"}}]}`, provider.Rejected,
			time.Minute, "closed"},
		{200, nil, `{"errors":[{"message":"Invalid cursor for current pagination sort."}]}`, provider.Expired, 0,
			"cursor"},
		{200, nil, `{"data":null,"errors":[{"message":"boom shpat_x","extensions":{"code":"INTERNAL_SERVER_ERROR"}}]}`,
			provider.Failure, 0, "INTERNAL_SERVER_ERROR"},
		{200, nil, `{"errors":"boom"}`, provider.Failure, 0, "not GraphQL errors"},
		{200, nil, `{"data":{"object":null}}`, provider.Missing, 0, "null"},
		{200, nil, `{"inventory_levels":[]}`, provider.Missing, 0, "not stocked"},
		{200, nil, `{"inventory_levels":[{}]}`, provider.Found, 0, ""},
		{200, nil, `{"data":{"orderScopes":{"accessScopes":[{"handle":"read_orders"}]}}}`, provider.Rejected, 0,
			"read_all_orders"},
		{200, nil, `{"data":{"orderScopes":{"accessScopes":[{"handle":"read_orders"},{"handle":"read_all_orders"}]}}}`,
			provider.Found, 0, ""},
		{200, http.Header{"X-Shopify-Shop-Api-Call-Limit": {"20/40"}}, `{"order":{}}`, provider.Found, 0, ""},
		{200, http.Header{"X-Shopify-Shop-Api-Call-Limit": {"32/40"}}, `{"order":{}}`, provider.Found, 6 * time.Second,
			""},
		{200, http.Header{"X-Shopify-Shop-Api-Call-Limit": {"NaN/Inf"}}, `{"order":{}}`, provider.Found, 0, ""},
		{400, nil, `{"errors":{"order":"Required parameter missing or invalid"}}`, provider.Failure, 0, "400"},
		{401, nil, `{"errors":"[API] Invalid API key or access token"}`, provider.Rejected, time.Minute,
			"access token"},
		{402, nil, `{"errors":"Unavailable Shop"}`, provider.Rejected, time.Minute, "frozen"},
		{403, nil, `{"errors":"[API] This action requires merchant approval for read_customers scope."}`,
			provider.Rejected, 0, "read_customers"},
		{403, nil, `{"errors":"[API] This app is not approved to access REST endpoints with protected customer data. See https://partners.shopify.com/1/apps/2/customer_data for more details."}`,
			provider.Rejected, 0, "protected customer data"},
		{403, nil, `{"errors":"no"}`, provider.Rejected, 0, "read scope"},
		{404, nil, `{"errors":"Not Found"}`, provider.Missing, 0, "404"},
		{404, nil, `<html>`, provider.Failure, 0, "404"},
		{423, nil, `{"errors":"This shop is locked"}`, provider.Rejected, time.Minute, "locked"},
		{429, http.Header{"Retry-After": {"2.0"}}, `{"errors":"Exceeded"}`, provider.Throttled, 2 * time.Second, "429"},
		{502, nil, `<html>`, provider.Failure, 0, "502"},
	}
	for _, test := range tests {
		v := shopify.Shopify{}.Answer(test.status, test.header, []byte(test.body))
		if v.Kind != test.kind || v.Wait != test.wait || !strings.Contains(v.Detail, test.detail) ||
			strings.Contains(v.Detail, "shpat") {
			t.Errorf("%d %s: %+v, want %s after %s with %q", test.status, test.body, v, test.kind, test.wait,
				test.detail)
		}
	}
}

// No response causes a panic, an invalid wait, a call to another host, a member without a name, or
// an observation of another object.
func FuzzAnswers(f *testing.F) {
	f.Add("order", "7", "", "32/40", []byte(`{"order":{"id":7,`+wholeOrder+`}}`))
	f.Add("inventory_level", "7:8", "a b", "",
		[]byte(`{"inventory_levels":[{"inventory_item_id":7,"location_id":8,"available":1,`+updated+`}]}`))
	f.Add("inventory_level", "7:8", "", "", []byte(`{"data":{"locations":{"nodes":[{"legacyResourceId":"8",`+
		`"page":{"nodes":[{"updatedAt":"2026-01-01T00:00:00Z","item":{"legacyResourceId":"7"}}],`+
		`"pageInfo":{"hasNextPage":true,"endCursor":"x"}}}]}}}`))
	f.Add("product", "7", "", "1e9/1",
		[]byte(`{"data":{"page":{"nodes":[{"id":"gid://shopify/Product/7","updatedAt":"2026-01-01T00:00:00Z"}],"pageInfo":{"hasNextPage":false}}},"extensions":{"cost":{"requestedQueryCost":1e300,"throttleStatus":{"maximumAvailable":1e300,"currentlyAvailable":-1,"restoreRate":1e-300}}}}`))
	f.Add("fulfillment", "7", "", "", []byte(`{"data":{"object":{"order":{"legacyResourceId":"8"}}}}`))
	f.Add("fulfillment", "7", "", "",
		[]byte(`{"orders":[{"id":8,"fulfillments":[{"id":7,"updated_at":"2026-01-01T00:00:00Z"}]}]}`))
	f.Add("customer", "7", "6", "", []byte(`{"customers":[{"id":7,"updated_at":"2026-01-01T00:00:00Z"}]}`))
	f.Add("order", "7", "file 4@9", "",
		[]byte(`{"data":{"bulk":{"status":"COMPLETED","objectCount":"7","fileSize":"70","url":"https://files.example/x"}}}`))
	f.Add("order", "7", "", "",
		[]byte(`{"data":{"started":{"bulkOperation":{"id":"gid://shopify/BulkOperation/4"},"userErrors":[]}}}`))
	f.Add("inventory_level", "7:8", "", "",
		[]byte(`{"id":"gid://shopify/InventoryLevel/1","updatedAt":"2026-01-01T00:00:00Z","item":{"legacyResourceId":"7"},"location":{"legacyResourceId":"8"}}`))
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
		if o, err := (shopify.Shopify{}).Snapshot(src, &provider.Snapshot{Account: shop, ObjectType: objectType,
			ObjectID: id, Body: body}); err == nil && (o.ObjectID != id || o.State == nil || !o.HasAt) {
			t.Fatalf("%+v", o)
		}
		if call, ok := (shopify.Shopify{}).SecondCall(api, shop, objectType, "7", body); ok &&
			!below.MatchString(call.Path) {
			t.Fatalf("%+v", call)
		}
		if file, ok, err := (shopify.Shopify{}).ObjectFile(objectType, cursor, header, body); ok && err == nil &&
			!file.Ready && (file.Wait < time.Second || file.Wait > time.Minute || file.Reason == "") {
			t.Fatalf("%+v", file)
		}
		if one, ok, err := (shopify.Shopify{}).ObjectLine(objectType, body); ok &&
			(err != nil || one.ObjectID == "" || !one.HasAt) {
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
