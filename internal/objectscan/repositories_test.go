package objectscan_test

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
	"github.com/postern-gateway/postern/internal/providerapi"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit/githubfake"
	"github.com/postern-gateway/postern/internal/testkit/reconciled"
)

// newPartlyReadableEnv makes a source with three repositories that lost half of their webhooks. The
// second repository responds with a status.
func newPartlyReadableEnv(t *testing.T, status int) *reconciled.GitHubEnv {
	t.Helper()
	f := reconciled.NewGitHubEnv(t, githubfake.Options{Start: time.Now().Add(-3 * time.Hour), Repositories: 3}, nil)
	var all []string
	for i := range 48 {
		f.Fake.Advance(2 * time.Second)
		id := []func(int) string{f.Fake.OpenIssue, f.Fake.OpenIssue, f.Fake.OpenPullRequest,
			f.Fake.CreateDraft}[i/3%4](i % 3)
		if all = append(all, id); i/3%4 == 3 {
			f.Fake.Advance(2 * time.Second)
			f.Fake.Publish(id)
		}
	}
	f.Deliver(t)
	f.Fake.SetWebhooks(githubfake.Webhooks{LostUnacknowledged: 100})
	for i, id := range all {
		f.Fake.Advance(2 * time.Second)
		switch {
		case i%5 == 0 && i/3%4 != 2: // pull requests stay
			f.Fake.Delete(id)
		case i%5 < 3:
			f.Fake.Edit(id)
		}
		f.Fake.OpenIssue(i % 3)
	}
	f.Fake.Advance(time.Minute)
	f.Fake.SetRepositoryStatus(1, status)
	return f
}

// An unreadable repository does not stop the scan of the others. Its objects are not deleted,
// refetched, unrepaired or complete, and the run names it. Once it is readable, everything is
// repaired and complete.
func TestObjectScan_unreadableRepository_isSkipped(t *testing.T) {
	t.Parallel()
	for _, status := range []int{http.StatusNotFound, http.StatusForbidden, http.StatusInternalServerError} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			t.Parallel()
			f := newPartlyReadableEnv(t, status)
			if unreadable, others := differencesByRepository(t, f); len(unreadable) == 0 || len(others) == 0 {
				t.Fatalf("%d and %d differ: the test is too easy", len(unreadable), len(others))
			}
			made := len(f.Fake.Requests())
			f.StartReconciler(t, f.Runner())
			r := f.RunToEnd(t, reconcile.Params{Scope: reconcile.Objects, Full: true})
			reconciled.WantCounts(t, r, reconciled.Counts{objectscan.SkippedParts: f.ListedTypes(),
				objectscan.Unrepaired: 0})
			if _, others := differencesByRepository(t, f); len(others) > 0 {
				t.Errorf("%d of the others differ, the first: %s", len(others), others[0])
			}
			wantSecondUntouched(t, f, f.Fake.Requests()[made:])
			requested := 0
			for _, r := range f.Fake.Requests()[made:] {
				if strings.Contains(r, "kettle-1") {
					requested++
				}
			}
			if most := 6 * int(f.ListedTypes()); requested > most {
				t.Errorf("requested %d times, want at most %d", requested, most)
			}
			report := f.Report(t, r.ID)
			if len(report.Types) != int(f.ListedTypes()) {
				t.Fatalf("%d types", len(report.Types))
			}
			for _, typ := range report.Types {
				if over := typ.Skipped; len(over) != 1 || over[0].Part != "octo-fake/kettle-1" || over[0].Truncated ||
					!strings.Contains(over[0].Message(), fmt.Sprint("answered ", status)) ||
					!strings.Contains(over[0].Message(), "remove it from the source") {
					t.Errorf("%s skipped %+v", typ.ObjectType, over)
				}
			}
			if status != http.StatusNotFound {
				return
			}
			f.Fake.SetRepositoryStatus(1, 0)
			r = f.RunToEnd(t, reconcile.Params{Scope: reconcile.Objects, Full: true})
			if unreadable, others := differencesByRepository(t, f); r.Status != runs.Done ||
				r.Counts[objectscan.SkippedParts] != 0 || len(unreadable)+len(others) > 0 {
				t.Errorf("%s %v: %s; %d and %d differ", r.Status, r.Counts, r.Detail, len(unreadable), len(others))
			}
			complete := reconciled.QueryOne[string](t, f.Env, reconciled.CompleteSQL)
			if !strings.Contains(complete, "type release") || !strings.Contains(complete, "changes issue") {
				t.Errorf("complete are %s", complete)
			}
		})
	}
}

