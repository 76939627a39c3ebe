package main

import (
	"testing"
	"time"
)

// Under load the primary is lost and its standby promoted, then refuses every write, then hangs; meanwhile one NATS server of three is killed, one hangs, one is cut off from the two
// others, and all are restarted in turn. Gateways and processors follow by themselves, and nothing that was acknowledged is missing.
func TestFailover(t *testing.T) {
	t.Parallel()
	r := setup(t, sources)
	r.whole = true
	faults := [][]fault{
		{},
		{named("primary lost, standby promoted", 2*sec, sec), named("PostgreSQL read-only", 7*sec, 2*sec), named("primary paused", 10*sec, 2*sec)},
		{named("NATS server killed", sec, 2*sec), named("NATS server paused", 4*sec, 2*sec), named("NATS partitioned", 7*sec, 5*sec),
			named("NATS servers restarted in turn", 12*sec, 0)},
	}
	if err := r.carry(t.Context(), 15*time.Second, 8, faults); err != nil {
		t.Fatal(err)
	}
	if len(r.happened) != 7 {
		t.Errorf("%d faults, want 7", len(r.happened))
	}
	if ended := r.ended(); len(ended) > 0 {
		t.Errorf("daemons ended by themselves: %v", ended)
	}
	if r.senders.spooled.Load() == 0 {
		t.Error("nothing went to a spool while PostgreSQL took no writes")
	}
	r.holds(t)
}
