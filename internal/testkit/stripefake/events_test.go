package stripefake_test

import (
	"maps"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/stripe"
	"github.com/postern-gateway/postern/internal/testkit/stripefake"
)

// The state in an event is the state of the object after the change, and its previous attributes
// lead to the state before. The provider package reads deletes correctly.
func TestEvents_bodies_matchTheObjects(t *testing.T) {
	t.Parallel()
	for seed := range uint64(10) {
		f := stripefake.New(t, stripefake.Options{Seed: seed, Accounts: []string{"acct_1"}, Burst: 30, ReusedIDs: 50,
			VersionUnmoved: 20, IDOnlyEvents: true})
		f.RunSteps(250)
		last := map[string]stripefake.Event{}
		for _, e := range f.Events() {
			checkEvent(t, f, e)
			last[e.Account+e.ObjectID] = e
		}
		for _, o := range f.CurrentObjects() {
			e := last[o.Account+o.ID]
			if then, _ := f.ObjectAt(o.Account, o.ID, e.At); !reflect.DeepEqual(then, o) {
				t.Fatalf("seed %d: no event has the last state of %s:\n%s", seed, o.ID, cmp.Diff(then, o))
			}
		}
	}
}

func checkEvent(t *testing.T, f *stripefake.Fake, e stripefake.Event) {
	t.Helper()
	fieldIs, _ := f.ObjectAt(e.Account, e.ObjectID, e.At)
	was, _ := f.ObjectAt(e.Account, e.ObjectID, e.At.Add(-time.Microsecond))
	seen, err := stripe.Stripe{}.Observe(&provider.Source{}, &provider.StoredEvent{Type: e.Type, Body: e.Body})
	if err != nil {
		t.Fatalf("observe %s: %v", e.Body, err)
	}
	if (seen.Partial != "") != e.IDOnly || seen.ObjectID != e.ObjectID || seen.ObjectType != e.ObjectType {
		t.Fatalf("%s is read as %+v", e.Body, seen)
	}
	if e.IDOnly {
		return
	}
	if seen.Deleted != fieldIs.Deleted() || seen.Final && e.Type == "product.deleted" {
		t.Fatalf("%s is read as deleted %t, final %t; the object is %s", e.Body, seen.Deleted, seen.Final, fieldIs.Body)
	}
	data := tree(t, e.Body)["data"].(map[string]any)
	told, state := data["object"].(map[string]any), fieldIs.Body
	if fieldIs.Deleted() {
		state = was.Body // the last state before the delete
	}
	if truth := tree(t, state); !reflect.DeepEqual(told, truth) {
		t.Fatalf("%s has another state than the object:\n%s", e.Body, cmp.Diff(told, truth))
	}
	if before, ok := data["previous_attributes"].(map[string]any); ok {
		if back, truth := applyPrevious(told, before), nullAsAbsent(tree(t, was.Body), before); !reflect.DeepEqual(back,
			truth) {
			t.Fatalf("%s does not lead back to %s:\n%s", e.Body, was.Body, cmp.Diff(back, truth))
		}
	}
}

// applyPrevious returns the object with the change-set applied, deep, and lists as a whole.
func applyPrevious(object, set map[string]any) map[string]any {
	out := maps.Clone(object)
	for key, value := range set {
		under, deep := out[key].(map[string]any)
		if over, both := value.(map[string]any); deep && both {
			out[key] = applyPrevious(under, over)
			continue
		}
		out[key] = value
	}
	return out
}

// nullAsAbsent returns the object with null for values that are null in the change-set, because a
// change-set does not distinguish null from absent.
func nullAsAbsent(object, set map[string]any) map[string]any {
	out := maps.Clone(object)
	for key, value := range set {
		under, deep := out[key].(map[string]any)
		if over, both := value.(map[string]any); deep && both {
			out[key] = nullAsAbsent(under, over)
		} else if value == nil {
			out[key] = nil
		}
	}
	return out
}

