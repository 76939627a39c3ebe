package app_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/stripefake"
)

// story is a life of customers whose webhooks come as tests want, not as they happened.
type story struct {
	fake *stripefake.Fake
	// posts are the webhooks in the order in which they come.
	posts []*provider.Delivery
	lost  int
	// doubtful are those whose order nothing in their events tells.
	doubtful []string
}

// told are the webhooks of what happens.
func (s *story) told(happens ...func()) (ds []*provider.Delivery) {
	for _, one := range happens {
		one()
		s.fake.Deliver(func(d *provider.Delivery) bool { ds = append(ds, d); return true })
	}
	return ds
}

// customer makes one a while before what happens to it.
func (s *story) customer() (id string, named func(string) func()) {
	s.posts = append(s.posts, s.told(func() { id = s.fake.Create("", "customer", map[string]any{"name": "Ada"}) })...)
	s.fake.Advance(2 * time.Second)
	return id, func(name string) func() { return func() { s.fake.Set("", id, map[string]any{"name": name}) } }
}

// defects is what other gateways are known to get wrong: two updates in one second in either order, where their change-sets tell the order and where they do not; one of
// them again; an update after a delete, of an earlier second or of the same; and an update that is missing, behind which a newer one has come.
func defects(t *testing.T) *story {
	t.Helper()
	s := &story{fake: stripefake.New(t, stripefake.Options{Start: time.Now().Add(-2 * time.Minute).Truncate(time.Second)})}
	for _, backward := range []bool{false, true} {
		for _, last := range []string{"Charles", "Ada"} { // told by the change-sets, and not: it came back to what it was
			id, named := s.customer()
			ds := s.told(named("Byron"), named(last))
			if backward {
				slices.Reverse(ds)
			}
			s.posts = append(s.posts, ds...)
			if last == "Ada" {
				s.doubtful = append(s.doubtful, id)
			}
		}
	}
	_, named := s.customer()
	ds := s.told(named("Byron"), named("Charles"))
	s.posts = append(s.posts, ds[0], ds[1], ds[0])
	for _, between := range []time.Duration{0, time.Second} {
		id, named := s.customer()
		late := s.told(named("Byron"))
		s.fake.Advance(between)
		s.posts = append(s.posts, s.told(func() { s.fake.Do("", id, "customer.deleted") })...)
		s.posts = append(s.posts, late...)
	}
	_, named = s.customer()
	s.lost = len(s.told(named("Byron")))
	s.fake.Advance(time.Second)
	s.posts = append(s.posts, s.told(named("Charles"))...)
	s.fake.Advance(time.Minute) // behind what a run leaves to the next
	return s
}

// come posts the webhooks, and waits until each has its outcome.
func (r *reloading) come(t *testing.T, s *story) {
	t.Helper()
	duplicates := 0
	for _, d := range s.posts {
		if r.mustPost(t, "shop", d).Duplicate {
			duplicates++
		}
	}
	if events := len(s.fake.Events()) - s.lost; duplicates != 1 || len(s.posts) != events+1 {
		t.Fatalf("%d duplicates of %d webhooks about %d events", duplicates, len(s.posts), events)
	}
	testkit.Eventually(t, time.Minute, func() error {
		var open int
		err := r.db.Pool.QueryRow(t.Context(), `SELECT count(*) FROM events e WHERE NOT EXISTS (SELECT FROM outcomes o WHERE o.event_id = e.id AND o.run = 0 AND o.status NOT IN ('failed', 'dead'))`).Scan(&open)
		if err == nil && open > 0 {
			err = fmt.Errorf("%d events are not applied", open)
		}
		return err
	})
}

// Without the API's word the mirror is right, or says of an object that it is in doubt: of those alone whose order nothing tells.
func TestDefectsOfOthersAreNeverSilent(t *testing.T) {
	t.Parallel()
	s := defects(t)
	r := startReloading(t, fmt.Sprintf("  shop: {provider: stripe, secrets: [{name: s, value: %s}]}\n", stripefake.Secret), time.Hour)
	r.come(t, s)
	slices.Sort(s.doubtful)
	if flagged := r.db.Rows(t, `SELECT object_id FROM objects WHERE ambiguous AND look_after <> 0 ORDER BY 1`); !slices.Equal(flagged, s.doubtful) {
		t.Errorf("in doubt are %v, want %v", flagged, s.doubtful)
	}
	wrong := r.against(t, s.fake)
	if len(wrong) != len(s.doubtful) {
		t.Errorf("%d objects are wrong or in doubt, want %d: %v", len(wrong), len(s.doubtful), wrong)
	}
}

// With it all doubt ends in what the provider has, and what a list brings behind newer webhooks changes nothing.
func TestDefectsOfOthersAreSettled(t *testing.T) {
	t.Parallel()
	s := defects(t)
	r := startReloading(t, fmt.Sprintf("  shop:\n    provider: stripe\n    secrets: [{name: s, value: %s}]\n    api: {base_url: %s, key: {value: %s}, version: %s, rate: 500}\n",
		stripefake.Secret, s.fake.URL, stripefake.Key, stripefake.Version), time.Hour)
	r.come(t, s)
	testkit.Eventually(t, time.Minute, func() error {
		if wrong := r.against(t, s.fake); len(wrong) > 0 {
			return fmt.Errorf("%d objects are not as Stripe has them, the first: %s", len(wrong), wrong[0])
		}
		return nil
	})
	if looks := s.fake.Counts()["GET /v1/customers/{id}"]; looks != len(s.doubtful) {
		t.Errorf("%d looks, want one at each of %v", looks, s.doubtful)
	}
	operator := r.db.Role(t, "operator")
	run, err := runs.Ask(t.Context(), operator, runs.Order{Job: reconcile.Job, Asked: reconcile.Order{Source: 1, What: reconcile.Events}, Who: "test"})
	if err != nil {
		t.Fatal(err)
	}
	var now *runs.Run
	testkit.Eventually(t, time.Minute, func() error {
		if now, err = runs.Show(t.Context(), operator, run); err == nil && now.Status != runs.Done {
			err = fmt.Errorf("the run is %s: %s", now.Status, now.Detail)
		}
		return err
	})
	if now.Counts[reconcile.Missing] != int64(s.lost) || now.Counts[reconcile.Present] != int64(len(s.fake.Events())-s.lost) {
		t.Errorf("%v, want %d missing of %d", now.Counts, s.lost, len(s.fake.Events()))
	}
	if got := r.db.Rows(t, `SELECT o.status FROM outcomes o JOIN events e ON e.id = o.event_id WHERE e.origin = 'reconcile' AND e.event_type <> 'postern.look'`); !slices.Equal(got, []string{"stale"}) {
		t.Errorf("what was missing is %v", got)
	}
	if wrong := r.against(t, s.fake); len(wrong) > 0 {
		t.Errorf("%d objects are not as Stripe has them, the first: %s", len(wrong), wrong[0])
	}
}
