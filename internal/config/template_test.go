package config_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/provider/all"
)

func TestTemplateLoadsOnceItsSecretIsSet(t *testing.T) {
	t.Parallel()
	c, err := config.Parse([]byte(config.Template()), environment("STRIPE_WEBHOOK_SECRET=whsec_secret_of_a_test", "POSTERN_DB_PASSWORD=x"))
	if err != nil {
		t.Fatal(err)
	}
	if e := c.Endpoints(); len(e) != 1 || e[0].Source.Name != "stripe" || string(e[0].Source.Secrets[0].Value) != "whsec_secret_of_a_test" {
		t.Fatalf("sources: %v", c.Sources)
	}
	_, err = config.Parse([]byte(config.Template()), environment())
	if err == nil || !strings.Contains(err.Error(), "STRIPE_WEBHOOK_SECRET is not set") {
		t.Fatalf("without its secret: %v", err)
	}
}

// Every commented-out setting of the template must be one there is.
func TestTemplateWithEverythingSwitchedOn(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range []string{"shopify.secret", "postern.creds", "tls.crt", "tls.key"} {
		write(t, filepath.Join(dir, name), "secret of a test")
	}
	var lines []string
	for line := range strings.Lines(strings.ReplaceAll(config.Template(), "/etc/postern", dir)) {
		bare := strings.TrimLeft(line, " ")
		for _, setting := range []string{"# credentials:", "# replicas:", "# tls:", "# listen:", "# shopify:", "# acme:", "#   "} {
			if strings.HasPrefix(bare, setting) {
				line = strings.Replace(line, "# ", "", 1)
				break
			}
		}
		lines = append(lines, line)
	}
	c, err := config.Parse([]byte(strings.Join(lines, "")), environment("STRIPE_WEBHOOK_SECRET=whsec_secret_of_a_test", "ACME_WEBHOOK_SECRET=secret of a test"))
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Endpoints()) != 3 || c.NATS.Replicas != 3 || c.Ingest.TLS.Key == "" || c.Admin.Listen == "" {
		t.Fatalf("not everything was switched on: %v", c)
	}
}

func TestDemoSourcesCoverEveryProviderAndAreRefusedElsewhere(t *testing.T) {
	t.Parallel()
	demo := &config.Config{Sources: config.DemoSources()}
	names := map[string]string{}
	for _, e := range demo.Endpoints() {
		names[e.Source.Name] = e.Provider.Name()
		if err := e.Provider.Check(e.Source); err != nil {
			t.Errorf("%s: %v", e.Source.Name, err)
		}
		value := string(e.Source.Secrets[0].Value)
		_, err := config.Parse([]byte("database: {url: postgres://x}\nsources: {a: {provider: "+e.Provider.Name()+", accounts: ['*'], secrets: [{name: n, value: "+value+"}]}}"), environment())
		if err == nil || !strings.Contains(err.Error(), "demo secret") {
			t.Errorf("%s is not refused: %v", value, err)
		}
	}
	want := map[string]string{}
	for _, p := range all.All() {
		want[p.Name()] = p.Name()
	}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Error(diff)
	}
}

func TestInstanceIsReadAsItWasWritten(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	c, err := config.Parse([]byte("database: {url: postgres://x}\nsources: {mine: {provider: shopify, accounts: [a.myshopify.com], secrets: [{name: n, value: s3cret of a test}]}}"), environment())
	if err != nil {
		t.Fatal(err)
	}
	c.Sources["stripe"] = config.DemoSources()["stripe"]
	want := &config.Instance{DatabaseURL: "postgres://x?a=b&c=d", NATSURL: "nats://x", IngestURL: "http://i", AdminURL: "http://a", PID: 7, Sources: c.InstanceSources()}
	if _, err := config.ReadInstance(dir); err == nil || !strings.Contains(err.Error(), "postern dev --dir "+dir) {
		t.Errorf("no instance: %v", err)
	}
	for range 2 {
		if err := config.WriteInstance(dir, want); err != nil {
			t.Fatal(err)
		}
	}
	if text, err := os.ReadFile(filepath.Join(dir, config.InstanceFile)); err != nil || !strings.Contains(string(text), `"postgres://x?a=b&c=d"`) {
		t.Errorf("a URL can be copied out of the file: %v\n%s", err, text)
	}
	got, err := config.ReadInstance(dir)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if s := got.Sources["mine"]; s.Secret != "" || s.Account != "a.myshopify.com" {
		t.Errorf("a real secret must not be written: %+v", s)
	}
	if got.Sources["stripe"].Secret != config.DemoStripeSecret {
		t.Errorf("the demo secret is missing: %+v", got.Sources["stripe"])
	}
}