// A test can write a sequence of changes instead of random steps.
func TestFake_scriptedStory_hasTheExpectedEvents(t *testing.T) {
	t.Parallel()
	f := stripefake.New(t, stripefake.Options{Accounts: []string{"acct_1"}})
	id := f.Create("acct_1", "customer", map[string]any{"email": "ada@example.org"})
	f.Set("acct_1", id, map[string]any{"metadata.plan": "solo", "balance": 7})
	f.SetWithoutEvent("acct_1", id, map[string]any{"name": nil})
	before := f.Now()
	f.Advance(90 * time.Second)
	f.ApplyEvent("acct_1", id, "customer.deleted")

	events := f.Events()
	if len(events) != 3 || events[1].Type != "customer.updated" || events[2].Type != "customer.deleted" {
		t.Fatalf("the events are %+v", events)
	}
	set := tree(t, events[1].Body)["data"].(map[string]any)["previous_attributes"]
	if diff := cmp.Diff(set, map[string]any{"balance": 0.0, "metadata": map[string]any{"plan": "team"}}); diff != "" {
		t.Errorf("the previous attributes differ:\n%s", diff)
	}
	if o, _ := f.ObjectAt("acct_1", id, before); o.Deleted() || o.Changes != 3 || tree(t, o.Body)["name"] != nil {
		t.Errorf("before the delete the customer was %+v", o)
	}
	if o := f.CurrentObjects()[0]; !o.Deleted() || !o.Changed.Equal(before.Add(90*time.Second)) {
		t.Errorf("after the delete the customer is %+v", o)
	}
	if _, there := f.ObjectAt("acct_1", id, before.Add(-time.Hour)); there {
		t.Error("the customer existed before its creation")
	}
}

// The history of an object begins with its first creation and contains changes without events.
func TestHistory_reusedID_includesEarlierObjects(t *testing.T) {
	t.Parallel()
	f := stripefake.New(t, stripefake.Options{ReusedIDs: 100, Name: "Other"})
	id := f.Create("", "product", map[string]any{"name": "Team"})
	f.Set("", id, map[string]any{"name": "Solo"})
	f.Advance(time.Second)
	gone := f.Now()
	f.DeleteWithoutEvent("", id)
	f.Advance(time.Second)
	if again := f.Create("", "product", map[string]any{"name": "Again"}); again != id {
		t.Fatalf("%s was created again as %s", id, again)
	}
	var got []string
	for i, o := range f.History("", id) {
		name := "deleted at " + o.Changed.Sub(gone).String()
		if !o.Deleted() {
			name = tree(t, o.Body)["name"].(string)
		}
		got = append(got, name)
		if o.Changes != i+1 {
			t.Errorf("%s has changed %d times", name, o.Changes)
		}
	}
	if diff := cmp.Diff(got, []string{"Team", "Solo", "deleted at 0s", "Again"}); diff != "" {
		t.Errorf("the history differs:\n%s", diff)
	}
	for _, e := range f.Events() {
		if !strings.HasPrefix(e.ID, "evt_1Other") || e.Type == "product.deleted" {
			t.Errorf("there is an event %s, %s", e.ID, e.Type)
		}
	}
	if id := f.Create("", "customer", nil); id != "cus_Other000001" {
		t.Errorf("a customer has the id %s", id)
	}
}

// The version of a product advances with each change, unless VersionUnmoved is set.
func TestOptions_versionUnmoved_keepsProductVersion(t *testing.T) {
	t.Parallel()
	for still, want := range map[int][2]bool{0: {true, false}, 50: {true, true}, 100: {false, true}} {
		f := stripefake.New(t, stripefake.Options{Seed: 1, VersionUnmoved: still, Gap: 5 * time.Second})
		f.RunSteps(600)
		moved, stood := false, false
		for _, e := range f.Events() {
			if e.Type != "product.updated" {
				continue
			}
			if tree(t, e.Body)["data"].(map[string]any)["object"].(map[string]any)["updated"] == float64(e.At.Unix()) {
				moved = true
			} else {
				stood = true
			}
		}
		if got := [2]bool{moved, stood}; got != want {
			t.Errorf("with VersionUnmoved %d %%, some versions advanced: %t, some did not: %t", still, moved, stood)
		}
	}
}
