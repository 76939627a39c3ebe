package oracles_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stripe/stripe-mock/embedded"
	"github.com/stripe/stripe-mock/server"
	"github.com/stripe/stripe-mock/spec"

	"github.com/postern-gateway/postern/internal/testkit/stripefake"
)

// stripeMock is Stripe's own imitation of its API: it checks requests against the published
// description of the API and answers with fixtures. It remembers nothing and cannot page, so our
// tests use testkit/stripefake; here the two must agree.
type stripeMock struct {
	stub *server.StubServer
	spec *spec.Spec
}

var loadStripeMock = sync.OnceValues(func() (*stripeMock, error) {
	fixtures, err := server.LoadFixtures(embedded.OpenAPIFixtures, "")
	if err != nil {
		return nil, err
	}
	described, err := server.LoadSpec(embedded.OpenAPISpec, "")
	if err != nil {
		return nil, err
	}
	stub, err := server.NewStubServer(fixtures, described, true, false)
	return &stripeMock{stub, described}, err
})

func mock(t *testing.T) *stripeMock {
	t.Helper()
	m, err := loadStripeMock()
	if err != nil {
		t.Fatalf("load stripe-mock: %v", err)
	}
	return m
}

// asked is a GET as our client sends it.
func asked(t *testing.T, path string) *http.Request {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil)
	r.Header.Set("Authorization", "Bearer "+stripefake.Key)
	r.Header.Set("Stripe-Version", stripefake.Version)
	return r
}

// What the fake takes or refuses, Stripe's description of its API does too.
func TestStripeFake_parameters_areStripes(t *testing.T) {
	t.Parallel()
	f := stripefake.New(t, stripefake.Options{Seed: 1})
	f.RunSteps(300)
	m := mock(t)
	paging := []string{"", "limit=100", "created[gte]=1767225600&created[lte]=1798761600",
		"created[gt]=1&created[lt]=1798761600", "created=1767225600"}
	refused := []string{"limit=ten", "updated[gte]=1", "created[since]=1", "page=2", "status=cancelled",
		"type=teapot&teapot=1"}
	queries := map[string][]string{
		"events": {"type=customer.created", "types[]=customer.created&types[]=customer.updated",
			"types[0]=invoice.paid", "delivery_success=false", "delivery_success=true"},
		"subscriptions": {"status=all", "status=canceled", "status=ended", "status=active", "status=incomplete_expired",
			"customer=cus_Fake000001"},
		"invoices": {"status=draft", "status=uncollectible", "customer=cus_Fake000001",
			"collection_method=charge_automatically"},
		"customers": {"email=ada@postern.example"},
		"products":  {"active=true"},
		"prices":    {"active=false", "product=team-1", "type=recurring"},
		"charges":   {"customer=cus_Fake000001", "payment_intent=pi_Fake1"},
	}
	paths := []string{"/v1/account", "/v1/balance", "/v1/teapots", "/v1/account?limit=1"}
	for plural, own := range queries {
		for _, query := range slices.Concat(paging, refused, own) {
			paths = append(paths, "/v1/"+plural+"?"+query)
		}
		page := m.answer(t, f, "/v1/"+plural+"?limit=2")
		newest := page["data"].([]any)[0].(map[string]any)["id"].(string)
		paths = append(paths, "/v1/"+plural+"/"+newest, "/v1/"+plural+"/"+newest+"?limit=1",
			"/v1/"+plural+"?limit=1&starting_after="+newest, "/v1/"+plural+"?limit=1&ending_before="+newest)
	}
	of := f.Create("", "customer", nil)
	paths = append(paths, "/v1/customers?expand[]=data.sources&limit=3", "/v1/customers?test_clock=clock_1",
		"/v1/subscriptions?test_clock=clock_1&status=all", "/v1/customers/"+of+"/sources?limit=2",
		"/v1/customers/"+of+"/sources?page=2", "/v1/customers/"+of+"/tax_ids", "/v1/customers/"+of+"/teapots",
		"/v1/accounts/"+stripefake.OwnAccount, "/v1/accounts/"+stripefake.OwnAccount+"/persons?limit=2",
		"/v1/accounts/"+stripefake.OwnAccount+"/external_accounts?limit=2", "/v1/test_helpers/test_clocks?limit=2",
		"/v1/treasury/financial_accounts", "/v1/treasury/received_credits",
		"/v1/treasury/received_credits?financial_account=fa_1", "/v1/application_fees?limit=2")
	for _, path := range paths {
		ours, theirs := httptest.NewRecorder(), httptest.NewRecorder()
		f.ServeHTTP(ours, asked(t, path))
		m.stub.HandleRequest(theirs, asked(t, path))
		if ours.Code != theirs.Code {
			t.Errorf("GET %s: the fake says %d %s, stripe-mock %d %.300s", path, ours.Code, ours.Body, theirs.Code,
				theirs.Body)
		}
	}
}

