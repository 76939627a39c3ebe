package reconcile_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	diff "github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/objectscan"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/shopify"
	"github.com/postern-gateway/postern/internal/providerapi"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/refetch"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit/applied"
	"github.com/postern-gateway/postern/internal/testkit/shopifyfake"
)

// shopifyEnv is a Shopify source with a fake shop, a real client and lists from bulk files.
type shopifyEnv struct {
	*testEnv
	fake   *shopifyfake.Fake
	config *provider.Source
	api    *provider.API
}

// objectSet is a number of objects of a type, or one object.
type objectSet struct {
	name string
	n    int
	id   string
}

// newShopifyEnv makes a shop whose mirror got two of three webhooks. Some objects were deleted
// without a webhook.
func newShopifyEnv(t *testing.T, o shopifyfake.Options, objects ...objectSet) *shopifyEnv {
	t.Helper()
	if o.Start.IsZero() { // otherwise the clock of the fake stands still
		o.Running, o.Start = true, time.Now()
	}
	b := &shopifyEnv{testEnv: newEnvWithoutAPI(t), fake: shopifyfake.New(t, o),
		config: &provider.Source{Name: applied.SourceName, Account: shopifyfake.Shop}}
	b.api = &provider.API{BaseURL: b.fake.URL, Key: provider.Secret{Name: "api.key", Value: []byte(shopifyfake.Key)},
		Rate: 1000, Concurrency: 4, Timeout: 30 * time.Second, MaxBytes: 8 << 20}
	b.api.Bulk = shopify.Shopify{}.FileTypes(b.api)
	if err := (shopify.Shopify{}).CompleteAPI(b.api); err != nil {
		t.Fatal(err)
	}
	s := b.Sources[applied.SourceName]
	s.Config, s.Provider = b.config, shopify.Shopify{}
	b.Sources[applied.SourceName] = s
	var gone []objectSet
	for _, m := range objects {
		for range m.n / 10 {
			gone = append(gone, objectSet{name: m.name, id: b.fake.Create(m.name)})
		}
	}
	b.deliver(t, loseNone)
	for _, m := range gone {
		b.fake.Delete(m.name, m.id, true)
	}
	for _, m := range objects {
		for i := range m.n {
			id := b.fake.Create(m.name)
			if i%3 == 0 {
				b.fake.Change(m.name, id, i%2 == 0)
			}
		}
	}
	b.deliver(t, func(n int) bool { return n%3 == 0 })
	b.fake.Advance(2 * time.Minute) // longer than the delay of lists
	return b
}

// deliver appends and applies the webhooks that are not lost.
func (b *shopifyEnv) deliver(t *testing.T, lost func(n int) bool) {
	t.Helper()
	var ds []*provider.Delivery
	n := 0
	b.fake.Deliver(func(d *provider.Delivery) bool {
		if n++; !lost(n) {
			ds = append(ds, d)
		}
		return true
	})
	applied.AppendAndApply(t, b.gateway, b.Applier(t, nil), b.Sources[applied.SourceName], ds...)
}

// runner makes a runner that calls the API over HTTP.
func (b *shopifyEnv) runner(t *testing.T) *reconcile.Runner {
	t.Helper()
	sources := &providerapi.Sources{}
	source := &providerapi.Source{Name: applied.SourceName, Number: b.Source, Config: b.config, API: b.api,
		Provider: shopify.Shopify{}, Reader: shopify.Shopify{}}
	source.Caller = newClient(t, b.Pool, source)
	sources.Replace(source)
	s := reconcile.DefaultSettings
	s.RetryDelay, s.MaxPollDelay = 5*time.Millisecond, 20*time.Millisecond
	return &reconcile.Runner{Resources: &refetch.Resources{Pool: b.Pool, Log: b.gateway, Applier: b.Applier(t, nil),
		Sources: sources, Limits: refetch.DefaultLimits}, Settings: s}
}

// startScan requests a full object scan of a type.
func (b *shopifyEnv) startScan(t *testing.T, objectType string) int64 {
	t.Helper()
	run := b.startRun(t, reconcile.Params{Scope: reconcile.Objects, Type: objectType, Full: true})
	return run
}

