package reconcile_test

import (
	"cmp"
	"slices"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/testkit/sim"
)

// An object that was deleted after the time that a late list is of, and that a webhook told of, is asked for where the list tells names or versions alone, and not left, which would prove nothing: it is gone there too.
func TestDeletedSinceALateList(t *testing.T) {
	t.Parallel()
	for version, o := range map[string]sim.Options{sim.Named: unowned, sim.Numbered: owned} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			b := newWorld(t, 260, o)
			b.deliver(t, b.api.h.Events)
			gone := slices.DeleteFunc(b.api.h.ObjectIDs(), func(id string) bool { return b.api.h.There(id, 1<<62) })
			if len(gone) == 0 {
				t.Fatal("nothing is deleted")
			}
			last := slices.MaxFunc(gone, func(a, c string) int { return cmp.Compare(b.api.h.End(a), b.api.h.End(c)) })
			b.api.version, b.api.late = sim.Late+","+version, sim.ListLag
			b.api.set(time.UnixMicro(b.api.h.End(last)).Add(2 * time.Second))
			b.Carry(t, "one", 1, b.jobs())
			r := b.sweep(t, reconcile.Order{})
			const leftSQL = `SELECT o.object_id || ': ' || d.reason FROM drifts d JOIN objects o USING (object_type, object_id) WHERE d.result = 'left' AND o.deleted AND NOT o.ambiguous`
			if left := b.DB.Rows(t, leftSQL); len(left) > 0 || !one[bool](t, b, `SELECT deleted FROM objects WHERE object_id = $1`, last) {
				t.Errorf("%v, left are %q", r.Counts, left)
			}
			if version == sim.Numbered && b.proven(t).IsZero() {
				t.Errorf("the type is not proven: %v", r.Counts)
			}
		})
	}
}
