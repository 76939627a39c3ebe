package objectscan_test

import (
	"context"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/objectscan"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/providerapi"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/githubfake"
	"github.com/postern-gateway/postern/internal/testkit/reconciled"
	"github.com/postern-gateway/postern/internal/testkit/sim"
	"github.com/postern-gateway/postern/internal/watermarks"
)

// A type whose list is rejected is skipped while the key can read something else. A key that was
// revoked after the first type fails the run.
func TestObjectScan_keyRevokedBetweenTypes_failsTheRun(t *testing.T) {
	t.Parallel()
	b := reconciled.NewMirroredEnv(t, 220, reconciled.LivingObjects)
	var revoked, listed atomic.Bool
	b.API.Intercept = func(c provider.Call) (*providerapi.Response, error) {
		switch {
		case revoked.Load() && listed.Load():
			return reconciled.ErrorResponse(http.StatusUnauthorized), nil
		case c.Path == "/aaas":
			listed.Store(true)
			return b.FoundResponse(`{"things":[]}`), nil
		case c.Path == "/list":
			return reconciled.ErrorResponse(http.StatusForbidden), nil
		}
		return nil, nil
	}
	b.StartTwoTypes(t)
	r := b.Scan(t, reconcile.Params{})
	if r.Counts[objectscan.NotListable] != 1 {
		t.Errorf("with a key that may not list one type: %v", r.Counts)
	}
	revoked.Store(true)
	listed.Store(false)
	b.WantFailure(t, reconcile.Params{Scope: reconcile.Objects}, "401")
}

// An object whose retrieval is rejected stays unrepaired, and the others of its type are processed.
// If the key can read nothing any more, the run fails.
func TestObjectScan_rejectedObject_isUnrepaired(t *testing.T) {
	t.Parallel()
	b := reconciled.NewMirroredEnv(t, 220, reconciled.LivingObjects)
	b.CopyObjects(t, "gone", "other_mode")
	var revoked, met atomic.Bool
	b.API.Intercept = func(c provider.Call) (*providerapi.Response, error) {
		switch {
		case c.Path == "/things/other_mode":
			met.Store(revoked.Load())
			return reconciled.ErrorResponse(http.StatusForbidden), nil
		case met.Load():
			return reconciled.ErrorResponse(http.StatusUnauthorized), nil
		}
		return nil, nil
	}
	b.StartReconciler(t, b.Runner())
	r := b.Scan(t, reconcile.Params{Type: "thing"})
	reconciled.WantExactCounts(t, r, reconciled.Counts{reconcile.Processed: 22, objectscan.Equal: 20,
		objectscan.ContentDiffers: 1, objectscan.Unrepaired: 1, objectscan.Orphans: 1, objectscan.Repaired: 1})
	b.WantRows(t, `SELECT object_id FROM objects WHERE deleted`, "gone")
	wantIncomplete(t, b)
	left := b.Unrepaired(t, r.ID)
	if len(left) != 1 || left[0].ObjectID != "other_mode" || !strings.Contains(left[0].Reason, "403") {
		t.Errorf("unrepaired %+v", left)
	}
	revoked.Store(true)
	b.WantFailure(t, reconcile.Params{Scope: reconcile.Objects, Type: "thing"}, "401")
}

