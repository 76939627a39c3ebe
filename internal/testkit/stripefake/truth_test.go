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

// What an event says is what the object became, what it says was before is what the object was, and our own reading of it is right
// about what is deleted.
func TestEventsTellTheTruth(t *testing.T) {
	t.Parallel()
	for seed := range uint64(10) {
		f := stripefake.New(t, stripefake.Options{Seed: seed, Accounts: []string{"acct_1"}, Burst: 30, Reborn: 50, Still: 20, Thin: true})
		f.Live(250)
		last := map[string]stripefake.Event{}
		for _, e := range f.Events() {
			checkEvent(t, f, e)
			last[e.Account+e.ObjectID] = e
		}
		for _, o := range f.Truth() {
			e := last[o.Account+o.ID]
			if then, _ := f.At(o.Account, o.ID, e.At); !reflect.DeepEqual(then, o) {
				t.Fatalf("seed %d: no event tells what %s became at the end:\n%s", seed, o.ID, cmp.Diff(then, o))
			}
		}
	}
}

func checkEvent(t *testing.T, f *stripefake.Fake, e stripefake.Event) {
	t.Helper()
	is, _ := f.At(e.Account, e.ObjectID, e.At)
	was, _ := f.At(e.Account, e.ObjectID, e.At.Add(-time.Microsecond))
	seen, err := stripe.Stripe{}.Observe(&provider.Source{}, &provider.Stored{Type: e.Type, Body: e.Body})
	if err != nil {
		t.Fatalf("observe %s: %v", e.Body, err)
	}
	if (seen.Partial != "") != e.Thin || seen.ObjectID != e.ObjectID || seen.ObjectType != e.ObjectType {
		t.Fatalf("%s is read as %+v", e.Body, seen)
	}
	if e.Thin {
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
		t.Fatalf("%s says what is not so:\n%s", e.Body, cmp.Diff(told, truth))
	}
	if before, ok := data["previous_attributes"].(map[string]any); ok {
		if back, truth := laid(told, before), nulled(tree(t, was.Body), before); !reflect.DeepEqual(back, truth) {
			t.Fatalf("%s does not lead back to %s:\n%s", e.Body, was.Body, cmp.Diff(back, truth))
		}
	}
}

// laid is the object with the change-set over it, deep, lists whole.
func laid(object, set map[string]any) map[string]any {
	out := maps.Clone(object)
	for key, value := range set {
		under, deep := out[key].(map[string]any)
		if over, both := value.(map[string]any); deep && both {
			out[key] = laid(under, over)
			continue
		}
		out[key] = value
	}
	return out
}

// nulled is the object with null for what the change-set says was null: a change-set does not tell null from absent.
func nulled(object, set map[string]any) map[string]any {
	out := maps.Clone(object)
	for key, value := range set {
		under, deep := out[key].(map[string]any)
		if over, both := value.(map[string]any); deep && both {
			out[key] = nulled(under, over)
		} else if value == nil {
			out[key] = nil
		}
	}
	return out
}

// A test can write a story instead of choosing one.
func TestStory(t *testing.T) {
	t.Parallel()
	f := stripefake.New(t, stripefake.Options{Accounts: []string{"acct_1"}})
	id := f.Create("acct_1", "customer", map[string]any{"email": "ada@example.org"})
	f.Set("acct_1", id, map[string]any{"metadata.plan": "solo", "balance": 7})
	f.SetQuietly("acct_1", id, map[string]any{"name": nil})
	before := f.Now()
	f.Advance(90 * time.Second)
	f.Do("acct_1", id, "customer.deleted")

	events := f.Events()
	if len(events) != 3 || events[1].Type != "customer.updated" || events[2].Type != "customer.deleted" {
		t.Fatalf("the events are %+v", events)
	}
	set := tree(t, events[1].Body)["data"].(map[string]any)["previous_attributes"]
	if diff := cmp.Diff(set, map[string]any{"balance": 0.0, "metadata": map[string]any{"plan": "team"}}); diff != "" {
		t.Errorf("before it was:\n%s", diff)
	}
	if o, _ := f.At("acct_1", id, before); o.Deleted() || o.Changes != 3 || tree(t, o.Body)["name"] != nil {
		t.Errorf("before its end the customer was %+v", o)
	}
	if o := f.Truth()[0]; !o.Deleted() || !o.Changed.Equal(before.Add(90*time.Second)) {
		t.Errorf("at its end the customer is %+v", o)
	}
	if _, there := f.At("acct_1", id, before.Add(-time.Hour)); there {
		t.Error("the customer was there before its birth")
	}
}

// What an object ever was is told from its first birth on, also what no event told.
func TestHistory(t *testing.T) {
	t.Parallel()
	f := stripefake.New(t, stripefake.Options{Reborn: 100, Name: "Other"})
	id := f.Create("", "product", map[string]any{"name": "Team"})
	f.Set("", id, map[string]any{"name": "Solo"})
	f.Advance(time.Second)
	gone := f.Now()
	f.Vanish("", id)
	f.Advance(time.Second)
	if again := f.Create("", "product", map[string]any{"name": "Again"}); again != id {
		t.Fatalf("%s came back as %s", id, again)
	}
	var got []string
	for i, o := range f.History("", id) {
		name := "gone at " + o.Changed.Sub(gone).String()
		if !o.Deleted() {
			name = tree(t, o.Body)["name"].(string)
		}
		got = append(got, name)
		if o.Changes != i+1 {
			t.Errorf("%s has changed %d times", name, o.Changes)
		}
	}
	if diff := cmp.Diff(got, []string{"Team", "Solo", "gone at 0s", "Again"}); diff != "" {
		t.Errorf("it was:\n%s", diff)
	}
	for _, e := range f.Events() {
		if !strings.HasPrefix(e.ID, "evt_1Other") || e.Type == "product.deleted" {
			t.Errorf("there is an event %s, %s", e.ID, e.Type)
		}
	}
	if id := f.Create("", "customer", nil); id != "cus_Other000001" {
		t.Errorf("a customer is called %s", id)
	}
}

// A product's own version moves with each change, unless the options say that it may stand still.
func TestOwnVersion(t *testing.T) {
	t.Parallel()
	for still, want := range map[int][2]bool{0: {true, false}, 50: {true, true}, 100: {false, true}} {
		f := stripefake.New(t, stripefake.Options{Seed: 1, Still: still, Gap: 5 * time.Second})
		f.Live(600)
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
			t.Errorf("where %d %% stand still, some moved: %t, some stood: %t", still, moved, stood)
		}
	}
}
