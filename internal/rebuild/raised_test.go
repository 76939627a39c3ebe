package rebuild_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/rebuild"
	"github.com/postern-gateway/postern/internal/testkit/sim"
)

// Objects that could not be found for a while, and that raised looks have found again, are made anew as they are: as they were told live in any order, from the log, from bases
// of it and what is left, and by a rebuild. The events alone say which looks were raised.
func TestRaisedLooksAreMadeAnew(t *testing.T) {
	t.Parallel()
	r := seeded(t, 32)
	b := setup(t)
	h := sim.Generate(r, sim.Options{Objects: 24, Changes: 6, Contents: 4, Unit: 1_000_000, Gap: 3_000_000, ChangeSets: 50, Deletes: 10, Hides: 60, Own: true, Still: true, Twins: 10, Late: 5_000_000})
	ids := b.append(t, r, b.source, h.Events)
	for _, id := range h.ObjectIDs() {
		for _, at := range h.Times(id) {
			ids = append(ids, b.looked(t, h, id, fmt.Sprint(id, at), sim.Look{Began: at + 1_500_000, Elapsed: 200_000, Raised: r.IntN(2) == 0}))
		}
		ids = append(ids, b.looked(t, h, id, id, sim.Look{Began: h.End(id) + 20_000_000, Elapsed: 200_000, Raised: true}))
	}
	b.live(t, r, ids)
	live := b.table(t, object, "objects")
	shown := b.rows(t, `SELECT object_id || ' ' || encode(state_hash, 'hex') FROM objects ORDER BY 1`)
	var truth []string
	for _, id := range h.ObjectIDs() {
		truth = append(truth, fmt.Sprintf("%s %x", id, h.Truth(id).Hash))
	}
	slices.Sort(truth)
	if diff := cmp.Diff(truth, shown); diff != "" {
		t.Errorf("the truth and live: %s", diff)
	}
	if n := b.number(t, `SELECT count(*) FROM objects WHERE NOT deleted AND version_at = version_seen - 1000000`); n == 0 {
		t.Fatal("no object is there as a raised look has found it")
	}
	if diff := cmp.Diff(live, b.fold(t, nil, 500)); diff != "" {
		t.Errorf("live, and in the order of the log: %s", diff)
	}
	b.foldedInParts(t, r, ids, live)
	b.exec(t, `TRUNCATE bases, staged`)
	b.start(t, "one", nil, quick())
	b.until(t, b.ask(t, rebuild.Order{Source: b.source, Swap: true, Seen: true}), done)
	if diff := cmp.Diff(live, b.table(t, object, "objects")); diff != "" {
		t.Errorf("swapped: %s", diff)
	}
}
