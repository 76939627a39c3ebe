package stripefake_test

import (
	"errors"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	sdk "github.com/stripe/stripe-go/v84"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/testkit/stripefake"
)

// officialClient returns Stripe's own client with the address of the fake.
func officialClient(t *testing.T, f *stripefake.Fake, key string) *sdk.Client {
	t.Helper()
	once := sdk.Int64(0)
	config := &sdk.BackendConfig{
		URL: sdk.String(f.URL), HTTPClient: newClient(t, f).http, MaxNetworkRetries: once,
		EnableTelemetry: sdk.Bool(false),
		LeveledLogger:   &sdk.LeveledLogger{Level: sdk.LevelNull},
	}
	api := sdk.GetBackendWithConfig(sdk.APIBackend, config)
	return sdk.NewClient(key, sdk.WithBackends(&sdk.Backends{API: api}))
}

// Stripe's own client reads all pages and finds every object and event.
func TestFake_officialClient_findsEveryObjectAndEvent(t *testing.T) {
	t.Parallel()
	f := stripefake.New(t, stripefake.Options{Seed: 1, Accounts: []string{"acct_1"}, IDOnlyEvents: true})
	f.RunSteps(1500)
	c := officialClient(t, f, stripefake.Key)
	alive := map[string]int{}
	for _, o := range f.CurrentObjects() {
		if o.Account == "acct_1" && !o.Deleted() {
			alive[o.Type]++
		}
	}
	connected := sdk.ListParams{Limit: sdk.Int64(7), StripeAccount: sdk.String("acct_1")}
	found := map[string]int{}
	for o, err := range c.V1Customers.List(t.Context(), &sdk.CustomerListParams{ListParams: connected}) {
		one, err2 := c.V1Customers.Retrieve(t.Context(), o.ID,
			&sdk.CustomerRetrieveParams{Params: sdk.Params{StripeAccount: connected.StripeAccount}})
		if err := errors.Join(err, err2); err != nil || one.Email != o.Email {
			t.Fatalf("customer %s: %+v (%v)", o.ID, one, err)
		}
		found["customer"]++
	}
	for o, err := range c.V1Products.List(t.Context(), &sdk.ProductListParams{ListParams: connected}) {
		if err != nil || o.Updated < o.Created {
			t.Fatalf("product %s was made at %d and changed at %d (%v)", o.ID, o.Created, o.Updated, err)
		}
		found["product"]++
	}
	for o, err := range c.V1Subscriptions.List(t.Context(), &sdk.SubscriptionListParams{ListParams: connected,
		Status: sdk.String("all")}) {
		if err != nil || len(o.Items.Data) != 1 {
			t.Fatalf("subscription %s has %+v (%v)", o.ID, o.Items, err)
		}
		found["subscription"]++
	}
	for what, count := range found {
		if count != alive[what] || count < 8 {
			t.Errorf("the list has %d of %s, want %d", count, what, alive[what])
		}
	}
	events := 0
	for e, err := range c.V1Events.List(t.Context(), &sdk.EventListParams{ListParams: connected}) {
		if err != nil || e.Account != "" || e.Data.Object["id"] == "" || e.APIVersion != stripefake.Version {
			t.Fatalf("event %+v (%v)", e, err)
		}
		events++
	}
	if of := countEvents(f, "acct_1", false); events != of || events < 100 {
		t.Errorf("the list has %d events, want %d", events, of)
	}
}

