package reconcile_test

import (
	"context"
	"log/slog"
	"math"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/objectscan"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/providerapi"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit/githubfake"
	"github.com/postern-gateway/postern/internal/testkit/sim"
	"github.com/postern-gateway/postern/internal/watermarks"
)

// otherAndThing lists two types: "another", at /others, and "thing".
type otherAndThing struct{ sim.Provider }

func (otherAndThing) Lists(*provider.Source, *provider.API, string) map[string]provider.List {
	return map[string]provider.List{"another": {}, "thing": {}}
}

func (p otherAndThing) ListObjects(src *provider.Source, api *provider.API, account, objectType string, since,
	until time.Time, cursor string) provider.Call {
	c := p.Provider.ListObjects(src, api, account, objectType, since, until, cursor)
	if objectType == "another" {
		c.Path = "/others"
	}
	return c
}

// foundResponse is a response of the environment's API with this body.
func (b *testEnv) foundResponse(body string) *providerapi.Response {
	return &providerapi.Response{Verdict: provider.Verdict{Kind: provider.Found}, Date: b.api.now.Truncate(time.Second),
		Body: []byte(body)}
}

// startOtherAndThing starts runs that scan two types.
func (b *testEnv) startOtherAndThing(t *testing.T) {
	t.Helper()
	b.startReconciler(t, b.runnerWith(func(s *providerapi.Source) {
		s.Provider, s.Reader = otherAndThing{}, otherAndThing{}
	}))
}

// copyObjects adds objects to the mirror that the provider does not have.
func (b *testEnv) copyObjects(t *testing.T, ids ...string) {
	t.Helper()
	b.DB.Exec(t, `INSERT INTO objects SELECT (o).* FROM unnest($1::text[]) AS d(id),
		LATERAL (SELECT jsonb_populate_record(o, jsonb_build_object('object_id', d.id)) AS o FROM objects o
			WHERE object_id = 'obj_6') o`, ids)
}

// A type whose list is rejected is skipped while the key can read something else. A key that was
// revoked after the first type fails the run.
func TestObjectScan_keyRevokedBetweenTypes_failsTheRun(t *testing.T) {
	t.Parallel()
	b := newMirroredEnv(t, 220, livingObjects)
	var revoked, listed atomic.Bool
	b.api.intercept = func(c provider.Call) (*providerapi.Response, error) {
		switch {
		case revoked.Load() && listed.Load():
			return errorResponse(http.StatusUnauthorized), nil
		case c.Path == "/others":
			listed.Store(true)
			return b.foundResponse(`{"things":[]}`), nil
		case c.Path == "/list":
			return errorResponse(http.StatusForbidden), nil
		}
		return nil, nil
	}
	b.startOtherAndThing(t)
	r := b.scan(t, reconcile.Params{})
	if r.Counts[objectscan.NotListable] != 1 {
		t.Errorf("with a key that may not list one type: %v", r.Counts)
	}
	revoked.Store(true)
	listed.Store(false)
	b.wantFailure(t, reconcile.Params{Scope: reconcile.Objects}, "401")
}

// An object whose retrieval is rejected stays unrepaired, and the others of its type are processed.
// If the key can read nothing any more, the run fails.
func TestObjectScan_rejectedObject_isUnrepaired(t *testing.T) {
	t.Parallel()
	b := newMirroredEnv(t, 220, livingObjects)
	b.copyObjects(t, "gone", "other_mode")
	var revoked, met atomic.Bool
	b.api.intercept = func(c provider.Call) (*providerapi.Response, error) {
		switch {
		case c.Path == "/things/other_mode":
			met.Store(revoked.Load())
			return errorResponse(http.StatusForbidden), nil
		case met.Load():
			return errorResponse(http.StatusUnauthorized), nil
		}
		return nil, nil
	}
	b.startReconciler(t, b.runner())
	r := b.scan(t, reconcile.Params{Type: "thing"})
	wantExactCounts(t, r, counts{reconcile.Processed: 22, objectscan.Equal: 20, objectscan.ContentDiffers: 1,
		objectscan.Unrepaired: 1, objectscan.Orphans: 1, objectscan.Repaired: 1})
	if deleted := b.DB.QueryStrings(t, `SELECT object_id FROM objects WHERE deleted`); len(deleted) != 1 ||
		deleted[0] != "gone" || !b.typeCompleteUntil(t).IsZero() {
		t.Errorf("deleted are %q, complete until %s", deleted, b.typeCompleteUntil(t))
	}
	left := b.unrepaired(t, r.ID)
	if len(left) != 1 || left[0].ObjectID != "other_mode" || !strings.Contains(left[0].Reason, "403") {
		t.Errorf("unrepaired %+v", left)
	}
	revoked.Store(true)
	b.wantFailure(t, reconcile.Params{Scope: reconcile.Objects, Type: "thing"}, "401")
}

