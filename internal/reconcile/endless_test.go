package reconcile_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
)

// A type that is done is no progress in a later try: a run whose next type is in lasting trouble is tried ever more seldom.
func TestTroubleAfterATypeThatIsDone(t *testing.T) {
	t.Parallel()
	b := newWorld(t, 220, living)
	b.deliver(t, b.api.h.Events)
	well := false
	b.api.fails = func(c provider.Call) (*reconcile.Response, error) {
		switch {
		case c.Path == "/aaas":
			return b.answer(provider.Found, []byte(`{"things":[]}`)), nil
		case c.Path == "/list" && !well:
			return b.answer(provider.Missing, nil), nil
		}
		return nil, nil
	}
	b.before(t)
	run := b.order(t, reconcile.Order{What: reconcile.Objects})
	b.Until(t, run, func(r *runs.Run) bool { return r.Troubles >= 3 })
	b.api.mu.Lock()
	well = true
	b.api.mu.Unlock()
	r := b.ended(t, run)
	counted(t, r, map[string]int64{reconcile.Seen: 20, reconcile.Equal: 20})
	if r.Status != runs.Done {
		t.Errorf("%s: %s", r.Status, r.Detail)
	}
}

// A list whose cursors lead in a circle comes to an end all the same, and says so: whether it was begun again before, and whether its pages are empty.
func TestCursorsInACircle(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		empty   bool
		expires int
	}{{"objects", false, 0}, {"objects, begun again", false, 1}, {"nothing", true, 0}, {"nothing, begun again", true, 1}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := newWorld(t, 220, living)
			b.deliver(t, b.api.h.Events)
			left := c.expires
			b.api.fails = func(call provider.Call) (*reconcile.Response, error) {
				if call.Path != "/list" {
					return nil, nil
				}
				next := "a"
				if call.Query.Get("cursor") == "a" {
					if next = "b"; left > 0 {
						left--
						return b.answer(provider.Expired, nil), nil
					}
				}
				var thing string
				if !c.empty {
					thing = fmt.Sprintf(`{"id":"obj_1","answer":%s}`, b.anObject())
				}
				return b.answer(provider.Found, fmt.Appendf(nil, `{"things":[%s],"next":%q}`, thing, next)), nil
			}
			b.carry(t, b.runner())
			r := b.ask(t, reconcile.Order{What: reconcile.Objects})
			if r.Status != runs.Failed || !strings.Contains(r.Detail, "nothing new") || !b.proven(t).IsZero() {
				t.Errorf("%s: %s; proven until %s", r.Status, r.Detail, b.proven(t))
			}
			if n := b.api.made("/list"); n > 200 {
				t.Errorf("after %d pages", n)
			}
		})
	}
}

// A list may tell of nothing new for as long as it was before it was begun again.
func TestALongListIsBegunAgain(t *testing.T) {
	t.Parallel()
	const pages = 250
	b := newWorld(t, 220, living)
	b.deliver(t, b.api.h.Events)
	times := 2
	b.api.fails = func(call provider.Call) (*reconcile.Response, error) {
		if call.Path != "/list" {
			return nil, nil
		}
		var n int
		_, _ = fmt.Sscan(call.Query.Get("cursor"), &n)
		next := fmt.Sprint(n + 1)
		switch {
		case n == pages-1 && times > 0:
			times--
			return b.answer(provider.Expired, nil), nil
		case n == pages-1:
			next = ""
		}
		return b.answer(provider.Found, fmt.Appendf(nil, `{"things":[{"id":"new_%d","answer":%s}],"next":%q}`, n, b.anObject(), next)), nil
	}
	b.carry(t, b.runner())
	r := b.ask(t, reconcile.Order{What: reconcile.Objects, DryRun: true})
	if r.Status != runs.Done || r.Counts[reconcile.Missing] != pages || times > 0 {
		t.Errorf("%s %v: %s", r.Status, r.Counts, r.Detail)
	}
}
