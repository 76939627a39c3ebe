package stripe_test

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/providertest"
	"github.com/postern-gateway/postern/internal/provider/stripe"
	"github.com/postern-gateway/postern/internal/testkit/stripefake"
)

// Objects whose name exists in both modes are listed only under the account of their mode. All
// others are listed under the plain account.
func TestLists_accounts_haveTypes(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		account, key, objectType string
		want                     bool
	}{
		{"", "sk_live_1", "customer", true}, {"", "rk_test_1", "customer", true},
		{"acct_1", "sk_live_1", "customer", true},
		{"", "sk_live_1", "price", true}, {"", "sk_test_1", "price", false}, {"", "another form", "price", true},
		{"test", "sk_test_1", "price", true}, {"test", "sk_live_1", "price", false},
		{"acct_1/test", "sk_test_1", "coupon", true},
		{"test", "sk_test_1", "customer", false}, {"acct_1/test", "another form", "invoice", false},
		{"", "sk_live_1", "test_helpers.test_clock", false}, {"", "sk_test_1", "test_helpers.test_clock", true},
		{"", "sk_live_1", "account", true}, {"", "rk_live_1", "account", false},
		{"acct_1", "rk_live_1", "account", true}, {"acct_1", "sk_test_1", "account", false},
		{"", "sk_live_1", "person", false}, {"acct_1", "sk_live_1", "person", true},
		{"acct_1/test", "sk_test_1", "person", false}, {"acct_1", "sk_test_1", "person", true},
		{"", "sk_live_1", "capability", false}, {"acct_1/test", "sk_test_1", "capability", true},
		{"acct_1", "sk_test_1", "capability", false},
		{"", "sk_live_1", "card", true}, {"acct_1", "sk_live_1", "bank_account", true},
		{"test", "sk_test_1", "balance", true}, {"", "sk_test_1", "balance", false},
		{"", "sk_live_1", "review", false}, {"", "sk_live_1", "tax_id", true},
		{"", "sk_live_1", "some.new_type", false},
	} {
		list, ok := stripe.Stripe{}.Lists(&provider.Source{}, withKey(tc.key), tc.account)[tc.objectType]
		if ok != tc.want || ok && (list.ByChange || list.Lag <= stripe.Stripe{}.Lag()) {
			t.Errorf("%s of %q with %s: %+v, %t", tc.objectType, tc.account, tc.key, list, ok)
		}
	}
}

func TestListObjects_types_makeCalls(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ account, objectType, cursor, want string }{
		{"", "customer", "", "/v1/customers?limit=100"},
		{"", "customer", "0:cus_9", "/v1/customers?limit=100&starting_after=cus_9"},
		{"acct_1", "invoice", "", "acct_1 /v1/invoices?limit=100 Stripe-Account=acct_1"},
		{"acct_1/test", "product", "0:gold:1", "acct_1 /v1/products?limit=100&starting_after=gold:1 " +
			"Stripe-Account=acct_1"},
		{"", "subscription", "", "/v1/subscriptions?limit=100&status=all"},
		{"", "subscription", "0:sub_1", "/v1/subscriptions?limit=100&starting_after=sub_1&status=all"},
		{"", "price", "", "/v1/prices?active=true&limit=100"},
		{"", "price", "1:", "/v1/prices?active=false&limit=100"},
		{"", "price", "1:p", "/v1/prices?active=false&limit=100&starting_after=p"},
		{"", "price", "2:p", "/v1/prices?active=true&limit=100"}, // a cursor of a release with other parts starts again
		{"", "reporting.report_type", "", "/v1/reporting/report_types"},
		{"", "account", "", "/v1/account"},
		{"acct_1/test", "account", "", "acct_1 /v1/accounts/acct_1"},
		{"acct_1", "balance", "", "acct_1 /v1/balance Stripe-Account=acct_1"},
		{"acct_1", "person", "1:x", "acct_1 /v1/accounts/acct_1/persons?limit=100"},
		{"acct_1", "card", "", "acct_1 /v1/accounts/acct_1/external_accounts?limit=100"},
		{"", "card", "", "/v1/customers?expand[]=data.sources&limit=100"},
		{"acct_1", "card", "1:cus_9", "acct_1 /v1/customers?expand[]=data.sources&limit=100&starting_after=cus_9 " +
			"Stripe-Account=acct_1"},
		{"", "card", "1:cus_9 cus_3/card_1 cus_2/", "/v1/customers/cus_3/sources?limit=100&starting_after=card_1"},
		{"", "card", "1:cus_9 a+b%2Fc/card+1", "/v1/customers/a%20b%2Fc/sources?limit=100&starting_after=card 1"},
		{"", "card", "1: cus_3/", "/v1/customers/cus_3/sources?limit=100"},
		{"", "customer", "1:", "/v1/test_helpers/test_clocks?limit=100"},
		{"", "customer", "1:clock_9 clock_1/cus_1", "/v1/customers?limit=100&starting_after=cus_1&test_clock=clock_1"},
		{"acct_1", "v2.core.account", "", "acct_1 /v2/core/accounts?closed=false&limit=100 Stripe-Context=acct_1 " +
			"Stripe-Version=2026-08-26.dahlia"},
		{"", "v2.core.account", "1:closed=true&page=p1", "/v2/core/accounts?closed=true&page=p1 " +
			"Stripe-Version=2026-08-26.dahlia"},
	} {
		listCall := stripe.Stripe{}.ListObjects(&provider.Source{}, withKey("k"), tc.account, tc.objectType,
			time.Time{}, time.Time{}, tc.cursor)
		if got := describeCall(listCall, true); got != tc.want {
			t.Errorf("%s of %q after %q: %s, want %s", tc.objectType, tc.account, tc.cursor, got, tc.want)
		}
	}
}

