package reconcile_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	diff "github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/shopify"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit/applied"
	"github.com/postern-gateway/postern/internal/testkit/shopifyfake"
)

// bulkShop is a source of Shopify's, whose shop is a fake that a real client calls, and whose lists are files.
type bulkShop struct {
	*world
	fake   *shopifyfake.Fake
	config *provider.Source
	api    *provider.API
}

// made are so many objects of a type, or one.
type made struct {
	name string
	n    int
	id   string
}

// newBulkShop has a shop of which the mirror has been told two of three webhooks, and some of it is gone quietly.
func newBulkShop(t *testing.T, o shopifyfake.Options, objects ...made) *bulkShop {
	t.Helper()
	if o.Start.IsZero() { // else time stands still there
		o.Running, o.Start = true, time.Now()
	}
	b := &bulkShop{world: bare(t), fake: shopifyfake.New(t, o), config: &provider.Source{Name: applied.Name, Account: shopifyfake.Shop}}
	b.api = &provider.API{BaseURL: b.fake.URL, Key: provider.Secret{Name: "api.key", Value: []byte(shopifyfake.Key)}, Rate: 1000, Concurrency: 4, Timeout: 30 * time.Second, MaxBytes: 8 << 20}
	b.api.Bulk = shopify.Shopify{}.FileTypes(b.api)
	if err := (shopify.Shopify{}).CompleteAPI(b.api); err != nil {
		t.Fatal(err)
	}
	s := b.Sources[applied.Name]
	s.Config, s.Provider = b.config, shopify.Shopify{}
	b.Sources[applied.Name] = s
	var gone []made
	for _, m := range objects {
		for range m.n / 10 {
			gone = append(gone, made{name: m.name, id: b.fake.Create(m.name)})
		}
	}
	b.deliver(t, every)
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
	b.fake.Advance(2 * time.Minute) // behind what the lists may not know yet
	return b
}

// deliver stores and applies webhooks but for those that are lost.
func (b *bulkShop) deliver(t *testing.T, lost func(n int) bool) {
	t.Helper()
	var ds []*provider.Delivery
	n := 0
	b.fake.Deliver(func(d *provider.Delivery) bool {
		if n++; !lost(n) {
			ds = append(ds, d)
		}
		return true
	})
	applied.Deliver(t, b.gateway, b.Processor(t, nil), b.Sources[applied.Name], ds...)
}

// runner carries out reconciliations over HTTP.
func (b *bulkShop) runner(t *testing.T) *reconcile.Runner {
	t.Helper()
	sources := &reconcile.Sources{}
	source := &reconcile.Source{Name: applied.Name, Number: b.Source, Config: b.config, API: b.api, Provider: shopify.Shopify{}, Reader: shopify.Shopify{}}
	source.Caller = newClient(t, b.Pool, source)
	sources.Replace(source)
	s := reconcile.DefaultSettings
	s.Again, s.Poll = 5*time.Millisecond, 20*time.Millisecond
	return &reconcile.Runner{Pool: b.Pool, Log: b.gateway, Processor: b.Processor(t, nil), Sources: sources, Settings: s}
}

// ask orders a full sweep of a type.
func (b *bulkShop) ask(t *testing.T, objectType string) int64 {
	t.Helper()
	run := b.order(t, reconcile.Order{What: reconcile.Objects, Type: objectType, Full: true})
	return run
}

// swept waits for a run, which must be done.
func (b *bulkShop) swept(t *testing.T, run int64) map[string]int64 {
	t.Helper()
	r := b.ended(t, run)
	if r.Status != runs.Done {
		t.Fatalf("the run is %s: %s", r.Status, r.Detail)
	}
	delete(r.Counts, reconcile.SkewSeconds) // the fake's clock stands still, so it grows with the time that a run takes
	return r.Counts
}

