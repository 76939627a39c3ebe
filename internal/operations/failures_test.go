package operations_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/operations"
	"github.com/postern-gateway/postern/internal/testkit"
)

func TestFailurePattern_variableParts_areReplaced(t *testing.T) {
	t.Parallel()
	for reason, want := range map[string]string{
		"":                                   "",
		"the body is not JSON":               "the body is not JSON",
		"given up after 9 attempts: no luck": "given up after … attempts: no luck",
		`source "shop" is not in this processor's configuration`: `source "…" is not in this processor's configuration`,
		"a 'b c' of the providers' list":                         "a '…' of the providers' list",
		`unknown field "a\"b" of 'c'`:                            `unknown field "…" of '…'`,
		"invalid character '}' after object key":                 "invalid character '…' after object key",
		"invoice in_1Postern0Jan0001 has no customer":            "invoice in_… has no customer",
		"order 820982911946154508 of my-shop":                    "order … of my-shop",
		"hash 9f86d081884c7d65 differs":                          "hash … differs",
		"id 550e8400-e29b-41d4-a716-446655440000":                "id …",
		"at 2026-01-02T03:04:05.678Z, seen 2026-01-02":           "at …, seen …",
		"no answer from ada.l+x@example.com":                     "no answer from …",
		"dial tcp 10.0.0.7:5432: connection refused":             "dial tcp …: connection refused",
		"took 1.5s, more than 1m0s or 64KiB":                     "took …, more than … or …",
		"position 12,345 of -7":                                  "position … of -…",
		"$.items[3].price: want a number":                        "$.items[…].price: want a number",
		`nothing at "$.items[3].id"`:                             `nothing at "$.items[…].id"`,
		"deadbeef":                                               "deadbeef",
		"a\n  5\ttext":                                           "a\n  …\ttext",
		"“unclosed \"quote 7":                                    "“unclosed \"quote …",
		strings.Repeat("12 ", 3):                                 "… … … ",
	} {
		if got := operations.FailurePattern(reason); got != want {
			t.Errorf("%q: %q, want %q", reason, got, want)
		}
	}
}

// Each line has reasons of one cause; different lines are different causes.
func TestFailurePattern_similarReasons_areGroupedByCause(t *testing.T) {
	t.Parallel()
	causes := map[string]int{}
	for i, reasons := range [][]string{
		{"the API responded 404 for in_1Aaaaaa", "the API responded 404 for in_2Bbbbbb"},
		{"the API responded 500 for in_1Aaaaaa", "the API responded 500 for in_99Ccccccc"},
		{"the API responded with status 429 after 31 ms", "the API responded with status 429 after 7 ms"},
		{"the API responded with status 503 after 31 ms", "the API responded with status 503 after 8 ms"},
		{"GET /v1/x: HTTP 502 in 12ms", "GET /v1/x: HTTP 502 in 3s"},
		{"GET /v1/x: HTTP 504 in 12ms"},
		{"value 7 is out of range (SQLSTATE 22003)", "value 12 is out of range (SQLSTATE 22003)"},
		{"value 7 is out of range (SQLSTATE 22008)"},
		{"$.customer.id is missing", "$.customer.id is missing"},
		{"$.customer.name is missing"},
		{`no text at "$.a.b"`},
		{`no text at "$.a.c"`},
		{"address line1 is missing"},
		{"address line2 is missing"},
		{"signature scheme v1 of sha256"},
		{"signature scheme v0 of sha256"},
		{"exit status 1 after 12 s", "exit status 1 after 13 s"},
		{"exit status 2 after 12 s"},
		{"the server answered 4xx"},
		{"the server answered 5xx"},
	} {
		for _, reason := range reasons {
			pattern := operations.FailurePattern(reason)
			if other, ok := causes[pattern]; ok && other != i {
				t.Errorf("%q has the pattern of another cause: %q", reason, pattern)
			}
			causes[pattern] = i
		}
		if len(causes) != i+1 {
			t.Fatalf("%q have %d patterns: %v", reasons, len(causes)-i, causes)
		}
	}
}

