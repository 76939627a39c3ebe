package stripefake_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/postern-gateway/postern/internal/testkit/stripefake"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The tests of reconciliation notice a fake that changes, sends or returns something wrong. They do
// not notice one that is too kind: a fault or a difficult situation that never occurs. These tests
// check that each of them occurs.

// serve serves a request with the key of the account.
func serve(t *testing.T, f *stripefake.Fake, address string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, address, nil)
	r.Header.Set("Authorization", "Bearer "+stripefake.Key)
	w := httptest.NewRecorder()
	f.ServeHTTP(w, r)
	return w
}

// get returns the response of a request that must succeed.
func get(t *testing.T, f *stripefake.Fake, address string) map[string]any {
	t.Helper()
	w := serve(t, f, address)
	if w.Code != http.StatusOK {
		t.Fatalf("GET %s: %d %s", address, w.Code, w.Body)
	}
	return tree(t, w.Body.Bytes())
}

// list returns a member of each item of a page.
func list[T any](t *testing.T, f *stripefake.Fake, address, member string) (values []T) {
	t.Helper()
	for _, item := range get(t, f, address)["data"].([]any) {
		values = append(values, item.(map[string]any)[member].(T))
	}
	return values
}

func tree(t *testing.T, body []byte) (out map[string]any) {
	t.Helper()
	if err := json.Unmarshal(body, &out); err != nil {
		t.Fatalf("read %s: %v", body, err)
	}
	return out
}

func TestFake_sameSeed_makesSameHistory(t *testing.T) {
	t.Parallel()
	history := func(seed uint64) ([]stripefake.Event, []stripefake.Object) {
		f := stripefake.New(t, stripefake.Options{Seed: seed, Accounts: []string{"acct_1"}, Burst: 50, ReusedIDs: 50,
			IDOnlyEvents: true})
		f.RunSteps(300)
		return f.Events(), f.CurrentObjects()
	}
	events, objects := history(1)
	if again, objectsAgain := history(1); !reflect.DeepEqual(events, again) ||
		!reflect.DeepEqual(objects, objectsAgain) {
		t.Error("one seed gave two different results")
	}
	if other, _ := history(2); reflect.DeepEqual(events, other) {
		t.Error("two seeds gave the same result")
	}
}

// Many steps produce every situation that makes the order of events difficult.
func TestRunSteps_manySteps_coverEveryKindOfChange(t *testing.T) {
	t.Parallel()
	f := stripefake.New(t, stripefake.Options{Seed: 1, Accounts: []string{"acct_1"}, Burst: 50, ReusedIDs: 50,
		VersionUnmoved: 50, IDOnlyEvents: true})
	f.RunSteps(4500)
	types, seconds, creations, versions := map[string]int{}, map[string]int{}, map[string]int{}, map[bool]int{}
	accounts := map[string]bool{}
	last, again := "", 0
	for _, e := range f.Events() {
		types[e.Type]++
		seconds[fmt.Sprint(e.ObjectID, e.At.Unix())]++
		if e.ObjectID == last {
			again++
		}
		last = e.ObjectID
		switch e.Type {
		case "product.created":
			creations[e.Account+e.ObjectID]++
		case "product.updated":
			product := tree(t, e.Body)["data"].(map[string]any)["object"].(map[string]any)
			versions[product["updated"] == float64(e.At.Unix())]++
		}
		if e.ObjectID == "team-1" {
			accounts[e.Account] = true
		}
	}
	for _, want := range []string{
		"charge.failed", "charge.pending", "charge.refunded", "charge.succeeded", "charge.updated", "customer.created",
		"customer.deleted", "customer.subscription.created", "customer.subscription.deleted",
		"customer.subscription.updated", "customer.updated", "invoice.created", "invoice.deleted", "invoice.finalized",
		"invoice.marked_uncollectible", "invoice.paid", "invoice.payment_failed", "invoice.payment_succeeded",
		"invoice.updated", "invoice.voided", "price.created", "price.deleted", "price.updated", "product.created",
		"product.deleted", "product.updated", "v2.core.account.closed", "v2.core.account.created",
		"v2.core.account.updated",
	} {
		if types[want] < 3 {
			t.Errorf("%s occurred %d times", want, types[want])
		}
	}
	if most := slices.Max(slices.Collect(maps.Values(seconds))); most < 4 {
		t.Errorf("the maximum of events of one object in one second is %d", most)
	}
	if most := slices.Max(slices.Collect(maps.Values(creations))); most < 2 {
		t.Error("no product id was used again")
	}
	if versions[true] < 3 || versions[false] < 3 {
		t.Errorf("%d changes of products advanced the version, %d did not", versions[true], versions[false])
	}
	if len(accounts) != 2 {
		t.Error("the accounts share no product id")
	}
	if again < len(f.Events())/2 {
		t.Errorf("%d of %d events have the object of the previous one", again, len(f.Events()))
	}
}

