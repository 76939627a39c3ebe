package notify_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// doubtful enters an effect in any state, with a step.
func (b *bundle) doubtful(t *testing.T, id int, state, step string) {
	t.Helper()
	b.effect(t, id, "review", step)
	b.db.Exec(t, `UPDATE effects SET state = $2, due = CASE WHEN $2 IN ('planned', 'failed') THEN clock_now() END, taken_until = CASE WHEN $2 = 'running' THEN clock_now() + interval '1 day' END WHERE effect = $1`, id, state)
}

// A doubt is told, whatever state its effect is in, while it is cleared up, however often it was tried again, and however many others need a person; and it is over when somebody knows, or nobody needs to.
func TestDoubtsAreToldWhereverTheyAre(t *testing.T) {
	t.Parallel()
	b := setup(t, `{oncall: {to: app, path: /alerts, about: [unknown_effects]}}`)
	b.db.Exec(t, `INSERT INTO effects (effect, key, rule_version, rule, source, account, object_type, object_id, event_id, run, state, destination, planned_at, updated_at)
OVERRIDING SYSTEM VALUE SELECT n, n::text, 1, 'r', 1, '', 't', n::text, n, 0, 'review', 'd', clock_now() - interval '1 day', clock_now() - interval '1 day' FROM generate_series(1, 10001) n`)
	for id, state := range map[int]string{20001: "planned", 20002: "running", 20003: "failed", 20004: "review", 20005: "done", 20006: "rejected"} {
		b.doubtful(t, id, state, "unknown")
	}
	// That of a step that is tried each some minutes; that of one that is tried right now, for the second time and the first; and one that nobody has known of for a minute.
	b.db.Exec(t, `UPDATE effect_steps SET known_since = reserved_at, reserved_at = clock_now() - interval '2 minutes', ended_at = clock_now() - interval '1 minute' WHERE effect = 20003`)
	b.doubtful(t, 20007, "running", "reserved")
	b.doubtful(t, 20008, "running", "reserved")
	b.doubtful(t, 20009, "failed", "unknown")
	b.db.Exec(t, `UPDATE effect_steps SET known_since = reserved_at, reserved_at = clock_now() WHERE effect = 20007`)
	b.db.Exec(t, `UPDATE effect_steps SET known_since = reserved_at WHERE effect = 20008`)
	b.db.Exec(t, `UPDATE effect_steps SET known_since = clock_now() - interval '1 minute', reserved_at = clock_now() WHERE effect = 20009`)
	b.watch(t)
	b.wants(t, 0, "unknown_effects began 5")
	if diff := cmp.Diff([]int64{20001, 20002, 20003, 20004, 20007}, b.all(0)[0].Data.IDs); diff != "" {
		t.Error(diff)
	}
	b.db.Exec(t, `UPDATE effect_steps SET state = 'done' WHERE effect <> 20002`)
	b.later(t, 1)
	b.wants(t, 1, "unknown_effects lasts 1")
	b.db.Exec(t, `UPDATE effects SET state = 'rejected', taken_until = NULL WHERE effect = 20002`)
	b.wants(t, 2, "unknown_effects over 0")
}

// Whoever is told by two installations does not take what one says for what the other has said.
func TestInstallationsTellUnderOtherIDs(t *testing.T) {
	t.Parallel()
	ids := map[string]bool{}
	for range 2 {
		b := setup(t, `{oncall: {to: app, path: /alerts, about: [review_effects]}}`)
		b.effect(t, 1, "review")
		b.watch(t)
		b.wants(t, 0, "review_effects began 1")
		ids[b.all(0)[0].id] = true
	}
	if len(ids) != 2 {
		t.Error("both tell it under one id")
	}
}

// An event that is dead is told until a run has put it into the mirror, though the ledger keeps that it was dead.
func TestDeadUntilARunHasAppliedIt(t *testing.T) {
	t.Parallel()
	b := setup(t, `{oncall: {to: app, path: /alerts, about: [dead_outcomes]}}`)
	outcome := func(run int, status string) {
		b.db.Exec(t, `INSERT INTO outcomes (event_id, run, source, object, account, object_type, object_id, status, reason, attempts, at, rule_version) VALUES (7, $1, 1, 0, '', '', '', $2, '', 1, clock_now(), 1)`, run, status)
	}
	b.db.Exec(t, `INSERT INTO runs (run, job, asked, who, reason, status, detail, counts, made_at, ended_at, updated_at) OVERRIDING SYSTEM VALUE VALUES (1, 'rebuild', '{}', '', '', 'cancelled', '', '{}', clock_now(), clock_now(), clock_now())`)
	outcome(0, "dead")
	outcome(1, "applied") // beside the mirror
	outcome(2, "dead")
	b.watch(t)
	b.wants(t, 0, "dead_outcomes began 1")
	b.later(t, 1)
	b.wants(t, 1, "dead_outcomes lasts 1")
	outcome(3, "applied")
	b.wants(t, 2, "dead_outcomes over 0")
}
