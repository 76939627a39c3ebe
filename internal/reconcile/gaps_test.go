package reconcile_test

import (
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/testkit/applied"
	"github.com/postern-gateway/postern/internal/testkit/sim"
)

// An event that does not come makes a look, after a wait; one that is late makes none.
func TestLostEventsAreLookedFor(t *testing.T) {
	t.Parallel()
	b := newWorld(t, 110, sim.Options{Objects: 2, Changes: 40, Contents: 1000, Unit: 1000, Gap: 700_000, ChangeSets: 100})
	patient := func(wait time.Duration) {
		b.proc.Replace(map[string]processor.Source{applied.Name: {Number: b.Source, Config: &provider.Source{Name: applied.Name}, Provider: sim.Provider{}, Stragglers: wait,
			Reads: func(_, objectType, _ string) bool { return objectType == "thing" }}})
	}
	of := b.api.h.Of("obj_1")
	if len(of) < 5 {
		t.Fatalf("%d events", len(of))
	}
	hints := func() string { return b.DB.Rows(t, `SELECT count(*)::text FROM hints`)[0] }
	patient(time.Hour)
	b.deliver(t, of[:1])
	b.deliver(t, of[2:3])
	if n := hints(); n != "1" {
		t.Fatalf("%s hints for what has not come", n)
	}
	b.looking(t, 2)
	b.deliver(t, of[3:4])
	b.deliver(t, of[1:2])
	if n := hints(); n != "0" {
		t.Errorf("%s hints for what was late", n)
	}
	b.deliver(t, b.api.h.Of("obj_2"))
	if n := b.api.made("/things/"); n != 0 {
		t.Fatalf("%d looks while nothing was lost", n)
	}
	patient(time.Millisecond)
	b.deliver(t, of[5:])
	b.settled(t)
	if n := b.api.made("/things/obj_1"); n != 1 || b.api.made("/things/") != 1 {
		t.Errorf("%d looks for an event that was lost", n)
	}
	for _, w := range b.wrong(t) {
		t.Error(w)
	}
}
