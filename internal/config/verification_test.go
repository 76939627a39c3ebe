package config_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/postern-gateway/postern/internal/config"
)

func TestStoreToken_tokenInBody_isAcceptedWithWarning(t *testing.T) {
	t.Parallel()
	for name, scheme := range map[string]string{
		"JSON":            "{in: json:auth.token, method: token, body_unsigned: true}",
		"form":            "{in: form:token, method: token, body_unsigned: true}",
		"header and JSON": "{header: X-T, in: json:t, method: token, body_unsigned: true}",
	} {
		c, err := config.Parse([]byte(declaredSource("hmac", "scheme: "+scheme+"\nstore_token: true")), environment())
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		want := "line 7: sources.a.store_token: is on: stored bodies contain the token that authenticates the " +
			"sender, and"
		if got := strings.Join(c.Warnings(), "\n"); !strings.HasPrefix(got, want) || strings.Contains(got, "\n") {
			t.Errorf("%s: warnings %q, want %q", name, got, want)
		}
	}
}

// secretsOf is a configuration with source a and one secret, on line 5.
func secretsOf(provider, scheme, secret string) string {
	return fmt.Sprintf("database: {url: postgres://x}\nsources:\n  a:\n    provider: %s\n    secrets: [{name: n, "+
		"env: SECRET}]\n    accounts: ['*']\n%s", provider, scheme)
}

func TestSecrets_thatCanBeGuessed_areRejected(t *testing.T) {
	t.Parallel()
	const (
		hmac   = "    scheme: {header: X-S}\n"
		base64 = "    scheme: {header: X-S, key: {form: base64, strip: [whsec_]}}\n"
		short  = "line 5: sources.a.secrets.0: secret \"n\": has fewer than 8 bytes, not counting a prefix such as " +
			"whsec_, and can be guessed"
	)
	for name, tc := range map[string]struct {
		provider, scheme, secret, want string
	}{
		"one character":         {"github", "", "x", short},
		"seven bytes":           {"github", "", "sevenby", short},
		"eight bytes":           {"github", "", "eightbyt", ""},
		"seven and white space": {"github", "", " sevenby\t ", short},
		"white space": {"github", "", "                ",
			"line 5: sources.a.secrets.0: secret \"n\": contains only white space"},
		"Stripe's prefix alone":     {"stripe", "", "whsec_", short},
		"Stripe's prefix and seven": {"stripe", "", "whsec_sevenby", short},
		"Stripe's prefix and eight": {"stripe", "", "whsec_eightbyt", ""},
		"prefix alone":              {"standardwebhooks", "", "whsec_", short},
		"seven bytes in base64":     {"standardwebhooks", "", "whsec_c2V2ZW5ieQ==", short},
		"eight bytes in base64":     {"standardwebhooks", "", "whsec_ZWlnaHRieXQ=", ""},
		"signing token of GitLab":   {"gitlab", "", "whsec_c2V2ZW5ieQ==", short},
		"token of GitLab":           {"gitlab", "", "sevenby", short},
		"token of GitLab that fits": {"gitlab", "", "eightbyt", ""},
		"token of a service":        {"api", "", "sevenby", short},
		"described":                 {"hmac", hmac, "sevenby", short},
		"described in base64":       {"hmac", base64, "c2V2ZW5ieQ", short},
		"prefix of another sender":  {"hmac", hmac, "whsec_sevenby", short},
		"digest of a short text":    {"hmac", "    scheme: {header: X-S, key: {form: sha1}}\n", "sevenby", short},
		"weakest of two schemes": {"hmac", "    schemes: [{header: X-S}, {header: X-B, key: {form: base64, strip: " +
			"[whsec_]}}]\n", "whsec_c2V2ZW5ieQ==", short},
		"public key": {"hmac", "    scheme: {header: X-S, method: ed25519}\n",
			"0000000000000000000000000000000000000000000000000000000000000000", ""},
		"shown token": {"hmac", "    scheme: {header: X-S, method: token, body_unsigned: true}\n",
			"sevenby", short},

		"secret API key of Stripe": {"stripe", "", "sk_live_51H8abcdefghijklmnop", "sources.a: secrets: n cannot " +
			"be used: it is an API key (sk_...); copy the endpoint's signing secret, which begins with whsec_"},
		"restricted API key of Stripe": {"stripe", "", "rk_live_51H8abcdefghijklmnop", "it is an API key (rk_...)"},
		"publishable key of Stripe":    {"stripe", "", "pk_live_51H8abcdefghijklmnop", "it is an API key (pk_...)"},
		"other text for Stripe": {"stripe", "", "d41d8cd98f00b204e9800998ecf8427e",
			"secrets: n cannot be used: it is not a signing secret of"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := config.Parse([]byte(secretsOf(tc.provider, tc.scheme, tc.secret)),
				environment("SECRET="+tc.secret))
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("%v, want %q", err, tc.want)
			}
			if bare := strings.TrimPrefix(strings.TrimSpace(tc.secret), "whsec_"); err != nil && len(bare) > 1 &&
				strings.Contains(err.Error(), bare) {
				t.Errorf("the error shows the secret: %v", err)
			}
		})
	}
}