// The v2 API has id-only events, and its pages are addressed by tokens.
func TestFake_officialV2Client_readsIDOnlyEvents(t *testing.T) {
	t.Parallel()
	f := stripefake.New(t, stripefake.Options{Seed: 1, IDOnlyEvents: true, Objects: 10})
	f.RunSteps(600)
	c := officialClient(t, f, stripefake.Key)
	events, last := 0, time.Now().AddDate(100, 0, 0)
	for e, err := range c.V2CoreEvents.List(t.Context(), &sdk.V2CoreEventListParams{Limit: sdk.Int64(5)}) {
		if err != nil {
			t.Fatal(err)
		}
		base, object := read(t, e)
		if base.Created.After(last) || base.Object != "v2.core.event" {
			t.Fatalf("event %+v", base)
		}
		events, last = events+1, base.Created
		one, err := c.V2CoreEvents.Retrieve(t.Context(), base.ID, nil)
		if err != nil || one == nil {
			t.Fatalf("retrieve %s: %v", base.ID, err)
		}
		all := url.Values{"include[0]": {"configuration.customer"}, "include[1]": {"configuration.merchant"},
			"include[2]": {"configuration.recipient"}, "include[3]": {"defaults"},
			"include[4]": {"identity"}, "include[5]": {"requirements"}}
		if o, _ := f.ObjectAt("", object.ID, f.Now()); !reflect.DeepEqual(newClient(t, f).get(object.URL, all),
			tree(t, o.Body)) {
			t.Fatalf("%s is not %s", object.URL, o.Body)
		}
		if less := newClient(t, f).get(object.URL, nil); less["configuration"] != nil || less["defaults"] != nil ||
			less["identity"] != nil || less["requirements"] != nil || less["id"] != object.ID {
			t.Fatalf("%s returns properties that were not requested: %v", object.URL, less)
		}
	}
	if of := countEvents(f, "", true); events != of || events < 20 {
		t.Errorf("the list has %d id-only events, want %d", events, of)
	}
	one := ids(newClient(t, f).get("/v2/core/events", url.Values{"object_id": {"acct_v2_Fake000001"},
		"types[0]": {"v2.core.account.created"}}))
	if len(one) != 1 {
		t.Errorf("the creation events of one account are %v", one)
	}
	var all []stripefake.Event
	for _, e := range f.Events() {
		if e.IDOnly {
			all = append(all, e)
		}
	}
	at := all[8].At.Truncate(time.Millisecond).Format("2006-01-02T15:04:05.000Z")
	for bound, want := range map[string][]stripefake.Event{"created[lte]": all[:9], "created[lt]": all[:8],
		"created[gte]": all[8:], "created[gt]": all[9:]} {
		if got := ids(newClient(t, f).get("/v2/core/events", url.Values{bound: {at}, "limit": {"100"}})); len(
			got) != len(
			want) || got[0] != want[len(want)-1].ID {
			t.Errorf("events with %s=%s are %v, want %d", bound, at, got, len(want))
		}
	}
}

// read returns the common part of an id-only event, which Stripe's client models by type.
func read(t *testing.T, e sdk.V2CoreEvent) (sdk.V2BaseEvent, *sdk.V2CoreEventRelatedObject) {
	t.Helper()
	switch e := e.(type) {
	case *sdk.V2CoreAccountCreatedEvent:
		return e.V2BaseEvent, &e.RelatedObject
	case *sdk.V2CoreAccountUpdatedEvent:
		return e.V2BaseEvent, &e.RelatedObject
	case *sdk.V2CoreAccountClosedEvent:
		return e.V2BaseEvent, &e.RelatedObject
	}
	t.Fatalf("Stripe's client does not know %T", e)
	return sdk.V2BaseEvent{}, nil
}

func countEvents(f *stripefake.Fake, account string, thin bool) int {
	n := 0
	for _, e := range f.Events() {
		if e.Account == account && e.IDOnly == thin {
			n++
		}
	}
	return n
}

