package objectscan_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/objectscan"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/reconciled"
	"github.com/postern-gateway/postern/internal/testkit/shopifyfake"
)

// One bulk operation lists all objects of a type. A second scan finds all equal, with a few calls.
func TestObjectScan_bulkFile_listsEachType(t *testing.T) {
	t.Parallel()
	b := reconciled.NewShopifyEnv(t, shopifyfake.Options{Seed: 3, BulkPlan: shopifyfake.BulkPlan{PollsUntilDone: 2}},
		reconciled.ObjectSet{Name: "inventory_item", N: 12}, reconciled.ObjectSet{Name: "location", N: 3},
		reconciled.ObjectSet{Name: "inventory_level", N: 30}, reconciled.ObjectSet{Name: "product", N: 60},
		reconciled.ObjectSet{Name: "order", N: 40})
	b.StartReconciler(t, b.Runner(t))
	for _, name := range []string{"product", "order", "inventory_level"} {
		first := waitForScan(t, b, startScan(t, b, name))
		if first[reconcile.Missing] == 0 || first[objectscan.Orphans] == 0 {
			t.Errorf("%s: counts %v: the test is too easy", name, first)
		}
		reconciled.WantNone(t, typeDifferences(t, b, name))
		b.Fake.ResetRequests()
		begun, downloads := b.Fake.BulkCount(), len(checkDownloads(t, b))
		again := waitForScan(t, b, startScan(t, b, name))
		if again[objectscan.Equal] != again[reconcile.Processed] || again[reconcile.Processed] == 0 {
			t.Errorf("%s: a second scan counted %v", name, again)
		}
		if calls := len(b.Fake.Requests()); calls > 6 || b.Fake.BulkCount() != begun+1 ||
			len(checkDownloads(t, b)) != downloads+1 {
			t.Errorf("%s: a second scan made %d calls, %d operations and %d downloads", name, calls,
				b.Fake.BulkCount()-begun, len(checkDownloads(t, b))-downloads)
		}
	}
}

