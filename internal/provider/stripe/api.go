package stripe

import (
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"

	"github.com/postern-gateway/postern/internal/provider"
)

var (
	_ provider.Reader      = Stripe{}
	_ provider.CallLimiter = Stripe{}
)

const (
	baseURL = "https://api.stripe.com"
	// Stripe allows 100 calls per second for an account in live mode, 25 for a sandbox, and 25 for
	// each endpoint (https://docs.stripe.com/rate-limits). The customer's own calls share these
	// limits, and a run calls one endpoint all the time.
	liveRate, testRate = 10, 5
	concurrency        = 5
	// idOnlyVersion is requested if the source sets no version that /v2 knows: /v2 requires one
	// with a name after the date. It is always requested for the list of id-only events, which can
	// be limited by time, for all objects, only since 2025-10-29.clover. Its content is the same in
	// all versions.
	idOnlyVersion    = "2026-08-26.dahlia"
	idOnlyEventsPath = "/v2/core/events"
	pageSize         = 100
	// monthlyCallLimit is the minimum number of reads per month of an account. Most accounts may
	// read more, 500 times per transaction (https://docs.stripe.com/rate-limits).
	monthlyCallLimit = 10_000
)

var apiVersion = regexp.MustCompile(`^\d{4}-\d{2}-\d{2}(\.[a-z_]+)?$`)

// CompleteAPI fills in Stripe's address, and a rate that leaves most of Stripe's limits to other
// programs.
func (Stripe) CompleteAPI(api *provider.API) error {
	for prefix, what := range map[string]string{"pk_": "a publishable key, which reads nothing",
		"whsec_": "the secret of a webhook endpoint, which belongs to secrets"} {
		if strings.HasPrefix(string(api.Key.Value), prefix) {
			return fmt.Errorf("key: is %s: make a restricted key (rk_...) that may read events and what the source "+
				"mirrors", what)
		}
	}
	if api.Version != "" && !apiVersion.MatchString(api.Version) {
		return fmt.Errorf("version: %.40q is not a version of Stripe's API: write it as the webhook endpoint shows "+
			"it, e.g. 2026-08-26.dahlia, or leave it out", api.Version)
	}
	if api.BaseURL == "" {
		api.BaseURL = baseURL
	}
	if api.Rate == 0 && modeOf(api.Key) == liveMode {
		api.Rate = liveRate
	} else if api.Rate == 0 {
		api.Rate = testRate
	}
	if api.Concurrency == 0 {
		api.Concurrency = concurrency
	}
	return nil
}

// CallLimit returns the minimum; Stripe does not report which accounts may read more.
func (Stripe) CallLimit() int { return monthlyCallLimit }

// Authorize sends the key as a bearer token, and the version, because the mirror compares refetches
// with events.
func (Stripe) Authorize(api *provider.API, h http.Header) {
	h.Set("Authorization", "Bearer "+string(api.Key.Value))
	if api.Version != "" && h.Get("Stripe-Version") == "" {
		h.Set("Stripe-Version", api.Version)
	}
}

// forAccount adds the headers of a call for an account. An account in the path needs no header
// (https://docs.stripe.com/connect/authentication).
func forAccount(api *provider.API, c provider.Call) provider.Call {
	c.Header = http.Header{}
	switch {
	case strings.HasPrefix(c.Path, "/v2/"):
		if c.Path == idOnlyEventsPath || !strings.Contains(api.Version, ".") {
			c.Header.Set("Stripe-Version", idOnlyVersion)
		}
		if c.Account != "" {
			c.Header.Set("Stripe-Context", c.Account)
		}
	case c.Account != "" && !strings.HasPrefix(c.Path, "/v1/accounts/"):
		c.Header.Set("Stripe-Account", c.Account)
	}
	return c
}

// CredentialCheck lists one event. No call is allowed for every restricted key (/v1/account is
// allowed for none), but a key for this purpose must be allowed to read events.
func (Stripe) CredentialCheck(api *provider.API, account string) provider.Call {
	account, _ = realAccount(account)
	return forAccount(api, provider.Call{Account: account, Path: "/v1/events", Query: url.Values{"limit": {"1"}}})
}