// An object whose retrieval fails does not become unrepaired while the whole API fails. The run
// waits until the API works, and repairs the object then.
func TestObjectScan_objectFailsDuringOutage_waitsForTheAPI(t *testing.T) {
	t.Parallel()
	b := newMirroredEnv(t, 220, livingObjects)
	b.addEachDrift(t)
	var down, well atomic.Bool
	b.api.intercept = func(c provider.Call) (*providerapi.Response, error) {
		if c.Path == "/things/obj_3" && !well.Load() {
			down.Store(true)
		}
		if down.Load() && !well.Load() {
			return errorResponse(http.StatusBadGateway), nil
		}
		return nil, nil
	}
	b.startReconciler(t, b.runner())
	run := b.startRun(t, reconcile.Params{Scope: reconcile.Objects, Type: "thing"})
	r := b.WaitForRun(t, run, func(r *runs.Run) bool { return strings.Contains(r.Detail, "502") || r.Status.Ended() })
	if n := queryOne[int64](t, b, `SELECT coalesce(sum(unrepaired), 0) FROM object_scans`); r.Status.Ended() || n != 0 {
		t.Errorf("%s with %d unrepaired: %s", r.Status, n, r.Detail)
	}
	well.Store(true)
	wantExactCounts(t, b.waitForEnd(t, run), driftCounts(5))
}

// The error for a source whose API lists nothing names the missing setting.
func TestObjectScan_nothingListable_reportsTheSetting(t *testing.T) {
	t.Parallel()
	f := newGitHubEnv(t, githubfake.Options{Start: time.Now().Add(-72 * time.Hour)},
		func(a *provider.API) { a.Repositories = nil })
	f.fake.OpenIssue(0)
	f.startThrough(t, f.source.Caller)
	for _, objectType := range []string{"", "issue"} {
		f.wantFailure(t, reconcile.Params{Scope: reconcile.Objects, Type: objectType}, "repositories")
	}
}

// A period that ends before it begins is rejected.
func TestObjectScan_untilBeforeSince_isRejected(t *testing.T) {
	t.Parallel()
	b := newMirroredEnv(t, 240, livingObjects)
	b.api.version = sim.ListsByChange
	b.startReconciler(t, b.runner())
	b.scan(t, reconcile.Params{})
	b.wantFailure(t, reconcile.Params{Scope: reconcile.Objects, Until: b.typeCompleteUntil(t).Add(-time.Hour)}, "since")
}

// listNoEvents makes the API list no events any more.
func (b *testEnv) listNoEvents(list string) {
	b.api.interceptWith(func(c provider.Call) (*providerapi.Response, error) {
		switch {
		case c.Path == "/":
			return b.foundResponse(string(b.api.history.EventsPage(math.MaxInt64-1, math.MaxInt64, "", 1))), nil
		case c.Path == "/list" && list != "":
			return b.foundResponse(list), nil
		}
		return nil, nil
	})
}

// If the API lists no event any more, it still knows an event that a webhook brought.
func TestAccountCheck_scanWithoutEvents_usesWebhookEvents(t *testing.T) {
	t.Parallel()
	b := newMirroredEnv(t, 220, livingObjects)
	b.copyObjects(t, "gone")
	b.listNoEvents("")
	b.startReconciler(t, b.runner())
	wantExactCounts(t, b.scan(t, reconcile.Params{}),
		counts{reconcile.Processed: 21, objectscan.Equal: 20, objectscan.Orphans: 1, objectscan.Repaired: 1})
}

