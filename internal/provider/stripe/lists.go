package stripe

import (
	"strings"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
)

var _ provider.ObjectLister = Stripe{}

// listLag is how old a list is assumed to be. Stripe documents no lag of lists, only one of up to a
// minute for its search, which is not used here. A longer value costs refetches of recent changes;
// with a value that is too short, an old state would count as new.
const listLag = 30 * time.Second

// listing says how the objects of a type are listed: the lists that show all objects together, read
// one after the other.
type listing []part

// part is one list. Without within and perOwner, its members are the objects. Otherwise its members
// are the owners of the objects: with within, the objects are in a field of each owner; with
// perOwner alone, each owner has a list of its own.
type part struct {
	// path is the list's address, with its query. {account} is the requested account. The key's own
	// account has no such list, because its id is unknown.
	path string
	// within is the field of an owner with a list, which may contain only the newest objects.
	within string
	// perOwner is the address of the objects of one owner. With within, it is used if the list in
	// the owner is incomplete.
	perOwner string
	// singleObject means that the response is the only object. unpaged means that the list has no
	// pages and no parameters.
	singleObject, unpaged bool
	// mixed means that its objects have several types.
	mixed bool
	// ownAccount means that the list belongs to the key's own account. A restricted key may never
	// read it.
	ownAccount bool
	// testOnly means that such objects exist only in test mode.
	testOnly bool
}

const (
	externalAccounts = "/v1/accounts/{account}/external_accounts" // the accounts to which payouts are made
	customersSources = "/v1/customers?expand[]=data.sources"
	sourcesOfOne     = "/v1/customers/{owner}/sources"
	// the customers of a test clock, and the objects of these customers, are in no other list
	clocks     = "/v1/test_helpers/test_clocks"
	treasuries = "/v1/treasury/financial_accounts"
)

