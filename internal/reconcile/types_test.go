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

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit/githubfake"
	"github.com/postern-gateway/postern/internal/testkit/sim"
)

// pair lists two types: "another", at /others, and "thing".
type pair struct{ sim.Provider }

func (pair) Lists(*provider.Source, *provider.API, string) map[string]provider.List {
	return map[string]provider.List{"another": {}, "thing": {}}
}

func (p pair) ListObjects(src *provider.Source, api *provider.API, account, objectType string, since, until time.Time, cursor string) provider.Call {
	c := p.Provider.ListObjects(src, api, account, objectType, since, until, cursor)
	if objectType == "another" {
		c.Path = "/others"
	}
	return c
}

// found is an answer of the world's API with this body.
func (b *world) found(body string) *reconcile.Response {
	return &reconcile.Response{Verdict: provider.Verdict{Kind: provider.Found}, Date: b.api.now.Truncate(time.Second), Body: []byte(body)}
}

// paired has runs sweep two types of the world.
func (b *world) paired(t *testing.T) {
	t.Helper()
	b.carry(t, b.runnerOf(func(s *reconcile.Source) { s.Provider, s.Reader = pair{}, pair{} }))
}

// copied has the mirror have more objects, of which the provider knows nothing.
func (b *world) copied(t *testing.T, ids ...string) {
	t.Helper()
	b.DB.Exec(t, `INSERT INTO objects SELECT (o).* FROM unnest($1::text[]) AS d(id), LATERAL (SELECT jsonb_populate_record(o, jsonb_build_object('object_id', d.id)) AS o FROM objects o WHERE object_id = 'obj_6') o`, ids)
}

// A type whose list is refused is passed over while the key is good for something; a key that was revoked after the first type ends the run.
func TestAKeyRevokedBetweenTwoTypes(t *testing.T) {
	t.Parallel()
	b := newMirror(t, 220, living)
	var revoked, listed atomic.Bool
	b.api.fails = func(c provider.Call) (*reconcile.Response, error) {
		switch {
		case revoked.Load() && listed.Load():
			return failing(http.StatusUnauthorized), nil
		case c.Path == "/others":
			listed.Store(true)
			return b.found(`{"things":[]}`), nil
		case c.Path == "/list":
			return failing(http.StatusForbidden), nil
		}
		return nil, nil
	}
	b.paired(t)
	r := b.sweep(t, reconcile.Order{})
	if r.Counts[reconcile.Unlisted] != 1 {
		t.Errorf("with a key that may not list one type: %v", r.Counts)
	}
	revoked.Store(true)
	listed.Store(false)
	b.fails(t, reconcile.Order{What: reconcile.Objects}, "401")
}

// An object that is refused by its name is left, and the others of its type are what they are; where the key is good for nothing any more, the run ends.
func TestOneRefusedObjectIsLeft(t *testing.T) {
	t.Parallel()
	b := newMirror(t, 220, living)
	b.copied(t, "gone", "other_mode")
	var revoked, met atomic.Bool
	b.api.fails = func(c provider.Call) (*reconcile.Response, error) {
		switch {
		case c.Path == "/things/other_mode":
			met.Store(revoked.Load())
			return failing(http.StatusForbidden), nil
		case met.Load():
			return failing(http.StatusUnauthorized), nil
		}
		return nil, nil
	}
	b.carry(t, b.runner())
	r := b.sweep(t, reconcile.Order{Type: "thing"})
	counted(t, r, counts{reconcile.Seen: 22, reconcile.Equal: 20, reconcile.Different: 1, reconcile.Left: 1, reconcile.Ghosts: 1, reconcile.Mended: 1})
	if dead := b.DB.Rows(t, `SELECT object_id FROM objects WHERE deleted`); len(dead) != 1 || dead[0] != "gone" || !b.proven(t).IsZero() {
		t.Errorf("dead are %q, proven until %s", dead, b.proven(t))
	}
	left := b.left(t, r.Run)
	if len(left) != 1 || left[0].ObjectID != "other_mode" || !strings.Contains(left[0].Reason, "403") {
		t.Errorf("left %+v", left)
	}
	revoked.Store(true)
	b.fails(t, reconcile.Order{What: reconcile.Objects, Type: "thing"}, "401")
}

