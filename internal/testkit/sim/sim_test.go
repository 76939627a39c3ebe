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
	Objects: 3, Changes: 6, Contents: 3, Unit: 1_000_000, Gap: 400_000, ChangeSets: 60, Partial: 20, Deletes: 20, Twins: 20, Late: 5_000_000, Noise: true,
}

func TestOneSeedOneHistory(t *testing.T) {
	t.Parallel()
	a, b := sim.Generate(rand.New(rand.NewPCG(1, 1)), options), sim.Generate(rand.New(rand.NewPCG(1, 1)), options)
	if diff := cmp.Diff(a.Events, b.Events); diff != "" {
		t.Errorf("one seed made two histories:\n%s", diff)
	}
	if c := sim.Generate(rand.New(rand.NewPCG(2, 1)), options); cmp.Equal(a.Events, c.Events) {
		t.Error("two seeds made one history")
	}
}

// What an event says is what the object became, and what it says was before is what the object was.
func TestEventsTellTheTruth(t *testing.T) {
	t.Parallel()
	for seed := range uint64(200) {
		h := sim.Generate(rand.New(rand.NewPCG(seed, 1)), options)
		for _, id := range h.ObjectIDs() {
			events := h.Of(id)
			var was versioning.State
			for i, e := range events {
				if i > 0 && e.Happened != events[i-1].Happened {
					was = events[i-1].State
				}
				checkEvent(t, e, was)
			}
			if last := events[len(events)-1]; last.State.Exact != h.Truth(id).Exact || last.Happened != h.End(id) {
				t.Fatalf("seed %d: %s ends as %s, in truth as %s", seed, id, last.State.JSON, h.Truth(id).JSON)
			}
		}
	}
}

func checkEvent(t *testing.T, e sim.Event, was versioning.State) {
	t.Helper()
	o, err := sim.Provider{}.Observe(nil, &provider.Stored{Body: e.Body})
	if err != nil {
		t.Fatal(err)
	}
	in, err := versioning.FromObservation(o, e.ReceivedAt)
	if err != nil {
		t.Fatal(err)
	}
	switch {
	case o.ObjectID != e.Object || (in.Partial != "") != e.Partial:
		t.Fatalf("%s is about %s and partial for %q", e.Body, o.ObjectID, in.Partial)
	case !e.Partial && in.State.Exact != e.State.Exact:
		t.Fatalf("%s says %s, the object is %s", e.Body, in.State.JSON, e.State.JSON)
	case in.Before != nil && *in.Before != was.Hash:
		t.Fatalf("%s does not lead back to %s", e.Body, was.JSON)
	}
}

func TestLookAnswersTheMoment(t *testing.T) {
	t.Parallel()
	h := sim.Generate(rand.New(rand.NewPCG(3, 1)), sim.Options{Objects: 1, Changes: 5, Contents: 5, Unit: 1000, Gap: 2_000_000})
	if in := h.Look("obj_1", sim.Look{Began: sim.Start - 1}); !in.State.Deleted || in.Version.Final {
		t.Errorf("before its creation the object is %+v", in)
	}
	for _, e := range h.Events {
		in := h.Look("obj_1", sim.Look{Began: e.Happened, Elapsed: 10, Lag: 20, Answered: 20})
		if in.State.Exact != e.State.Exact || in.Lo > e.Happened-20 || in.Hi < e.Happened+10 {
			t.Errorf("at %d the answer is %s in [%d, %d]", e.Happened, in.State.JSON, in.Lo, in.Hi)
		}
	}
}

func TestProvider(t *testing.T) {
	t.Parallel()
	p, at := sim.Provider{}, time.UnixMicro(sim.Start).UTC()
	if p.Name() != "sim" || p.Check(nil) != nil || p.Headers() != nil {
		t.Error("the simulated provider asks for something")
	}
	s, err := p.Vary(p.Samples()[0], 7, at, true)
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
	if err != nil || len(events) != 1 || events[0].ObjectID != "obj_7" || events[0].Key == "" || events[0].ContentKey || !events[0].OccurredAt.Equal(at) {
		t.Errorf("identified %+v (%v)", events, err)
	}
	d.Header.Set("Sim-Signature", "forged")
	var refused *provider.Rejection
	if _, err := p.Verify(nil, d); !errors.As(err, &refused) || refused.Reason != provider.WrongSignature {
		t.Errorf("a forged signature: %v", err)
	}
	d.Body = bytes.TrimSuffix(d.Body, []byte("}"))
	if events, err := p.Identify(nil, d); err != nil || !events[0].ContentKey || events[0].Type != "unknown" {
		t.Errorf("a broken body is %+v (%v)", events, err)
	}
	if _, err := p.Observe(nil, &provider.Stored{Body: d.Body}); !errors.As(err, new(*provider.Dead)) {
		t.Errorf("observed from a broken body: %v", err)
	}
}
