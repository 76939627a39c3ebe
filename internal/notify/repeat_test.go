package notify_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/testkit"
)

// waitRows waits until a number of rows exists in the table notifications.
func (b *fixture) waitRows(t *testing.T, want int) {
	t.Helper()
	testkit.Eventually(t, patience, func() error {
		if n := len(b.db.QueryStrings(t, `SELECT name FROM notifications`)); n != want {
			return fmt.Errorf("%d rows", n)
		}
		return nil
	})
}

// insertEndedRun inserts a run that ends now.
func (b *fixture) insertEndedRun(t *testing.T, run int, status string) {
	t.Helper()
	b.db.Exec(t, fmt.Sprintf(`INSERT INTO runs (run, job, params, actor, reason, status, detail, counts, created_at,
		ended_at,
		updated_at) OVERRIDING SYSTEM VALUE VALUES (%d, 'replay', '{}', '', '', '%s', '', '{}', clock_now(),
			clock_now(), clock_now())`, run, status))
}

// An error paused a swap that has replaced objects. A rebuild that awaits a decision is paused too,
// and needs no alert.
func TestNotice_pausedSwap_isSent(t *testing.T) {
	t.Parallel()
	b := setup(t, `{oncall: {to: app, path: /alerts, conditions: [failed_runs]}}`)
	b.watch(t)
	b.waitRows(t, 1)
	b.db.Exec(t, `INSERT INTO runs (job, params, actor, reason, status, detail, counts, created_at, updated_at)
		SELECT 'rebuild', '{}', '', '', 'paused', detail, counts, clock_now(), clock_now()
		FROM (VALUES ('all events are staged', '{"applied": 1}'::jsonb), ('an error', '{"swapped": 1}'))
			AS d(detail, counts)`)
	b.wantReceived(t, 0, "failed_runs happened 1")
}

// The receiver got a notice, but its response was lost, and another run failed meanwhile. The next
// notice has another id, so that the receiver does not take it for a repetition.
func TestNoticeID_responseLostAndAnotherRunFails_differs(t *testing.T) {
	t.Parallel()
	b := setup(t, `{oncall: {to: app, path: /alerts, conditions: [failed_runs]}}`)
	held, hang := make(chan struct{}), make(chan struct{})
	n := 0
	b.status = func() int {
		if n++; n == 1 {
			b.mu.Unlock()
			close(held)
			<-hang
			b.mu.Lock()
		}
		if n < 3 {
			return http.StatusBadGateway
		}
		return http.StatusOK
	}
	release := sync.OnceFunc(func() { close(hang) })
	t.Cleanup(release)
	b.watch(t)
	b.waitRows(t, 1)
	b.insertEndedRun(t, 11, "failed")
	<-held
	b.insertEndedRun(t, 12, "failed")
	release()
	b.wantReceived(t, 0, "failed_runs happened 1", "failed_runs happened 2", "failed_runs happened 2")
	all := b.all(0)
	if all[0].id == all[1].id {
		t.Errorf("the notice about run 12 has the id of the notice about run 11: %v", all)
	}
	if all[1].id != all[2].id {
		t.Errorf("a repeated notice has another id: %v", all)
	}
}

// A run that fails while the watermark advances is reported all the same.
func TestWatcher_runFailsWhileWatermarkAdvances_isReported(t *testing.T) {
	t.Parallel()
	b := setup(t, `{oncall: {to: app, path: /alerts, conditions: [failed_runs]}}`)
	stop := b.watch(t)
	b.waitRows(t, 1)
	stop()
	b.db.Exec(t, `UPDATE notifications SET watermark = clock_now() - interval '20 minutes'`)
	b.db.Exec(t, `CREATE FUNCTION fails() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path
		FROM CURRENT AS $$BEGIN
  IF NOT EXISTS (SELECT FROM runs) THEN
    INSERT INTO runs (job, params, actor, reason, status, detail, counts, created_at, ended_at, updated_at)
    	VALUES ('replay', '{}', '', '', 'failed', '', '{}', clock_now(), clock_now(), clock_now());
    PERFORM pg_sleep(0.2); -- longer than the delay before an ended run is reported
  END IF;
  RETURN NULL;
END$$`)
	b.db.Exec(t, `CREATE TRIGGER fails BEFORE UPDATE ON notifications FOR EACH STATEMENT EXECUTE FUNCTION fails()`)
	b.watch(t)
	b.wantReceived(t, 0, "failed_runs happened 1")
}

