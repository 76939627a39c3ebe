package reconcile_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/objectscan"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/providerapi"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit/githubfake"
	"github.com/postern-gateway/postern/internal/testkit/restfake"
	"github.com/postern-gateway/postern/internal/testkit/shopifyfake"
	"github.com/postern-gateway/postern/internal/testkit/sim"
	"github.com/postern-gateway/postern/internal/watermarks"
)

// sparseLists lists things through other objects that may have none.
type sparseLists struct{ sim.Provider }

func (sparseLists) Lists(*provider.Source, *provider.API, string) map[string]provider.List {
	return map[string]provider.List{"thing": {Sparse: true}}
}

// scanSparsePages scans a list whose cursors are numbers, up to a last one or back to another. One
// page in three contains the same object.
func (b *testEnv) scanSparsePages(t *testing.T, last, back int, empty bool) *runs.Run {
	t.Helper()
	b.deliver(t, b.api.history.Events)
	thing := fmt.Sprintf(`{"id":"obj_1","answer":%s}`, b.objectBody())
	b.api.intercept = func(call provider.Call) (*providerapi.Response, error) {
		if call.Path != "/list" {
			return nil, nil
		}
		var n int
		_, _ = fmt.Sscan(call.Query.Get("cursor"), &n)
		next, object := fmt.Sprint(n+1), ""
		if n == last && back > 0 {
			next = fmt.Sprint(back)
		} else if n == last {
			next = ""
		}
		if n%3 == 2 && !empty {
			object = thing
		}
		return b.response(provider.Found, fmt.Appendf(nil, `{"things":[%s],"next":%q}`, object, next)), nil
	}
	b.startReconciler(t, b.runnerWith(func(s *providerapi.Source) {
		s.Provider, s.Reader = sparseLists{}, sparseLists{}
	}))
	return b.runToEnd(t, reconcile.Params{Scope: reconcile.Objects, DryRun: true})
}

// A sparse list may have many empty pages in a row. A cycle of cursors ends the run, with empty
// pages and with repeated objects.
func TestObjectScan_sparseLists_endOrReportACycle(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		last, back int
		empty      bool
		most       int
	}{
		"long":                 {350, 0, true, 351},
		"cycle of empty pages": {150, 130, true, 450},
		"cycle of two":         {2, 1, true, 40},
		"cycle with objects":   {40, 3, false, 400},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newEmptyEnv(t, 220, livingObjects)
			r := b.scanSparsePages(t, c.last, c.back, c.empty)
			if c.back == 0 && r.Status != runs.Done || c.back > 0 &&
				(r.Status != runs.Failed || !strings.Contains(r.Detail, "form a cycle")) {
				t.Errorf("%s: %s", r.Status, r.Detail)
			}
			if n := b.api.callCount("/list"); n > c.most || n <= c.last {
				t.Errorf("after %d pages", n)
			}
		})
	}
}

// The parent of a page may be deleted in the meantime. The list is then restarted, as after an
// expired cursor.
func TestObjectScan_cursorParentMissing_restartsTheList(t *testing.T) {
	t.Parallel()
	b := newMirroredEnv(t, 220, livingObjects)
	begun := 0
	b.api.intercept = func(call provider.Call) (*providerapi.Response, error) {
		switch {
		case call.Path != "/list":
		case call.Query.Get("cursor") == "":
			begun++
		case begun == 1: // it is missing from now on, however often it is requested
			return b.missingResponse(), nil
		}
		return nil, nil
	}
	b.startReconciler(t, b.runner())
	r := b.runToEnd(t, reconcile.Params{Scope: reconcile.Objects})
	if r.Status != runs.Done || r.Counts[objectscan.Equal] != 20 || begun < 2 {
		t.Errorf("%s %v, started %d times: %s", r.Status, r.Counts, begun, r.Detail)
	}
}

// A type that was finished earlier is no progress in a later attempt. A run whose next type keeps
// failing is retried with growing waits.
func TestObjectScan_failureAfterFinishedType_backsOff(t *testing.T) {
	t.Parallel()
	b := newMirroredEnv(t, 220, livingObjects)
	b.api.respondTo(b.foundResponse(`{"things":[]}`), "/aaas")
	b.api.respondTo(errorResponse(http.StatusTooManyRequests), "/list")
	b.startAAAAndThing(t)
	run := b.startRun(t, reconcile.Params{Scope: reconcile.Objects})
	b.WaitForRun(t, run, func(r *runs.Run) bool { return r.ConsecutiveFailures >= 3 })
	b.api.respondTo(nil, "/list")
	r := b.waitForEnd(t, run)
	wantExactCounts(t, r, counts{reconcile.Processed: 20, objectscan.Equal: 20})
	if r.Status != runs.Done {
		t.Errorf("%s: %s", r.Status, r.Detail)
	}
}

