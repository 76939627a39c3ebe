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
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/sim"
	"github.com/postern-gateway/postern/internal/versioning"
)

// A refetch that is encoded and decoded gives the same input as the one that the simulation builds
// directly.
func TestRefetch_encodedAndDecoded_givesSameInput(t *testing.T) {
	t.Parallel()
	forManySeeds(t, 1500, func(t failer, c sim.Chooser) {
		h := sim.Generate(c, anyOptions(c))
		l := anyRefetch(c, sim.Start-3_000_000+int64(c.IntN(15_000_000)))
		l.Overwrites = c.IntN(3) == 0
		l.Reversioned = !l.Overwrites && c.IntN(3) == 0
		body, err := h.StoredRefetch("obj_1", l).Encode()
		testkit.Must(t, err)
		decoded, err := provider.DecodeRefetch(body)
		if err != nil {
			t.Fatalf("%v: %s", err, body)
		}
		o, err := sim.Provider{}.Snapshot(nil, &decoded.Snapshot)
		if err != nil {
			t.Fatalf("%v: %s", err, body)
		}
		want := h.Refetch("obj_1", l)
		got, err := versioning.InputFromRefetch(o, decoded, time.UnixMicro(want.Received))
		testkit.Must(t, err)
		if want.Partial != "" { // only the time range of a partial refetch matters
			want.Version, want.State, want.OwnVersion = got.Version, got.State, got.OwnVersion
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("%s (-want +got):\n%s", body, diff)
		}
	})
}

// The time range of a refetch, and its version.
func TestInputFromRefetch_observations_getVersion(t *testing.T) {
	t.Parallel()
	at := func(seconds float64) int64 { return int64(seconds * 1e6) }
	date := time.Unix(1_800_000_010, 0)
	l := &provider.Refetch{Date: date, Elapsed: 300 * time.Millisecond, Lag: time.Second} // began at ...08.7
	state, err := canonical.Parse([]byte(`{"id":"x"}`))
	testkit.Must(t, err)
	seen := at(1_800_000_008)
	for name, c := range map[string]struct {
		o    provider.Observation
		want versioning.Version
	}{
		"no own version": {provider.Observation{State: state, Unit: at(1)},
			versioning.Version{At: seen - at(1), Seen: seen}},
		"missing": {provider.Observation{Deleted: true, Unit: at(1)},
			versioning.Version{At: seen - at(1), Seen: seen}},
		"deleted, as a stub": {provider.Observation{Deleted: true, Final: true, Unit: at(1)},
			versioning.Version{Final: true, At: seen - at(1), Seen: seen}},
		"alive and marked final": {provider.Observation{State: state, Final: true, Unit: at(1)},
			versioning.Version{At: seen - at(1), Seen: seen}},
		"own version whose second is over": {provider.Observation{State: state, OwnVersion: true, HasAt: true,
			At: seen - at(1), Unit: at(1), Rank: 3}, versioning.Version{At: seen - at(1), Seen: seen, Rank: 1}},
		"own version whose second is not over": {provider.Observation{State: state, OwnVersion: true, HasAt: true,
			At: seen, Unit: at(1), Rank: 3}, versioning.Version{At: seen, Rank: 3}},
		"a time that is no own version": {provider.Observation{State: state, HasAt: true, At: 7, Unit: at(1)},
			versioning.Version{At: seen - at(1), Seen: seen}},
	} {
		in, err := versioning.InputFromRefetch(c.o, l, date)
		if err != nil || in.Version != c.want || !in.IsRefetch || in.TimeFrom != seen ||
			in.TimeTo != at(1_800_000_011)-1 {
			t.Errorf("%s: %+v, %v; want version %+v from %d", name, in, err, c.want, seen)
		}
	}
	var dead *provider.Dead
	far := provider.Observation{State: state, OwnVersion: true, HasAt: true, At: date.Add(3 * time.Hour).UnixMicro(),
		Unit: 1}
	if _, err := versioning.InputFromRefetch(far, l, date); !errors.As(err, &dead) {
		t.Errorf("a version hours ahead: %v", err)
	}
	if _, err := versioning.InputFromRefetch(provider.Observation{Ignored: "no object"}, l, date); err == nil {
		t.Error("a refetch about no object has an input")
	}
}