// The database's clock was ahead and is right again. Notifications are sent at once, and a
// condition does not count as ended.
func TestWatcher_databaseClockSetBack_reportsAtOnce(t *testing.T) {
	t.Parallel()
	b := setup(t, `{oncall: {to: app, path: /alerts, conditions: [failed_runs, effects_needing_review]}}`)
	b.hours = 24 * 30
	b.clock(t)
	b.insertEffect(t, 1, "needs_review")
	stop := b.watch(t)
	b.wantReceived(t, 0, "effects_needing_review began 1")
	b.waitNotified(t, 1)
	stop()
	b.db.Exec(t, `UPDATE notifications SET lease_until = clock_now() + interval '1 minute'`)
	b.hours = 0
	b.clock(t)
	b.watch(t)
	testkit.Eventually(t, patience, func() error {
		return differ([]string{"true"}, b.db.QueryStrings(t, `SELECT (watermark <= clock_now())::text FROM notifications
			WHERE condition = 'failed_runs'`))
	})
	b.insertEndedRun(t, 11, "failed")
	b.wantReceived(t, 1, "effects_needing_review lasts 1", "failed_runs happened 1")
}

// insertUnknown inserts an effect in any state, with a step.
func (b *fixture) insertUnknown(t *testing.T, id int, state, step string) {
	t.Helper()
	b.insertEffect(t, id, "needs_review", step)
	b.db.Exec(t, `UPDATE effects SET state = $2, due = CASE WHEN $2 IN ('planned', 'failed') THEN clock_now() END,
		lease_until = CASE WHEN $2 = 'running' THEN clock_now() + interval '1 day' END WHERE effect = $1`, id, state)
}

// A step with an unknown outcome is reported whatever the state of its effect, while it is cleared
// up, however often it was retried, and however many other effects need review. The condition ends
// when the outcome is known or the effect has ended.
func TestWatcher_unknownSteps_areReportedInAnyState(t *testing.T) {
	t.Parallel()
	b := setup(t, `{oncall: {to: app, path: /alerts, conditions: [effects_with_unknown_outcome]}}`)
	b.db.Exec(t, `INSERT INTO effects (effect, key, rule_version, rule, source, account, object_type, object_id,
		event_id, run, state, destination, planned_at, updated_at)
OVERRIDING SYSTEM VALUE SELECT n, n::text, 1, 'r', 1, '', 't', n::text, n, 0, 'needs_review', 'd',
	clock_now() - interval '1 day', clock_now() - interval '1 day' FROM generate_series(1, 10001) n`)
	for id, state := range map[int]string{20001: "planned", 20002: "running", 20003: "failed", 20004: "needs_review",
		20005: "done", 20006: "rejected"} {
		b.insertUnknown(t, id, state, "unknown")
	}
	// One step is retried every few minutes. Two are being retried right now, for the second and
	// the first time. One has been unknown for a minute.
	b.db.Exec(t, `UPDATE effect_steps SET first_attempt_at = reserved_at, reserved_at = clock_now() - interval
		'2 minutes',
		ended_at = clock_now() - interval '1 minute' WHERE effect = 20003`)
	b.insertUnknown(t, 20007, "running", "reserved")
	b.insertUnknown(t, 20008, "running", "reserved")
	b.insertUnknown(t, 20009, "failed", "unknown")
	b.db.Exec(t, `UPDATE effect_steps SET first_attempt_at = reserved_at, reserved_at = clock_now()
		WHERE effect = 20007`)
	b.db.Exec(t, `UPDATE effect_steps SET first_attempt_at = reserved_at WHERE effect = 20008`)
	b.db.Exec(t, `UPDATE effect_steps SET first_attempt_at = clock_now() - interval '1 minute',
		reserved_at = clock_now()
		WHERE effect = 20009`)
	b.watch(t)
	b.wantReceived(t, 0, "effects_with_unknown_outcome began 5")
	if diff := cmp.Diff([]int64{20001, 20002, 20003, 20004, 20007}, b.all(0)[0].Data.IDs); diff != "" {
		t.Error(diff)
	}
	b.db.Exec(t, `UPDATE effect_steps SET state = 'done' WHERE effect <> 20002`)
	b.advanceClock(t, 1)
	b.wantReceived(t, 1, "effects_with_unknown_outcome lasts 1")
	b.db.Exec(t, `UPDATE effects SET state = 'rejected', lease_until = NULL WHERE effect = 20002`)
	b.wantReceived(t, 2, "effects_with_unknown_outcome over 0")
}

