package rebuild_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/rebuild"
	"github.com/postern-gateway/postern/internal/testkit/sim"
)

// Where a new release has only another rule's number, the rows get it before live events are held up, and the swap writes what really differs.
func TestSwapWritesWhatReallyDiffers(t *testing.T) {
	t.Parallel()
	for _, keys := range []int{0, 1000} {
		r := seeded(t, 61)
		b := setup(t)
		b.live(t, r, b.append(t, r, b.source, sim.Generate(r, kinds["own version"]).Events))
		want := b.table(t, object, "objects")
		revisions := b.rows(t, `SELECT object_id || ' ' || revision FROM objects WHERE object_id <> 'obj_1' ORDER BY 1`)
		b.exec(t, `UPDATE objects SET rule_version = 0`)
		b.exec(t, `UPDATE objects SET state = '{"was": "damaged"}' WHERE object_id = 'obj_1'`)
		settings := quick()
		settings.Keys = keys
		rebuilds := &rebuild.Runner{Pool: b.pool, Processor: b.processor(t, nil), Settings: settings}
		var outdated []string
		rebuild.BeforeLock(rebuilds, func() { outdated = b.rows(t, `SELECT object_id FROM objects WHERE rule_version = 0`) })
		b.carry(t, "one", rebuilds)
		ended := b.rebuilt(t, b.source)
		if diff := cmp.Diff([]string{"obj_1"}, outdated); diff != "" || ended.Counts[rebuild.Swapped] != 1 || ended.Counts[rebuild.Grown] != 1 {
			t.Errorf("%v, before the lock: %s", ended.Counts, diff)
		}
		if diff := cmp.Diff(want, b.table(t, object, "objects")); diff != "" {
			t.Error(diff)
		}
		if diff := cmp.Diff(revisions, b.rows(t, `SELECT object_id || ' ' || revision FROM objects WHERE object_id <> 'obj_1' ORDER BY 1`)); diff != "" {
			t.Errorf("revisions: %s", diff)
		}
	}
}