// An unreadable repository is skipped once and each object counts once, whenever a process ends.
func TestObjectScan_unreadableRepositoryAndKills_isSkippedOnce(t *testing.T) {
	t.Parallel()
	issues := reconcile.Params{Scope: reconcile.Objects, Type: "issue", Full: true}
	calm, wild := newPartlyReadableEnv(t, http.StatusForbidden), newPartlyReadableEnv(t, http.StatusForbidden)
	calm.StartReconciler(t, calm.Runner())
	want := calm.RunToEnd(t, issues)
	wild.StartRunner(t, "one", 0, map[string]runs.Executor{reconcile.Job: reconciled.KillRepeatedly(t, wild.Runner())})
	got := wild.RunToEnd(t, issues)
	reconciled.WantCounts(t, got, reconciled.Nonzero(want.Counts))
	reconciled.WantCounts(t, got, reconciled.Counts{objectscan.SkippedParts: 1})
	for _, repository := range []int{0, 2} {
		wantIssuesEqual(t, wild, repository)
	}
	wantSecondUntouched(t, wild, nil)
}

// A revoked key ends the run; it skips no repository.
func TestObjectScan_revokedKey_skipsNoRepository(t *testing.T) {
	t.Parallel()
	f := reconciled.NewGitHubEnv(t, githubfake.Options{Start: time.Now().Add(-time.Hour), Repositories: 2}, nil)
	var revoked atomic.Bool
	f.StartThrough(t, reconciled.InterceptingCaller{Caller: f.APISource.Caller,
		Intercept: func(c provider.Call) *providerapi.Response {
			switch {
			case strings.Contains(c.Path, "kettle-1/issues"):
				revoked.Store(true)
				return reconciled.ErrorResponse(http.StatusForbidden)
			case revoked.Load() && c.Path == "/": // other calls succeed, so that nothing else ends the run
				return reconciled.ErrorResponse(http.StatusUnauthorized)
			}
			return nil
		}})
	r := f.RunToEnd(t, reconcile.Params{Scope: reconcile.Objects, Type: "issue", Full: true})
	if n := f.Count(t, `SELECT count(*) FROM object_scans WHERE skipped_parts <> '[]'`); !revoked.Load() ||
		r.Status != runs.Failed || !strings.Contains(r.Detail, "401") || n != 0 {
		t.Errorf("%s, %d skipped: %s", r.Status, n, r.Detail)
	}
}

// If no repository is readable, the run fails.
func TestObjectScan_noReadableRepository_failsTheRun(t *testing.T) {
	t.Parallel()
	f := reconciled.NewGitHubEnv(t, githubfake.Options{Repositories: 2}, nil)
	f.Fake.SetRepositoryStatus(0, http.StatusGone)
	f.Fake.SetRepositoryStatus(1, http.StatusNotFound)
	f.StartReconciler(t, f.Runner())
	f.WantFailure(t, reconcile.Params{Scope: reconcile.Objects}, "answered 404")
}

// If GitHub ends a list early, with any response, the list is used up to that point. Other objects
// of the mirror are refetched, the next repository is listed, and the watermark does not move.
func TestObjectScan_listEndsEarly_refetchesTheRest(t *testing.T) {
	t.Parallel()
	for _, status := range []int{0, http.StatusBadGateway} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			t.Parallel()
			f := reconciled.NewGitHubEnv(t, githubfake.Options{Start: time.Now().Add(-3 * time.Hour),
				MaxListedReleases: 100, ReleasesEndStatus: status}, nil)
			var old, newest string
			for i := range 130 {
				newest = f.Fake.CreateDraft(0)
				f.Fake.Advance(2 * time.Second)
				f.Fake.Publish(newest)
				if f.Fake.Advance(2 * time.Second); i == 0 {
					old = newest
				}
			}
			f.Deliver(t)
			f.Fake.SetWebhooks(githubfake.Webhooks{LostUnacknowledged: 100})
			for _, id := range []string{old, newest} {
				f.Fake.Edit(id)
			}
			last := f.Fake.CreateDraft(1)
			f.Fake.Publish(last)
			f.Fake.Advance(time.Minute)
			f.StartReconciler(t, f.Runner())
			r := f.RunToEnd(t, reconcile.Params{Scope: reconcile.Objects, Type: "release"})
			reconciled.WantCounts(t, r, reconciled.Counts{reconcile.Processed: 131, objectscan.Repaired: 3,
				objectscan.SkippedParts: 1})
			reconciled.WantNone(t, f.ObjectDifferences(t))
			report := f.Report(t, r.ID)
			if len(report.Types) != 1 || len(report.Types[0].Skipped) != 1 || !report.Types[0].Skipped[0].Truncated ||
				!strings.Contains(report.Types[0].Skipped[0].Message(), "to its end") {
				t.Errorf("%+v", report)
			}
			reconciled.WantValue(t, f.Env, "", reconciled.CompleteSQL)
		})
	}
}

