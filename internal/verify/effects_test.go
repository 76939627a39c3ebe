package verify_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/postern-gateway/postern/internal/verify"
)

// ledger has effects in every state, with steps as they are then: it is as it should be.
func ledger(t *testing.T) *testBundle {
	t.Helper()
	b := setup(t)
	b.exec(t, `
		INSERT INTO effects (key, rule_version, rule, source, account, object_type, object_id, event_id, run, state, undoing, destination, due, taken_by, taken_until, planned_at, updated_at)
		SELECT 'mail:' || n, 1, 'mail', $1, '', 'thing', n::text, 7, 0, state, undoing, 'post', CASE WHEN state IN ('planned', 'failed') THEN now() END,
		  CASE WHEN state = 'running' THEN 'a' ELSE '' END, CASE WHEN state = 'running' THEN now() + interval '1 min' END, now() - interval '3 days', now() - interval '2 days'
		FROM (VALUES (1, 'waiting', false), (2, 'planned', false), (3, 'running', false), (4, 'failed', false), (5, 'review', false), (6, 'done', false), (7, 'done', true), (8, 'rejected', false), (9, 'superseded', false),
		  (10, 'expired', false)) AS d(n, state, undoing)`, b.log.Source)
	b.exec(t, `
		INSERT INTO effect_steps (effect, step, undo, place, state, destination, fingerprint, attempts, reserved_at, ended_at)
		SELECT e.effect, step, undo, 0, d.state, 'post', '', 1, now() - interval '1 day', now() - interval '1 day'
		FROM effects e JOIN (VALUES (2, 'a', false, 'done'), (3, 'a', false, 'done'), (3, 'b', false, 'reserved'), (4, 'a', false, 'failed'), (5, 'a', false, 'unknown'), (6, 'a', false, 'done'), (7, 'a', false, 'done'),
		  (7, 'a', true, 'done'), (7, 'b', false, 'failed'), (8, 'a', false, 'unknown')) AS d(n, step, undo, state) ON e.key = 'mail:' || d.n`)
	return b
}

// A ledger that is as it should be has no violation, and what waits for persons is told.
func TestEffectsAreLookedAt(t *testing.T) {
	t.Parallel()
	r := ledger(t).clean(t)
	if r.Looked["effects"] != 10 {
		t.Errorf("%v", r.Looked)
	}
	var told []string
	for _, w := range r.Waiting {
		if what, _, _ := strings.Cut(w.What, " ("); w.Count > 0 {
			told = append(told, what)
		}
	}
	for _, want := range []string{"effects that are due", "steps of which nobody knows whether they were done", "effects that a person must see to", "effects that wait for an approval"} {
		if !strings.Contains(strings.Join(told, "|"), want) {
			t.Errorf("%q is not told: %q", want, told)
		}
	}
	for _, w := range r.Waiting {
		if strings.HasPrefix(w.What, "steps of which") && (w.Count != 1 || w.Seconds < 80_000) {
			t.Errorf("%+v", w)
		}
	}
	b := setup(t)
	b.exec(t, `INSERT INTO effect_window_waits SELECT 'weekly', $1, '', 'thing', n::text, now() - interval '3 h', now() - interval '2 h' FROM generate_series(1, 3) n`, b.log.Source)
	r = b.clean(t)
	if !slices.ContainsFunc(r.Waiting, func(w verify.Wait) bool {
		return w.Count == 3 && w.Seconds > 7_000 && strings.HasPrefix(w.What, "objects in doubt")
	}) {
		t.Errorf("%+v", r.Waiting)
	}
	if n := r.Looked["effects"]; n != 0 {
		t.Errorf("%d effects where there are none", n)
	}
}

// Each way in which the ledger of effects can be wrong is found and named.
func TestDamagedEffects(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		kind  verify.Kind
		sql   string
		names string
	}{
		"done in doubt":      {verify.EffectWrong, `UPDATE effect_steps SET state = 'unknown' WHERE effect = (SELECT effect FROM effects WHERE key = 'mail:6')`, "step a is unknown, and the effect is done"},
		"reserved for ever":  {verify.EffectWrong, `UPDATE effect_steps SET state = 'reserved' WHERE state = 'failed' AND effect = (SELECT effect FROM effects WHERE key = 'mail:4')`, "step a is reserved, and the effect is failed"},
		"nobody's":           {verify.EffectWrong, `UPDATE effects SET taken_by = '' WHERE state = 'running'`, "nobody has taken it"},
		"begun unapproved":   {verify.EffectWrong, `UPDATE effects SET state = 'waiting' WHERE key = 'mail:6'`, "step a is done, and the effect is waiting"},
		"begun and expired":  {verify.EffectWrong, `UPDATE effects SET state = 'expired' WHERE key = 'mail:6'`, "step a is done, and the effect is expired"},
		"never due":          {verify.EffectWrong, `ALTER TABLE effects DROP CONSTRAINT effects_check; UPDATE effects SET due = NULL WHERE state = 'planned'`, "it is planned, and never due"},
		"undone, never done": {verify.EffectWrong, `UPDATE effect_steps SET state = 'failed' WHERE NOT undo AND step = 'a' AND effect = (SELECT effect FROM effects WHERE key = 'mail:7')`, "step a is undone, and was not done"},
		"twice":              {verify.EffectTwice, `DROP INDEX effects_key; UPDATE effects SET key = 'mail:6' WHERE key = 'mail:8'`, "are both of key mail:6, version 1"},
		"of nothing":         {verify.EffectWrong, `UPDATE effects SET event_id = 0, facts = '{"new": {}}' WHERE key = 'mail:6'`, "it is of no event, and of no window of a schedule"},
		"too late":           {verify.WaitsTooLong, `UPDATE effects SET due = now() - interval '2 hours' WHERE state = 'planned'`, "effects that are due: 2, the oldest for 2h0m0s; 1h0m0s is allowed"},
		"stray": {verify.WaitsTooLong, `UPDATE effects SET due = clock_timestamp(), reason = 'its rule is not configured, so it waits' WHERE key = 'mail:2'`,
			"effects whose rule or destination is not configured: 1, the oldest for 72h0m0s; 1h0m0s is allowed"},
		"lapsed": {verify.WaitsTooLong, `UPDATE effects SET taken_until = now() - interval '2 hours' WHERE state = 'running'`, "effects that a process had taken that ended: 1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := ledger(t)
			for statement := range strings.SplitSeq(c.sql, "; ") {
				b.exec(t, statement)
			}
			if item := b.finds(t, c.kind, 1); !strings.Contains(item.Detail, c.names) || item.Mend == "" {
				t.Errorf("%+v", item)
			}
		})
	}
}