// The notices of two installations have different ids, so that a receiver does not take one for the
// other.
func TestNoticeID_twoInstallations_differs(t *testing.T) {
	t.Parallel()
	ids := map[string]bool{}
	for range 2 {
		b := setup(t, `{oncall: {to: app, path: /alerts, conditions: [effects_needing_review]}}`)
		b.insertEffect(t, 1, "needs_review")
		b.watch(t)
		b.wantReceived(t, 0, "effects_needing_review began 1")
		ids[b.all(0)[0].id] = true
	}
	if len(ids) != 2 {
		t.Error("notices of two installations have one id")
	}
}

// A dead event is reported until a run has applied it to the mirror, although the ledger keeps the
// dead outcome.
func TestWatcher_deadEvent_lastsUntilApplied(t *testing.T) {
	t.Parallel()
	b := setup(t, `{oncall: {to: app, path: /alerts, conditions: [dead_outcomes]}}`)
	outcome := func(run int, status string) {
		b.db.Exec(t, `INSERT INTO outcomes (event_id, run, source, object, account, object_type, object_id, status,
			reason, attempts, at, rule_version) VALUES (7, $1, 1, 0, '', '', '', $2, '', 1, clock_now(), 1)`, run,
			status)
	}
	b.db.Exec(t, `INSERT INTO runs (run, job, params, actor, reason, status, detail, counts, created_at, ended_at,
		updated_at)
		OVERRIDING SYSTEM VALUE VALUES (1, 'rebuild', '{}', '', '', 'cancelled', '', '{}', clock_now(), clock_now(),
			clock_now())`)
	outcome(0, "dead")
	outcome(1, "applied") // a run that does not change the mirror
	outcome(2, "dead")
	b.watch(t)
	b.wantReceived(t, 0, "dead_outcomes began 1")
	b.advanceClock(t, 1)
	b.wantReceived(t, 1, "dead_outcomes lasts 1")
	outcome(3, "applied")
	b.wantReceived(t, 2, "dead_outcomes over 0")
}

