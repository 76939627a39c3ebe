package retention_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/retention"
)

// insertEffects inserts effects: of each state one that ended long ago and one of today, for an
// event of the first day and one of today. It also inserts more effects than one range has.
func (b *testBundle) insertEffects(t *testing.T) {
	t.Helper()
	last := b.days[len(b.days)-1]
	b.exec(t, `
		INSERT INTO effects (key, rule_version, rule, source, account, object_type, object_id, event_id, run,
			template_data, state, reason, destination, due, lease_until, planned_at, updated_at)
		SELECT state || ' ' || age || ' ' || day, 1, 'mail', $1, '', 'thing', '1', CASE day WHEN 'gone' THEN $2::bigint
			ELSE $3::bigint END, 0, '{"new": {"email": "ada@example.org"}}', state, 'ada', 'post',
		  CASE WHEN state IN ('planned', 'failed') THEN clock_now() END, CASE state WHEN 'running' THEN clock_now() END,
		  	clock_now() - age::interval, clock_now() - age::interval
		FROM unnest('{awaiting_approval,planned,running,failed,needs_review,done,rejected,expired,superseded}'::text[])
			AS state,
			unnest('{9 d,1 d}'::text[]) AS age, unnest('{gone,there}'::text[]) AS day`, b.source, b.days[0][0], last[0])
	b.exec(t, `
		INSERT INTO effect_steps (effect, step, position, state, destination, request, fingerprint, attempts,
			reserved_at, captured, error)
		SELECT effect, 'send', 0, 'done', 'post', '{"body": "ada"}', '', 1, clock_now(), '{"id": "ada"}', 'ada'
			FROM effects WHERE state IN ('done', 'rejected', 'needs_review')`)
	b.exec(t, `
		INSERT INTO effects (key, rule_version, rule, source, account, object_type, object_id, event_id, run,
			template_data, state, destination, planned_at, updated_at)
		SELECT 'more ' || n, 1, 'mail', $1, '', 'thing', '1', $2, 0, '{}', 'done', 'post', clock_now(),
			clock_now() - interval '9 d' FROM generate_series(1, 10050) n`, b.source, b.days[0][0])
}

// The data and responses of effects are cleared at their age after the end. Their keys stay
// forever, or until their own age, and never expire before the event that planned them.
func TestRetention_endedEffects_expire(t *testing.T) {
	t.Parallel()
	b := setup(t, 9, 3, 3)
	b.insertEffects(t)
	contents := retention.Policy{Effects: 3}
	b.checkPreview(t, contents, map[string]int64{retention.CountEffects: 10058})
	b.runPolicy(t, contents)
	b.checkRows(t, `SELECT key FROM effects WHERE template_data IS NULL AND reason = '' AND key NOT LIKE 'more %'
		ORDER BY key`, "done 9 d gone", "done 9 d there", "expired 9 d gone", "expired 9 d there",
		"rejected 9 d gone", "rejected 9 d there", "superseded 9 d gone", "superseded 9 d there")
	b.checkRows(t, `SELECT DISTINCT e.key FROM effects e JOIN effect_steps s USING (effect)
		WHERE concat(s.request, s.captured, s.error) LIKE '%ada%' ORDER BY 1`,
		"done 1 d gone", "done 1 d there", "needs_review 1 d gone", "needs_review 1 d there",
		"needs_review 9 d gone", "needs_review 9 d there", "rejected 1 d gone", "rejected 1 d there")
	b.checkText(t, "10086 10058",
		`SELECT count(*) || ' ' || count(*) FILTER (WHERE template_data IS NULL) FROM effects`)

	keys := retention.Policy{Bodies: 1, EffectKeys: 3}
	b.runPolicy(t, retention.Policy{Bodies: 1})
	b.checkPreview(t, keys, map[string]int64{retention.CountEffectKeys: 10054})
	b.runPolicy(t, keys)
	b.checkRows(t, `SELECT state || ' ' || age || ' gone' AS key
		FROM unnest('{awaiting_approval,planned,running,failed,needs_review,done,rejected,expired,superseded}'::text[])
			AS state, unnest('{9 d,1 d}'::text[]) AS age
		EXCEPT SELECT key FROM effects ORDER BY key`,
		"done 9 d gone", "expired 9 d gone", "rejected 9 d gone", "superseded 9 d gone")
	b.checkText(t, "32 10", `SELECT count(*) || ' ' || (SELECT count(*) FROM effect_steps) FROM effects`)
}

