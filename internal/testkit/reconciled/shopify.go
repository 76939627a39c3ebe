package reconciled

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/objectscan"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/shopify"
	"github.com/postern-gateway/postern/internal/providerapi"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/refetch"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit/applied"
	"github.com/postern-gateway/postern/internal/testkit/shopifyfake"
	"github.com/postern-gateway/postern/internal/watermarks"
)

// ShopifyEnv is a Shopify source with a fake shop, a real client and lists from bulk files.
type ShopifyEnv struct {
	*Env
	Fake   *shopifyfake.Fake
	config *provider.Source
	API    *provider.API
}

// ObjectSet is a number of objects of a type, or one object.
type ObjectSet struct {
	Name string
	N    int
	id   string
}

// NewShopifyEnv makes a shop whose mirror got two of three webhooks. Some objects were deleted
// without a webhook.
func NewShopifyEnv(t *testing.T, o shopifyfake.Options, objects ...ObjectSet) *ShopifyEnv {
	t.Helper()
	if o.Start.IsZero() { // otherwise the clock of the fake stands still
		o.Running, o.Start = true, time.Now()
	}
	b := &ShopifyEnv{Env: newEnvWithoutAPI(t), Fake: shopifyfake.New(t, o),
		config: &provider.Source{Name: applied.SourceName, Account: shopifyfake.Shop}}
	b.API = &provider.API{BaseURL: b.Fake.URL, Key: provider.Secret{Name: "api.key", Value: []byte(shopifyfake.Key)},
		Rate: 1000, Concurrency: 4, Timeout: 30 * time.Second, MaxBytes: 8 << 20}
	b.API.Bulk = shopify.Shopify{}.FileTypes(b.API)
	if err := (shopify.Shopify{}).CompleteAPI(b.API); err != nil {
		t.Fatal(err)
	}
	s := b.Sources[applied.SourceName]
	s.Config, s.Provider = b.config, shopify.Shopify{}
	b.Sources[applied.SourceName] = s
	var gone []ObjectSet
	for _, m := range objects {
		for range m.N / 10 {
			gone = append(gone, ObjectSet{Name: m.Name, id: b.Fake.Create(m.Name)})
		}
	}
	b.Deliver(t, LoseNone)
	for _, m := range gone {
		b.Fake.Delete(m.Name, m.id, true)
	}
	for _, m := range objects {
		for i := range m.N {
			id := b.Fake.Create(m.Name)
			if i%3 == 0 {
				b.Fake.Change(m.Name, id, i%2 == 0)
			}
		}
	}
	b.Deliver(t, func(n int) bool { return n%3 == 0 })
	b.Fake.Advance(2 * time.Minute) // longer than the delay of lists
	return b
}

// Deliver appends and applies the webhooks that are not lost.
func (b *ShopifyEnv) Deliver(t *testing.T, lost func(n int) bool) {
	t.Helper()
	var ds []*provider.Delivery
	n := 0
	b.Fake.Deliver(func(d *provider.Delivery) bool {
		if n++; !lost(n) {
			ds = append(ds, d)
		}
		return true
	})
	applied.AppendAndApply(t, b.gateway, b.Applier(t, nil), b.Sources[applied.SourceName], ds...)
}

// Runner makes a runner that calls the API over HTTP.
func (b *ShopifyEnv) Runner(t *testing.T) *reconcile.Runner {
	t.Helper()
	sources := &providerapi.Sources{}
	source := &providerapi.Source{Name: applied.SourceName, Number: b.Source, Config: b.config, API: b.API,
		Provider: shopify.Shopify{}, Reader: shopify.Shopify{}}
	source.Caller = newClient(t, b.Pool, source)
	sources.Replace(source)
	s := reconcile.DefaultSettings
	s.RetryDelay, s.MaxPollDelay = 5*time.Millisecond, 20*time.Millisecond
	return &reconcile.Runner{Resources: &refetch.Resources{Pool: b.Pool, Log: b.gateway, Applier: b.Applier(t, nil),
		Sources: sources, Limits: refetch.DefaultLimits}, Settings: s}
}

// StartScan requests a full object scan of a type.
func (b *ShopifyEnv) StartScan(t *testing.T, objectType string) int64 {
	t.Helper()
	run := b.StartRun(t, reconcile.Params{Scope: reconcile.Objects, Type: objectType, Full: true})
	return run
}

// WaitForScan waits for a run, which must succeed, and returns its counts.
func (b *ShopifyEnv) WaitForScan(t *testing.T, run int64) map[string]int64 {
	t.Helper()
	r := b.WaitForEnd(t, run)
	if r.Status != runs.Done {
		t.Fatalf("the run is %s: %s", r.Status, r.Detail)
	}
	delete(r.Counts, reconcile.SkewSeconds) // the clock of the fake stands still, so that this grows during the run
	return r.Counts
}

// TypeDifferences returns the objects of a type whose existence differs between the mirror and the
// shop.
func (b *ShopifyEnv) TypeDifferences(t *testing.T, objectType string) (wrong []string) {
	t.Helper()
	here := map[string]bool{}
	for _, id := range b.DB.QueryStrings(t, `SELECT object_id FROM objects WHERE NOT deleted AND NOT ambiguous
		AND object_type = '`+objectType+`'`) {
		here[id] = true
	}
	for _, o := range b.Fake.CurrentObjects() {
		if o.Type == objectType && here[o.ID] != (o.Body != nil) {
			wrong = append(wrong, fmt.Sprintf("%s %s is in the mirror: %t", o.Type, o.ID, here[o.ID]))
		}
	}
	return wrong
}

