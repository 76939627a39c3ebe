package objectscan_test

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/objectscan"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/providerapi"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit/reconciled"
	"github.com/postern-gateway/postern/internal/testkit/sim"
	"github.com/postern-gateway/postern/internal/watermarks"
)

// A sparse list may have many empty pages in a row. A cycle of cursors ends the run, with empty
// pages and with repeated objects.
func TestObjectScan_sparseLists_endOrReportACycle(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		last, back int
		empty      bool
		most       int
	}{
		"long":                 {130, 0, true, 131},
		"cycle of empty pages": {150, 130, true, 450},
		"cycle of two":         {2, 1, true, 40},
		"cycle with objects":   {40, 3, false, 400},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := reconciled.NewEmptyEnv(t, 220, reconciled.LivingObjects)
			r := scanSparsePages(t, b, c.last, c.back, c.empty)
			if c.back == 0 && r.Status != runs.Done || c.back > 0 &&
				(r.Status != runs.Failed || !strings.Contains(r.Detail, "form a cycle")) {
				t.Errorf("%s: %s", r.Status, r.Detail)
			}
			if n := b.API.CallCount("/list"); n > c.most || n <= c.last {
				t.Errorf("after %d pages", n)
			}
		})
	}
}

// The parent of a page may be deleted in the meantime. The list is then restarted, as after an
// expired cursor.
func TestObjectScan_cursorParentMissing_restartsTheList(t *testing.T) {
	t.Parallel()
	b := reconciled.NewMirroredEnv(t, 220, reconciled.LivingObjects)
	begun := 0
	interceptList(b, func(cursor string) *providerapi.Response {
		switch {
		case cursor == "":
			begun++
		case begun == 1: // it is missing from now on, however often it is requested
			return b.MissingResponse()
		}
		return nil
	})
	b.StartReconciler(t, b.Runner())
	r := b.RunToEnd(t, reconcile.Params{Scope: reconcile.Objects})
	if r.Status != runs.Done || r.Counts[objectscan.Equal] != 20 || begun < 2 {
		t.Errorf("%s %v, started %d times: %s", r.Status, r.Counts, begun, r.Detail)
	}
}

// A type that was finished earlier is no progress in a later attempt. A run whose next type keeps
// failing is retried with growing waits.
func TestObjectScan_failureAfterFinishedType_backsOff(t *testing.T) {
	t.Parallel()
	b := reconciled.NewMirroredEnv(t, 220, reconciled.LivingObjects)
	b.API.RespondTo(b.FoundResponse(`{"things":[]}`), "/aaas")
	b.API.RespondTo(reconciled.ErrorResponse(http.StatusTooManyRequests), "/list")
	b.StartTwoTypes(t)
	run := b.StartRun(t, reconcile.Params{Scope: reconcile.Objects})
	b.WaitForRun(t, run, func(r *runs.Run) bool { return r.ConsecutiveFailures >= 3 })
	b.API.RespondTo(nil, "/list")
	r := b.WaitForEnd(t, run)
	reconciled.WantRunDone(t, r)
	reconciled.WantExactCounts(t, r, reconciled.Counts{reconcile.Processed: 20, objectscan.Equal: 20})
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
			b := reconciled.NewMirroredEnv(t, 220, reconciled.LivingObjects)
			left := c.expires
			interceptList(b, func(cursor string) *providerapi.Response {
				next := "a"
				if cursor == "a" {
					if next = "b"; left > 0 {
						left--
						return b.Response(provider.Expired, nil)
					}
				}
				var thing string
				if !c.empty {
					thing = fmt.Sprintf(`{"id":"obj_1","answer":%s}`, b.ObjectBody())
				}
				return b.FoundResponse(fmt.Sprintf(`{"things":[%s],"next":%q}`, thing, next))
			})
			b.StartReconciler(t, b.Runner())
			r := b.RunToEnd(t, reconcile.Params{Scope: reconcile.Objects})
			reconciled.WantRunFailed(t, r, "nothing new")
			wantIncomplete(t, b)
			if n := b.API.CallCount("/list"); n > 200 {
				t.Errorf("after %d pages", n)
			}
		})
	}
}

