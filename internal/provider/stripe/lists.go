package stripe

import (
	"strings"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
)

var _ provider.ObjectLister = Stripe{}

// listLag is how old a list is taken to be. Stripe documents no lag of lists (of its search up to a minute, which is not used here). One that is too long costs a look at
// what changed within it, one that is too short would take an old state for a new one.
const listLag = 30 * time.Second

// listing is how the objects of a type are listed: by lists that show all objects together where one does not, read one after the other.
type listing []part

// part is one of them. It shows its own objects; or, with within, those that lie in its objects, their owners; or, with each alone, those that each of its objects, the owner, has a list of.
type part struct {
	// path is the list's address, with the query that it needs. {account} is the account that is asked for: of the key's own there is no such list, since nothing tells its id.
	path string
	// within is the field of an owner that holds a list, of which only the newest may be there.
	within string
	// each is the address of what one owner has; with within, it is asked for where more than is there was left out.
	each string
	// alone: the answer is the only object. whole: the list has no pages and takes no parameters.
	alone, whole bool
	// mixed: its objects are of several types.
	mixed bool
	// own: it is the key's own account's. A restricted key may never read it.
	own bool
	// testOnly: there are such objects in test mode alone.
	testOnly bool
}

const (
	outside          = "/v1/accounts/{account}/external_accounts" // what it is paid out to
	customersSources = "/v1/customers?expand[]=data.sources"
	sourcesOfOne     = "/v1/customers/{owner}/sources"
	clocks           = "/v1/test_helpers/test_clocks" // whose customers, with all that they have, are in no other list
	treasuries       = "/v1/treasury/financial_accounts"
)