// CheckDownloads checks that the file host got no credentials and returns its requests.
func (b *ShopifyEnv) CheckDownloads(t *testing.T) []shopifyfake.Request {
	t.Helper()
	downloads, leaked := b.Fake.FileRequests()
	if len(leaked) > 0 {
		t.Errorf("the file host got %q", leaked)
	}
	return downloads
}

// downloadCaller is a Caller with another download function.
type downloadCaller struct {
	providerapi.Caller
	download func(ctx context.Context, c providerapi.Caller, address string, offset int64) (io.ReadCloser, error)
}

func (d downloadCaller) Download(ctx context.Context, _, address string, offset int64) (io.ReadCloser, error) {
	return d.download(ctx, d.Caller, address, offset)
}

// StartWithDownload starts a runner with a download function.
func (b *ShopifyEnv) StartWithDownload(t *testing.T, download func(ctx context.Context, c providerapi.Caller,
	address string, offset int64) (io.ReadCloser, error)) {
	t.Helper()
	r := b.Runner(t)
	source := *r.Sources.All()[b.Source]
	source.Caller = downloadCaller{source.Caller, download}
	r.Sources.Replace(&source)
	b.StartReconciler(t, r)
}

// ScanType scans the objects of a type.
func (b *ShopifyEnv) ScanType(t *testing.T, o reconcile.Params) *runs.Run {
	t.Helper()
	o.Source, o.Scope = b.Source, reconcile.Objects
	run := b.StartRun(t, o)
	r := b.WaitForEnd(t, run)
	if r.Status != runs.Done {
		t.Fatalf("%s: %s", r.Status, r.Detail)
	}
	return r
}

// WantComplete checks the watermarks of a type, without those of changes.
func (b *ShopifyEnv) WantComplete(t *testing.T, objectType string, want ...string) {
	t.Helper()
	got := b.DB.QueryStrings(t, `SELECT subject FROM watermarks WHERE subject IN ('type ' || $1, 'versions ' || $1)`,
		objectType)
	if !slices.Equal(got, want) {
		t.Errorf("the watermarks are %q, want %q", got, want)
	}
	if len(want) == 0 {
		return
	}
	page, err := watermarks.List(t.Context(), b.OperatorPool, b.Source, "", 10)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range page.Items {
		if p.Subject != want[0] {
			continue
		}
		report := b.Report(t, p.Run)
		if slices.Contains(report.VersionOnlyTypes, objectType) != strings.HasPrefix(want[0], "versions ") {
			t.Errorf("the report has only versions of %q (%v), the watermarks are %q", report.VersionOnlyTypes, err,
				want)
		}
	}
}

// WantOnlyLists checks that only lists were requested since the last reset.
func (b *ShopifyEnv) WantOnlyLists(t *testing.T) {
	t.Helper()
	for _, q := range b.Fake.Requests() {
		if objectPath.MatchString(q.Path) {
			t.Errorf("%s was requested", q.Path)
		}
	}
}

// objectPath is the path of one object.
var objectPath = regexp.MustCompile(`/\d+\.json$`)

// WantMirrorEqual compares the states of the mirror with those of the shop.
func (b *ShopifyEnv) WantMirrorEqual(t *testing.T) {
	t.Helper()
	want := map[string]any{}
	for _, o := range b.Fake.CurrentObjects() {
		if o.Body != nil {
			want[o.Type+" "+o.ID] = parseJSON(t, o.Body)
		}
	}
	got := map[string]any{}
	for _, row := range b.DB.QueryStrings(t, `SELECT object_type || ' ' || object_id || ' ' || state::text FROM objects
		WHERE NOT ambiguous AND refetch_after = 0`) {
		parts := strings.SplitN(row, " ", 3)
		got[parts[0]+" "+parts[1]] = parseJSON(t, []byte(parts[2]))
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func parseJSON(t *testing.T, text []byte) (v any) {
	t.Helper()
	if err := json.Unmarshal(text, &v); err != nil {
		t.Fatal(err)
	}
	return v
}

// CustomerPages counts the requests for pages of customers: without expansion, with their sources,
// and with their tax ids.
func (b *StripeEnv) CustomerPages() (alone, sources, taxIDs int) {
	for _, one := range b.Fake.Requests() {
		switch expand := one.Query.Get("expand[]"); {
		case one.Path != "/v1/customers":
		case expand == "":
			alone++
		case expand == "data.sources":
			sources++
		case expand == "data.tax_ids":
			taxIDs++
		}
	}
	b.Fake.ResetRequests()
	return alone, sources, taxIDs
}

// TypesInPhase returns the types of a run's report that are in a phase.
func (b *StripeEnv) TypesInPhase(t *testing.T, run int64, phase string) (all []string) {
	t.Helper()
	report, err := objectscan.ReportDrift(t.Context(), b.OperatorPool, run)
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range report.Types {
		if one.Phase == phase {
			all = append(all, one.ObjectType)
		}
	}
	return all
}
