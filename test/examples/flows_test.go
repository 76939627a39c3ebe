package examples_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/testkit"
)

// flows are the examples whose scripts kill Postern in the middle of each step, and check what the
// destinations did. Each query then reads the stored data that shows where Postern was killed.
var flows = map[string]struct {
	// keepsClock is set if the script sets the database's clock, so that the test must not.
	keepsClock bool
	query      string
	want       []string
}{
	// The kill interrupted the import, which another process continued, one reading of an invoice,
	// and mails, for which the mail service was checked. One invoice was paid meanwhile.
	"invoices": {query: `SELECT concat_ws(' ', (SELECT count(*) FROM events), 'events,', (SELECT count(*)
		FROM objects), 'objects,', (SELECT count(*) FROM effects WHERE state = 'done'), 'effects,',
		(SELECT count(*) >= 5 FROM effects WHERE lease_epoch > 1), 'some of which were in doubt,', (SELECT
		string_agg(concat_ws(' ', step, state, n), ', ' ORDER BY step, state) FROM (SELECT step, state, count(*) AS n
		FROM effect_steps WHERE attempts <> 1 GROUP BY 1, 2) s) || ' not sent once,', (SELECT count(*) FROM runs
		WHERE status <> 'done'), 'runs not done')`,
		want: []string{"250 events, 250 objects, 50 effects, t some of which were in doubt, current done 1, send " +
			"skipped 1 not sent once, 0 runs not done"}},
	// Each invoice has one effect, except one that two versions of the rule have seen. The kill
	// interrupted two of them.
	"notification": {keepsClock: true, query: `SELECT concat_ws(' ', key, 'v' || rule_version, state, attempts) FROM (
		SELECT e.key, e.rule_version, e.state, s.attempts FROM effects e JOIN effect_steps s USING (effect)) e
		ORDER BY key, rule_version`,
		want: []string{"new-invoice:1 v1 done 1", "new-invoice:2 v1 done 1", "new-invoice:3 v1 done 1",
			"new-invoice:4 v1 done 2", "new-invoice:5 v1 done 2", "new-invoice:6 v1 done 1", "new-invoice:7 v1 done 1",
			"new-invoice:7 v2 done 1", "new-invoice:8 v2 done 1"}},
	// The kill interrupted the step of each order that the script names. It was repeated or
	// checked, and no customer was created twice.
	"orders": {query: `SELECT concat_ws(' ', e.object_id, string_agg(s.step || ' ' || s.attempts, ', '
		ORDER BY s.position) FILTER (WHERE s.attempts <> 1), count(*)) FROM effects e JOIN effect_steps s USING (effect)
		WHERE e.state = 'done' GROUP BY e.object_id ORDER BY e.object_id`,
		want: []string{"1001 find 2 5", "1002 customer 2 5", "1003 customer 2 5", "1004 customer 0, invoice 2 5",
			"1005 customer 0, invoice 2 5", "1006 customer 0, synced 2 5", "1007 customer 0, synced 2 5",
			"1008 customer 0, confirmation 2 5", "1009 customer 0 5"}},
	// The kill interrupted both summaries of the first week. Each was the same in both attempts,
	// and the late invoice is in the second week.
	"summary": {keepsClock: true, query: `SELECT concat_ws(' ', object_id, state, s.attempts,
		template_data->'summary'->'sums', jsonb_path_query_array(template_data, '$.summary.objects[*].id'))
		FROM effects JOIN effect_steps s USING (effect, state) ORDER BY effect`,
		want: []string{`ada done 2 {"total": 40.25} ["in_1", "in_2", "in_3"]`, `grace done 2 {"total": 5.00} ["in_4"]`,
			`grace done 1 {"total": 6.00} ["in_5"]`}},
	// Postern found some mails at the mail service and sent the others. The one whose response was
	// lost was found and not sent again.
	"welcome": {query: `SELECT trim(concat_ws(' ', e.object_id, 'v' || e.rule_version, s.attempts, s.reason))
		FROM effects e JOIN effect_steps s USING (effect) WHERE e.state = 'done' AND s.captured ? 'message'
		ORDER BY e.rule_version, e.object_id`,
		want: []string{"ada v1" + found, "barbara v1 2", "edsger v1 1", "grace v1 1", "tony v1 1", "ada v2" + found,
			"barbara v2" + found, "edsger v2" + found, "grace v2" + found, "tony v2" + found}},
}

const found = " 0 found at the destination before the first attempt"

func TestFlows_killedInEachStep_doEachThingOnce(t *testing.T) {
	t.Parallel()
	for example, flow := range flows {
		t.Run(example, func(t *testing.T) {
			t.Parallel()
			db := testkit.Database(t)
			var onLine func(string)
			if !flow.keepsClock {
				onLine = advanceClockAtKills(t, db)
			}
			run(t, db, example, onLine)
			if diff := cmp.Diff(flow.want, db.QueryStrings(t, flow.query)); diff != "" {
				t.Errorf("stored data (-want +got):\n%s", diff)
			}
		})
	}
}