// lists are the lists that show every object of a type (https://docs.stripe.com/api), newest first by creation, so that what is created meanwhile comes before what was
// read. None can be asked for what changed. A test holds the lists that Stripe describes against this table, and has the reasons of those that are not in it.
var lists = map[string]listing{
	// An account by itself: which accounts a platform has is no matter, since each is kept under itself.
	"account":    {{path: "/v1/account", alone: true, own: true}, {path: "/v1/accounts/{account}", alone: true}},
	"capability": {{path: "/v1/accounts/{account}/capabilities", whole: true}},
	"person":     {{path: "/v1/accounts/{account}/persons"}},
	"card": {{path: outside, mixed: true},
		{path: customersSources, within: "sources", each: sourcesOfOne}},
	"bank_account": {{path: outside, mixed: true},
		{path: customersSources, within: "sources", each: sourcesOfOne}},
	"source":           {{path: customersSources, within: "sources", each: sourcesOfOne}}, // but those that are no customer's
	"balance":          {{path: "/v1/balance", alone: true}},
	"balance_settings": {{path: "/v1/balance_settings", alone: true}},
	"tax.settings":     {{path: "/v1/tax/settings", alone: true}},

	"customer": {{path: "/v1/customers"}, {path: clocks, each: "/v1/customers?test_clock={owner}", testOnly: true}},
	"tax_id":   {{path: "/v1/customers?expand[]=data.tax_ids", within: "tax_ids", each: "/v1/customers/{owner}/tax_ids"}}, // but the account's own, of which no event tells

	"charge":                    {{path: "/v1/charges"}},
	"dispute":                   {{path: "/v1/disputes"}},
	"payment_intent":            {{path: "/v1/payment_intents"}},
	"setup_intent":              {{path: "/v1/setup_intents"}},
	"payment_link":              {{path: "/v1/payment_links"}},
	"payment_method":            {{path: "/v1/payment_methods"}}, // but those of type custom
	"refund":                    {{path: "/v1/refunds"}},
	"radar.early_fraud_warning": {{path: "/v1/radar/early_fraud_warnings"}},
	"checkout.session":          {{path: "/v1/checkout/sessions"}},

	"payout":          {{path: "/v1/payouts"}},
	"topup":           {{path: "/v1/topups"}},
	"transfer":        {{path: "/v1/transfers"}},
	"application_fee": {{path: "/v1/application_fees"}},
	"fee_refund":      {{path: "/v1/application_fees", within: "refunds", each: "/v1/application_fees/{owner}/refunds"}},

	"invoice":         {{path: "/v1/invoices"}},
	"invoiceitem":     {{path: "/v1/invoiceitems"}},
	"invoice_payment": {{path: "/v1/invoice_payments"}},
	"credit_note":     {{path: "/v1/credit_notes"}},
	// Without a status the canceled are not shown.
	"subscription":          {{path: "/v1/subscriptions?status=all"}, {path: clocks, each: "/v1/subscriptions?status=all&test_clock={owner}", testOnly: true}},
	"subscription_schedule": {{path: "/v1/subscription_schedules"}},
	"quote":                 {{path: "/v1/quotes"}, {path: clocks, each: "/v1/quotes?test_clock={owner}", testOnly: true}},
	"tax_rate":              {{path: "/v1/tax_rates"}},
	"promotion_code":        {{path: "/v1/promotion_codes"}},
	"coupon":                {{path: "/v1/coupons"}},
	"plan":                  {{path: "/v1/plans"}},
	// Its description says that it shows the active ones, and the others where it is asked for them.
	"price":   {{path: "/v1/prices?active=true"}, {path: "/v1/prices?active=false"}},
	"product": {{path: "/v1/products"}},

	"billing.alert":                      {{path: "/v1/billing/alerts"}}, // but the archived
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
	"reporting.report_type":         {{path: "/v1/reporting/report_types", whole: true}},
	"scheduled_query_run":           {{path: "/v1/sigma/scheduled_query_runs"}},
	"terminal.reader":               {{path: "/v1/terminal/readers"}},
	"test_helpers.test_clock":       {{path: clocks, testOnly: true}},

	"treasury.financial_account": {{path: treasuries}},
	"treasury.credit_reversal":   {{path: treasuries, each: "/v1/treasury/credit_reversals?financial_account={owner}"}},
	"treasury.debit_reversal":    {{path: treasuries, each: "/v1/treasury/debit_reversals?financial_account={owner}"}},
	"treasury.inbound_transfer":  {{path: treasuries, each: "/v1/treasury/inbound_transfers?financial_account={owner}"}},
	"treasury.outbound_payment":  {{path: treasuries, each: "/v1/treasury/outbound_payments?financial_account={owner}"}},
	"treasury.outbound_transfer": {{path: treasuries, each: "/v1/treasury/outbound_transfers?financial_account={owner}"}},
	"treasury.received_credit":   {{path: treasuries, each: "/v1/treasury/received_credits?financial_account={owner}"}},
	"treasury.received_debit":    {{path: treasuries, each: "/v1/treasury/received_debits?financial_account={owner}"}},

	// What thin events name. Without a word of it the closed accounts are not shown.
	"v2.core.account":           {{path: "/v2/core/accounts?closed=false"}, {path: "/v2/core/accounts?closed=true"}},
	"v2.core.event_destination": {{path: "/v2/core/event_destinations"}},
}

// shows tells whether an account has the part, as the key reads it.
func (p part) shows(api *provider.API, account string) bool {
	account, _ = realAccount(account)
	switch {
	case p.testOnly && modeOf(api.Key) == liveMode:
		return false
	case p.own:
		return account == "" && !strings.HasPrefix(string(api.Key.Value), "rk_")
	}
	return account != "" || !strings.Contains(p.path, "{account}")
}

// below: the objects are read through their owners, most of which may have none.
func (p part) below() bool { return p.within != "" || p.each != "" }

// Lists are those of the table above whose objects are the account's. A key reads one mode: what has one name in both modes is kept apart, under the account "test" or
// ".../test", which holds nothing else.
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
			out[objectType] = provider.List{Lag: listLag, Sparse: l.sparse(), Rare: l.rare(), Several: l.several(api, account)}
		}
	}
	return out
}
