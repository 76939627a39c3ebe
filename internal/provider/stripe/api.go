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
	_ provider.Reader   = Stripe{}
	_ provider.Allotted = Stripe{}
)

const (
	baseURL = "https://api.stripe.com"
	// Stripe takes 100 calls a second of an account in live mode, 25 of a sandbox, and 25 of each endpoint (https://docs.stripe.com/rate-limits).
	// The customer's own calls have the same account to share, and a run asks one endpoint all the time.
	liveRate, testRate = 10, 5
	concurrency        = 5
	// thinVersion is asked for where the source says no version that /v2 knows (those have a name after the date, and it answers nobody without one), and always of the list of
	// thin events: it can be asked by time, and for all objects, only since 2025-10-29.clover, and what it tells is the same in all versions.
	thinVersion = "2026-08-26.dahlia"
	thinEvents  = "/v2/core/events"
	pageSize    = 100
	// allotted is the least that an account may read in a month; most may read more, 500 times for each transaction (https://docs.stripe.com/rate-limits).
	allotted = 10_000
)

var apiVersion = regexp.MustCompile(`^\d{4}-\d{2}-\d{2}(\.[a-z_]+)?$`)

// CompleteAPI fills in Stripe's address and a rate that leaves the larger part of its limits to others.
func (Stripe) CompleteAPI(api *provider.API) error {
	for prefix, what := range map[string]string{"pk_": "a publishable key, which reads nothing", "whsec_": "the secret of a webhook endpoint, which belongs among secrets"} {
		if strings.HasPrefix(string(api.Key.Value), prefix) {
			return fmt.Errorf("key: is %s: make a restricted key (rk_...) that may read events and what the source mirrors", what)
		}
	}
	if api.Version != "" && !apiVersion.MatchString(api.Version) {
		return fmt.Errorf("version: %.40q is none of Stripe's: write it as the webhook endpoint shows it, e.g. 2026-08-26.dahlia, or leave it out", api.Version)
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

// Allotted is the least; Stripe does not tell who has more.
func (Stripe) Allotted() int { return allotted }

// Authorize sends the key as a bearer's, and the version: the mirror compares what a look answers with what events carried.
func (Stripe) Authorize(api *provider.API, h http.Header) {
	h.Set("Authorization", "Bearer "+string(api.Key.Value))
	if api.Version != "" && h.Get("Stripe-Version") == "" {
		h.Set("Stripe-Version", api.Version)
	}
}

// forAccount adds the headers of a call for an account. An account in the path stands for itself
// (https://docs.stripe.com/connect/authentication).
func forAccount(api *provider.API, c provider.Call) provider.Call {
	c.Header = http.Header{}
	switch {
	case strings.HasPrefix(c.Path, "/v2/"):
		if c.Path == thinEvents || !strings.Contains(api.Version, ".") {
			c.Header.Set("Stripe-Version", thinVersion)
		}
		if c.Account != "" {
			c.Header.Set("Stripe-Context", c.Account)
		}
	case c.Account != "" && !strings.HasPrefix(c.Path, "/v1/accounts/"):
		c.Header.Set("Stripe-Account", c.Account)
	}
	return c
}

// Control lists one event. No call is open to every restricted key (/v1/account is to none of them), but reading events is what each key for this
// must be allowed.
func (Stripe) Control(api *provider.API, account string) provider.Call {
	account, _ = realAccount(account)
	return forAccount(api, provider.Call{Account: account, Path: "/v1/events", Query: url.Values{"limit": {"1"}}})
}
