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

	"github.com/postern-gateway/postern/internal/objectscan"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/github"
	"github.com/postern-gateway/postern/internal/providerapi"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/refetch"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit/githubfake"
)

// runner makes a runner for the fake.
func (f *githubEnv) runner() *reconcile.Runner {
	r := &reconcile.Runner{Resources: &refetch.Resources{Pool: f.Pool, Log: f.gateway, Applier: f.proc,
		Sources: &providerapi.Sources{}, Limits: refetch.DefaultLimits}, Settings: reconcile.DefaultSettings}
	r.Sources.Replace(f.source)
	r.Limits.ListDelay, r.Settings.RetryDelay = time.Second, time.Millisecond
	return r
}

// newPartlyReadableEnv makes a source with three repositories that lost half of their webhooks. The
// second repository responds with a status.
func newPartlyReadableEnv(t *testing.T, status int, o githubfake.Options) *githubEnv {
	t.Helper()
	o.Start, o.Repositories = time.Now().Add(-3*time.Hour), 3
	f := newGitHubEnv(t, o, nil)
	var all []string
	for i := range 60 {
		f.fake.Advance(2 * time.Second)
		id := []func(int) string{f.fake.OpenIssue, f.fake.OpenIssue, f.fake.OpenPullRequest,
			f.fake.CreateDraft}[i/3%4](i % 3)
		if all = append(all, id); i/3%4 == 3 {
			f.fake.Advance(2 * time.Second)
			f.fake.Publish(id)
		}
	}
	f.deliver(t)
	f.fake.SetWebhooks(githubfake.Webhooks{LostUnacknowledged: 100})
	for i, id := range all {
		f.fake.Advance(2 * time.Second)
		switch {
		case i%5 == 0 && i/3%4 != 2: // pull requests stay
			f.fake.Delete(id)
		case i%5 < 3:
			f.fake.Edit(id)
		}
		f.fake.OpenIssue(i % 3)
	}
	f.fake.Advance(time.Minute)
	f.fake.SetRepositoryStatus(1, status)
	return f
}

// listedTypes returns the number of listed types.
func (f *githubEnv) listedTypes() int64 {
	return int64(len(github.GitHub{}.Lists(f.config, f.source.API, "")))
}

// differencesByRepository returns the objects that differ in the mirror: those of the second
// repository and the others.
func (f *githubEnv) differencesByRepository(t *testing.T) (unreadable, others []string) {
	t.Helper()
	of := f.idsOf(1)
	for _, w := range f.objectDifferences(t) {
		name, _, _ := strings.Cut(w, ":")
		if _, id, _ := strings.Cut(name, " "); slices.Contains(of, id) {
			unreadable = append(unreadable, w)
		} else {
			others = append(others, w)
		}
	}
	return unreadable, others
}

const completeSQL = `SELECT coalesce(string_agg(subject, ' ' ORDER BY subject), '') FROM watermarks`

// An unreadable repository does not stop the scan of the others. Its objects are not deleted,
// refetched, unrepaired or complete, and the run names it. Once it is readable, everything is
// repaired and complete.
func TestObjectScan_unreadableRepository_isSkipped(t *testing.T) {
	t.Parallel()
	for _, status := range []int{http.StatusNotFound, http.StatusForbidden, http.StatusInternalServerError} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			t.Parallel()
			f := newPartlyReadableEnv(t, status, githubfake.Options{})
			if unreadable, others := f.differencesByRepository(t); len(unreadable) == 0 || len(others) == 0 {
				t.Fatalf("%d and %d differ: the test is too easy", len(unreadable), len(others))
			}
			made := len(f.fake.Requests())
			f.startReconciler(t, f.runner())
			r := f.runToEnd(t, reconcile.Params{Scope: reconcile.Objects, Full: true})
			wantCounts(t, r, counts{objectscan.SkippedParts: f.listedTypes(), objectscan.Unrepaired: 0})
			if _, others := f.differencesByRepository(t); len(others) > 0 {
				t.Errorf("%d of the others differ, the first: %s", len(others), others[0])
			}
			f.wantSecondUntouched(t, f.fake.Requests()[made:])
			requested := 0
			for _, r := range f.fake.Requests()[made:] {
				if strings.Contains(r, "kettle-1") {
					requested++
				}
			}
			if most := 6 * int(f.listedTypes()); requested > most {
				t.Errorf("requested %d times, want at most %d", requested, most)
			}
			report := f.report(t, r.ID)
			if len(report.Types) != int(f.listedTypes()) {
				t.Fatalf("%d types", len(report.Types))
			}
			for _, typ := range report.Types {
				if over := typ.Skipped; len(over) != 1 || over[0].Part != "octo-fake/kettle-1" || over[0].Truncated ||
					!strings.Contains(over[0].Message(), fmt.Sprint("answered ", status)) ||
					!strings.Contains(over[0].Message(), "remove it from the source") {
					t.Errorf("%s skipped %+v", typ.ObjectType, over)
				}
			}
			f.fake.SetRepositoryStatus(1, 0)
			r = f.runToEnd(t, reconcile.Params{Scope: reconcile.Objects, Full: true})
			if unreadable, others := f.differencesByRepository(t); r.Status != runs.Done ||
				r.Counts[objectscan.SkippedParts] != 0 || len(unreadable)+len(others) > 0 {
				t.Errorf("%s %v: %s; %d and %d differ", r.Status, r.Counts, r.Detail, len(unreadable), len(others))
			}
			if got := queryOne[string](t, f.testEnv, completeSQL); !strings.Contains(got, "type release") ||
				!strings.Contains(got, "changes issue") {
				t.Errorf("complete are %s", got)
			}
		})
	}
}