// waitForScan waits for a run, which must succeed, and returns its counts.
func (b *shopifyEnv) waitForScan(t *testing.T, run int64) map[string]int64 {
	t.Helper()
	r := b.waitForEnd(t, run)
	if r.Status != runs.Done {
		t.Fatalf("the run is %s: %s", r.Status, r.Detail)
	}
	delete(r.Counts, reconcile.SkewSeconds) // the clock of the fake stands still, so that this grows during the run
	return r.Counts
}

// typeDifferences returns the objects of a type whose existence differs between the mirror and the
// shop.
func (b *shopifyEnv) typeDifferences(t *testing.T, objectType string) (wrong []string) {
	t.Helper()
	here := map[string]bool{}
	for _, id := range b.DB.QueryStrings(t, `SELECT object_id FROM objects WHERE NOT deleted AND NOT ambiguous
		AND object_type = '`+objectType+`'`) {
		here[id] = true
	}
	for _, o := range b.fake.CurrentObjects() {
		if o.Type == objectType && here[o.ID] != (o.Body != nil) {
			wrong = append(wrong, fmt.Sprintf("%s %s is in the mirror: %t", o.Type, o.ID, here[o.ID]))
		}
	}
	return wrong
}

// checkDownloads checks that the file host got no credentials and returns its requests.
func (b *shopifyEnv) checkDownloads(t *testing.T) []shopifyfake.Request {
	t.Helper()
	downloads, leaked := b.fake.FileRequests()
	if len(leaked) > 0 {
		t.Errorf("the file host got %q", leaked)
	}
	return downloads
}

// One bulk operation lists all objects of a type. A second scan finds all equal, with a few calls.
func TestObjectScan_bulkFile_listsEachType(t *testing.T) {
	t.Parallel()
	b := newShopifyEnv(t, shopifyfake.Options{Seed: 3, BulkPlan: shopifyfake.BulkPlan{PollsUntilDone: 2}},
		objectSet{name: "inventory_item", n: 12}, objectSet{name: "location", n: 3},
		objectSet{name: "inventory_level", n: 30}, objectSet{name: "product", n: 60}, objectSet{name: "order", n: 40})
	b.startReconciler(t, b.runner(t))
	for _, name := range []string{"product", "order", "inventory_level", "inventory_item", "location"} {
		first := b.waitForScan(t, b.startScan(t, name))
		if name != "location" && name != "inventory_item" &&
			(first[reconcile.Missing] == 0 || first[objectscan.Orphans] == 0) {
			t.Errorf("%s: counts %v: the test is too easy", name, first)
		}
		wantNone(t, b.typeDifferences(t, name))
		b.fake.ResetRequests()
		begun, downloads := b.fake.BulkCount(), len(b.checkDownloads(t))
		again := b.waitForScan(t, b.startScan(t, name))
		if again[objectscan.Equal] != again[reconcile.Processed] || again[reconcile.Processed] == 0 {
			t.Errorf("%s: a second scan counted %v", name, again)
		}
		if calls := len(b.fake.Requests()); calls > 6 || b.fake.BulkCount() != begun+1 ||
			len(b.checkDownloads(t)) != downloads+1 {
			t.Errorf("%s: a second scan made %d calls, %d operations and %d downloads", name, calls,
				b.fake.BulkCount()-begun, len(b.checkDownloads(t))-downloads)
		}
	}
}

