package stripe_test

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/stripe"
)

func withKey(key string) *provider.API {
	return &provider.API{Key: provider.Secret{Name: "api.key", Value: []byte(key)}}
}

// describeCall describes a call in one line: account, path and query, and the headers that name the
// account.
func describeCall(c provider.Call, ok bool) string {
	if !ok {
		return "none"
	}
	out := fmt.Sprintf("%s %s", c.Account, c.Path)
	if q, _ := url.QueryUnescape(c.Query.Encode()); q != "" {
		out += "?" + q
	}
	for _, name := range []string{"Stripe-Account", "Stripe-Context", "Stripe-Version"} {
		if v := c.Header.Get(name); v != "" {
			out += " " + name + "=" + v
		}
	}
	return strings.TrimSpace(out)
}

// The calls of a refetch, their account, and the objects that cannot be fetched.
func TestFetch_types_makeCalls(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ account, objectType, objectID, key, want string }{
		{"", "customer", "cus_1", "sk_live_1", "/v1/customers/cus_1"},
		{"acct_1", "customer", "cus_1", "sk_live_1", "acct_1 /v1/customers/cus_1 Stripe-Account=acct_1"},
		{"", "subscription", "sub_1", "rk_test_1", "/v1/subscriptions/sub_1"},
		{"", "cash_balance", "cus_1", "sk_live_1", "/v1/customers/cus_1/cash_balance"},
		{"", "issuing.authorization", "iauth_1", "sk_live_1", "/v1/issuing/authorizations/iauth_1"},
		// An account in the path needs no header.
		{"acct_1", "account", "acct_1", "sk_live_1", "acct_1 /v1/accounts/acct_1"},
		{"acct_1", "capability", "acct_1:card_payments", "sk_live_1",
			"acct_1 /v1/accounts/acct_1/capabilities/card_payments"},
		{"acct_1", "capability", "card_payments", "sk_live_1", "none"},
		{"acct_1", "balance", "balance", "sk_live_1", "acct_1 /v1/balance Stripe-Account=acct_1"},
		// Id-only events.
		{"acct_1", "v2.core.account", "acct_2", "sk_live_1",
			"acct_1 /v2/core/accounts/acct_2?include[0]=configuration.customer" +
				"&include[1]=configuration.merchant&include[2]=configuration.recipient" +
				"&include[3]=defaults&include[4]=identity&include[5]=requirements " +
				"Stripe-Context=acct_1 Stripe-Version=2026-08-26.dahlia"},
		// Chosen ids may contain anything.
		{"", "coupon", "50% / a?b#c", "sk_live_1", "/v1/coupons/50%25%20%2F%20a%3Fb%23c"},
		{"", "coupon", "..", "sk_live_1", "none"},
		{"", "plan", ".", "sk_live_1", "none"},
		{"acct_1", "capability", "..:card_payments", "sk_live_1", "none"},
		// A name that exists in both modes is requested in its own mode only.
		{"test", "coupon", "SPRING", "sk_test_1", "/v1/coupons/SPRING"},
		{"test", "coupon", "SPRING", "sk_live_1", "none"},
		{"", "coupon", "SPRING", "rk_test_1", "none"},
		{"acct_1/test", "product", "p", "sk_test_1", "acct_1 /v1/products/p Stripe-Account=acct_1"},
		{"acct_1/test", "product", "p", "rk_live_1", "none"},
		{"acct_1/test", "product", "p", "another form", "acct_1 /v1/products/p Stripe-Account=acct_1"},
		{"", "customer", "cus_1", "sk_test_1", "/v1/customers/cus_1"},
		// No GET, or none without more information.
		{"", "card", "card_1", "sk_live_1", "none"},
		{"", "some.new_type", "x_1", "sk_live_1", "none"},
	} {
		if got := describeCall(stripe.Stripe{}.Fetch(&provider.Source{}, withKey(tc.key), tc.account, tc.objectType,
			tc.objectID)); got != tc.want {
			t.Errorf("%s %s %s with %s: %s, want %s", tc.account, tc.objectType, tc.objectID, tc.key, got, tc.want)
		}
	}
}