// wantSecondUntouched checks that no object of the second repository was refetched, deleted or
// complete.
func (f *githubEnv) wantSecondUntouched(t *testing.T, requests []string) {
	t.Helper()
	for _, r := range requests {
		if path, _, _ := strings.Cut(r, "?"); strings.Contains(path, "kettle-1/") && strings.Count(path, "/") > 4 &&
			!strings.HasSuffix(path, "/comments") {
			t.Errorf("requested %s", r)
		}
	}
	wantValue(t, f.testEnv, 0, `SELECT count(*) FROM objects WHERE deleted AND object_id = ANY($1)`, f.idsOf(1))
	wantValue(t, f.testEnv, 0, `SELECT count(*) FROM drifts WHERE object_id = ANY($1)`, f.idsOf(1))
	wantValue(t, f.testEnv, "", completeSQL)
}

// idsOf returns the ids of the objects of a repository.
func (f *githubEnv) idsOf(repository int) (ids []string) {
	for _, o := range f.fake.CurrentObjects() {
		if o.Repository == f.fake.Repositories()[repository] {
			ids = append(ids, o.ID)
		}
	}
	return ids
}

// An unreadable repository is skipped once and each object counts once, whenever a process ends.
func TestObjectScan_unreadableRepositoryAndKills_isSkippedOnce(t *testing.T) {
	t.Parallel()
	calm, wild := newPartlyReadableEnv(t, http.StatusForbidden, githubfake.Options{}),
		newPartlyReadableEnv(t, http.StatusForbidden, githubfake.Options{})
	calm.startReconciler(t, calm.runner())
	want := calm.runToEnd(t, reconcile.Params{Scope: reconcile.Objects, Full: true})
	wild.StartRunner(t, "one", 0, map[string]runs.Executor{reconcile.Job: killRepeatedly(t, wild.runner())})
	got := wild.runToEnd(t, reconcile.Params{Scope: reconcile.Objects, Full: true})
	for what, n := range nonzero(want.Counts) {
		if got.Counts[what] != n {
			t.Errorf("%d %s, undisturbed %d", got.Counts[what], what, n)
		}
	}
	if got.Status != runs.Done || got.Counts[objectscan.SkippedParts] != wild.listedTypes() {
		t.Errorf("%s %v: %s", got.Status, got.Counts, got.Detail)
	}
	if _, others := wild.differencesByRepository(t); len(others) > 0 {
		t.Error(others)
	}
	wild.wantSecondUntouched(t, nil)
}

// A revoked key ends the run; it skips no repository.
func TestObjectScan_revokedKey_skipsNoRepository(t *testing.T) {
	t.Parallel()
	f := newPartlyReadableEnv(t, 0, githubfake.Options{})
	var revoked atomic.Bool
	f.startThrough(t, interceptingCaller{f.source.Caller, func(c provider.Call) *providerapi.Response {
		switch {
		case strings.Contains(c.Path, "kettle-1/issues"):
			revoked.Store(true)
			return errorResponse(http.StatusForbidden)
		case revoked.Load() && c.Path == "/": // other calls succeed, so that nothing else ends the run
			return errorResponse(http.StatusUnauthorized)
		}
		return nil
	}})
	r := f.runToEnd(t, reconcile.Params{Scope: reconcile.Objects, Type: "issue", Full: true})
	if n := f.count(t, `SELECT count(*) FROM object_scans WHERE skipped_parts <> '[]'`); !revoked.Load() ||
		r.Status != runs.Failed || !strings.Contains(r.Detail, "401") || n != 0 {
		t.Errorf("%s, %d skipped: %s", r.Status, n, r.Detail)
	}
}

