package config_test

import (
	"strings"
	"testing"

	"github.com/postern-gateway/postern/internal/config"
)

const oneSource = `database: {url: postgres://x/y}
sources:
  shop: {provider: stripe, secrets: [{name: n, env: POSTERN_SHOP_SECRET}]}
`

func TestParseEnviron_unknownVariables(t *testing.T) {
	t.Parallel()
	for variable, want := range map[string]struct{ err, warning string }{
		"POSTERN_DATABSE_URL=postgres://a":               {err: "POSTERN_DATABSE_URL: is no setting; did you mean POSTERN_DATABASE_URL?"},
		"POSTERN_INGEST_QUEUE_BYTE=1MiB":                 {err: "did you mean POSTERN_INGEST_QUEUE_BYTES?"},
		"POSTERN_DB_URL=postgres://a":                    {warning: "the variable POSTERN_DB_URL sets nothing"},
		"POSTERN_SOURCES_SHOP_ACOUNT=acct_1":             {warning: "POSTERN_SOURCES_SHOP_ACOUNT sets nothing; did you mean POSTERN_SOURCES_SHOP_ACCOUNT?"},
		"POSTERN_SOURCES_SHOP_ACCOUNT=acct_1":            {},
		"POSTERN_LOG_LEVEL=debug":                        {},
		"POSTERN_ADMIN_TOKEN=t":                          {},
		"POSTERN_GATEWAY_SERVICE_HOST=10.0.0.1":          {},
		"POSTERN_GATEWAY_PORT=tcp://10.0.0.1:8080":       {},
		"POSTERN_GATEWAY_PORT_8080_TCP_ADDR=10.0.0.1":    {},
		"POSTERN_GATEWAY_SERVICE_PORT_INGEST=8080":       {},
		"OTHER_DATABSE_URL=x":                            {},
		"POSTERN_SOURCES_SHOP_SECRETS_0_NAME=first":      {},
		"POSTERN_SOURCES_SHOP_SECRETS_1_NOTHING=of_kind": {warning: "POSTERN_SOURCES_SHOP_SECRETS_1_NOTHING sets nothing"},
	} {
		c, err := config.ParseEnviron([]byte(oneSource), []string{"POSTERN_SHOP_SECRET=whsec_secret_of_a_test", variable})
		if want.err != "" {
			if err == nil || !strings.Contains(err.Error(), want.err) {
				t.Errorf("%s: %v, want %q", variable, err, want.err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", variable, err)
			continue
		}
		got := strings.Join(c.Warnings(), "\n")
		if want.warning == "" && strings.Contains(got, "sets nothing") || !strings.Contains(got, want.warning) {
			t.Errorf("%s: warnings %q, want %q", variable, got, want.warning)
		}
	}
}

func TestParseEnviron_emptyVariable_isSetButEmpty(t *testing.T) {
	t.Parallel()
	const file = `ingest: {listen: "${LISTEN}"}
sources:
  shop: {provider: stripe, secrets: [{name: n, env: SECRET}]}
`
	_, err := config.ParseEnviron([]byte(file), []string{"LISTEN=", "SECRET=", "POSTERN_DATABASE_URL="})
	for _, want := range []string{"${LISTEN}: the variable is set, but empty", "the variable SECRET is set, but empty",
		"database.url: is not set (POSTERN_DATABASE_URL is set, but empty)"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is missing in: %v", want, err)
		}
	}
	_, err = config.ParseEnviron([]byte(file), nil)
	for _, want := range []string{"${LISTEN}: the variable is not set", "the variable SECRET is not set", "database.url: is not set: name"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is missing in: %v", want, err)
		}
	}
}

func TestParse_databaseURL_needsScheme(t *testing.T) {
	t.Parallel()
	for url, ok := range map[string]bool{"postgres://h/d": true, "postgresql://h/d": true, "postgres:///d?host=/run": true, "host=h dbname=d": true,
		"localhost/postern": false, "localhost:5432/postern?sslmode=disable": false, "mysql://h/d": false, "u:s3cret@h/d": false} {
		for _, setting := range []string{"url", "maintenance_url"} {
			text := "database:\n  url: postgres://x/y\n  maintenance_url: '" + url + "'\n"
			if setting == "url" {
				text = "database:\n  url: '" + url + "'\n"
			}
			_, err := config.Parse([]byte(text), environment())
			if ok != (err == nil) || err != nil && (!strings.Contains(err.Error(), "database."+setting+": is no address of PostgreSQL: it begins with postgres://") ||
				strings.Contains(err.Error(), "s3cret")) {
				t.Errorf("%s %s: %v", setting, url, err)
			}
		}
	}
}
