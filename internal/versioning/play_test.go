package versioning_test

import (
	"fmt"
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

// failer is a *testing.T or a *rapid.T.
type failer interface {
	Helper()
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

// rapidChoices takes the choices of a property from rapid, so that rapid can shrink them.
type rapidChoices struct{ t *rapid.T }

func (c rapidChoices) IntN(n int) int { return rapid.IntRange(0, n-1).Draw(c.t, "choice") }

// forManySeeds checks a property with fixed seeds (a quarter of them with -short) and with rapid.
func forManySeeds(t *testing.T, seeds int, property func(failer, sim.Chooser)) {
	t.Helper()
	if testing.Short() {
		seeds /= 4
	}
	t.Run("seeds", func(t *testing.T) {
		t.Parallel()
		for seed := range seeds {
			property(seededT{t, seed}, rand.New(rand.NewPCG(uint64(seed), 1)))
		}
	})
	t.Run("rapid", func(t *testing.T) {
		t.Parallel()
		rapid.Check(t, func(t *rapid.T) { property(t, rapidChoices{t}) })
	})
}

// seededT adds the seed to failure messages.
type seededT struct {
	*testing.T
	seed int
}

func (s seededT) Fatalf(format string, args ...any) {
	s.Helper()
	s.T.Fatalf("seed %d: "+format, append([]any{s.seed}, args...)...)
}

func (s seededT) Fatal(args ...any) {
	s.Helper()
	s.Fatalf("%s", fmt.Sprint(args...))
}

// pick returns one of the values.
func pick[T any](c sim.Chooser, values ...T) T { return values[c.IntN(len(values))] }

// anyOptions returns the options of any kind of simulated provider, with one object.
func anyOptions(c sim.Chooser) sim.Options {
	o := sim.Options{
		Objects:            1,
		Changes:            1 + c.IntN(7),
		Contents:           1 + c.IntN(4),
		Unit:               pick[int64](c, 1_000_000, 1000, 1),
		Gap:                pick[int64](c, 100_000, 700_000, 3_000_000),
		ChangeSets:         pick(c, 0, 50, 90, 100),
		Partial:            pick(c, 0, 0, 30),
		Deletes:            pick(c, 0, 30),
		FinalDeletes:       c.IntN(2) == 0,
		DeletesWithoutTime: c.IntN(2) == 0,
		DuplicateEvents:    pick(c, 0, 30),
		MaxDelay:           pick[int64](c, 1, 5_000_000),
		Noise:              c.IntN(2) == 0,
	}
	switch c.IntN(4) {
	case 0:
		o.EventsHoldOwnState, o.StatusSteps = true, c.IntN(2) == 0
	case 1:
		o.ObjectVersions = true
	case 2:
		o.ObjectVersions, o.VersionMayNotAdvance = true, true
	case 3:
		o.ObjectVersions, o.VersionIsCounter = true, true
	}
	return o
}

// anyRefetches returns refetches of the history's only object at arbitrary moments.
func anyRefetches(c sim.Chooser, h *sim.History) []versioning.Input {
	inputs := make([]versioning.Input, c.IntN(3))
	for i := range inputs {
		inputs[i] = h.Refetch("obj_1", anyRefetch(c, sim.Start-3_000_000+int64(c.IntN(15_000_000))))
	}
	return inputs
}

func anyRefetch(c sim.Chooser, began int64) sim.Refetch {
	l := sim.Refetch{Began: began, Elapsed: pick[int64](c, 1, 300_000, 2_500_000), Lag: pick[int64](c, 0, 2_000_000)}
	l.ReadOffset = int64(c.IntN(int(l.Lag + l.Elapsed + 1)))
	return l
}

// observe converts an event as the processor does.
func observe(t failer, e sim.Event) versioning.Input {
	t.Helper()
	o, err := sim.Provider{}.Observe(nil, &provider.StoredEvent{Body: e.Body})
	if err != nil {
		t.Fatalf("observe %s: %v", e.Body, err)
	}
	in, err := versioning.InputFromObservation(o, e.ReceivedAt)
	testkit.Must(t, err)
	return in
}

func observeAll(t failer, events []sim.Event) []versioning.Input {
	t.Helper()
	inputs := make([]versioning.Input, len(events))
	for i, e := range events {
		inputs[i] = observe(t, e)
	}
	return inputs
}

// play applies inputs to a new row, and checks that the version never goes down.
func play(t failer, inputs []versioning.Input) versioning.Row {
	t.Helper()
	row := versioning.NewRow()
	for _, in := range inputs {
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

// wantSameInAnyOrder fails if two rows differ in more than may depend on the order of their inputs.
func wantSameInAnyOrder(t failer, want, got versioning.Row) {
	t.Helper()
	if diff := diffRows(withoutOrder(want), withoutOrder(got)); diff != "" {
		t.Fatalf("the rows differ (-want +got):\n%s", diff)
	}
}

// wantNotSilentlyWrong fails unless the row is right, ambiguous or has a pending refetch.
func wantNotSilentlyWrong(t failer, h *sim.History, row versioning.Row) {
	t.Helper()
	if truth := h.FinalState("obj_1"); row.State.Hash != truth.Hash && !row.Ambiguous && row.RefetchAfter == 0 {
		t.Fatalf("the row shows %s at %v and is not marked ambiguous; the provider has %s", row.State.JSON,
			row.Version, truth.JSON)
	}
}

// wantTruth fails unless the row is right, unambiguous and without a pending refetch, after a
// decision.
func wantTruth(t failer, h *sim.History, row versioning.Row, d versioning.Decision) {
	t.Helper()
	if truth := h.FinalState("obj_1"); row.State.Hash != truth.Hash || row.Ambiguous || row.RefetchAfter != 0 {
		t.Fatalf("after %+v the row shows %s (ambiguous %v, refetch after %d); the provider has %s", d, row.State.JSON,
			row.Ambiguous, row.RefetchAfter, truth.JSON)
	}
}

// lateEnough returns a start of a refetch after the last change, RefetchAfter and all time ranges.
func lateEnough(h *sim.History, row versioning.Row) int64 {
	const slowest, second = 4_500_000, 1_000_000
	return max(row.RefetchAfter, row.TimeTo, h.LastChangeAt("obj_1")) + slowest + second + h.Unit
}

// shuffle returns the inputs in any order, with copies of some.
func shuffle(c sim.Chooser, inputs []versioning.Input) []versioning.Input {
	all := slices.Clone(inputs)
	if len(inputs) > 0 {
		for range c.IntN(4) {
			all = append(all, pick(c, inputs...))
		}
	}
	for i := len(all) - 1; i > 0; i-- {
		j := c.IntN(i + 1)
		all[i], all[j] = all[j], all[i]
	}
	return all
}

// withoutOrder clears the values that may depend on the order: RefetchAfter, and the formatting of
// JSON.
func withoutOrder(row versioning.Row) versioning.Row {
	row.RefetchAfter = 0
	row.State.JSON = canonicalJSON(row.State.JSON)
	row.TiedStates = slices.Clone(row.TiedStates)
	for i := range row.TiedStates {
		row.TiedStates[i].State.JSON = canonicalJSON(row.TiedStates[i].State.JSON)
	}
	return row
}

func canonicalJSON(json []byte) []byte {
	if json == nil {
		return nil
	}
	v, err := canonical.Parse(json)
	if err != nil {
		panic(err)
	}
	return v.AppendCanonical(nil, canonical.Options{})
}
