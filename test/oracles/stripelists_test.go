package oracles_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stripe/stripe-mock/embedded"
	"github.com/stripe/stripe-mock/spec"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/stripe"
)

// Why a list of Stripe's is not read.
const (
	unheard = "no event carries such an object, so the mirror has none"
	search  = "a search, which is up to a minute late; the list has the same"
	inside  = "a part of an object, which is mirrored with it"
	again   = "the same objects are in another list that is read"
	eachOne = "a call for each of what it lies below, however many these are; each is read by itself when it is in " +
		"doubt"
)

// unreadLists are the lists of Stripe's that we do not read, with the reason.
var unreadLists = map[string]string{
	"/v1/accounts": "each account is mirrored as its own object, " +
		"and the list belongs to the platform",
	"/v1/accounts/{account}/people":                      again,
	"/v1/apple_pay/domains":                              unheard,
	"/v1/apps/secrets":                                   unheard,
	"/v1/balance/history":                                unheard,
	"/v1/balance_transactions":                           unheard,
	"/v1/billing/feedback_options":                       unheard,
	"/v1/billing/meters/{id}/event_summaries":            unheard,
	"/v1/charges/search":                                 search,
	"/v1/charges/{charge}/refunds":                       again,
	"/v1/checkout/sessions/{session}/line_items":         inside,
	"/v1/climate/suppliers":                              unheard,
	"/v1/country_specs":                                  unheard,
	"/v1/credit_notes/preview/lines":                     inside,
	"/v1/credit_notes/{credit_note}/lines":               inside,
	"/v1/customers/search":                               search,
	"/v1/customers/{customer}/bank_accounts":             again,
	"/v1/customers/{customer}/balance_transactions":      unheard,
	"/v1/customers/{customer}/cards":                     again,
	"/v1/customers/{customer}/cash_balance_transactions": eachOne,
	"/v1/customers/{customer}/payment_methods":           again,
	"/v1/customers/{customer}/subscriptions":             again,
	"/v1/entitlements/active_entitlements":               "the event carries their summary, which is another shape",
	"/v1/entitlements/features":                          unheard,
	"/v1/events": "events, which are no objects: `postern reconcile " +
		"SOURCE` reads them",
	"/v1/exchange_rates": unheard,
	"/v1/file_links":     unheard,
	"/v1/financial_connections/accounts/{account}/owners":    unheard,
	"/v1/financial_connections/transactions":                 unheard,
	"/v1/forwarding/requests":                                unheard,
	"/v1/identity/verification_reports":                      unheard,
	"/v1/invoice_rendering_templates":                        unheard,
	"/v1/invoices/search":                                    search,
	"/v1/invoices/{invoice}/lines":                           inside,
	"/v1/issuing/physical_bundles":                           unheard,
	"/v1/issuing/tokens":                                     eachOne,
	"/v1/linked_accounts":                                    again,
	"/v1/linked_accounts/{account}/owners":                   unheard,
	"/v1/payment_attempt_records":                            unheard,
	"/v1/payment_intents/search":                             search,
	"/v1/payment_intents/{intent}/amount_details_line_items": inside,
	"/v1/payment_links/{payment_link}/line_items":            inside,
	"/v1/payment_method_configurations":                      unheard,
	"/v1/payment_method_domains":                             unheard,
	"/v1/payment_records":                                    unheard,
	"/v1/prices/search":                                      search,
	"/v1/products/search":                                    search,
	"/v1/products/{product}/features":                        unheard,
	"/v1/quotes/{quote}/computed_upfront_line_items":         inside,
	"/v1/quotes/{quote}/line_items":                          inside,
	"/v1/radar/value_list_items":                             unheard,
	"/v1/radar/value_lists":                                  unheard,
	"/v1/reviews": "the closed are not in it, so each would be looked at " +
		"by itself for ever",
	"/v1/setup_attempts":                            unheard,
	"/v1/shipping_rates":                            unheard,
	"/v1/sources/{source}/source_transactions":      eachOne,
	"/v1/subscription_items":                        inside,
	"/v1/subscriptions/search":                      search,
	"/v1/tax/calculations/{calculation}/line_items": inside,
	"/v1/tax/registrations":                         unheard,
	"/v1/tax/transactions/{transaction}/line_items": inside,
	"/v1/tax_codes":                                 unheard,
	"/v1/tax_ids": "without an owner it has the account's own, of which " +
		"no event tells; customers' are read below them",
	"/v1/terminal/configurations":      unheard,
	"/v1/terminal/locations":           unheard,
	"/v1/transfers/{id}/reversals":     unheard,
	"/v1/treasury/transaction_entries": unheard,
	"/v1/treasury/transactions":        unheard,
	"/v1/webhook_endpoints":            unheard,
}