// A cycle of cursors ends the run with a description, after a restart and with empty pages.
func TestObjectScan_cursorCycle_failsTheRun(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		empty   bool
		expires int
	}{{"objects, restarted", false, 1}, {"nothing", true, 0}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := newMirroredEnv(t, 220, livingObjects)
			left := c.expires
			b.api.intercept = func(call provider.Call) (*providerapi.Response, error) {
				if call.Path != "/list" {
					return nil, nil
				}
				next := "a"
				if call.Query.Get("cursor") == "a" {
					if next = "b"; left > 0 {
						left--
						return b.response(provider.Expired, nil), nil
					}
				}
				var thing string
				if !c.empty {
					thing = fmt.Sprintf(`{"id":"obj_1","answer":%s}`, b.objectBody())
				}
				return b.response(provider.Found, fmt.Appendf(nil, `{"things":[%s],"next":%q}`, thing, next)), nil
			}
			b.startReconciler(t, b.runner())
			r := b.runToEnd(t, reconcile.Params{Scope: reconcile.Objects})
			if r.Status != runs.Failed || !strings.Contains(r.Detail, "nothing new") ||
				!b.typeCompleteUntil(t).IsZero() {
				t.Errorf("%s: %s; complete until %s", r.Status, r.Detail, b.typeCompleteUntil(t))
			}
			if n := b.api.callCount("/list"); n > 200 {
				t.Errorf("after %d pages", n)
			}
		})
	}
}

// A long list that was restarted may repeat known objects up to its earlier length without being a
// cycle: after an expired cursor, or after a process that could not append.
func TestObjectScan_longListRestarted_isNotACycle(t *testing.T) {
	t.Parallel()
	const pages = 250
	for again, expires := range map[string]int{"rereads 0, restarts 2": 2, "rereads 1, restarts 0": 0} {
		t.Run(again, func(t *testing.T) {
			t.Parallel()
			b := newMirroredEnv(t, 220, livingObjects)
			b.addUnknownObjects(t, "thing", "new_", pages-1) // the last listed object is missing in the mirror
			times := expires
			b.api.intercept = func(call provider.Call) (*providerapi.Response, error) {
				if call.Path != "/list" {
					return nil, nil
				}
				var n int
				_, _ = fmt.Sscan(call.Query.Get("cursor"), &n)
				next := fmt.Sprint(n + 1)
				switch {
				case n == pages-1 && times > 0:
					times--
					return b.response(provider.Expired, nil), nil
				case n == pages-1:
					next = ""
				}
				return b.foundResponse(fmt.Sprintf(`{"things":[{"id":"new_%d","answer":%s}],"next":%q}`, n+1,
					b.objectBody(), next)), nil
			}
			// only the list contains it
			p := partlyReadable{unreadable: func(id string) bool { return id == fmt.Sprint("new_", pages) }}
			r := b.runnerWith(func(s *providerapi.Source) { s.Provider, s.Reader = p, p })
			mute := otherRunner(r)
			mute.Log = b.DB.Role(t, "gateway")
			mute.Log.Close()
			attempts := 0
			b.StartRunner(t, "one", 0, map[string]runs.Executor{reconcile.Job: func(ctx context.Context, h *runs.Lease,
				log *slog.Logger) (runs.Status, error) {
				if attempts++; attempts == 1 && expires == 0 {
					return mute.Execute(ctx, h, log)
				}
				return r.Execute(ctx, h, log)
			}})
			wantCounts(t, b.wantDone(t, reconcile.Params{Scope: reconcile.Objects}),
				counts{reconcile.Missing: 1, objectscan.Repaired: 1})
			b.wantRows(t, `SELECT 'rereads ' || rereads || ', restarts ' || restarts FROM object_scans`, again)
		})
	}
}

// Lists that may have many empty pages in a row are marked: lists of child objects, of GitHub
// issues, which are listed with pull requests, and of configured APIs.
func TestLists_ofObjectsBelowOthers_areSparse(t *testing.T) {
	t.Parallel()
	described := func(edits ...string) *providerapi.Source {
		return newRESTProvider(t, restfake.Options{}, edits).source(t)
	}
	hub := newGitHubProvider(t, githubfake.Options{}, false).source(t)
	shop := newShopifyProvider(t, shopifyfake.Options{}).source(t)
	for _, c := range []struct {
		source     *providerapi.Source
		objectType string
		want       bool
	}{
		{shop, "fulfillment", true}, {shop, "inventory_level", true}, {shop, "product", false}, {hub, "issue", true},
		{hub, "release", false},
		{described(), "thing", false}, {described("item: thing\n", "item: thing\n            sparse: true\n"), "thing",
			true},
	} {
		lister := c.source.Reader.(provider.ObjectLister)
		if l, ok := lister.Lists(c.source.Config, c.source.API, c.source.Config.Account)[c.objectType]; !ok ||
			l.Sparse != c.want {
			t.Errorf("%s of %s: %+v", c.objectType, c.source.Config.Name, l)
		}
	}
}

