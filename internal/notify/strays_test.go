package notify_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Effects that wait for a rule or a destination that is not configured need a person, who is told with those in review; those that are due, tried again or wait for less than that long do not.
func TestEffectsThatNobodyCarriesOutAreTold(t *testing.T) {
	t.Parallel()
	b := setup(t, `{oncall: {to: app, path: /alerts, about: [review_effects]}}`)
	for id, state := range map[int]string{1: "planned", 2: "planned", 3: "planned", 4: "running", 5: "failed", 6: "planned", 7: "rejected", 8: "review"} {
		b.effect(t, id, "review")
		b.db.Exec(t, `UPDATE effects SET state = $2, due = CASE WHEN $2 IN ('planned', 'failed') THEN clock_now() + interval '30 seconds' END, taken_until = CASE WHEN $2 = 'running' THEN clock_now() + interval '1 day' END,
			reason = CASE WHEN effect <> 3 THEN 'its rule is not configured; it waits for it' ELSE '' END WHERE effect = $1`, id, state)
	}
	b.db.Exec(t, `UPDATE effects SET destination = 'gone', due = clock_now() - interval '1 second' WHERE effect = 2`)
	b.db.Exec(t, `UPDATE effects SET planned_at = clock_now() WHERE effect = 6`)
	b.watch(t)
	b.wants(t, 0, "review_effects began 4")
	told := b.all(0)[0].Data
	if diff := cmp.Diff([]int64{1, 2, 4, 8}, told.IDs); diff != "" {
		t.Error(diff)
	}
	if want := "postern effects list --state review, or --state planned where a rule or destination is not configured, and postern effects show 1"; told.Command != want {
		t.Error(told.Command)
	}
	b.db.Exec(t, `UPDATE effects SET state = 'planned', reason = '', due = clock_now(), taken_until = NULL WHERE state <> 'rejected'`)
	b.wants(t, 1, "review_effects over 0")
}
