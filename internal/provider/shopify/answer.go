package shopify

import (
	"encoding/json"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
)

// shutWait keeps a shop that is closed from being asked at the full rate.
const shutWait = time.Minute

var (
	// protected is in what Shopify says of an app that has the scope and was not approved to read what is personal.
	protected = regexp.MustCompile(`(?i)protected[ -]customer[ -]data|not approved to (access|use)`)
	scope     = regexp.MustCompile(`\bread_[a-z_]{1,60}\b`)
	errorCode = regexp.MustCompile(`^[A-Z_]{1,60}$`)
	// queryCode is of an error in the query itself (undefinedField, argumentNotAccepted), which another try does not mend.
	queryCode = regexp.MustCompile(`^[a-z][A-Za-z]{1,60}$`)
)

// reply is what is looked at of an answer: GraphQL's errors and costs, and the few shapes that say more than their status.
type reply struct {
	Data       map[string]json.RawMessage `json:"data"`
	Errors     json.RawMessage            `json:"errors"`
	Extensions struct {
		Cost cost `json:"cost"`
	} `json:"extensions"`
	// Levels are inventory levels asked for by their key: none is not there.
	Levels *[]json.RawMessage `json:"inventory_levels"`
}

// cost is in points, of which a shop has a bucket.
type cost struct {
	Requested float64 `json:"requestedQueryCost"`
	Bucket    struct {
		Most float64 `json:"maximumAvailable"`
		Now  float64 `json:"currentlyAvailable"`
		ASec float64 `json:"restoreRate"`
	} `json:"throttleStatus"`
}

// problem is an error of the GraphQL API. Its message is looked at and never shown.
type problem struct {
	Message    string `json:"message"`
	Extensions struct {
		Code     string `json:"code"`
		Required string `json:"requiredAccess"`
	} `json:"extensions"`
}

// Answer judges by the status and by what GraphQL says of a call that HTTP calls good
// (https://shopify.dev/docs/api/usage/response-codes, https://shopify.dev/docs/api/admin-graphql#status_and_error_codes).
func (Shopify) Answer(status int, header http.Header, body []byte) provider.Verdict {
	v := provider.JudgeStatus(status, header, body)
	var r reply
	if json.Unmarshal(body, &r) != nil {
		r = reply{}
	}
	switch {
	case v.Kind == provider.Found:
		return r.judge(header)
	case status == http.StatusNotFound && strings.Trim(string(r.Errors), `"`) == "Not Found":
		return provider.Verdict{Kind: provider.Missing, Detail: "answered 404: there is no such object"}
	case status == http.StatusPaymentRequired:
		return provider.Verdict{Kind: provider.Refused, Wait: shutWait, Detail: "answered 402: the shop is frozen until its owner has paid Shopify"}
	case status == http.StatusLocked:
		return provider.Verdict{Kind: provider.Refused, Wait: shutWait, Detail: "answered 423: the shop is locked; its owner must ask Shopify why"}
	case status == http.StatusForbidden:
		v.Detail = lacking(string(r.Errors), "answered 403")
	case status == http.StatusUnauthorized:
		v.Detail = "answered 401: the access token is not of this shop, or the app was uninstalled: set the source's api.key to the token of the app as it is installed now"
	}
	return v
}

// judge is for an answer that HTTP calls good.
func (r *reply) judge(header http.Header) provider.Verdict {
	if len(r.Errors) > 0 && string(r.Errors) != "null" {
		return r.failed()
	}
	if r.Levels != nil && len(*r.Levels) == 0 {
		return provider.Verdict{Kind: provider.Missing, Detail: "answered that the item is not kept at the location"}
	}
	if raw, ok := r.Data["object"]; ok && string(raw) == "null" {
		return provider.Verdict{Kind: provider.Missing, Detail: "answered null: there is no such object"}
	}
	if raw, ok := r.Data["started"]; ok {
		var s started
		_ = json.Unmarshal(raw, &s) // what cannot be read names no operation, which ObjectFile says
		if v := s.judge(); v.Kind != "" {
			return v
		}
	}
	if raw, ok := r.Data["bulk"]; ok {
		var o operation
		_ = json.Unmarshal(raw, &o) // what cannot be read is no operation
		if v := o.judge(); v.Kind != "" {
			return v
		}
	}
	if raw, ok := r.Data["orderScopes"]; ok && !allOrders(raw) {
		return provider.Verdict{Kind: provider.Refused, Detail: "the key may not read orders of more than 60 days ago, which look to it as if they were missing: " +
			"give the app the scope read_all_orders, or what is gone cannot be told from what is old"}
	}
	return provider.Verdict{Kind: provider.Found, Wait: max(r.Extensions.Cost.half(), half(header))}
}

