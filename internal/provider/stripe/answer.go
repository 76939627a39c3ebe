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

// concurrencyWait is for a 429 of too many calls at once: each ends within moments.
const concurrencyWait = 250 * time.Millisecond

var (
	permission = regexp.MustCompile(`'rak_([a-z0-9_]{1,60})'`)
	code       = regexp.MustCompile(`^[a-z0-9_]{1,60}$`)
)

// problem is what Stripe says of a call that came to nothing. Its message is looked at and never shown: it quotes keys, if in part.
type problem struct {
	Error struct {
		Code    string `json:"code"`
		Message string `json:"message"`
		Param   string `json:"param"`
	} `json:"error"`
}

// Answer judges by the status, and by Stripe's code where one status has several meanings
// (https://docs.stripe.com/error-low-level, https://docs.stripe.com/rate-limits).
func (Stripe) Answer(status int, header http.Header, body []byte) provider.Verdict {
	v := provider.JudgeStatus(status, header, body)
	if v.Kind == provider.Found {
		return v
	}
	var p problem
	if json.Unmarshal(body, &p) != nil || !code.MatchString(p.Error.Code) {
		p.Error.Code = ""
	}
	if (status == http.StatusBadRequest || status == http.StatusNotFound) && p.cursor() {
		return provider.Verdict{Kind: provider.Expired, Detail: fmt.Sprintf("answered %d: the object after which the page begins, or below which it lies, is no longer there", status)}
	}
	if (status == http.StatusForbidden || status == http.StatusUnauthorized) && p.Error.Code == "account_invalid" {
		return provider.Verdict{Kind: provider.Refused, Disconnected: true, Detail: noAccount(status)}
	}
	switch status {
	case http.StatusNotFound:
		return notFound(v, p)
	case http.StatusBadRequest:
		return unable(v, p)
	case http.StatusForbidden:
		v.Detail = forbidden(p)
	case http.StatusTooManyRequests:
		return throttled(v, p, header)
	default:
		if p.Error.Code != "" && v.Kind == provider.Trouble {
			v.Detail += " (" + p.Error.Code + ")"
		}
	}
	return v
}

// cursor tells whether what Stripe does not find is the place where a page begins: the object, or that whose list it is, was deleted since, or the second API has forgotten its page.
func (p problem) cursor() bool {
	switch p.Error.Param {
	case "starting_after", "ending_before":
		return p.Error.Code == "resource_missing"
	case "page":
		return true
	case "test_clock", "financial_account": // whose list is read below it
		return p.Error.Code == "resource_missing"
	}
	return false
}

// unable is a call that Stripe does not take: what it is about is not set up for the account, or the version of the API does not know it. Asked again it is not taken either.
func unable(v provider.Verdict, p problem) provider.Verdict {
	if p.Error.Code != "" {
		v.Detail += " (" + p.Error.Code + ")"
	}
	if p.Error.Code == "lock_timeout" || p.Error.Message == "" {
		return v
	}
	v.Kind = provider.Refused
	v.Detail += ": Stripe does not take this call of the account: is the product that it belongs to set up there, and does the version in api.version know it?"
	return v
}

// notFound believes no 404 but one of an object. An object of the other mode is answered 404 too, and so is an address that Stripe does not know, or not for an account that has not
// the product it belongs to: that stays so until a person has changed something.
func notFound(v provider.Verdict, p problem) provider.Verdict {
	switch {
	case strings.Contains(p.Error.Message, "a similar object exists in"):
		return provider.Verdict{Kind: provider.Refused, Detail: "answered 404: the object is in the other mode (test or live) than the key: set the source's api.key to one of the object's mode"}
	case strings.HasPrefix(p.Error.Message, "Unrecognized request URL"):
		return provider.Verdict{Kind: provider.Refused, Detail: "answered 404: Stripe has no such address for the account: is the product that it belongs to set up there, does the version in api.version know it, " +
			"and is base_url right?"}
	case p.Error.Code == "resource_missing", p.Error.Code == "not_found":
		return provider.Verdict{Kind: provider.Missing, Detail: "answered 404: there is no such object"}
	}
	return v
}

// forbidden names what the key lacks where Stripe does.
func forbidden(p problem) string {
	if m := permission.FindStringSubmatch(p.Error.Message); m != nil {
		return fmt.Sprintf("answered 403: the key lacks the permission %s: give it that in the Dashboard under Developers, API keys", m[1])
	}
	if strings.Contains(p.Error.Message, "Stripe-Account") {
		return noAccount(http.StatusForbidden)
	}
	return "answered 403: the key may not read this: give it the permission in the Dashboard under Developers, API keys"
}

// noAccount is for a key that may not act for the account that the call names (https://docs.stripe.com/error-codes#account-invalid).
func noAccount(status int) string {
	return fmt.Sprintf("answered %d: the key may not act for the account: where that is a connected account, connect it again and give the key permissions for connected accounts; "+
		"where it is the key's own, a restricted key needs them too", status)
}

// throttled tells the limits apart. An object that is locked is busy by itself: nobody else need wait.
func throttled(v provider.Verdict, p problem, header http.Header) provider.Verdict {
	reason := header.Get("Stripe-Rate-Limited-Reason")
	if p.Error.Code == "lock_timeout" {
		return provider.Verdict{Kind: provider.Trouble, Detail: "answered 429: the object is busy (lock_timeout)"}
	}
	if strings.HasSuffix(reason, "-concurrency") && provider.RetryAfter(header) == 0 {
		v.Wait = concurrencyWait
	}
	if code.MatchString(strings.ReplaceAll(reason, "-", "_")) {
		v.Detail += " (" + reason + ")"
	}
	return v
}
