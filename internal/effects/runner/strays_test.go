package runner_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/testkit"
)

// Effects of a destination that was renamed go where their rule says; those whose rule is not there either say what they wait for, and go on when it is.
func TestEffectsOfARenamedDestinationAreHandedOver(t *testing.T) {
	t.Parallel()
	b := setup(t, twoSteps)
	b.plan(t, 1, 3)
	b.db.Exec(t, `UPDATE effects SET destination = 'before'`)
	b.db.Exec(t, `UPDATE effects SET rule = 'gone' WHERE effect = 3`)
	b.db.Exec(t, `UPDATE effects SET destination = 'other', state = 'failed' WHERE effect = 2`)
	b.run(t, "a", b.pool)
	testkit.Eventually(t, patience, func() error {
		want := []string{"1 done sink", "2 done sink", "3 planned before destination before is not configured, nor a rule that has another for it; it waits for either"}
		if diff := cmp.Diff(want, b.db.Rows(t, `SELECT concat_ws(' ', effect, state, destination, nullif(reason, '')) FROM effects ORDER BY effect`)); diff != "" {
			return fmt.Errorf("%s", diff)
		}
		return nil
	})
	if attempts := b.db.Rows(t, `SELECT attempts::text FROM effects WHERE effect = 3 AND due > clock_now()`); len(attempts) != 1 || attempts[0] != "0" {
		t.Errorf("attempts %q of what waits", attempts)
	}
	b.db.Exec(t, `UPDATE effects SET rule = 'follow', due = clock_now() WHERE effect = 3`)
	if got := b.settled(t); got["done"] != 3 {
		t.Error(got)
	}
}
