package notify_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/notify"
	"github.com/postern-gateway/postern/internal/testkit"
)

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
