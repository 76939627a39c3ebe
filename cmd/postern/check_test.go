package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/postern-gateway/postern/internal/config"
)

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
		"good":               "a: {provider: stripe, secrets: [{name: n, value: v}]}",
		"a secret's folder":  "a: {provider: stripe, secrets: [{name: n, file: '" + folder + "'}]}",
		"no secret's file":   "a: {provider: stripe, secrets: [{name: n, file: '" + filepath.Join(dir, "none") + "'}]}",
		"no variable":        "a: {provider: stripe, secrets: [{name: n, env: POSTERN_TEST_NOT_SET}]}",
		"demo secret":        "a: {provider: stripe, secrets: [{name: n, value: " + config.DemoStripeSecret + "}]}",
		"provider's own":     "a: {provider: shopify, secrets: [{name: n, value: v}]}",
		"two that are wrong": "a: {provider: nobody, secrets: [{name: n, value: v}], tolerance: 1ms}",
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
