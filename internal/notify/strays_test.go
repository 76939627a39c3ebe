package notify_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

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
