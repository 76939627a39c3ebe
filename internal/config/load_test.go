package config_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/config"
)

// environment returns a lookup function for NAME=value pairs.
func environment(pairs ...string) func(string) string {
	values := map[string]string{}
	for _, pair := range pairs {
		name, value, _ := strings.Cut(pair, "=")
		values[name] = value
	}
	return func(name string) string { return values[name] }
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

// parse reads a configuration that must be valid, with variables NAME=value.
func parse(t testing.TB, text string, variables ...string) *config.Config {
	t.Helper()
	c, err := config.Parse([]byte(text), environment(variables...))
	must(t, err)
	return c
}

const issueExample = `
database: {url: "postgres://postern:pw@localhost/postern"}
nats: {url: "nats://localhost:4222"}
sources:
  live:
    provider: stripe
    secrets: [{name: old, value: whsec_old_of_a_test}, {name: new, file: %FILE%}, {name: third, env: THIRD}]
  shop:
    provider: shopify
    secrets: [{name: only, value: "secret of a test"}]
    account: pinned.myshopify.com
    accounts: [pinned.myshopify.com, other.myshopify.com]
`

func TestParse_secrets_areReadFromValueEnvAndFile(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "secret")
	write(t, file, "whsec_new_of_a_test\n")
	c := parse(t, strings.ReplaceAll(issueExample, "%FILE%", file), "THIRD=whsec_third_of_a_test")
	got := map[string]string{}
	for _, e := range c.Endpoints() {
		for _, s := range e.Source.Secrets {
			got[e.Provider.Name()+" "+e.Source.Name+" "+s.Name] = string(s.Value)
		}
	}
	want := map[string]string{
		"stripe live old": "whsec_old_of_a_test", "stripe live new": "whsec_new_of_a_test",
		"stripe live third": "whsec_third_of_a_test", "shopify shop only": "secret of a test",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatal(diff)
	}
	if got := c.Endpoints()[1].Source.Account; got != "pinned.myshopify.com" {
		t.Fatalf("account %q", got)
	}
}

func TestDefault_unsetSettings_getDefaults(t *testing.T) {
	t.Parallel()
	c := parse(t, "database: {url: postgres://x}\ningest: {max_body_bytes: 8MiB, deadline: "+
		"2s}\nsources: {a: {provider: stripe, secrets: [{name: n, value: whsec_secret_of_a_test}]}}")
	if c.Ingest.Deadline != 2*time.Second || c.Ingest.Listen != "127.0.0.1:8080" || c.Ingest.QueueBytes != 256<<20 {
		t.Fatalf("ingest: %+v", c.Ingest)
	}
	if c.Rejections.MaxBody != 8<<20 || c.Endpoints()[0].MaxBodyBytes != 8<<20 {
		t.Fatalf("limits that follow ingest.max_body_bytes: %v, %v", c.Rejections.MaxBody,
			c.Endpoints()[0].MaxBodyBytes)
	}
	if got := c.Sources["a"].Tolerance; got != 0 {
		t.Fatalf("tolerance %v, want the provider's own", got)
	}
	if c.Admin.ListenOr(config.DefaultProcessorListen) != "127.0.0.1:8082" {
		t.Fatalf("admin: %v", c.Admin)
	}
}

func TestParse_variables_overrideFile(t *testing.T) {
	t.Parallel()
	file := "database: {url: postgres://file}\nsources: {my-shop: {provider: stripe, secrets: [{name: n, value: " +
		"whsec_secret_of_a_test}]}}\n"
	c := parse(t, file, "POSTERN_DATABASE_URL=postgres://env",
		"POSTERN_INGEST_MAX_BODY_BYTES=1MiB", "POSTERN_STREAM_MAX_AGE=2h", "POSTERN_INGEST_QUEUE=7",
		"POSTERN_SOURCES=added,my-shop", "POSTERN_SOURCES_ADDED_PROVIDER=shopify",
		"POSTERN_SOURCES_ADDED_ACCOUNTS=a.myshopify.com, b.myshopify.com", "POSTERN_SOURCES_ADDED_SECRETS_0_NAME=one",
		"POSTERN_SOURCES_ADDED_SECRETS_0_VALUE=secret of a test",
		"POSTERN_SOURCES_MY_SHOP_SECRETS_0_VALUE=whsec_changed_secret", "POSTERN_SOURCES_MY_SHOP_SECRETS_1_NAME=next",
		"POSTERN_SOURCES_MY_SHOP_SECRETS_1_VALUE=whsec_secret_of_a_test")
	if string(c.Database.URL) != "postgres://env" || c.Ingest.MaxBodyBytes != 1<<20 || c.Stream.MaxAge != 2*time.Hour ||
		c.Ingest.Queue != 7 {
		t.Fatalf("%v", c)
	}
	if diff := cmp.Diff([]string{"a.myshopify.com", "b.myshopify.com"}, c.Sources["added"].Accounts); diff != "" {
		t.Fatal(diff)
	}
	secrets := c.Endpoints()[1].Source.Secrets
	if len(secrets) != 2 || string(secrets[0].Value) != "whsec_changed_secret" || secrets[1].Name != "next" {
		t.Fatalf("secrets of my-shop: %v", secrets)
	}
}

func TestParse_references_expandInValuesOnly(t *testing.T) {
	t.Parallel()
	c := parse(t, `
database: {url: "postgres://u:${PW}@h/${PW}", maintenance_url: 'postgres://$${PW}'} # ${UNSET} in a comment is left alone
sources: {a: {provider: stripe, secrets: [{name: n, value: "whsec_x of a test: ${PW}"}]}}
nats:
  url: |-
    ${PW}
`, "PW=p: #w")
	if got := string(c.Database.URL); got != "postgres://u:p: #w@h/p: #w" {
		t.Errorf("url %q", got)
	}
	if got := string(c.Database.MaintenanceURL); got != "postgres://${PW}" {
		t.Errorf("maintenance_url %q", got)
	}
	if got := string(c.Sources["a"].Secrets[0].Value); got != "whsec_x of a test: p: #w" {
		t.Errorf("secret %q", got)
	}
	if string(c.NATS.URL) != "p: #w" {
		t.Errorf("nats.url %q", string(c.NATS.URL))
	}
}

