package signature_test

import (
	"github.com/postern-gateway/postern/internal/settings"
	"github.com/postern-gateway/postern/internal/signature"
)

// check returns the problems of a scheme.
func check(s *signature.Scheme) error {
	c := settings.Check("scheme")
	s.Check(c)
	return c.Err()
}

// must ends the test on an error.
func must(t interface {
	Helper()
	Fatal(args ...any)
}, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