// The secret of a file is checked, and so is a secret that replaces another.
func TestSecrets_ofFiles_areRejectedByTheirContent(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "secret")
	write(t, file, "whsec_\n")
	text := "database: {url: postgres://x}\nsources:\n  a: {provider: stripe, secrets: [{name: n, file: '" + file +
		"'}]}\n"
	want := `line 3: sources.a.secrets.0: secret "n": has fewer than 8 bytes`
	checkRejected(t, text, want)
	c := &config.Config{Sources: config.DemoSources()}
	want = `sources.stripe.secrets.0: secret "file": has fewer than 8 bytes`
	if err := c.ReplaceSecret("stripe", file); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %q", err, want)
	}
}

func TestWarnings_weakVerification_nameItsReason(t *testing.T) {
	t.Parallel()
	const (
		long  = "0123456789abcdef0123456789abcdef"
		short = "line 5: sources.a.secrets.0: secret \"n\" has fewer than 14 bytes (112 bits, the minimum of " +
			"NIST SP 800-131A for an HMAC)"
		extension = "line 7: sources.a.scheme.message: this hash can be extended: with one signed delivery an " +
			"attacker can sign it with additional bytes at its end"
		collision = "line 7: sources.a.scheme.digest: SHA-1 has collisions"
		hash      = "    scheme: {header: X-S, method: hash, message: '%s'}\n"
	)
	for name, tc := range map[string]struct {
		provider, scheme, secret, want string
	}{
		"13 bytes":              {"github", "", "0123456789abc", short},
		"14 bytes":              {"github", "", "0123456789abcd", ""},
		"13 bytes in base64":    {"standardwebhooks", "", "whsec_MDEyMzQ1Njc4OWFiYw==", short},
		"13 bytes of Stripe":    {"stripe", "", "whsec_0123456789abc", short},
		"token of 8 bytes":      {"api", "", "01234567", ""},
		"token of GitLab":       {"gitlab", "", "01234567", ""},
		"HMAC":                  {"hmac", "    scheme: {header: X-S, digest: sha1}\n", long, ""},
		"secret first":          {"hmac", fmt.Sprintf(hash, "{secret}{body}"), long, extension},
		"secret in the middle":  {"hmac", fmt.Sprintf(hash, "{body}{secret}."), long, extension},
		"secret last":           {"hmac", fmt.Sprintf(hash, "{body}{secret}"), long, ""},
		"secret first and last": {"hmac", fmt.Sprintf(hash, "{secret}{body}{secret}"), long, ""},
		"perhaps last":          {"hmac", fmt.Sprintf(hash, "{secret}{body}[{header:X-N}{secret}]"), long, extension},
		"text after it":         {"hmac", fmt.Sprintf(hash, "{body}{secret}[{header:X-N}]"), long, extension},
		"secret last under SHA1": {"hmac", "    scheme: {header: X-S, method: hash, digest: sha1, message: " +
			"'{body}{secret}'}\n", long, collision},
		"secret last of a form": {"hmac", fmt.Sprintf(hash, "{body}{secret}") + "    events: {body: form}\n", long,
			""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := parse(t, secretsOf(tc.provider, tc.scheme, tc.secret), "SECRET="+tc.secret)
			got := strings.Join(c.Warnings(), "\n")
			if tc.want == "" && got != "" || !strings.HasPrefix(got, tc.want) || strings.Contains(got, "\n") {
				t.Errorf("warnings %q, want %q", got, tc.want)
			}
			if strings.Contains(got, tc.secret) {
				t.Errorf("a warning shows the secret: %s", got)
			}
		})
	}
}