// unread are the types that events carry and no call of ours reads, with the reason.
var unread = map[string]string{
	"application":             "its authorization was given or withdrawn, which is no object",
	"billing.alert_triggered": "something that happened, which is no object",
	"billing_portal.session":  "has no GET",
	"discount": "is read through its customer or subscription, whose discount may be " +
		"another one by now",
	"entitlements.active_entitlement_summary": "has no GET",
	"financial_connections.session":           "no released version of the API has events of it",
	"issuing.settlement":                      "has no GET",
	"source_mandate_notification":             "has no GET",
}

// calls are all that lists are asked by, of the key's own account and of another one: the first
// page of each part, the next page, and what is below one owner; by type.
func calls(f func(account, objectType, cursor string, c provider.Call)) {
	src, api := &provider.Source{}, &provider.API{Key: provider.Secret{Value: []byte("key of no mode")}}
	for _, account := range []string{"", "acct_1"} {
		for _, objectType := range slices.Sorted(maps.Keys(stripe.Stripe{}.Lists(src, api, account))) {
			for n := range 3 {
				for _, rest := range []string{"", "x_1", " x_1/", " x_1/x_2"} {
					cursor := fmt.Sprintf("%d:%s", n, rest)
					c := stripe.Stripe{}.ListObjects(src, api, account, objectType, time.Time{}, time.Time{}, cursor)
					if !strings.HasPrefix(c.Path, "/v2/") { // of the second API there is no description
						f(account, objectType, cursor, c)
					}
				}
			}
		}
	}
}

// Every list that we read, and every object that is read by itself, Stripe's description of its API
// knows under the path and with the parameters that we use, and what it answers we take for a page
// of such objects.
func TestStripeMock_ourCalls_areKnown(t *testing.T) {
	t.Parallel()
	m, src, api := mock(t), &provider.Source{}, &provider.API{Key: provider.Secret{Value: []byte("key of no mode")}}
	ask := func(c provider.Call) (int, []byte) {
		w, r := httptest.NewRecorder(), asked(t, c.Path+"?"+c.Query.Encode())
		m.stub.HandleRequest(w, r)
		return w.Code, w.Body.Bytes()
	}
	listed := map[string]int{}
	calls(func(account, objectType, cursor string, c provider.Call) {
		status, body := ask(c)
		page, _, err := stripe.Stripe{}.ObjectPage(src, api, account, objectType, cursor, http.Header{}, body)
		if status != http.StatusOK || err != nil {
			t.Errorf("%s: GET %s?%s: %d %.300s (%v)", objectType, c.Path, c.Query.Encode(), status, body, err)
			return
		}
		listed[objectType] += len(page)
		for _, o := range page {
			m.known(t, ask, account, objectType, o)
		}
	})
	for objectType, n := range listed {
		// of what is listed with others, stripe-mock shows bank accounts alone
		if n == 0 && objectType != "card" && objectType != "source" {
			t.Errorf("of %s no object was listed: nothing is proven", objectType)
		}
	}
	if len(listed) < 60 {
		t.Errorf("only %d types were asked for", len(listed))
	}
}

// known: a listed object is of the type that was listed, and Stripe knows the calls that read it by
// itself and that show who owns it.
func (m *stripeMock) known(t *testing.T, ask func(provider.Call) (int, []byte), account, objectType string,
	o provider.ListedObject) {
	t.Helper()
	var head struct{ Object string }
	if err := json.Unmarshal(o.Body, &head); err != nil || head.Object != objectType {
		t.Errorf("the list of %s shows a %s", objectType, head.Object)
	}
	if account == "" { // stripe-mock has no bank account but one that an account is paid out to
		o.Body = bytes.Replace(o.Body, []byte(`"customer":null`), []byte(`"customer":"cus_1"`), 1)
	}
	canBeRead(t, ask, account, objectType, o.ObjectID, o.Body)
}

// readable asks for an object, and for what shows that it is missing, where that is another call.
func canBeRead(t *testing.T, ask func(provider.Call) (int, []byte), account, objectType, id string, state []byte) {
	t.Helper()
	c, ok := stripe.Stripe{}.Fetch(&provider.Source{}, &provider.API{}, account, objectType, id)
	all := []provider.Call{c}
	if !ok {
		event := fmt.Appendf(nil, `{"id": "evt_1", "object": "event", "livemode": false, "data": {"object": %s}}`,
			state)
		var proof provider.Call
		c, proof, ok = stripe.Stripe{}.Locate(&provider.API{}, account, objectType, id, state,
			&provider.StoredEvent{Body: event})
		all = []provider.Call{c, proof}
	}
	if !ok {
		t.Errorf("%s %s cannot be read", objectType, id)
		return
	}
	for _, c := range all {
		if status, body := ask(c); status != http.StatusOK {
			t.Errorf("%s: GET %s: %d %.300s", objectType, c.Path, status, body)
		}
	}
}