// interceptingCaller is a Caller that may respond in place of the API.
type interceptingCaller struct {
	providerapi.Caller
	intercept func(c provider.Call) *providerapi.Response
}

func (m interceptingCaller) Do(ctx context.Context, c provider.Call) (*providerapi.Response, error) {
	if a := m.intercept(c); a != nil {
		return a, nil
	}
	return m.Caller.Do(ctx, c)
}

// If no repository is readable, the run fails.
func TestObjectScan_noReadableRepository_failsTheRun(t *testing.T) {
	t.Parallel()
	f := newPartlyReadableEnv(t, http.StatusNotFound, githubfake.Options{})
	f.fake.SetRepositoryStatus(0, http.StatusGone)
	f.fake.SetRepositoryStatus(2, http.StatusNotFound)
	f.startReconciler(t, f.runner())
	f.wantFailure(t, reconcile.Params{Scope: reconcile.Objects}, "answered 404")
}

// If GitHub ends a list early, with any response, the list is used up to that point. Other objects
// of the mirror are refetched, the next repository is listed, and the watermark does not move.
func TestObjectScan_listEndsEarly_refetchesTheRest(t *testing.T) {
	t.Parallel()
	for _, status := range []int{0, http.StatusBadGateway} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			t.Parallel()
			f := newGitHubEnv(t, githubfake.Options{Start: time.Now().Add(-3 * time.Hour), MaxListedReleases: 100,
				ReleasesEndStatus: status}, nil)
			var old, newest string
			for i := range 130 {
				newest = f.fake.CreateDraft(0)
				f.fake.Advance(2 * time.Second)
				f.fake.Publish(newest)
				if f.fake.Advance(2 * time.Second); i == 0 {
					old = newest
				}
			}
			f.deliver(t)
			f.fake.SetWebhooks(githubfake.Webhooks{LostUnacknowledged: 100})
			for _, id := range []string{old, newest} {
				f.fake.Edit(id)
			}
			last := f.fake.CreateDraft(1)
			f.fake.Publish(last)
			f.fake.Advance(time.Minute)
			f.startReconciler(t, f.runner())
			r := f.runToEnd(t, reconcile.Params{Scope: reconcile.Objects, Type: "release"})
			wantCounts(t, r, counts{reconcile.Processed: 131, objectscan.Repaired: 3, objectscan.SkippedParts: 1})
			wantNone(t, f.objectDifferences(t))
			report := f.report(t, r.ID)
			if len(report.Types) != 1 || len(report.Types[0].Skipped) != 1 || !report.Types[0].Skipped[0].Truncated ||
				!strings.Contains(report.Types[0].Skipped[0].Message(), "to its end") {
				t.Errorf("%+v", report)
			}
			wantValue(t, f.testEnv, "", completeSQL)
		})
	}
}

// Many empty repositories are not a cycle.
func TestObjectScan_manyEmptyRepositories_isNoCycle(t *testing.T) {
	t.Parallel()
	f := newGitHubEnv(t, githubfake.Options{Start: time.Now().Add(-3 * time.Hour), Repositories: 130}, nil)
	f.fake.Advance(time.Minute)
	f.startReconciler(t, f.runner())
	f.wantDone(t, reconcile.Params{Scope: reconcile.Objects, Type: "release"})
	wantValue(t, f.testEnv, "type release", completeSQL)
}

// A missing object is unrepaired if the list that would verify its absence is rejected. Other
// objects are repaired. A key that is not valid any more fails the run.
func TestObjectScan_missingObjectListRejected_isUnrepaired(t *testing.T) {
	t.Parallel()
	f := newPartlyReadableEnv(t, 0, githubfake.Options{})
	var revoked, met atomic.Bool
	f.startThrough(t, interceptingCaller{f.source.Caller, func(c provider.Call) *providerapi.Response {
		switch {
		case strings.HasSuffix(c.Path, "kettle-1/releases") && c.Query.Get("per_page") == "1":
			met.Store(revoked.Load())
			return errorResponse(http.StatusForbidden)
		case met.Load():
			return errorResponse(http.StatusUnauthorized)
		}
		return nil
	}})
	params := reconcile.Params{Scope: reconcile.Objects, Type: "release", Full: true}
	wantCounts(t, f.wantDone(t, params), counts{objectscan.Unrepaired: 1, objectscan.Orphans: 2})
	if why := queryOne[string](t, f.testEnv,
		`SELECT reason FROM drifts WHERE result = 'unrepaired'`); !strings.Contains(
		why, "403") || !strings.Contains(why, "does not count as deleted") {
		t.Errorf("unrepaired with the reason %s", why)
	}
	revoked.Store(true)
	if r := f.runToEnd(t, params); r.Status != runs.Failed || !strings.Contains(r.Detail, "401") ||
		r.Counts[objectscan.Unrepaired] != 0 {
		t.Errorf("%s %v: %s", r.Status, r.Counts, r.Detail)
	}
}