func (m *stripeMock) answer(t *testing.T, f *stripefake.Fake, path string) map[string]any {
	t.Helper()
	w := httptest.NewRecorder()
	f.ServeHTTP(w, asked(t, path))
	var out map[string]any
	if err := json.Unmarshal(w.Body.Bytes(), &out); err != nil || w.Code != http.StatusOK {
		t.Fatalf("GET %s: %d %s (%v)", path, w.Code, w.Body, err)
	}
	return out
}

// All that the fake's objects and events hold is a part of Stripe's, with a value of its kind. They
// hold less than Stripe's.
func TestStripeFake_responses_arePartOfStripes(t *testing.T) {
	t.Parallel()
	f := stripefake.New(t, stripefake.Options{Seed: 2, Accounts: []string{"acct_1"}})
	f.RunSteps(800)
	m := mock(t)
	var wrong []string
	seen := map[string]int{}
	check := func(schema string, body []byte) {
		var value any
		if err := json.Unmarshal(body, &value); err != nil {
			t.Fatal(err)
		}
		seen[schema]++
		wrong = append(wrong, m.misfits(m.spec.Components.Schemas[schema], value, schema)...)
	}
	for _, e := range f.Events() {
		check("event", e.Body)
	}
	for _, o := range f.CurrentObjects() {
		if !o.Deleted() {
			check(o.Type, o.Body)
		} else if o.Type == "customer" && o.Account == "" {
			stub, err := json.Marshal(m.answer(t, f, "/v1/customers/"+url.PathEscape(o.ID)))
			if err != nil {
				t.Fatal(err)
			}
			check("deleted_customer", stub)
		}
	}
	for _, objectType := range []string{"account", "person", "bank_account", "customer", "card", "tax_id",
		"application_fee", "fee_refund", "test_helpers.test_clock", "treasury.financial_account",
		"treasury.received_credit"} {
		id := f.Create("acct_1", objectType, nil)
		o, _ := f.ObjectAt("acct_1", id, f.Now())
		check(objectType, o.Body)
	}
	check("account", must(json.Marshal(m.answer(t, f, "/v1/account"))))
	check("balance", must(json.Marshal(m.answer(t, f, "/v1/balance"))))
	for _, w := range slices.Compact(slices.Sorted(slices.Values(wrong))) {
		t.Error(w)
	}
	if len(seen) != 19 {
		t.Errorf("seen were only %v", seen)
	}
}

func must(b []byte, err error) []byte {
	if err != nil {
		panic(err)
	}
	return b
}

// misfits are the places where a value is not what a schema describes, apart from what is missing.
func (m *stripeMock) misfits(s *spec.Schema, value any, at string) []string {
	if s.Ref != "" {
		return m.misfits(m.spec.Components.Schemas[strings.TrimPrefix(s.Ref, "#/components/schemas/")], value, at)
	}
	if value == nil {
		if s.Nullable {
			return nil
		}
		return []string{at + " is never null"}
	}
	if len(s.AnyOf) > 0 {
		var first []string
		for i, one := range s.AnyOf {
			wrong := m.misfits(one, value, at)
			if len(wrong) == 0 {
				return nil
			}
			if i == 0 {
				first = wrong
			}
		}
		return first
	}
	if len(s.Enum) > 0 && !slices.Contains(s.Enum, value) {
		return []string{fmt.Sprintf("%s is never %v", at, value)}
	}
	switch value := value.(type) {
	case map[string]any:
		return m.members(s, value, at)
	case []any:
		var wrong []string
		for _, item := range value {
			wrong = append(wrong, m.misfits(s.Items, item, at+"[]")...)
		}
		return wrong
	}
	kinds := map[string]string{"string": "string", "float64": "integer", "bool": "boolean"}
	if kind := kinds[fmt.Sprintf("%T", value)]; kind != s.Type && !(kind == "integer" && s.Type == "number") {
		return []string{fmt.Sprintf("%s is of type %s, not %s", at, s.Type, kind)}
	}
	return nil
}

func (m *stripeMock) members(s *spec.Schema, value map[string]any, at string) []string {
	if s.Type != "object" {
		return []string{fmt.Sprintf("%s is of type %s, no object", at, s.Type)}
	}
	var wrong []string
	for key, member := range value {
		described := s.Properties[key]
		switch {
		case described != nil:
			wrong = append(wrong, m.misfits(described, member, at+"."+key)...)
		case s.AdditionalProperties != nil:
			wrong = append(wrong, m.misfits(s.AdditionalProperties, member, at+"."+key)...)
		case len(s.Properties) > 0:
			wrong = append(wrong, at+"."+key+" is unknown")
		}
	}
	return wrong
}