// The process is killed at many statements, and operations and files fail. Each object counts once,
// as in an undisturbed scan, and none is skipped.
func TestObjectScan_bulkFileAndKills_countsEachObjectOnce(t *testing.T) {
	t.Parallel()
	objects := objectSet{name: "product", n: 60}
	o := shopifyfake.Options{Seed: 4}
	calm := newShopifyEnv(t, o, objects)
	calm.startReconciler(t, calm.runner(t))
	want := calm.waitForScan(t, calm.startScan(t, "product"))
	for name, plan := range map[string]shopifyfake.BulkPlan{
		"operations": {OtherRunning: 2, PollsUntilDone: 3, FailedOperations: 1, CanceledOperations: 1,
			ExpiredOperations: 1, UnknownID: 1},
		"files": {ExpiredURL: 1, TruncatedFile: 4, TruncatedAtLine: 3, FileServerError: 3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := o
			o.Faults = shopifyfake.Faults{Throttled: 5, ServerError: 5, Dropped: 5}
			wild := newShopifyEnv(t, o, objects)
			wild.fake.SetBulk(plan)
			r, d := wild.runner(t), &cancelAfterStatements{}
			traceStatements(t, r, d)
			var attempts atomic.Int64
			wild.StartRunner(t, "one", 0,
				map[string]runs.Executor{reconcile.Job: func(ctx context.Context, h *runs.Lease,
					log *slog.Logger) (runs.Status, error) {
					ctx, cancel := context.WithCancel(ctx)
					defer cancel()
					d.mu.Lock()
					d.remaining, d.cancel = int(attempts.Add(1))*statementsPerAttempt(), cancel
					d.mu.Unlock()
					return r.Execute(ctx, h, log)
				}})
			got := wild.waitForScan(t, wild.startScan(t, "product"))
			if d := diff.Diff(want, got); d != "" {
				t.Errorf("counts (-undisturbed +killed): %s", d)
			}
			wantNone(t, wild.typeDifferences(t, "product"))
			left := wild.fake.RemainingBulkPlan()
			if left.PollsUntilDone = 0; left != (shopifyfake.BulkPlan{}) ||
				int(attempts.Load())*statementsPerAttempt() < 12 {
				t.Errorf("%+v has not occurred, in %d attempts: the test is too easy", left, attempts.Load())
			}
			resumed := 0
			for _, one := range wild.checkDownloads(t) {
				if !strings.HasSuffix(one.Path, " 0") {
					resumed++
				}
			}
			if name != "operations" && resumed == 0 {
				t.Error("no download continued after an interruption")
			}
		})
	}
}

// An empty list is complete. The partial file of a failed operation is not used. An operation that
// fails repeatedly fails the run.
func TestObjectScan_failedOrEmptyBulkFile_isNotTrusted(t *testing.T) {
	t.Parallel()
	for text, plan := range map[string]shopifyfake.BulkPlan{
		"answered that the bulk operation is FAILED": {FailedOperations: 6},
		"ended with ACCESS_DENIED":                   {DeniedOperations: 1},
	} {
		b := newShopifyEnv(t, shopifyfake.Options{Seed: 6, BulkPlan: plan}, objectSet{name: "product", n: 25})
		b.startReconciler(t, b.runner(t))
		r := b.waitForEnd(t, b.startScan(t, "product"))
		if r.Status != runs.Failed || !strings.Contains(r.Detail, text) || r.Counts[reconcile.Processed] != 0 ||
			len(b.checkDownloads(t)) != 0 {
			t.Errorf("%s with %v after %d downloads: %s", r.Status, r.Counts, len(b.checkDownloads(t)), r.Detail)
		}
	}
	b := newShopifyEnv(t, shopifyfake.Options{Seed: 7, BulkPlan: shopifyfake.BulkPlan{PollsUntilDone: 1}})
	b.startReconciler(t, b.runner(t))
	if counts := b.waitForScan(t, b.startScan(t, "product")); counts[reconcile.Processed] != 0 ||
		len(b.checkDownloads(t)) != 0 {
		t.Errorf("an empty shop counted %v", counts)
	}
}

// Types that only the configuration describes are scanned like others: all objects, changed ones
// and deleted ones.
func TestObjectScan_configuredType_isScanned(t *testing.T) {
	t.Parallel()
	b := newShopifyEnv(t, shopifyfake.Options{Seed: 9})
	b.api.Types, b.api.Bulk = map[string]provider.APIType{"gift_card": {Get: "gift_cards/{id}.json", List: "giftCards",
		Changed: true}}, nil
	var ids []string
	for range 12 {
		ids = append(ids, b.fake.Create("gift_card"))
	}
	b.fake.Advance(2 * time.Minute)
	b.startReconciler(t, b.runner(t))
	counts := b.waitForScan(t, b.startScan(t, "gift_card"))
	if counts[objectscan.Repaired] != 12 {
		t.Errorf("a first scan counted %v", counts)
	}
	b.fake.Change("gift_card", ids[1], true)
	b.fake.Delete("gift_card", ids[2], true)
	b.fake.Advance(2 * time.Minute)
	counts = b.waitForScan(t, b.startScan(t, "gift_card"))
	if counts[objectscan.MirrorOlder] != 1 || counts[objectscan.Orphans] != 1 || counts[objectscan.Repaired] != 2 ||
		counts[objectscan.Equal] != 10 {
		t.Errorf("a second scan counted %v", counts)
	}
	wantNone(t, b.typeDifferences(t, "gift_card"))
	if got := b.DB.QueryStrings(t, `SELECT state->>'note' FROM objects WHERE object_id = '`+ids[1]+
		`'`)[0]; got != "change 1" {
		t.Errorf("the changed card is %q", got)
	}
}

