package shopify

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"

	"github.com/postern-gateway/postern/internal/provider"
)

var (
	_ provider.Reader                  = Shopify{}
	_ provider.AccountBoundReader      = Shopify{}
	_ provider.ObjectCredentialChecker = Shopify{}
	_ provider.TwoStepReader           = Shopify{}
)

const (
	// defaultAPIVersion is requested if the source names no version. It must be the version of the
	// webhooks.
	defaultAPIVersion = "2026-07"
	// Shopify refills 2 REST calls per second for an app in a standard shop
	// (https://shopify.dev/docs/api/usage/rate-limits). The customer's own calls with the same app
	// use the same bucket, and Answer leaves half of it to them.
	apiRate, apiConcurrency = 1, 2
)

var apiVersion = regexp.MustCompile(`^(\d{4}-(01|04|07|10)|unstable)$`)

// CompleteAPI fills in the version, and a rate that leaves most of Shopify's limits to other
// programs. SetBaseURL fills in the address, which is the shop's.
func (Shopify) CompleteAPI(api *provider.API) error {
	if strings.HasPrefix(string(api.Key.Value), "shpss_") {
		return errors.New("key: is the app's client secret, which belongs to secrets: set the access token of " +
			"the app in this shop (shpat_...), with read scopes only")
	}
	if api.Version == "" {
		api.Version = defaultAPIVersion
	}
	if !apiVersion.MatchString(api.Version) {
		return fmt.Errorf("version: %.40q is not a version of Shopify's API: write that of the webhooks, e.g. %s, or "+
			"leave it out", api.Version, defaultAPIVersion)
	}
	if api.Rate == 0 {
		api.Rate = apiRate
	}
	if api.Concurrency == 0 {
		api.Concurrency = apiConcurrency
	}
	return checkBulk(api)
}

// SetBaseURL sets the address of the source's only shop: an access token is valid for one shop.
func (Shopify) SetBaseURL(src *provider.Source, api *provider.API) error {
	shop := shopName(src.Account)
	switch {
	case shop == "":
		return errors.New("an access token belongs to one shop: name the shop under the source's account; shops " +
			"listed under accounts need a source each")
	case api.BaseURL == "" && !strings.HasSuffix(shop, ".myshopify.com"):
		return fmt.Errorf("the source's account is %q, but Shopify's API is at the shop's own domain: write it "+
			"like my-shop.myshopify.com", shop)
	case api.BaseURL == "":
		api.BaseURL = "https://" + shop
	}
	return nil
}

// KeyAccount returns the source's only shop.
func (Shopify) KeyAccount(src *provider.Source) string { return shopName(src.Account) }

// CallsNameAccount: each shop has its own address, which does not accept another shop's token.
func (Shopify) CallsNameAccount() {}

// Authorize sends the access token. The version is in the paths.
func (Shopify) Authorize(api *provider.API, h http.Header) {
	h.Set("X-Shopify-Access-Token", string(api.Key.Value))
}

// isOwnShop reports whether an account is the shop that the source's key belongs to.
func isOwnShop(src *provider.Source, account string) bool {
	return account != "" && account == shopName(src.Account)
}

// The queries that check a key. Every key may query its own scopes. Answer recognizes the second
// query by the name of its result.
const (
	controlQuery = `query { currentAppInstallation { accessScopes { handle } } }`
	ordersQuery  = `query { orderScopes: currentAppInstallation { accessScopes { handle } } }`
)

// CredentialCheck queries the key's scopes.
func (Shopify) CredentialCheck(api *provider.API, account string) provider.Call {
	return graphqlCall(api, account, controlQuery, nil)
}

// ObjectCredentialCheck checks for orders, and for objects read through them, whether the key may
// read old ones too. Without that scope an order of more than 60 days ago looks like a missing one
// (https://shopify.dev/docs/api/usage/access-scopes). Draft orders and the other types of the
// tables are not affected.
func (s Shopify) ObjectCredentialCheck(_ *provider.Source, api *provider.API, account, objectType,
	_ string) provider.Call {
	_, known := gets[objectType]
	// a described type may be below orders too
	if objectType == "order" || below[objectType] != "" || !known && strings.Contains(objectType, "order") {
		return graphqlCall(api, account, ordersQuery, nil)
	}
	return s.CredentialCheck(api, account)
}

// graphqlCall returns a call of the GraphQL API.
func graphqlCall(api *provider.API, account, query string, variables map[string]any) provider.Call {
	body, _ := json.Marshal(struct { // strings and numbers always marshal
		Query     string         `json:"query"`
		Variables map[string]any `json:"variables,omitempty"`
	}{query, variables})
	return provider.Call{Account: account, Method: http.MethodPost, Path: apiPath(api) + "graphql.json",
		Header: http.Header{"Content-Type": {"application/json"}}, Body: body}
}

func apiPath(api *provider.API) string { return "/admin/api/" + api.Version + "/" }
