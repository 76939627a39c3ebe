package stripe

import (
	"net/url"
	"strings"

	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/provider"
)

var _ provider.Locator = Stripe{}

// owner is what an object is read below.
type owner struct {
	// field of the object names it.
	field string
	// path reads the object, and at the owner itself: a deleted customer is answered too, as a stub.
	path, at string
}

var (
	ofCustomer = owner{"customer", "/v1/customers/{owner}/sources/{id}", "/v1/customers/{owner}"}
	ofAccount  = owner{"account", "/v1/accounts/{owner}/external_accounts/{id}", "/v1/accounts/{owner}"}
)

// below are the types whose objects are read below another one, which their names do not tell, but their states and events do.
var below = map[string][]owner{
	"card":                              {ofCustomer, ofAccount},
	"bank_account":                      {ofCustomer, ofAccount},
	"person":                            {{"account", "/v1/accounts/{owner}/persons/{id}", "/v1/accounts/{owner}"}},
	"fee_refund":                        {{"fee", "/v1/application_fees/{owner}/refunds/{id}", "/v1/application_fees/{owner}"}},
	"source_transaction":                {{"source", "/v1/sources/{owner}/source_transactions/{id}", "/v1/sources/{owner}"}},
	"customer_cash_balance_transaction": {{"customer", "/v1/customers/{owner}/cash_balance_transactions/{id}", "/v1/customers/{owner}"}},
}

// Locate reads an object of the table above below its owner, which its state names, or its newest event. That it is missing is believed where its owner is found with the same key. A connected account is
// found in both modes: of what lies below it an event must tell in which it is, or nothing shows that it is missing.
func (Stripe) Locate(api *provider.API, account, objectType, objectID string, state []byte, newest *provider.Stored) (call, proof provider.Call, ok bool) {
	known, in := known(state, newest)
	if mode := modeOf(api.Key); in != unknownMode && mode != unknownMode && in != mode || !escapable(objectID) {
		return call, proof, false
	}
	account, _ = realAccount(account)
	if known["customer"] == "" && known["account"] == "" && (state != nil || newest != nil) { // what an account is paid out to names it to its own platform alone
		known["account"] = account
	}
	for _, o := range below[objectType] {
		id := known[o.field]
		if !escapable(id) {
			continue
		}
		names := strings.NewReplacer("{owner}", url.PathEscape(id), "{id}", url.PathEscape(objectID))
		if o.field != "account" || in != unknownMode {
			proof = forAccount(api, provider.Call{Account: account, Path: names.Replace(o.at)})
		}
		return forAccount(api, provider.Call{Account: account, Path: names.Replace(o.path)}), proof, true
	}
	return call, proof, false
}

// known is who an object's owners are, by field, as its state tells and else its newest event, and the mode that these are in.
func known(state []byte, newest *provider.Stored) (owners map[string]string, in mode) {
	owners = map[string]string{}
	if newest != nil {
		if e, err := readEvent(newest.Body); err == nil {
			in = modeIn(e.root)
			nameOwners(owners, e.object)
			e.root.Release()
		}
	}
	if object, err := canonical.Parse(state); err == nil {
		nameOwners(owners, object)
		if in == unknownMode {
			in = modeIn(object)
		}
		object.Release()
	}
	return owners, in
}

// nameOwners keeps who the owners of an object are.
func nameOwners(owners map[string]string, object *canonical.Value) {
	for _, field := range []string{"customer", "account", "fee", "source"} {
		if id := text(object, field); id != "" {
			owners[field] = id
		}
	}
}

// modeIn is the mode that an object or event says it is in.
func modeIn(root *canonical.Value) mode {
	live, tells := root.Get("livemode").Bool()
	switch {
	case !tells:
		return unknownMode
	case live:
		return liveMode
	}
	return testMode
}
