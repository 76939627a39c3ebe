package stripe

import (
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/provider"
)

// gets are the paths that read one object, by type (https://docs.stripe.com/api). {id} is the
// object's name in the mirror. {a} and {b} are the two halves of a joined name. A path without any
// of them is for a type with one object per account.
//
// Objects below another object, whose id the name does not contain, are in the table of locate.go.
// These types have no entry, because no GET reads them:
//   - discount: read through its customer or subscription, whose discount may be another one by
//     then;
//   - billing_portal.session: has no GET;
//   - entitlements.active_entitlement_summary: has no GET; the list of its members has another
//     format;
//   - billing.alert_triggered, application: are not mirrored.
var gets = map[string]string{
	"account":          "/v1/accounts/{id}",
	"capability":       "/v1/accounts/{a}/capabilities/{b}",
	"source":           "/v1/sources/{id}",
	"balance":          "/v1/balance",
	"balance_settings": "/v1/balance_settings",
	"tax.settings":     "/v1/tax/settings",

	"customer":     "/v1/customers/{id}",
	"cash_balance": "/v1/customers/{id}/cash_balance", // named by its customer
	"tax_id":       "/v1/tax_ids/{id}",

	"charge":                    "/v1/charges/{id}",
	"dispute":                   "/v1/disputes/{id}",
	"payment_intent":            "/v1/payment_intents/{id}",
	"setup_intent":              "/v1/setup_intents/{id}",
	"mandate":                   "/v1/mandates/{id}",
	"payment_link":              "/v1/payment_links/{id}",
	"payment_method":            "/v1/payment_methods/{id}",
	"refund":                    "/v1/refunds/{id}",
	"review":                    "/v1/reviews/{id}",
	"radar.early_fraud_warning": "/v1/radar/early_fraud_warnings/{id}",
	"checkout.session":          "/v1/checkout/sessions/{id}",

	"payout":          "/v1/payouts/{id}",
	"topup":           "/v1/topups/{id}",
	"transfer":        "/v1/transfers/{id}",
	"application_fee": "/v1/application_fees/{id}",

	"invoice":               "/v1/invoices/{id}",
	"invoiceitem":           "/v1/invoiceitems/{id}",
	"invoice_payment":       "/v1/invoice_payments/{id}",
	"credit_note":           "/v1/credit_notes/{id}",
	"subscription":          "/v1/subscriptions/{id}",
	"subscription_schedule": "/v1/subscription_schedules/{id}",
	"quote":                 "/v1/quotes/{id}",
	"tax_rate":              "/v1/tax_rates/{id}",
	"promotion_code":        "/v1/promotion_codes/{id}",
	"coupon":                "/v1/coupons/{id}",
	"plan":                  "/v1/plans/{id}",
	"price":                 "/v1/prices/{id}",
	"product":               "/v1/products/{id}",

	"billing.alert":                      "/v1/billing/alerts/{id}",
	"billing.credit_grant":               "/v1/billing/credit_grants/{id}",
	"billing.credit_balance_transaction": "/v1/billing/credit_balance_transactions/{id}",
	"billing.meter":                      "/v1/billing/meters/{id}",
	"billing_portal.configuration":       "/v1/billing_portal/configurations/{id}",

	"issuing.authorization":          "/v1/issuing/authorizations/{id}",
	"issuing.card":                   "/v1/issuing/cards/{id}",
	"issuing.cardholder":             "/v1/issuing/cardholders/{id}",
	"issuing.dispute":                "/v1/issuing/disputes/{id}",
	"issuing.personalization_design": "/v1/issuing/personalization_designs/{id}",
	"issuing.token":                  "/v1/issuing/tokens/{id}",
	"issuing.transaction":            "/v1/issuing/transactions/{id}",

	"climate.order":                 "/v1/climate/orders/{id}",
	"climate.product":               "/v1/climate/products/{id}",
	"file":                          "/v1/files/{id}",
	"financial_connections.account": "/v1/financial_connections/accounts/{id}",
	"identity.verification_session": "/v1/identity/verification_sessions/{id}",
	"reporting.report_run":          "/v1/reporting/report_runs/{id}",
	"reporting.report_type":         "/v1/reporting/report_types/{id}",
	"scheduled_query_run":           "/v1/sigma/scheduled_query_runs/{id}",
	"terminal.reader":               "/v1/terminal/readers/{id}",
	"test_helpers.test_clock":       "/v1/test_helpers/test_clocks/{id}",

	"treasury.credit_reversal":   "/v1/treasury/credit_reversals/{id}",
	"treasury.debit_reversal":    "/v1/treasury/debit_reversals/{id}",
	"treasury.financial_account": "/v1/treasury/financial_accounts/{id}",
	"treasury.inbound_transfer":  "/v1/treasury/inbound_transfers/{id}",
	"treasury.outbound_payment":  "/v1/treasury/outbound_payments/{id}",
	"treasury.outbound_transfer": "/v1/treasury/outbound_transfers/{id}",
	"treasury.received_credit":   "/v1/treasury/received_credits/{id}",
	"treasury.received_debit":    "/v1/treasury/received_debits/{id}",

	// The objects of id-only events.
	"v2.core.account":           "/v2/core/accounts/{id}",
	"v2.core.event_destination": "/v2/core/event_destinations/{id}",
}

