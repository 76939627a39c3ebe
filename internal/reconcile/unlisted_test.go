package reconcile_test

import (
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
)

// unlistedBy are the watermarks of a type, and which run was the newest that could not list it.
func (b *world) unlistedBy(t *testing.T, what string) (all []reconcile.Proven) {
	t.Helper()
	page, err := reconcile.Watermarks(t.Context(), b.Operator, b.Source, "", 10)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range page.Items {
		if p.What == what {
			all = append(all, p)
		}
	}
	return all
}

// A type whose list is refused is kept with why, is asked for once in a run, and is shown beside what was proven of it, until a run lists it again.
func TestWhatIsUnlistedIsKept(t *testing.T) {
	t.Parallel()
	b := newWorld(t, 220, living)
	b.deliver(t, b.api.h.Events)
	var refused, down atomic.Bool
	b.api.fails = func(c provider.Call) (*reconcile.Response, error) {
		switch {
		case c.Path == "/others" && refused.Load():
			return failing(http.StatusForbidden), nil
		case c.Path == "/others":
			return b.found(`{"things":[]}`), nil
		case c.Path == "/list" && down.Load():
			return failing(http.StatusBadGateway), nil
		}
		return nil, nil
	}
	b.paired(t)
	b.sweep(t, reconcile.Order{})
	if p := b.unlistedBy(t, "type another"); len(p) != 1 || p[0].UnlistedBy != 0 || p[0].Unlisted != "" {
		t.Errorf("listed, it is shown as %+v", p)
	}
	refused.Store(true)
	down.Store(true)
	asked := b.api.made("/others")
	run := b.order(t, reconcile.Order{What: reconcile.Objects})
	b.Until(t, run, func(r *runs.Run) bool { return r.Troubles > 1 || r.Status.Final() })
	down.Store(false)
	if r := b.ended(t, run); r.Status != runs.Done || r.Counts[reconcile.Unlisted] != 1 || b.api.made("/others") != asked+1 {
		t.Errorf("%s %v, its list was asked for %d times: %s", r.Status, r.Counts, b.api.made("/others")-asked, r.Detail)
	}
	report, err := reconcile.Drift(t.Context(), b.Operator, run)
	if err != nil || len(report.Types) != 2 || report.Types[0].Phase != reconcile.InUnlisted || !strings.Contains(report.Types[0].Why, "403") || report.Types[1].Phase != "done" || report.Types[1].Why != "" {
		t.Errorf("%+v (%v)", report, err)
	}
	if p := b.unlistedBy(t, "type another"); len(p) != 1 || p[0].UnlistedBy != run || !strings.Contains(p[0].Unlisted, "403") {
		t.Errorf("refused, it is shown as %+v", p)
	}
	if p := b.unlistedBy(t, "type thing"); len(p) != 1 || p[0].UnlistedBy != 0 {
		t.Errorf("the other type is shown as %+v", p)
	}
	refused.Store(false)
	b.sweep(t, reconcile.Order{})
	if p := b.unlistedBy(t, "type another"); len(p) != 1 || p[0].UnlistedBy != 0 || p[0].Unlisted != "" {
		t.Errorf("listed again, it is shown as %+v", p)
	}
}

// A key that may list nothing ends the run, also where it goes on after another process has noted some of the types.
func TestAKeyThatListsNothing(t *testing.T) {
	t.Parallel()
	b := newWorld(t, 220, living)
	b.deliver(t, b.api.h.Events)
	var well atomic.Bool
	b.api.fails = func(c provider.Call) (*reconcile.Response, error) {
		switch {
		case c.Path == "/others", c.Path == "/list" && well.Load():
			return failing(http.StatusForbidden), nil
		case c.Path == "/list":
			return failing(http.StatusBadGateway), nil
		}
		return nil, nil
	}
	b.paired(t)
	run := b.order(t, reconcile.Order{What: reconcile.Objects})
	b.Until(t, run, func(r *runs.Run) bool { return r.Troubles > 0 || r.Status.Final() })
	well.Store(true)
	if r := b.ended(t, run); r.Status != runs.Failed || !strings.Contains(r.Detail, "403") {
		t.Errorf("%s %v: %s", r.Status, r.Counts, r.Detail)
	}
}
