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

	"github.com/postern-gateway/postern/internal/notify"
	"github.com/postern-gateway/postern/internal/testkit"
)

// knows waits until so many rows say who is told of what.
func (b *bundle) knows(t *testing.T, want int) {
	t.Helper()
	testkit.Eventually(t, patience, func() error {
		if n := len(b.db.Rows(t, `SELECT name FROM notifications`)); n != want {
			return fmt.Errorf("%d rows", n)
		}
		return nil
	})
}

// ends enters a run that ends now.
func (b *bundle) ends(t *testing.T, run int, status string) {
	t.Helper()
	b.db.Exec(t, fmt.Sprintf(`INSERT INTO runs (run, job, asked, who, reason, status, detail, counts, made_at, ended_at, updated_at) OVERRIDING SYSTEM VALUE VALUES (%d, 'replay', '{}', '', '', '%s', '', '{}', clock_now(), clock_now(), clock_now())`, run, status))
}

// A receiver that has a notice, and whose answer was lost, does not take one that says more of other runs for the same.
func TestMoreThanWasSentIsAnother(t *testing.T) {
	t.Parallel()
	b := setup(t, `{oncall: {to: app, path: /alerts, about: [failed_runs]}}`)
	held, hang := make(chan struct{}), make(chan struct{})
	n := 0
	b.answer = func() int {
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
	b.knows(t, 1)
	b.ends(t, 11, "failed")
	<-held
	b.ends(t, 12, "failed")
	release()
	b.wants(t, 0, "failed_runs happened 1", "failed_runs happened 2", "failed_runs happened 2")
	all := b.all(0)
	if all[0].id == all[1].id {
		t.Errorf("run 12 is told as what was said of run 11: %v", all)
	}
	if all[1].id != all[2].id {
		t.Errorf("the same is told as another: %v", all)
	}
}

// A run that fails while it is noted that none has is told all the same.
func TestRunThatFailsWhileTheMarkMoves(t *testing.T) {
	t.Parallel()
	b := setup(t, `{oncall: {to: app, path: /alerts, about: [failed_runs]}}`)
	stop := b.watch(t)
	b.knows(t, 1)
	stop()
	b.db.Exec(t, `UPDATE notifications SET mark = clock_now() - interval '20 minutes'`)
	b.db.Exec(t, `CREATE FUNCTION fails() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$BEGIN
  IF NOT EXISTS (SELECT FROM runs) THEN
    INSERT INTO runs (job, asked, who, reason, status, detail, counts, made_at, ended_at, updated_at) VALUES ('replay', '{}', '', '', 'failed', '', '{}', clock_now(), clock_now(), clock_now());
    PERFORM pg_sleep(0.2); -- longer than what ended must have settled
  END IF;
  RETURN NULL;
END$$`)
	b.db.Exec(t, `CREATE TRIGGER fails BEFORE UPDATE ON notifications FOR EACH STATEMENT EXECUTE FUNCTION fails()`)
	b.watch(t)
	b.wants(t, 0, "failed_runs happened 1")
}

// Where the database's clock was ahead and is right again, what is told is told at once, and what lasts is not taken to be over.
func TestClockThatWasAhead(t *testing.T) {
	t.Parallel()
	b := setup(t, `{oncall: {to: app, path: /alerts, about: [failed_runs, review_effects]}}`)
	b.hours = 24 * 30
	b.clock(t)
	b.effect(t, 1, "review")
	stop := b.watch(t)
	b.wants(t, 0, "review_effects began 1")
	b.noted(t, 1)
	stop()
	b.db.Exec(t, `UPDATE notifications SET taken_until = clock_now() + interval '1 minute'`)
	b.hours = 0
	b.clock(t)
	b.watch(t)
	testkit.Eventually(t, patience, func() error {
		return differ([]string{"true"}, b.db.Rows(t, `SELECT (mark <= clock_now())::text FROM notifications WHERE about = 'failed_runs'`))
	})
	b.ends(t, 11, "failed")
	b.wants(t, 1, "review_effects lasts 1", "failed_runs happened 1")
}

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

// Effects that wait for a rule or a destination that is not configured need a person, who is told with those in review; those that are due, carried out as their rule is back, tried again or wait for less than that long do not.
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
	b.wants(t, 0, "review_effects began 3")
	told := b.all(0)[0].Data
	if diff := cmp.Diff([]int64{1, 2, 8}, told.IDs); diff != "" || told.AtLeast {
		t.Errorf("%+v %s", told, diff)
	}
	if want := "postern effects list --state review, or --state planned where a rule or destination is not configured, and postern effects show 1"; told.Command != want {
		t.Error(told.Command)
	}
	b.db.Exec(t, `UPDATE effects SET state = 'planned', reason = '', due = clock_now(), taken_until = NULL WHERE state <> 'rejected'`)
	b.wants(t, 1, "review_effects over 0")
}