// A long list that was restarted may repeat known objects up to its earlier length without being a
// cycle: after an expired cursor, or after a process that could not append.
func TestObjectScan_longListRestarted_isNotACycle(t *testing.T) {
	t.Parallel()
	const pages = 120 // more than may list nothing new in a row
	for again, expires := range map[string]int{"rereads 0, restarts 2": 2, "rereads 1, restarts 0": 0} {
		t.Run(again, func(t *testing.T) {
			t.Parallel()
			b := reconciled.NewMirroredEnv(t, 220, reconciled.LivingObjects)
			addUnknownObjects(t, b, "thing", "new_", pages-1) // the last listed object is missing in the mirror
			times := expires
			interceptList(b, func(cursor string) *providerapi.Response {
				var n int
				_, _ = fmt.Sscan(cursor, &n)
				next := fmt.Sprint(n + 1)
				switch {
				case n == pages-1 && times > 0:
					times--
					return b.Response(provider.Expired, nil)
				case n == pages-1:
					next = ""
				}
				return b.FoundResponse(fmt.Sprintf(`{"things":[{"id":"new_%d","answer":%s}],"next":%q}`, n+1,
					b.ObjectBody(), next))
			})
			// only the list contains it
			p := reconciled.PartlyReadable{Unreadable: func(id string) bool { return id == fmt.Sprint("new_", pages) }}
			r := b.RunnerReading(p)
			mute := reconciled.OtherRunner(r)
			mute.Log = b.DB.Role(t, "gateway")
			mute.Log.Close()
			attempts := 0
			startAttempts(t, b, 0, func(ctx context.Context, h *runs.Lease, log *slog.Logger) (runs.Status, error) {
				if attempts++; attempts == 1 && expires == 0 {
					return mute.Execute(ctx, h, log)
				}
				return r.Execute(ctx, h, log)
			})
			reconciled.WantCounts(t, b.WantDone(t, reconcile.Params{Scope: reconcile.Objects}),
				reconciled.Counts{reconcile.Missing: 1, objectscan.Repaired: 1})
			b.WantRows(t, `SELECT 'rereads ' || rereads || ', restarts ' || restarts FROM object_scans`, again)
		})
	}
}

// An unrepaired object counts once, however often its list is restarted. After its repair it does
// not count.
func TestObjectScan_unrepairedAndRestarts_countOnce(t *testing.T) {
	t.Parallel()
	for _, lasting := range []bool{true, false} {
		t.Run(fmt.Sprint(lasting), func(t *testing.T) {
			t.Parallel()
			b := reconciled.NewMirroredEnv(t, 230, reconciled.LivingObjects)
			addEachDrift(t, b)
			restarts, requested := 0, 0
			b.API.Intercept = func(c provider.Call) (*providerapi.Response, error) {
				switch {
				case c.Path == "/list" && c.Query.Get("cursor") == "obj_14" && restarts < 3:
					restarts++
					return b.Response(provider.Expired, nil), nil
				case strings.HasPrefix(c.Path, "/things/obj_3"):
					if requested++; !lasting && requested > 1 {
						return nil, nil
					}
					return b.MissingResponse(), nil
				}
				return nil, nil
			}
			b.StartReconciler(t, b.Runner())
			r := b.Scan(t, reconcile.Params{})
			want := driftCounts(5)
			delete(want, objectscan.MirrorOlder)
			want[objectscan.ContentDiffers]++ // an object that is listed and missing by id counts as this
			if lasting {
				want[objectscan.Repaired], want[objectscan.Unrepaired] = 4, 1
			}
			reconciled.WantExactCounts(t, r, want)
			if restarts != 3 || requested < 2 || b.TypeCompleteUntil(t).IsZero() != lasting {
				t.Errorf("after %d restarts complete until %s", restarts, b.TypeCompleteUntil(t))
			}
		})
	}
}

