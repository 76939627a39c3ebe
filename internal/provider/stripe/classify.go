package stripe

import (
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
)

// concurrencyWait is the wait after a 429 for too many calls at once. Each of them ends within
// moments.
const concurrencyWait = 250 * time.Millisecond

var (
	permission = regexp.MustCompile(`'rak_([a-z0-9_]{1,60})'`)
	code       = regexp.MustCompile(`^[a-z0-9_]{1,60}$`)
)

// apiError is Stripe's description of a failed call. Its message is examined but never shown,
// because it quotes parts of keys.
type apiError struct {
	Error struct {
		Code    string `json:"code"`
		Message string `json:"message"`
		Param   string `json:"param"`
	} `json:"error"`
}

// Answer classifies by the status, and by Stripe's code if one status has several meanings
// (https://docs.stripe.com/error-low-level, https://docs.stripe.com/rate-limits).
func (Stripe) Answer(status int, header http.Header, body []byte) provider.Verdict {
	v := provider.ClassifyStatus(status, header, body)
	if v.Kind == provider.Found {
		return v
	}
	var p apiError
	if json.Unmarshal(body, &p) != nil || !code.MatchString(p.Error.Code) {
		p.Error.Code = ""
	}
	if (status == http.StatusBadRequest || status == http.StatusNotFound) && p.isLostCursor() {
		return provider.Verdict{Kind: provider.Expired,
			Detail: fmt.Sprintf("answered %d: the object at which the page begins, or whose list it is, does not "+
				"exist any more", status)}
	}
	if (status == http.StatusForbidden || status == http.StatusUnauthorized) && p.Error.Code == "account_invalid" {
		return provider.Verdict{Kind: provider.Rejected, Disconnected: true, Detail: describeNoAccount(status)}
	}
	switch status {
	case http.StatusNotFound:
		return classifyNotFound(v, p)
	case http.StatusBadRequest:
		return classifyUnsupported(v, p)
	case http.StatusForbidden:
		v.Detail = describeForbidden(p)
	case http.StatusTooManyRequests:
		return classifyThrottled(v, p, header)
	default:
		if p.Error.Code != "" && v.Kind == provider.Failure {
			v.Detail += " (" + p.Error.Code + ")"
		}
	}
	return v
}

// isLostCursor reports whether Stripe does not find the position where a page begins: the object,
// or the owner of the list, was deleted, or the second API no longer knows the page.
func (p apiError) isLostCursor() bool {
	switch p.Error.Param {
	case "starting_after", "ending_before":
		return p.Error.Code == "resource_missing"
	case "page":
		return true
	case "test_clock", "financial_account": // the list belongs to it
		return p.Error.Code == "resource_missing"
	}
	return false
}

// classifyUnsupported classifies a call that Stripe does not support: a product is not set up for
// the account, or the API version does not know it. A retry does not help.
func classifyUnsupported(v provider.Verdict, p apiError) provider.Verdict {
	if p.Error.Code != "" {
		v.Detail += " (" + p.Error.Code + ")"
	}
	if p.Error.Code == "lock_timeout" || p.Error.Message == "" {
		return v
	}
	v.Kind = provider.Rejected
	v.Detail += ": Stripe does not support this call for the account: is the product that it belongs to set up " +
		"there, and does the version in api.version know it?"
	return v
}

// classifyNotFound treats a 404 as Missing only if it is about an object. An object of the other
// mode gives 404 too. So does an address that Stripe does not know, or that belongs to a product
// which the account does not have. Only an operator can change that.
func classifyNotFound(v provider.Verdict, p apiError) provider.Verdict {
	switch {
	case strings.Contains(p.Error.Message, "a similar object exists in"):
		return provider.Verdict{Kind: provider.Rejected, Detail: "answered 404: the object is in the other mode " +
			"(test or live) than the key: set the source's api.key to one of the object's mode"}
	case strings.HasPrefix(p.Error.Message, "Unrecognized request URL"):
		return provider.Verdict{Kind: provider.Rejected, Detail: "answered 404: Stripe does not know this address " +
			"for the account: is the product that it belongs to set up there, does the version in api.version know " +
			"it, and is base_url right?"}
	case p.Error.Code == "resource_missing", p.Error.Code == "not_found":
		return provider.Verdict{Kind: provider.Missing, Detail: "answered 404: there is no such object"}
	}
	return v
}

// describeForbidden names the missing permission if Stripe does.
func describeForbidden(p apiError) string {
	if m := permission.FindStringSubmatch(p.Error.Message); m != nil {
		return fmt.Sprintf("answered 403: the key lacks the permission %s: give it that in the Dashboard under "+
			"Developers, API keys", m[1])
	}
	if strings.Contains(p.Error.Message, "Stripe-Account") {
		return describeNoAccount(http.StatusForbidden)
	}
	return "answered 403: the key may not read this: give it the permission in the Dashboard under Developers, API keys"
}

// describeNoAccount is for a key that may not act for the account of the call
// (https://docs.stripe.com/error-codes#account-invalid).
func describeNoAccount(status int) string {
	return fmt.Sprintf("answered %d: the key may not act for the account: if it is a connected account, connect "+
		"it again and give the key permissions for connected accounts; "+
		"if it is the key's own account, a restricted key needs them too", status)
}

// classifyThrottled distinguishes the limits. A locked object is busy by itself, so no other call
// needs to wait.
func classifyThrottled(v provider.Verdict, p apiError, header http.Header) provider.Verdict {
	reason := header.Get("Stripe-Rate-Limited-Reason")
	if p.Error.Code == "lock_timeout" {
		return provider.Verdict{Kind: provider.Failure, Detail: "answered 429: the object is busy (lock_timeout)"}
	}
	if strings.HasSuffix(reason, "-concurrency") && provider.RetryAfter(header) == 0 {
		v.Wait = concurrencyWait
	}
	if code.MatchString(strings.ReplaceAll(reason, "-", "_")) {
		v.Detail += " (" + reason + ")"
	}
	return v
}
