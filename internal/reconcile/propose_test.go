package reconcile_test

import (
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit/githubfake"
	"github.com/postern-gateway/postern/internal/testkit/shopifyfake"
	"github.com/postern-gateway/postern/internal/testkit/sim"
	"github.com/postern-gateway/postern/internal/testkit/stripefake"
)

// crowded has 90 objects of type "aaa" here that the API does not have, and the kinds of difference among the things.
func crowded(t *testing.T) *world {
	t.Helper()
	b := newMirror(t, 220, living)
	b.alive(t, "aaa", "gone_", 90)
	b.spoil(t)
	b.api.on(b.found(`{"things":[]}`), "/aaas")
	b.api.on(b.missing(), "/aaa/*")
	return b
}

// proposed waits until a run is, and says how many looks at objects of type "aaa" there are, and until when things are proven.
func (b *world) proposed(t *testing.T, run int64, words ...string) {
	t.Helper()
	r := b.Until(t, run, halted)
	for _, w := range words {
		if r.Status != runs.Proposed || !strings.Contains(r.Detail, w) {
			t.Errorf("%s: %s; want %q", r.Status, r.Detail, w)
		}
	}
	is(t, b, 0, `SELECT count(*) FROM objects WHERE object_type = 'aaa' AND deleted`)
}

// A type of which many objects are gone keeps the types behind it from nothing: they are swept, mended and proven, then a person is asked, and what is approved is done.
func TestATypeThatIsProposedStopsNoOther(t *testing.T) {
	t.Parallel()
	b := crowded(t)
	b.before(t)
	run := b.order(t, reconcile.Order{What: reconcile.Objects})
	b.proposed(t, run, "90 of 90 living objects of type aaa are here")
	if wrong := b.wrong(t); len(wrong) > 1 || b.proven(t).IsZero() { // one is ahead
		t.Errorf("things are proven until %s, and %q", b.proven(t), wrong)
	}
	b.approve(t, run, "they are gone")
	r, want := b.ended(t, run), kinds(95)
	want[reconcile.Seen], want[reconcile.Ghosts] = 111, 91
	counted(t, r, want)
	if n := one[int64](t, b, `SELECT count(*) FROM objects WHERE object_type = 'aaa' AND deleted`); r.Status != runs.Done || r.Detail != "" || n != 90 {
		t.Errorf("%s, %d deleted: %s", r.Status, n, r.Detail)
	}
}

// A person is asked for all types at once; each may delete as many as were told of it, and no more.
func TestAllTypesAreProposedAtOnce(t *testing.T) {
	t.Parallel()
	b := crowded(t)
	b.alive(t, "thing", "gone_", 40)
	b.before(t)
	run := b.order(t, reconcile.Order{What: reconcile.Objects})
	b.proposed(t, run, "90 of 90 living objects of type aaa, 41 of 61 living objects of type thing are here")
	b.alive(t, "thing", "more_", 50) // fewer than were approved of aaa
	b.approve(t, run, "they are gone")
	r := b.Until(t, run, halted)
	if a, n := one[int64](t, b, `SELECT count(*) FROM objects WHERE object_type = 'aaa' AND deleted`), one[int64](t, b, `SELECT count(*) FROM objects WHERE object_type = 'thing' AND deleted`); r.Status != runs.Proposed ||
		!strings.HasPrefix(r.Detail, "91 of 111 living objects of type thing are here") || a != 90 || n != 0 {
		t.Errorf("%s, %d and %d deleted: %s", r.Status, a, n, r.Detail)
	}
}

// Whoever ends before a person was asked has deleted nothing, and whoever goes on asks for all.
func TestProposedThoughKilled(t *testing.T) {
	t.Parallel()
	b := crowded(t)
	b.alive(t, "thing", "gone_", 40)
	r := b.runnerOf(func(s *reconcile.Source) { s.Provider, s.Reader = before{}, before{} })
	b.Carry(t, "one", 0, map[string]runs.Carry{reconcile.Job: dies(t, r)})
	run := b.order(t, reconcile.Order{What: reconcile.Objects})
	b.proposed(t, run, "90 of 90 living objects of type aaa, 41 of 61 living objects of type thing are here")
	is(t, b, 0, `SELECT count(*) FROM objects WHERE deleted AND object_id LIKE 'gone%'`)
	b.approve(t, run, "they are gone")
	has(t, b.ended(t, run), counts{reconcile.Ghosts: 131})
}

// A type in trouble keeps nobody from being asked for another one; it is swept after the approval.
func TestProposedBesideTrouble(t *testing.T) {
	t.Parallel()
	b := crowded(t)
	b.api.on(failing(http.StatusBadGateway), "/list")
	b.before(t)
	run := b.order(t, reconcile.Order{What: reconcile.Objects})
	b.proposed(t, run, "90 of 90 living objects of type aaa are here", "type thing was passed over", "502")
	b.api.on(nil, "/list")
	b.approve(t, run, "they are gone")
	if r := b.ended(t, run); r.Status != runs.Done || r.Counts[reconcile.Ghosts] != 91 || b.proven(t).IsZero() {
		t.Errorf("%s %v: %s", r.Status, r.Counts, r.Detail)
	}
}

