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
	_ provider.Reader        = Shopify{}
	_ provider.Housed        = Shopify{}
	_ provider.ObjectControl = Shopify{}
	_ provider.Stepper       = Shopify{}
)

const (
	// apiVersionNow is asked for where the source names no version. It must be that of the webhooks.
	apiVersionNow = "2026-07"
	// Shopify gives back 2 REST calls a second to an app in a standard shop (https://shopify.dev/docs/api/usage/rate-limits). The customer's own calls with the
	// same app have the same bucket; Answer leaves them half of what is in it besides.
	apiRate, apiConcurrency = 1, 2
)

var apiVersion = regexp.MustCompile(`^(\d{4}-(01|04|07|10)|unstable)$`)

// CompleteAPI fills in the version, and a rate that leaves the larger part of Shopify's limits to others. The address is that of a shop: Site fills it in.
func (Shopify) CompleteAPI(api *provider.API) error {
	if strings.HasPrefix(string(api.Key.Value), "shpss_") {
		return errors.New("key: is the app's client secret, which belongs among secrets: give the access token of the app in this shop (shpat_...), with read scopes alone")
	}
	if api.Version == "" {
		api.Version = apiVersionNow
	}
	if !apiVersion.MatchString(api.Version) {
		return fmt.Errorf("version: %.40q is none of Shopify's: write that of the webhooks, e.g. %s, or leave it out", api.Version, apiVersionNow)
	}
	if api.Rate == 0 {
		api.Rate = apiRate
	}
	if api.Concurrency == 0 {
		api.Concurrency = apiConcurrency
	}
	return checkBulk(api)
}

// Site is the address of the source's one shop: an access token is good for one.
func (Shopify) Site(src *provider.Source, api *provider.API) error {
	shop := shopName(src.Account)
	switch {
	case shop == "":
		return errors.New("an access token is of one shop: name the shop under the source's account; shops listed under accounts need a source each")
	case api.BaseURL == "" && !strings.HasSuffix(shop, ".myshopify.com"):
		return fmt.Errorf("the source's account is %q, and Shopify's API is read at the shop's own domain: write it like my-shop.myshopify.com", shop)
	case api.BaseURL == "":
		api.BaseURL = "https://" + shop
	}
	return nil
}

// Home is the source's one shop.
func (Shopify) Home(src *provider.Source) string { return shopName(src.Account) }

// Housed: a shop has a name of its own, and takes no token of another one.
func (Shopify) Housed() {}

// Authorize sends the access token. The version is in the paths.
func (Shopify) Authorize(api *provider.API, h http.Header) {
	h.Set("X-Shopify-Access-Token", string(api.Key.Value))
}

// ours tells whether an account is the shop that the source's key is of.
func ours(src *provider.Source, account string) bool {
	return account != "" && account == shopName(src.Account)
}

// The queries that prove a key. Every key may ask what it may. Answer knows the second by the name it gives to what it asks for.
const (
	controlQuery = `query { currentAppInstallation { accessScopes { handle } } }`
	ordersQuery  = `query { orderScopes: currentAppInstallation { accessScopes { handle } } }`
)

// Control asks what the key may.
func (Shopify) Control(api *provider.API, account string) provider.Call {
	return ask(api, account, controlQuery, nil)
}

// ControlObject asks for orders, and for what is read through them, whether the key may read old ones too: without that right an order of more than 60 days
// ago is answered as if there were none (https://shopify.dev/docs/api/usage/access-scopes). Draft orders and the other types of the tables are none of these.
func (s Shopify) ControlObject(_ *provider.Source, api *provider.API, account, objectType, _ string) provider.Call {
	_, known := gets[objectType]
	if objectType == "order" || below[objectType] != "" || !known && strings.Contains(objectType, "order") { // a type that is described may lie below orders too
		return ask(api, account, ordersQuery, nil)
	}
	return s.Control(api, account)
}

// ask is a call of the GraphQL API.
func ask(api *provider.API, account, query string, variables map[string]any) provider.Call {
	body, _ := json.Marshal(struct { // of texts and numbers: it cannot fail
		Query     string         `json:"query"`
		Variables map[string]any `json:"variables,omitempty"`
	}{query, variables})
	return provider.Call{Account: account, Method: http.MethodPost, Path: apiPath(api) + "graphql.json", Header: http.Header{"Content-Type": {"application/json"}}, Body: body}
}

func apiPath(api *provider.API) string { return "/admin/api/" + api.Version + "/" }
