package reconcile_test

import (
	"context"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit/githubfake"
	"github.com/postern-gateway/postern/internal/testkit/restfake"
	"github.com/postern-gateway/postern/internal/testkit/shopifyfake"
)

// A shop's lists of fulfillments and levels may have as many empty pages in a row as there are orders without fulfillments, and locations without levels.
func TestManyEmptyPagesOfAShop(t *testing.T) {
	t.Parallel()
	const empty = 250 // of which the one that is not splits off more than a hundred
	b := newBulkShop(t, shopifyfake.Options{Seed: 7, Page: 1})
	b.api.Bulk = nil
	for range empty {
		b.fake.Create("order")
		b.fake.Create("location")
	}
	b.fake.Create("inventory_item")
	for _, name := range []string{"fulfillment", "inventory_level"} {
		b.fake.Create(name)
	}
	b.fake.Advance(2 * time.Minute)
	b.Carry(t, "one", 1, map[string]runs.Carry{reconcile.Job: b.runner(t).Carry})
	for _, name := range []string{"fulfillment", "inventory_level"} {
		if counts := b.swept(t, b.ask(t, name)); counts[reconcile.Missing] != 1 || counts[reconcile.Mended] != 1 {
			t.Errorf("%s: %v", name, counts)
		}
	}
}

// onePerPage asks for one issue a page.
type onePerPage struct {
	reconcile.Caller
	pages *int
}

func (c onePerPage) Do(ctx context.Context, call provider.Call) (*reconcile.Response, error) {
	if strings.HasSuffix(call.Path, "/issues") && call.Query.Get("sort") != "" {
		*c.pages++
		call.Query = maps.Clone(call.Query)
		call.Query.Set("per_page", "1")
	}
	return c.Caller.Do(ctx, call)
}

// GitHub lists pull requests among the issues, so that many pages in a row may tell of no issue.
func TestManyPullRequestsAmongIssues(t *testing.T) {
	t.Parallel()
	f := newForge(t, githubfake.Options{Seed: 4, Repositories: 1, Start: time.Now().Add(-4 * time.Hour)}, nil)
	for range 130 {
		f.fake.Pull(0)
		f.fake.Advance(3 * time.Second)
	}
	f.fake.Advance(time.Minute)
	pages := 0
	f.carry(t, onePerPage{f.reads.Caller, &pages})
	if r := f.run(t, reconcile.Order{What: reconcile.Objects, Type: "issue"}); r.Status != runs.Done || pages < 130 {
		t.Errorf("after %d pages: %s with %v: %s", pages, r.Status, r.Counts, r.Detail)
	}
}

// Whether the list of an API that is described may have many empty pages is described too.
func TestADescribedListIsSparse(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]bool{"item: thing\n": false, "item: thing\n            sparse: true\n": true} {
		s := newThingsWard(t, restfake.Options{}, []string{"item: thing\n", line}).source(t)
		if l, ok := s.Reader.(provider.ObjectLister).Lists(s.Config, s.API, "")["thing"]; !ok || l.Sparse != want {
			t.Errorf("%q: %+v", line, l)
		}
	}
}