func TestObjectPage_pages_giveObjectsAndCursor(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ account, objectType, cursor, body, ids, next string }{
		"last": {"", "customer", "",
			`{"object": "list", "has_more": false, "data": [{"id": "cus_2"}, {"id": "cus_1", "n": 1}]}`, "cus_2 cus_1",
			""},
		"more": {"", "customer", "0:cus_9",
			`{"object": "list", "has_more": true, "data": [{"id": "cus_2"}, {"id": "cus_1"}]}`, "cus_2 cus_1",
			"0:cus_1"},
		"empty":      {"", "customer", "", `{"object": "list", "has_more": false, "data": []}`, "", ""},
		"first part": {"", "price", "", `{"object": "list", "has_more": true, "data": [{"id": "p1"}]}`, "p1", "0:p1"},
		"next part": {"", "price", "0:p1", `{"object": "list", "has_more": false, "data": [{"id": "p0"}]}`, "p0",
			"1:"},
		"last part": {"", "price", "1:", `{"object": "list", "has_more": false, "data": []}`, "", ""},
		"second API": {"", "v2.core.account", "",
			`{"data": [{"id": "acct_1"}], "next_page_url": "/v2/core/accounts?page=x&limit=100"}`, "acct_1",
			"0:page=x&limit=100"},
		"second API, last page": {"", "v2.core.account", "1:page=x", `{"data": [], "next_page_url": null}`, "", ""},
		"no list":               {"", "customer", "", `{"object": "customer", "id": "cus_1"}`, "error", ""},
		"no JSON":               {"", "customer", "", `{"object": "list"`, "error", ""},
		"empty with next page":  {"", "customer", "", `{"object": "list", "has_more": true, "data": []}`, "error", ""},
		"no id": {"", "customer", "", `{"object": "list", "has_more": false, "data": [{"object": "customer"}]}`,
			"error", ""},
		"no object": {"", "customer", "", `{"object": "list", "has_more": false, "data": ["cus_1"]}`, "error",
			""},
		"single object":    {"acct_1", "account", "", `{"object": "account", "id": "acct_1"}`, "acct_1", ""},
		"a singleton":      {"", "balance", "", `{"object": "balance", "livemode": true}`, "balance", ""},
		"no single object": {"", "account", "", `{"object": "account"}`, "error", ""},
		"external accounts": {"acct_1", "card", "",
			`{"object": "list", "has_more": false, "data": [
				{"object": "bank_account", "id": "ba_1"}, {"object": "card", "id": "card_1"}]}`, "card_1", "1:"},
		"inside owners": {"", "card", "", `{"object": "list", "has_more": true, "data": [
			{"id": "cus_3", "sources": {"object": "list", "has_more": true, "data": [
				{"object": "card", "id": "card_2"}, {"object": "bank_account", "id": "ba_1"}]}},
			{"id": "cus_2", "sources": {"object": "list", "has_more": false, "data": [
				{"object": "source", "id": "src_1"}, {"object": "card", "id": "card_1"}]}},
			{"id": "cus_1", "sources": null}]}`, "card_2 card_1", "1:cus_1 cus_3/ba_1 cus_1/"},
		"inside owners, last page": {"", "tax_id", "0:cus_9",
			`{"object": "list", "has_more": false, "data": [{"id": "cus_3", "tax_ids": {"object": "list",
				"data": [{"object": "tax_id", "id": "txi_1"}]}}]}`, "txi_1", ""},
		"pending owner, more pages": {"", "card", "1:cus_1 cus_3/ba_1 cus_1/",
			`{"object": "list", "has_more": true, "data": [{"object": "bank_account", "id": "ba_0"}]}`, "",
			"1:cus_1 cus_3/ba_0 cus_1/"},
		"pending owner, last page": {"", "card", "1:cus_1 cus_3/ba_1 cus_1/",
			`{"object": "list", "has_more": false, "data": [{"object": "card", "id": "card_0"}]}`, "card_0",
			"1:cus_1 cus_1/"},
		"last pending owner": {"", "card", "1:cus_1 cus_1/", `{"object": "list", "has_more": false, "data": []}`, "",
			"1:cus_1"},
		"owner pending after the last page": {"", "card", "1: cus_1/",
			`{"object": "list", "has_more": false, "data": []}`, "", ""},
		"owners": {"", "treasury.received_credit", "",
			`{"object": "list", "has_more": false, "data": [{"id": "fa_2"}, {"id": "fa_1"}]}`, "", "0: fa_2/ fa_1/"},
		"no owners": {"", "treasury.received_credit", "", `{"object": "list", "has_more": false, "data": []}`,
			"", ""},
		"owner without id": {"", "card", "", `{"object": "list", "has_more": false, "data": [{"object": "customer"}]}`,
			"error", ""},
		"a chosen owner": {"", "card", "", `{"object": "list", "has_more": true, "data": [{"id": "a b/c"}]}`, "",
			"1:a+b%2Fc a+b%2Fc/"},
		"pending owner with a chosen id": {"", "card", "1:a+b%2Fc a+b%2Fc/ cus_1/",
			`{"object": "list", "has_more": false, "data": []}`, "", "1:a+b%2Fc cus_1/"},
		"cut before data": {"", "card", "",
			`{"object": "list", "has_more": false, "data": [
				{"id": "cus_1", "sources": {"object": "list", "has_more": false}}]}`, "", "1: cus_1/"},
		"no next page": {"", "v2.core.account", "",
			`{"data": [{"id": "acct_1"}], "next_page_url": "https://elsewhere.example"}`, "error", ""},
	} {
		page, next, err := stripe.Stripe{}.ObjectPage(&provider.Source{}, withKey("sk_live_1"), tc.account,
			tc.objectType, tc.cursor, http.Header{}, []byte(tc.body))
		var ids []string
		for _, o := range page {
			ids = append(ids, o.ObjectID)
			if tc.objectType == "v2.core.account" {
				if o.Body != nil || o.HasAt {
					t.Errorf("%s: %s is returned by a list that cannot include all its fields: %s", name, o.ObjectID,
						o.Body)
				}
				continue
			}
			if o.HasAt || !strings.Contains(tc.body, string(o.Body)) || !strings.Contains(string(o.Body), o.ObjectID) {
				t.Errorf("%s: %s is %s", name, o.ObjectID, o.Body)
			}
		}
		if err != nil && page == nil && next == "" {
			ids = []string{"error"}
		}
		if got := strings.Join(ids, " "); got != tc.ids || next != tc.next {
			t.Errorf("%s: %q, next %q (%v)", name, got, next, err)
		}
	}
}

