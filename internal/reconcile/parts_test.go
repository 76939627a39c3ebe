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

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/github"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit/githubfake"
)

// runner carries runs over the fake out.
func (f *forge) runner() *reconcile.Runner {
	r := &reconcile.Runner{Pool: f.Pool, Log: f.gateway, Processor: f.proc, Sources: &reconcile.Sources{}, Settings: reconcile.DefaultSettings}
	r.Sources.Replace(f.reads)
	r.Settings.Settle, r.Settings.Again = time.Second, time.Millisecond
	return r
}

// patchy is a source of three repositories, of which half of the webhooks were lost. The second is shut with a status.
func patchy(t *testing.T, status int, o githubfake.Options) *forge {
	t.Helper()
	o.Start, o.Repositories = time.Now().Add(-3*time.Hour), 3
	f := newForge(t, o, nil)
	var all []string
	for i := range 60 {
		f.fake.Advance(2 * time.Second)
		id := []func(int) string{f.fake.Open, f.fake.Open, f.fake.Pull, f.fake.Draft}[i/3%4](i % 3)
		if all = append(all, id); i/3%4 == 3 {
			f.fake.Advance(2 * time.Second)
			f.fake.Publish(id)
		}
	}
	f.deliver(t)
	f.fake.SetWebhooks(githubfake.Webhooks{Lost: 100})
	for i, id := range all {
		f.fake.Advance(2 * time.Second)
		switch {
		case i%5 == 0 && i/3%4 != 2: // pull requests stay
			f.fake.Delete(id)
		case i%5 < 3:
			f.fake.Edit(id)
		}
		f.fake.Open(i % 3)
	}
	f.fake.Advance(time.Minute)
	f.fake.Shut(1, status)
	return f
}

// lists are how many types are listed.
func (f *forge) lists() int64 { return int64(len(github.GitHub{}.Lists(f.config, f.reads.API, ""))) }

// apart are the objects that the mirror does not show as they are, those of the second repository and of the others.
func (f *forge) apart(t *testing.T) (shut, others []string) {
	t.Helper()
	of := f.ids(1)
	for _, w := range f.wrongs(t) {
		name, _, _ := strings.Cut(w, ":")
		if _, id, _ := strings.Cut(name, " "); slices.Contains(of, id) {
			shut = append(shut, w)
		} else {
			others = append(others, w)
		}
	}
	return shut, others
}

const full = `SELECT coalesce(string_agg(what, ' ' ORDER BY what), '') FROM watermarks`

// A repository that cannot be read keeps no other from being swept: whatever it answers, nothing of it is taken for gone, asked for, left, or proven, and the run names it. Once it can be read, all is
// mended and proven.
func TestARepositoryThatCannotBeRead(t *testing.T) {
	t.Parallel()
	for _, status := range []int{http.StatusNotFound, http.StatusForbidden, http.StatusInternalServerError} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			t.Parallel()
			f := patchy(t, status, githubfake.Options{})
			if shut, others := f.apart(t); len(shut) == 0 || len(others) == 0 {
				t.Fatalf("%d and %d are wrong: there is nothing to find", len(shut), len(others))
			}
			made := len(f.fake.Requests())
			f.carry(t, f.runner())
			r := f.run(t, reconcile.Order{What: reconcile.Objects, Full: true})
			has(t, r, counts{reconcile.Passed: f.lists(), reconcile.Left: 0})
			if _, others := f.apart(t); len(others) > 0 {
				t.Errorf("%d of the others are wrong, the first: %s", len(others), others[0])
			}
			f.untouched(t, f.fake.Requests()[made:])
			asked := 0
			for _, r := range f.fake.Requests()[made:] {
				if strings.Contains(r, "kettle-1") {
					asked++
				}
			}
			if most := 2 * 6 * int(f.lists()); asked > most { // six times by each of two tries
				t.Errorf("it was asked for %d times, want %d at most", asked, most)
			}
			report := f.report(t, r.Run)
			if len(report.Types) != int(f.lists()) {
				t.Fatalf("%d types", len(report.Types))
			}
			for _, typ := range report.Types {
				if over := typ.PassedOver; len(over) != 1 || over[0].Part != "octo-fake/kettle-1" || over[0].Cut || !strings.Contains(over[0].Text(), fmt.Sprint("answered ", status)) || !strings.Contains(over[0].Text(), "take it out") {
					t.Errorf("%s passed over %+v", typ.ObjectType, over)
				}
			}
			f.fake.Shut(1, 0)
			r = f.run(t, reconcile.Order{What: reconcile.Objects, Full: true})
			if shut, others := f.apart(t); r.Status != runs.Done || r.Counts[reconcile.Passed] != 0 || len(shut)+len(others) > 0 {
				t.Errorf("%s %v: %s; %d and %d are wrong", r.Status, r.Counts, r.Detail, len(shut), len(others))
			}
			if got := one[string](t, f.world, full); !strings.Contains(got, "type release") || !strings.Contains(got, "changes issue") {
				t.Errorf("proven are %s", got)
			}
		})
	}
}