// The process is killed at many statements, and operations and files fail. Each object counts once,
// as in an undisturbed scan, and none is skipped.
func TestObjectScan_bulkFileAndKills_countsEachObjectOnce(t *testing.T) {
	t.Parallel()
	objects := reconciled.ObjectSet{Name: "product", N: 60}
	o := shopifyfake.Options{Seed: 4}
	calm := reconciled.NewShopifyEnv(t, o, objects)
	calm.StartReconciler(t, calm.Runner(t))
	want := waitForScan(t, calm, startScan(t, calm, "product"))
	for name, plan := range map[string]shopifyfake.BulkPlan{
		"operations": {OtherRunning: 2, PollsUntilDone: 3, FailedOperations: 1, CanceledOperations: 1,
			ExpiredOperations: 1, UnknownID: 1},
		"files": {ExpiredURL: 1, TruncatedFile: 4, TruncatedAtLine: 3, FileServerError: 3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := o
			o.Faults = shopifyfake.Faults{Throttled: 5, ServerError: 5, Dropped: 5}
			wild := reconciled.NewShopifyEnv(t, o, objects)
			wild.Fake.SetBulk(plan)
			r, d := wild.Runner(t), &reconciled.CancelAfterStatements{}
			reconciled.TraceStatements(t, r, d)
			var attempts atomic.Int64
			startAttempts(t, wild.Env, 0, func(ctx context.Context, h *runs.Lease,
				log *slog.Logger) (runs.Status, error) {
				ctx, cancel := context.WithCancel(ctx)
				defer cancel()
				d.Mu.Lock()
				d.Remaining, d.Cancel = int(attempts.Add(1))*reconciled.StatementsPerAttempt(), cancel
				d.Mu.Unlock()
				return r.Execute(ctx, h, log)
			})
			got := waitForScan(t, wild, startScan(t, wild, "product"))
			testkit.Equal(t, "counts", want, got)
			reconciled.WantNone(t, typeDifferences(t, wild, "product"))
			left := wild.Fake.RemainingBulkPlan()
			if left.PollsUntilDone = 0; left != (shopifyfake.BulkPlan{}) ||
				int(attempts.Load())*reconciled.StatementsPerAttempt() < 12 {
				t.Errorf("%+v has not occurred, in %d attempts: the test is too easy", left, attempts.Load())
			}
			resumed := 0
			for _, one := range checkDownloads(t, wild) {
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
		b := reconciled.NewShopifyEnv(t, shopifyfake.Options{Seed: 6, BulkPlan: plan},
			reconciled.ObjectSet{Name: "product", N: 25})
		b.StartReconciler(t, b.Runner(t))
		r := b.WaitForEnd(t, startScan(t, b, "product"))
		if r.Status != runs.Failed || !strings.Contains(r.Detail, text) || r.Counts[reconcile.Processed] != 0 ||
			len(checkDownloads(t, b)) != 0 {
			t.Errorf("%s with %v after %d downloads: %s", r.Status, r.Counts, len(checkDownloads(t, b)), r.Detail)
		}
	}
	b := reconciled.NewShopifyEnv(t, shopifyfake.Options{Seed: 7, BulkPlan: shopifyfake.BulkPlan{PollsUntilDone: 1}})
	b.StartReconciler(t, b.Runner(t))
	if counts := waitForScan(t, b, startScan(t, b, "product")); counts[reconcile.Processed] != 0 ||
		len(checkDownloads(t, b)) != 0 {
		t.Errorf("an empty shop counted %v", counts)
	}
}

// Types that only the configuration describes are scanned like others: all objects, changed ones
// and deleted ones.
func TestObjectScan_configuredType_isScanned(t *testing.T) {
	t.Parallel()
	b := reconciled.NewShopifyEnv(t, shopifyfake.Options{Seed: 9})
	b.API.Types, b.API.Bulk = map[string]provider.APIType{"gift_card": {Get: "gift_cards/{id}.json", List: "giftCards",
		Changed: true}}, nil
	var ids []string
	for range 12 {
		ids = append(ids, b.Fake.Create("gift_card"))
	}
	b.Fake.Advance(2 * time.Minute)
	b.StartReconciler(t, b.Runner(t))
	counts := waitForScan(t, b, startScan(t, b, "gift_card"))
	if counts[objectscan.Repaired] != 12 {
		t.Errorf("a first scan counted %v", counts)
	}
	b.Fake.Change("gift_card", ids[1], true)
	b.Fake.Delete("gift_card", ids[2], true)
	b.Fake.Advance(2 * time.Minute)
	counts = waitForScan(t, b, startScan(t, b, "gift_card"))
	if counts[objectscan.MirrorOlder] != 1 || counts[objectscan.Orphans] != 1 || counts[objectscan.Repaired] != 2 ||
		counts[objectscan.Equal] != 10 {
		t.Errorf("a second scan counted %v", counts)
	}
	reconciled.WantNone(t, typeDifferences(t, b, "gift_card"))
	reconciled.WantValue(t, b.Env, "change 1", `SELECT state->>'note' FROM objects WHERE object_id = $1`, ids[1])
}

// A scan works without the size of the file, and with a server that ignores ranges.
func TestObjectScan_bulkFileWithoutSize_isRead(t *testing.T) {
	t.Parallel()
	for _, plan := range []shopifyfake.BulkPlan{{WithoutSize: true, TruncatedFile: 2},
		{IgnoresRange: true, TruncatedFile: 3, TruncatedAtLine: 2}} {
		b := reconciled.NewShopifyEnv(t, shopifyfake.Options{Seed: 8, BulkPlan: plan},
			reconciled.ObjectSet{Name: "product", N: 25})
		b.StartReconciler(t, b.Runner(t))
		waitForScan(t, b, startScan(t, b, "product"))
		reconciled.WantNone(t, typeDifferences(t, b, "product"))
	}
}

func waitsForBulk(r *runs.Run) bool {
	return strings.Contains(r.Detail, "one of the app's bulk operations")
}

// Runs that wait for files do not block other runs.
func TestObjectScan_runsWaitingForBulk_blockNoOtherRun(t *testing.T) {
	t.Parallel()
	b := reconciled.NewShopifyEnv(t, shopifyfake.Options{Seed: 5,
		BulkPlan: shopifyfake.BulkPlan{OtherRunning: 1 << 20}}, reconciled.ObjectSet{Name: "product", N: 25},
		reconciled.ObjectSet{Name: "order", N: 5}, reconciled.ObjectSet{Name: "location", N: 3})
	b.API.Bulk = []string{"product", "order"}
	b.StartReconciler(t, b.Runner(t))
	for _, objectType := range []string{"product", "order", "product"} {
		b.WaitForRun(t, startScan(t, b, objectType), waitsForBulk)
	}
	reconciled.WantRunDone(t, b.WaitForEnd(t, startScan(t, b, "location")))
}

// While one list waits for its file, the run reports that without a failure and scans the other
// types. It appends no event of the waiting type.
func TestObjectScan_typeWaitingForBulk_blocksNoOtherType(t *testing.T) {
	t.Parallel()
	b := reconciled.NewShopifyEnv(t,
		shopifyfake.Options{Seed: 5, BulkPlan: shopifyfake.BulkPlan{OtherRunning: 1 << 20}},
		reconciled.ObjectSet{Name: "inventory_item", N: 25}, reconciled.ObjectSet{Name: "product", N: 15})
	b.API.Bulk = []string{"inventory_item"}
	b.StartReconciler(t, b.Runner(t))
	run := startScan(t, b, "")
	r := b.WaitForRun(t, run, func(r *runs.Run) bool {
		return waitsForBulk(r) && slices.Contains(b.DB.QueryStrings(t, `SELECT object_type FROM object_scans
			WHERE phase = 'done'`), "product")
	})
	if r.ConsecutiveFailures != 0 || r.Status != runs.Running {
		t.Errorf("%s, deferred %d times: %s", r.Status, r.ConsecutiveFailures, r.Detail)
	}
	b.WantRows(t, `SELECT object_type FROM object_scans WHERE phase <> 'done'`, "inventory_item")
	b.Fake.SetBulk(shopifyfake.BulkPlan{PollsUntilDone: 1 << 20})
	b.WaitForRun(t, run, func(r *runs.Run) bool {
		return strings.Contains(r.Detail, "not there yet: bulk operation 4000000001")
	})
	b.WantRows(t, `SELECT event_id FROM events WHERE origin = 'reconcile' AND object_type = 'inventory_item'`)
	b.SetStatus(t, run, runs.Cancelled)
	b.WaitForEnd(t, run)
}

// A missing draft order is deleted even if the key may not read old orders.
func TestObjectScan_draftOrdersWithoutOldOrders_deletesMissing(t *testing.T) {
	t.Parallel()
	b := reconciled.NewShopifyEnv(t, shopifyfake.Options{Seed: 3, Scopes: []string{"read_draft_orders"}},
		reconciled.ObjectSet{Name: "draft_order", N: 20})
	b.API.Bulk = nil
	b.StartReconciler(t, b.Runner(t))
	r := b.WaitForEnd(t, startScan(t, b, "draft_order"))
	reconciled.WantCounts(t, r, reconciled.Counts{objectscan.Orphans: 2, objectscan.Unrepaired: 0})
}

// startScan requests a full object scan of a type.
func startScan(t *testing.T, b *reconciled.ShopifyEnv, objectType string) int64 {
	t.Helper()
	return b.StartRun(t, reconcile.Params{Scope: reconcile.Objects, Type: objectType, Full: true})
}

// waitForScan waits for a run, which must succeed, and returns its counts.
func waitForScan(t *testing.T, b *reconciled.ShopifyEnv, run int64) map[string]int64 {
	t.Helper()
	r := b.WaitForEnd(t, run)
	if r.Status != runs.Done {
		t.Fatalf("the run is %s: %s", r.Status, r.Detail)
	}
	delete(r.Counts, reconcile.SkewSeconds) // the clock of the fake stands still, so that this grows during the run
	return r.Counts
}

// typeDifferences returns the objects of a type whose existence differs between the mirror and the
// shop.
func typeDifferences(t *testing.T, b *reconciled.ShopifyEnv, objectType string) (wrong []string) {
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

// checkDownloads checks that the file host got no credentials and returns its requests.
func checkDownloads(t *testing.T, b *reconciled.ShopifyEnv) []shopifyfake.Request {
	t.Helper()
	downloads, leaked := b.Fake.FileRequests()
	if len(leaked) > 0 {
		t.Errorf("the file host got %q", leaked)
	}
	return downloads
}
