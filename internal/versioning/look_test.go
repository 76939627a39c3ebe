package versioning_test

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/testkit/sim"
	"github.com/postern-gateway/postern/internal/versioning"
)

// A look that went through the log says what the rule was attacked with, which the simulation makes by itself.
func TestLookThroughTheLog(t *testing.T) {
	t.Parallel()
	everywhere(t, 1500, func(t fataler, c sim.Chooser) {
		h := sim.Generate(c, anyOptions(c))
		l := anyLook(c, sim.Start-3_000_000+int64(c.IntN(15_000_000)))
		l.Settles = c.IntN(3) == 0
		l.Raised = !l.Settles && c.IntN(3) == 0
		body, err := h.Answer("obj_1", l).Encode()
		if err != nil {
			t.Fatalf("%v", err)
		}
		read, err := provider.DecodeLook(body)
		if err != nil {
			t.Fatalf("%v: %s", err, body)
		}
		o, err := sim.Provider{}.Snapshot(nil, &read.Snapshot)
		if err != nil {
			t.Fatalf("%v: %s", err, body)
		}
		want := h.Look("obj_1", l)
		got, err := versioning.FromLook(o, read, time.UnixMicro(want.Received))
		if err != nil {
			t.Fatalf("%v", err)
		}
		if want.Partial != "" { // of what does not enter, nothing but the window counts
			want.Version, want.State, want.Own = got.Version, got.State, got.Own
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("%s (-want +got):\n%s", body, diff)
		}
	})
}

// What a look began in, and whose version it has.
func TestFromLook(t *testing.T) {
	t.Parallel()
	at := func(seconds float64) int64 { return int64(seconds * 1e6) }
	date := time.Unix(1_800_000_010, 0)
	l := &provider.Look{Date: date, Elapsed: 300 * time.Millisecond, Lag: time.Second} // began at ...08.7
	state, err := canonical.Parse([]byte(`{"id":"x"}`))
	if err != nil {
		t.Fatal(err)
	}
	seen := at(1_800_000_008)
	for name, c := range map[string]struct {
		o    provider.Observation
		want versioning.Version
	}{
		"no version of its own":           {provider.Observation{State: state, Unit: at(1)}, versioning.Version{At: seen - at(1), Seen: seen}},
		"missing":                         {provider.Observation{Deleted: true, Unit: at(1)}, versioning.Version{At: seen - at(1), Seen: seen}},
		"deleted, says a stub":            {provider.Observation{Deleted: true, Final: true, Unit: at(1)}, versioning.Version{Final: true, At: seen - at(1), Seen: seen}},
		"alive is never final":            {provider.Observation{State: state, Final: true, Unit: at(1)}, versioning.Version{At: seen - at(1), Seen: seen}},
		"own version, over":               {provider.Observation{State: state, Own: true, HasAt: true, At: seen - at(1), Unit: at(1), Rank: 3}, versioning.Version{At: seen - at(1), Seen: seen, Rank: 1}},
		"own version, its second goes on": {provider.Observation{State: state, Own: true, HasAt: true, At: seen, Unit: at(1), Rank: 3}, versioning.Version{At: seen, Rank: 3}},
		"a time that is not its own":      {provider.Observation{State: state, HasAt: true, At: 7, Unit: at(1)}, versioning.Version{At: seen - at(1), Seen: seen}},
	} {
		in, err := versioning.FromLook(c.o, l, date)
		if err != nil || in.Version != c.want || !in.Look || in.Lo != seen || in.Hi != at(1_800_000_011)-1 {
			t.Errorf("%s: %+v, %v; want version %+v from %d", name, in, err, c.want, seen)
		}
	}
	var dead *provider.Dead
	far := provider.Observation{State: state, Own: true, HasAt: true, At: date.Add(3 * time.Hour).UnixMicro(), Unit: 1}
	if _, err := versioning.FromLook(far, l, date); !errors.As(err, &dead) {
		t.Errorf("a version hours ahead: %v", err)
	}
	if _, err := versioning.FromLook(provider.Observation{Ignored: "no object"}, l, date); err == nil {
		t.Error("a look that concerns no object has an input")
	}
}