// included are the fields that the second API returns as null unless they are requested. Its lists
// cannot request them.
var included = map[string][]string{
	"v2.core.account": {"configuration.customer", "configuration.merchant", "configuration.recipient", "defaults",
		"identity", "requirements"},
}

// including returns the query that requests these fields, or nil.
func including(objectType string) url.Values {
	var query url.Values
	for i, field := range included[objectType] {
		if query == nil {
			query = url.Values{}
		}
		query.Set(fmt.Sprintf("include[%d]", i), field)
	}
	return query
}

// pathOf returns the path of an object, or false. Users choose some ids, so ids may contain
// anything.
func pathOf(objectType, objectID string) (string, bool) {
	path, ok := gets[objectType]
	a, b, joined := strings.Cut(objectID, ":")
	if !ok || strings.Contains(path, "{a}") && !(joined && isPathSegment(a) && isPathSegment(b)) ||
		strings.Contains(path, "{id}") && !isPathSegment(objectID) {
		return "", false
	}
	return strings.NewReplacer("{id}", url.PathEscape(objectID), "{a}", url.PathEscape(a), "{b}",
		url.PathEscape(b)).Replace(path), true
}

// isPathSegment rejects . and .., which servers resolve even if they are escaped.
func isPathSegment(part string) bool { return part != "" && part != "." && part != ".." }

var _ provider.ModeReader = Stripe{}

// Fetch reads an object of the table by its name. Objects of account "test" or ".../test" are in
// the test mode of that account, and a key reads one mode. If a name can exist in both modes, an
// object of the other mode is not requested, because the API would return another object.
func (Stripe) Fetch(_ *provider.Source, api *provider.API, account, objectType, objectID string) (provider.Call, bool) {
	path, ok := pathOf(objectType, objectID)
	account, test := realAccount(account)
	if r := types[objectType]; ok && (test || r.sharesModes()) {
		ok = modeOf(api.Key) == unknownMode || (modeOf(api.Key) == testMode) == test
	}
	if !ok {
		return provider.Call{}, false
	}
	return forAccount(api, provider.Call{Account: account, Path: path, Query: including(objectType)}), true
}

// OtherMode uses the object's livemode. One endpoint receives the events of both modes of a
// connected account. Objects with ids made by Stripe are mirrored under the same account in both
// modes.
func (Stripe) OtherMode(api *provider.API, state []byte) bool {
	object, err := canonical.Parse(state)
	if err != nil {
		return false
	}
	defer object.Release()
	live, hasMode := object.Get("livemode").Bool()
	mode := modeOf(api.Key)
	return hasMode && mode != unknownMode && live != (mode == liveMode)
}

// sharesModes reports whether one name can be an object in live mode and another object in test
// mode.
func (r typeRule) sharesModes() bool { return r.chosenIDs || r.id == byAccount || r.id == single }

var _ provider.SharedTypeReader = Stripe{}

// SharedTypes returns the types with one object per account, and those whose ids users or Stripe
// choose: "gold" may be a plan of any account. An account, and objects named by it, are unique.
func (Stripe) SharedTypes() (all []string) {
	for objectType, r := range types {
		if r.id == single || r.chosenIDs && objectType != "account" {
			all = append(all, objectType)
		}
	}
	slices.Sort(all)
	return all
}

// realAccount returns Stripe's name of a tenant of the mirror, and whether the tenant is its test
// mode.
func realAccount(tenant string) (account string, test bool) {
	if tenant == "test" {
		return "", true
	}
	return strings.CutSuffix(tenant, "/test")
}

// mode is the mode of an account that a key reads.
type mode int

const (
	unknownMode mode = iota
	liveMode
	testMode
)

// modeOf reads the mode from the key's prefix: sk_live_..., rk_test_..., sk_org_live_...
func modeOf(key provider.Secret) mode {
	kind, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(strings.TrimPrefix(string(key.Value), "sk_"),
		"rk_"), "org_"), "_")
	switch kind {
	case "live":
		return liveMode
	case "test":
		return testMode
	}
	return unknownMode
}