// Many empty repositories are not a cycle.
func TestObjectScan_manyEmptyRepositories_isNoCycle(t *testing.T) {
	t.Parallel()
	f := reconciled.NewGitHubEnv(t, githubfake.Options{Start: time.Now().Add(-3 * time.Hour), Repositories: 130}, nil)
	f.Fake.Advance(time.Minute)
	f.StartReconciler(t, f.Runner())
	f.WantDone(t, reconcile.Params{Scope: reconcile.Objects, Type: "release"})
	reconciled.WantValue(t, f.Env, "type release", reconciled.CompleteSQL)
}

// A missing object is unrepaired if the list that would verify its absence is rejected. Other
// objects are repaired. A key that is not valid any more fails the run.
func TestObjectScan_missingObjectListRejected_isUnrepaired(t *testing.T) {
	t.Parallel()
	f := newPartlyReadableEnv(t, 0)
	var revoked, met atomic.Bool
	f.StartThrough(t, reconciled.InterceptingCaller{Caller: f.APISource.Caller,
		Intercept: func(c provider.Call) *providerapi.Response {
			switch {
			case strings.HasSuffix(c.Path, "kettle-1/releases") && c.Query.Get("per_page") == "1":
				met.Store(revoked.Load())
				return reconciled.ErrorResponse(http.StatusForbidden)
			case met.Load():
				return reconciled.ErrorResponse(http.StatusUnauthorized)
			}
			return nil
		}})
	params := reconcile.Params{Scope: reconcile.Objects, Type: "release", Full: true}
	reconciled.WantCounts(t, f.WantDone(t, params), reconciled.Counts{objectscan.Unrepaired: 1, objectscan.Orphans: 2})
	reconciled.WantValue(t, f.Env, true, `SELECT reason LIKE '%403%' AND reason LIKE '%does not count as deleted%'
		FROM drifts WHERE result = 'unrepaired'`)
	revoked.Store(true)
	if r := f.WantFailure(t, params, "401"); r.Counts[objectscan.Unrepaired] != 0 {
		t.Errorf("counts %v", r.Counts)
	}
}

// A renamed repository is listed through GitHub's redirect, with its configured name.
func TestObjectScan_renamedRepository_isListed(t *testing.T) {
	t.Parallel()
	f := newPartlyReadableEnv(t, 0)
	f.Fake.Rename("pot")
	f.Fake.Advance(time.Minute)
	f.StartReconciler(t, f.Runner())
	r := f.WantDone(t, reconcile.Params{Scope: reconcile.Objects, Type: "issue", Full: true})
	reconciled.WantCounts(t, r, reconciled.Counts{objectscan.SkippedParts: 0, objectscan.Unrepaired: 0})
	if r.Counts[objectscan.Orphans] == 0 {
		t.Errorf("nothing is missing: %v", r.Counts)
	}
	for repository := range f.Fake.Repositories() {
		wantIssuesEqual(t, f, repository)
	}
}

