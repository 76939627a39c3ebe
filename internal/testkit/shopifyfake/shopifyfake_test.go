package shopifyfake_test

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/shopify"
	"github.com/postern-gateway/postern/internal/testkit/shopifyfake"
)

// queryGraphQL sends a query and returns the message and the code of the first error, and the data.
func queryGraphQL(t *testing.T, f *shopifyfake.Fake, query string, variables map[string]any) (message, code string,
	data json.RawMessage) {
	t.Helper()
	body, err := json.Marshal(map[string]any{"query": query, "variables": variables})
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, f.URL+"/admin/api/"+shopifyfake.Version+
		"/graphql.json", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Shopify-Access-Token", shopifyfake.Key)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var out struct {
		Data   json.RawMessage `json:"data"`
		Errors []struct {
			Message    string `json:"message"`
			Extensions struct {
				Code string `json:"code"`
			} `json:"extensions"`
		} `json:"errors"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&out); err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%d, %v", resp.StatusCode, err)
	}
	if len(out.Errors) > 0 {
		return out.Errors[0].Message, out.Errors[0].Extensions.Code, out.Data
	}
	return "", "", out.Data
}

// The fake rejects mistakes in a query, as Shopify does.
func TestGraphQL_invalidQuery_isRejected(t *testing.T) {
	t.Parallel()
	f := shopifyfake.New(t, shopifyfake.Options{})
	const good = `query($first: Int!, $after: String) { page: orders(first: $first, ` +
		`after: $after, sortKey: UPDATED_AT) { nodes { id updatedAt } pageInfo { hasNextPage endCursor } } }`
	first := map[string]any{"first": 5}
	if message, _, _ := queryGraphQL(t, f, good, first); message != "" {
		t.Fatalf("the query itself: %s", message)
	}
	for _, slip := range [][2]string{
		{"updatedAt", "updated_at"}, {"orders(", "order("}, {"first: $first, ", ""}, {"sortKey", "sort"},
		{"UPDATED_AT", "UPDATED"}, {"after: $after", "after: $first"},
		{"pageInfo { hasNextPage endCursor }", "pageInfo"}, {"nodes { id updatedAt }", "edges { id }"},
		{"$after: String", "$after: String, $query: String"}, {"$first: Int!", "$first: String!"},
		{"id updatedAt", "id { x } updatedAt"}, {"after: $after", "after: $before"}, {" } }", " }"},
		{"query(", "mutation("}, {"UPDATED_AT)", `"UPDATED_AT")`},
	} {
		if message, _, _ := queryGraphQL(t, f, strings.Replace(good, slip[0], slip[1], 1), first); message == "" {
			t.Errorf("%q in place of %q is accepted", slip[1], slip[0])
		}
	}
	for name, variables := range map[string]map[string]any{"none": nil, "a text": {"first": "5"},
		"too many": {"first": 251}, "one more": {"first": 5, "second": 6}, "no cursor": {"first": 5, "after": "x"}} {
		if message, _, _ := queryGraphQL(t, f, good, variables); message == "" {
			t.Errorf("%s: accepted", name)
		}
	}
}

// A query without the scope is rejected with its name. Used points are refilled.
func TestGraphQL_missingScopeOrPoints_isRejected(t *testing.T) {
	t.Parallel()
	f := shopifyfake.New(t, shopifyfake.Options{Scopes: []string{"read_products"},
		Faults: shopifyfake.Faults{Points: 300}})
	message, code, _ := queryGraphQL(t, f, `query { orders(first: 1) { nodes { id } } }`, nil)
	if code != "ACCESS_DENIED" || !strings.Contains(message, "`read_orders`") {
		t.Errorf("%s: %s", code, message)
	}
	_, _, data := queryGraphQL(t, f, `query { currentAppInstallation { accessScopes { handle } } }`, nil)
	if want := `{"currentAppInstallation":{"accessScopes":[{"handle":"read_products"}]}}`; string(data) != want {
		t.Errorf("%s, want %s", data, want)
	}
	codes := map[string]int{}
	for range 3 {
		_, code, _ := queryGraphQL(t, f, `query { products(first: 250) { nodes { id } } }`, nil)
		codes[code]++
	}
	if diff := cmp.Diff(map[string]int{"": 1, "THROTTLED": 2}, codes); diff != "" {
		t.Error(diff)
	}
}

// Deliveries have the signature and the format that the provider package reads. A rejected delivery
// is retried with the same bytes. A lost one does not arrive.
func TestDeliver_retriesAndLosses_sendTheSameBodies(t *testing.T) {
	t.Parallel()
	src := &provider.Source{Account: shopifyfake.Shop,
		Secrets: []provider.Secret{{Name: "s", Value: []byte(shopifyfake.Secret)}}}
	f := shopifyfake.New(t, shopifyfake.Options{Seed: 2, Webhooks: shopifyfake.Webhooks{Repeated: 20, Delayed: 20,
		Shuffled: 20}})
	f.RunSteps(300)
	bodies, sent, refused := map[string]string{}, 0, 0
	send := func(d *provider.Delivery) bool {
		sent++
		if _, err := (shopify.Shopify{}).Verify(src, d); err != nil {
			t.Fatal(err)
		}
		events, err := shopify.Shopify{}.Identify(src, d)
		if err != nil || events[0].ObjectID == "" {
			t.Fatalf("%+v, %v: %s", events, err, d.Body)
		}
		e := &provider.StoredEvent{Type: events[0].Type, Account: events[0].Account, Body: d.Body}
		if o, err := (shopify.Shopify{}).Observe(src, e); err != nil || o.Partial != "" &&
			events[0].Type != "inventory_levels/disconnect" {
			t.Fatalf("%s: %+v, %v: %s", e.Type, o, err, d.Body)
		}
		if firstBody, again := bodies[events[0].Key]; again && firstBody != string(d.Body) {
			t.Fatalf("%s came with another body than before", events[0].Key)
		}
		bodies[events[0].Key] = string(d.Body)
		if sent%7 == 0 {
			refused++
			return false
		}
		return true
	}
	for range 4 {
		f.Deliver(send)
		f.Advance(time.Hour)
	}
	if len(bodies) < 250 || sent < len(bodies)+refused/2 {
		t.Errorf("%d webhooks, %d sent, %d rejected", len(bodies), sent, refused)
	}
	lost := shopifyfake.New(t, shopifyfake.Options{Seed: 2, Webhooks: shopifyfake.Webhooks{Lost: 100}})
	lost.RunSteps(300)
	if n := lost.Deliver(send); n != 0 {
		t.Errorf("%d lost deliveries were sent", n)
	}
}

// One seed gives the same data, with several changes in one second and deletes.
func TestFake_sameSeed_makesSameHistory(t *testing.T) {
	t.Parallel()
	lives := [2][]shopifyfake.Object{}
	for i := range lives {
		f := shopifyfake.New(t, shopifyfake.Options{Seed: 9})
		f.RunSteps(500)
		lives[i] = f.CurrentObjects()
	}
	if diff := cmp.Diff(lives[0], lives[1]); diff != "" {
		t.Error(diff)
	}
	gone := 0
	for _, o := range lives[0] {
		if o.Body == nil {
			gone++
		}
	}
	if gone < 10 || gone > len(lives[0])/2 {
		t.Errorf("%d of %d objects are deleted", gone, len(lives[0]))
	}
}
