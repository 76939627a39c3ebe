package stripe

import (
	"cmp"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/provider"
)

// gets are the paths that read one object, by type (https://docs.stripe.com/api), of the types that
// are not read below their list; see readPath. {id} is the object's name in the mirror. {a} and {b}
// are the two halves of a joined name.
//
// Objects below another object, whose id the name does not contain, are in the table of locate.go.
// notRead has the types without a path. billing.alert_triggered and application are not mirrored.
var gets = map[string]string{
	"account":         "/v1/accounts/{id}",
	"capability":      "/v1/accounts/{a}/capabilities/{b}",
	"cash_balance":    "/v1/customers/{id}/cash_balance", // named by its customer
	"issuing.dispute": "/v1/issuing/disputes/{id}",
	"issuing.token":   "/v1/issuing/tokens/{id}",
	"mandate":         "/v1/mandates/{id}",
	"review":          "/v1/reviews/{id}",
	"source":          "/v1/sources/{id}",
	"tax_id":          "/v1/tax_ids/{id}",
}

// readPath returns the path that reads one object of a type, or "": the one in gets, or else the
// path of its list and the id. An object that is a list of its own has no id.
func readPath(objectType string) string {
	if path := gets[objectType]; path != "" || below[objectType] != nil || lists[objectType] == nil {
		return path
	}
	p := lists[objectType][0]
	path, _, _ := strings.Cut(cmp.Or(p.perOwner, p.path), "?")
	if p.singleObject {
		return path
	}
	return path + "/{id}"
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
	path := readPath(objectType)
	a, b, joined := strings.Cut(objectID, ":")
	if path == "" || strings.Contains(path, "{a}") && !(joined && isPathSegment(a) && isPathSegment(b)) ||
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
