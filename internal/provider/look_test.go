package provider_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/postern-gateway/postern/internal/provider"
)

// What a look says of itself goes with its schema, so that no release takes it for another kind of look.
func TestLooksSayWhatTheyAre(t *testing.T) {
	t.Parallel()
	const settles = `"settles":{"before":"2026-01-01T00:00:00Z","who":"me","reason":"why"},`
	for more, wrong := range map[string]string{
		`"schema":1,`:                         "",
		`"schema":2,` + settles:               "",
		`"schema":3,"raised":true,`:           "",
		`"schema":4,`:                         "has schema 4",
		`"schema":0,`:                         "has schema 0",
		`"schema":2,`:                         "must say what it settles",
		`"schema":1,` + settles:               "must say what it settles",
		`"schema":3,`:                         "must say that it was raised",
		`"schema":1,"raised":true,`:           "must say that it was raised",
		`"schema":2,"raised":true,` + settles: "must say that it was raised",
	} {
		l, err := provider.DecodeLook(fmt.Appendf(nil, `{%s"found":true,"date":"2026-01-01T00:00:01Z","object":{}}`, more))
		var dead *provider.Dead
		switch {
		case wrong != "" && (!errors.As(err, &dead) || !strings.Contains(dead.Reason, wrong)):
			t.Errorf("%s: %v, want ...%s...", more, err, wrong)
		case wrong == "" && (err != nil || l.Raised != strings.Contains(more, "raised") || (l.Settles != nil) != strings.Contains(more, "settles")):
			t.Errorf("%s: %+v, %v", more, l, err)
		}
	}
}