// An object whose retrieval fails does not become unrepaired while the whole API fails. The run
// waits until the API works, and repairs the object then.
func TestObjectScan_objectFailsDuringOutage_waitsForTheAPI(t *testing.T) {
	t.Parallel()
	b := reconciled.NewMirroredEnv(t, 220, reconciled.LivingObjects)
	addEachDrift(t, b)
	var down, well atomic.Bool
	b.API.Intercept = func(c provider.Call) (*providerapi.Response, error) {
		if c.Path == "/things/obj_3" && !well.Load() {
			down.Store(true)
		}
		if down.Load() && !well.Load() {
			return reconciled.ErrorResponse(http.StatusBadGateway), nil
		}
		return nil, nil
	}
	b.StartReconciler(t, b.Runner())
	run := b.StartRun(t, reconcile.Params{Scope: reconcile.Objects, Type: "thing"})
	r := b.WaitForRun(t, run, func(r *runs.Run) bool { return strings.Contains(r.Detail, "502") || r.Status.Ended() })
	if r.Status.Ended() {
		t.Errorf("%s: %s", r.Status, r.Detail)
	}
	reconciled.WantValue(t, b, 0, `SELECT coalesce(sum(unrepaired), 0)::int FROM object_scans`)
	well.Store(true)
	reconciled.WantExactCounts(t, b.WaitForEnd(t, run), driftCounts(5))
}

// wantIncomplete checks that the type has no watermark.
func wantIncomplete(t *testing.T, b *reconciled.Env) {
	t.Helper()
	if until := b.TypeCompleteUntil(t); !until.IsZero() {
		t.Errorf("complete until %s", until)
	}
}

// The error for a source whose API lists nothing names the missing setting.
func TestObjectScan_nothingListable_reportsTheSetting(t *testing.T) {
	t.Parallel()
	f := reconciled.NewGitHubEnv(t, githubfake.Options{Start: time.Now().Add(-72 * time.Hour)},
		func(a *provider.API) { a.Repositories = nil })
	f.Fake.OpenIssue(0)
	f.StartThrough(t, f.APISource.Caller)
	for _, objectType := range []string{"", "issue"} {
		f.WantFailure(t, reconcile.Params{Scope: reconcile.Objects, Type: objectType}, "repositories")
	}
}

// A version above the listed one is newer only if the list cannot contain it yet. An object whose
// version was observed long before is refetched, and stays unrepaired.
func TestObjectScan_newerThanCurrentList_isRefetched(t *testing.T) {
	t.Parallel()
	// a list of versions needs a refetch of each object that has had none
	for version, requested := range map[string]int{"": 1, sim.ListsObjectsAndVersions: 1, sim.ListsVersions: 1 + 18} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			b := reconciled.NewEmptyEnv(t, 200, reconciled.LivingObjects)
			b.API.Version = version
			b.Deliver(t, b.API.History.Events)
			b.DB.Exec(t, `UPDATE objects SET state_hash = sha256('new'), exact_hash = sha256('new'), tied_states = '[]',
				version_at = version_at + 10 WHERE object_id IN ('obj_5', 'obj_6')`)
			b.DB.Exec(t, `UPDATE objects SET time_to = $1 WHERE object_id = 'obj_6'`,
				b.API.Time.Add(time.Minute).UnixMicro())
			b.StartReconciler(t, b.Runner())
			r := b.Scan(t, reconcile.Params{})
			reconciled.WantExactCounts(t, r, reconciled.Counts{reconcile.Processed: 20, objectscan.Equal: 18,
				objectscan.MirrorNewer: 1, objectscan.ContentDiffers: 1, objectscan.Unrepaired: 1})
			if made := b.API.CallCount("/things/"); made != requested || !b.TypeCompleteUntil(t).IsZero() {
				t.Errorf("%d objects were requested by id; complete until %s", made, b.TypeCompleteUntil(t))
			}
			if b.Scan(t, reconcile.Params{}); b.API.CallCount("/things/") != requested+1 {
				t.Errorf("%d objects were requested again", b.API.CallCount("/things/")-requested)
			}
		})
	}
}

