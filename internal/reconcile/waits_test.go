package reconcile_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit/shopifyfake"
)

func waits(r *runs.Run) bool { return strings.Contains(r.Detail, "one of the app's bulk operations") }

// However many runs wait for files, others are carried out.
func TestRunsThatWaitKeepNoPlace(t *testing.T) {
	t.Parallel()
	b := newBulkShop(t, shopifyfake.Options{Seed: 5, Bulk: shopifyfake.Bulk{Others: 1 << 20}}, made{name: "product", n: 25}, made{name: "order", n: 5}, made{name: "location", n: 3})
	b.api.Bulk = []string{"product", "order"}
	b.Carry(t, "one", 1, map[string]runs.Carry{reconcile.Job: b.runner(t).Carry})
	for _, objectType := range []string{"product", "order", "product"} {
		b.Until(t, b.ask(t, objectType), waits)
	}
	if r := b.Until(t, b.ask(t, "location"), func(r *runs.Run) bool { return r.Status.Final() }); r.Status != runs.Done {
		t.Errorf("%s: %s", r.Status, r.Detail)
	}
}

// While one list waits for its file, the other types are swept, and the run is in no trouble.
func TestTypesThatWaitKeepNoOther(t *testing.T) {
	t.Parallel()
	b := newBulkShop(t, shopifyfake.Options{Seed: 5, Bulk: shopifyfake.Bulk{Others: 1 << 20}}, made{name: "inventory_item", n: 25}, made{name: "product", n: 15})
	b.api.Bulk = []string{"inventory_item"}
	b.Carry(t, "one", 1, map[string]runs.Carry{reconcile.Job: b.runner(t).Carry})
	run := b.ask(t, "")
	r := b.Until(t, run, func(r *runs.Run) bool {
		return waits(r) && slices.Contains(b.DB.Rows(t, `SELECT object_type FROM sweeps WHERE phase = 'done'`), "product")
	})
	if r.Troubles != 0 || r.Status != runs.Running {
		t.Errorf("%s, put off %d times: %s", r.Status, r.Troubles, r.Detail)
	}
	if got := b.DB.Rows(t, `SELECT object_type FROM sweeps WHERE phase <> 'done'`); len(got) != 1 || got[0] != "inventory_item" {
		t.Errorf("not done are %v", got)
	}
}