// Effects that wait for a rule or a destination that is not configured count as needing review.
// Effects that are due, are executed since their rule is back, are retried, or wait for less than
// the delay do not.
func TestWatcher_detachedEffects_needReview(t *testing.T) {
	t.Parallel()
	b := setup(t, `{oncall: {to: app, path: /alerts, conditions: [effects_needing_review]}}`)
	for id, state := range map[int]string{1: "planned", 2: "planned", 3: "planned", 4: "running", 5: "failed",
		6: "planned", 7: "rejected", 8: "needs_review"} {
		b.insertEffect(t, id, "needs_review")
		b.db.Exec(t, `UPDATE effects SET state = $2, due = CASE WHEN $2 IN ('planned', 'failed') THEN clock_now() +
			interval '30 seconds' END, lease_until = CASE WHEN $2 = 'running' THEN clock_now() + interval '1 day' END,
			reason = CASE WHEN effect <> 3 THEN 'its rule is not configured; it waits for it' ELSE '' END
				WHERE effect = $1`, id, state)
	}
	b.db.Exec(t, `UPDATE effects SET destination = 'gone', due = clock_now() - interval '1 second' WHERE effect = 2`)
	b.db.Exec(t, `UPDATE effects SET planned_at = clock_now() WHERE effect = 6`)
	b.watch(t)
	b.wantReceived(t, 0, "effects_needing_review began 3")
	notified := b.all(0)[0].Data
	if diff := cmp.Diff([]int64{1, 2, 8}, notified.IDs); diff != "" || notified.AtLeast {
		t.Errorf("%+v %s", notified, diff)
	}
	if want := "postern effects list --state needs_review, or --state planned if a rule or destination is not " +
		"configured, and postern effects show 1"; notified.Command != want {
		t.Error(notified.Command)
	}
	b.db.Exec(t, `UPDATE effects SET state = 'planned', reason = '', due = clock_now(), lease_until = NULL
		WHERE state <> 'rejected'`)
	b.wantReceived(t, 1, "effects_needing_review over 0")
}

// If there are more effects than the limit of the query, at a destination or in review, the
// reported count is a minimum.
func TestWatcher_countAboveLimit_isReportedAsMinimum(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		enter, notified, summary string
		atLeast                  bool
	}{
		"at a destination, all": {`SELECT n, 'planned', clock_now(), 'its rule is not configured',
			clock_now() - interval '1 day' FROM generate_series(1, 1999) n`, "effects_needing_review began 1999",
			"1999 effects need review", false},
		"at a destination": {`SELECT n, 'planned', clock_now(), 'its rule is not configured',
			clock_now() - interval '1 day' FROM generate_series(1, 2001) n`, "effects_needing_review began 2000",
			"2000 or more effects need review", true},
		"in review": {`SELECT n, 'needs_review', NULL::timestamptz, '', clock_now() - CASE
			WHEN n = 1 THEN interval '0 s' ELSE interval '1 day' END FROM generate_series(1, 10001) n`,
			"effects_needing_review began 9999", "9999 or more effects need review", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, `{oncall: {to: app, path: /alerts, conditions: [effects_needing_review]}}`)
			b.db.Exec(t, `INSERT INTO effects (effect, key, rule_version, rule, source, account, object_type, object_id,
				event_id, run, destination, state, due, reason, planned_at, updated_at)
OVERRIDING SYSTEM VALUE SELECT n, n::text, 1, 'r', 1, '', 't', n::text, n, 0, 'gone', state, due, reason, at, at
	FROM (`+c.enter+`) AS e(n, state, due, reason, at)`)
			b.watch(t)
			b.wantReceived(t, 0, c.notified)
			if notified := b.all(0)[0].Data; notified.AtLeast != c.atLeast || notified.Summary != c.summary {
				t.Errorf("%+v", notified)
			}
		})
	}
}

// A feed cursor is reported once it stands still for longer than its reader said.
func TestWatcher_stalledFeed_isReported(t *testing.T) {
	t.Parallel()
	b := setup(t, `{oncall: {to: app, path: /alerts, conditions: [stalled_feeds]}}`)
	b.db.Exec(t, `UPDATE change_feed SET newest = 1`)
	b.db.Exec(t, `INSERT INTO feed_cursors (name, epoch, number, stalls_after, created_at, moved_at, moved_by,
		behind_since)
		SELECT name, '', 0, stalls, clock_now(), clock_now(), '', clock_now() - behind FROM (VALUES
		('slow', interval '15 min', interval '20 min'), ('fast', interval '15 min', interval '1 min'),
		('current', interval '15 min', NULL), ('silent', NULL, interval '1 day')) AS v(name, stalls, behind)`)
	b.watch(t)
	b.wantReceived(t, 0, "stalled_feeds began 1")
	if got := b.all(0)[0].Data; got.Command != "postern feed list" || len(got.IDs) != 0 {
		t.Errorf("%+v", got)
	}
	b.waitNotified(t, 1)
	b.db.Exec(t, `UPDATE feed_cursors SET behind_since = NULL WHERE name = 'slow'`)
	b.wantReceived(t, 1, "stalled_feeds over 0")
}

