package versioning_test

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/versioning"
)

// missedAfter returns the missed changes after applying changes of one object in this order. Each
// change is "before after", one second per letter. The list is encoded and decoded after each
// change.
func missedAfter(t *testing.T, first string, changes ...string) versioning.MissedChanges {
	t.Helper()
	row := playEvents(t, stateEvent(1, first))
	var g versioning.MissedChanges
	for _, c := range changes {
		before, after, _ := strings.Cut(c, " ")
		in := toInput(t, changeEvent(10+int64(after[0]), before, after))
		old := row
		old.TiedStates = slices.Clone(row.TiedStates)
		if f, ok := versioning.FitChange(&old, &in, versioning.Apply(&row, in).Status); ok {
			g = g.Update(&f)
		}
		text, err := g.Encode()
		testkit.Must(t, err)
		if stored, err := versioning.DecodeMissedChanges(text); err != nil || !slices.Equal(stored, g) {
			t.Fatalf("%v, %v; want %v", stored, err, g)
		}
	}
	return g
}

func TestMissedChanges_changeOrders_countsMissedChanges(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		first, changes string
		want           int
	}{
		{"A", "A B, B C, C D", 0},
		{"A", "B C", 1},
		{"A", "B C, A B", 0},
		{"A", "C D, B C, A B", 0},
		{"A", "C D, A B, B C", 0},
		{"A", "C D, A B", 1},
		{"A", "C D, D E, E F, B C, A B", 0},
		{"A", "B C, D E", 2},
		{"A", "B C, D E, C D, A B", 0},
		{"A", "B C, D E, C D", 1},
		{"C", "A B, C D", 2}, // from C to A, and from B back to C
		{"A", "A A, B B", 0}, // no change
	} {
		if got := missedAfter(t, c.first, strings.Split(c.changes, ", ")...); len(got) != c.want {
			t.Errorf("%s, then %s: %d missed changes, want %d", c.first, c.changes, len(got), c.want)
		}
	}
	// An older change that begins at the state of the row was received out of order.
	row := playEvents(t, stateEvent(50, "A"))
	in, old := toInput(t, changeEvent(20, "A", "B")), row
	f, ok := versioning.FitChange(&old, &in, versioning.Apply(&row, in).Status)
	if g := (versioning.MissedChanges)(nil).Update(&f); !ok || len(g) != 1 {
		t.Errorf("%v, %v", ok, g)
	}
	// The list is limited.
	var many []string
	for l := 'B'; l < 'Y'; l += 2 {
		many = append(many, string(l)+" "+string(l+1))
	}
	if got := missedAfter(t, "A", many...); len(got) != 8 {
		t.Errorf("%d missed changes of %d", len(got), len(many))
	}
	if _, err := versioning.DecodeMissedChanges([]byte(`[["AA==", "AA=="]]`)); err == nil {
		t.Error("a hash of one byte is decoded")
	}
}

// Adjacent changes that arrive in the wrong order leave no missed change, in any number.
func TestMissedChanges_neighboursSwapped_leavesNone(t *testing.T) {
	t.Parallel()
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 51))
		var changes []string
		for l := 'A'; l < 'P'; l++ {
			changes = append(changes, string(l)+" "+string(l+1))
		}
		for i := 1; i < len(changes); i++ {
			if r.IntN(2) == 0 {
				changes[i-1], changes[i] = changes[i], changes[i-1]
				i++
			}
		}
		if got := missedAfter(t, "A", changes...); len(got) != 0 {
			t.Fatalf("seed %d: %d missed changes after %q", seed, len(got), changes)
		}
	}
}

// A late event leaves one missed change. Only a refetch closes it; the return of a state or another
// change-set does not.
func TestMissedChanges_lateEvent_closesOnlyByRefetch(t *testing.T) {
	t.Parallel()
	a, b, c := stateEvent(1, "A"), stateEvent(2, "B"), stateEvent(10, "C")
	hash := func(o provider.Observation) versioning.Hash { return toInput(t, o).State.Hash }
	late := versioning.MissedChanges{{From: hash(a)}}
	var none versioning.MissedChanges
	for name, g := range map[string]versioning.MissedChanges{
		"another late event": none.WithLateEvent(hash(a)).WithLateEvent(hash(b)),
		"the state returned": none.WithLateEvent(hash(a)).WithLateEvent(hash(c)).WithLateEvent(hash(a)),
	} {
		if !slices.Equal(g, late) {
			t.Errorf("%s: the missed changes are %v", name, g)
		}
	}
	row := play(t, []versioning.Input{toInput(t, c)})
	in := toInput(t, changeEvent(2, "A", "D"))
	older, ok := versioning.FitChange(&row, &in, versioning.Stale)
	if g := late.Update(&older); !ok || !slices.Equal(g, late) {
		t.Errorf("after an older change-set the missed changes are %v", g)
	}
	refetched, _ := versioning.FitChange(&row, &versioning.Input{IsRefetch: true}, versioning.Applied)
	if g := late.Update(&refetched); g != nil {
		t.Errorf("after a refetch the missed changes are %v", g)
	}
}
