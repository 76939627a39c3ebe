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
	"github.com/postern-gateway/postern/internal/testkit/stripefake"
)

// crowded has 90 objects of type "aaa" here that the API does not have, and the kinds of difference among the things.
func crowded(t *testing.T) *world {
	t.Helper()
	b := newWorld(t, 220, living)
	b.deliver(t, b.api.h.Events)
	b.DB.Exec(t, manyAliveSQL, "aaa", "gone_", 1, 90)
	b.spoil(t)
	b.api.fails = func(c provider.Call) (*reconcile.Response, error) {
		switch {
		case c.Path == "/aaas":
			return b.answer(provider.Found, []byte(`{"things":[]}`)), nil
		case strings.HasPrefix(c.Path, "/aaa/"):
			return b.answer(provider.Missing, nil), nil
		}
		return nil, nil
	}
	return b
}

// proposed waits until a run is, and says how many looks at objects of type "aaa" there are, and until when things are proven.
func (b *world) proposed(t *testing.T, run int64, words ...string) {
	t.Helper()
	r := b.Until(t, run, func(r *runs.Run) bool { return r.Status == runs.Proposed || r.Status.Final() })
	for _, w := range words {
		if r.Status != runs.Proposed || !strings.Contains(r.Detail, w) {
			t.Errorf("%s: %s; want %q", r.Status, r.Detail, w)
		}
	}
	if n := one[int64](t, b, `SELECT count(*) FROM objects WHERE object_type = 'aaa' AND deleted`); n != 0 {
		t.Errorf("%d are deleted before anybody has approved", n)
	}
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
	if err := runs.Approve(t.Context(), b.Operator, run, "me", "they are gone"); err != nil {
		t.Fatal(err)
	}
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
	b.DB.Exec(t, manyAliveSQL, "thing", "gone_", 1, 40)
	b.before(t)
	run := b.order(t, reconcile.Order{What: reconcile.Objects})
	b.proposed(t, run, "90 of 90 living objects of type aaa, 41 of 61 living objects of type thing are here")
	b.DB.Exec(t, manyAliveSQL, "thing", "more_", 1, 50) // fewer than were approved of aaa
	if err := runs.Approve(t.Context(), b.Operator, run, "me", "they are gone"); err != nil {
		t.Fatal(err)
	}
	r := b.Until(t, run, func(r *runs.Run) bool { return r.Status == runs.Proposed || r.Status.Final() })
	if a, n := one[int64](t, b, `SELECT count(*) FROM objects WHERE object_type = 'aaa' AND deleted`), one[int64](t, b, `SELECT count(*) FROM objects WHERE object_type = 'thing' AND deleted`); r.Status != runs.Proposed ||
		!strings.HasPrefix(r.Detail, "91 of 111 living objects of type thing are here") || a != 90 || n != 0 {
		t.Errorf("%s, %d and %d deleted: %s", r.Status, a, n, r.Detail)
	}
}

// Whoever ends before a person was asked has deleted nothing, and whoever goes on asks for all.
func TestProposedThoughKilled(t *testing.T) {
	t.Parallel()
	b := crowded(t)
	b.DB.Exec(t, manyAliveSQL, "thing", "gone_", 1, 40)
	r := b.runner()
	r.Sources.Replace(b.source(func(s *reconcile.Source) { s.Provider, s.Reader = before{}, before{} }))
	b.Carry(t, "one", 0, map[string]runs.Carry{reconcile.Job: dies(t, r)})
	run := b.order(t, reconcile.Order{What: reconcile.Objects})
	b.proposed(t, run, "90 of 90 living objects of type aaa, 41 of 61 living objects of type thing are here")
	if n := one[int64](t, b, `SELECT count(*) FROM objects WHERE deleted AND object_id LIKE 'gone%'`); n != 0 {
		t.Errorf("%d are deleted before anybody has approved", n)
	}
	if err := runs.Approve(t.Context(), b.Operator, run, "me", "they are gone"); err != nil {
		t.Fatal(err)
	}
	if r := b.ended(t, run); r.Status != runs.Done || r.Counts[reconcile.Ghosts] != 131 {
		t.Errorf("%s %v: %s", r.Status, r.Counts, r.Detail)
	}
}

// A type in trouble keeps nobody from being asked for another one; it is swept after the approval.
func TestProposedBesideTrouble(t *testing.T) {
	t.Parallel()
	b := crowded(t)
	var well atomic.Bool
	fails := b.api.fails
	b.api.fails = func(c provider.Call) (*reconcile.Response, error) {
		if c.Path == "/list" && !well.Load() {
			return failing(http.StatusBadGateway), nil
		}
		return fails(c)
	}
	b.before(t)
	run := b.order(t, reconcile.Order{What: reconcile.Objects})
	b.proposed(t, run, "90 of 90 living objects of type aaa are here", "type thing was passed over", "502")
	well.Store(true)
	if err := runs.Approve(t.Context(), b.Operator, run, "me", "they are gone"); err != nil {
		t.Fatal(err)
	}
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
	b.deliver(t, func(int) bool { return false })
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
	if err := runs.Approve(t.Context(), b.Operator, r.Run, "me", "they are gone"); err != nil {
		t.Fatal(err)
	}
	stop := b.Carry(t, "two", 1, map[string]runs.Carry{reconcile.Job: b.runner(t, b.api(b.fake.URL), asIs).Carry})
	defer stop()
	r = b.Until(t, r.Run, func(r *runs.Run) bool { return r.Status.Final() || r.Status == runs.Proposed })
	if got := b.DB.Rows(t, dead); r.Status != runs.Done || len(got) != 4 {
		t.Errorf("approved, %s, deleted are %q: %s", r.Status, got, r.Detail)
	}
}