func TestFailuresByReason_outcomes_areGrouped(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	known, err := events.RegisterSources(t.Context(), db.Pool, map[string]string{"stripe": "stripe", "shop": "shopify"})
	must(t, err)
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
	} {
		ids = append(ids, appendEvent(t, db.Pool, known.Number[o.source], fmt.Sprint("k", i)))
		db.Exec(t, `INSERT INTO outcomes (event_id, run, source, object, account, object_type, object_id, status,
			reason, attempts, due, at, rule_version) VALUES ($1, $2, $3, 0, '', 'order', $4, $5, $6, 1,
			CASE WHEN $5 = 'failed' THEN $7::timestamptz END, $7, 1)`, ids[i], o.run, known.Number[o.source],
			fmt.Sprint(i), o.status, o.reason, at.Add(time.Duration(i)*time.Hour))
	}
	operator := db.Role(t, "operator")
	hour := func(n int) events.Instant { return events.Instant{Time: at.Add(time.Duration(n) * time.Hour)} }
	failed := operations.FailureGroup{Pattern: "no luck with in_…", Status: "failed", Failure: "no luck with in_",
		Count: 2, Example: "no luck with in_2Bbbbbb", ExampleEvent: ids[1], FirstAt: hour(0), LastAt: hour(1),
		NextDue: hour(0), Sources: []string{"shop", "stripe"}, EventTypes: []string{"order.paid"},
		ObjectTypes: []string{"order"}}
	dead := operations.FailureGroup{Pattern: "given up after … attempts: no luck with in_…", Status: "dead",
		Failure: "attempts: no luck with in_", Count: 1, ExampleEvent: ids[2],
		Example: "given up after 9 attempts: no luck with in_3Cccccc", FirstAt: hour(2), LastAt: hour(2),
		Sources: []string{"stripe"}, EventTypes: []string{"order.paid"}, ObjectTypes: []string{"order"}}
	for name, c := range map[string]struct {
		p        operations.FailureParams
		want     []operations.FailureGroup
		examined int
	}{
		"all":  {operations.FailureParams{}, []operations.FailureGroup{failed, dead}, 3},
		"dead": {operations.FailureParams{Status: "dead"}, []operations.FailureGroup{dead}, 2},
		"failed, types": {operations.FailureParams{Status: "failed", Type: "order.*", ObjectType: "order"},
			[]operations.FailureGroup{failed}, 3},
		"other type": {operations.FailureParams{Type: "invoice.*"}, []operations.FailureGroup{}, 3},
		"since": {operations.FailureParams{Since: operations.At(time.Now().Add(time.Hour))},
			[]operations.FailureGroup{}, 0},
	} {
		got, err := operations.FailuresByReason(t.Context(), operator, c.p)
		must(t, err)
		want := &operations.FailureGroups{Items: c.want, Examined: c.examined}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
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
	db := testkit.Database(t)
	_, err := events.RegisterSources(t.Context(), db.Pool, map[string]string{"stripe": "stripe"})
	must(t, err)
	db.Exec(t, `INSERT INTO outcomes (event_id, run, source, object, account, object_type, object_id, status, reason,
		attempts, at, rule_version) SELECT g, 0, 1, 0, '', 'order', '', CASE g % 2 WHEN 0 THEN 'dead'
			ELSE 'applied' END, 'order ' || g || ' has no id', 1, now(), 1 FROM generate_series(1, 60000) g`)
	for _, name := range []string{"failuresSQL", "deadSQL"} {
		sql := testkit.Statements("internal/apply")[name]
		db.WithEachPlan(t, func(plan string, tx pgx.Tx) {
			read := func() (n int) {
				must(t, tx.QueryRow(t.Context(), `SELECT sum(seq_tup_read + idx_tup_fetch)::int
					FROM pg_stat_xact_user_tables WHERE relname = 'outcomes' OR relname LIKE 'events%'`).Scan(&n))
				return n
			}
			before := read()
			_, err := tx.Exec(t.Context(), sql, 0, 10_000, 400, nil, nil, nil, nil)
			must(t, err)
			if n := read() - before; n < 10_000 || n > 11_000 {
				t.Errorf("%s, %s: %d rows were read", name, plan, n)
			}
		})
	}
	found, err := operations.FailuresByReason(t.Context(), db.Role(t, "operator"), operations.FailureParams{})
	must(t, err)
	if len(found.Items) != 1 || found.Items[0].Count != 10_000 || found.Items[0].ExampleEvent != 60_000 ||
		!found.Truncated || found.Examined != 10_000 {
		t.Errorf("%+v", found)
	}
}
