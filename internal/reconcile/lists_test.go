package reconcile_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit/githubfake"
	"github.com/postern-gateway/postern/internal/testkit/restfake"
	"github.com/postern-gateway/postern/internal/testkit/shopifyfake"
	"github.com/postern-gateway/postern/internal/testkit/sim"
)

// sparse lists things through others that may have none.
type sparse struct{ sim.Provider }

func (sparse) Lists(*provider.Source, *provider.API, string) map[string]provider.List {
	return map[string]provider.List{"thing": {Sparse: true}}
}

// sparsely has runs sweep a list of pages whose cursors are numbers, up to a last one or back to
// another; a page in three tells of the same object.
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
		if n%3 == 2 && !empty {
			object = thing
		}
		return b.answer(provider.Found, fmt.Appendf(nil, `{"things":[%s],"next":%q}`, object, next)), nil
	}
	b.carry(t, b.runnerOf(func(s *reconcile.Source) { s.Provider, s.Reader = sparse{}, sparse{} }))
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
		"long":                {350, 0, true, 351},
		"circle of nothing":   {150, 130, true, 450},
		"circle of two":       {2, 1, true, 40},
		"circle with objects": {40, 3, false, 400},
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
	b := newMirror(t, 220, living)
	begun := 0
	b.api.fails = func(call provider.Call) (*reconcile.Response, error) {
		switch {
		case call.Path != "/list":
		case call.Query.Get("cursor") == "":
			begun++
		case begun == 1: // it is there no more, however often it is asked for
			return b.missing(), nil
		}
		return nil, nil
	}
	b.carry(t, b.runner())
	r := b.ask(t, reconcile.Order{What: reconcile.Objects})
	if r.Status != runs.Done || r.Counts[reconcile.Equal] != 20 || begun < 2 {
		t.Errorf("%s %v, begun %d times: %s", r.Status, r.Counts, begun, r.Detail)
	}
}

// A type that is done is no progress in a later try: a run whose next type is in lasting trouble is tried ever more seldom.
func TestTroubleAfterATypeThatIsDone(t *testing.T) {
	t.Parallel()
	b := newMirror(t, 220, living)
	b.api.on(b.found(`{"things":[]}`), "/aaas")
	b.api.on(b.missing(), "/list")
	b.before(t)
	run := b.order(t, reconcile.Order{What: reconcile.Objects})
	b.Until(t, run, func(r *runs.Run) bool { return r.Troubles >= 3 })
	b.api.on(nil, "/list")
	r := b.ended(t, run)
	counted(t, r, counts{reconcile.Seen: 20, reconcile.Equal: 20})
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
	}{{"objects, begun again", false, 1}, {"nothing", true, 0}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := newMirror(t, 220, living)
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

// A long list may tell of nothing new for as long as it was before it was begun again, since its cursor had expired, or for what a
// process could not append.
func TestALongListIsBegunAgain(t *testing.T) {
	t.Parallel()
	const pages = 250
	for again, expires := range map[string]int{"rereads 0, restarts 2": 2, "rereads 1, restarts 0": 0} {
		t.Run(again, func(t *testing.T) {
			t.Parallel()
			b := newMirror(t, 220, living)
			b.alive(t, "thing", "new_", pages-1) // the last one to be listed is missing
			times := expires
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
				return b.found(fmt.Sprintf(`{"things":[{"id":"new_%d","answer":%s}],"next":%q}`, n+1, b.anObject(), next)), nil
			}
			p := unread{not: func(id string) bool { return id == fmt.Sprint("new_", pages) }} // only the list tells of it
			r := b.runnerOf(func(s *reconcile.Source) { s.Provider, s.Reader = p, p })
			mute := *r
			mute.Log = b.DB.Role(t, "gateway")
			mute.Log.Close()
			attempts := 0
			b.Carry(t, "one", 0, map[string]runs.Carry{reconcile.Job: func(ctx context.Context, h *runs.Hold, log *slog.Logger) (runs.Status, error) {
				if attempts++; attempts == 1 && expires == 0 {
					return mute.Carry(ctx, h, log)
				}
				return r.Carry(ctx, h, log)
			}})
			has(t, b.done(t, reconcile.Order{What: reconcile.Objects}), counts{reconcile.Missing: 1, reconcile.Mended: 1})
			b.rows(t, `SELECT 'rereads ' || rereads || ', restarts ' || restarts FROM sweeps`, again)
		})
	}
}

// Lists that may have many empty pages in a row say so: of what lies below other objects, of
// issues, among which GitHub lists pull requests, and of a described API.
func TestLists_ofObjectsBelowOthers_areSparse(t *testing.T) {
	t.Parallel()
	described := func(edits ...string) *reconcile.Source { return newThingsWard(t, restfake.Options{}, edits).source(t) }
	hub := newForgeWard(t, githubfake.Options{}, false).source(t)
	shop := newShopWard(t, shopifyfake.Options{}).source(t)
	for _, c := range []struct {
		source     *reconcile.Source
		objectType string
		want       bool
	}{
		{shop, "fulfillment", true}, {shop, "inventory_level", true}, {shop, "product", false}, {hub, "issue", true}, {hub, "release", false},
		{described(), "thing", false}, {described("item: thing\n", "item: thing\n            sparse: true\n"), "thing", true},
	} {
		lister := c.source.Reader.(provider.ObjectLister)
		if l, ok := lister.Lists(c.source.Config, c.source.API, c.source.Config.Account)[c.objectType]; !ok ||
			l.Sparse != c.want {
			t.Errorf("%s of %s: %+v", c.objectType, c.source.Config.Name, l)
		}
	}
}