func TestInputFromObservation_observations_getTimeRangeAndVersion(t *testing.T) {
	t.Parallel()
	received := time.UnixMicro(30 * second)
	state := letterState("A")
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
		"own version that advances with every change": {provider.Observation{At: 10 * second, HasAt: true, Unit: second,
			OwnVersion: true, State: state},
			want{versioning.Version{At: 10 * second}, 10 * second, 11*second - 1, ""}},
		"own version that may not advance": {provider.Observation{At: 10 * second, HasAt: true, Unit: second,
			OwnVersion: true, MayNotAdvance: true, State: state},
			want{versioning.Version{At: 10 * second}, 10 * second, 30 * second, ""}},
		"event time after the receipt": {provider.Observation{At: 10 * second, HasAt: true, Unit: second,
			OwnVersion: true, MayNotAdvance: true, EventTimeEnd: 36*second - 1, State: state},
			want{versioning.Version{At: 10 * second}, 10 * second, 36*second - 1, ""}},
		"event time before the receipt": {provider.Observation{At: 10 * second, HasAt: true, Unit: second,
			OwnVersion: true, MayNotAdvance: true, EventTimeEnd: 20*second - 1, State: state},
			want{versioning.Version{At: 10 * second}, 10 * second, 30 * second, ""}},
		"own version in the second of the receipt": {provider.Observation{At: 30 * second, HasAt: true, Unit: second,
			OwnVersion: true, MayNotAdvance: true, State: state},
			want{versioning.Version{At: 30 * second}, 30 * second, 31*second - 1, ""}},
		"event time that may not advance": {provider.Observation{At: 10 * second, HasAt: true, Unit: second,
			MayNotAdvance: true, State: state},
			want{versioning.Version{At: 10 * second}, 10 * second, 11*second - 1, ""}},
		"integer version": {provider.Observation{At: 7, HasAt: true, Unit: 1, OwnVersion: true, State: state},
			want{versioning.Version{At: 7}, 7, 7, ""}},
		"unit zero": {provider.Observation{At: 7, HasAt: true, OwnVersion: true, State: state},
			want{versioning.Version{At: 7}, 7, 7, ""}},
		"the greatest number": {provider.Observation{At: math.MaxInt64, HasAt: true, Unit: second, AllowFuture: true,
			State: state},
			want{versioning.Version{At: math.MaxInt64}, math.MaxInt64, math.MaxInt64, ""}},
		"a final delete": {provider.Observation{At: 10 * second, HasAt: true, Unit: second, Deleted: true, Final: true},
			want{versioning.Version{Final: true, At: 10 * second}, 10 * second, 11*second - 1, ""}},
		"a final delete without a time": {provider.Observation{Deleted: true, Final: true, Rank: 1},
			want{versioning.Version{Final: true, Rank: 1}, 0, 30 * second, ""}},
		"final without a delete": {provider.Observation{At: 10 * second, HasAt: true, Unit: second,
			Final: true, State: state},
			want{versioning.Version{At: 10 * second}, 10 * second, 11*second - 1, ""}},
		"a test clock ahead": {provider.Observation{At: 9e15, HasAt: true, Unit: second, AllowFuture: true,
			State: state},
			want{versioning.Version{At: 9e15}, 9e15, 9e15 + second - 1, ""}},
		"an hour ahead": {provider.Observation{At: 3630 * second, HasAt: true, Unit: second, State: state},
			want{versioning.Version{At: 3630 * second}, 3630 * second, 3631*second - 1, ""}},
		"partial, with an event time": {provider.Observation{Partial: "ids only", At: 10 * second, HasAt: true,
			Unit: second},
			want{none, 10 * second, 11*second - 1, "ids only"}},
		"partial, without a time": {provider.Observation{Partial: "ids only"},
			want{none, 30 * second, 30 * second, "ids only"}},
		"partial, with an integer version": {provider.Observation{Partial: "ids only", At: 7, HasAt: true, Unit: 1,
			OwnVersion: true},
			want{none, 30 * second, 30 * second, "ids only"}},
		"no version": {provider.Observation{State: state},
			want{none, 30 * second, 30 * second, "the event carries no version"}},
		"no version in a delete that is not final": {provider.Observation{Deleted: true},
			want{none, 30 * second, 30 * second, "the event carries no version"}},
		"no state": {provider.Observation{At: 10 * second, HasAt: true, Unit: second},
			want{none, 10 * second, 11*second - 1, "the event carries no state"}},
	} {
		in, err := versioning.InputFromObservation(c.o, received)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		got := want{in.Version, in.TimeFrom, in.TimeTo, in.Partial}
		if diff := cmp.Diff(c.want, got, cmp.AllowUnexported(want{})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		if in.OwnVersion != c.o.OwnVersion || in.IsRefetch {
			t.Errorf("%s: own version %v, refetch %v", name, in.OwnVersion, in.IsRefetch)
		}
	}
}

