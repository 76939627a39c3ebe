package stripefake_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/stripe"
	"github.com/postern-gateway/postern/internal/testkit/stripefake"
	"github.com/postern-gateway/postern/internal/versioning"
)

// The fake conforms to the provider package's table of Stripe's types: all events of an object, in
// any order, end in the true state or in an ambiguous one, and both occur. A difference at the end
// of a test therefore comes from lost data.
func TestVersionRule_allEventsInAnyOrder_reachCurrentState(t *testing.T) {
	t.Parallel()
	ambiguous, unambiguous := 0, 0
	for seed := range uint64(10) {
		f := stripefake.New(t, stripefake.Options{Seed: seed, Accounts: []string{"acct_1"}, Burst: 40, ReusedIDs: 50,
			VersionUnmoved: 20})
		f.RunSteps(250)
		objectRows, volatile := mirror(t, f, rand.New(rand.NewPCG(seed, 9)))
		for _, o := range f.CurrentObjects() {
			row := objectRows[o.Account+" "+o.ID]
			if row.Ambiguous {
				ambiguous++
				continue
			}
			unambiguous++
			if row.State.Deleted != o.Deleted() {
				t.Fatalf("seed %d: %s is deleted: %t, want %t", seed, o.ID, row.State.Deleted, o.Deleted())
			}
			if o.Deleted() {
				continue
			}
			v, err := canonical.Parse(o.Body)
			if err != nil {
				t.Fatal(err)
			}
			if truth := versioning.NewState(v, false, volatile[o.Type]); row.State.Hash != truth.Hash {
				t.Fatalf("seed %d: %s is %s, want %s", seed, o.ID, row.State.JSON, truth.JSON)
			}
		}
	}
	if ambiguous < unambiguous/50 || unambiguous < 5*ambiguous {
		t.Errorf("%d objects end ambiguous, %d do not", ambiguous, unambiguous)
	}
}

// mirror applies the events with the version rule in a random order.
func mirror(t *testing.T, f *stripefake.Fake, r *rand.Rand) (objectRows map[string]*versioning.Row,
	volatile map[string][]string) {
	t.Helper()
	objectRows, volatile = map[string]*versioning.Row{}, map[string][]string{}
	events := f.Events()
	for _, i := range r.Perm(len(events)) {
		e := events[i]
		o, err := stripe.Stripe{}.Observe(&provider.Source{}, &provider.StoredEvent{Type: e.Type, Body: e.Body})
		if err != nil {
			t.Fatal(err)
		}
		in, err := versioning.InputFromObservation(o, e.At.Add(3*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		key := e.Account + " " + e.ObjectID
		if objectRows[key] == nil {
			row := versioning.NewRow()
			objectRows[key] = &row
		}
		versioning.Apply(objectRows[key], in)
		volatile[o.ObjectType] = o.IgnoredPaths
	}
	return objectRows, volatile
}
