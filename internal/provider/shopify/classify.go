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

// closedShopWait prevents calls at the full rate to a closed shop.
const closedShopWait = time.Minute

var (
	// protected matches Shopify's message for an app that has the scope but is not approved to read
	// personal data.
	protected = regexp.MustCompile(`(?i)protected[ -]customer[ -]data|not approved to (access|use)`)
	scope     = regexp.MustCompile(`\bread_[a-z_]{1,60}\b`)
	errorCode = regexp.MustCompile(`^[A-Z_]{1,60}$`)
	// queryCode matches the code of an error in the query itself (undefinedField,
	// argumentNotAccepted). A retry does not help.
	queryCode = regexp.MustCompile(`^[a-z][A-Za-z]{1,60}$`)
)

// reply is the part of a response that is examined: GraphQL's errors and costs, and a few fields
// that say more than the status.
type reply struct {
	Data       map[string]json.RawMessage `json:"data"`
	Errors     json.RawMessage            `json:"errors"`
	Extensions struct {
		Cost cost `json:"cost"`
	} `json:"extensions"`
	// Levels are inventory levels requested by key. An empty list means that the level does not
	// exist.
	Levels *[]json.RawMessage `json:"inventory_levels"`
}

// cost is in points; a shop has a bucket of points.
type cost struct {
	Requested float64 `json:"requestedQueryCost"`
	Bucket    struct {
		Most      float64 `json:"maximumAvailable"`
		Now       float64 `json:"currentlyAvailable"`
		PerSecond float64 `json:"restoreRate"`
	} `json:"throttleStatus"`
}

// apiError is an error of the GraphQL API. Its message is examined but never shown.
type apiError struct {
	Message    string `json:"message"`
	Extensions struct {
		Code     string `json:"code"`
		Required string `json:"requiredAccess"`
	} `json:"extensions"`
}

// Answer classifies by the status, and by GraphQL's errors in a response with a good HTTP status
// (https://shopify.dev/docs/api/usage/response-codes,
// https://shopify.dev/docs/api/admin-graphql#status_and_error_codes).
func (Shopify) Answer(status int, header http.Header, body []byte) provider.Verdict {
	v := provider.ClassifyStatus(status, header, body)
	var r reply
	if json.Unmarshal(body, &r) != nil {
		r = reply{}
	}
	switch {
	case v.Kind == provider.Found:
		return r.classify(header)
	case status == http.StatusNotFound && strings.Trim(string(r.Errors), `"`) == "Not Found":
		return provider.Verdict{Kind: provider.Missing, Detail: "answered 404: there is no such object"}
	case status == http.StatusPaymentRequired:
		return provider.Verdict{Kind: provider.Rejected, Wait: closedShopWait,
			Detail: "answered 402: the shop is frozen until its owner has paid Shopify"}
	case status == http.StatusLocked:
		return provider.Verdict{Kind: provider.Rejected, Wait: closedShopWait,
			Detail: "answered 423: the shop is locked; its owner must ask Shopify why"}
	case status == http.StatusForbidden:
		v.Detail = describeMissingRight(string(r.Errors), "answered 403")
	case status == http.StatusUnauthorized:
		v.Detail = "answered 401: the access token does not belong to this shop, or the app was uninstalled: set the " +
			"source's api.key to the token of the app as it is installed now"
	}
	return v
}

// classify is for a response with a good HTTP status.
func (r *reply) classify(header http.Header) provider.Verdict {
	if len(r.Errors) > 0 && string(r.Errors) != "null" {
		return r.classifyErrors()
	}
	if r.Levels != nil && len(*r.Levels) == 0 {
		return provider.Verdict{Kind: provider.Missing, Detail: "answered that the item is not stocked at the location"}
	}
	if raw, ok := r.Data["object"]; ok && string(raw) == "null" {
		return provider.Verdict{Kind: provider.Missing, Detail: "answered null: there is no such object"}
	}
	if raw, ok := r.Data["started"]; ok {
		var s startedBulk
		_ = json.Unmarshal(raw, &s) // an unreadable one names no operation, which ObjectFile reports
		if v := s.classify(); v.Kind != "" {
			return v
		}
	}
	if raw, ok := r.Data["bulk"]; ok {
		var o bulkOperation
		_ = json.Unmarshal(raw, &o) // an unreadable one is no operation
		if v := o.classify(); v.Kind != "" {
			return v
		}
	}
	if raw, ok := r.Data["orderScopes"]; ok && !allOrders(raw) {
		return provider.Verdict{Kind: provider.Rejected, Detail: "the key may not read orders of more than 60 days " +
			"ago, which look to it like missing ones: " +
			"give the app the scope read_all_orders; otherwise deleted orders cannot be distinguished from old ones"}
	}
	return provider.Verdict{Kind: provider.Found, Wait: max(r.Extensions.Cost.waitForHalf(),
		waitForHalfOfHeader(header))}
}

