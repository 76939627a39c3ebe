package stripe

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/provider"
)

var _ provider.ObjectLister = Stripe{}

// listLag is how old a list is taken to be. Stripe documents no lag of lists (of its search up to a minute, which is not used here). One that is too long costs a look at
// what changed within it, one that is too short would take an old state for a new one.
const listLag = 30 * time.Second

// listing is how the objects of a type are listed.
type listing struct {
	path string
	// parts are queries that show all objects together where one does not; they are read one after the other.
	parts []string
	// whole: the list has no pages and takes no parameters.
	whole bool
	// testOnly: there are such objects in test mode alone.
	testOnly bool
}

// lists are the lists that show every object of a type (https://docs.stripe.com/api), newest first by creation, so that what is created meanwhile comes before what was
// read. None can be asked for what changed.
//
// Left out are types that have no list, and of those that have one:
//   - account: each is kept under itself, and the list is the platform's;
//   - capability, person, card, bank_account, and source of a customer: below their account or customer;
//   - tax_id: without an owner it lists the account's own, and events tell of customers';
//   - fee_refund: below its application fee; issuing.token: below its card; treasury's movements: below their financial account;
//   - review: closed ones leave the list, so each would be looked at by itself for ever;
//   - terminal.reader: last_seen_at and status change without an event, so each would differ every time;
//   - balance, balance_settings, cash_balance, tax.settings: there is one, which a look reads.
var lists = map[string]listing{
	"customer": {path: "/v1/customers"},

	"charge":                    {path: "/v1/charges"},
	"dispute":                   {path: "/v1/disputes"},
	"payment_intent":            {path: "/v1/payment_intents"},
	"setup_intent":              {path: "/v1/setup_intents"},
	"payment_link":              {path: "/v1/payment_links"},
	"payment_method":            {path: "/v1/payment_methods"}, // but those of type custom
	"refund":                    {path: "/v1/refunds"},
	"radar.early_fraud_warning": {path: "/v1/radar/early_fraud_warnings"},
	"checkout.session":          {path: "/v1/checkout/sessions"},

	"payout":          {path: "/v1/payouts"},
	"topup":           {path: "/v1/topups"},
	"transfer":        {path: "/v1/transfers"},
	"application_fee": {path: "/v1/application_fees"},

	"invoice":         {path: "/v1/invoices"},
	"invoiceitem":     {path: "/v1/invoiceitems"},
	"invoice_payment": {path: "/v1/invoice_payments"},
	"credit_note":     {path: "/v1/credit_notes"},
	// Without a status the canceled are not shown.
	"subscription":          {path: "/v1/subscriptions", parts: []string{"status=all"}},
	"subscription_schedule": {path: "/v1/subscription_schedules"},
	"quote":                 {path: "/v1/quotes"},
	"tax_rate":              {path: "/v1/tax_rates"},
	"promotion_code":        {path: "/v1/promotion_codes"},
	"coupon":                {path: "/v1/coupons"},
	"plan":                  {path: "/v1/plans"},
	// Its description says that it shows the active ones, and the others where it is asked for them.
	"price":   {path: "/v1/prices", parts: []string{"active=true", "active=false"}},
	"product": {path: "/v1/products"},

	"billing.alert":                      {path: "/v1/billing/alerts"}, // but the archived
	"billing.credit_grant":               {path: "/v1/billing/credit_grants"},
	"billing.credit_balance_transaction": {path: "/v1/billing/credit_balance_transactions"},
	"billing.meter":                      {path: "/v1/billing/meters"},
	"billing_portal.configuration":       {path: "/v1/billing_portal/configurations"},

	"issuing.authorization":          {path: "/v1/issuing/authorizations"},
	"issuing.card":                   {path: "/v1/issuing/cards"},
	"issuing.cardholder":             {path: "/v1/issuing/cardholders"},
	"issuing.dispute":                {path: "/v1/issuing/disputes"},
	"issuing.personalization_design": {path: "/v1/issuing/personalization_designs"},
	"issuing.transaction":            {path: "/v1/issuing/transactions"},

	"climate.order":                 {path: "/v1/climate/orders"},
	"climate.product":               {path: "/v1/climate/products"},
	"file":                          {path: "/v1/files"},
	"financial_connections.account": {path: "/v1/financial_connections/accounts"},
	"identity.verification_session": {path: "/v1/identity/verification_sessions"},
	"reporting.report_run":          {path: "/v1/reporting/report_runs"},
	"reporting.report_type":         {path: "/v1/reporting/report_types", whole: true},
	"scheduled_query_run":           {path: "/v1/sigma/scheduled_query_runs"},
	"test_helpers.test_clock":       {path: "/v1/test_helpers/test_clocks", testOnly: true},
	"treasury.financial_account":    {path: "/v1/treasury/financial_accounts"},

	// What thin events name. Without a word of it the closed accounts are not shown.
	"v2.core.account":           {path: "/v2/core/accounts", parts: []string{"closed=false", "closed=true"}},
	"v2.core.event_destination": {path: "/v2/core/event_destinations"},
}