// call sends a call to the fake as a client does.
func call(t *testing.T, f *stripefake.Fake, c provider.Call) (provider.Verdict, http.Header, []byte) {
	t.Helper()
	return providertest.Call(t, stripe.Stripe{}, startFakeAPI(f), c)
}

func startFakeAPI(f *stripefake.Fake) *provider.API {
	api := withKey(stripefake.Key)
	api.BaseURL, api.Version = f.URL, stripefake.Version
	return api
}

// listed returns the objects of a type from all pages, each read as in a refetch.
func listed(t *testing.T, f *stripefake.Fake, account, objectType string, edit func(*provider.Call)) (ids []string) {
	t.Helper()
	all, _ := providertest.Listing{Lister: stripe.Stripe{}, Source: &provider.Source{}, API: startFakeAPI(f),
		Account: account,
		Type:    objectType, Edit: edit}.Read(t)
	for _, o := range all {
		ids = append(ids, o.ObjectID)
		if objectType == "v2.core.account" {
			o.Body = fetchAccount(t, f, account, o.ObjectID)
		}
		snapshot := &provider.Snapshot{Account: account, ObjectType: objectType, ObjectID: o.ObjectID, Body: o.Body}
		if _, err := (stripe.Stripe{}).Snapshot(&provider.Source{}, snapshot); err != nil {
			t.Errorf("%s %s: %v", objectType, o.ObjectID, err)
		}
	}
	return ids
}

// fetchAccount returns an account of the second API as a refetch reads it: with the fields that
// must be requested.
func fetchAccount(t *testing.T, f *stripefake.Fake, account, id string) []byte {
	t.Helper()
	c, _ := stripe.Stripe{}.Fetch(&provider.Source{}, withKey(stripefake.Key), account, "v2.core.account", id)
	_, _, body := call(t, f, c)
	truth, _ := f.ObjectAt(account, id, f.Now())
	var got, want any
	if json.Unmarshal(body, &got) != nil || json.Unmarshal(truth.Body, &want) != nil || !cmp.Equal(got, want) {
		t.Errorf("%s is read incorrectly: %s", id, cmp.Diff(want, got))
	}
	return body
}