// classifyErrors classifies by the first error that says what to do.
func (r *reply) classifyErrors() provider.Verdict {
	var all []apiError
	if json.Unmarshal(r.Errors, &all) != nil || len(all) == 0 {
		return provider.Verdict{Kind: provider.Failure, Detail: "answered with errors that are not GraphQL errors"}
	}
	for _, p := range all {
		switch {
		case p.Extensions.Code == "THROTTLED":
			return provider.Verdict{Kind: provider.Throttled, Wait: r.Extensions.Cost.waitForEnough(),
				Detail: "answered THROTTLED: the shop's points for queries are used up"}
		case p.Extensions.Code == "ACCESS_DENIED":
			return provider.Verdict{Kind: provider.Rejected,
				Detail: describeMissingRight(p.Extensions.Required+" "+p.Message, "answered ACCESS_DENIED")}
		case p.Extensions.Code == "SHOP_INACTIVE":
			return provider.Verdict{Kind: provider.Rejected, Wait: closedShopWait,
				Detail: "answered SHOP_INACTIVE: the shop is closed"}
		case strings.Contains(p.Message, "nvalid cursor"):
			return provider.Verdict{Kind: provider.Expired,
				Detail: "answered that the position in the list (cursor) is no longer known"}
		case queryCode.MatchString(p.Extensions.Code):
			return provider.Verdict{Kind: provider.Rejected, Detail: "answered that the schema of api.version has no " +
				"such query (" + p.Extensions.Code + "): " + describedTypeRemedy}
		}
	}
	v := provider.Verdict{Kind: provider.Failure, Detail: "answered with a GraphQL error"}
	if errorCode.MatchString(all[0].Extensions.Code) {
		v.Detail += " (" + all[0].Extensions.Code + ")"
	}
	return v
}

// describedTypeRemedy says what to do about a query that Shopify does not accept.
const describedTypeRemedy = "if the source describes the type, correct api.types.TYPE.list and changed; else leave " +
	"api.version out"

// describeMissingRight names what the app lacks: access to protected customer data
// (https://shopify.dev/docs/apps/launch/protected-customer-data), which no scope gives, or a scope
// if the response names it. text is the response's error; response begins the description.
func describeMissingRight(text, response string) string {
	if protected.MatchString(text) {
		return response + ": this is protected customer data, and the app is not approved for it, whatever its " +
			"scopes: request access in the Partner Dashboard, under the app's API access (\"Protected customer data " +
			"access\")"
	}
	if name := scope.FindString(text); name != "" {
		return response + ": the app lacks the scope " + name + ": add it, and install the app again"
	}
	return response + ": the app may not read this: add the read scope of what the source mirrors, and install " +
		"the app again"
}

// allOrders reports whether a key that may read orders may read old ones too. A key that may read
// none gets an error from the call itself.
func allOrders(installation json.RawMessage) bool {
	var in struct {
		Scopes []struct {
			Handle string `json:"handle"`
		} `json:"accessScopes"`
	}
	_ = json.Unmarshal(installation, &in) // unreadable scopes grant nothing
	return slices.ContainsFunc(in.Scopes, func(s struct {
		Handle string `json:"handle"`
	}) bool {
		return s.Handle == "read_all_orders"
	})
}

// longestWait limits the wait that is computed from a response's numbers.
const longestWait = time.Hour

// waitForHalf returns how long until half of the bucket is available again. The other half is for
// the customer's own calls.
func (c cost) waitForHalf() time.Duration { return c.until(c.Bucket.Most / 2) }

// waitForEnough returns how long until the query can be paid, and half of the bucket is available.
func (c cost) waitForEnough() time.Duration {
	return max(c.until(max(c.Bucket.Most/2, c.Requested)), time.Second)
}

// until returns how long until there are this many points.
func (c cost) until(points float64) time.Duration {
	return restored(points-c.Bucket.Now, c.Bucket.PerSecond)
}

func restored(points, aSecond float64) time.Duration {
	if !(points > 0) || !(aSecond > 0) {
		return 0
	}
	return time.Duration(min(points/aSecond, longestWait.Seconds()) * float64(time.Second))
}

// secondsToFull is how long an empty bucket of REST calls takes to fill: 40 calls refill at 2 a
// second, and larger buckets faster.
const secondsToFull = 20

// waitForHalfOfHeader reads "32/40", the used calls of the bucket, and waits as cost.waitForHalf
// does.
func waitForHalfOfHeader(header http.Header) time.Duration {
	used, most, _ := strings.Cut(header.Get("X-Shopify-Shop-Api-Call-Limit"), "/")
	u, err := strconv.ParseFloat(used, 64)
	m, bad := strconv.ParseFloat(most, 64)
	if err != nil || bad != nil {
		return 0
	}
	return restored(u-m/2, m/secondsToFull)
}