// Every type of the tables of objects and lists can be read, or is an exception with a reason. No
// list has an exception.
func TestFetch_everyType_isReadOrExcluded(t *testing.T) {
	t.Parallel()
	excluded := []string{"application", "billing.alert_triggered", "billing_portal.session", "discount",
		"entitlements.active_entitlement_summary"}
	for _, objectType := range append(stripe.TypeNames(), stripe.ListTypes()...) {
		_, ok := stripe.Stripe{}.Fetch(&provider.Source{}, withKey("k"), "acct_1", objectType, "a:b")
		if !ok {
			_, _, ok = stripe.Stripe{}.Locate(withKey("k"), "acct_1", objectType, "a",
				[]byte(`{"account": "acct_1", "fee": "fee_1"}`), nil)
		}
		if ok == slices.Contains(excluded, objectType) || !ok && slices.Contains(stripe.ListTypes(), objectType) {
			t.Errorf("%s: read %v", objectType, ok)
		}
	}
}

func TestListEvents_calls_haveTimeAndCursor(t *testing.T) {
	t.Parallel()
	since, until := time.Unix(100, 999), time.Unix(200, 0)
	for account, want := range map[string]string{
		"":            "/v1/events?created[gte]=100&created[lte]=200&limit=100",
		"test":        "/v1/events?created[gte]=100&created[lte]=200&limit=100",
		"acct_1/test": "acct_1 /v1/events?created[gte]=100&created[lte]=200&limit=100 Stripe-Account=acct_1",
	} {
		if got := describeCall(stripe.Stripe{}.ListEvents(withKey("k"), account, since, until, ""), true); got != want {
			t.Errorf("%s: %s, want %s", account, got, want)
		}
	}
	want := "acct_1 /v1/events?created[gte]=100&created[lte]=200&limit=100&starting_after=evt_9 Stripe-Account=acct_1"
	if got := describeCall(stripe.Stripe{}.ListEvents(withKey("k"), "acct_1", since, until, "evt_9"),
		true); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	for cursor, want := range map[string]string{
		"": "acct_1 /v2/core/events?created[gte]=1970-01-01T00:01:40.000Z&created[lte]=1970-01-01T00:03:20.999Z" +
			"&limit=100 Stripe-Context=acct_1 Stripe-Version=2026-08-26.dahlia",
		"limit=100&page=p": "acct_1 /v2/core/events?limit=100&page=p Stripe-Context=acct_1 " +
			"Stripe-Version=2026-08-26.dahlia",
	} {
		if got := describeCall(stripe.Stripe{}.ListIDOnlyEvents(withKey("k"), "acct_1/test", since,
			until.Add(time.Second-time.Microsecond), cursor), true); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	if got := describeCall(stripe.Stripe{}.CredentialCheck(withKey("k"), "acct_1"),
		true); got != "acct_1 /v1/events?limit=1 Stripe-Account=acct_1" {
		t.Error(got)
	}
}

// The list of id-only events can be limited by time only in newer versions than a source may have.
func TestAuthorize_calls_haveKeyAndVersion(t *testing.T) {
	t.Parallel()
	const newest = "2026-08-26.dahlia"
	for version, want := range map[string]struct{ customer, account, events string }{
		"":                  {"", newest, newest},
		"2020-08-27":        {"2020-08-27", newest, newest},
		"2025-06-30.basil":  {"2025-06-30.basil", "2025-06-30.basil", newest},
		"2026-01-28.clover": {"2026-01-28.clover", "2026-01-28.clover", newest},
	} {
		api := withKey("rk_test_1")
		api.Version = version
		customer, _ := stripe.Stripe{}.Fetch(&provider.Source{}, api, "", "customer", "cus_1")
		account, _ := stripe.Stripe{}.Fetch(&provider.Source{}, api, "", "v2.core.account", "acct_2")
		events := stripe.Stripe{}.ListIDOnlyEvents(api, "", time.Unix(100, 0), time.Unix(200, 0), "")
		for c, want := range map[*provider.Call]string{&customer: want.customer, &account: want.account,
			&events: want.events} {
			stripe.Stripe{}.Authorize(api, c.Header)
			if got := c.Header.Get("Stripe-Version"); got != want ||
				c.Header.Get("Authorization") != "Bearer rk_test_1" {
				t.Errorf("%s in version %q: %q, want %q", c.Path, version, c.Header, want)
			}
		}
	}
}

func TestCompleteAPI_settings_areCompletedOrRejected(t *testing.T) {
	t.Parallel()
	for key, rate := range map[string]int{"sk_live_1": 10, "rk_live_1": 10, "sk_test_1": 5, "rk_test_1": 5,
		"anything": 5} {
		api := withKey(key)
		if err := (stripe.Stripe{}).CompleteAPI(api); err != nil || api.Rate != rate || api.Concurrency != 5 ||
			api.BaseURL != "https://api.stripe.com" {
			t.Errorf("%s: %+v, %v", key, api, err)
		}
	}
	set := provider.API{BaseURL: "http://127.0.0.1:1", Key: provider.Secret{Value: []byte("sk_live_1")},
		Version: "2026-01-28.clover", Rate: 3, Concurrency: 2}
	completed := set
	if err := (stripe.Stripe{}).CompleteAPI(&completed); err != nil || !cmp.Equal(set, completed) {
		t.Errorf("%+v, %v", completed, err)
	}
	for key, want := range map[string]string{"pk_live_1": "publishable", "whsec_1": "secret of a webhook endpoint"} {
		if err := (stripe.Stripe{}).CompleteAPI(withKey(key)); err == nil || !strings.Contains(err.Error(), want) ||
			strings.Contains(err.Error(), key) {
			t.Errorf("%s: %v", key, err)
		}
	}
	api := withKey("sk_live_1")
	api.Version = "v1"
	if err := (stripe.Stripe{}).CompleteAPI(api); err == nil || !strings.Contains(err.Error(), "version") {
		t.Error(err)
	}
}

func TestAnswer_responses_giveVerdict(t *testing.T) {
	t.Parallel()
	const missing = `{"error": {"code": "resource_missing", "message": "No such customer: 'cus_1'", ` +
		`"param": "id", "type": "invalid_request_error"}}`
	fault := func(code, message string) string {
		return fmt.Sprintf(`{"error": {"code": %q, "message": %q}}`, code, message)
	}
	cursor := func(param, code string) string {
		return fmt.Sprintf(`{"error": {"code": %q, "message": "No such customer: 'cus_1'", "param": %q}}`, code, param)
	}
	for name, tc := range map[string]struct {
		status int
		header string
		body   string
		kind   provider.VerdictKind
		wait   time.Duration
		detail string
	}{
		"found":              {200, "", ` {"id": "cus_1"}` + "\n", provider.Found, 0, ""},
		"a page of a portal": {200, "", "<html>", provider.Failure, 0, "no JSON object"},
		"empty":              {200, "", "", provider.Failure, 0, "no JSON object"},
		"cut":                {200, "", "{", provider.Failure, 0, "no JSON object"},
		"missing":            {404, "", missing, provider.Missing, 0, "no such object"},
		"no such address": {404, "", fault("", "Unrecognized request URL (GET: /v1/x)"), provider.Rejected, 0,
			"is base_url right?"},
		"a product not set up": {404, "", fault("", "Unrecognized request URL (GET: "+
			"/v1/treasury/financial_accounts). Have you onboarded to Treasury?"), provider.Rejected, 0,
			"is the product that it belongs to set up"},
		"another server": {404, "", "not found", provider.Failure, 0, "is base_url right?"},
		"other mode": {404, "", fault("resource_missing", "No such customer: 'cus_1'; a similar object "+
			"exists in test mode, but a live mode key was used to make this request."), provider.Rejected, 0,
			"other mode"},
		"wrong key": {401, "", fault("", "Invalid API Key provided: sk_test_****1234"), provider.Rejected,
			time.Minute, "set the source's api.key"},
		"no permission": {403, "", fault("", "The provided key 'rk_live_***123' does not have the required "+
			"permissions for this endpoint on account 'acct_1'. Having the 'rak_customer_read' permission would "+
			"allow this request to continue."), provider.Rejected, 0, "permission customer_read:"},
		"no access to account": {403, "", fault("account_invalid", "The provided key 'sk_live_***123' does not have "+
			"access to account 'acct_1'"), provider.Rejected, 0, "connect it again"},
		"no access, as 401": {401, "", fault("account_invalid", "The provided key 'sk_live_***123' does not have "+
			"access to account 'acct_1'"), provider.Rejected, 0, "connect it again"},
		"forbidden": {403, "", "", provider.Rejected, 0, "give it the permission"},
		"too many": {429, "", fault("rate_limit", "slow down"), provider.Throttled, time.Second,
			"too many calls"},
		"too many, by reason": {429, "Stripe-Rate-Limited-Reason: endpoint-rate", fault("rate_limit", ""),
			provider.Throttled, time.Second, "(endpoint-rate)"},
		"too many at once": {429, "Stripe-Rate-Limited-Reason: global-concurrency", "", provider.Throttled,
			250 * time.Millisecond, "(global-concurrency)"},
		"too many, and a wait": {429, "Retry-After: 7", "", provider.Throttled, 7 * time.Second, "too many calls"},
		"busy": {429, "Stripe-Rate-Limited-Reason: resource-specific", fault("lock_timeout", ""),
			provider.Failure, 0, "busy"},
		"busy, as a conflict": {409, "", fault("lock_timeout", ""), provider.Failure, 0, "(lock_timeout)"},
		"down":                {500, "", "", provider.Failure, 0, "answered 500"},
		"down for a while":    {503, "Retry-After: 2", "", provider.Failure, 2 * time.Second, "answered 503"},
		"deleted cursor": {400, "", cursor("starting_after", "resource_missing"), provider.Expired, 0,
			"exist any more"},
		"deleted cursor, 404": {404, "", cursor("starting_after", "resource_missing"), provider.Expired, 0,
			"exist any more"},
		"deleted clock": {400, "", cursor("test_clock", "resource_missing"), provider.Expired, 0,
			"exist any more"},
		"closed account": {400, "", cursor("financial_account", "resource_missing"), provider.Expired, 0,
			"exist any more"},
		"forgotten page": {400, "", cursor("page", ""), provider.Expired, 0, "exist any more"},
		"cursor of another": {400, "", cursor("starting_after", "parameter_invalid"), provider.Rejected, 0,
			"(parameter_invalid)"},
		"not set up": {400, "", fault("", "Your account is not set up to use Issuing."), provider.Rejected, 0,
			"is the product that it belongs to set up"},
		"unknown to version": {400, "", fault("parameter_unknown", "Received unknown parameter"), provider.Rejected, 0,
			"(parameter_unknown)"},
		"busy, in words":  {400, "", fault("lock_timeout", "busy"), provider.Failure, 0, "(lock_timeout)"},
		"400 of another":  {400, "", "<html>", provider.Failure, 0, "answered 400"},
		"moved":           {301, "", "", provider.Failure, 0, "redirect"},
		"codes are words": {500, "", fault("sk_live_1 is wrong!", ""), provider.Failure, 0, "answered 500"},
	} {
		h := http.Header{}
		if k, v, ok := strings.Cut(tc.header, ": "); ok {
			h.Set(k, v)
		}
		v := stripe.Stripe{}.Answer(tc.status, h, []byte(tc.body))
		if v.Kind != tc.kind || v.Wait != tc.wait || !strings.Contains(v.Detail, tc.detail) ||
			(v.Detail == "") != (tc.kind == provider.Found) || v.Disconnected != strings.HasPrefix(name, "no access") {
			t.Errorf("%s: %+v", name, v)
		}
		if strings.Contains(v.Detail, "sk_") || strings.Contains(v.Detail, "rk_") {
			t.Errorf("%s: quotes a key: %s", name, v.Detail)
		}
	}
}
