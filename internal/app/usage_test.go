package app

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/postern-gateway/postern/internal/config"
)

// The example command uses the secrets in the configuration file of the instance, and the address
// in its folder.
func TestPrintSendExample_configurations(t *testing.T) {
	t.Parallel()
	const acme = "  acme: {provider: hmac, secrets: [{name: n, value: whsec_secret_of_a_test}], scheme: {header: " +
		"X-A}}\n"
	const live = "  live: {provider: stripe, secrets: [{name: n, value: whsec_secret_of_a_test}]}\n"
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("whsec_secret_of_a_test"), 0o600); err != nil {
		t.Fatal(err)
	}
	inFile := "  stripe: {provider: stripe, secrets: [{name: n, file: '" + secret + "'}]}\n"
	demo := "  shop: {provider: shopify, account: a.myshopify.com, secrets: [{name: n, value: " +
		config.DemoShopifySecret + "}]}\n"
	load := func(name, sources string) *config.Config {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, []byte("sources:\n"+sources), 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := config.LoadDev(path)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	for name, test := range map[string]struct {
		cfg             *config.Config
		file, dir, want string
	}{
		"demo": {&config.Config{Sources: config.DemoSources()}, "", defaultDir,
			"postern send stripe invoice.paid\n"},
		"demo, folder": {&config.Config{Sources: config.DemoSources()}, "", "/x",
			"postern send stripe invoice.paid --dir /x\n"},
		"file": {load("a", live+acme), "p.yaml", "/x", "postern send stripe invoice.paid --source live " +
			"--config p.yaml --dir /x\n"},
		"default dir": {load("a", live), "p.yaml", defaultDir, "--config p.yaml --dir .postern\n"},
		"own sender": {load("a", acme), "p.yaml", "/x", "postern send hmac TYPE --data FILE --source acme --config " +
			"p.yaml --dir /x    # FILE: a body"},
		"secret file": {load("a", inFile), "", "/x", "postern send stripe invoice.paid --secret-file " + secret +
			" --dir /x"},
		"demo first": {load("a", live+demo), "", "/x", "postern send shopify orders/create --source shop --dir /x"},
		"no file": {load("a", live), "", defaultDir, "--source live --secret-file FILE    # FILE: contains the " +
			"secret of source live"},
	} {
		var out strings.Builder
		printSendExample(&out, test.cfg, test.file, test.dir)
		if !strings.Contains(out.String(), test.want) {
			t.Errorf("%s: %q, want %q", name, out.String(), test.want)
		}
	}
}