// An object in trouble is not left while the API is in trouble with everything: the run waits for it to be well, and mends the object then.
func TestAnObjectIsNotLeftWhileNothingAnswers(t *testing.T) {
	t.Parallel()
	b := newMirror(t, 220, living)
	b.spoil(t)
	var down, well atomic.Bool
	b.api.fails = func(c provider.Call) (*reconcile.Response, error) {
		if c.Path == "/things/obj_3" && !well.Load() {
			down.Store(true)
		}
		if down.Load() && !well.Load() {
			return failing(http.StatusBadGateway), nil
		}
		return nil, nil
	}
	b.carry(t, b.runner())
	run := b.order(t, reconcile.Order{What: reconcile.Objects, Type: "thing"})
	r := b.Until(t, run, func(r *runs.Run) bool { return strings.Contains(r.Detail, "502") || r.Status.Final() })
	if n := one[int64](t, b, `SELECT coalesce(sum(remaining), 0) FROM sweeps`); r.Status.Final() || n != 0 {
		t.Errorf("%s with %d left: %s", r.Status, n, r.Detail)
	}
	well.Store(true)
	counted(t, b.ended(t, run), kinds(5))
}

// A source whose API lists nothing says what to set.
func TestASweepOfNothingIsRefused(t *testing.T) {
	t.Parallel()
	f := newForge(t, githubfake.Options{Start: time.Now().Add(-72 * time.Hour)}, func(a *provider.API) { a.Repositories = nil })
	f.fake.Open(0)
	f.through(t, f.reads.Caller)
	for _, objectType := range []string{"", "issue"} {
		f.fails(t, reconcile.Order{What: reconcile.Objects, Type: objectType}, "repositories")
	}
}

// A time that ends before it begins is refused.
func TestASweepUntilBeforeWhatIsProven(t *testing.T) {
	t.Parallel()
	b := newMirror(t, 240, living)
	b.api.version = sim.ByChange
	b.carry(t, b.runner())
	b.sweep(t, reconcile.Order{})
	b.fails(t, reconcile.Order{What: reconcile.Objects, Until: b.proven(t).Add(-time.Hour)}, "since")
}

// quiet has the API list no event any more.
func (b *world) quiet(list string) {
	b.api.meets(func(c provider.Call) (*reconcile.Response, error) {
		switch {
		case c.Path == "/":
			return b.found(string(b.api.h.Page(math.MaxInt64-1, math.MaxInt64, "", 1))), nil
		case c.Path == "/list" && list != "":
			return b.found(list), nil
		}
		return nil, nil
	})
}

// Where no event shows any more whose the key is, what was listed and is the same here does; without it what is missing is left, and the run ends.
func TestSweepOfAQuietAccount(t *testing.T) {
	t.Parallel()
	b := newMirror(t, 220, living)
	b.copied(t, "gone")
	b.quiet("")
	b.carry(t, b.runner())
	counted(t, b.sweep(t, reconcile.Order{}),
		counts{reconcile.Seen: 21, reconcile.Equal: 20, reconcile.Ghosts: 1, reconcile.Mended: 1})
	b.copied(t, "away")
	b.DB.Exec(t, `DELETE FROM objects WHERE object_id <> 'away'`)
	b.quiet(`{"things":[]}`)
	r := b.sweep(t, reconcile.Order{})
	counted(t, r, counts{reconcile.Seen: 1, reconcile.Different: 1, reconcile.Left: 1})
	left := b.left(t, r.Run)
	if len(left) != 1 || !strings.Contains(left[0].Reason, "lists no event any more") {
		t.Errorf("left %+v", left)
	}
}