// A few tombstones of each of many types are many: beyond twenty that are more than one in a hundred of all that the run sweeps, a person is asked for the rest.
func TestFewTombstonesOfManyTypesAreMany(t *testing.T) {
	t.Parallel()
	b := newShop(t, "", stripefake.Options{Seed: 29})
	b.fake.Create("", "customer", nil)
	var all []string
	for range 15 {
		for _, objectType := range []string{"application_fee", "charge", "invoice", "subscription"} {
			all = append(all, b.fake.Create("", objectType, nil))
		}
	}
	b.deliver(t, every)
	b.fake.Advance(2 * time.Minute)
	for _, id := range all {
		b.fake.Vanish("", id)
	}
	b.fake.Advance(2 * time.Minute)
	r := b.asked(t, b.api(b.fake.URL), reconcile.Order{What: reconcile.Objects})
	const dead = `SELECT object_type || ' ' || count(*) FROM objects WHERE deleted GROUP BY object_type ORDER BY 1`
	if got := b.DB.Rows(t, dead); r.Status != runs.Proposed || strings.Count(r.Detail, "15 of 15 living objects of type") != 3 || !slices.Equal(got, []string{"application_fee 15"}) {
		t.Errorf("%s, deleted are %q: %s", r.Status, got, r.Detail)
	}
	b.approve(t, r.Run, "they are gone")
	stop := b.Carry(t, "two", 1, map[string]runs.Carry{reconcile.Job: b.runner(t, b.api(b.fake.URL), asIs).Carry})
	defer stop()
	r = b.Until(t, r.Run, halted)
	if got := b.DB.Rows(t, dead); r.Status != runs.Done || len(got) != 4 {
		t.Errorf("approved, %s, deleted are %q: %s", r.Status, got, r.Detail)
	}
}

// wants waits until a run has been approved so often and is proposed again, or ends, and says what for.
func (b *world) wants(t *testing.T, run int64, approvals int, words string) {
	t.Helper()
	r := b.Until(t, run, func(r *runs.Run) bool {
		return r.Status.Final() || r.Status == runs.Proposed && len(r.Approvals) == approvals
	})
	if r.Status != runs.Proposed || !strings.Contains(r.Detail, words) {
		t.Fatalf("%s, want %q: %s", r.Status, words, r.Detail)
	}
}

// Who approves that objects are deleted approves no key: where the key shows nothing any more, a person is asked for that alone before anything is believed, and again for each other key. What was
// approved is kept, each by itself.
func TestTombstonesAreApprovedAndNoKey(t *testing.T) {
	t.Parallel()
	b := newMirror(t, 230, alive(40))
	var shown atomic.Bool
	shown.Store(true)
	r := b.silently(t, 0, func(id string) bool { return shown.Load() && id >= "obj_30" && id <= "obj_39" })
	keyed := func(key string) {
		r.Sources.Replace(b.source(func(s *reconcile.Source) {
			s.Reader, s.API = silent{sim.Provider{}}, &provider.API{Concurrency: 2, Key: provider.Secret{Name: "api.key", Value: []byte(key)}}
		}))
	}
	keyed("key_of_ours")
	b.carry(t, r)
	run := b.order(t, reconcile.Order{What: reconcile.Objects})
	b.wants(t, run, 0, "of 40 living objects of type thing are here, and missing")
	shown.Store(false)
	looks := b.looks(t)
	b.approve(t, run, "they are gone")
	b.wants(t, run, 1, "nothing shows that the key")
	keyed("key_of_others")
	b.approve(t, run, "the key is right")
	b.wants(t, run, 2, "nothing shows that the key")
	if dead, made := b.DB.Rows(t, `SELECT object_id FROM objects WHERE deleted`), b.looks(t)-looks; len(dead) > 0 || made != 0 {
		t.Errorf("with a key that nobody has approved %q are deleted, %d looks made", dead, made)
	}
	b.approve(t, run, "this one too")
	got := b.ended(t, run)
	if got.Status != runs.Done || got.Counts[reconcile.Ghosts] != 30 || len(got.Approvals) != 3 {
		t.Fatalf("%s %v, %+v: %s", got.Status, got.Counts, got.Approvals, got.Detail)
	}
	for i, want := range []struct{ what, said, why string }{
		{"tombstones", "30 of 40 living objects of type thing", "they are gone"}, {"key ", "nothing shows that the key", "the key is right"},
		{"key ", "nothing shows that the key", "this one too"},
	} {
		a := got.Approvals[i]
		if !strings.HasPrefix(a.What, want.what) || !strings.Contains(a.Said, want.said) || a.Why != want.why || a.Who != "me" || a.At.IsZero() || strings.Contains(a.What, "key_of") {
			t.Errorf("approval %d is %+v, want %+v", i, a, want)
		}
	}
	if got.Approvals[1].What == got.Approvals[2].What {
		t.Errorf("two keys are approved as one: %s", got.Approvals[1].What)
	}
}

