package versioning_test

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/testkit/sim"
	"github.com/postern-gateway/postern/internal/versioning"
)

func TestCounterFinalWhereIDsComeBack(t *testing.T) {
	t.Parallel()
	simpler := rule(t, whole(10, "first"), gone(10, true), whole(10, "second"), whole(11, "third"))
	wantWrong(t, is(simpler.State), "gone") // for ever
	wantDoubt(t, rule(t, whole(10, "first"), gone(10, false), whole(10, "second")))
	wantSure(t, rule(t, whole(10, "first"), gone(10, false), whole(10, "second"), whole(11, "third")), "third")
}

func TestCounterRebuildFromNothing(t *testing.T) {
	t.Parallel()
	winner, late := whole(20, "B"), whole(10, "A")
	// The winner came first and its partition has been dropped; the log still has the late one.
	wantWrong(t, is(rule(t, late).State), "A")
	row := rule(t, winner) // a rebuild joins into the row that was kept
	versioning.Apply(&row, input(t, late))
	wantSure(t, row, "B")
}

func TestCounterUnchangedKeepsVersion(t *testing.T) {
	t.Parallel()
	a, again, late := whole(10, "A"), whole(12, "A"), whole(11, "B")
	onlyIfDifferent := func(stored, in provider.Observation) bool { return newer(stored, in) && name(stored) != name(in) }
	wantWrong(t, keep(onlyIfDifferent, a, again, late), "B")
	wantSure(t, rule(t, a, again, late), "A")
}

func TestCounterLookTiesWithWhatItAnswers(t *testing.T) {
	t.Parallel()
	shop := func(state string) provider.Observation {
		o := whole(10, state)
		o.Own, o.Still = true, true
		return o
	}
	answer := func(began int64) versioning.Input {
		a := look(began, "B")
		a.Own, a.Version, a.VersionUnit = true, 10*second, second
		return a.Input()
	}
	simpler, row := rule(t, shop("A"), shop("B")), rule(t, shop("A"), shop("B"))
	for began := int64(20); began < 23; began++ {
		tied := answer(began)
		tied.Version.Seen = 0
		versioning.Apply(&simpler, tied)
	}
	wantDoubt(t, simpler) // after three looks, and after a thousand
	wantDoubt(t, row)
	versioning.Apply(&row, answer(20))
	wantSure(t, row, "B")
}

func TestCounterNotFoundIsFinal(t *testing.T) {
	t.Parallel()
	early, created := look(5, "404").Input(), input(t, whole(10, "A"))
	final := early
	final.Version.Final = true
	wantWrong(t, is(play(t, []versioning.Input{final, created}).State), "gone") // never comes back
	wantSure(t, play(t, []versioning.Input{early, created}), "A")
	wantSure(t, play(t, []versioning.Input{created, early}), "A")
}

func TestCounterReplicaLagIgnored(t *testing.T) {
	t.Parallel()
	event, answer := input(t, whole(10, "B")), look(11, "A") // the API answers with what was so two seconds ago
	ignored := play(t, []versioning.Input{event, answer.Input()})
	wantWrong(t, is(ignored.State), "A")
	wantSure(t, ignored, "A") // and nothing says so
	answer.Lag = 2 * second
	row := play(t, []versioning.Input{event, answer.Input()})
	if is(row.State) != "B" || row.LookAfter == 0 {
		t.Errorf("the row shows %s and owes a look after %d, want B and a look", is(row.State), row.LookAfter)
	}
}

func TestCounterPatchesMerged(t *testing.T) {
	t.Parallel()
	all := provider.Observation{At: 10 * second, HasAt: true, Unit: second, Rank: 1, State: parse(t, `{"a":0,"b":0}`)}
	b := provider.Observation{At: 12 * second, HasAt: true, Unit: second, Rank: 1, State: parse(t, `{"b":1}`)}
	a := provider.Observation{At: 11 * second, HasAt: true, Unit: second, Rank: 1, State: parse(t, `{"a":1}`)}
	merged, version := all.State, all.At
	for _, patch := range []provider.Observation{b, a} {
		if patch.At > version {
			merged, version = parse(t, string(canonical.AppendOverlay(nil, merged, patch.State, canonical.Options{}))), patch.At
		}
	}
	if n, _ := merged.Get("a").Int64(); n != 0 {
		t.Errorf("merging patches keeps a = %d; this trace was to lose it", n)
	}
	b.Partial, a.Partial = "changed fields only", "changed fields only"
	row := rule(t, all, b, a)
	if string(row.State.JSON) != `{"a":0,"b":0}` || row.LookAfter != 13*second-1 {
		t.Errorf("the row has %s and owes a look after %d", row.State.JSON, row.LookAfter)
	}
}

func TestCounterTombstoneKeepsTheLastState(t *testing.T) {
	t.Parallel()
	update, remove := whole(10, "A"), gone(11, true)
	lastFound := func(trace ...provider.Observation) (state string) {
		state, at := "nothing", int64(0)
		for _, o := range trace {
			if at < o.At && o.State.Kind() == canonical.Object {
				state = name(o)
			}
			at = max(at, o.At)
		}
		return state
	}
	if a, b := lastFound(update, remove), lastFound(remove, update); a == b {
		t.Errorf("the simpler rule keeps %s whatever the order; this trace was to give two rows", a)
	}
	if diff := cmp.Diff(rule(t, update, remove), rule(t, remove, update)); diff != "" {
		t.Errorf("the order matters:\n%s", diff)
	}
	wantSure(t, rule(t, remove, update), "gone")
}

func TestCounterEmbeddedObjectsApplied(t *testing.T) {
	t.Parallel()
	old, current := whole(10, "old"), whole(11, "new")
	embedded := whole(12, "old") // the copy inside an order
	wantWrong(t, keep(newer, old, current, embedded), "old")
	order := `{"id":"evt_3","object_id":"order_1","time":12000000,"unit":1000000,"rank":1,"object":{"id":"order_1","customer":{"id":"customer_1","is":"old"}}}`
	o, err := sim.Provider{}.Observe(nil, &provider.Stored{Body: []byte(order)})
	if err != nil || o.ObjectID != "order_1" {
		t.Fatalf("the event is about %q (%v), want only the order", o.ObjectID, err)
	}
	wantSure(t, rule(t, old, current), "new")
}

func TestCounterFarFutureAccepted(t *testing.T) {
	t.Parallel()
	far := whole(time.Date(2099, 1, 1, 0, 0, 0, 0, time.UTC).Unix(), "far")
	wantWrong(t, keep(newer, whole(10, "A"), far, whole(12, "B")), "far") // the object is frozen
	_, err := versioning.FromObservation(far, time.Unix(11, 0))
	var dead *provider.Dead
	if !errors.As(err, &dead) {
		t.Fatalf("a version in 2099 was accepted: %v", err)
	}
	wantSure(t, rule(t, whole(10, "A"), whole(12, "B")), "B")
}

func parse(t *testing.T, text string) *canonical.Value {
	t.Helper()
	v, err := canonical.Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return v
}