// An object that is left counts once, however often its list is begun again, and no more once it is right.
func TestWhatIsLeftCountsOnce(t *testing.T) {
	t.Parallel()
	for _, lasting := range []bool{true, false} {
		t.Run(fmt.Sprint(lasting), func(t *testing.T) {
			t.Parallel()
			b := newMirror(t, 230, living)
			b.spoil(t)
			restarts, asked := 0, 0
			b.api.fails = func(c provider.Call) (*reconcile.Response, error) {
				switch {
				case c.Path == "/list" && c.Query.Get("cursor") == "obj_14" && restarts < 3:
					restarts++
					return b.answer(provider.Expired, nil), nil
				case strings.HasPrefix(c.Path, "/things/obj_3"):
					if asked++; !lasting && asked > 1 {
						return nil, nil
					}
					return b.missing(), nil
				}
				return nil, nil
			}
			b.carry(t, b.runner())
			r := b.sweep(t, reconcile.Order{})
			want := kinds(5)
			delete(want, reconcile.Behind)
			want[reconcile.Different]++ // what is listed and missing is told as that
			if lasting {
				want[reconcile.Mended], want[reconcile.Left] = 4, 1
			}
			counted(t, r, want)
			if restarts != 3 || asked < 2 || b.proven(t).IsZero() != lasting {
				t.Errorf("after %d restarts proven until %s", restarts, b.proven(t))
			}
		})
	}
}

// begun is a sweep that an earlier process has begun and has not come far with.
func (b *world) begun(t *testing.T) (run int64) {
	t.Helper()
	run = b.order(t, reconcile.Order{What: reconcile.Objects})
	scope := reconcile.ScopeOf(b.sources().All()[b.Source], "thing")
	b.DB.Exec(t, `INSERT INTO sweeps (run, source, account, object_type, began, scope, updated_at)
		VALUES ($1, $2, '', 'thing', $3, $4, now())`, run, b.Source, b.api.now.Truncate(time.Second), scope)
	return run
}

// Where a list begins again, an object that was met before counts as it did then: as mended where it was wrong and is right now, and as left where it is wrong now.
func TestObjectsThatAreMetAgain(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		// remains and odd are what is noted of the one that was met, progress is what it counts as; unread: it cannot be read now; same: it does not differ now.
		remains, odd bool
		progress     string
		unread, same bool
		want         map[string]int64
	}{
		"right, then left, then the same":      {true, false, "remaining = 1", false, true, counts{reconcile.Equal: 20}},
		"wrong and left, then the same":        {true, true, "behind = 1, remaining = 1", false, true, counts{reconcile.Equal: 19, reconcile.Behind: 1, reconcile.Mended: 1}},
		"right, then left, then right":         {true, false, "remaining = 1", false, false, counts{reconcile.Equal: 20}},
		"wrong and left, then right":           {true, true, "behind = 1, remaining = 1", false, false, counts{reconcile.Equal: 19, reconcile.Behind: 1, reconcile.Mended: 1}},
		"wrong and mended, then left":          {false, true, "behind = 1, mended = 1", true, false, counts{reconcile.Equal: 19, reconcile.Behind: 1, reconcile.Left: 1}},
		"wrong and left, and left again":       {true, true, "behind = 1, remaining = 1", true, false, counts{reconcile.Equal: 19, reconcile.Behind: 1, reconcile.Left: 1}},
		"right, then left":                     {false, false, "mended = 0", true, false, counts{reconcile.Equal: 20, reconcile.Left: 1}},
		"wrong and mended, wrong and mended":   {false, true, "behind = 1, mended = 1", false, false, counts{reconcile.Equal: 19, reconcile.Behind: 1, reconcile.Mended: 1}},
		"right, and then wrong, and so mended": {false, false, "mended = 0", false, false, counts{reconcile.Equal: 20}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newMirror(t, 200, living)
			if !c.same {
				b.DB.Exec(t, `UPDATE objects SET state = '{"name": "old"}', state_hash = sha256('old'), exact_hash = sha256('old'), tie_set = '[]', version_at = version_at - 10 WHERE object_id = 'obj_3'`)
			}
			if c.unread {
				b.api.on(failing(http.StatusForbidden), "/things/obj_3")
			}
			run := b.begun(t)
			b.DB.Exec(t, `INSERT INTO listed (run, object_type, object, remains, odd)
				VALUES ($1, 'thing', hashtextextended('obj_3', 0), $2, $3)`, run, c.remains, c.odd)
			b.DB.Exec(t, `UPDATE sweeps SET checked = 1, `+c.progress)
			b.carry(t, b.runner())
			c.want[reconcile.Seen] = 20
			counted(t, b.ended(t, run), c.want)
		})
	}
}