// A described type whose list the schema does not have is passed over like one that is refused, and says what to do where it is asked for alone.
func TestADescribedListThatThereIsNot(t *testing.T) {
	t.Parallel()
	for _, bulk := range [][]string{nil, {"gift_card"}} {
		b := newBulkShop(t, shopifyfake.Options{Seed: 3}, made{name: "product", n: 10})
		b.api.Bulk = bulk
		b.api.Types = map[string]provider.APIType{"gift_card": {Get: "gift_cards/{id}.json", List: "giftCardz"}}
		b.carry(t, b.runner(t))
		r := b.Until(t, b.ask(t, ""), func(r *runs.Run) bool { return r.Status.Final() || r.Troubles > 5 })
		if r.Status != runs.Done || r.Counts[reconcile.Unlisted] != 1 || r.Counts[reconcile.Missing] == 0 || r.Counts[reconcile.Left] != 0 {
			t.Errorf("%s %v: %s", r.Status, r.Counts, r.Detail)
		}
		r = b.Until(t, b.ask(t, "gift_card"), func(r *runs.Run) bool { return r.Status.Final() || r.Troubles > 5 })
		if r.Status != runs.Failed || !strings.Contains(r.Detail, "api.types.TYPE.list") {
			t.Errorf("%s %v: %s", r.Status, r.Counts, r.Detail)
		}
	}
}

// A described API whose control is not there, or no longer, does not keep a run for ever: it ends with what to see to.
func TestAControlThatIsNotThere(t *testing.T) {
	t.Parallel()
	b := newDescribed(t, "control: /me", "control: /things/nobody")
	b.fake.Set("a", "one", time.Second)
	b.deliver(t, b.fake.Events())
	b.fake.Set("a", "", time.Second) // it is gone
	b.fake.Advance(time.Minute)
	b.runner.Settings.Tries = 4
	b.carry(t, b.runner)
	for _, o := range []reconcile.Order{{What: reconcile.Objects}, {What: reconcile.Object, Type: "thing", ID: "a"}} {
		o.Source = b.Source
		id := b.order(t, o)
		r := b.Until(t, id, func(r *runs.Run) bool { return r.Status.Final() || r.Troubles > 6 })
		if r.Status != runs.Failed || !strings.Contains(r.Detail, "tried 5 times") || !strings.Contains(r.Detail, "what must be there is missing") {
			t.Errorf("%s: %s after %d: %s", o.What, r.Status, r.Troubles, r.Detail)
		}
	}
	none(t, b.DB.Rows(t, `SELECT object_id FROM objects WHERE deleted`))
}

// Lists in trouble that does not pass end the run at last, with the other types done and proven, and nothing proven of theirs. Where the API is in trouble as a whole, the run goes on for as long as that lasts.
func TestLastingTroubleOfALists(t *testing.T) {
	t.Parallel()
	for name, order := range map[string]reconcile.Order{"all": {What: reconcile.Objects}, "one": {What: reconcile.Objects, Type: "deployment"}} {
		for _, down := range []bool{false, true} {
			t.Run(name+map[bool]string{true: ", down"}[down], func(t *testing.T) {
				t.Parallel()
				f := newForge(t, githubfake.Options{Start: time.Now().Add(-3 * time.Hour)}, nil)
				f.fake.Open(0)
				f.fake.Advance(time.Minute)
				source := *f.reads
				met := false
				source.Caller = meddling{f.reads.Caller, func(c provider.Call) *reconcile.Response {
					if met = met || strings.HasSuffix(c.Path, "/deployments"); strings.HasSuffix(c.Path, "/deployments") || down && met {
						return failing(http.StatusInternalServerError)
					}
					return nil
				}}
				r := f.runner()
				r.Settings.Tries = 4
				r.Sources.Replace(&source)
				f.carry(t, r)
				order := order
				order.Source = f.Source
				id := f.order(t, order)
				got := f.Until(t, id, func(r *runs.Run) bool { return r.Status.Final() || r.Troubles > 6 })
				proven := one[string](t, f.world, full)
				if down {
					if got.Status.Final() {
						t.Errorf("%s: %s", got.Status, got.Detail)
					}
					return
				}
				if got.Status != runs.Failed || !strings.Contains(got.Detail, "deployment") || !strings.Contains(got.Detail, "tried 5 times") || !strings.Contains(got.Detail, "500") {
					t.Errorf("%s: %s", got.Status, got.Detail)
				}
				if strings.Contains(proven, "deployment") || strings.Contains(proven, "type issue") != (order.Type == "") {
					t.Errorf("proven are %s", proven)
				}
			})
		}
	}
}
