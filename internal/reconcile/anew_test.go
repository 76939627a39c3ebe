package reconcile_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit/githubfake"
)

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
			if got := one[string](t, f.world, full); got != "changes issue type issue" {
				t.Errorf("proven are %q", got)
			}
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
