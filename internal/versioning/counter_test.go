package versioning_test

import (
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/testkit/sim"
	"github.com/postern-gateway/postern/internal/versioning"
)

// The files counter_*_test.go show, for each simpler rule that was tried, a trace that it gets wrong without a sign, and
// what the rule makes of the same trace. States are letters, times whole seconds of the provider's clock.

const second = int64(1_000_000)

// whole is an event that tells a whole state at a second.
func whole(at int64, state string) provider.Observation {
	return provider.Observation{At: at * second, HasAt: true, Unit: second, Rank: 1, State: letter(state)}
}

// change is an event that also tells the state before.
func change(at int64, before, after string) provider.Observation {
	o := whole(at, after)
	o.Before = letter(before)
	return o
}

// gone is a delete.
func gone(at int64, final bool) provider.Observation {
	return provider.Observation{At: at * second, HasAt: true, Unit: second, Rank: 1, Deleted: true, Final: final}
}

func letter(state string) *canonical.Value {
	v, err := canonical.Parse([]byte(`{"is":"` + state + `"}`))
	if err != nil {
		panic(err)
	}
	return v
}

// input reads an observation that was received at once.
func input(t *testing.T, o provider.Observation) versioning.Input {
	t.Helper()
	in, err := versioning.FromObservation(o, time.UnixMicro(o.At))
	if err != nil {
		t.Fatal(err)
	}
	return in
}

// rule plays observations in the order given.
func rule(t *testing.T, trace ...provider.Observation) versioning.Row {
	t.Helper()
	ins := make([]versioning.Input, len(trace))
	for i, o := range trace {
		ins[i] = input(t, o)
	}
	return play(t, ins)
}

// is reads a row's letter, "gone" for a deletion.
func is(s versioning.State) string {
	if s.Deleted {
		return "gone"
	}
	v, err := canonical.Parse(s.JSON)
	if err != nil {
		return "nothing"
	}
	text, _ := v.Get("is").Text()
	return text
}

// wantSure and wantDoubt check what a row shows, and whether it says that it may be wrong.
func wantSure(t *testing.T, row versioning.Row, state string) {
	t.Helper()
	if is(row.State) != state || row.Ambiguous || row.LookAfter != 0 {
		t.Errorf("the row shows %s (ambiguous %v, look after %d), want %s and no doubt", is(row.State), row.Ambiguous, row.LookAfter, state)
	}
}

func wantDoubt(t *testing.T, row versioning.Row) {
	t.Helper()
	if !row.Ambiguous || row.LookAfter == 0 {
		t.Errorf("the row shows %s (ambiguous %v, look after %d), want doubt and a look owed", is(row.State), row.Ambiguous, row.LookAfter)
	}
}

// wantWrong checks that the simpler rule still fails as told; otherwise the test shows nothing.
func wantWrong(t *testing.T, simpler, wrong string) {
	t.Helper()
	if simpler != wrong {
		t.Errorf("the simpler rule shows %s; this trace was to lead it to %s", simpler, wrong)
	}
}

// keep is every rule of the kind "the incoming state replaces the stored one if ...".
func keep(replaces func(stored, in provider.Observation) bool, trace ...provider.Observation) string {
	stored := trace[0]
	for _, in := range trace[1:] {
		if replaces(stored, in) {
			stored = in
		}
	}
	return is(versioning.NewState(stored.State, stored.Deleted, nil))
}

func newer(stored, in provider.Observation) bool       { return stored.At < in.At }
func newerOrSame(stored, in provider.Observation) bool { return stored.At <= in.At }

// look is an answer that began at a second and took no time, from an API without lag.
func look(began int64, state string) sim.Answer {
	a := sim.Answer{Date: began * second, Unit: second}
	if state == "404" {
		a.State = versioning.NullState(true)
		return a
	}
	a.State = versioning.NewState(letter(state), false, nil)
	return a
}
