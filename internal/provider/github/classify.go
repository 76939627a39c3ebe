package github

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
)

const (
	// secondaryWait is the wait for a limit without a Retry-After
	// (https://docs.github.com/en/rest/using-the-rest-api/rate-limits-for-the-rest-api).
	secondaryWait = time.Minute
	// resetWithin is the longest duration of a limit.
	resetWithin = time.Hour
)

// permissions matches GitHub's list of the permissions that a call needs: "issues=read;
// pull_requests=read".
var permissions = regexp.MustCompile(`^[a-z_]+=[a-z]+([,;] ?[a-z_]+=[a-z]+)*$`)

// Answer classifies by the status and by GitHub's message, which is examined but never shown.
func (GitHub) Answer(status int, header http.Header, body []byte) provider.Verdict {
	if status >= 200 && status <= 299 && isList(body) {
		body = []byte(`{}`)
	}
	v := provider.ClassifyStatus(status, header, body)
	if v.Kind == provider.Found {
		v.Wait = budgetWait(header)
		return v
	}
	var errorBody struct {
		Message string `json:"message"`
	}
	_ = json.Unmarshal(body, &errorBody)
	messageHas := func(text string) bool { return strings.Contains(strings.ToLower(errorBody.Message), text) }
	switch {
	case (status == http.StatusForbidden || status == http.StatusTooManyRequests) &&
		header.Get("X-Ratelimit-Remaining") == "0":
		return provider.Verdict{Kind: provider.Throttled, Wait: max(untilReset(header), time.Second),
			Detail: fmt.Sprintf("answered %d: the key's calls of this hour are used up", status)}
	case (status == http.StatusForbidden || status == http.StatusTooManyRequests) &&
		(header.Get("Retry-After") != "" || messageHas("secondary rate limit") || messageHas("abuse detection")):
		wait := provider.RetryAfter(header)
		if wait == 0 {
			wait = secondaryWait
		}
		return provider.Verdict{Kind: provider.Throttled, Wait: wait,
			Detail: fmt.Sprintf("answered %d: too many calls in a short time", status)}
	case status == http.StatusForbidden:
		v.Detail = describeForbidden(header)
	case status == http.StatusNotFound && errorBody.Message == "Not Found":
		return provider.Verdict{Kind: provider.Missing, Detail: "answered 404: it does not exist, or the key may not " +
			"see it"}
	case status == http.StatusGone && messageHas("deleted"):
		return provider.Verdict{Kind: provider.Missing, Detail: "answered 410: it was deleted"}
	case status == http.StatusGone:
		return provider.Verdict{Kind: provider.Rejected, Detail: "answered 410: the repository has disabled this"}
	case status == http.StatusUnavailableForLegalReasons:
		return provider.Verdict{Kind: provider.Rejected, Detail: "answered 451: withheld for legal reasons"}
	case status == http.StatusUnprocessableEntity && isListLimit(errorBody.Message):
		return provider.Verdict{Kind: provider.Rejected, Detail: "answered 422: GitHub lists no more of them than " +
			"those already returned"}
	case status == http.StatusUnprocessableEntity && messageHas("cursor"),
		status == http.StatusBadRequest && messageHas("cursor"):
		return provider.Verdict{Kind: provider.Expired,
			Detail: fmt.Sprintf("answered %d: the cursor is no longer known", status)}
	}
	return v
}

// isListLimit recognizes the end of a long list: GitHub lists only the first 1,000 or 10,000
// objects (releases), or no page by number (issues).
func isListLimit(message string) bool {
	message = strings.ToLower(message)
	return strings.HasPrefix(message, "only the first ") && strings.Contains(message, " results are available") ||
		strings.HasPrefix(message, "pagination with the page parameter is not supported")
}

// isList checks only the first and last byte.
func isList(body []byte) bool {
	body = bytes.TrimSpace(body)
	return len(body) >= 2 && body[0] == '[' && body[len(body)-1] == ']'
}

// budgetWait returns how long to leave the rest of the hour's calls to other programs: until the
// hour is over, once half of the calls are used.
func budgetWait(header http.Header) time.Duration {
	limit, err := strconv.Atoi(header.Get("X-Ratelimit-Limit"))
	left, bad := strconv.Atoi(header.Get("X-Ratelimit-Remaining"))
	if err != nil || bad != nil || left >= limit/2 {
		return 0
	}
	return untilReset(header)
}

// untilReset returns how long the hour of a limit still lasts, by the response's own clock; 0 if it
// does not say.
func untilReset(header http.Header) time.Duration {
	at, err := strconv.ParseInt(header.Get("X-Ratelimit-Reset"), 10, 64)
	date, bad := http.ParseTime(header.Get("Date"))
	if err != nil || bad != nil {
		return 0
	}
	wait := min(time.Unix(at, 0).Sub(date), resetWithin-time.Second) + time.Second
	return max(wait, 0)
}

// describeForbidden names what the key lacks, if GitHub does.
func describeForbidden(header http.Header) string {
	if strings.HasPrefix(header.Get("X-Github-Sso"), "required") {
		return "answered 403: the organization requires single sign-on: authorize the key for it in the settings of " +
			"its owner"
	}
	if p := header.Get("X-Accepted-Github-Permissions"); len(p) < 200 && permissions.MatchString(p) {
		return "answered 403: the key lacks one of the permissions " + p +
			": add it in the settings of the token or app"
	}
	return "answered 403: the key may not do this: give it permission to read webhooks and what the source mirrors"
}
