package provider

import (
	"fmt"
	"net/http"
	"strconv"
	"time"
)

const (
	// throttledWait is the wait after a 429 without a Retry-After.
	throttledWait = time.Second
	// rejectedWait prevents calls at the full rate with an invalid key.
	rejectedWait = time.Minute
	// maxWait is the longest wait, whatever a response requests.
	maxWait = time.Hour
)

// ClassifyStatus classifies a response by its HTTP status, for a provider without a more specific
// rule. A 404 may mean a wrong address as well as a missing object, so it is a Failure here.
func ClassifyStatus(status int, header http.Header, body []byte) Verdict {
	wait := RetryAfter(header)
	switch {
	case status >= 200 && status <= 299 && !isJSONObject(body):
		return Verdict{Kind: Failure, Detail: fmt.Sprintf("answered %d with a body that is no JSON object; is "+
			"base_url the API's address, and is there no proxy in between?", status)}
	case status >= 200 && status <= 299:
		return Verdict{Kind: Found}
	case status == http.StatusUnauthorized:
		return Verdict{Kind: Rejected, Wait: rejectedWait, Detail: "answered 401: the key is wrong or revoked: " +
			"set the source's api.key to a valid one"}
	case status == http.StatusForbidden:
		return Verdict{Kind: Rejected, Wait: wait, Detail: "answered 403: the key may not do this: give it " +
			"permission to read what the source mirrors"}
	case status == http.StatusTooManyRequests:
		return Verdict{Kind: Throttled, Wait: max(wait, throttledWait),
			Detail: "answered 429: too many calls for the account"}
	case status == http.StatusNotFound:
		return Verdict{Kind: Failure, Detail: "answered 404 without saying that the object is missing; is base_url " +
			"right?"}
	case status >= 300 && status <= 399:
		return Verdict{Kind: Failure, Detail: fmt.Sprintf("answered %d, a redirect that is not followed; is base_url "+
			"right?", status)}
	}
	return Verdict{Kind: Failure, Wait: wait, Detail: fmt.Sprintf("answered %d", status)}
}

// isJSONObject checks only the first and last byte; the caller parses the body.
func isJSONObject(body []byte) bool {
	first, last := 0, len(body)-1
	for first < last && body[first] <= ' ' {
		first++
	}
	for last > first && body[last] <= ' ' {
		last--
	}
	return first < last && body[first] == '{' && body[last] == '}'
}

// RetryAfter returns how long a response asks to wait, at most an hour, or 0. It compares a time
// with the response's own Date.
func RetryAfter(header http.Header) time.Duration {
	text := header.Get("Retry-After")
	if seconds, err := strconv.ParseFloat(text, 64); err == nil {
		// false for NaN too
		if !(seconds > 0) {
			return 0
		}
		return time.Duration(min(seconds, maxWait.Seconds()) * float64(time.Second))
	}
	until, err := http.ParseTime(text)
	date, bad := http.ParseTime(header.Get("Date"))
	if err != nil || bad != nil {
		return 0
	}
	return min(max(until.Sub(date), 0), maxWait)
}
