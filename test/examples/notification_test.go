package examples_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/testkit"
)

// The script checks the notifications. The ledger has each invoice once, except one that two
// versions of the rule have seen.
func TestNotification(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	run(t, db, "notification", nil)
	got := db.QueryStrings(t, `SELECT key || ' v' || rule_version || ' ' || state FROM effects
		ORDER BY key, rule_version`)
	want := []string{"new-invoice:1 v1 done", "new-invoice:2 v1 done", "new-invoice:3 v1 done", "new-invoice:4 v1 done",
		"new-invoice:5 v1 done", "new-invoice:6 v1 done", "new-invoice:7 v1 done", "new-invoice:7 v2 done",
		"new-invoice:8 v2 done"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("effects (-want +got):\n%s", diff)
	}
}