// wrong are the objects of a type that are not here as they are there, by their versions.
func (b *bulkShop) wrong(t *testing.T, objectType string) (wrong []string) {
	t.Helper()
	here := map[string]bool{}
	for _, id := range b.DB.Rows(t, `SELECT object_id FROM objects WHERE NOT deleted AND NOT ambiguous AND object_type = '`+objectType+`'`) {
		here[id] = true
	}
	for _, o := range b.fake.Truth() {
		if o.Type == objectType && here[o.ID] != (o.Body != nil) {
			wrong = append(wrong, fmt.Sprintf("%s %s is here: %t", o.Type, o.ID, here[o.ID]))
		}
	}
	return wrong
}

// kept checks that nothing of the key went to the host of the files.
func (b *bulkShop) kept(t *testing.T) []shopifyfake.Request {
	t.Helper()
	downloads, leaked := b.fake.Downloads()
	if len(leaked) > 0 {
		t.Errorf("the host of the files was told %q", leaked)
	}
	return downloads
}

// One operation lists all of a type, of whichever the API has; a second sweep finds all as it is, for a handful of calls.
func TestSweepByAFile(t *testing.T) {
	t.Parallel()
	b := newBulkShop(t, shopifyfake.Options{Seed: 3, Bulk: shopifyfake.Bulk{Running: 2}},
		made{name: "inventory_item", n: 12}, made{name: "location", n: 3}, made{name: "inventory_level", n: 30}, made{name: "product", n: 60}, made{name: "order", n: 40})
	b.carry(t, b.runner(t))
	for _, name := range []string{"product", "order", "inventory_level", "inventory_item", "location"} {
		first := b.swept(t, b.ask(t, name))
		if name != "location" && name != "inventory_item" && (first[reconcile.Missing] == 0 || first[reconcile.Ghosts] == 0) {
			t.Errorf("%s: counted %v: nothing is proven", name, first)
		}
		none(t, b.wrong(t, name))
		b.fake.Forget()
		begun, downloads := b.fake.Bulks(), len(b.kept(t))
		again := b.swept(t, b.ask(t, name))
		if again[reconcile.Equal] != again[reconcile.Seen] || again[reconcile.Seen] == 0 {
			t.Errorf("%s: a second sweep counted %v", name, again)
		}
		if calls := len(b.fake.Requests()); calls > 6 || b.fake.Bulks() != begun+1 || len(b.kept(t)) != downloads+1 {
			t.Errorf("%s: a second sweep made %d calls, %d operations and %d downloads", name, calls, b.fake.Bulks()-begun, len(b.kept(t))-downloads)
		}
	}
}

// Wherever a process ends, and whatever becomes of operations and files, each object counts once, as in a sweep that nothing befell, and nothing is skipped.
func TestSweepByAFileKilledAnywhere(t *testing.T) {
	t.Parallel()
	objects := made{name: "product", n: 60}
	o := shopifyfake.Options{Seed: 4}
	calm := newBulkShop(t, o, objects)
	calm.carry(t, calm.runner(t))
	want := calm.swept(t, calm.ask(t, "product"))
	for name, plan := range map[string]shopifyfake.Bulk{
		"operations": {Others: 2, Running: 3, Failed: 1, Canceled: 1, Expired: 1, Forgotten: 1},
		"files":      {Gone: 1, Cut: 4, Short: 3, Broken: 3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := o
			o.Faults = shopifyfake.Faults{Throttled: 5, Broken: 5, Dropped: 5}
			wild := newBulkShop(t, o, objects)
			wild.fake.SetBulk(plan)
			r, d := wild.runner(t), &dying{}
			traced(t, r, d)
			var attempts atomic.Int64
			wild.Carry(t, "one", 0, map[string]runs.Carry{reconcile.Job: func(ctx context.Context, h *runs.Hold, log *slog.Logger) (runs.Status, error) {
				ctx, cancel := context.WithCancel(ctx)
				defer cancel()
				d.mu.Lock()
				d.left, d.cancel = int(attempts.Add(1))*diesApart(), cancel
				d.mu.Unlock()
				return r.Carry(ctx, h, log)
			}})
			got := wild.swept(t, wild.ask(t, "product"))
			if d := diff.Diff(want, got); d != "" {
				t.Errorf("counts (-undisturbed +killed): %s", d)
			}
			none(t, wild.wrong(t, "product"))
			left := wild.fake.BulkPlan()
			if left.Running = 0; left != (shopifyfake.Bulk{}) || int(attempts.Load())*diesApart() < 12 {
				t.Errorf("%+v has not happened, in %d attempts: nothing is proven", left, attempts.Load())
			}
			resumed := 0
			for _, one := range wild.kept(t) {
				if !strings.HasSuffix(one.Path, " 0") {
					resumed++
				}
			}
			if name != "operations" && resumed == 0 {
				t.Error("no download went on from where another broke off")
			}
		})
	}
}