// Errors have Stripe's format, as its own client reads it.
func TestFake_invalidRequests_returnStripeErrors(t *testing.T) {
	t.Parallel()
	f := stripefake.New(t, stripefake.Options{Restricted: map[string][]string{"rk_test_1": {"account", "customers"}}})
	id := f.Create("", "customer", nil)
	gone := f.Create("", "product", nil)
	f.ApplyEvent("", gone, "product.deleted")
	for _, c := range []struct {
		key, path, query string
		status           int
		code, param      string
	}{
		{"", "/v1/customers", "", 401, "", ""},
		{"sk_test_another", "/v1/customers", "", 401, "", ""},
		{"rk_test_1", "/v1/customers/" + id, "", 200, "", ""},
		{"rk_test_1", "/v1/account", "", 200, "", ""},
		{"rk_test_1", "/v1/balance", "", 403, "more_permissions_required", ""},
		{stripefake.Key, "/v1/balance", "", 200, "", ""},
		{stripefake.Key, "/v1/balance", "limit=1", 400, "parameter_unknown", "limit"},
		{"rk_test_1", "/v1/events", "", 403, "more_permissions_required", ""},
		{"rk_test_1", "/v2/core/events", "", 403, "more_permissions_required", ""},
		{stripefake.Key, "/v1/customers/cus_none", "", 404, "resource_missing", "id"},
		{stripefake.Key, "/v1/customers/", "", 404, "resource_missing", "id"}, // an empty id is not a list
		{stripefake.Key, "/v1/prices/" + id, "", 404, "resource_missing", "id"},
		{stripefake.Key, "/v1/products/" + gone, "", 404, "resource_missing", "id"},
		{stripefake.Key, "/v1/events/evt_none", "", 404, "resource_missing", "id"},
		{stripefake.Key, "/v2/core/accounts/acct_none", "", 404, "not_found", ""},
		{stripefake.Key, "/v1/teapots", "", 404, "", ""},
		{stripefake.Key, "/v1/customers/a/b", "", 404, "", ""},
		{stripefake.Key, "/v1/customers", "updated[gte]=1", 400, "parameter_unknown", "updated[gte]"},
		{stripefake.Key, "/v1/customers/" + id, "limit=1", 400, "parameter_unknown", "limit"},
		{stripefake.Key, "/v1/customers", "limit=101", 400, "", "limit"},
		{stripefake.Key, "/v1/customers", "limit=0", 400, "", "limit"},
		{stripefake.Key, "/v1/subscriptions", "status=cancelled", 400, "", "status"},
		{stripefake.Key, "/v1/events", "created[gte]=2026-01-01", 400, "", "created[gte]"},
		{stripefake.Key, "/v1/customers", "starting_after=cus_none", 400, "resource_missing", "starting_after"},
		{stripefake.Key, "/v1/products", "ending_before=" + gone, 400, "resource_missing", "ending_before"},
		{stripefake.Key, "/v1/events", "type=customer.*&types[]=customer.created", 400, "", "types"},
	} {
		query, err := url.ParseQuery(c.query)
		if err != nil {
			t.Fatal(err)
		}
		as := newClient(t, f)
		as.key = c.key
		status, header, body, err := as.request(c.path, query)
		if err != nil || status != c.status || header.Get("Content-Type") != "application/json" {
			t.Errorf("GET %s?%s as %q: %d %s (%v), want %d", c.path, c.query, c.key, status, body, err, c.status)
			continue
		}
		if status == 200 {
			continue
		}
		e, _ := tree(t, body)["error"].(map[string]any)
		code, _ := e["code"].(string)
		param, _ := e["param"].(string)
		if e["type"] != "invalid_request_error" || e["message"] == "" || code != c.code || param != c.param {
			t.Errorf("GET %s?%s as %q: %s", c.path, c.query, c.key, body)
		}
	}
	var failed *sdk.Error
	_, err := officialClient(t, f, stripefake.Key).V1Products.Retrieve(t.Context(), gone, nil)
	if !errors.As(err, &failed) || failed.HTTPStatusCode != 404 || failed.Code != sdk.ErrorCodeResourceMissing {
		t.Errorf("Stripe's client reads a deleted product as %v", err)
	}
	post, err := http.NewRequestWithContext(t.Context(), http.MethodPost, f.URL+"/v1/customers", nil)
	if err != nil {
		t.Fatal(err)
	}
	post.SetBasicAuth(stripefake.Key, "")
	response, err := newClient(t, f).http.Do(post)
	if err != nil || response.StatusCode != http.StatusNotFound {
		t.Errorf("a POST is not rejected: %+v (%v)", response, err)
	}
	_ = response.Body.Close()
}

