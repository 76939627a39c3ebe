// Package header reads the request header Idempotency-Key, as draft-ietf-httpapi-idempotency-key-header-07 has it. It knows nothing of what is done with a key.
package header

import (
	"errors"
	"fmt"
	"regexp"
)

// Name is the header's.
const Name = "Idempotency-Key"

// maxKey bounds a key, in bytes.
const maxKey = 255

// ErrKey: what the header says is no key. Answer 400.
var ErrKey = errors.New("no idempotency key")

var (
	// quoted is a string of structured fields (RFC 9651, 3.3.3), which the draft wants.
	quoted = regexp.MustCompile(`^"((?:[ !#-\[\]-~]|\\["\\])*)"$`)
	// bare is a key without quotes, as many clients send it.
	bare    = regexp.MustCompile(`^[A-Za-z0-9_.:~/+=*@-]+$`)
	escaped = regexp.MustCompile(`\\(["\\])`)
)

// Key reads the values of the header; "" where it is absent. A key in quotes and the same without them are one. Errors: ErrKey.
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
	} else if !bare.MatchString(key) {
		return "", fmt.Errorf(`%w: write it in quotes: Idempotency-Key: "8e03978e-40d5-43dd-bc93-6894a57f9324"`, ErrKey)
	}
	if key == "" || len(key) > maxKey {
		return "", fmt.Errorf("%w: it has 1 to %d characters", ErrKey, maxKey)
	}
	return key, nil
}