// A scan works without the size of the file, and with a server that ignores ranges.
func TestObjectScan_bulkFileWithoutSize_isRead(t *testing.T) {
	t.Parallel()
	for _, plan := range []shopifyfake.BulkPlan{{WithoutSize: true, TruncatedFile: 2},
		{IgnoresRange: true, TruncatedFile: 3, TruncatedAtLine: 2}} {
		b := newShopifyEnv(t, shopifyfake.Options{Seed: 8, BulkPlan: plan}, objectSet{name: "product", n: 25})
		b.startReconciler(t, b.runner(t))
		b.waitForScan(t, b.startScan(t, "product"))
		wantNone(t, b.typeDifferences(t, "product"))
	}
}

func waitsForBulk(r *runs.Run) bool {
	return strings.Contains(r.Detail, "one of the app's bulk operations")
}

// Runs that wait for files do not block other runs.
func TestObjectScan_runsWaitingForBulk_blockNoOtherRun(t *testing.T) {
	t.Parallel()
	b := newShopifyEnv(t, shopifyfake.Options{Seed: 5, BulkPlan: shopifyfake.BulkPlan{OtherRunning: 1 << 20}},
		objectSet{name: "product", n: 25}, objectSet{name: "order", n: 5}, objectSet{name: "location", n: 3})
	b.api.Bulk = []string{"product", "order"}
	b.startReconciler(t, b.runner(t))
	for _, objectType := range []string{"product", "order", "product"} {
		b.WaitForRun(t, b.startScan(t, objectType), waitsForBulk)
	}
	wantRunDone(t, b.waitForEnd(t, b.startScan(t, "location")))
}

// While one list waits for its file, the run reports that without a failure and scans the other
// types. It appends no event of the waiting type.
func TestObjectScan_typeWaitingForBulk_blocksNoOtherType(t *testing.T) {
	t.Parallel()
	b := newShopifyEnv(t, shopifyfake.Options{Seed: 5, BulkPlan: shopifyfake.BulkPlan{OtherRunning: 1 << 20}},
		objectSet{name: "inventory_item", n: 25}, objectSet{name: "product", n: 15})
	b.api.Bulk = []string{"inventory_item"}
	b.startReconciler(t, b.runner(t))
	run := b.startScan(t, "")
	r := b.WaitForRun(t, run, func(r *runs.Run) bool {
		return waitsForBulk(r) && slices.Contains(b.DB.QueryStrings(t, `SELECT object_type FROM object_scans
			WHERE phase = 'done'`),
			"product")
	})
	if r.ConsecutiveFailures != 0 || r.Status != runs.Running {
		t.Errorf("%s, deferred %d times: %s", r.Status, r.ConsecutiveFailures, r.Detail)
	}
	b.wantRows(t, `SELECT object_type FROM object_scans WHERE phase <> 'done'`, "inventory_item")
	b.fake.SetBulk(shopifyfake.BulkPlan{PollsUntilDone: 1 << 20})
	b.WaitForRun(t, run, func(r *runs.Run) bool {
		return strings.Contains(r.Detail, "not there yet: bulk operation 4000000001")
	})
	b.wantRows(t, `SELECT event_id FROM events WHERE origin = 'reconcile' AND object_type = 'inventory_item'`)
	b.setStatus(t, run, runs.Cancelled)
	b.waitForEnd(t, run)
}

// A missing draft order is deleted even if the key may not read old orders.
func TestObjectScan_draftOrdersWithoutOldOrders_deletesMissing(t *testing.T) {
	t.Parallel()
	b := newShopifyEnv(t, shopifyfake.Options{Seed: 3, Scopes: []string{"read_draft_orders"}},
		objectSet{name: "draft_order", n: 20})
	b.api.Bulk = nil
	b.startReconciler(t, b.runner(t))
	r := b.waitForEnd(t, b.startScan(t, "draft_order"))
	wantCounts(t, r, counts{objectscan.Orphans: 2, objectscan.Unrepaired: 0})
}
