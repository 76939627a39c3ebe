package sim_test

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/testkit/sim"
	"github.com/postern-gateway/postern/internal/versioning"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var options = sim.Options{
	Objects: 3, Changes: 6, Contents: 3, Unit: 1_000_000, Gap: 400_000, ChangeSets: 60, Partial: 20, Deletes: 20,
	DuplicateEvents: 20, MaxDelay: 5_000_000, Noise: true,
}

func TestGenerate_sameSeed_makesSameHistory(t *testing.T) {
	t.Parallel()
	a, b := sim.Generate(rand.New(rand.NewPCG(1, 1)), options), sim.Generate(rand.New(rand.NewPCG(1, 1)), options)
	if diff := cmp.Diff(a.Events, b.Events); diff != "" {
		t.Errorf("one seed made two histories:\n%s", diff)
	}
	if c := sim.Generate(rand.New(rand.NewPCG(2, 1)), options); cmp.Equal(a.Events, c.Events) {
		t.Error("two seeds made one history")
	}
}

// The state in an event is the state of the object after the change. Its previous values lead to
// the state before the change.
func TestGenerate_events_matchTheObjects(t *testing.T) {
	t.Parallel()
	for seed := range uint64(200) {
		h := sim.Generate(rand.New(rand.NewPCG(seed, 1)), options)
		for _, id := range h.ObjectIDs() {
			events := h.EventsOf(id)
			var was versioning.State
			for i, e := range events {
				if i > 0 && e.OccurredAt != events[i-1].OccurredAt {
					was = events[i-1].State
				}
				checkEvent(t, e, was)
			}
			if last := events[len(events)-1]; last.State.ExactHash != h.FinalState(id).ExactHash ||
				last.OccurredAt != h.LastChangeAt(id) {
				t.Fatalf("seed %d: %s ends as %s, want %s", seed, id, last.State.JSON, h.FinalState(id).JSON)
			}
		}
	}
}

func checkEvent(t *testing.T, e sim.Event, was versioning.State) {
	t.Helper()
	o, err := sim.Provider{}.Observe(nil, &provider.StoredEvent{Body: e.Body})
	if err != nil {
		t.Fatal(err)
	}
	in, err := versioning.InputFromObservation(o, e.ReceivedAt)
	if err != nil {
		t.Fatal(err)
	}
	switch {
	case o.ObjectID != e.Object || (in.Partial != "") != e.Partial:
		t.Fatalf("%s is about %s and partial with the reason %q", e.Body, o.ObjectID, in.Partial)
	case !e.Partial && in.State.ExactHash != e.State.ExactHash:
		t.Fatalf("%s has the state %s, want %s", e.Body, in.State.JSON, e.State.JSON)
	case in.Before != nil && *in.Before != was.Hash:
		t.Fatalf("the previous values of %s do not lead to %s", e.Body, was.JSON)
	}
}

func TestRefetch_returnsTheStateAtItsTime(t *testing.T) {
	t.Parallel()
	h := sim.Generate(rand.New(rand.NewPCG(3, 1)), sim.Options{Objects: 1, Changes: 5, Contents: 5, Unit: 1000,
		Gap: 2_000_000})
	if in := h.Refetch("obj_1", sim.Refetch{Began: sim.Start - 1}); !in.State.Deleted || in.Version.Final {
		t.Errorf("before its creation the object is %+v", in)
	}
	for _, e := range h.Events {
		in := h.Refetch("obj_1", sim.Refetch{Began: e.OccurredAt, Elapsed: 10, Lag: 20, ReadOffset: 20})
		if in.State.ExactHash != e.State.ExactHash || in.TimeFrom > e.OccurredAt-20 || in.TimeTo < e.OccurredAt+10 {
			t.Errorf("at %d the response is %s in [%d, %d]", e.OccurredAt, in.State.JSON, in.TimeFrom, in.TimeTo)
		}
	}
}

func TestProvider_signedSample_isVerifiedAndIdentified(t *testing.T) {
	t.Parallel()
	p, at := sim.Provider{}, time.UnixMicro(sim.Start).UTC()
	if p.Name() != "sim" || p.Check(nil) != nil || p.Headers() != nil {
		t.Error("the simulated provider requires a setting or a header")
	}
	s, err := p.MakeVariant(p.Samples()[0], 7, at, true)
	if err != nil {
		t.Fatal(err)
	}
	d, err := p.Sign(nil, s, at)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Verify(nil, d); err != nil {
		t.Error(err)
	}
	events, err := p.Identify(nil, d)
	if err != nil || len(events) != 1 || events[0].ObjectID != "obj_7" || events[0].Key == "" || events[0].ContentKey ||
		!events[0].OccurredAt.Equal(at) {
		t.Errorf("identified %+v (%v)", events, err)
	}
	d.Header.Set("Sim-Signature", "forged")
	var rejection *provider.Rejection
	if _, err := p.Verify(nil, d); !errors.As(err, &rejection) || rejection.Reason != provider.WrongSignature {
		t.Errorf("another signature: %v", err)
	}
	d.Body = bytes.TrimSuffix(d.Body, []byte("}"))
	if events, err := p.Identify(nil, d); err != nil || !events[0].ContentKey || events[0].Type != "unknown" {
		t.Errorf("a truncated body is %+v (%v)", events, err)
	}
	if _, err := p.Observe(nil, &provider.StoredEvent{Body: d.Body}); !errors.As(err, new(*provider.Dead)) {
		t.Errorf("observation of a truncated body: %v", err)
	}
}