// lists are the lists that show every object of a type (https://docs.stripe.com/api), newest first
// by creation, so objects created meanwhile come before those already read. None can be limited to
// what changed. A test compares this table with the lists that Stripe describes, and contains the
// reasons for missing ones.
var lists = map[string]listing{
	// Only the account itself: each of a platform's other accounts is mirrored under its own
	// account.
	"account": {{path: "/v1/account", singleObject: true, ownAccount: true},
		{path: "/v1/accounts/{account}", singleObject: true}},
	"capability": {{path: "/v1/accounts/{account}/capabilities", unpaged: true}},
	"person":     {{path: "/v1/accounts/{account}/persons"}},
	"card": {{path: externalAccounts, mixed: true},
		{path: customersSources, within: "sources", perOwner: sourcesOfOne}},
	"bank_account": {{path: externalAccounts, mixed: true},
		{path: customersSources, within: "sources", perOwner: sourcesOfOne}},
	// except those without a customer
	"source":           {{path: customersSources, within: "sources", perOwner: sourcesOfOne}},
	"balance":          {{path: "/v1/balance", singleObject: true}},
	"balance_settings": {{path: "/v1/balance_settings", singleObject: true}},
	"tax.settings":     {{path: "/v1/tax/settings", singleObject: true}},

	"customer": {{path: "/v1/customers"}, {path: clocks, perOwner: "/v1/customers?test_clock={owner}", testOnly: true}},
	// except the account's own, which have no events
	"tax_id": {{path: "/v1/customers?expand[]=data.tax_ids", within: "tax_ids",
		perOwner: "/v1/customers/{owner}/tax_ids"}},

	"charge":                    {{path: "/v1/charges"}},
	"dispute":                   {{path: "/v1/disputes"}},
	"payment_intent":            {{path: "/v1/payment_intents"}},
	"setup_intent":              {{path: "/v1/setup_intents"}},
	"payment_link":              {{path: "/v1/payment_links"}},
	"payment_method":            {{path: "/v1/payment_methods"}}, // except those of type custom
	"refund":                    {{path: "/v1/refunds"}},
	"radar.early_fraud_warning": {{path: "/v1/radar/early_fraud_warnings"}},
	"checkout.session":          {{path: "/v1/checkout/sessions"}},

	"payout":          {{path: "/v1/payouts"}},
	"topup":           {{path: "/v1/topups"}},
	"transfer":        {{path: "/v1/transfers"}},
	"application_fee": {{path: "/v1/application_fees"}},
	"fee_refund": {{path: "/v1/application_fees", within: "refunds",
		perOwner: "/v1/application_fees/{owner}/refunds"}},

	"invoice":         {{path: "/v1/invoices"}},
	"invoiceitem":     {{path: "/v1/invoiceitems"}},
	"invoice_payment": {{path: "/v1/invoice_payments"}},
	"credit_note":     {{path: "/v1/credit_notes"}},
	// Without a status the list leaves out canceled subscriptions.
	"subscription": {{path: "/v1/subscriptions?status=all"},
		{path: clocks, perOwner: "/v1/subscriptions?status=all&test_clock={owner}", testOnly: true}},
	"subscription_schedule": {{path: "/v1/subscription_schedules"}},
	"quote": {{path: "/v1/quotes"}, {path: clocks, perOwner: "/v1/quotes?test_clock={owner}",
		testOnly: true}},
	"tax_rate":       {{path: "/v1/tax_rates"}},
	"promotion_code": {{path: "/v1/promotion_codes"}},
	"coupon":         {{path: "/v1/coupons"}},
	"plan":           {{path: "/v1/plans"}},
	// By its description the list shows the active ones, and the others only if requested.
	"price":   {{path: "/v1/prices?active=true"}, {path: "/v1/prices?active=false"}},
	"product": {{path: "/v1/products"}},

	"billing.alert":                      {{path: "/v1/billing/alerts"}}, // except archived ones
	"billing.credit_grant":               {{path: "/v1/billing/credit_grants"}},
	"billing.credit_balance_transaction": {{path: "/v1/billing/credit_balance_transactions"}},
	"billing.meter":                      {{path: "/v1/billing/meters"}},
	"billing_portal.configuration":       {{path: "/v1/billing_portal/configurations"}},

	"issuing.authorization":          {{path: "/v1/issuing/authorizations"}},
	"issuing.card":                   {{path: "/v1/issuing/cards"}},
	"issuing.cardholder":             {{path: "/v1/issuing/cardholders"}},
	"issuing.dispute":                {{path: "/v1/issuing/disputes"}},
	"issuing.personalization_design": {{path: "/v1/issuing/personalization_designs"}},
	"issuing.transaction":            {{path: "/v1/issuing/transactions"}},

	"climate.order":                 {{path: "/v1/climate/orders"}},
	"climate.product":               {{path: "/v1/climate/products"}},
	"file":                          {{path: "/v1/files"}},
	"financial_connections.account": {{path: "/v1/financial_connections/accounts"}},
	"identity.verification_session": {{path: "/v1/identity/verification_sessions"}},
	"reporting.report_run":          {{path: "/v1/reporting/report_runs"}},
	"reporting.report_type":         {{path: "/v1/reporting/report_types", unpaged: true}},
	"scheduled_query_run":           {{path: "/v1/sigma/scheduled_query_runs"}},
	"terminal.reader":               {{path: "/v1/terminal/readers"}},
	"test_helpers.test_clock":       {{path: clocks, testOnly: true}},

	"treasury.financial_account": {{path: treasuries}},
	"treasury.credit_reversal": {{path: treasuries,
		perOwner: "/v1/treasury/credit_reversals?financial_account={owner}"}},
	"treasury.debit_reversal": {{path: treasuries,
		perOwner: "/v1/treasury/debit_reversals?financial_account={owner}"}},
	"treasury.inbound_transfer": {{path: treasuries,
		perOwner: "/v1/treasury/inbound_transfers?financial_account={owner}"}},
	"treasury.outbound_payment": {{path: treasuries,
		perOwner: "/v1/treasury/outbound_payments?financial_account={owner}"}},
	"treasury.outbound_transfer": {{path: treasuries,
		perOwner: "/v1/treasury/outbound_transfers?financial_account={owner}"}},
	"treasury.received_credit": {{path: treasuries,
		perOwner: "/v1/treasury/received_credits?financial_account={owner}"}},
	"treasury.received_debit": {{path: treasuries,
		perOwner: "/v1/treasury/received_debits?financial_account={owner}"}},

	// The objects of id-only events. Without the parameter the list leaves out closed accounts.
	"v2.core.account":           {{path: "/v2/core/accounts?closed=false"}, {path: "/v2/core/accounts?closed=true"}},
	"v2.core.event_destination": {{path: "/v2/core/event_destinations"}},
}

// isAvailable reports whether this key can read the list for the account.
func (p part) isAvailable(api *provider.API, account string) bool {
	account, _ = realAccount(account)
	switch {
	case p.testOnly && modeOf(api.Key) == liveMode:
		return false
	case p.ownAccount:
		return account == "" && !strings.HasPrefix(string(api.Key.Value), "rk_")
	}
	return account != "" || !strings.Contains(p.path, "{account}")
}

// isBelowOwners reports whether the objects are read through their owners, most of which may have
// none.
func (p part) isBelowOwners() bool { return p.within != "" || p.perOwner != "" }

// Lists returns the lists of the table that contain objects of the account. A key reads one mode.
// Objects whose name exists in both modes are mirrored separately, under the account "test" or
// ".../test", which has no other objects.
func (Stripe) Lists(_ *provider.Source, api *provider.API, account string) map[string]provider.List {
	out := map[string]provider.List{}
	_, test := realAccount(account)
	mode := modeOf(api.Key)
	for objectType, l := range lists {
		first := l.next(api, account, 0)
		switch r := types[objectType]; {
		case first == len(l), test && !r.sharesModes():
		case r.sharesModes() && mode != unknownMode && (mode == testMode) != test:
		default:
			out[objectType] = provider.List{Lag: listLag, Sparse: l.sparse(), OnlyIfMirrored: l.onlyIfMirrored(),
				SeveralLists: l.isSeveralLists(api, account)}
		}
	}
	return out
}
