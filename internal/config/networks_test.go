package config_test

import (
	"fmt"
	"testing"

	"github.com/postern-gateway/postern/internal/config"
)

func TestNetworksAndRatesReachTheirSources(t *testing.T) {
	t.Parallel()
	c, err := config.Parse([]byte(`
database: {url: postgres://x}
ingest:
  trusted_proxies: [127.0.0.1, '::1', fd00::/8]
sources:
  a: {provider: stripe, secrets: [{name: n, value: whsec_secret_of_a_test}], allow_from: [192.0.2.0/24], rate_limit: {per_second: 7}}
  b: {provider: stripe, secrets: [{name: n, value: whsec_secret_of_a_test}], rate_limit: {per_second: 7, burst: 2}}
  c: {provider: stripe, secrets: [{name: n, value: whsec_secret_of_a_test}]}
`), environment("POSTERN_SOURCES_B_ALLOW_FROM=192.0.2.7, 2001:db8::/32", "POSTERN_SOURCES_C_RATE_LIMIT_PER_SECOND=9"))
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(c.Ingest.Proxies()); got != "[127.0.0.1/32 ::1/128 fd00::/8]" {
		t.Errorf("proxies %s", got)
	}
	for i, want := range []string{"[192.0.2.0/24] {7 7}", "[192.0.2.7/32 2001:db8::/32] {7 2}", "[] {9 9}"} {
		e := c.Endpoints()[i]
		if got := fmt.Sprint(e.AllowFrom, e.RateLimit); got != want {
			t.Errorf("source %s: %s, want %s", e.Source.Name, got, want)
		}
	}
}
