package reconcile_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit/sim"
)

// sparse lists things through others that may have none.
type sparse struct{ sim.Provider }

func (sparse) Lists(*provider.Source, *provider.API, string) map[string]provider.List {
	return map[string]provider.List{"thing": {Sparse: true}}
}

// sparsely has runs sweep a list of pages whose cursors are numbers, up to a last one or back to another; a page in ten tells of the same object.
func (b *world) sparsely(t *testing.T, last, back int, empty bool) *runs.Run {
	t.Helper()
	b.deliver(t, b.api.h.Events)
	thing := fmt.Sprintf(`{"id":"obj_1","answer":%s}`, b.anObject())
	b.api.fails = func(call provider.Call) (*reconcile.Response, error) {
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
		if n%10 == 9 && !empty {
			object = thing
		}
		return b.answer(provider.Found, fmt.Appendf(nil, `{"things":[%s],"next":%q}`, object, next)), nil
	}
	r := b.runner()
	r.Sources.Replace(b.source(func(s *reconcile.Source) { s.Provider, s.Reader = sparse{}, sparse{} }))
	b.carry(t, r)
	return b.ask(t, reconcile.Order{What: reconcile.Objects, DryRun: true})
}

// Of a sparse list many pages in a row may tell of nothing; one whose cursors lead in a circle comes to an end all the same, whether there is nothing on it or the same again and again.
func TestSparseLists(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		last, back int
		empty      bool
		most       int
	}{
		"long":                     {350, 0, true, 351},
		"circle of nothing":        {150, 130, true, 450},
		"circle of two":            {2, 1, true, 40},
		"circle with objects":      {40, 3, false, 1100},
		"long, then a wide circle": {700, 200, true, 2300},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newWorld(t, 220, living)
			r := b.sparsely(t, c.last, c.back, c.empty)
			if c.back == 0 && r.Status != runs.Done || c.back > 0 && (r.Status != runs.Failed || !strings.Contains(r.Detail, "in a circle")) {
				t.Errorf("%s: %s", r.Status, r.Detail)
			}
			if n := b.api.made("/list"); n > c.most || n <= c.last {
				t.Errorf("after %d pages", n)
			}
		})
	}
}

// What a page is below may be deleted meanwhile: the list is begun again then, as it is where a cursor has expired.
func TestAListWhosePlaceIsMissing(t *testing.T) {
	t.Parallel()
	b := newWorld(t, 220, living)
	b.deliver(t, b.api.h.Events)
	begun := 0
	b.api.fails = func(call provider.Call) (*reconcile.Response, error) {
		switch {
		case call.Path != "/list":
		case call.Query.Get("cursor") == "":
			begun++
		case begun == 1: // it is there no more, however often it is asked for
			return b.answer(provider.Missing, nil), nil
		}
		return nil, nil
	}
	b.carry(t, b.runner())
	r := b.ask(t, reconcile.Order{What: reconcile.Objects})
	if r.Status != runs.Done || r.Counts[reconcile.Equal] != 20 || begun < 2 {
		t.Errorf("%s %v, begun %d times: %s", r.Status, r.Counts, begun, r.Detail)
	}
}