// untouched: nothing of the second repository was asked for by its name, deleted by a look, or proven.
func (f *forge) untouched(t *testing.T, requests []string) {
	t.Helper()
	for _, r := range requests {
		if path, _, _ := strings.Cut(r, "?"); strings.Contains(path, "kettle-1/") && strings.Count(path, "/") > 4 && !strings.HasSuffix(path, "/comments") {
			t.Errorf("asked for %s", r)
		}
	}
	is(t, f.world, 0, `SELECT count(*) FROM objects WHERE deleted AND object_id = ANY($1)`, f.ids(1))
	is(t, f.world, 0, `SELECT count(*) FROM drifts WHERE object_id = ANY($1)`, f.ids(1))
	is(t, f.world, "", full)
}

// ids are the objects of a repository.
func (f *forge) ids(repository int) (ids []string) {
	for _, o := range f.fake.Truth() {
		if o.Repository == f.fake.Repositories()[repository] {
			ids = append(ids, o.ID)
		}
	}
	return ids
}

// Wherever a process ends, a repository that cannot be read is passed over once, and each object counts once.
func TestPassedOverOnceThoughKilled(t *testing.T) {
	t.Parallel()
	calm, wild := patchy(t, http.StatusForbidden, githubfake.Options{}), patchy(t, http.StatusForbidden, githubfake.Options{})
	calm.carry(t, calm.runner())
	want := calm.run(t, reconcile.Order{What: reconcile.Objects, Full: true})
	wild.Carry(t, "one", 0, map[string]runs.Carry{reconcile.Job: dies(t, wild.runner())})
	got := wild.run(t, reconcile.Order{What: reconcile.Objects, Full: true})
	for what, n := range nonzero(want.Counts) {
		if got.Counts[what] != n {
			t.Errorf("%d %s, undisturbed %d", got.Counts[what], what, n)
		}
	}
	if got.Status != runs.Done || got.Counts[reconcile.Passed] != wild.lists() {
		t.Errorf("%s %v: %s", got.Status, got.Counts, got.Detail)
	}
	if _, others := wild.apart(t); len(others) > 0 {
		t.Error(others)
	}
	wild.untouched(t, nil)
}

// With a key that is good for nothing any more a run passes over no repository: it ends.
func TestARevokedKeyPassesOverNothing(t *testing.T) {
	t.Parallel()
	f := patchy(t, 0, githubfake.Options{})
	var revoked atomic.Bool
	f.through(t, meddling{f.reads.Caller, func(c provider.Call) *reconcile.Response {
		switch {
		case strings.Contains(c.Path, "kettle-1/issues"):
			revoked.Store(true)
			return failing(http.StatusForbidden)
		case revoked.Load() && c.Path == "/": // the rest is answered, so that nothing else ends the run
			return failing(http.StatusUnauthorized)
		}
		return nil
	}})
	r := f.run(t, reconcile.Order{What: reconcile.Objects, Type: "issue", Full: true})
	if n := f.count(t, `SELECT count(*) FROM sweeps WHERE passed_over <> '[]'`); !revoked.Load() || r.Status != runs.Failed || !strings.Contains(r.Detail, "401") || n != 0 {
		t.Errorf("%s, %d passed over: %s", r.Status, n, r.Detail)
	}
}