// A version above the listed one is ahead only where the list cannot know of it; one that was seen long before is looked at, and left.
func TestAheadOfAListThatKnows(t *testing.T) {
	t.Parallel()
	for version, asked := range map[string]int{"": 1, sim.Both: 1, sim.Numbered: 1 + 18} { // a list of versions alone has those looked at that no look has told yet
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			b := newWorld(t, 200, living)
			b.api.version = version
			b.deliver(t, b.api.h.Events)
			b.DB.Exec(t, `UPDATE objects SET state_hash = sha256('new'), exact_hash = sha256('new'), tie_set = '[]', version_at = version_at + 10 WHERE object_id IN ('obj_5', 'obj_6')`)
			b.DB.Exec(t, `UPDATE objects SET window_hi = $1 WHERE object_id = 'obj_6'`, b.api.now.Add(time.Minute).UnixMicro())
			b.carry(t, b.runner())
			r := b.sweep(t, reconcile.Order{})
			counted(t, r, counts{reconcile.Seen: 20, reconcile.Equal: 18, reconcile.Ahead: 1, reconcile.Different: 1, reconcile.Left: 1})
			if made := b.api.made("/things/"); made != asked || !b.proven(t).IsZero() {
				t.Errorf("%d objects were asked for by their names; proven until %s", made, b.proven(t))
			}
			if b.sweep(t, reconcile.Order{}); b.api.made("/things/") != asked+1 {
				t.Errorf("%d objects were asked for again", b.api.made("/things/")-asked)
			}
		})
	}
}

// A repository that is named later has its old issues listed too, though issues are proven until after them, and a run over a part of the time claims nothing of it.
func TestSweepAfterARepositoryWasNamed(t *testing.T) {
	t.Parallel()
	var api *provider.API
	f := newForge(t, githubfake.Options{Start: time.Now().Add(-72 * time.Hour)}, func(a *provider.API) { api = a; a.Repositories = a.Repositories[1:] })
	f.fake.SetWebhooks(githubfake.Webhooks{Lost: 100})
	f.fake.Open(1)
	old := f.fake.Open(0)
	f.fake.Advance(24 * time.Hour)
	f.through(t, f.reads.Caller)
	issues := reconcile.Order{What: reconcile.Objects, Type: "issue"}
	has(t, f.done(t, issues), counts{reconcile.Missing: 1})
	api.Repositories = append(f.fake.Repositories()[:1:1], api.Repositories...)
	f.fake.Advance(24 * time.Hour)
	part := issues
	part.Since = f.fake.Now().Add(-time.Hour)
	for _, o := range []reconcile.Order{part, issues} {
		f.done(t, o)
	}
	is(t, f.world, 1, `SELECT count(*) FROM objects WHERE object_type = 'issue' AND object_id = $1`, old)
	if r := f.run(t, issues); r.Counts[reconcile.Seen] != 0 {
		t.Errorf("nothing has changed since, and %v was listed", r.Counts)
	}
}

// A process that ends between keeping what differs and mending it takes with it what only the list told: the list is read again, and each object counts once.
func TestSweepKilledWithWhatOnlyTheListTold(t *testing.T) {
	t.Parallel()
	f := newForge(t, githubfake.Options{Seed: 8, Start: time.Now().Add(-2 * time.Hour), Objects: 60, Comments: 20, Webhooks: githubfake.Webhooks{Lost: 100}}, nil)
	f.fake.Live(150)
	f.fake.Advance(time.Minute)
	r := f.runner()
	attempts := 0
	f.Carry(t, "one", 0, map[string]runs.Carry{reconcile.Job: func(ctx context.Context, h *runs.Hold, log *slog.Logger) (runs.Status, error) {
		mine := *r
		if attempts++; attempts <= 2 {
			mine.Log = f.DB.Role(t, "operator") // which may not append
		}
		return mine.Carry(ctx, h, log)
	}})
	got := f.run(t, reconcile.Order{What: reconcile.Objects, Type: "pull_request"})
	n := f.count(t, `SELECT count(*) FROM objects WHERE object_type = 'pull_request' AND NOT deleted`)
	if n == 0 || attempts < 3 {
		t.Fatalf("%d pull requests after %d attempts: nothing is proven", n, attempts)
	}
	if got.Status != runs.Done {
		t.Errorf("%s: %s", got.Status, got.Detail)
	}
	counted(t, got, counts{reconcile.Seen: n, reconcile.Missing: n, reconcile.Mended: n})
}

