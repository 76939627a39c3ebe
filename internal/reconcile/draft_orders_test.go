package reconcile_test

import (
	"testing"

	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit/shopifyfake"
)

// A draft order that is gone is believed to be with a key that may read no old orders.
func TestDraftOrdersNeedNoOldOrders(t *testing.T) {
	t.Parallel()
	b := newBulkShop(t, shopifyfake.Options{Seed: 3, Scopes: []string{"read_draft_orders"}}, made{name: "draft_order", n: 20})
	b.api.Bulk = nil
	b.Carry(t, "one", 1, map[string]runs.Carry{reconcile.Job: b.runner(t).Carry})
	r := b.Until(t, b.ask(t, "draft_order"), func(r *runs.Run) bool { return r.Status.Final() })
	if r.Status != runs.Done || r.Counts[reconcile.Ghosts] != 2 || r.Counts[reconcile.Left] != 0 {
		t.Errorf("%s %v: %s", r.Status, r.Counts, r.Detail)
	}
}