func TestInputFromObservation_implausibleVersion_isDead(t *testing.T) {
	t.Parallel()
	received := time.UnixMicro(30 * second)
	for name, o := range map[string]provider.Observation{
		"more than an hour ahead": {At: 3630*second + 1, HasAt: true, Unit: 1, State: letterState("A")},
		"partial, far ahead":      {At: 9e15, HasAt: true, Unit: 1, Partial: "ids only"},
		"the reserved smallest number": {At: math.MinInt64, HasAt: true, Unit: 1, State: letterState("A"),
			AllowFuture: true},
		"a final delete far ahead": {At: 9e15, HasAt: true, Unit: 1, Final: true, Deleted: true},
	} {
		_, err := versioning.InputFromObservation(o, received)
		var dead *provider.Dead
		if !errors.As(err, &dead) || dead.Reason == "" {
			t.Errorf("%s: %v, want a dead outcome", name, err)
		}
	}
	_, err := versioning.InputFromObservation(provider.Observation{At: 2e15, HasAt: true, Unit: 1,
		State: letterState("A")}, time.UnixMicro(1.7e15))
	for _, word := range []string{"2033-05-18T03:33:20Z", "2023-11-14T22:13:20Z", "refetch", "clock"} {
		if err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("%v does not say %q", err, word)
		}
	}
	if _, err := versioning.InputFromObservation(provider.Observation{Ignored: "no object"}, received); err == nil ||
		errors.As(err, new(*provider.Dead)) {
		t.Errorf("an observation about no object: %v", err)
	}
}

func TestInputFromObservation_hashes_coverComparedState(t *testing.T) {
	t.Parallel()
	at := func(state, before string, deleted bool, ignoredPaths ...string) versioning.Input {
		o := provider.Observation{At: 1, HasAt: true, Unit: 1, State: parse(t, state), Deleted: deleted,
			IgnoredPaths: ignoredPaths}
		if before != "" {
			o.Before = parse(t, before)
		}
		return toInput(t, o)
	}
	base := at(`{"a":1,"b":{"c":2}}`, "", false)
	same := at(`{ "b":{"c":2.0,"d":null}, "a":1, "hits":9 }`, "", false, "hits")
	if base.State.Hash != same.State.Hash {
		t.Error("null and ignored members change the hash")
	}
	if base.State.ExactHash == same.State.ExactHash {
		t.Error("null and ignored members do not change the exact hash")
	}
	if other := at(`{"a":2,"b":{"c":2}}`, "", false); other.State.Hash == base.State.Hash {
		t.Error("another value has the same hash")
	}
	if dead := at(`{"a":1,"b":{"c":2}}`, "", true); dead.State.Hash == base.State.Hash ||
		dead.State.ExactHash == base.State.ExactHash || !dead.State.Deleted {
		t.Error("the hash ignores the deleted flag")
	}
	changed := at(`{"a":5,"b":{"c":2,"e":1},"hits":3}`, `{"a":1,"b":{"e":null},"hits":2}`, false, "hits")
	if changed.Before == nil || *changed.Before != base.State.Hash {
		t.Error("the change-set does not give the state before")
	}
	if none := at(`{"a":1}`, `{}`, false); none.Before == nil || *none.Before != none.State.Hash {
		t.Error("an empty change-set begins at another state")
	}
	if removed := at(`{"a":2,"b":{"c":2}}`, `{"a":1}`, true); removed.Before == nil ||
		*removed.Before != base.State.Hash {
		t.Error("a delete with a change-set does not give the object before it")
	}
	if base.Before != nil {
		t.Error("there is a state before without a change-set")
	}
}

func TestNewState_unstorableText_isSanitized(t *testing.T) {
	t.Parallel()
	if s := versioning.NewState(parse(t, `{"a":"\u0000"}`), false, nil); !s.Sanitized ||
		string(s.JSON) != "{\"a\":\"\uFFFD\"}" {
		t.Errorf("sanitized %v: %s", s.Sanitized, s.JSON)
	}
	if s := versioning.NewState(parse(t, ` {"a":1.0} `), false, nil); s.Sanitized || string(s.JSON) != `{"a":1.0}` {
		t.Errorf("sanitized %v: %s", s.Sanitized, s.JSON)
	}
	if diff := cmp.Diff(versioning.NullState(true), versioning.NewState(parse(t, "null"), true, nil)); diff != "" {
		t.Errorf("JSON null and no value differ:\n%s", diff)
	}
}
