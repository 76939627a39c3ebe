package reconcile_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit/githubfake"
	"github.com/postern-gateway/postern/internal/testkit/shopifyfake"
)

// A described type whose list the schema does not have is passed over like one that is refused, and says what to do where it is asked for alone.
func TestADescribedListThatThereIsNot(t *testing.T) {
	t.Parallel()
	for _, bulk := range [][]string{nil, {"gift_card"}} {
		b := newBulkShop(t, shopifyfake.Options{Seed: 3}, made{name: "product", n: 10})
		b.api.Bulk = bulk
		b.api.Types = map[string]provider.APIType{"gift_card": {Get: "gift_cards/{id}.json", List: "giftCardz"}}
		b.Carry(t, "one", 1, map[string]runs.Carry{reconcile.Job: b.runner(t).Carry})
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
	b.Carry(t, "one", 1, map[string]runs.Carry{reconcile.Job: b.runner.Carry})
	for _, o := range []reconcile.Order{{What: reconcile.Objects}, {What: reconcile.Object, Type: "thing", ID: "a"}} {
		o.Source = b.Source
		id, err := runs.Ask(t.Context(), b.Operator, runs.Order{Job: reconcile.Job, Asked: o, Who: "test"})
		if err != nil {
			t.Fatal(err)
		}
		r := b.Until(t, id, func(r *runs.Run) bool { return r.Status.Final() || r.Troubles > 6 })
		if r.Status != runs.Failed || !strings.Contains(r.Detail, "tried 5 times") || !strings.Contains(r.Detail, "what must be there is missing") {
			t.Errorf("%s: %s after %d: %s", o.What, r.Status, r.Troubles, r.Detail)
		}
	}
	if dead := b.DB.Rows(t, `SELECT object_id FROM objects WHERE deleted`); len(dead) > 0 {
		t.Errorf("deleted are %q", dead)
	}
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
				f.Carry(t, "one", 1, map[string]runs.Carry{reconcile.Job: r.Carry})
				order := order
				order.Source = f.number
				id, err := runs.Ask(t.Context(), f.Operator, runs.Order{Job: reconcile.Job, Asked: order, Who: "test"})
				if err != nil {
					t.Fatal(err)
				}
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
