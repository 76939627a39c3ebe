package main

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/all"
)

func TestProvidersListAndShow(t *testing.T) {
	t.Parallel()
	b := &testBundle{dir: t.TempDir()}
	b.run(t, "providers", "list").want(t, 0, "stripe", "")
	b.run(t, "provider", "list", "-o", "json").want(t, 0, `"name":"slack"`, "")
	for _, p := range all.All() {
		b.run(t, "providers", "show", p.Name()).want(t, 0, "provider: "+p.Name(), "")
		b.run(t, "providers", "show", p.Name(), "-o", "json").want(t, 0, `"setup": "`, "")
	}
	b.run(t, "providers", "show", "nobody").want(t, 2, "", "name one of")
}

func TestProvidersList_configuration_marksSourcesThatStoreTheirToken(t *testing.T) {
	t.Parallel()
	b := &testBundle{dir: t.TempDir()}
	file := filepath.Join(b.dir, "postern.yaml")
	write := func(consent string) {
		t.Helper()
		text := `sources:
  shop: {provider: hmac, secrets: [{name: n, env: NOT_SET_HERE}], scheme: {header: X-S}}
  legacy:
    provider: hmac
    secrets: [{name: n, env: NOT_SET_HERE}]
    scheme: {in: json:auth.token, method: token, body_unsigned: true}
` + consent
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("    store_token: true\n")
	b.run(t, "providers", "list", "--config", file).want(t, 0, "legacy (stores its token), shop\n", "")
	b.run(t, "providers", "list", "--config", file, "-o", "json").want(t, 0, `"sources":[{"name":"legacy","store_token":true},{"name":"shop","store_token":false}]`, "")
	if r := b.run(t, "providers", "list"); strings.Contains(r.out, "SOURCES") || strings.Contains(r.out, "stores its token") {
		t.Errorf("without a configuration: %s", r.out)
	}
	write("")
	b.run(t, "providers", "list", "--config", file).want(t, 1, "", "postern.yaml:6: sources.legacy.scheme.in: json:auth.token is a token in the body")
}

// capture writes a signed delivery to a file, and the flags that tell of the rest of it.
func capture(t *testing.T, e config.Endpoint, at time.Time) []string {
	t.Helper()
	d, err := e.Provider.Sign(e.Source, e.Provider.Samples()[0], at)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "body")
	if err := os.WriteFile(file, d.Body, 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"provider", "test", file, "--query", d.Query}
	for name, values := range d.Header {
		args = append(args, "--header", name+": "+values[0])
	}
	return args
}

// A delivery that was captured long ago is proven, and what would be stored is told; judged by today's clock it is stale where a
// time is signed, and under another secret it is refused. Neither the secret nor the right signature is ever printed.
func TestCapturedDeliveriesAreExplained(t *testing.T) {
	t.Parallel()
	b := &testBundle{dir: t.TempDir()}
	at := time.Date(2026, time.January, 2, 3, 4, 5, 0, time.UTC)
	for _, e := range (&config.Config{Sources: config.DemoSources()}).Endpoints() {
		if len(e.Provider.Samples()) == 0 {
			continue
		}
		args := capture(t, e, at)
		right := b.run(t, append(args, "--source", e.Source.Name)...)
		right.want(t, 0, "event id", "")
		v, err := e.Provider.Verify(e.Source, read(t, args, at))
		if err != nil {
			t.Fatal(err)
		}
		if v.SignedAt.IsZero() {
			continue
		}
		b.run(t, append(args, "--source", e.Source.Name, "--at", "now")...).want(t, 1, "stale_timestamp", "refuse this delivery")
		b.run(t, append(args, "--source", e.Source.Name, "--at", at.Format(time.RFC3339))...).want(t, 0, "event id", "")
		wrong := b.run(t, append(args, "--source", e.Source.Name, "--secret", strings.Replace(string(e.Source.Secrets[0].Value), "demo", "another", 1))...)
		wrong.want(t, 1, "wrong_signature", "refuse this delivery")
		for _, r := range []string{right.out, wrong.out} {
			if strings.Contains(r, string(e.Source.Secrets[0].Value)) {
				t.Errorf("%s: the secret is printed:\n%s", e.Source.Name, r)
			}
		}
	}
}

func read(t *testing.T, args []string, at time.Time) *provider.Delivery {
	t.Helper()
	body, err := os.ReadFile(args[2])
	if err != nil {
		t.Fatal(err)
	}
	d := &provider.Delivery{Query: args[4], Header: http.Header{}, Body: body, ReceivedAt: at}
	for i := 6; i < len(args); i += 2 {
		name, value, _ := strings.Cut(args[i], ": ")
		d.Header.Set(name, value)
	}
	return d
}

func TestProviderTestUsage(t *testing.T) {
	t.Parallel()
	b := &testBundle{dir: t.TempDir()}
	file := filepath.Join(b.dir, "body")
	if err := os.WriteFile(file, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	for wants, args := range map[string][]string{
		"which sender is it":     {"--secret", "s"},
		"not both":               {"--provider", "stripe", "--source", "stripe"},
		"no secret":              {"--provider", "stripe"},
		"there is no source":     {"--source", "nobody"},
		`write "Name: value"`:    {"--provider", "stripe", "--secret", "whsec_s", "--header", "nonsense"},
		"write a time like":      {"--provider", "stripe", "--secret", "whsec_s", "--at", "yesterday"},
		"the sender signs the a": {"--provider", "square", "--secret", "s"},
	} {
		b.run(t, append([]string{"provider", "test", file}, args...)...).want(t, 2, "", wants)
	}
	b.run(t, "provider", "test", file, "--provider", "stripe", "--secret", "whsec_s").want(t, 1, "missing_signature", "refuse this delivery")
}

// What an own service sends is read as the door reads it: what it stores of an event in headers, and why it would not.
func TestOwnServicesAreExplained(t *testing.T) {
	t.Parallel()
	b := &testBundle{dir: t.TempDir()}
	file := filepath.Join(b.dir, "body")
	if err := os.WriteFile(file, []byte(`{"version": 4}`), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"provider", "test", file, "--provider", "api", "--secret", "a_token", "--header", "Authorization: Bearer a_token", "--header", "Content-Type: application/json"}
	b.run(t, args...).want(t, 1, "refused with 400, and nothing is stored: the header Idempotency-Key is missing", "a gateway would refuse this delivery: it cannot be stored")
	headers := []string{"--header", "ce-specversion: 1.0", "--header", "ce-id: 1", "--header", "ce-source: /s", "--header", "ce-type: com.example.order.updated", "--header", "ce-subject: o%201"}
	b.run(t, append(args, headers...)...).want(t, 0, "order o 1", "")
}