func TestLoad_purpose_decidesWhatIsChecked(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "postern.yaml")
	write(t, path, "sources: {a: {provider: stripe, secrets: [{name: n, value: whsec_x_for_postern_dev}]}}\n")
	if _, err := config.LoadDev(path); err != nil {
		t.Errorf("dev takes demo secrets and needs no database: %v", err)
	}
	if _, err := config.Load(path); err == nil || !strings.Contains(err.Error(), path+": database.url: is not set") {
		t.Errorf("a daemon needs a database: %v", err)
	}
	write(t, path, "database: {url: postgres://x}\nsources: {a: {provider: stripe, secrets: [{name: n, file: "+
		"/nowhere}, {name: m, value: \"${UNSET_ANYWHERE}\"}]}}\n")
	if c, err := config.LoadOperator(path); err != nil || string(c.Database.URL) != "postgres://x" {
		t.Errorf("an operator needs no secrets: %v", err)
	}
	write(t, path, "database: {url: postgres://x}\ningest: {tls: {cert: /nowhere.crt, key: /nowhere.key}}\n")
	if _, err := config.LoadProcessor(path); err != nil {
		t.Errorf("a processor serves no TLS: %v", err)
	}
	if _, err := config.Load(path); err == nil ||
		!strings.Contains(err.Error(), path+":2: ingest.tls.key: open /nowhere.key") {
		t.Errorf("a gateway needs its certificate: %v", err)
	}
	write(t, path, fmt.Sprintf(spoolExample, "spool", false))
	if _, err := config.LoadProcessor(path); err != nil {
		t.Errorf("a processor has no spool: %v", err)
	}
	if _, err := config.Load(path); err == nil {
		t.Error("a gateway takes a spool's folder that depends on where it starts")
	}
	if _, err := config.Load(filepath.Join(dir, "none.yaml")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("missing file: %v", err)
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	must(t, os.WriteFile(path, []byte(text), 0o600))
}

const oneSource = `database: {url: postgres://x/y}
sources:
  shop: {provider: stripe, secrets: [{name: n, env: POSTERN_SHOP_SECRET}]}
`

func TestParseEnviron_unknownVariables(t *testing.T) {
	t.Parallel()
	for variable, want := range map[string]struct{ err, warning string }{
		"POSTERN_DATABSE_URL=postgres://a": {err: "POSTERN_DATABSE_URL: is not a setting; did you mean " +
			"POSTERN_DATABASE_URL?"},
		"POSTERN_INGEST_QUEUE_BYTE=1MiB": {err: "did you mean POSTERN_INGEST_QUEUE_BYTES?"},
		"POSTERN_DB_URL=postgres://a":    {warning: "the variable POSTERN_DB_URL sets nothing"},
		"POSTERN_SOURCES_SHOP_ACOUNT=acct_1": {warning: "POSTERN_SOURCES_SHOP_ACOUNT sets nothing; did " +
			"you mean POSTERN_SOURCES_SHOP_ACCOUNT?"},
		"POSTERN_SOURCES_SHOP_ACCOUNT=acct_1":         {},
		"POSTERN_LOG_LEVEL=debug":                     {},
		"POSTERN_ADMIN_TOKEN=t":                       {},
		"POSTERN_GATEWAY_SERVICE_HOST=10.0.0.1":       {},
		"POSTERN_GATEWAY_PORT=tcp://10.0.0.1:8080":    {},
		"POSTERN_GATEWAY_PORT_8080_TCP_ADDR=10.0.0.1": {},
		"POSTERN_GATEWAY_SERVICE_PORT_INGEST=8080":    {},
		"OTHER_DATABSE_URL=x":                         {},
		"POSTERN_SOURCES_SHOP_SECRETS_0_NAME=first":   {},
		"POSTERN_SOURCES_SHOP_SECRETS_1_NOTHING=of_kind": {warning: "POSTERN_SOURCES_SHOP_SECRETS_1_NOTHING sets " +
			"nothing"},
	} {
		c, err := config.ParseEnviron([]byte(oneSource), []string{"POSTERN_SHOP_SECRET=whsec_secret_of_a_test",
			variable})
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
	for _, want := range []string{"${LISTEN}: the variable is not set", "the variable SECRET is not set",
		"database.url: is not set: name"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is missing in: %v", want, err)
		}
	}
}

func TestParse_databaseURL_needsScheme(t *testing.T) {
	t.Parallel()
	for url, ok := range map[string]bool{"postgres://h/d": true, "postgresql://h/d": true,
		"postgres:///d?host=/run": true, "host=h dbname=d": true,
		"localhost/postern": false, "localhost:5432/postern?sslmode=disable": false, "mysql://h/d": false,
		"u:s3cret@h/d": false} {
		for setting, text := range databasesAt(url) {
			if ok {
				parse(t, text)
			} else {
				checkRejected(t, text, setting+": is not an address of PostgreSQL: it begins with postgres://")
			}
		}
	}
}

// databasesAt returns configurations with an address of PostgreSQL, by the setting that has it.
func databasesAt(url string) map[string]string {
	return map[string]string{"database.url": "database:\n  url: '" + url + "'\n",
		"database.maintenance_url": "database:\n  url: postgres://x/y\n  maintenance_url: '" + url + "'\n"}
}
