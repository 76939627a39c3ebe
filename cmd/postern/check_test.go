package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/postern-gateway/postern/internal/config"
)

func TestConfigCheckForDev(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "postern.yaml")
	if err := os.WriteFile(file, []byte("sources: {a: {provider: stripe, secrets: [{name: n, value: "+config.DemoStripeSecret+"}]}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	execute(t.Context(), "", "config", "check", "--dev", file).want(t, 0, "can be used; sources: a", "")
	r := execute(t.Context(), "", "config", "check", file)
	if r.status != 1 || !strings.Contains(r.errs, "database.url") || !strings.Contains(r.errs, "config check --dev") || !strings.Contains(r.errs, "demo secret") {
		t.Errorf("status %d: %s", r.status, r.errs)
	}
}

// A demo source's address is not the one that a provider signs; where none is signed, the real secret is enough.
func TestDevWithARealSecretNeedsARealAddress(t *testing.T) {
	t.Parallel()
	demo := &config.Config{Sources: config.DemoSources()}
	for name, refused := range map[string]bool{"twilio": true, "square": true, "stripe": false, "slack": false, "hmac": false, "nobody": false} {
		if err := realAddress(demo, name); (err != nil) != refused {
			t.Errorf("%s: %v", name, err)
		}
	}
	demo.Sources["twilio"].URL = "https://hooks.example/webhooks/twilio"
	if err := realAddress(demo, "twilio"); err != nil {
		t.Error(err)
	}
}

// What `config check` finds is what a running daemon refuses at a reload, word for word.
func TestConfigCheckFindsWhatAReloadRefuses(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file, folder := filepath.Join(dir, "postern.yaml"), filepath.Join(dir, "folder")
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	loader := config.NewLoader(file, config.ForGateway, nil)
	for name, sources := range map[string]string{
		"good":               "a: {provider: stripe, secrets: [{name: n, value: whsec_secret_of_a_test}]}",
		"a secret's folder":  "a: {provider: stripe, secrets: [{name: n, file: '" + folder + "'}]}",
		"no secret's file":   "a: {provider: stripe, secrets: [{name: n, file: '" + filepath.Join(dir, "none") + "'}]}",
		"no variable":        "a: {provider: stripe, secrets: [{name: n, env: POSTERN_TEST_NOT_SET}]}",
		"demo secret":        "a: {provider: stripe, secrets: [{name: n, value: " + config.DemoStripeSecret + "}]}",
		"provider's own":     "a: {provider: shopify, secrets: [{name: n, value: whsec_secret_of_a_test}]}",
		"two that are wrong": "a: {provider: nobody, secrets: [{name: n, value: whsec_secret_of_a_test}], tolerance: 1ms}",
		"syntax":             "a: [",
	} {
		if err := os.WriteFile(file, []byte("database: {url: postgres://x}\nsources:\n  "+sources+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		_, refused := loader.Load()
		var out, errs strings.Builder
		status := run(t.Context(), []string{"config", "check", file}, nil, &out, &errs)
		if (refused == nil) != (status == 0) || (refused == nil) != (name == "good") {
			t.Errorf("%s: status %d, a reload says %v", name, status, refused)
		}
		if refused != nil && strings.TrimSpace(errs.String()) != refused.Error() {
			t.Errorf("%s: told\n%s\na reload says\n%v", name, errs.String(), refused)
		}
	}
}

// What may not be meant is told beside the answer, which stays what it is.
func TestConfigCheckWarns(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "postern.yaml")
	text := fmt.Sprintf("ingest: {spool: {dir: %q, max_bytes: 1048576GiB, unsafe_dir: true}}\nsources: {a: {provider: stripe, secrets: [{name: n, value: whsec_secret_of_a_test}]}}\n", t.TempDir())
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	r := execute(t.Context(), "", "config", "check", "--dev", file)
	r.want(t, 0, "can be used; sources: a", "postern: warning: ingest.spool.unsafe_dir is on")
	r.want(t, 0, "", "postern: warning: ingest.spool.dir: ")
}

func TestConfigCheck_weakVerification_warnsOrFails(t *testing.T) {
	t.Parallel()
	const token = "provider: hmac, secrets: [{name: n, value: 0123456789abcdef}], scheme: {in: json:auth.token, method: token, body_unsigned: true}"
	for name, tc := range map[string]struct {
		source string
		status int
		want   string
	}{
		"token in the body":    {token, 1, ":2: sources.a.scheme.in: json:auth.token is a token in the body"},
		"token that is stored": {token + ", store_token: true", 0, "postern: warning: FILE:2: sources.a.store_token: is on"},
		"secret of a letter":   {"provider: github, secrets: [{name: n, value: x}]", 1, `:2: sources.a.secrets.0: secret "n": has fewer than 8 bytes`},
		"prefix alone":         {"provider: stripe, secrets: [{name: n, value: whsec_}]", 1, `:2: sources.a.secrets.0: secret "n": has fewer than 8 bytes`},
		"API key":              {"provider: stripe, secrets: [{name: n, value: sk_live_0123456789abcdef}]", 1, ":2: sources.a: secrets: n cannot be used: it is an API key (sk_...)"},
		"short secret":         {"provider: github, secrets: [{name: n, value: 0123456789}]", 0, `postern: warning: FILE:2: sources.a.secrets.0: secret "n" has fewer than 14 bytes`},
		"hash":                 {"provider: hmac, secrets: [{name: n, value: 0123456789abcdef}], scheme: {header: X-S, method: hash, message: '{secret}{body}'}", 0, "postern: warning: FILE:2: sources.a.scheme.message: this hash can be extended"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "postern.yaml")
			if err := os.WriteFile(file, []byte("sources:\n  a: {"+tc.source+"}\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			r := execute(t.Context(), "", "config", "check", "--dev", file)
			r.want(t, tc.status, "", strings.Replace(tc.want, "FILE", file, 1))
			if strings.Contains(r.errs, "0123456789") {
				t.Errorf("a secret is shown: %s", r.errs)
			}
		})
	}
}
