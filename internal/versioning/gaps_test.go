package versioning_test

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/versioning"
)

// gapsOf are the gaps after changes of one life, each from one letter to the next a second later, in an order of arrival; they are stored in between.
func gapsOf(t *testing.T, first string, changes ...string) versioning.Gaps {
	t.Helper()
	row := rule(t, whole(1, first))
	var g versioning.Gaps
	for _, c := range changes {
		before, after, _ := strings.Cut(c, " ")
		in := input(t, change(10+int64(after[0]), before, after))
		old := row
		old.Set = slices.Clone(row.Set)
		if f, ok := versioning.FitOf(&old, &in, versioning.Apply(&row, in).Status); ok {
			g = g.After(&f)
		}
		text, err := g.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if stored, err := versioning.DecodeGaps(text); err != nil || !slices.Equal(stored, g) {
			t.Fatalf("%v, %v; want %v", stored, err, g)
		}
	}
	return g
}

func TestGaps(t *testing.T) {
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
		{"A", "A A, B B", 0}, // nothing changed
	} {
		if got := gapsOf(t, c.first, strings.Split(c.changes, ", ")...); len(got) != c.want {
			t.Errorf("%s, then %s: %d gaps, want %d", c.first, c.changes, len(got), c.want)
		}
	}
	// An older change that begins at the state of the row is in the wrong place itself.
	row := rule(t, whole(50, "A"))
	in, old := input(t, change(20, "A", "B")), row
	f, ok := versioning.FitOf(&old, &in, versioning.Apply(&row, in).Status)
	if g := (versioning.Gaps)(nil).After(&f); !ok || len(g) != 1 {
		t.Errorf("%v, %v", ok, g)
	}
	// There is room for some.
	var many []string
	for l := 'B'; l < 'Y'; l += 2 {
		many = append(many, string(l)+" "+string(l+1))
	}
	if got := gapsOf(t, "A", many...); len(got) != 8 {
		t.Errorf("%d gaps of %d", len(got), len(many))
	}
	if _, err := versioning.DecodeGaps([]byte(`[["AA==", "AA=="]]`)); err == nil {
		t.Error("a hash of one byte is read")
	}
}

// Neighbours that change places leave no gap, however often that happens.
func TestNeighboursThatChangePlaces(t *testing.T) {
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
		if got := gapsOf(t, "A", changes...); len(got) != 0 {
			t.Fatalf("seed %d: %d gaps after %q", seed, len(got), changes)
		}
	}
}

// What came late leaves one gap that no state's return and no change-set closes or moves, only a look.
func TestLateGaps(t *testing.T) {
	t.Parallel()
	a, b, c := whole(1, "A"), whole(2, "B"), whole(10, "C")
	hash := func(o provider.Observation) versioning.Hash { return input(t, o).State.Hash }
	late := versioning.Gaps{{From: hash(a)}}
	for what, g := range map[string]versioning.Gaps{"another event": versioning.Gaps(nil).Late(hash(a)).Late(hash(b)), "its return": versioning.Gaps(nil).Late(hash(a)).Late(hash(c)).Late(hash(a))} {
		if !slices.Equal(g, late) {
			t.Errorf("after %s there are %v", what, g)
		}
	}
	row := play(t, []versioning.Input{input(t, c)})
	in := input(t, change(2, "A", "D"))
	older, ok := versioning.FitOf(&row, &in, versioning.Stale)
	if g := late.After(&older); !ok || !slices.Equal(g, late) {
		t.Errorf("after an older change-set there are %v", g)
	}
	looked, _ := versioning.FitOf(&row, &versioning.Input{Look: true}, versioning.Applied)
	if g := late.After(&looked); g != nil {
		t.Errorf("after a look there are %v", g)
	}
}