// If a list is restarted, an object keeps its earlier count: as repaired if it differed and is now
// equal, and as unrepaired if it still differs.
func TestObjectScan_objectListedAgain_keepsItsCount(t *testing.T) {
	t.Parallel()
	repairedOnce := reconciled.Counts{objectscan.Equal: 19, objectscan.MirrorOlder: 1, objectscan.Repaired: 1}
	unrepairedOnce := reconciled.Counts{objectscan.Equal: 19, objectscan.MirrorOlder: 1, objectscan.Unrepaired: 1}
	for name, c := range map[string]struct {
		// unrepaired and drifted are stored of the object, and progress is its count. unread: it
		// cannot be read now. same: it does not differ now.
		unrepaired, drifted bool
		progress            string
		unread, same        bool
		want                map[string]int64
	}{
		"equal, then unrepaired, then equal": {true, false, "unrepaired = 1", false, true,
			reconciled.Counts{objectscan.Equal: 20}},
		"differing and unrepaired, then equal": {true, true, "mirror_older = 1, unrepaired = 1", false, true,
			repairedOnce},
		"equal, then unrepaired, then repaired": {true, false, "unrepaired = 1", false, false,
			reconciled.Counts{objectscan.Equal: 20}},
		"differing and unrepaired, then repaired": {true, true, "mirror_older = 1, unrepaired = 1", false, false,
			repairedOnce},
		"differing and repaired, then unrepaired": {false, true, "mirror_older = 1, repaired = 1", true, false,
			unrepairedOnce},
		"differing and unrepaired, and again unrepaired": {true, true, "mirror_older = 1, unrepaired = 1", true, false,
			unrepairedOnce},
		"equal, then unrepaired": {false, false, "repaired = 0", true, false,
			reconciled.Counts{objectscan.Equal: 20, objectscan.Unrepaired: 1}},
		"differing and repaired, and again repaired": {false, true, "mirror_older = 1, repaired = 1", false, false,
			repairedOnce},
		"equal, then differing and repaired": {false, false, "repaired = 0", false, false,
			reconciled.Counts{objectscan.Equal: 20}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := reconciled.NewMirroredEnv(t, 200, reconciled.LivingObjects)
			if !c.same {
				b.DB.Exec(t, olderStateSQL, "obj_3")
			}
			if c.unread {
				b.API.RespondTo(reconciled.ErrorResponse(http.StatusForbidden), "/things/obj_3")
			}
			run := addStartedScan(t, b)
			b.DB.Exec(t, `INSERT INTO listed_objects (run, object_type, object, unrepaired, drifted)
				VALUES ($1, 'thing', hashtextextended('obj_3', 0), $2, $3)`, run, c.unrepaired, c.drifted)
			b.DB.Exec(t, `UPDATE object_scans SET checked = 1, `+c.progress)
			b.StartReconciler(t, b.Runner())
			want := maps.Clone(c.want)
			want[reconcile.Processed] = 20
			reconciled.WantExactCounts(t, b.WaitForEnd(t, run), want)
		})
	}
}

// sparseLists lists things through other objects that may have none.
type sparseLists struct{ sim.Provider }

func (sparseLists) Lists(*provider.Source, *provider.API, string) map[string]provider.List {
	return map[string]provider.List{"thing": {Sparse: true}}
}

// scanSparsePages scans a list whose cursors are numbers, up to a last one or back to another. One
// page in three contains the same object.
func scanSparsePages(t *testing.T, b *reconciled.Env, last, back int, empty bool) *runs.Run {
	t.Helper()
	b.Deliver(t, b.API.History.Events)
	thing := fmt.Sprintf(`{"id":"obj_1","answer":%s}`, b.ObjectBody())
	interceptList(b, func(cursor string) *providerapi.Response {
		var n int
		_, _ = fmt.Sscan(cursor, &n)
		next, object := fmt.Sprint(n+1), ""
		if n == last && back > 0 {
			next = fmt.Sprint(back)
		} else if n == last {
			next = ""
		}
		if n%3 == 2 && !empty {
			object = thing
		}
		return b.FoundResponse(fmt.Sprintf(`{"things":[%s],"next":%q}`, object, next))
	})
	b.StartReconciler(t, b.RunnerReading(sparseLists{}))
	return b.RunToEnd(t, reconcile.Params{Scope: reconcile.Objects, DryRun: true})
}

// addStartedScan adds a scan that an earlier process has started.
func addStartedScan(t *testing.T, b *reconciled.Env) (run int64) {
	t.Helper()
	run = b.StartRun(t, reconcile.Params{Scope: reconcile.Objects})
	source := b.APISources().All()[b.Source]
	scope := watermarks.Scope(watermarks.CallParts(sim.Provider{}.ListObjects(source.Config, source.API, "", "thing",
		time.Time{}, time.Time{}, "")))
	b.DB.Exec(t, `INSERT INTO object_scans (run, source, account, object_type, started_at, scope, updated_at)
		VALUES ($1, $2, '', 'thing', $3, $4, now())`, run, b.Source, b.API.Time.Truncate(time.Second), scope)
	return run
}
