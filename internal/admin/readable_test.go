package admin_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/reconcile"
)

// A reconciliation that the processors' configuration lets no run carry out is rejected at once, with a line that makes a
// configuration valid. Where no processor has reported yet, and where one reads what is asked for, the run is entered.
func TestReconcile_apiThatCannotBeRead_isRejectedWithTheLineToAdd(t *testing.T) {
	t.Parallel()
	b := setup(t)
	known, err := events.RegisterSources(t.Context(), b.db.Pool, map[string]string{"code": "github", "own": "hmac"})
	if err != nil {
		t.Fatal(err)
	}
	processor := b.db.Role(t, "processor")
	const (
		stripe = "    provider: stripe\n    secrets: [{name: s, value: whsec_secret_of_a_test}]\n"
		github = "    provider: github\n    secrets: [{name: s, value: secret_of_a_test}]\n"
		hmac   = "    provider: hmac\n    secrets: [{name: s, value: secret_of_a_test}]\n    scheme: {header: X-Signature}\n    events: {type: '{json:type}', key: '{json:id}'}\n"
	)
	for name, c := range map[string]struct {
		source string
		reads  []string
		asked  string
		says   []string
		// base is the source without the line that the error has; empty: it has none.
		base string
	}{
		"no section api":             {"stripe", nil, `"objects": true`, []string{"no section api for source stripe", "Add this line to sources.stripe"}, stripe},
		"no section api, events":     {"stripe", nil, ``, []string{"no section api for source stripe"}, stripe},
		"no section api, one object": {"stripe", nil, `"type": "customer", "object_id": "cus_1"`, []string{"no section api for source stripe"}, stripe},
		"no section api, described":  {"own", nil, `"type": "thing"`, []string{"Describe the API", "docs/reconciliation.md"}, hmac},
		"no events":                  {"shop", []string{"object", "objects"}, ``, []string{"lists no events", "postern reconcile shop --objects", `"objects": true`}, ""},
		"no events, described":       {"own", []string{"object", "objects"}, ``, []string{"lists no events", "postern reconcile own --objects", "sources.own.api.events"}, ""},
		"no webhooks named":          {"code", []string{"object", "objects"}, ``, []string{"lists no events", "postern reconcile code --objects"}, github},
		"nothing named":              {"code", []string{"object"}, ``, []string{"lists no events, and no objects"}, github},
		"no repositories named":      {"code", []string{"object", "events"}, `"objects": true`, []string{"repositories"}, github},
		"no list":                    {"own", []string{"object"}, `"objects": true`, []string{"lists no objects", "--type TYPE --object ID"}, ""},
	} {
		number := known.Number[c.source]
		if err := reconcile.ReportReadable(t.Context(), processor, map[int32][]string{number: c.reads}); err != nil {
			t.Fatal(err)
		}
		asked := c.asked
		if asked != "" {
			asked = ", " + asked
		}
		status, p := b.post(t, "/api/v1/reconciliations", "application/json", fmt.Sprintf(`{"source": %q%s}`, c.source, asked))
		said, _ := p["detail"].(string)
		if status != 400 {
			t.Errorf("%s: %d %v", name, status, p)
		}
		for _, want := range c.says {
			if !strings.Contains(said, want) {
				t.Errorf("%s: the error does not say %q: %s", name, want, said)
			}
		}
		_, line, has := strings.Cut(said, "once a processor has read it: ")
		if has != (c.base != "") {
			t.Errorf("%s: the error has a line: %t, want %t: %s", name, has, c.base != "", said)
		}
		if has {
			parses(t, name, c.source, c.base, line)
		}
	}
	if rows := b.db.Rows(t, `SELECT count(*)::text FROM runs`); rows[0] != "0" {
		t.Errorf("%s runs were entered", rows[0])
	}
	if err := reconcile.ReportReadable(t.Context(), processor, map[int32][]string{known.Number["stripe"]: {"object", "objects", "events"}}); err != nil {
		t.Fatal(err)
	}
	b.db.Exec(t, `UPDATE sources SET api_reads = NULL WHERE name = 'shop'`)
	for _, source := range []string{"stripe", "shop"} {
		if status, p := b.post(t, "/api/v1/reconciliations", "application/json", fmt.Sprintf(`{"source": %q}`, source)); status != 200 {
			t.Errorf("source %s: %d %v", source, status, p)
		}
	}
}

// parses fails unless a configuration with the line of an error is valid.
func parses(t *testing.T, name, source, base, line string) {
	t.Helper()
	if !strings.HasPrefix(line, "api:") {
		line = "api:\n      key: {env: CODE_API_KEY}\n      " + strings.ReplaceAll(line, "hooks/ID", "hooks/1")
	}
	text := "database: {url: 'postgres://postern@localhost/postern'}\nnats: {url: 'nats://127.0.0.1:4222'}\nsources:\n  " + source + ":\n" + base + "    " + line + "\n"
	env := func(variable string) string {
		return map[string]string{"STRIPE_API_KEY": "rk_test_1", "CODE_API_KEY": "github_pat_1", "OWN_API_KEY": "key"}[variable]
	}
	if _, err := config.Parse([]byte(text), env); err != nil {
		t.Errorf("%s: %v in\n%s", name, err, text)
	}
}