// A renamed repository is listed through GitHub's redirect, with its configured name.
func TestObjectScan_renamedRepository_isListed(t *testing.T) {
	t.Parallel()
	f := newPartlyReadableEnv(t, 0, githubfake.Options{})
	f.fake.Rename("pot")
	f.fake.Advance(time.Minute)
	f.startReconciler(t, f.runner())
	if r := f.runToEnd(t, reconcile.Params{Scope: reconcile.Objects, Full: true}); r.Status != runs.Done ||
		r.Counts[objectscan.SkippedParts] != 0 || r.Counts[objectscan.Unrepaired] != 0 ||
		r.Counts[objectscan.Orphans] == 0 {
		t.Errorf("%s %v: %s", r.Status, r.Counts, r.Detail)
	}
	wantNone(t, f.objectDifferences(t))
}

// The list of repositories changes while a run is deferred within one of them. The list is
// restarted: each configured repository is listed, and the watermark does not move without that.
func TestObjectScan_repositoriesChangeDuringRun_restartsTheList(t *testing.T) {
	t.Parallel()
	for _, change := range [][2][]int{{{0, 1, 2}, {0, 2, 1}}, {{0, 1, 2}, {0, 2}}, {{0, 1}, {2, 0, 1}}} {
		t.Run(fmt.Sprint(change), func(t *testing.T) {
			t.Parallel()
			f := newPartlyReadableEnv(t, 0, githubfake.Options{})
			f.fake.Advance(150 * time.Minute)
			var changed atomic.Bool
			source := *f.source
			source.Caller = interceptingCaller{f.source.Caller, func(c provider.Call) *providerapi.Response {
				if strings.Contains(c.Path, "kettle-1/issues") && !changed.Load() {
					return errorResponse(http.StatusTooManyRequests)
				}
				return nil
			}}
			r := f.runner()
			names := func(of []int) {
				other, api := source, *source.API
				api.Repositories = nil
				for _, i := range of {
					api.Repositories = append(api.Repositories, f.fake.Repositories()[i])
				}
				other.API = &api
				r.Sources.Replace(&other)
			}
			names(change[0])
			var n atomic.Int64
			f.StartRunner(t, "one", 1, map[string]runs.Executor{reconcile.Job: func(ctx context.Context, h *runs.Lease,
				log *slog.Logger) (runs.Status, error) {
				if n.Add(1) == 2 {
					changed.Store(true)
					names(change[1])
				}
				return r.Execute(ctx, h, log)
			}})
			run := f.runToEnd(t, reconcile.Params{Scope: reconcile.Objects, Type: "issue", Full: true})
			if run.Status != runs.Done || n.Load() != 2 || run.Counts[objectscan.Unrepaired] != 0 ||
				run.Counts[objectscan.SkippedParts] != 0 {
				t.Errorf("%s %v after %d attempts: %s", run.Status, run.Counts, n.Load(), run.Detail)
			}
			for _, i := range change[1] {
				f.wantIssuesEqual(t, i)
			}
			wantValue(t, f.testEnv, "changes issue type issue", completeSQL)
			if got := queryOne[int64](t, f.testEnv, `SELECT checked - (SELECT count(*) FROM objects
				WHERE object_type = 'issue'
				AND NOT deleted) FROM object_scans`); got != 0 && len(change[1]) == 3 {
				t.Errorf("%d more objects were counted than exist", got)
			}
			calls := len(f.fake.Requests())
			f.fake.Advance(10 * time.Minute)
			f.runToEnd(t, reconcile.Params{Scope: reconcile.Objects, Type: "issue"})
			for _, q := range f.fake.Requests()[calls:] {
				if strings.Contains(q, "/issues?") && !strings.Contains(q, "since=") {
					t.Errorf("a complete list was read again without since: %s", q)
				}
			}
		})
	}
}

// wantIssuesEqual checks that the mirror has the current state of all issues of a repository.
func (f *githubEnv) wantIssuesEqual(t *testing.T, repository int) {
	t.Helper()
	wrong := map[string]bool{}
	for _, w := range f.objectDifferences(t) {
		name, _, _ := strings.Cut(w, ":")
		wrong[name] = true
	}
	for _, id := range f.idsOf(repository) {
		if wrong["issue "+id] {
			t.Errorf("issue %s of repository %d differs", id, repository)
		}
	}
}