// Every object of an account is listed once, whatever its status, under the account of the mirror.
func TestListObjects_allPages_showEveryObject(t *testing.T) {
	t.Parallel()
	f := stripefake.New(t, stripefake.Options{Seed: 5, IDOnlyEvents: true, Accounts: []string{"acct_1"}})
	f.RunSteps(2500)
	truth := map[string][]string{}
	for _, o := range f.CurrentObjects() {
		if o.Deleted() {
			continue
		}
		account := o.Account
		if o.Type == "product" || o.Type == "price" {
			account = strings.TrimPrefix(account+"/test", "/")
		}
		truth[account+" "+o.Type] = append(truth[account+" "+o.Type], o.ID)
	}
	for _, account := range []string{"", "test", "acct_1", "acct_1/test"} {
		for objectType := range (stripe.Stripe{}).Lists(&provider.Source{}, withKey(stripefake.Key), account) {
			want := truth[account+" "+objectType]
			if want == nil {
				continue // the fake has no such objects
			}
			delete(truth, account+" "+objectType)
			got := listed(t, f, account, objectType, func(c *provider.Call) {
				if c.Query.Has("limit") {
					c.Query.Set("limit", "7")
				}
			})
			if slices.Sort(want); !slices.Equal(slices.Sorted(slices.Values(got)), want) || len(want) < 8 {
				t.Errorf("of %s %s the list contains %v, the fake has %v", account, objectType, got, want)
			}
		}
	}
	if len(truth) > 0 {
		t.Errorf("not listed: %v", truth)
	}
}

// A canceled subscription is listed. A list without the parameter would leave it out.
func TestListObjects_canceledSubscriptions_areListed(t *testing.T) {
	t.Parallel()
	f := stripefake.New(t, stripefake.Options{})
	alive, canceled := f.Create("", "subscription", map[string]any{"status": "active"}),
		f.Create("", "subscription", map[string]any{"status": "active"})
	f.ApplyEvent("", canceled, "customer.subscription.deleted")
	if got := listed(t, f, "", "subscription", nil); !slices.Equal(got, []string{canceled, alive}) {
		t.Errorf("the list contains %v", got)
	}
	if got := listed(t, f, "", "subscription", func(c *provider.Call) { c.Query.Del("status") }); !slices.Equal(got,
		[]string{alive}) {
		t.Errorf("without a status the list contains %v, so this test proves nothing", got)
	}
}

// If the object before a page was deleted, or the second API forgot a page, the list must be read
// from the start.
func TestAnswer_lostCursor_isExpired(t *testing.T) {
	t.Parallel()
	f := stripefake.New(t, stripefake.Options{IDOnlyEvents: true})
	gone := f.Create("", "customer", nil)
	f.ApplyEvent("", gone, "customer.deleted")
	for _, tc := range []struct{ objectType, cursor string }{{"customer", "0:" + gone},
		{"v2.core.account", "0:page=page_zz"}} {
		v, _, body := call(t, f, stripe.Stripe{}.ListObjects(&provider.Source{}, withKey("k"), "", tc.objectType,
			time.Time{}, time.Time{}, tc.cursor))
		if v.Kind != provider.Expired {
			t.Errorf("%s after %s: %+v: %s", tc.objectType, tc.cursor, v, body)
		}
	}
}

// A response to another call is not a page.
func FuzzObjectPage(f *testing.F) {
	f.Add([]byte(`{"object": "list", "has_more": true, "data": [{"id": "cus_1"}]}`), "customer", "0:cus_2")
	f.Add([]byte(`{"data": [{"id": "acct_1"}], "next_page_url": "/v2?page=1"}`), "v2.core.account", "1:page=0")
	f.Add([]byte(`{"object": "list", "data": [{"id": "p"}, {"id": null}]}`), "price", "9:")
	f.Fuzz(func(t *testing.T, body []byte, objectType, cursor string) {
		page, next, err := stripe.Stripe{}.ObjectPage(&provider.Source{}, withKey("k"), "", objectType, cursor,
			http.Header{}, body)
		if err != nil && (page != nil || next != "") {
			t.Fatalf("both an error and %v, %q", page, next)
		}
		for _, o := range page {
			if withBody := objectType != "v2.core.account"; o.ObjectID == "" || withBody != (o.Body != nil) ||
				withBody && !strings.HasPrefix(string(o.Body), "{") {
				t.Fatalf("%q is %q", o.ObjectID, o.Body)
			}
		}
	})
}