func TestWindowsAndVersions(t *testing.T) {
	t.Parallel()
	received := time.UnixMicro(30 * second)
	state := letter("A")
	type want struct {
		version versioning.Version
		lo, hi  int64
		partial string
	}
	none := versioning.NoVersion
	for name, c := range map[string]struct {
		o    provider.Observation
		want want
	}{
		"the event's time": {provider.Observation{At: 10 * second, HasAt: true, Unit: second, Rank: 3, State: state},
			want{versioning.Version{At: 10 * second, Rank: 3}, 10 * second, 11*second - 1, ""}},
		"an own version that moves with every change": {provider.Observation{At: 10 * second, HasAt: true, Unit: second, Own: true, State: state},
			want{versioning.Version{At: 10 * second}, 10 * second, 11*second - 1, ""}},
		"an own version that may stand still": {provider.Observation{At: 10 * second, HasAt: true, Unit: second, Own: true, Still: true, State: state},
			want{versioning.Version{At: 10 * second}, 10 * second, 30 * second, ""}},
		"one whose event lies behind the receipt": {provider.Observation{At: 10 * second, HasAt: true, Unit: second, Own: true, Still: true, Until: 36*second - 1, State: state},
			want{versioning.Version{At: 10 * second}, 10 * second, 36*second - 1, ""}},
		"one whose event was received later": {provider.Observation{At: 10 * second, HasAt: true, Unit: second, Own: true, Still: true, Until: 20*second - 1, State: state},
			want{versioning.Version{At: 10 * second}, 10 * second, 30 * second, ""}},
		"one of the second of the receipt": {provider.Observation{At: 30 * second, HasAt: true, Unit: second, Own: true, Still: true, State: state},
			want{versioning.Version{At: 30 * second}, 30 * second, 31*second - 1, ""}},
		"an event's time never stands still": {provider.Observation{At: 10 * second, HasAt: true, Unit: second, Still: true, State: state},
			want{versioning.Version{At: 10 * second}, 10 * second, 11*second - 1, ""}},
		"a counter": {provider.Observation{At: 7, HasAt: true, Unit: 1, Own: true, State: state},
			want{versioning.Version{At: 7}, 7, 7, ""}},
		"no unit counts as one": {provider.Observation{At: 7, HasAt: true, Own: true, State: state},
			want{versioning.Version{At: 7}, 7, 7, ""}},
		"the greatest number": {provider.Observation{At: math.MaxInt64, HasAt: true, Unit: second, AnyTime: true, State: state},
			want{versioning.Version{At: math.MaxInt64}, math.MaxInt64, math.MaxInt64, ""}},
		"a final delete": {provider.Observation{At: 10 * second, HasAt: true, Unit: second, Deleted: true, Final: true},
			want{versioning.Version{Final: true, At: 10 * second}, 10 * second, 11*second - 1, ""}},
		"a final delete without time": {provider.Observation{Deleted: true, Final: true, Rank: 1},
			want{versioning.Version{Final: true, Rank: 1}, 0, 30 * second, ""}},
		"final without a delete means nothing": {provider.Observation{At: 10 * second, HasAt: true, Unit: second, Final: true, State: state},
			want{versioning.Version{At: 10 * second}, 10 * second, 11*second - 1, ""}},
		"a test clock ahead": {provider.Observation{At: 9e15, HasAt: true, Unit: second, AnyTime: true, State: state},
			want{versioning.Version{At: 9e15}, 9e15, 9e15 + second - 1, ""}},
		"an hour ahead": {provider.Observation{At: 3630 * second, HasAt: true, Unit: second, State: state},
			want{versioning.Version{At: 3630 * second}, 3630 * second, 3631*second - 1, ""}},
		"partial, by the event's clock": {provider.Observation{Partial: "ids only", At: 10 * second, HasAt: true, Unit: second},
			want{none, 10 * second, 11*second - 1, "ids only"}},
		"partial, by no clock": {provider.Observation{Partial: "ids only"},
			want{none, 30 * second, 30 * second, "ids only"}},
		"partial, by a counter": {provider.Observation{Partial: "ids only", At: 7, HasAt: true, Unit: 1, Own: true},
			want{none, 30 * second, 30 * second, "ids only"}},
		"no version": {provider.Observation{State: state},
			want{none, 30 * second, 30 * second, "the event carries no version"}},
		"no version in a delete that may be taken back": {provider.Observation{Deleted: true},
			want{none, 30 * second, 30 * second, "the event carries no version"}},
		"no state": {provider.Observation{At: 10 * second, HasAt: true, Unit: second},
			want{none, 10 * second, 11*second - 1, "the event carries no state"}},
	} {
		in, err := versioning.FromObservation(c.o, received)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		got := want{in.Version, in.Lo, in.Hi, in.Partial}
		if diff := cmp.Diff(c.want, got, cmp.AllowUnexported(want{})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		if in.Own != c.o.Own || in.Look {
			t.Errorf("%s: own %v, look %v", name, in.Own, in.Look)
		}
	}
}

func TestRefusedVersions(t *testing.T) {
	t.Parallel()
	received := time.UnixMicro(30 * second)
	for name, o := range map[string]provider.Observation{
		"more than an hour ahead":  {At: 3630*second + 1, HasAt: true, Unit: 1, State: letter("A")},
		"partial, far ahead":       {At: 9e15, HasAt: true, Unit: 1, Partial: "ids only"},
		"what stands for nothing":  {At: math.MinInt64, HasAt: true, Unit: 1, State: letter("A"), AnyTime: true},
		"a final delete far ahead": {At: 9e15, HasAt: true, Unit: 1, Final: true, Deleted: true},
	} {
		_, err := versioning.FromObservation(o, received)
		var dead *provider.Dead
		if !errors.As(err, &dead) || dead.Reason == "" {
			t.Errorf("%s: %v, want a dead outcome", name, err)
		}
	}
	_, err := versioning.FromObservation(provider.Observation{At: 2e15, HasAt: true, Unit: 1, State: letter("A")}, time.UnixMicro(1.7e15))
	for _, word := range []string{"2033-05-18T03:33:20Z", "2023-11-14T22:13:20Z", "look", "clock"} {
		if err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("%v does not say %q", err, word)
		}
	}
	if _, err := versioning.FromObservation(provider.Observation{Ignored: "no object"}, received); err == nil || errors.As(err, new(*provider.Dead)) {
		t.Errorf("an observation of no object: %v", err)
	}
}