// failed judges by the first error that says what to do.
func (r *reply) failed() provider.Verdict {
	var all []problem
	if json.Unmarshal(r.Errors, &all) != nil || len(all) == 0 {
		return provider.Verdict{Kind: provider.Trouble, Detail: "answered with errors that are none of GraphQL's"}
	}
	for _, p := range all {
		switch {
		case p.Extensions.Code == "THROTTLED":
			return provider.Verdict{Kind: provider.Throttled, Wait: r.Extensions.Cost.enough(), Detail: "answered THROTTLED: the shop's points for queries are used up"}
		case p.Extensions.Code == "ACCESS_DENIED":
			return provider.Verdict{Kind: provider.Refused, Detail: lacking(p.Extensions.Required+" "+p.Message, "answered ACCESS_DENIED")}
		case p.Extensions.Code == "SHOP_INACTIVE":
			return provider.Verdict{Kind: provider.Refused, Wait: shutWait, Detail: "answered SHOP_INACTIVE: the shop is closed"}
		case strings.Contains(p.Message, "nvalid cursor"):
			return provider.Verdict{Kind: provider.Expired, Detail: "answered that the place in the list (cursor) is no longer known"}
		case queryCode.MatchString(p.Extensions.Code):
			return provider.Verdict{Kind: provider.Refused, Detail: "answered that the schema of api.version has no such query (" + p.Extensions.Code + "): " + asDescribed}
		}
	}
	v := provider.Verdict{Kind: provider.Trouble, Detail: "answered with an error of GraphQL"}
	if errorCode.MatchString(all[0].Extensions.Code) {
		v.Detail += " (" + all[0].Extensions.Code + ")"
	}
	return v
}

// asDescribed says what to do about a query that Shopify does not take.
const asDescribed = "where the source describes the type, correct api.types.TYPE.list and changed; else leave api.version out"

// lacking names what the app lacks: access to protected customer data (https://shopify.dev/docs/apps/launch/protected-customer-data), which no scope gives, or a scope, where the answer names it.
func lacking(text, answered string) string {
	if protected.MatchString(text) {
		return answered + ": this is protected customer data, and the app was not approved for it, whatever its scopes: ask for it in the Partner Dashboard, under the app's API access (\"Protected customer data access\")"
	}
	if name := scope.FindString(text); name != "" {
		return answered + ": the app lacks the scope " + name + ": give it that, and install it again"
	}
	return answered + ": the app may not read this: give it the read scope of what the source mirrors, and install it again"
}

// allOrders tells whether a key that may read orders may read old ones too. One that may read none is refused where it tries.
func allOrders(installation json.RawMessage) bool {
	var in struct {
		Scopes []struct {
			Handle string `json:"handle"`
		} `json:"accessScopes"`
	}
	_ = json.Unmarshal(installation, &in) // what cannot be read grants nothing
	return slices.ContainsFunc(in.Scopes, func(s struct {
		Handle string `json:"handle"`
	}) bool {
		return s.Handle == "read_all_orders"
	})
}

// longestWait bounds what is made of the numbers of an answer.
const longestWait = time.Hour

// half is how long until half of the bucket is there again: the other half is for the customer's own calls.
func (c cost) half() time.Duration { return c.until(c.Bucket.Most / 2) }

// enough is how long until the query can be paid for, and half of the bucket is there.
func (c cost) enough() time.Duration {
	return max(c.until(max(c.Bucket.Most/2, c.Requested)), time.Second)
}

// until is how long until there are so many points.
func (c cost) until(points float64) time.Duration {
	return restored(points-c.Bucket.Now, c.Bucket.ASec)
}

func restored(points, aSecond float64) time.Duration {
	if !(points > 0) || !(aSecond > 0) {
		return 0
	}
	return time.Duration(min(points/aSecond, longestWait.Seconds()) * float64(time.Second))
}

// secondsToFull is how long a bucket of REST calls takes from empty to full: 40 calls come back at 2 a second, and more at more.
const secondsToFull = 20

// half reads "32/40", the calls of the bucket that are used up, as cost.half does.
func half(header http.Header) time.Duration {
	used, most, _ := strings.Cut(header.Get("X-Shopify-Shop-Api-Call-Limit"), "/")
	u, err := strconv.ParseFloat(used, 64)
	m, bad := strconv.ParseFloat(most, 64)
	if err != nil || bad != nil {
		return 0
	}
	return restored(u-m/2, m/secondsToFull)
}
