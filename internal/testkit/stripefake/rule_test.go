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

// The life keeps to what our table says of Stripe's types: all events of an object, in any order, end in the truth or in doubt, and
// both happen. So what a mirror lacks at the end of a test was lost on the way.
func TestAllEventsInAnyOrder(t *testing.T) {
	t.Parallel()
	doubts, sure := 0, 0
	for seed := range uint64(10) {
		f := stripefake.New(t, stripefake.Options{Seed: seed, Accounts: []string{"acct_1"}, Burst: 40, Reborn: 50, Still: 20})
		f.Live(250)
		rows, volatile := mirror(t, f, rand.New(rand.NewPCG(seed, 9)))
		for _, o := range f.Truth() {
			row := rows[o.Account+" "+o.ID]
			if row.Ambiguous {
				doubts++
				continue
			}
			sure++
			if row.State.Deleted != o.Deleted() {
				t.Fatalf("seed %d: %s is deleted: %t, in truth %t", seed, o.ID, row.State.Deleted, o.Deleted())
			}
			if o.Deleted() {
				continue
			}
			v, err := canonical.Parse(o.Body)
			if err != nil {
				t.Fatal(err)
			}
			if truth := versioning.NewState(v, false, volatile[o.Type]); row.State.Hash != truth.Hash {
				t.Fatalf("seed %d: %s is %s, in truth %s", seed, o.ID, row.State.JSON, truth.JSON)
			}
		}
	}
	if doubts < sure/50 || sure < 5*doubts {
		t.Errorf("%d objects end in doubt, %d do not", doubts, sure)
	}
}

// mirror puts the events through the rule in an order of chance.
func mirror(t *testing.T, f *stripefake.Fake, r *rand.Rand) (rows map[string]*versioning.Row, volatile map[string][]string) {
	t.Helper()
	rows, volatile = map[string]*versioning.Row{}, map[string][]string{}
	events := f.Events()
	for _, i := range r.Perm(len(events)) {
		e := events[i]
		o, err := stripe.Stripe{}.Observe(&provider.Source{}, &provider.Stored{Type: e.Type, Body: e.Body})
		if err != nil {
			t.Fatal(err)
		}
		in, err := versioning.FromObservation(o, e.At.Add(3*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		key := e.Account + " " + e.ObjectID
		if rows[key] == nil {
			row := versioning.NewRow()
			rows[key] = &row
		}
		versioning.Apply(rows[key], in)
		volatile[o.ObjectType] = o.Volatile
	}
	return rows, volatile
}