// Lists do not show all objects: some objects are listed only on request, as Stripe documents, and
// a hidden one is neither listed nor found.
func TestList_defaultFilters_hideObjects(t *testing.T) {
	t.Parallel()
	f := stripefake.New(t, stripefake.Options{IDOnlyEvents: true})
	sold, old := f.Create("", "price", nil), f.Create("", "price", map[string]any{"active": false})
	open, closed := f.Create("", "v2.core.account", nil),
		f.Create("", "v2.core.account", map[string]any{"closed": true})
	paid, ended := f.Create("", "subscription", map[string]any{"status": "active"}), f.Create("", "subscription", nil)
	f.ApplyEvent("", ended, "customer.subscription.deleted")
	shown, hidden := f.Create("", "customer", nil), f.Create("", "customer", nil)
	f.SetHidden("", hidden, true)
	for address, want := range map[string][]string{
		"/v1/prices": {sold}, "/v1/prices?active=true": {sold}, "/v1/prices?active=false": {old},
		"/v2/core/accounts": {open}, "/v2/core/accounts?closed=false": {open},
		"/v2/core/accounts?closed=true": {closed},
		"/v1/subscriptions":             {paid}, "/v1/subscriptions?status=all": {ended, paid},
		"/v1/customers": {shown},
	} {
		if got := list[string](t, f, address, "id"); !slices.Equal(got, want) {
			t.Errorf("%s shows %v, want %v", address, got, want)
		}
	}
	if w := serve(t, f, "/v1/customers/"+hidden); w.Code != http.StatusNotFound {
		t.Errorf("a hidden customer: %d %s", w.Code, w.Body)
	}
	f.Advance(time.Second)
	f.SetHidden("", hidden, false)
	get(t, f, "/v1/customers/"+hidden)
}

// The bounds of the creation time are seconds. Several bounds apply together.
func TestList_createdBounds_areInclusiveOrExclusive(t *testing.T) {
	t.Parallel()
	f := stripefake.New(t, stripefake.Options{})
	start := f.Now().Unix()
	for range 5 {
		f.Create("", "charge", nil)
		f.Advance(700 * time.Millisecond) // seconds 0, 0, 1, 2, 2
	}
	for bounds, want := range map[string][]int64{
		"created[gte]=%d": {2, 2, 1}, "created[gt]=%d": {2, 2}, "created[lte]=%d": {1, 0, 0},
		"created[lt]=%d": {0, 0}, "created=%d": {1}, "created[gte]=%[1]d&created[lte]=%[1]d": {1},
	} {
		for _, path := range []string{"/v1/charges?", "/v1/events?"} {
			var got []int64
			for _, at := range list[float64](t, f, path+fmt.Sprintf(bounds, start+1), "created") {
				got = append(got, int64(at)-start)
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s%s have the seconds %v, want %v", path, bounds, got, want)
			}
		}
	}
}
