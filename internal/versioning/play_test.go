package versioning_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/sim"
	"github.com/postern-gateway/postern/internal/versioning"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// fataler is a *testing.T or a *rapid.T.
type fataler interface {
	Helper()
	Fatalf(format string, args ...any)
}

// choices lets rapid make the choices of a property, so that it can shrink them.
type choices struct{ t *rapid.T }

func (c choices) IntN(n int) int { return rapid.IntRange(0, n-1).Draw(c.t, "choice") }

// everywhere checks a property for many fixed seeds, a quarter of them with -short, and for choices of rapid's, which
// shrinks what fails.
func everywhere(t *testing.T, seeds int, property func(fataler, sim.Chooser)) {
	t.Helper()
	if testing.Short() {
		seeds /= 4
	}
	t.Run("seeds", func(t *testing.T) {
		t.Parallel()
		for seed := range seeds {
			property(seeded{t, seed}, rand.New(rand.NewPCG(uint64(seed), 1)))
		}
	})
	t.Run("rapid", func(t *testing.T) {
		t.Parallel()
		rapid.Check(t, func(t *rapid.T) { property(t, choices{t}) })
	})
}

// seeded names the seed that a property failed with.
type seeded struct {
	*testing.T
	seed int
}

func (s seeded) Fatalf(format string, args ...any) {
	s.Helper()
	s.T.Fatalf("seed %d: "+format, append([]any{s.seed}, args...)...)
}

// pick is one of the values.
func pick[T any](c sim.Chooser, values ...T) T { return values[c.IntN(len(values))] }

// anyOptions is a provider of any kind that the simulation knows, for one object.
func anyOptions(c sim.Chooser) sim.Options {
	o := sim.Options{
		Objects:    1,
		Changes:    1 + c.IntN(7),
		Contents:   1 + c.IntN(4),
		Unit:       pick[int64](c, 1_000_000, 1000, 1),
		Gap:        pick[int64](c, 100_000, 700_000, 3_000_000),
		ChangeSets: pick(c, 0, 50, 90, 100),
		Partial:    pick(c, 0, 0, 30),
		Deletes:    pick(c, 0, 30),
		Final:      c.IntN(2) == 0,
		Timeless:   c.IntN(2) == 0,
		Twins:      pick(c, 0, 30),
		Late:       pick[int64](c, 1, 5_000_000),
		Noise:      c.IntN(2) == 0,
	}
	switch c.IntN(4) {
	case 0:
		o.Frozen, o.Steps = true, c.IntN(2) == 0
	case 1:
		o.Own = true
	case 2:
		o.Own, o.Still = true, true
	case 3:
		o.Own, o.Integer = true, true
	}
	return o
}

// anyLooks are looks at any moments of the history's only object.
func anyLooks(c sim.Chooser, h *sim.History) []versioning.Input {
	ins := make([]versioning.Input, c.IntN(3))
	for i := range ins {
		ins[i] = h.Look("obj_1", anyLook(c, sim.Start-3_000_000+int64(c.IntN(15_000_000))))
	}
	return ins
}

func anyLook(c sim.Chooser, began int64) sim.Look {
	l := sim.Look{Began: began, Elapsed: pick[int64](c, 1, 300_000, 2_500_000), Lag: pick[int64](c, 0, 2_000_000)}
	l.Answered = int64(c.IntN(int(l.Lag + l.Elapsed + 1)))
	return l
}

// observe reads an event as the processor does.
func observe(t fataler, e sim.Event) versioning.Input {
	t.Helper()
	o, err := sim.Provider{}.Observe(nil, &provider.Stored{Body: e.Body})
	if err != nil {
		t.Fatalf("observe %s: %v", e.Body, err)
	}
	in, err := versioning.FromObservation(o, e.ReceivedAt)
	if err != nil {
		t.Fatalf("observe %s: %v", e.Body, err)
	}
	return in
}

func observeAll(t fataler, events []sim.Event) []versioning.Input {
	t.Helper()
	ins := make([]versioning.Input, len(events))
	for i, e := range events {
		ins[i] = observe(t, e)
	}
	return ins
}

// play applies inputs to a new row and checks on the way that the version never goes down.
func play(t fataler, ins []versioning.Input) versioning.Row {
	t.Helper()
	row := versioning.NewRow()
	for _, in := range ins {
		old := row.Version
		d := versioning.Apply(&row, in)
		if row.Version.Compare(old) < 0 {
			t.Fatalf("the version went down from %v to %v", old, row.Version)
		}
		if d.Reason == "" || d.Status == "" || d.DecidedBy != row.Version {
			t.Fatalf("decision %+v at version %v", d, row.Version)
		}
	}
	return row
}

// shuffled is the inputs in any order, some of them several times.
func shuffled(c sim.Chooser, ins []versioning.Input) []versioning.Input {
	all := slices.Clone(ins)
	if len(ins) > 0 {
		for range c.IntN(4) {
			all = append(all, pick(c, ins...))
		}
	}
	for i := len(all) - 1; i > 0; i-- {
		j := c.IntN(i + 1)
		all[i], all[j] = all[j], all[i]
	}
	return all
}

// same is a row without what may depend on the order: LookAfter, and the spelling of JSON that has one canonical text.
func same(row versioning.Row) versioning.Row {
	row.LookAfter = 0
	row.State.JSON = respell(row.State.JSON)
	row.Set = slices.Clone(row.Set)
	for i := range row.Set {
		row.Set[i].State.JSON = respell(row.Set[i].State.JSON)
	}
	return row
}

func respell(json []byte) []byte {
	if json == nil {
		return nil
	}
	v, err := canonical.Parse(json)
	if err != nil {
		panic(err)
	}
	return v.AppendCanonical(nil, canonical.Options{})
}