func TestFake_deletedObjects_returnStubsOrNotFound(t *testing.T) {
	t.Parallel()
	f := stripefake.New(t, stripefake.Options{Accounts: []string{"acct_1"}})
	customer := f.Create("", "customer", nil)
	f.ApplyEvent("", customer, "customer.deleted")
	first, ended := f.Create("", "subscription", map[string]any{"status": "active"}),
		f.Create("", "subscription", map[string]any{"status": "past_due"})
	f.ApplyEvent("", ended, "customer.subscription.deleted")
	c := newClient(t, f)
	if stub := c.get("/v1/customers/"+customer, nil); len(stub) != 3 || stub["deleted"] != true ||
		stub["object"] != "customer" {
		t.Errorf("a deleted customer is %v", stub)
	}
	if got := ids(c.get("/v1/customers", nil)); len(got) != 0 {
		t.Errorf("the list shows deleted customers: %v", got)
	}
	if got := c.get("/v1/subscriptions/"+ended, nil); got["status"] != "canceled" || got["canceled_at"] == nil {
		t.Errorf("a cancelled subscription is %v", got)
	}
	for status, want := range map[string][]string{
		"": {first}, "all": {ended, first}, "canceled": {ended}, "ended": {ended}, "active": {first}, "paused": nil,
	} {
		query := url.Values{}
		if status != "" {
			query.Set("status", status)
		}
		if got := ids(c.get("/v1/subscriptions", query)); !slices.Equal(got, want) {
			t.Errorf("subscriptions of status %q are %v, want %v", status, got, want)
		}
	}
	f.Set("", ended, map[string]any{"metadata.late": "yes"})
	if last := f.Events()[len(f.Events())-1]; last.Type != "customer.subscription.updated" || last.ObjectID != ended {
		t.Errorf("the event of a change after the cancellation is %s", last.Type)
	}
	c.account = "acct_2"
	if status, _, body, err := c.request("/v1/account", nil); err != nil || status != http.StatusForbidden {
		t.Errorf("an account that is not connected: %d %s (%v)", status, body, err)
	}
	c.account = "acct_1"
	if status, _, body, err := c.request("/v1/subscriptions/"+first, nil); err != nil || status != http.StatusNotFound {
		t.Errorf("another account's subscription: %d %s (%v)", status, body, err)
	}
}

// Requests run while the fake changes. No list shows an object twice.
func TestFake_concurrentRequests_seeConsistentState(t *testing.T) {
	t.Parallel()
	f := stripefake.New(t, stripefake.Options{Seed: 9})
	f.RunSteps(50)
	asking := newClient(t, f)
	var all sync.WaitGroup
	for _, path := range []string{"/v1/events", "/v1/events", "/v1/customers", "/v1/invoices"} {
		all.Go(func() {
			for range 5 {
				query := url.Values{"limit": {"20"}}
				met := map[string]bool{}
				for {
					status, _, body, err := asking.request(path, query)
					if status == http.StatusBadRequest {
						break // the object of the cursor was deleted
					}
					if err != nil || status != http.StatusOK {
						t.Errorf("%s: %d %s (%v)", path, status, body, err)
						return
					}
					page := tree(t, body)
					for _, id := range ids(page) {
						if met[id] {
							t.Errorf("%s shows %s twice", path, id)
						}
						met[id] = true
						query.Set("starting_after", id)
					}
					if page["has_more"] != true {
						break
					}
				}
			}
		})
	}
	for range 400 {
		f.Step()
		f.Deliver(func(*provider.Delivery) bool { return true })
	}
	all.Wait()
}

// Requests without the version of the events get objects that differ from those in the events.
func TestFake_otherAPIVersion_rendersOtherBodies(t *testing.T) {
	t.Parallel()
	f := stripefake.New(t, stripefake.Options{DefaultVersion: "2020-08-27"})
	id := f.Create("", "customer", nil)
	c := newClient(t, f)
	for _, path := range []string{"/v1/customers/" + id, "/v1/customers"} {
		old := c.get(path, nil)
		c.version = stripefake.Version
		now := c.get(path, nil)
		c.version = ""
		if path == "/v1/customers" {
			old, now = old["data"].([]any)[0].(map[string]any), now["data"].([]any)[0].(map[string]any)
		}
		if truth := tree(t, f.CurrentObjects()[0].Body); reflect.DeepEqual(old, truth) ||
			!reflect.DeepEqual(now, truth) ||
			old["rendered_in"] != "2020-08-27" {
			t.Errorf("%s is %v by default, %v in the version of the events", path, old, now)
		}
	}
	if e := c.get("/v1/events", nil)["data"].([]any)[0].(map[string]any); e["api_version"] != stripefake.Version ||
		e["rendered_in"] != nil {
		t.Errorf("an event is %v in another version", e)
	}
	if seen := f.Requests()[1].Version; seen != stripefake.Version {
		t.Errorf("the request has the version %q", seen)
	}
}

// The fake can change between two pages, and a response contains all changes before the request.
func TestFake_beforeRequest_runsBetweenPages(t *testing.T) {
	t.Parallel()
	var f *stripefake.Fake
	f = stripefake.New(t, stripefake.Options{BeforeRequest: func() { f.Create("", "charge", nil) }})
	c := newClient(t, f)
	for n := range 3 {
		if got := ids(c.get("/v1/charges", nil)); len(got) != n+1 {
			t.Errorf("request %d shows %v", n+1, got)
		}
	}
}