func TestHashes(t *testing.T) {
	t.Parallel()
	at := func(state, before string, deleted bool, volatile ...string) versioning.Input {
		o := provider.Observation{At: 1, HasAt: true, Unit: 1, State: parse(t, state), Deleted: deleted, Volatile: volatile}
		if before != "" {
			o.Before = parse(t, before)
		}
		return input(t, o)
	}
	base := at(`{"a":1,"b":{"c":2}}`, "", false)
	same := at(`{ "b":{"c":2.0,"d":null}, "a":1, "hits":9 }`, "", false, "hits")
	if base.State.Hash != same.State.Hash {
		t.Error("null and volatile members make another state")
	}
	if base.State.Exact == same.State.Exact {
		t.Error("null and volatile members make no other exact state")
	}
	if other := at(`{"a":2,"b":{"c":2}}`, "", false); other.State.Hash == base.State.Hash {
		t.Error("another value is the same state")
	}
	if dead := at(`{"a":1,"b":{"c":2}}`, "", true); dead.State.Hash == base.State.Hash || dead.State.Exact == base.State.Exact || !dead.State.Deleted {
		t.Error("deleted does not count")
	}
	changed := at(`{"a":5,"b":{"c":2,"e":1},"hits":3}`, `{"a":1,"b":{"e":null},"hits":2}`, false, "hits")
	if changed.Before == nil || *changed.Before != base.State.Hash {
		t.Error("the change-set does not lead back to the state before")
	}
	if none := at(`{"a":1}`, `{}`, false); none.Before == nil || *none.Before != none.State.Hash {
		t.Error("an empty change-set starts elsewhere than at its own state")
	}
	if removed := at(`{"a":2,"b":{"c":2}}`, `{"a":1}`, true); removed.Before == nil || *removed.Before != base.State.Hash {
		t.Error("a delete with a change-set does not lead back to the object as it was")
	}
	if base.Before != nil {
		t.Error("a state before was told by nobody")
	}
}

func TestStatesAsStored(t *testing.T) {
	t.Parallel()
	if s := versioning.NewState(parse(t, `{"a":"\u0000"}`), false, nil); !s.Repaired || string(s.JSON) != "{\"a\":\"\uFFFD\"}" {
		t.Errorf("repaired %v: %s", s.Repaired, s.JSON)
	}
	if s := versioning.NewState(parse(t, ` {"a":1.0} `), false, nil); s.Repaired || string(s.JSON) != `{"a":1.0}` {
		t.Errorf("repaired %v: %s", s.Repaired, s.JSON)
	}
	if diff := cmp.Diff(versioning.NullState(true), versioning.NewState(parse(t, "null"), true, nil)); diff != "" {
		t.Errorf("null and nothing differ:\n%s", diff)
	}
}
