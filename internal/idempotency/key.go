// Package idempotency parses the request header Idempotency-Key, as
// draft-ietf-httpapi-idempotency-key-header-07 defines it. The admin API and the ingest endpoint
// call it. It never stores or compares keys.
package idempotency

import (
	"errors"
	"fmt"
	"regexp"
)

// Header is the name of the header.
const Header = "Idempotency-Key"

// maxKey is the maximum length of a key in bytes.
const maxKey = 255

// ErrKey: the header's value is not a key. Respond with status 400.
var ErrKey = errors.New("invalid idempotency key")

var (
	// quoted matches a structured-field string (RFC 9651, 3.3.3), which the draft requires.
	quoted = regexp.MustCompile(`^"((?:[ !#-\[\]-~]|\\["\\])*)"$`)
	// unquoted matches a key without quotes, which many clients send.
	unquoted = regexp.MustCompile(`^[A-Za-z0-9_.:~/+=*@-]+$`)
	escaped  = regexp.MustCompile(`\\(["\\])`)
)

// Key parses the values of the header; it returns "" where the header is absent. A key with quotes
// equals the same key without them. Errors: ErrKey.
func Key(values []string) (string, error) {
	if len(values) == 0 {
		return "", nil
	}
	if len(values) > 1 {
		return "", fmt.Errorf("%w: the header is given %d times", ErrKey, len(values))
	}
	key := values[0]
	if m := quoted.FindStringSubmatch(key); m != nil {
		key = escaped.ReplaceAllString(m[1], "$1")
	} else if !unquoted.MatchString(key) {
		return "", fmt.Errorf(`%w: write it in quotes: Idempotency-Key: "8e03978e-40d5-43dd-bc93-6894a57f9324"`, ErrKey)
	}
	if key == "" || len(key) > maxKey {
		return "", fmt.Errorf("%w: it must have 1 to %d characters", ErrKey, maxKey)
	}
	return key, nil
}
