package examples_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/testkit"
)

// The script compares the application's actions with the events. The ledger must have each update
// once, and one of them with two calls.
func TestStripeReaction(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	run(t, db, "stripe-reaction", nil)
	got := db.QueryStrings(t, `SELECT e.state || ' ' || s.attempts FROM effects e JOIN effect_steps s USING (effect)
		ORDER BY s.attempts`)
	if diff := cmp.Diff([]string{"done 1", "done 1", "done 2"}, got); diff != "" {
		t.Errorf("effects and attempts (-want +got):\n%s", diff)
	}
	if got := db.QueryStrings(t, `SELECT count(*)::text FROM events`); got[0] != "3" {
		t.Errorf("%s events, want 3", got[0])
	}
}