// Where there are more than are looked at, at a destination or in review, what is told is how many there are at least.
func TestOfManyIsToldHowManyThereAreAtLeast(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		enter, told, summary string
		atLeast              bool
	}{
		"at a destination, all": {`SELECT n, 'planned', clock_now(), 'its rule is not configured', clock_now() - interval '1 day' FROM generate_series(1, 1999) n`, "review_effects began 1999", "1999 effects need a person", false},
		"at a destination":      {`SELECT n, 'planned', clock_now(), 'its rule is not configured', clock_now() - interval '1 day' FROM generate_series(1, 2001) n`, "review_effects began 2000", "2000 or more effects need a person", true},
		"in review":             {`SELECT n, 'review', NULL::timestamptz, '', clock_now() - CASE WHEN n = 1 THEN interval '0 s' ELSE interval '1 day' END FROM generate_series(1, 10001) n`, "review_effects began 9999", "9999 or more effects need a person", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, `{oncall: {to: app, path: /alerts, about: [review_effects]}}`)
			b.db.Exec(t, `INSERT INTO effects (effect, key, rule_version, rule, source, account, object_type, object_id, event_id, run, destination, state, due, reason, planned_at, updated_at)
OVERRIDING SYSTEM VALUE SELECT n, n::text, 1, 'r', 1, '', 't', n::text, n, 0, 'gone', state, due, reason, at, at FROM (`+c.enter+`) AS e(n, state, due, reason, at)`)
			b.watch(t)
			b.wants(t, 0, c.told)
			if told := b.all(0)[0].Data; told.AtLeast != c.atLeast || told.Summary != c.summary {
				t.Errorf("%+v", told)
			}
		})
	}
}

// However much is over and done, looking reads what needs somebody, by small indexes.
func TestLookingReadsLittle(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	for _, sql := range []string{
		`INSERT INTO effects (key, rule_version, rule, source, account, object_type, object_id, event_id, run, state, destination, planned_at, updated_at)
		 SELECT n::text, 1, 'r', 1, '', 't', n::text, n, 0, CASE WHEN n % 2000 = 0 THEN 'review' WHEN n % 2000 = 1 THEN 'waiting' ELSE 'done' END, 'd', clock_now() - interval '1 day', clock_now() - interval '1 day' FROM generate_series(1, 40000) n`,
		`INSERT INTO effect_steps (effect, step, place, state, destination, fingerprint, attempts, reserved_at) SELECT effect, 's', 0, CASE WHEN state = 'review' THEN 'unknown' WHEN effect % 2000 = 2 THEN 'reserved' ELSE 'done' END, 'd', '', 1, planned_at FROM effects`,
		`INSERT INTO outcomes (event_id, run, source, object, account, object_type, object_id, status, reason, attempts, at, rule_version)
		 SELECT n, 0, 1, 0, '', '', '', CASE WHEN n % 2000 = 0 THEN 'dead' ELSE 'applied' END, '', 1, clock_now(), 1 FROM generate_series(1, 40000) n`,
		`INSERT INTO outcomes (event_id, run, source, object, account, object_type, object_id, status, reason, attempts, at, rule_version)
		 SELECT n, 1, 1, 0, '', '', '', 'applied', '', 1, clock_now(), 1 FROM generate_series(1, 40000) n WHERE n % 4000 = 0 OR n % 2000 > 0`,
		`INSERT INTO runs (job, asked, who, reason, status, detail, counts, made_at, ended_at, updated_at) SELECT 'replay', '{}', '', '', 'done', '', '{}', at, at, at FROM generate_series(clock_now() - interval '10000 minutes', clock_now(), '1 minute') at`,
		`ANALYZE effects, effect_steps, outcomes, runs`,
	} {
		db.Exec(t, sql)
	}
	looks := 0
	for _, sql := range notify.Statements() {
		if !strings.Contains(sql, "array_agg") {
			continue
		}
		looks++
		args := []any{10_000, 5}
		for i, arg := range []string{"15 minutes", time.Now().Add(-10 * time.Minute).UTC().Format(time.RFC3339)} {
			if strings.Contains(sql, fmt.Sprintf("$%d", i+3)) {
				args = append(args, arg)
			}
		}
		sql = strings.ReplaceAll(sql, "$4", "$4::timestamptz")
		rows, err := db.Pool.Query(t.Context(), "EXPLAIN (ANALYZE, BUFFERS, TIMING OFF) "+sql, append([]any{pgx.QueryExecModeSimpleProtocol}, args...)...)
		if err != nil {
			t.Fatal(err)
		}
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err, sql)
		}
		plan := strings.Join(lines, "\n")
		if strings.Contains(plan, "Seq Scan") || strings.Contains(sql, "effect_steps") && !strings.Contains(plan, "effect_steps_doubtful") {
			t.Errorf("%s\n%s", sql, plan)
		}
	}
	if looks != 5 {
		t.Errorf("%d looks", looks)
	}
}