// A version above the listed one is newer only if the list cannot contain it yet. An object whose
// version was observed long before is refetched, and stays unrepaired.
func TestObjectScan_newerThanCurrentList_isRefetched(t *testing.T) {
	t.Parallel()
	// a list of versions needs a refetch of each object that has had none
	for version, requested := range map[string]int{"": 1, sim.ListsObjectsAndVersions: 1, sim.ListsVersions: 1 + 18} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			b := newEmptyEnv(t, 200, livingObjects)
			b.api.version = version
			b.deliver(t, b.api.history.Events)
			b.DB.Exec(t, `UPDATE objects SET state_hash = sha256('new'), exact_hash = sha256('new'), tied_states = '[]',
				version_at = version_at + 10 WHERE object_id IN ('obj_5', 'obj_6')`)
			b.DB.Exec(t, `UPDATE objects SET time_to = $1 WHERE object_id = 'obj_6'`,
				b.api.now.Add(time.Minute).UnixMicro())
			b.startReconciler(t, b.runner())
			r := b.scan(t, reconcile.Params{})
			wantExactCounts(t, r, counts{reconcile.Processed: 20, objectscan.Equal: 18, objectscan.MirrorNewer: 1,
				objectscan.ContentDiffers: 1, objectscan.Unrepaired: 1})
			if made := b.api.callCount("/things/"); made != requested || !b.typeCompleteUntil(t).IsZero() {
				t.Errorf("%d objects were requested by id; complete until %s", made, b.typeCompleteUntil(t))
			}
			if b.scan(t, reconcile.Params{}); b.api.callCount("/things/") != requested+1 {
				t.Errorf("%d objects were requested again", b.api.callCount("/things/")-requested)
			}
		})
	}
}

// A repository that is added later has its old issues listed too, though the issues of the other
// repositories are complete until a later time. A run for a part of that time moves no watermark.
func TestObjectScan_repositoryAddedLater_listsOldIssues(t *testing.T) {
	t.Parallel()
	var api *provider.API
	f := newGitHubEnv(t, githubfake.Options{Start: time.Now().Add(-72 * time.Hour)},
		func(a *provider.API) { api = a; a.Repositories = a.Repositories[1:] })
	f.fake.SetWebhooks(githubfake.Webhooks{LostUnacknowledged: 100})
	f.fake.OpenIssue(1)
	old := f.fake.OpenIssue(0)
	f.fake.Advance(24 * time.Hour)
	f.startThrough(t, f.source.Caller)
	issues := reconcile.Params{Scope: reconcile.Objects, Type: "issue"}
	wantCounts(t, f.wantDone(t, issues), counts{reconcile.Missing: 1})
	api.Repositories = append(f.fake.Repositories()[:1:1], api.Repositories...)
	f.fake.Advance(24 * time.Hour)
	part := issues
	part.Since = f.fake.Now().Add(-time.Hour)
	for _, o := range []reconcile.Params{part, issues} {
		f.wantDone(t, o)
	}
	wantValue(t, f.testEnv, 1, `SELECT count(*) FROM objects WHERE object_type = 'issue' AND object_id = $1`, old)
	if r := f.runToEnd(t, issues); r.Counts[reconcile.Processed] != 0 {
		t.Errorf("nothing has changed since, and %v was listed", r.Counts)
	}
}

// A process that ends after it has recorded the differences and before it has repaired them loses
// the objects of the list. The list is read again, and each object counts once.
func TestObjectScan_killedBeforeRepair_readsTheListAgain(t *testing.T) {
	t.Parallel()
	f := newGitHubEnv(t, githubfake.Options{Seed: 8, Start: time.Now().Add(-2 * time.Hour), Objects: 60, Comments: 20,
		Webhooks: githubfake.Webhooks{LostUnacknowledged: 100}}, nil)
	f.fake.RunSteps(150)
	f.fake.Advance(time.Minute)
	r := f.runner()
	attempts := 0
	f.StartRunner(t, "one", 0, map[string]runs.Executor{reconcile.Job: func(ctx context.Context, h *runs.Lease,
		log *slog.Logger) (runs.Status, error) {
		attempt := otherRunner(r)
		if attempts++; attempts <= 2 {
			attempt.Log = f.DB.Role(t, "operator") // this role may not append
		}
		return attempt.Execute(ctx, h, log)
	}})
	got := f.runToEnd(t, reconcile.Params{Scope: reconcile.Objects, Type: "pull_request"})
	n := f.count(t, `SELECT count(*) FROM objects WHERE object_type = 'pull_request' AND NOT deleted`)
	if n == 0 || attempts < 3 {
		t.Fatalf("%d pull requests after %d attempts: the test checks nothing", n, attempts)
	}
	if got.Status != runs.Done {
		t.Errorf("%s: %s", got.Status, got.Detail)
	}
	wantExactCounts(t, got, counts{reconcile.Processed: n, reconcile.Missing: n, objectscan.Repaired: n})
}