// A type whose list cannot be read keeps the others from nothing: they are swept, and the run tells of it, and ends once the list can be read. One that no try mends fails the run.
func TestAListInTroubleStopsNoOtherType(t *testing.T) {
	t.Parallel()
	b := newMirror(t, 220, living)
	none := b.missing()
	none.Verdict.Detail = "no such list"
	b.api.on(none, "/others")
	b.paired(t)
	run := b.order(t, reconcile.Order{What: reconcile.Objects})
	r := b.Until(t, run, func(r *runs.Run) bool { return strings.Contains(r.Detail, "no such list") })
	if r.Status.Final() || !strings.Contains(r.Detail, "type another was passed over") || b.proven(t).IsZero() {
		t.Errorf("%s, proven until %s: %s", r.Status, b.proven(t), r.Detail)
	}
	b.api.on(b.found(`{"things":[]}`), "/others")
	has(t, b.ended(t, run), counts{reconcile.Equal: 20})
	before := b.proven(t)
	b.api.set(b.api.now.Add(time.Hour))
	b.api.meets(func(c provider.Call) (*reconcile.Response, error) {
		if c.Path == "/others" {
			panic("an answer that nobody can bear")
		}
		return nil, nil
	})
	b.fails(t, reconcile.Order{What: reconcile.Objects}, "type another was passed over")
	if !b.proven(t).After(before) {
		t.Errorf("proven until %s after %s", b.proven(t), before)
	}
}

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
	b := newMirror(t, 220, living)
	empty := b.found(`{"things":[]}`)
	b.api.on(empty, "/others")
	b.paired(t)
	b.sweep(t, reconcile.Order{})
	if p := b.unlistedBy(t, "type another"); len(p) != 1 || p[0].UnlistedBy != 0 || p[0].Unlisted != "" {
		t.Errorf("listed, it is shown as %+v", p)
	}
	b.api.on(failing(http.StatusForbidden), "/others")
	b.api.on(failing(http.StatusBadGateway), "/list")
	asked := b.api.made("/others")
	run := b.order(t, reconcile.Order{What: reconcile.Objects})
	b.Until(t, run, func(r *runs.Run) bool { return r.Troubles > 1 || r.Status.Final() })
	b.api.on(nil, "/list")
	if r := b.ended(t, run); r.Status != runs.Done || r.Counts[reconcile.Unlisted] != 1 || b.api.made("/others") != asked+1 {
		t.Errorf("%s %v, its list was asked for %d times: %s", r.Status, r.Counts, b.api.made("/others")-asked, r.Detail)
	}
	report := b.report(t, run)
	if len(report.Types) != 2 || report.Types[0].Phase != reconcile.InUnlisted ||
		!strings.Contains(report.Types[0].Why, "403") || report.Types[1].Phase != "done" || report.Types[1].Why != "" {
		t.Errorf("%+v", report)
	}
	if p := b.unlistedBy(t, "type another"); len(p) != 1 || p[0].UnlistedBy != run || !strings.Contains(p[0].Unlisted, "403") {
		t.Errorf("refused, it is shown as %+v", p)
	}
	if p := b.unlistedBy(t, "type thing"); len(p) != 1 || p[0].UnlistedBy != 0 {
		t.Errorf("the other type is shown as %+v", p)
	}
	b.api.on(empty, "/others")
	b.sweep(t, reconcile.Order{})
	if p := b.unlistedBy(t, "type another"); len(p) != 1 || p[0].UnlistedBy != 0 || p[0].Unlisted != "" {
		t.Errorf("listed again, it is shown as %+v", p)
	}
}

// A key that may list nothing ends the run, also where it goes on after another process has noted some of the types.
func TestAKeyThatListsNothing(t *testing.T) {
	t.Parallel()
	b := newMirror(t, 220, living)
	b.api.on(failing(http.StatusForbidden), "/others")
	b.api.on(failing(http.StatusBadGateway), "/list")
	b.paired(t)
	run := b.order(t, reconcile.Order{What: reconcile.Objects})
	b.Until(t, run, troubled)
	b.api.on(failing(http.StatusForbidden), "/list")
	failed(t, b.ended(t, run), "403")
}