// A list with nothing on it is whole; what a failed operation has written is not believed, and one that fails again and again ends the run.
func TestFilesThatAreNone(t *testing.T) {
	t.Parallel()
	for text, plan := range map[string]shopifyfake.Bulk{
		"answered that the bulk operation is FAILED": {Failed: 6},
		"ended with ACCESS_DENIED":                   {Denied: 1},
	} {
		b := newBulkShop(t, shopifyfake.Options{Seed: 6, Bulk: plan}, made{name: "product", n: 25})
		b.carry(t, b.runner(t))
		r := b.ended(t, b.ask(t, "product"))
		if r.Status != runs.Failed || !strings.Contains(r.Detail, text) || r.Counts[reconcile.Seen] != 0 || len(b.kept(t)) != 0 {
			t.Errorf("%s with %v after %d downloads: %s", r.Status, r.Counts, len(b.kept(t)), r.Detail)
		}
	}
	b := newBulkShop(t, shopifyfake.Options{Seed: 7, Bulk: shopifyfake.Bulk{Running: 1}})
	b.carry(t, b.runner(t))
	if counts := b.swept(t, b.ask(t, "product")); counts[reconcile.Seen] != 0 || len(b.kept(t)) != 0 {
		t.Errorf("an empty shop counted %v", counts)
	}
}

// Objects of a type that the source describes are swept as any others: all of them, what changed, and what is gone.
func TestSweepOfADescribedType(t *testing.T) {
	t.Parallel()
	b := newBulkShop(t, shopifyfake.Options{Seed: 9})
	b.api.Types, b.api.Bulk = map[string]provider.APIType{"gift_card": {Get: "gift_cards/{id}.json", List: "giftCards", Changed: true}}, nil
	var ids []string
	for range 12 {
		ids = append(ids, b.fake.Create("gift_card"))
	}
	b.fake.Advance(2 * time.Minute)
	b.carry(t, b.runner(t))
	counts := b.swept(t, b.ask(t, "gift_card"))
	if counts[reconcile.Mended] != 12 {
		t.Errorf("a first sweep counted %v", counts)
	}
	b.fake.Change("gift_card", ids[1], true)
	b.fake.Delete("gift_card", ids[2], true)
	b.fake.Advance(2 * time.Minute)
	counts = b.swept(t, b.ask(t, "gift_card"))
	if counts[reconcile.Behind] != 1 || counts[reconcile.Ghosts] != 1 || counts[reconcile.Mended] != 2 || counts[reconcile.Equal] != 10 {
		t.Errorf("a second sweep counted %v", counts)
	}
	none(t, b.wrong(t, "gift_card"))
	if got := b.DB.Rows(t, `SELECT state->>'note' FROM objects WHERE object_id = '`+ids[1]+`'`)[0]; got != "change 1" {
		t.Errorf("the card that changed is %q", got)
	}
}

// A file's size that is not told is not missed, nor is a part of it that the server does not
// give alone.
func TestAFileWithoutSize(t *testing.T) {
	t.Parallel()
	for _, plan := range []shopifyfake.Bulk{{Sizeless: true, Cut: 2}, {Unranged: true, Cut: 4, Short: 3}} {
		b := newBulkShop(t, shopifyfake.Options{Seed: 8, Bulk: plan}, made{name: "product", n: 25})
		b.carry(t, b.runner(t))
		b.swept(t, b.ask(t, "product"))
		none(t, b.wrong(t, "product"))
	}
}

