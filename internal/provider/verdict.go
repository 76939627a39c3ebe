package provider

import (
	"fmt"
	"net/http"
	"strconv"
	"time"
)

const (
	// throttledWait is for a 429 that does not say how long.
	throttledWait = time.Second
	// refusedWait keeps a key that is good for nothing from being tried at the full rate.
	refusedWait = time.Minute
	// longestWait is the most that is waited at a time, whatever an answer asks for.
	longestWait = time.Hour
)

// JudgeStatus is what HTTP itself says of an answer: the verdict where a provider knows no better. A 404 may come of a wrong address as well as of
// a missing object, so it is Trouble here.
func JudgeStatus(status int, header http.Header, body []byte) Verdict {
	wait := RetryAfter(header)
	switch {
	case status >= 200 && status <= 299 && !isObject(body):
		return Verdict{Kind: Trouble, Detail: fmt.Sprintf("answered %d with what is no JSON object; is base_url the API's, and no proxy in between?", status)}
	case status >= 200 && status <= 299:
		return Verdict{Kind: Found}
	case status == http.StatusUnauthorized:
		return Verdict{Kind: Refused, Wait: refusedWait, Detail: "answered 401: the key is wrong, or was revoked: set the source's api.key to a valid one"}
	case status == http.StatusForbidden:
		return Verdict{Kind: Refused, Wait: wait, Detail: "answered 403: the key may not do this: give it the right to read what the source mirrors"}
	case status == http.StatusTooManyRequests:
		return Verdict{Kind: Throttled, Wait: max(wait, throttledWait), Detail: "answered 429: too many calls for the account"}
	case status == http.StatusNotFound:
		return Verdict{Kind: Trouble, Detail: "answered 404 without saying that the object is missing; is base_url right?"}
	case status >= 300 && status <= 399:
		return Verdict{Kind: Trouble, Detail: fmt.Sprintf("answered %d, a redirect that is not followed; is base_url right?", status)}
	}
	return Verdict{Kind: Trouble, Wait: wait, Detail: fmt.Sprintf("answered %d", status)}
}

// isObject looks at the ends alone: whoever reads the body finds out the rest.
func isObject(body []byte) bool {
	first, last := 0, len(body)-1
	for first < last && body[first] <= ' ' {
		first++
	}
	for last > first && body[last] <= ' ' {
		last--
	}
	return first < last && body[first] == '{' && body[last] == '}'
}

// RetryAfter is how long an answer asks to wait, an hour at most; 0 where it does not say. A time is read against the answer's own Date.
func RetryAfter(header http.Header) time.Duration {
	text := header.Get("Retry-After")
	if seconds, err := strconv.ParseFloat(text, 64); err == nil {
		// NaN is neither.
		if !(seconds > 0) {
			return 0
		}
		return time.Duration(min(seconds, longestWait.Seconds()) * float64(time.Second))
	}
	until, err := http.ParseTime(text)
	date, bad := http.ParseTime(header.Get("Date"))
	if err != nil || bad != nil {
		return 0
	}
	return min(max(until.Sub(date), 0), longestWait)
}