// An unrepaired object counts once, however often its list is restarted. After its repair it does
// not count.
func TestObjectScan_unrepairedAndRestarts_countOnce(t *testing.T) {
	t.Parallel()
	for _, lasting := range []bool{true, false} {
		t.Run(fmt.Sprint(lasting), func(t *testing.T) {
			t.Parallel()
			b := newMirroredEnv(t, 230, livingObjects)
			b.addEachDrift(t)
			restarts, requested := 0, 0
			b.api.intercept = func(c provider.Call) (*providerapi.Response, error) {
				switch {
				case c.Path == "/list" && c.Query.Get("cursor") == "obj_14" && restarts < 3:
					restarts++
					return b.response(provider.Expired, nil), nil
				case strings.HasPrefix(c.Path, "/things/obj_3"):
					if requested++; !lasting && requested > 1 {
						return nil, nil
					}
					return b.missingResponse(), nil
				}
				return nil, nil
			}
			b.startReconciler(t, b.runner())
			r := b.scan(t, reconcile.Params{})
			want := driftCounts(5)
			delete(want, objectscan.MirrorOlder)
			want[objectscan.ContentDiffers]++ // an object that is listed and missing by id counts as this
			if lasting {
				want[objectscan.Repaired], want[objectscan.Unrepaired] = 4, 1
			}
			wantExactCounts(t, r, want)
			if restarts != 3 || requested < 2 || b.typeCompleteUntil(t).IsZero() != lasting {
				t.Errorf("after %d restarts complete until %s", restarts, b.typeCompleteUntil(t))
			}
		})
	}
}

// addStartedScan adds a scan that an earlier process has started.
func (b *testEnv) addStartedScan(t *testing.T) (run int64) {
	t.Helper()
	run = b.startRun(t, reconcile.Params{Scope: reconcile.Objects})
	source := b.sources().All()[b.Source]
	scope := watermarks.Scope(watermarks.CallParts(sim.Provider{}.ListObjects(source.Config, source.API, "", "thing",
		time.Time{}, time.Time{}, "")))
	b.DB.Exec(t, `INSERT INTO object_scans (run, source, account, object_type, started_at, scope, updated_at)
		VALUES ($1, $2, '', 'thing', $3, $4, now())`, run, b.Source, b.api.now.Truncate(time.Second), scope)
	return run
}

// If a list is restarted, an object keeps its earlier count: as repaired if it differed and is now
// equal, and as unrepaired if it still differs.
func TestObjectScan_objectListedAgain_keepsItsCount(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		// unrepaired and drifted are stored of the object, and progress is its count. unread: it
		// cannot be read now. same: it does not differ now.
		unrepaired, drifted bool
		progress            string
		unread, same        bool
		want                map[string]int64
	}{
		"equal, then unrepaired, then equal": {true, false, "unrepaired = 1", false, true,
			counts{objectscan.Equal: 20}},
		"differing and unrepaired, then equal": {true, true, "mirror_older = 1, unrepaired = 1", false, true,
			counts{objectscan.Equal: 19, objectscan.MirrorOlder: 1, objectscan.Repaired: 1}},
		"equal, then unrepaired, then repaired": {true, false, "unrepaired = 1", false, false,
			counts{objectscan.Equal: 20}},
		"differing and unrepaired, then repaired": {true, true, "mirror_older = 1, unrepaired = 1", false, false,
			counts{objectscan.Equal: 19, objectscan.MirrorOlder: 1, objectscan.Repaired: 1}},
		"differing and repaired, then unrepaired": {false, true, "mirror_older = 1, repaired = 1", true, false,
			counts{objectscan.Equal: 19, objectscan.MirrorOlder: 1, objectscan.Unrepaired: 1}},
		"differing and unrepaired, and again unrepaired": {true, true, "mirror_older = 1, unrepaired = 1", true, false,
			counts{objectscan.Equal: 19, objectscan.MirrorOlder: 1, objectscan.Unrepaired: 1}},
		"equal, then unrepaired": {false, false, "repaired = 0", true, false,
			counts{objectscan.Equal: 20, objectscan.Unrepaired: 1}},
		"differing and repaired, and again repaired": {false, true, "mirror_older = 1, repaired = 1", false, false,
			counts{objectscan.Equal: 19, objectscan.MirrorOlder: 1, objectscan.Repaired: 1}},
		"equal, then differing and repaired": {false, false, "repaired = 0", false, false,
			counts{objectscan.Equal: 20}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newMirroredEnv(t, 200, livingObjects)
			if !c.same {
				b.DB.Exec(t, `UPDATE objects SET state = '{"name": "old"}', state_hash = sha256('old'),
					exact_hash = sha256('old'), tied_states = '[]', version_at = version_at - 10
						WHERE object_id = 'obj_3'`)
			}
			if c.unread {
				b.api.respondTo(errorResponse(http.StatusForbidden), "/things/obj_3")
			}
			run := b.addStartedScan(t)
			b.DB.Exec(t, `INSERT INTO listed_objects (run, object_type, object, unrepaired, drifted)
				VALUES ($1, 'thing', hashtextextended('obj_3', 0), $2, $3)`, run, c.unrepaired, c.drifted)
			b.DB.Exec(t, `UPDATE object_scans SET checked = 1, `+c.progress)
			b.startReconciler(t, b.runner())
			c.want[reconcile.Processed] = 20
			wantExactCounts(t, b.waitForEnd(t, run), c.want)
		})
	}
}
