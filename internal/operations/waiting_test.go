package operations_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/effects/rules"
	"github.com/postern-gateway/postern/internal/operations"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/testkit"
)

// insertEffectsSQL inserts effects of a rule in a state, older ones first.
const insertEffectsSQL = `INSERT INTO effects (key, rule_version, rule, source, account, object_type, object_id,
	event_id, run, state, destination, planned_at, updated_at) SELECT $1 || $2 || n, 1, $1, 1, '', '', '', 1, 0, $2,
	'', '2026-11-01', now() FROM generate_series(1, $3::int) n`

// The counts of what waits, and of a rule's effects, read indexes of bounded parts, whatever the
// planner knows. Unfinished effects count also if many newer ones are done.
func TestCountStates_manyEffects_areBounded(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	db.Exec(t, insertEffectsSQL, "mail", "needs_review", 3)
	db.Exec(t, insertEffectsSQL, "mail", "done", 5)
	db.Exec(t, insertEffectsSQL, "other", "done", 9995)
	db.Exec(t, insertEffectsSQL, "other", "awaiting_approval", 3)
	db.Exec(t, `INSERT INTO outcomes (event_id, run, source, object, account, object_type, object_id, status, reason,
		attempts, at, rule_version) SELECT n, 0, 1, n, '', '', '',
		CASE WHEN n % 1000 = 0 THEN 'dead' ELSE 'applied' END, '', 1, now(), 1 FROM generate_series(1, 20000) n`)
	db.Exec(t, `INSERT INTO runs (job, params, actor, reason, status, detail, counts, created_at, ended_at, updated_at)
		SELECT 'replay', '{}', '', '', 'done', '', '{}', now(), now(), now() FROM generate_series(1, 5000)`)
	operator := db.Role(t, "operator")
	w, err := operations.CountWaiting(t.Context(), operator)
	testkit.Must(t, err)
	testkit.Equal(t, "what waits", operations.Waiting{DeadEvents: 20, Effects: 3}, w)
	rule, err := operations.ShowEffectRule(t.Context(), operator, []*rules.Rule{{Name: "mail"}},
		operations.RuleName{Rule: "mail"})
	testkit.Must(t, err)
	if len(rule.States) != 2 || rule.States[0].Count != 2 || rule.States[1].Count != 3 || rule.CountedSince.IsZero() {
		t.Errorf("2 of the newest 10,000 are done, 3 need review: %+v", rule.StateCounts)
	}
	db.WithEachPlan(t, func(name string, tx pgx.Tx) {
		for sql, args := range map[string][]any{operations.WaitingSQL: {1000},
			operations.CountStatesSQL: {"mail", 10}} {
			plan, err := postgres.Collect(t.Context(), tx, pgx.RowTo[string], "EXPLAIN "+sql, args...)
			testkit.Must(t, err)
			for _, line := range plan {
				if strings.Contains(line, "Seq Scan on") && !strings.Contains(line, "checkpoints") { // it is empty
					t.Errorf("%s: %s", name, strings.Join(plan, "\n"))
				}
			}
		}
	})
}

// A list of sources aggregates the event types once, whatever the planner knows.
func TestSources_manyTypes_areAggregatedOnce(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	db.Exec(t, `INSERT INTO sources (name, provider, api_reads) SELECT 'source_' || n, 'stripe', '{}'
		FROM generate_series(1, 200) n`)
	db.Exec(t, `INSERT INTO source_types (source, event_type, first_at, last_at, count)
		SELECT number, 'type_' || k, now(), now(), 1 FROM sources, generate_series(1, 40) k`)
	db.WithEachPlan(t, func(name string, tx pgx.Tx) {
		testkit.ExecSQL(t, tx, "PREPARE listed (text[], text[], text, text, int) AS "+operations.SourcesSQL)
		plan, err := postgres.Collect(t.Context(), tx, pgx.RowTo[string],
			"EXPLAIN (ANALYZE, TIMING OFF) EXECUTE listed ('{}', '{}', '', '', 101)")
		testkit.Must(t, err)
		testkit.ExecSQL(t, tx, "DEALLOCATE listed") // a rollback does not
		aggregates := slices.DeleteFunc(slices.Clone(plan), func(line string) bool {
			return !strings.Contains(line, "Aggregate")
		})
		if len(aggregates) != 1 || !strings.HasSuffix(aggregates[0], " loops=1)") {
			t.Errorf("%s:\n%s", name, strings.Join(plan, "\n"))
		}
	})
}
