package redaction_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/redaction"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit"
)

// What the ledger of effects tells of an object goes with its events, and what was not done has nothing to be done with any more. What was done stays on record, as does what is another's.
func TestEffectsAreCleared(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.event(t, "hers", 1, email)
	b.event(t, "other", 1, "somebody@else.org")
	b.exec(t, `INSERT INTO effects (key, rule_version, rule, source, account, object_type, object_id, event_id, run, facts, state, reason, destination, due, planned_at, updated_at)
SELECT s.state || o.object_id, 1, 'mail', o.source, o.account, o.object_type, o.object_id, o.last_event_id, 0, jsonb_build_object('new', o.state), s.state, 'told', 'mail',
  CASE WHEN s.state = 'failed' THEN now() END, now(), now() FROM objects o, unnest('{done,failed,review}'::text[]) AS s(state)`)
	b.exec(t, `INSERT INTO effect_steps (effect, step, place, state, destination, request, fingerprint, attempts, reserved_at, captured, error)
SELECT effect, 'send', 0, 'done', 'mail', facts, '', 1, now(), facts, facts::text FROM effects`)
	b.exec(t, `INSERT INTO effect_holds (source, account, object_type, object_id, state, deleted, there, exact_hash, held_at)
SELECT source, account, object_type, object_id, state, false, true, exact_hash, now() FROM objects`)
	b.do(t, b.byEmail(t, email))
	if left := b.holding(t, "lovelace"); len(left) > 0 {
		t.Errorf("left in %v", left)
	}
	want := []string{"donehers done", "doneother done told", "failedhers rejected redacted before it was done", "failedother failed told", "reviewhers rejected redacted before it was done", "reviewother review told"}
	if diff := cmp.Diff(want, b.rows(t, `SELECT rtrim(key || ' ' || state || ' ' || reason) FROM effects ORDER BY key`)); diff != "" {
		t.Error(diff)
	}
	if n := b.rows(t, `SELECT count(*)::text FROM effect_steps WHERE request IS NOT NULL AND captured <> '{}' AND error <> ''`)[0]; n != "3" {
		t.Errorf("%s steps of the other are whole", n)
	}
	if held := b.rows(t, `SELECT object_id FROM effect_holds`); len(held) != 1 || held[0] != "other" {
		t.Errorf("held %q", held)
	}
}

// What a process takes and sends while a redaction waits for it is cleared as well; and what it leaves later is, by the next one.
func TestEffectsUnderWayAreCleared(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.event(t, "hers", 1, email)
	b.exec(t, `INSERT INTO effects (key, rule_version, rule, source, account, object_type, object_id, event_id, run, facts, state, destination, due, planned_at, updated_at)
SELECT 'k', 1, 'mail', source, account, object_type, object_id, last_event_id, 0, jsonb_build_object('new', state), 'planned', 'mail', now(), now(), now() FROM objects`)
	takes, err := b.db.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, sql := range []string{`UPDATE effects SET state = 'running', due = NULL, taken_by = 'a', taken_until = now() + interval '1 hour'`,
		`INSERT INTO effect_steps (effect, step, place, state, destination, request, fingerprint, attempts, reserved_at) SELECT effect, 'send', 0, 'reserved', 'mail', facts, '', 1, now() FROM effects`} {
		if _, err := takes.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	b.ask(t, b.byEmail(t, email))
	h, err := runs.Take(t.Context(), b.pool, "test", time.Minute, redaction.Job)
	if err != nil || h == nil {
		t.Fatal(h, err)
	}
	redacted := make(chan error, 1)
	go func() {
		_, err := (&redaction.Runner{Pool: b.pool, Processor: b.proc}).Carry(context.WithoutCancel(t.Context()), h, slog.New(slog.DiscardHandler))
		redacted <- err
	}()
	testkit.Eventually(t, time.Minute, func() error {
		if n := b.rows(t, `SELECT count(*)::text FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`)[0]; n == "0" {
			return fmt.Errorf("nobody waits")
		}
		return nil
	})
	if err := errors.Join(takes.Commit(t.Context()), <-redacted, h.End(t.Context(), runs.Done, "")); err != nil {
		t.Fatal(err)
	}
	if left := b.holding(t, "lovelace"); len(left) > 0 {
		t.Errorf("left in %v", left)
	}
	b.exec(t, `UPDATE effect_steps SET captured = '{"to": "lovelace"}'`)
	b.exec(t, `UPDATE effects SET state = 'rejected', reason = 'a person says so', taken_by = '', taken_until = NULL`)
	b.event(t, "hers", 2, email)
	b.do(t, b.byEmail(t, email))
	if left := b.holding(t, "lovelace"); len(left) > 0 {
		t.Errorf("left in %v", left)
	}
	if reason := b.rows(t, `SELECT reason FROM effects`)[0]; reason != "a person says so" {
		t.Error(reason)
	}
}
