package admin_test

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/admin"
	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/operations"
	"github.com/postern-gateway/postern/internal/testkit"
)

// The list has the sources of the log and those of the configuration, with the origin and age of
// each secret and without any value.
func TestSources_logAndConfiguration_areListed(t *testing.T) {
	t.Parallel()
	b := setup(t)
	file, changed := filepath.Join(t.TempDir(), "secret"), time.Now().Add(-time.Hour).Truncate(time.Second)
	testkit.Must(t, os.WriteFile(file, []byte("whsec_canary_of_the_file"), 0o600))
	testkit.Must(t, os.Chtimes(file, changed, changed))
	cfg, err := config.Parse([]byte(`
database: {url: postgres://x/y}
sources:
  stripe: {provider: stripe, rate_limit: {per_second: 5}, secrets: [{name: a, value: whsec_canary_in_the_file_itself},
    {name: b, env: SECRET}, {name: c, file: `+file+`}]}
  zulu: {provider: stripe, allow_from: [10.0.0.0/8], secrets: [{name: a, env: SECRET}]}
`), func(name string) string {
		return map[string]string{"SECRET": "whsec_canary_of_the_environment"}[name]
	})
	testkit.Must(t, err)
	b.db.Exec(t, `INSERT INTO source_types SELECT number, 'a', now() - interval '9 days', now() - interval '5 hours',
		20, interval '2 hours', interval '0' FROM sources WHERE name = 'stripe'`)
	h := admin.New(admin.Options{Pool: b.role(t, "operator"), Endpoints: cfg.Endpoints})
	res := request(h, http.MethodGet, "/api/v1/sources", "localhost")
	var page struct{ Items []operations.Source }
	testkit.Must(t, json.Unmarshal(res.Body.Bytes(), &page))
	if strings.Contains(res.Body.String(), "canary") {
		t.Errorf("a secret is shown: %s", res.Body)
	}
	var names []string
	for _, s := range page.Items {
		names = append(names, s.Name)
	}
	if !slices.Equal(names, []string{"shop", "stripe", "zulu"}) {
		t.Fatalf("%q", names)
	}
	shop, stripe, zulu := page.Items[0], page.Items[1], page.Items[2]
	if shop.Configured || shop.Settings != nil || shop.AddedAt.IsZero() {
		t.Errorf("a source that only the log has: %+v", shop)
	}
	if !zulu.Configured || !zulu.AddedAt.IsZero() || zulu.Settings.AllowFrom[0] != "10.0.0.0/8" {
		t.Errorf("a source that only the configuration has: %+v", zulu)
	}
	want := []operations.SourceSecret{{Name: "a", From: "value"}, {Name: "b", From: "env", Place: "SECRET"},
		{Name: "c", From: "file", Place: file, ChangedAt: events.Instant{Time: changed.UTC()}}}
	testkit.Equal(t, "secrets", want, stripe.Settings.Secrets)
	if stripe.SilentTypes != 1 || time.Since(stripe.LastEventAt.Time).Hours() < 4 || stripe.Settings.PerSecond != 5 ||
		stripe.Settings.Endpoint != "/webhooks/stripe" {
		t.Errorf("%+v %+v", stripe, stripe.Settings)
	}
	for path, status := range map[string]int{"/sources/zulu": 200, "/sources/shop": 200, "/sources/none": 404} {
		if res := request(h, http.MethodGet, "/api/v1"+path, "localhost"); res.Code != status {
			t.Errorf("%s: %d %s", path, res.Code, res.Body)
		}
	}
}
