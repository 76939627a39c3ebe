package operations_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/operations"
	"github.com/postern-gateway/postern/internal/testkit"
)

func TestFailuresByReason_outcomes_areGrouped(t *testing.T) {
	t.Parallel()
	db, sources := withSources(t)
	at := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	var ids []int64
	for i, o := range []struct {
		source, status, reason string
		run                    int64
	}{
		{"stripe", "failed", "no luck with in_1Aaaaaa", 0},
		{"shop", "failed", "no luck with in_2Bbbbbb", 0},
		{"stripe", "dead", "given up after 9 attempts: no luck with in_3Cccccc", 0},
		{"stripe", "dead", "given up after 9 attempts: no luck with in_4Dddddd", 7},
		{"stripe", "applied", "", 0},
		{"shop", "failed", "no luck with in_5Eeeeee and with in_6Ffffff", 0},
	} {
		ids = append(ids, appendEvent(t, db, sources[o.source], fmt.Sprint("k", i)))
		db.Exec(t, `INSERT INTO outcomes (event_id, run, source, object, account, object_type, object_id, status,
			reason, attempts, due, at, rule_version) VALUES ($1, $2, $3, 0, '', 'order', $4, $5, $6, 1,
			CASE WHEN $5 = 'failed' THEN $7::timestamptz END, $7, 1)`, ids[i], o.run, sources[o.source],
			fmt.Sprint(i), o.status, o.reason, at.Add(time.Duration(i)*time.Hour))
	}
	operator := db.Role(t, "operator")
	hour := func(n int) events.Instant { return events.Instant{Time: at.Add(time.Duration(n) * time.Hour)} }
	failed := operations.FailureGroup{Pattern: "no luck with in_…", Status: "failed",
		Count: 2, Example: "no luck with in_2Bbbbbb", ExampleEvent: ids[1], FirstAt: hour(0), LastAt: hour(1),
		NextDue: hour(0), Sources: []string{"shop", "stripe"}, EventTypes: []string{"order.paid"},
		ObjectTypes: []string{"order"}}
	dead := operations.FailureGroup{Pattern: "given up after … attempts: no luck with in_…", Status: "dead",
		Count: 1, ExampleEvent: ids[2],
		Example: "given up after 9 attempts: no luck with in_3Cccccc", FirstAt: hour(2), LastAt: hour(2),
		Sources: []string{"stripe"}, EventTypes: []string{"order.paid"}, ObjectTypes: []string{"order"}}
	both := operations.FailureGroup{Pattern: "no luck with in_… and with in_…", Status: "failed", Count: 1,
		Example: "no luck with in_5Eeeeee and with in_6Ffffff", ExampleEvent: ids[5], FirstAt: hour(5),
		LastAt: hour(5), NextDue: hour(5), Sources: []string{"shop"}, EventTypes: []string{"order.paid"},
		ObjectTypes: []string{"order"}}
	for name, c := range map[string]struct {
		p        operations.FailureParams
		want     []operations.FailureGroup
		examined int
	}{
		"all":  {operations.FailureParams{}, []operations.FailureGroup{failed, both, dead}, 4},
		"dead": {operations.FailureParams{Status: "dead"}, []operations.FailureGroup{dead}, 2},
		"failed, types": {operations.FailureParams{Status: "failed", Type: "order.*", ObjectType: "order"},
			[]operations.FailureGroup{failed, both}, 4},
		"other type": {operations.FailureParams{Type: "invoice.*"}, []operations.FailureGroup{}, 4},
		"since": {operations.FailureParams{Since: operations.At(time.Now().Add(time.Hour))},
			[]operations.FailureGroup{}, 0},
	} {
		got, err := operations.FailuresByReason(t.Context(), operator, c.p)
		testkit.Must(t, err)
		testkit.Equal(t, name, &operations.FailureGroups{Items: c.want, Examined: c.examined}, got)
	}
	for _, g := range []operations.FailureGroup{failed, dead, both} { // its pattern selects exactly the group
		outcomes, err := operations.Outcomes(t.Context(), operator, operations.OutcomeParams{Status: g.Status,
			Pattern: g.Pattern, Run: new(operations.RunNumber)})
		testkit.Must(t, err)
		retry := operations.RetryParams{Status: g.Status, Pattern: g.Pattern}
		params, err := retry.Retry(t.Context(), operator)
		testkit.Must(t, err)
		events, _, err := params.Match(t.Context(), operator, 0, ids[5])
		testkit.Must(t, err)
		if len(outcomes.Items) != g.Count || len(events) != g.Count {
			t.Errorf("%q selects %d outcomes and %d events", g.Pattern, len(outcomes.Items), len(events))
		}
	}
	for _, p := range []operations.FailureParams{{Status: "applied"}, {Source: "none"}} {
		if _, err := operations.FailuresByReason(t.Context(), operator, p); !errors.Is(err, events.ErrInvalid) {
			t.Errorf("%+v: %v", p, err)
		}
	}
}

// Many failures cost what the window may read, whatever the plan.
func TestFailuresByReason_manyFailures_readsBoundedRows(t *testing.T) {
	t.Parallel()
	db, _ := withSources(t)
	db.Exec(t, `INSERT INTO outcomes (event_id, run, source, object, account, object_type, object_id, status, reason,
		attempts, at, rule_version) SELECT g, 0, 1, 0, '', 'order', '', CASE g % 2 WHEN 0 THEN 'dead'
			ELSE 'applied' END, 'order ' || g || ' has no id', 1, now(), 1 FROM generate_series(1, 60000) g`)
	for _, name := range []string{"failuresSQL", "deadSQL"} {
		sql := testkit.Statements("internal/apply")[name]
		db.WithEachPlan(t, func(plan string, tx pgx.Tx) {
			read := func() (n int) {
				testkit.Must(t, tx.QueryRow(t.Context(), `SELECT sum(seq_tup_read + idx_tup_fetch)::int
					FROM pg_stat_xact_user_tables WHERE relname = 'outcomes' OR relname LIKE 'events%'`).Scan(&n))
				return n
			}
			before := read()
			_, err := tx.Exec(t.Context(), sql, 0, 10_000, 400, nil, nil, nil, nil)
			testkit.Must(t, err)
			if n := read() - before; n < 10_000 || n > 11_000 {
				t.Errorf("%s, %s: %d rows were read", name, plan, n)
			}
		})
	}
	found, err := operations.FailuresByReason(t.Context(), db.Role(t, "operator"), operations.FailureParams{})
	testkit.Must(t, err)
	if len(found.Items) != 1 || found.Items[0].Count != 10_000 || found.Items[0].ExampleEvent != 60_000 ||
		!found.Truncated || found.Examined != 10_000 {
		t.Errorf("%+v", found)
	}
}
