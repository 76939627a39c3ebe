package stripe

import (
	"net/url"
	"strings"

	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/provider"
)

var _ provider.Locator = Stripe{}

// owner is an object below which other objects are read.
type owner struct {
	// field is the field of the object with the owner's id.
	field string
	// path reads the object, and at reads the owner. A deleted customer is returned too, as a stub.
	path, at string
}

var (
	ofCustomer = owner{"customer", "/v1/customers/{owner}/sources/{id}", "/v1/customers/{owner}"}
	ofAccount  = owner{"account", "/v1/accounts/{owner}/external_accounts/{id}", "/v1/accounts/{owner}"}
)

// below are the types whose objects are read below another object, which their names do not give,
// but their states and events do.
var below = map[string][]owner{
	"card":         {ofCustomer, ofAccount},
	"bank_account": {ofCustomer, ofAccount},
	"person":       {{"account", "/v1/accounts/{owner}/persons/{id}", "/v1/accounts/{owner}"}},
	"fee_refund": {{"fee", "/v1/application_fees/{owner}/refunds/{id}",
		"/v1/application_fees/{owner}"}},
	"source_transaction": {{"source", "/v1/sources/{owner}/source_transactions/{id}",
		"/v1/sources/{owner}"}},
	"customer_cash_balance_transaction": {{"customer", "/v1/customers/{owner}/cash_balance_transactions/{id}",
		"/v1/customers/{owner}"}},
}

// Locate reads an object of the table below its owner, which is in its state or its newest event.
// The object is treated as missing if its owner is found with the same key. A connected account is
// found in both modes. For objects below it an event must give the mode; otherwise nothing proves
// that they are missing.
func (Stripe) Locate(api *provider.API, account, objectType, objectID string, state []byte,
	newest *provider.StoredEvent) (call, check provider.Call, ok bool) {
	owners, in := knownOwners(state, newest)
	if mode := modeOf(api.Key); in != unknownMode && mode != unknownMode && in != mode || !isPathSegment(objectID) {
		return call, check, false
	}
	account, _ = realAccount(account)
	// an external account names its account only to the platform itself
	if owners["customer"] == "" && owners["account"] == "" && (state != nil || newest != nil) {
		owners["account"] = account
	}
	for _, o := range below[objectType] {
		id := owners[o.field]
		if !isPathSegment(id) {
			continue
		}
		names := strings.NewReplacer("{owner}", url.PathEscape(id), "{id}", url.PathEscape(objectID))
		if o.field != "account" || in != unknownMode {
			check = forAccount(api, provider.Call{Account: account, Path: names.Replace(o.at)})
		}
		return forAccount(api, provider.Call{Account: account, Path: names.Replace(o.path)}), check, true
	}
	return call, check, false
}

// knownOwners returns the ids of an object's owners by field, from its state and else its newest
// event, and the mode of these.
func knownOwners(state []byte, newest *provider.StoredEvent) (owners map[string]string, in mode) {
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

// nameOwners adds the ids of an object's owners.
func nameOwners(owners map[string]string, object *canonical.Value) {
	for _, field := range []string{"customer", "account", "fee", "source"} {
		if id := text(object, field); id != "" {
			owners[field] = id
		}
	}
}

// modeIn returns the mode in an object or event.
func modeIn(root *canonical.Value) mode {
	live, hasMode := root.Get("livemode").Bool()
	switch {
	case !hasMode:
		return unknownMode
	case live:
		return liveMode
	}
	return testMode
}
