package examples_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/testkit"
)

// The script checks the requests. The ledger shows that the kill interrupted one step of each
// order, and that this step was repeated or checked.
func TestOrders(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	run(t, db, "orders", advanceClockAtKills(t, db))
	got := db.QueryStrings(t, `SELECT e.object_id || ' ' || s.step || ' ' || s.attempts FROM effects e
		JOIN effect_steps s USING (effect) WHERE e.state = 'done' AND s.state = 'done' ORDER BY e.object_id,
			s.position`)
	var want []string
	for n, order := range []string{"1001", "1002", "1003", "1004", "1005", "1006", "1007", "1008"} {
		for i, step := range []string{"customer", "invoice", "synced", "confirmation"} {
			attempts := "1"
			// The check finds the mail of 1008, which was sent before the kill.
			if n/2 == i && order != "1008" {
				attempts = "2"
			}
			want = append(want, order+" "+step+" "+attempts)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("steps and attempts (-want +got):\n%s", diff)
	}
}
