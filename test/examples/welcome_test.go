package examples_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/testkit"
)

// The script checks the mails. The ledger shows which mails Postern found at the mail service and
// which it sent. The one whose response was lost was found and not sent again.
func TestWelcome(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	run(t, db, "welcome", advanceClockAtKills(t, db))
	got := db.QueryStrings(t, `SELECT trim(concat_ws(' ', e.object_id, 'v' || e.rule_version, s.attempts, s.reason))
		FROM effects e JOIN effect_steps s USING (effect) WHERE e.state = 'done' AND s.captured ? 'message'
		ORDER BY e.rule_version, e.object_id`)
	const found = " 0 found at the destination before the first attempt"
	want := []string{"ada v1" + found, "barbara v1 2", "edsger v1 1", "grace v1 1", "tony v1 1", "ada v2" + found,
		"barbara v2" + found, "edsger v2" + found, "grace v2" + found, "tony v2" + found}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("effects (-want +got):\n%s", diff)
	}
}