// meddling is a Caller that may answer in the place of the API.
type meddling struct {
	reconcile.Caller
	fails func(c provider.Call) *reconcile.Response
}

func (m meddling) Do(ctx context.Context, c provider.Call) (*reconcile.Response, error) {
	if a := m.fails(c); a != nil {
		return a, nil
	}
	return m.Caller.Do(ctx, c)
}

// Where no repository can be read, the run says so.
func TestNoRepositoryCanBeRead(t *testing.T) {
	t.Parallel()
	f := patchy(t, http.StatusNotFound, githubfake.Options{})
	f.fake.Shut(0, http.StatusGone)
	f.fake.Shut(2, http.StatusNotFound)
	f.carry(t, f.runner())
	f.fails(t, reconcile.Order{What: reconcile.Objects}, "answered 404")
}

// A list that GitHub gives no further, whatever it answers then, is read as far as it goes: what is here of the rest is asked for by its name, the next repository is listed, and the type is not proven.
func TestAListThatEndsEarly(t *testing.T) {
	t.Parallel()
	for _, status := range []int{0, http.StatusBadGateway} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			t.Parallel()
			f := newForge(t, githubfake.Options{Start: time.Now().Add(-3 * time.Hour), Releases: 100, ReleasesEnd: status}, nil)
			var old, newest string
			for i := range 130 {
				newest = f.fake.Draft(0)
				f.fake.Advance(2 * time.Second)
				f.fake.Publish(newest)
				if f.fake.Advance(2 * time.Second); i == 0 {
					old = newest
				}
			}
			f.deliver(t)
			f.fake.SetWebhooks(githubfake.Webhooks{Lost: 100})
			for _, id := range []string{old, newest} {
				f.fake.Edit(id)
			}
			last := f.fake.Draft(1)
			f.fake.Publish(last)
			f.fake.Advance(time.Minute)
			f.carry(t, f.runner())
			r := f.run(t, reconcile.Order{What: reconcile.Objects, Type: "release"})
			has(t, r, counts{reconcile.Seen: 131, reconcile.Mended: 3, reconcile.Passed: 1})
			none(t, f.wrongs(t))
			report := f.report(t, r.Run)
			if len(report.Types) != 1 || len(report.Types[0].PassedOver) != 1 || !report.Types[0].PassedOver[0].Cut ||
				!strings.Contains(report.Types[0].PassedOver[0].Text(), "to its end") {
				t.Errorf("%+v", report)
			}
			is(t, f.world, "", full)
		})
	}
}

// Many repositories that have nothing lead in no circle.
func TestManyEmptyRepositories(t *testing.T) {
	t.Parallel()
	f := newForge(t, githubfake.Options{Start: time.Now().Add(-3 * time.Hour), Repositories: 130}, nil)
	f.fake.Advance(time.Minute)
	f.carry(t, f.runner())
	f.done(t, reconcile.Order{What: reconcile.Objects, Type: "release"})
	is(t, f.world, "type release", full)
}

// An object that is missing where the list that shows whether the key would see it is refused is left, and the others are what they are; with a key that is good for nothing the run ends.
func TestAMissingObjectWhoseListIsRefused(t *testing.T) {
	t.Parallel()
	f := patchy(t, 0, githubfake.Options{})
	var revoked, met atomic.Bool
	f.through(t, meddling{f.reads.Caller, func(c provider.Call) *reconcile.Response {
		switch {
		case strings.HasSuffix(c.Path, "kettle-1/releases") && c.Query.Get("per_page") == "1":
			met.Store(revoked.Load())
			return failing(http.StatusForbidden)
		case met.Load():
			return failing(http.StatusUnauthorized)
		}
		return nil
	}})
	order := reconcile.Order{What: reconcile.Objects, Type: "release", Full: true}
	has(t, f.done(t, order), counts{reconcile.Left: 1, reconcile.Ghosts: 2})
	if why := one[string](t, f.world, `SELECT reason FROM drifts WHERE result = 'left'`); !strings.Contains(why, "403") || !strings.Contains(why, "not believed") {
		t.Errorf("left, for %s", why)
	}
	revoked.Store(true)
	if r := f.run(t, order); r.Status != runs.Failed || !strings.Contains(r.Detail, "401") || r.Counts[reconcile.Left] != 0 {
		t.Errorf("%s %v: %s", r.Status, r.Counts, r.Detail)
	}
}