// second tells whether the list is of Stripe's second API, which names its pages otherwise.
func (l listing) second() bool { return strings.HasPrefix(l.path, "/v2/") }

// Lists are those of the table above whose objects are the account's. A key reads one mode: what has one name in both modes is kept apart, under the account "test" or
// ".../test", which holds nothing else.
func (Stripe) Lists(_ *provider.Source, api *provider.API, account string) map[string]provider.List {
	out := map[string]provider.List{}
	_, test := realAccount(account)
	mode := modeOf(api.Key)
	for objectType, l := range lists {
		switch r := types[objectType]; {
		case test && !r.sharesModes(), l.testOnly && mode == liveMode:
		case r.sharesModes() && mode != unknownMode && (mode == testMode) != test:
		default:
			out[objectType] = provider.List{Lag: listLag}
		}
	}
	return out
}

// place is a place in a list: the part that is read, and what follows which page; "" for its first.
func (l listing) place(cursor string) (part int, after string) {
	number, after, _ := strings.Cut(cursor, ":")
	part, err := strconv.Atoi(number)
	if err != nil || part < 0 || part >= max(1, len(l.parts)) {
		return 0, ""
	}
	return part, after
}

// query is that of a place. Pages of the first API follow an object, those of the second are named by a query of Stripe's own.
func (l listing) query(part int, after string) url.Values {
	if l.whole {
		return nil
	}
	if l.second() && after != "" {
		query, err := url.ParseQuery(after)
		if err == nil {
			return query
		}
	}
	query := url.Values{}
	if len(l.parts) > 0 {
		query, _ = url.ParseQuery(l.parts[part]) // the table's, which a test reads
	}
	query.Set("limit", strconv.Itoa(pageSize))
	if !l.second() && after != "" {
		query.Set("starting_after", after)
	}
	return query
}

// ListObjects asks for a page of all; the times are no matter, for no list can be asked for what changed.
func (Stripe) ListObjects(_ *provider.Source, api *provider.API, account, objectType string, _, _ time.Time, cursor string) provider.Call {
	l := lists[objectType]
	part, after := l.place(cursor)
	account, _ = realAccount(account)
	return forAccount(api, provider.Call{Account: account, Path: l.path, Query: l.query(part, after)})
}

// ObjectPage splits a page. Its members are whole, as GET answers them; lists within them may be cut short in both alike. Of what only GET can be asked for whole it tells the ids alone.
func (Stripe) ObjectPage(_ *provider.Source, _ *provider.API, _, objectType, cursor string, _ http.Header, body []byte) ([]provider.Listed, string, error) {
	l := lists[objectType]
	root, err := canonical.Parse(body)
	if err != nil {
		return nil, "", fmt.Errorf("read page of %s: %w", objectType, err)
	}
	defer root.Release()
	page, last, err := members(types[objectType], root, included[objectType] == nil)
	var after string
	if err == nil {
		after, err = l.following(root, last)
	}
	if err != nil {
		return nil, "", fmt.Errorf("read page of %s: %w", objectType, err)
	}
	part, _ := l.place(cursor)
	switch {
	case after != "":
		return page, fmt.Sprintf("%d:%s", part, after), nil
	case part+1 < len(l.parts):
		return page, fmt.Sprintf("%d:", part+1), nil
	}
	return page, "", nil
}

// members are the objects of a page, with their bodies where they are whole, and the id of the last one.
func members(r row, root *canonical.Value, whole bool) (page []provider.Listed, last string, err error) {
	data := root.Get("data")
	if data.Kind() != canonical.Array {
		return nil, "", errors.New("the answer is no list")
	}
	for i, object := range data.Elements() {
		key := r.key(object)
		if last = cmp.Or(text(object, "id"), key); key == "" {
			return nil, "", fmt.Errorf("member %d is no object, or one without id", i)
		}
		one := provider.Listed{ObjectID: key}
		if whole {
			one.Body = object.Raw()
		}
		page = append(page, one)
	}
	return page, last, nil
}

// following is what the next page of the part follows, "" after the last.
func (l listing) following(root *canonical.Value, last string) (string, error) {
	if l.second() {
		next := text(root, "next_page_url")
		at, err := url.Parse(next)
		if err != nil || next != "" && at.RawQuery == "" {
			return "", errors.New("next_page_url is none")
		}
		return at.RawQuery, nil // of the address nothing else is followed
	}
	more, _ := root.Get("has_more").Bool()
	switch {
	case !root.Get("object").Is("list"):
		return "", errors.New("the answer is no list")
	case more && last == "":
		return "", errors.New("an empty page that goes on")
	case more:
		return last, nil
	}
	return "", nil
}
