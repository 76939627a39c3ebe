package idempotency_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/postern-gateway/postern/internal/idempotency"
)

func TestKey_headerValues_areParsed(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("k", 255)
	for _, c := range []struct {
		values []string
		key    string
		ok     bool
	}{
		{nil, "", true},
		{[]string{`"8e03978e-40d5-43dd-bc93-6894a57f9324"`}, "8e03978e-40d5-43dd-bc93-6894a57f9324", true},
		{[]string{`8e03978e-40d5-43dd-bc93-6894a57f9324`}, "8e03978e-40d5-43dd-bc93-6894a57f9324", true},
		{[]string{`"with \"quotes\" and \\"`}, `with "quotes" and \`, true},
		{[]string{`"` + long + `"`}, long, true},
		{[]string{`"` + long + `k"`}, "", false},
		{[]string{""}, "", false},
		{[]string{`""`}, "", false},
		{[]string{`"a`}, "", false},
		{[]string{`a"b`}, "", false},
		{[]string{`"a"b"`}, "", false},
		{[]string{`"a\b"`}, "", false},
		{[]string{`"a";b=1`}, "", false},
		{[]string{"a b"}, "", false},
		{[]string{"\"ü\""}, "", false},
		{[]string{"a", "b"}, "", false},
	} {
		if key, err := idempotency.Key(c.values); key != c.key || (err == nil) != c.ok || err != nil &&
			!errors.Is(err, idempotency.ErrKey) {
			t.Errorf("%q: %q, %v", c.values, key, err)
		}
	}
}
