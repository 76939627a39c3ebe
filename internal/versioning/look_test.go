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