// A repository that was renamed is listed where GitHub leads to, under the name that the source has of it.
func TestARenamedRepositoryIsListed(t *testing.T) {
	t.Parallel()
	f := patchy(t, 0, githubfake.Options{})
	f.fake.Rename("pot")
	f.fake.Advance(time.Minute)
	f.carry(t, f.runner())
	if r := f.run(t, reconcile.Order{What: reconcile.Objects, Full: true}); r.Status != runs.Done || r.Counts[reconcile.Passed] != 0 || r.Counts[reconcile.Left] != 0 || r.Counts[reconcile.Ghosts] == 0 {
		t.Errorf("%s %v: %s", r.Status, r.Counts, r.Detail)
	}
	none(t, f.wrongs(t))
}

// Where the repositories are put in another order, or one is taken out or added, while a run is put off inside of one, its list begins anew: each that is named now is listed, and nothing is proven that
// was not.
func TestRepositoriesChangeDuringARun(t *testing.T) {
	t.Parallel()
	for _, change := range [][2][]int{{{0, 1, 2}, {0, 2, 1}}, {{0, 1, 2}, {0, 2}}, {{0, 1}, {2, 0, 1}}} {
		t.Run(fmt.Sprint(change), func(t *testing.T) {
			t.Parallel()
			f := patchy(t, 0, githubfake.Options{})
			f.fake.Advance(150 * time.Minute)
			var changed atomic.Bool
			source := *f.reads
			source.Caller = meddling{f.reads.Caller, func(c provider.Call) *reconcile.Response {
				if strings.Contains(c.Path, "kettle-1/issues") && !changed.Load() {
					return failing(http.StatusInternalServerError)
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
			f.Carry(t, "one", 1, map[string]runs.Carry{reconcile.Job: func(ctx context.Context, h *runs.Hold, log *slog.Logger) (runs.Status, error) {
				if n.Add(1) == 2 {
					changed.Store(true)
					names(change[1])
				}
				return r.Carry(ctx, h, log)
			}})
			run := f.run(t, reconcile.Order{What: reconcile.Objects, Type: "issue", Full: true})
			if run.Status != runs.Done || n.Load() != 2 || run.Counts[reconcile.Left] != 0 || run.Counts[reconcile.Passed] != 0 {
				t.Errorf("%s %v after %d attempts: %s", run.Status, run.Counts, n.Load(), run.Detail)
			}
			for _, i := range change[1] {
				f.has(t, i)
			}
			is(t, f.world, "changes issue type issue", full)
			if got := one[int64](t, f.world, `SELECT checked - (SELECT count(*) FROM objects WHERE object_type = 'issue' AND NOT deleted) FROM sweeps`); got != 0 && len(change[1]) == 3 {
				t.Errorf("%d more objects were counted than there are", got)
			}
			calls := len(f.fake.Requests())
			f.fake.Advance(10 * time.Minute)
			f.run(t, reconcile.Order{What: reconcile.Objects, Type: "issue"})
			for _, q := range f.fake.Requests()[calls:] {
				if strings.Contains(q, "/issues?") && !strings.Contains(q, "since=") {
					t.Errorf("a list that is proven was read whole again: %s", q)
				}
			}
		})
	}
}

// has holds that the mirror has all issues of a repository as they are.
func (f *forge) has(t *testing.T, repository int) {
	t.Helper()
	wrong := map[string]bool{}
	for _, w := range f.wrongs(t) {
		name, _, _ := strings.Cut(w, ":")
		wrong[name] = true
	}
	for _, id := range f.ids(repository) {
		if wrong["issue "+id] {
			t.Errorf("issue %s of repository %d is not here as it is", id, repository)
		}
	}
}
