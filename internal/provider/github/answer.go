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
	// secondaryWait is for a limit that does not say how long (https://docs.github.com/en/rest/using-the-rest-api/rate-limits-for-the-rest-api).
	secondaryWait = time.Minute
	// resetWithin is the longest that a limit lasts.
	resetWithin = time.Hour
)

// permissions are what GitHub says that a call needs: "issues=read; pull_requests=read".
var permissions = regexp.MustCompile(`^[a-z_]+=[a-z]+([,;] ?[a-z_]+=[a-z]+)*$`)

// Answer judges by the status and by what GitHub says with it. Its message is looked at and never shown.
func (GitHub) Answer(status int, header http.Header, body []byte) provider.Verdict {
	if status >= 200 && status <= 299 && isList(body) {
		body = []byte(`{}`)
	}
	v := provider.JudgeStatus(status, header, body)
	if v.Kind == provider.Found {
		v.Wait = share(header)
		return v
	}
	var said struct {
		Message string `json:"message"`
	}
	_ = json.Unmarshal(body, &said)
	says := func(text string) bool { return strings.Contains(strings.ToLower(said.Message), text) }
	switch {
	case (status == http.StatusForbidden || status == http.StatusTooManyRequests) && header.Get("X-Ratelimit-Remaining") == "0":
		return provider.Verdict{Kind: provider.Throttled, Wait: max(untilReset(header), time.Second), Detail: fmt.Sprintf("answered %d: the key's calls of this hour are used up", status)}
	case (status == http.StatusForbidden || status == http.StatusTooManyRequests) && (header.Get("Retry-After") != "" || says("secondary rate limit") || says("abuse detection")):
		wait := provider.RetryAfter(header)
		if wait == 0 {
			wait = secondaryWait
		}
		return provider.Verdict{Kind: provider.Throttled, Wait: wait, Detail: fmt.Sprintf("answered %d: too many calls in a short time", status)}
	case status == http.StatusForbidden:
		v.Detail = forbidden(header)
	case status == http.StatusNotFound && said.Message == "Not Found":
		return provider.Verdict{Kind: provider.Missing, Detail: "answered 404: there is none, or the key may not see it"}
	case status == http.StatusGone && says("deleted"):
		return provider.Verdict{Kind: provider.Missing, Detail: "answered 410: it was deleted"}
	case status == http.StatusGone:
		return provider.Verdict{Kind: provider.Refused, Detail: "answered 410: the repository has this switched off"}
	case status == http.StatusUnavailableForLegalReasons:
		return provider.Verdict{Kind: provider.Refused, Detail: "answered 451: withheld for legal reasons"}
	case status == http.StatusUnprocessableEntity && listsNoMore(said.Message):
		return provider.Verdict{Kind: provider.Refused, Detail: "answered 422: GitHub lists no more of them than it has given"}
	case status == http.StatusUnprocessableEntity && says("cursor"), status == http.StatusBadRequest && says("cursor"):
		return provider.Verdict{Kind: provider.Expired, Detail: fmt.Sprintf("answered %d: the cursor is no longer known", status)}
	}
	return v
}

// listsNoMore: of a long list GitHub gives no more than the first 1,000 or 10,000, as of releases, or no page by its number, as of issues.
func listsNoMore(message string) bool {
	message = strings.ToLower(message)
	return strings.HasPrefix(message, "only the first ") && strings.Contains(message, " results are available") ||
		strings.HasPrefix(message, "pagination with the page parameter is not supported")
}

// isList looks at the ends alone.
func isList(body []byte) bool {
	body = bytes.TrimSpace(body)
	return len(body) >= 2 && body[0] == '[' && body[len(body)-1] == ']'
}

// share is how long to leave the rest of an hour's calls to others: once half of them are used, until the hour is over.
func share(header http.Header) time.Duration {
	limit, err := strconv.Atoi(header.Get("X-Ratelimit-Limit"))
	left, bad := strconv.Atoi(header.Get("X-Ratelimit-Remaining"))
	if err != nil || bad != nil || left >= limit/2 {
		return 0
	}
	return untilReset(header)
}

// untilReset is how long the hour of a limit still lasts, by the answer's own clock; 0 where it does not say.
func untilReset(header http.Header) time.Duration {
	at, err := strconv.ParseInt(header.Get("X-Ratelimit-Reset"), 10, 64)
	date, bad := http.ParseTime(header.Get("Date"))
	if err != nil || bad != nil {
		return 0
	}
	wait := min(time.Unix(at, 0).Sub(date), resetWithin-time.Second) + time.Second
	return max(wait, 0)
}

// forbidden names what the key lacks where GitHub does.
func forbidden(header http.Header) string {
	if strings.HasPrefix(header.Get("X-Github-Sso"), "required") {
		return "answered 403: the organization wants single sign-on: authorize the key for it in the settings of its owner"
	}
	if p := header.Get("X-Accepted-Github-Permissions"); len(p) < 200 && permissions.MatchString(p) {
		return "answered 403: the key lacks one of the permissions " + p + ": give it that in the settings of the token or app"
	}
	return "answered 403: the key may not do this: give it the right to read webhooks and what the source mirrors"
}