// A type whose list cannot be read does not stop the other types. The run reports the reason.
func TestObjectScan_listFails_stopsNoOtherType(t *testing.T) {
	t.Parallel()
	b := newMirroredEnv(t, 220, livingObjects)
	none := b.missingResponse()
	none.Verdict.Detail = "no such list"
	b.api.respondTo(none, "/others")
	b.startOtherAndThing(t)
	scan := func(reason string) {
		t.Helper()
		before := b.typeCompleteUntil(t)
		b.api.setTime(b.api.now.Add(time.Hour))
		r := b.runToEnd(t, reconcile.Params{Scope: reconcile.Objects})
		wantCounts(t, r, counts{objectscan.Equal: 20, objectscan.NotListable: 1})
		if report := b.report(t, r.ID); !strings.Contains(report.Types[0].Reason, reason) {
			t.Errorf("%+v", report)
		}
		if !b.typeCompleteUntil(t).After(before) {
			t.Errorf("complete until %s after %s", b.typeCompleteUntil(t), before)
		}
	}
	scan("no such list")
	b.api.interceptWith(func(c provider.Call) (*providerapi.Response, error) {
		if c.Path == "/others" {
			panic("a response without a reader")
		}
		return nil, nil
	})
	scan("a response without a reader")
}

// watermarksOf returns the watermarks of a type, with the newest run that could not list it.
func (b *testEnv) watermarksOf(t *testing.T, what string) (all []watermarks.Completeness) {
	t.Helper()
	page, err := watermarks.List(t.Context(), b.OperatorPool, b.Source, "", 10)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range page.Items {
		if p.Subject == what {
			all = append(all, p)
		}
	}
	return all
}

// A type whose list is rejected is recorded with the reason, and is requested once in a run. The
// watermarks show the reason until a run lists the type again.
func TestObjectScan_notListableType_isReported(t *testing.T) {
	t.Parallel()
	b := newMirroredEnv(t, 220, livingObjects)
	empty := b.foundResponse(`{"things":[]}`)
	b.api.respondTo(empty, "/others")
	b.startOtherAndThing(t)
	b.scan(t, reconcile.Params{})
	if p := b.watermarksOf(t, "type another"); len(p) != 1 || p[0].NotListableRun != 0 || p[0].NotListableReason != "" {
		t.Errorf("after a list the watermark is %+v", p)
	}
	b.api.respondTo(errorResponse(http.StatusForbidden), "/others")
	b.api.respondTo(errorResponse(http.StatusTooManyRequests), "/list")
	requested := b.api.callCount("/others")
	run := b.startRun(t, reconcile.Params{Scope: reconcile.Objects})
	b.WaitForRun(t, run, func(r *runs.Run) bool { return r.ConsecutiveFailures > 1 || r.Status.Ended() })
	b.api.respondTo(nil, "/list")
	if r := b.waitForEnd(t, run); r.Status != runs.Done || r.Counts[objectscan.NotListable] != 1 ||
		b.api.callCount("/others") != requested+1 {
		t.Errorf("%s %v, its list was requested %d times: %s", r.Status, r.Counts, b.api.callCount("/others")-requested,
			r.Detail)
	}
	report := b.report(t, run)
	if len(report.Types) != 2 || report.Types[0].Phase != objectscan.PhaseNotListable ||
		!strings.Contains(report.Types[0].Reason, "403") || report.Types[1].Phase != "done" ||
		report.Types[1].Reason != "" {
		t.Errorf("%+v", report)
	}
	if p := b.watermarksOf(t, "type another"); len(p) != 1 || p[0].NotListableRun != run ||
		!strings.Contains(p[0].NotListableReason, "403") {
		t.Errorf("after a rejection the watermark is %+v", p)
	}
	if p := b.watermarksOf(t, "type thing"); len(p) != 1 || p[0].NotListableRun != 0 {
		t.Errorf("the watermark of the other type is %+v", p)
	}
	b.api.respondTo(empty, "/others")
	b.scan(t, reconcile.Params{})
	if p := b.watermarksOf(t, "type another"); len(p) != 1 || p[0].NotListableRun != 0 || p[0].NotListableReason != "" {
		t.Errorf("after another list the watermark is %+v", p)
	}
}

// A key that may list no type fails the run, also after another process has recorded some of the
// types.
func TestObjectScan_keyListsNothing_failsTheRun(t *testing.T) {
	t.Parallel()
	b := newMirroredEnv(t, 220, livingObjects)
	b.api.respondTo(errorResponse(http.StatusForbidden), "/others")
	b.api.respondTo(errorResponse(http.StatusTooManyRequests), "/list")
	b.startOtherAndThing(t)
	run := b.startRun(t, reconcile.Params{Scope: reconcile.Objects})
	b.WaitForRun(t, run, endedOrDeferred)
	b.api.respondTo(errorResponse(http.StatusForbidden), "/list")
	wantRunFailed(t, b.waitForEnd(t, run), "403")
}
