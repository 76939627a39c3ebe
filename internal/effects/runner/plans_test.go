package runner_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/effects/runner"
	"github.com/postern-gateway/postern/internal/testkit"
)

// However large the ledger is, and though PostgreSQL keeps one plan for all, an effect is taken, recorded and given back by indexes.
func TestStatementsReadLittle(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	for _, sql := range []string{
		`INSERT INTO effects (key, rule_version, rule, source, account, object_type, object_id, event_id, run, state, destination, due, planned_at, updated_at)
		 SELECT n::text, 1, 'r', 1, '', 't', n::text, n, 0, CASE WHEN n % 4 > 0 THEN 'planned' ELSE 'done' END, 'd' || n % 2, CASE WHEN n % 4 > 0 THEN clock_now() END, clock_now(), clock_now() FROM generate_series(1, 40000) n`,
		`INSERT INTO effect_steps (effect, step, place, state, destination, fingerprint, attempts, reserved_at) SELECT effect, 's', 0, 'done', 'd', '', 1, planned_at FROM effects WHERE state = 'done'`,
		`ANALYZE effects, effect_steps`,
	} {
		db.Exec(t, sql)
	}
	conn, err := db.Pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Release)
	if _, err := conn.Exec(t.Context(), `SET plan_cache_mode = force_generic_plan`); err != nil {
		t.Fatal(err)
	}
	for i, sql := range runner.Statements() {
		if strings.Contains(sql, "WHERE state = 'planned' AND") {
			continue // it counts them
		}
		name := fmt.Sprintf("s%d", i)
		d, err := conn.Conn().Prepare(t.Context(), name, sql)
		if err != nil {
			t.Fatal(err)
		}
		execute := "EXPLAIN EXECUTE " + name
		if n := len(d.ParamOIDs); n > 0 {
			execute += "(" + strings.Repeat("NULL, ", n-1) + "NULL)"
		}
		rows, err := conn.Query(t.Context(), execute, pgx.QueryExecModeSimpleProtocol)
		if err != nil {
			t.Fatal(err)
		}
		plan, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err, sql)
		}
		text := strings.Join(plan, "\n")
		if strings.Contains(text, "Seq Scan") {
			t.Errorf("%s\n%s", sql, text)
		}
		if strings.Contains(sql, "ORDER BY due") && !strings.Contains(text, "Index Cond: ((destination = ") {
			t.Errorf("what is not due yet is gone through: %s", text)
		}
	}
}
