package runner_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/effects/rules"
)

// What nobody approves in time expires, and nothing of it is done; what waits for less, or is approved, does not.
func TestNobodyApprovedInTime(t *testing.T) {
	t.Parallel()
	b := attended(t, twoSteps)
	b.rules.Named("follow").ApprovalExpires = 72 * time.Hour
	b.plan(t, 1, 4)
	b.db.Exec(t, `UPDATE effects SET planned_at = planned_at - CASE effect WHEN 1 THEN interval '73 h' WHEN 2 THEN interval '71 h' ELSE interval '80 h' END`)
	b.db.Exec(t, `UPDATE effects SET rule = 'another' WHERE effect = 4`)
	b.db.Exec(t, `UPDATE effects SET state = 'waiting', due = NULL WHERE effect <> 3`)
	b.run(t, "a", b.pool)
	b.becomes(t, `SELECT string_agg(concat_ws(' ', effect, state), ', ' ORDER BY effect) FROM effects WHERE state <> 'running'`, "1 expired, 2 waiting, 3 done, 4 waiting")
	if v := b.show(t); !strings.HasPrefix(v.Reason, "nobody approved it until 2") || !strings.Contains(v.Next, "nothing of it was begun") {
		t.Errorf("%s; %s", v.Reason, v.Next)
	}
	refused(t, b.approve(t, 1), "effect 1: it is expired")
	if err := b.approve(t, 2); err != nil {
		t.Fatal(err)
	}
	b.settled(t)
	if n := len(b.sink.Calls()); n != 4 {
		t.Errorf("%d calls", n)
	}
}

// What could be approved until a time is begun by nobody after it, also while no processor is there to end it, and whatever its rule says by then.
func TestNobodyApprovesTooLate(t *testing.T) {
	t.Parallel()
	b := attended(t, twoSteps)
	r := b.rules.Named("follow")
	r.Approval, r.ApprovalExpires = rules.ApproveRequired, time.Hour
	b.plan(t, 1, 2)
	if diff := cmp.Diff([]string{"waiting 01:00:00", "waiting 01:00:00"}, b.db.Rows(t, `SELECT state || ' ' || (expires_at - planned_at) FROM effects`)); diff != "" {
		t.Fatal(diff)
	}
	b.db.Exec(t, `UPDATE effects SET expires_at = clock_now() - interval '1 s' WHERE effect = 1`)
	refused(t, b.approve(t, 1), "effect 1: it could be approved until 2")
	if v := b.show(t); v.State != "waiting" || !strings.Contains(v.Next, "nothing of it was begun, and nothing will be") {
		t.Errorf("%s; %s", v.State, v.Next)
	}
	if err := b.approve(t, 2); err != nil {
		t.Fatal(err)
	}
	r.ApprovalExpires = 0
	b.run(t, "a", b.pool)
	b.becomes(t, `SELECT string_agg(concat_ws(' ', effect, state), ', ' ORDER BY effect) FROM effects WHERE state <> 'running'`, "1 expired, 2 done")
	if n := len(b.sink.Calls()); n != 2 {
		t.Errorf("%d calls", n)
	}
}