// The list of repositories changes while a run is deferred within one of them. The list is
// restarted: each configured repository is listed, and the watermark does not move without that.
func TestObjectScan_repositoriesChangeDuringRun_restartsTheList(t *testing.T) {
	t.Parallel()
	for _, change := range [][2][]int{{{0, 1, 2}, {0, 2, 1}}, {{0, 1, 2}, {0, 2}}, {{0, 1}, {2, 0, 1}}} {
		t.Run(fmt.Sprint(change), func(t *testing.T) {
			t.Parallel()
			f := newPartlyReadableEnv(t, 0)
			f.Fake.Advance(150 * time.Minute)
			var changed atomic.Bool
			source := *f.APISource
			source.Caller = reconciled.InterceptingCaller{Caller: f.APISource.Caller,
				Intercept: func(c provider.Call) *providerapi.Response {
					if strings.Contains(c.Path, "kettle-1/issues") && !changed.Load() {
						return reconciled.ErrorResponse(http.StatusTooManyRequests)
					}
					return nil
				}}
			r := f.Runner()
			names := func(of []int) {
				other, api := source, *source.API
				api.Repositories = nil
				for _, i := range of {
					api.Repositories = append(api.Repositories, f.Fake.Repositories()[i])
				}
				other.API = &api
				r.Sources.Replace(&other)
			}
			names(change[0])
			var n atomic.Int64
			startAttempts(t, f.Env, 1, func(ctx context.Context, h *runs.Lease, log *slog.Logger) (runs.Status, error) {
				if n.Add(1) == 2 {
					changed.Store(true)
					names(change[1])
				}
				return r.Execute(ctx, h, log)
			})
			run := f.RunToEnd(t, reconcile.Params{Scope: reconcile.Objects, Type: "issue", Full: true})
			if run.Status != runs.Done || n.Load() != 2 || run.Counts[objectscan.Unrepaired] != 0 ||
				run.Counts[objectscan.SkippedParts] != 0 {
				t.Errorf("%s %v after %d attempts: %s", run.Status, run.Counts, n.Load(), run.Detail)
			}
			for _, i := range change[1] {
				wantIssuesEqual(t, f, i)
			}
			reconciled.WantValue(t, f.Env, "changes issue type issue", reconciled.CompleteSQL)
			if len(change[1]) == 3 {
				reconciled.WantValue(t, f.Env, 0, `SELECT checked - (SELECT count(*) FROM objects
					WHERE object_type = 'issue' AND NOT deleted) FROM object_scans`)
			}
			calls := len(f.Fake.Requests())
			f.Fake.Advance(10 * time.Minute)
			f.RunToEnd(t, reconcile.Params{Scope: reconcile.Objects, Type: "issue"})
			for _, q := range f.Fake.Requests()[calls:] {
				if strings.Contains(q, "/issues?") && !strings.Contains(q, "since=") {
					t.Errorf("a complete list was read again without since: %s", q)
				}
			}
		})
	}
}

// differencesByRepository returns the objects that differ in the mirror: those of the second
// repository and the others.
func differencesByRepository(t *testing.T, f *reconciled.GitHubEnv) (unreadable, others []string) {
	t.Helper()
	of := idsOf(f, 1)
	for _, w := range f.ObjectDifferences(t) {
		name, _, _ := strings.Cut(w, ":")
		if _, id, _ := strings.Cut(name, " "); slices.Contains(of, id) {
			unreadable = append(unreadable, w)
		} else {
			others = append(others, w)
		}
	}
	return unreadable, others
}

// wantSecondUntouched checks that no object of the second repository was refetched, deleted or
// complete.
func wantSecondUntouched(t *testing.T, f *reconciled.GitHubEnv, requests []string) {
	t.Helper()
	for _, r := range requests {
		if path, _, _ := strings.Cut(r, "?"); strings.Contains(path, "kettle-1/") && strings.Count(path, "/") > 4 &&
			!strings.HasSuffix(path, "/comments") {
			t.Errorf("requested %s", r)
		}
	}
	reconciled.WantValue(t, f.Env, 0, `SELECT count(*) FROM objects WHERE deleted AND object_id = ANY($1)`, idsOf(f, 1))
	reconciled.WantValue(t, f.Env, 0, `SELECT count(*) FROM drifts WHERE object_id = ANY($1)`, idsOf(f, 1))
	reconciled.WantValue(t, f.Env, "", reconciled.CompleteSQL)
}

// idsOf returns the ids of the objects of a repository.
func idsOf(f *reconciled.GitHubEnv, repository int) (ids []string) {
	for _, o := range f.Fake.CurrentObjects() {
		if o.Repository == f.Fake.Repositories()[repository] {
			ids = append(ids, o.ID)
		}
	}
	return ids
}

// wantIssuesEqual checks that the mirror has the current state of all issues of a repository.
func wantIssuesEqual(t *testing.T, f *reconciled.GitHubEnv, repository int) {
	t.Helper()
	wrong := map[string]bool{}
	for _, w := range f.ObjectDifferences(t) {
		name, _, _ := strings.Cut(w, ":")
		wrong[name] = true
	}
	for _, id := range idsOf(f, repository) {
		if wrong["issue "+id] {
			t.Errorf("issue %s of repository %d differs", id, repository)
		}
	}
}