// template is a path of the description as an expression.
func template(path spec.Path) *regexp.Regexp {
	parts := strings.Split(string(path), "/")
	for i, part := range parts {
		if strings.HasPrefix(part, "{") {
			parts[i] = "[^/]+"
		} else {
			parts[i] = regexp.QuoteMeta(part)
		}
	}
	return regexp.MustCompile("^" + strings.Join(parts, "/") + "$")
}

// isList says whether an operation answers a list.
func (m *stripeMock) isList(get *spec.Operation) bool {
	if get == nil {
		return false
	}
	s := get.Responses["200"].Content["application/json"].Schema
	for s != nil && s.Ref != "" {
		s = m.spec.Components.Schemas[strings.TrimPrefix(s.Ref, "#/components/schemas/")]
	}
	return s != nil && s.Properties["data"] != nil && s.Properties["data"].Type == "array"
}

// Each list that Stripe describes is read, or there is a reason why not; a reason that holds no
// more is found too.
func TestStripeLists_everyList_isReadOrExcluded(t *testing.T) {
	t.Parallel()
	m := mock(t)
	paths := map[string]bool{}
	calls(func(_, _, _ string, c provider.Call) { paths[c.Path] = true })
	lists := 0
	for path, verbs := range m.spec.Paths {
		if !m.isList(verbs["get"]) {
			continue
		}
		lists++
		is, read := template(path), false
		for p := range paths {
			read = read || is.MatchString(p)
		}
		// What is read below customers and fees lies in the pages of their lists; what is cut off
		// there is read by this path.
		if why := unreadLists[string(path)]; read == (why != "") {
			t.Errorf("%s: read %t, and the reason why not is %q", path, read, why)
		}
	}
	for path := range unreadLists {
		if m.spec.Paths[spec.Path(path)] == nil {
			t.Errorf("%s is no list any more", path)
		}
	}
	if lists < 120 {
		t.Errorf("only %d lists were found: nothing is proven", lists)
	}
}

// Each type of object that Stripe's events carry, and that its released API has, is read by a call,
// or there is a reason why not.
func TestStripeEvents_everyType_isReadOrExcluded(t *testing.T) {
	t.Parallel()
	m := mock(t)
	var beta struct {
		Components struct {
			Schemas map[string]struct {
				Event      *struct{ Type string } `json:"x-stripeEvent"`
				Properties struct{ Object schemaRefs }
			}
		}
	}
	if err := json.Unmarshal(embedded.BetaOpenAPISpec, &beta); err != nil {
		t.Fatal(err)
	}
	types := map[string]bool{}
	for _, s := range beta.Components.Schemas {
		if s.Event != nil {
			for _, name := range s.Properties.Object.names() {
				types[name] = true
			}
		}
	}
	ask := func(c provider.Call) (int, []byte) {
		w := httptest.NewRecorder()
		m.stub.HandleRequest(w, asked(t, c.Path+"?"+c.Query.Encode()))
		return w.Code, w.Body.Bytes()
	}
	n := 0
	for name := range types {
		if why := unread[name]; why != "" {
			if _, ok := (stripe.Stripe{}).Fetch(&provider.Source{}, &provider.API{}, "", name, "x"); ok {
				t.Errorf("%s is read, though %s", name, why)
			}
			continue
		}
		if m.spec.Components.Schemas[name] == nil { // of a preview
			continue
		}
		n++
		id := "x_1"
		if name == "capability" {
			id = "acct_1:card_payments"
		}
		canBeRead(t, ask, "acct_1", name, id,
			[]byte(`{"customer": "cus_1", "fee": "fee_1", "source": "src_1", "account": "acct_1"}`))
	}
	if n < 70 {
		t.Errorf("only %d of %d types were looked at: nothing is proven", n, len(types))
	}
}

// schemaRefs is a schema that is another one, or any of several.
type schemaRefs struct {
	Ref   string       `json:"$ref"`
	AnyOf []schemaRefs `json:"anyOf"`
}

func (s schemaRefs) names() (names []string) {
	for _, one := range append(s.AnyOf, s) {
		if name, ok := strings.CutPrefix(one.Ref, "#/components/schemas/"); ok {
			names = append(names, name)
		}
	}
	return names
}