// A schedule's effect stays as long as the object exists for which it would be planned again,
// whether it was done or rejected.
func TestRetention_scheduleEffects_expireAfterTheirObject(t *testing.T) {
	t.Parallel()
	b := setup(t, 9, 3, 3)
	object := b.rows(t, `SELECT object_id FROM objects WHERE NOT deleted ORDER BY 1 LIMIT 1`)[0]
	b.exec(t, `
		INSERT INTO effects (key, rule_version, rule, source, account, object_type, object_id, event_id, run,
			template_data, state, destination, planned_at, updated_at)
		SELECT d.id || ' ' || state || ' ' || age, 1, 'weekly', $1, '', 'thing', d.id, 0, 0, '{"window": {}}', state,
			'post', clock_now(), clock_now() - age::interval
		FROM unnest(ARRAY[$2, 'nobody']) AS d(id), unnest('{9 d,1 d}'::text[]) AS age,
			unnest('{done,expired,rejected}'::text[]) AS state`, b.source, object)
	all := func(of ...string) (keys []string) {
		for _, one := range of {
			id, age, _ := strings.Cut(one, " ")
			keys = append(keys, id+" done "+age, id+" expired "+age, id+" rejected "+age)
		}
		slices.Sort(keys)
		return keys
	}
	keys := retention.Policy{Bodies: 1, EffectKeys: 3}
	b.runPolicy(t, retention.Policy{Bodies: 1})
	b.checkPreview(t, keys, map[string]int64{retention.CountEffectKeys: 3})
	b.runPolicy(t, keys)
	b.checkRows(t, `SELECT key FROM effects ORDER BY key COLLATE "C"`,
		all("nobody 1 d", object+" 1 d", object+" 9 d")...)
	b.exec(t, `UPDATE objects SET deleted = true WHERE object_id = $1`, object)
	b.checkPreview(t, keys, map[string]int64{retention.CountEffectKeys: 3})
	b.runPolicy(t, keys)
	b.checkRows(t, `SELECT key FROM effects ORDER BY key COLLATE "C"`, all("nobody 1 d", object+" 1 d")...)
}

// checkRows compares the rows of a query.
func (b *testBundle) checkRows(t *testing.T, sql string, want ...string) {
	t.Helper()
	equal(t, sql, want, b.rows(t, sql))
}

// checkPreview compares the counts of a preview.
func (b *testBundle) checkPreview(t *testing.T, p retention.Policy, want map[string]int64) {
	t.Helper()
	params, err := retention.NewParams(t.Context(), b.operator, p)
	must(t, err)
	view, err := retention.Preview(t.Context(), b.operator, params)
	if diff := cmp.Diff(want, view.Expired); err != nil || diff != "" {
		t.Errorf("%v: %s", err, diff)
	}
}

// Keys of effects are kept at least as long as the events that planned them.
func TestPolicy_keysBeforeEvents_isRejected(t *testing.T) {
	t.Parallel()
	for _, p := range []retention.Policy{{EffectKeys: 3}, {Bodies: 4, EffectKeys: 3}, {Effects: -1}, {Keys: 3},
		{Bodies: 5, Keys: 4}, {Bodies: 5, Outcomes: 1}, {Bodies: -1}} {
		if p.Check() == nil || errOf(retention.NewParams(t.Context(), nil, p)) == nil {
			t.Errorf("%+v is accepted", p)
		}
	}
	for p, warns := range map[retention.Policy]bool{{Effects: 3}: true, {Bodies: 4, Effects: 3}: true,
		{Bodies: 3, Effects: 3}: false, {Bodies: 3}: false} {
		if all := p.Warnings(); (len(all) == 1) != warns || warns &&
			!strings.Contains(all[0], "cleared 3 days after they ended") {
			t.Errorf("%+v: %q", p, all)
		}
	}
	if p := (retention.Policy{Bodies: 4, EffectKeys: 4, Effects: 1}); p.Check() != nil ||
		(retention.Policy{Effects: 1}).Empty() {
		t.Error("a policy that keeps keys for longer is rejected")
	}
}