// A file is fetched from where it may be alone: over https, without the key, and where no redirect leads.
func TestDownload(t *testing.T) {
	t.Parallel()
	b := setup(t)
	c, _ := b.client(t, nowhere, nil)
	remote, _ := b.client(t, "https://shop.example", nil)
	asked := 0
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		asked++
		if r.Header.Get("Authorization") != "" {
			t.Errorf("the key was sent to %s", r.Host)
		}
		switch r.URL.Path {
		case "/moved":
			http.Redirect(w, r, "/", http.StatusFound)
		case "/other":
			w.Header().Set("Content-Range", "bytes 0-9/10")
			w.WriteHeader(http.StatusPartialContent)
		case "/gzip":
			w.Header().Set("Content-Encoding", "gzip")
		}
	})
	for _, address := range []string{"ftp://127.0.0.1/x", "http://files.example/x", "https://me@files.example/x", "https:///x", "://"} {
		if _, err := c.Download(t.Context(), "", address, 0); err == nil || !strings.Contains(err.Error(), "https") {
			t.Errorf("%s: %v", address, err)
		}
	}
	if _, err := remote.Download(t.Context(), "", url, 0); err == nil || asked != 0 {
		t.Errorf("an API over https has led to %d calls over http: %v", asked, err)
	}
	for path, want := range map[string]string{"/moved?signature=s3cret": "answered 302", "/other": "another part", "/gzip": "coding"} {
		if _, err := c.Download(t.Context(), "", url+path, 5); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func waits(r *runs.Run) bool { return strings.Contains(r.Detail, "one of the app's bulk operations") }

// However many runs wait for files, others are carried out.
func TestRunsThatWaitKeepNoPlace(t *testing.T) {
	t.Parallel()
	b := newBulkShop(t, shopifyfake.Options{Seed: 5, Bulk: shopifyfake.Bulk{Others: 1 << 20}}, made{name: "product", n: 25}, made{name: "order", n: 5}, made{name: "location", n: 3})
	b.api.Bulk = []string{"product", "order"}
	b.carry(t, b.runner(t))
	for _, objectType := range []string{"product", "order", "product"} {
		b.Until(t, b.ask(t, objectType), waits)
	}
	isDone(t, b.ended(t, b.ask(t, "location")))
}

// While one list waits for its file, since another of the app's operations runs or its own is
// not done, the run says so and is in no trouble, the other types are swept, and nothing is
// appended of that one.
func TestTypesThatWaitKeepNoOther(t *testing.T) {
	t.Parallel()
	b := newBulkShop(t, shopifyfake.Options{Seed: 5, Bulk: shopifyfake.Bulk{Others: 1 << 20}}, made{name: "inventory_item", n: 25}, made{name: "product", n: 15})
	b.api.Bulk = []string{"inventory_item"}
	b.carry(t, b.runner(t))
	run := b.ask(t, "")
	r := b.Until(t, run, func(r *runs.Run) bool {
		return waits(r) && slices.Contains(b.DB.Rows(t, `SELECT object_type FROM sweeps WHERE phase = 'done'`), "product")
	})
	if r.Troubles != 0 || r.Status != runs.Running {
		t.Errorf("%s, put off %d times: %s", r.Status, r.Troubles, r.Detail)
	}
	b.rows(t, `SELECT object_type FROM sweeps WHERE phase <> 'done'`, "inventory_item")
	b.fake.SetBulk(shopifyfake.Bulk{Running: 1 << 20})
	b.Until(t, run, func(r *runs.Run) bool { return strings.Contains(r.Detail, "not there yet: bulk operation 4000000001") })
	b.rows(t, `SELECT event_id FROM events WHERE origin = 'reconcile' AND object_type = 'inventory_item'`)
	b.turn(t, run, runs.Cancelled)
	b.ended(t, run)
}

// A draft order that is gone is believed to be with a key that may read no old orders.
func TestDraftOrdersNeedNoOldOrders(t *testing.T) {
	t.Parallel()
	b := newBulkShop(t, shopifyfake.Options{Seed: 3, Scopes: []string{"read_draft_orders"}}, made{name: "draft_order", n: 20})
	b.api.Bulk = nil
	b.carry(t, b.runner(t))
	r := b.ended(t, b.ask(t, "draft_order"))
	has(t, r, counts{reconcile.Ghosts: 2, reconcile.Left: 0})
}
