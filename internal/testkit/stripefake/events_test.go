package stripefake_test

import (
	"maps"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/stripe"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/stripefake"
	"github.com/postern-gateway/postern/internal/versioning"
)

// Events have the states of their objects. The fake conforms to the provider package's table of
// Stripe's types: all events of an object, in any order, end in the true state or in an ambiguous
// one, and both occur. A difference at the end of a test therefore comes from lost data.
func TestEvents_inAnyOrder_reachCurrentState(t *testing.T) {
	t.Parallel()
	ambiguous, unambiguous := 0, 0
	for seed := range uint64(10) {
		f := stripefake.New(t, stripefake.Options{Seed: seed, Accounts: []string{"acct_1"}, Burst: 40, ReusedIDs: 50,
			VersionUnmoved: 20, IDOnlyEvents: true})
		f.RunSteps(250)
		rows, ignored := applyEvents(t, f, rand.New(rand.NewPCG(seed, 9)))
		for _, o := range f.CurrentObjects() {
			row := rows[o.Account+" "+o.ID]
			if row == nil { // only id-only events
				continue
			}
			if row.Ambiguous {
				ambiguous++
				continue
			}
			unambiguous++
			truth := versioning.NullState(true)
			if !o.Deleted() {
				v, err := canonical.Parse(o.Body)
				testkit.Must(t, err)
				truth = versioning.NewState(v, false, ignored[o.Type])
			}
			if row.State.Deleted != truth.Deleted || !truth.Deleted && row.State.Hash != truth.Hash {
				t.Fatalf("seed %d: %s is %s, want %s", seed, o.ID, row.State.JSON, truth.JSON)
			}
		}
	}
	if ambiguous < unambiguous/50 || unambiguous < 5*ambiguous {
		t.Errorf("%d objects end ambiguous, %d do not", ambiguous, unambiguous)
	}
}

// applyEvents checks the events, and applies those with a state by the version rule in a random
// order. It returns the rows by account and id, and the ignored paths by type.
func applyEvents(t *testing.T, f *stripefake.Fake, r *rand.Rand) (rows map[string]*versioning.Row,
	ignored map[string][]string) {
	t.Helper()
	rows, ignored = map[string]*versioning.Row{}, map[string][]string{}
	events := f.Events()
	for _, i := range r.Perm(len(events)) {
		e := events[i]
		o, err := stripe.Stripe{}.Observe(&provider.Source{}, &provider.StoredEvent{Type: e.Type, Body: e.Body})
		testkit.Must(t, err)
		checkEvent(t, f, e, o)
		if e.IDOnly {
			continue
		}
		in, err := versioning.InputFromObservation(o, e.At.Add(3*time.Second))
		testkit.Must(t, err)
		key := e.Account + " " + e.ObjectID
		if rows[key] == nil {
			row := versioning.NewRow()
			rows[key] = &row
		}
		versioning.Apply(rows[key], in)
		ignored[o.ObjectType] = o.IgnoredPaths
	}
	return rows, ignored
}

// checkEvent checks that the state in an event is the state of the object after the change, and
// that its previous attributes lead to the state before.
func checkEvent(t *testing.T, f *stripefake.Fake, e stripefake.Event, seen provider.Observation) {
	t.Helper()
	is, _ := f.ObjectAt(e.Account, e.ObjectID, e.At)
	was, _ := f.ObjectAt(e.Account, e.ObjectID, e.At.Add(-time.Microsecond))
	if (seen.Partial != "") != e.IDOnly || seen.ObjectID != e.ObjectID || seen.ObjectType != e.ObjectType {
		t.Fatalf("%s is read as %+v", e.Body, seen)
	}
	if e.IDOnly {
		return
	}
	if seen.Deleted != is.Deleted() || seen.Final && e.Type == "product.deleted" {
		t.Fatalf("%s is read as deleted %t, final %t; the object is %s", e.Body, seen.Deleted, seen.Final, is.Body)
	}
	data := tree(t, e.Body)["data"].(map[string]any)
	told, state := data["object"].(map[string]any), is.Body
	if is.Deleted() {
		state = was.Body // the last state before the delete
	}
	if truth := tree(t, state); !reflect.DeepEqual(told, truth) {
		t.Fatalf("%s has another state than the object:\n%s", e.Body, cmp.Diff(told, truth))
	}
	before, changed := data["previous_attributes"].(map[string]any)
	if want := strings.HasSuffix(e.Type, ".updated") || e.Type == "charge.refunded"; changed != want {
		t.Fatalf("%s has previous attributes: %t", e.Type, changed)
	}
	if changed {
		// a change-set does not distinguish null from absent
		if back, truth := merged(told, before), merged(tree(t, was.Body), onlyNulls(before)); !reflect.DeepEqual(back,
			truth) {
			t.Fatalf("%s does not lead back to %s:\n%s", e.Body, was.Body, cmp.Diff(back, truth))
		}
	}
}

// merged returns the object with the change-set applied, deep, and lists as a whole.
func merged(object, set map[string]any) map[string]any {
	out := maps.Clone(object)
	for key, value := range set {
		under, deep := out[key].(map[string]any)
		if over, both := value.(map[string]any); deep && both {
			out[key] = merged(under, over)
		} else {
			out[key] = value
		}
	}
	return out
}

// onlyNulls returns the nulls of a change-set.
func onlyNulls(set map[string]any) map[string]any {
	out := map[string]any{}
	for key, value := range set {
		if deep, ok := value.(map[string]any); ok {
			out[key] = onlyNulls(deep)
		} else if value == nil {
			out[key] = nil
		}
	}
	return out
}