// However many effects and runs have ended, each query reads only rows that need attention, through
// small indexes.
func TestStatements_readSmallIndexesOnly(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	for _, sql := range []string{
		`INSERT INTO effects (key, rule_version, rule, source, account, object_type, object_id, event_id, run, state,
			destination, planned_at, updated_at)
		 SELECT n::text, 1, 'r', 1, '', 't', n::text, n, 0, CASE WHEN n % 2000 = 0 THEN 'needs_review'
		 	WHEN n % 2000 = 1 THEN 'awaiting_approval' ELSE 'done' END, 'd', clock_now() - interval '1 day',
		 	clock_now() - interval '1 day' FROM generate_series(1, 40000) n`,
		`INSERT INTO effect_steps (effect, step, position, state, destination, fingerprint, attempts, reserved_at)
			SELECT effect, 's', 0, CASE WHEN state = 'needs_review' THEN 'unknown'
				WHEN effect % 2000 = 2 THEN 'reserved'
				ELSE 'done' END, 'd', '', 1, planned_at FROM effects`,
		`INSERT INTO outcomes (event_id, run, source, object, account, object_type, object_id, status, reason, attempts,
			at, rule_version)
		 SELECT n, 0, 1, 0, '', '', '', CASE WHEN n % 2000 = 0 THEN 'dead' ELSE 'applied' END, '', 1, clock_now(), 1
		 	FROM generate_series(1, 40000) n`,
		`INSERT INTO outcomes (event_id, run, source, object, account, object_type, object_id, status, reason, attempts,
			at, rule_version)
		 SELECT n, 1, 1, 0, '', '', '', 'applied', '', 1, clock_now(), 1 FROM generate_series(1, 40000) n
		 	WHERE n % 4000 = 0 OR n % 2000 > 0`,
		`INSERT INTO runs (job, params, actor, reason, status, detail, counts, created_at, ended_at, updated_at)
			SELECT 'replay', '{}', '', '', 'done', '', '{}', at, at, at
				FROM generate_series(clock_now() - interval '10000 minutes', clock_now(), '1 minute') at`,
		`ANALYZE effects, effect_steps, outcomes, runs`,
	} {
		db.Exec(t, sql)
	}
	checks := 0
	for _, sql := range testkit.Statements("internal/notify") {
		if !strings.Contains(sql, "array_agg") {
			continue
		}
		checks++
		args := []any{10_000, 5}
		for i, arg := range []string{"15 minutes", time.Now().Add(-10 * time.Minute).UTC().Format(time.RFC3339)} {
			if strings.Contains(sql, fmt.Sprintf("$%d", i+3)) {
				args = append(args, arg)
			}
		}
		sql = strings.ReplaceAll(sql, "$4", "$4::timestamptz")
		rows, err := db.Pool.Query(t.Context(), "EXPLAIN (ANALYZE, BUFFERS, TIMING OFF) "+sql,
			append([]any{pgx.QueryExecModeSimpleProtocol}, args...)...)
		if err != nil {
			t.Fatal(err)
		}
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err, sql)
		}
		plan := strings.Join(lines, "\n")
		if strings.Contains(plan, "Seq Scan") || strings.Contains(sql, "effect_steps") &&
			!strings.Contains(plan, "effect_steps_unknown") {
			t.Errorf("%s\n%s", sql, plan)
		}
	}
	if checks != 5 {
		t.Errorf("%d queries", checks)
	}
}
