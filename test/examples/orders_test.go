package examples_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/testkit"
)

// The script checks the requests. The ledger shows that the kill interrupted one step of each
// order, that this step was repeated or checked, and that no customer was created twice.
func TestOrders(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	run(t, db, "orders", advanceClockAtKills(t, db))
	got := db.QueryStrings(t, `SELECT concat_ws(' ', e.object_id, s.step, s.state, s.attempts) FROM effects e
		JOIN effect_steps s USING (effect) WHERE e.state = 'done' ORDER BY e.object_id, s.position`)
	// the step at which each order was killed; the check finds the mail of the last one
	repeated := []string{"find", "customer", "customer", "invoice", "invoice", "synced", "synced", "confirmation", ""}
	var want []string
	for n, step := range repeated {
		for _, name := range []string{"find", "customer", "invoice", "synced", "confirmation"} {
			end := "done 1"
			switch {
			case name == step:
				end = "done 2"
			case name == "customer" && slices.Index(repeated, "invoice") <= n: // accounting has the customer
				end = "skipped 0"
			}
			want = append(want, fmt.Sprint(1001+n, " ", name, " ", end))
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("steps and attempts (-want +got):\n%s", diff)
	}
}