// A repository that is added later has its old issues listed too, though the issues of the other
// repositories are complete until a later time. A run for a part of that time moves no watermark.
func TestObjectScan_repositoryAddedLater_listsOldIssues(t *testing.T) {
	t.Parallel()
	var api *provider.API
	f := reconciled.NewGitHubEnv(t, githubfake.Options{Start: time.Now().Add(-72 * time.Hour)},
		func(a *provider.API) { api = a; a.Repositories = a.Repositories[1:] })
	f.Fake.SetWebhooks(githubfake.Webhooks{LostUnacknowledged: 100})
	f.Fake.OpenIssue(1)
	old := f.Fake.OpenIssue(0)
	f.Fake.Advance(24 * time.Hour)
	f.StartThrough(t, f.APISource.Caller)
	issues := reconcile.Params{Scope: reconcile.Objects, Type: "issue"}
	reconciled.WantCounts(t, f.WantDone(t, issues), reconciled.Counts{reconcile.Missing: 1})
	api.Repositories = append(f.Fake.Repositories()[:1:1], api.Repositories...)
	f.Fake.Advance(24 * time.Hour)
	part := issues
	part.Since = f.Fake.Now().Add(-time.Hour)
	for _, o := range []reconcile.Params{part, issues} {
		f.WantDone(t, o)
	}
	reconciled.WantValue(t, f.Env, 1, `SELECT count(*) FROM objects WHERE object_type = 'issue' AND object_id = $1`,
		old)
	if r := f.RunToEnd(t, issues); r.Counts[reconcile.Processed] != 0 {
		t.Errorf("nothing has changed since, and %v was listed", r.Counts)
	}
}

// A process that ends after it has recorded the differences and before it has repaired them loses
// the objects of the list. The list is read again, and each object counts once.
func TestObjectScan_killedBeforeRepair_readsTheListAgain(t *testing.T) {
	t.Parallel()
	f := reconciled.NewGitHubEnv(t, githubfake.Options{Seed: 8, Start: time.Now().Add(-2 * time.Hour), Objects: 60,
		Comments: 20, Webhooks: githubfake.Webhooks{LostUnacknowledged: 100}}, nil)
	f.Fake.RunSteps(150)
	f.Fake.Advance(time.Minute)
	r := f.Runner()
	attempts := 0
	startAttempts(t, f.Env, 0, func(ctx context.Context, h *runs.Lease, log *slog.Logger) (runs.Status, error) {
		attempt := reconciled.OtherRunner(r)
		if attempts++; attempts <= 2 {
			attempt.Log = f.DB.Role(t, "operator") // this role may not append
		}
		return attempt.Execute(ctx, h, log)
	})
	got := f.RunToEnd(t, reconcile.Params{Scope: reconcile.Objects, Type: "pull_request"})
	n := f.Count(t, `SELECT count(*) FROM objects WHERE object_type = 'pull_request' AND NOT deleted`)
	if n == 0 || attempts < 3 {
		t.Fatalf("%d pull requests after %d attempts: the test checks nothing", n, attempts)
	}
	reconciled.WantRunDone(t, got)
	reconciled.WantExactCounts(t, got, reconciled.Counts{reconcile.Processed: n, reconcile.Missing: n,
		objectscan.Repaired: n})
}

// A type whose list cannot be read does not stop the other types. The run reports the reason.
func TestObjectScan_listFails_stopsNoOtherType(t *testing.T) {
	t.Parallel()
	b := reconciled.NewMirroredEnv(t, 220, reconciled.LivingObjects)
	none := b.MissingResponse()
	none.Verdict.Detail = "no such list"
	b.API.RespondTo(none, "/aaas")
	b.StartTwoTypes(t)
	scan := func(reason string) {
		t.Helper()
		before := b.TypeCompleteUntil(t)
		b.API.SetTime(b.API.Time.Add(time.Hour))
		r := b.RunToEnd(t, reconcile.Params{Scope: reconcile.Objects})
		reconciled.WantCounts(t, r, reconciled.Counts{objectscan.Equal: 20, objectscan.NotListable: 1})
		if report := b.Report(t, r.ID); !strings.Contains(report.Types[0].Reason, reason) {
			t.Errorf("%+v", report)
		}
		if !b.TypeCompleteUntil(t).After(before) {
			t.Errorf("complete until %s after %s", b.TypeCompleteUntil(t), before)
		}
	}
	scan("no such list")
	b.API.InterceptWith(func(c provider.Call) (*providerapi.Response, error) {
		if c.Path == "/aaas" {
			panic("a response without a reader")
		}
		return nil, nil
	})
	scan("a response without a reader")
}

// A type whose list is rejected is recorded with the reason, and is requested once in a run. The
// watermarks show the reason until a run lists the type again.
func TestObjectScan_notListableType_isReported(t *testing.T) {
	t.Parallel()
	b := reconciled.NewMirroredEnv(t, 220, reconciled.LivingObjects)
	empty := b.FoundResponse(`{"things":[]}`)
	b.API.RespondTo(empty, "/aaas")
	b.StartTwoTypes(t)
	b.Scan(t, reconcile.Params{})
	wantNotListable(t, b, "type aaa", 0, "")
	b.API.RespondTo(reconciled.ErrorResponse(http.StatusForbidden), "/aaas")
	b.API.RespondTo(reconciled.ErrorResponse(http.StatusTooManyRequests), "/list")
	requested := b.API.CallCount("/aaas")
	run := b.StartRun(t, reconcile.Params{Scope: reconcile.Objects})
	b.WaitForRun(t, run, func(r *runs.Run) bool { return r.ConsecutiveFailures > 1 || r.Status.Ended() })
	b.API.RespondTo(nil, "/list")
	if r := b.WaitForEnd(t, run); r.Status != runs.Done || r.Counts[objectscan.NotListable] != 1 ||
		b.API.CallCount("/aaas") != requested+1 {
		t.Errorf("%s %v, its list was requested %d times: %s", r.Status, r.Counts, b.API.CallCount("/aaas")-requested,
			r.Detail)
	}
	report := b.Report(t, run)
	if len(report.Types) != 2 || report.Types[0].Phase != objectscan.PhaseNotListable ||
		!strings.Contains(report.Types[0].Reason, "403") || report.Types[1].Phase != "done" ||
		report.Types[1].Reason != "" {
		t.Errorf("%+v", report)
	}
	wantNotListable(t, b, "type aaa", run, "403")
	wantNotListable(t, b, "type thing", 0, "")
	b.API.RespondTo(empty, "/aaas")
	b.Scan(t, reconcile.Params{})
	wantNotListable(t, b, "type aaa", 0, "")
}

// A key that may list no type fails the run, also after another process has recorded some of the
// types.
func TestObjectScan_keyListsNothing_failsTheRun(t *testing.T) {
	t.Parallel()
	b := reconciled.NewMirroredEnv(t, 220, reconciled.LivingObjects)
	b.API.RespondTo(reconciled.ErrorResponse(http.StatusForbidden), "/aaas")
	b.API.RespondTo(reconciled.ErrorResponse(http.StatusTooManyRequests), "/list")
	b.StartTwoTypes(t)
	run := b.StartRun(t, reconcile.Params{Scope: reconcile.Objects})
	b.WaitForRun(t, run, reconciled.EndedOrDeferred)
	b.API.RespondTo(reconciled.ErrorResponse(http.StatusForbidden), "/list")
	reconciled.WantRunFailed(t, b.WaitForEnd(t, run), "403")
}

// wantNotListable checks which run could not list a type, 0 for none, and a part of its reason.
func wantNotListable(t *testing.T, b *reconciled.Env, what string, run int64, reason string) {
	t.Helper()
	page, err := watermarks.List(t.Context(), b.OperatorPool, b.Source, "", 10)
	testkit.Must(t, err)
	all := slices.DeleteFunc(page.Items, func(p watermarks.Completeness) bool { return p.Subject != what })
	if len(all) != 1 || all[0].NotListableRun != run || !strings.Contains(all[0].NotListableReason, reason) ||
		reason == "" && all[0].NotListableReason != "" {
		t.Errorf("the watermarks of %s are %+v, want run %d and the reason %q", what, all, run, reason)
	}
}
