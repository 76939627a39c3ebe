package windows_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/changes"
	"github.com/postern-gateway/postern/internal/effects/jobs/windows"
	"github.com/postern-gateway/postern/internal/effects/rules"
	"github.com/postern-gateway/postern/internal/postgres"
)

// invoices is the summary of the invoices of a customer.
var invoices = &rules.Summary{Type: "invoice", By: "customer", Sums: map[string]string{"total": "amount.due"},
	Fields: map[string]string{"n": "number"}}

// perCustomer returns an hourly rule about customers whose keys contain the summary.
func perCustomer(t testing.TB, length time.Duration) *rules.Rule {
	t.Helper()
	scope := rules.Scope{Window: true, Summary: invoices}
	r := rule(t, "x", "", length)
	var err error
	r.Key, err = rules.CompileText(`{{ object.id }} {{ window.end }} {{ summary.count }} {{ summary.sums.total }}`+
		`{{ summary.truncated ? " truncated after " + string(len(summary.objects)) : "" }}`, scope)
	must(t, err)
	r.When, err = rules.Compile(`summary.count > 0`, scope, true)
	must(t, err)
	r.Type, r.Summary = "customer", invoices
	return r
}

// change commits changes of objects, and gives them their numbers.
func (b *fixture) change(t testing.TB, objects func()) {
	t.Helper()
	b.db.Exec(t, `CREATE TABLE IF NOT EXISTS before AS SELECT object_type, object_id, updated_at FROM objects
		WITH NO DATA`)
	b.db.Exec(t, `DELETE FROM before; INSERT INTO before SELECT object_type, object_id, updated_at FROM objects`)
	objects()
	b.db.Exec(t, `INSERT INTO outbox (sources, accounts, types, ids, created_at)
		SELECT array_agg(source), array_agg(account), array_agg(object_type), array_agg(object_id), clock_now()
		FROM objects o WHERE NOT EXISTS (SELECT FROM before b WHERE b.object_type = o.object_type
		AND b.object_id = o.object_id AND b.updated_at = o.updated_at) HAVING count(*) > 0`)
	for more := true; more; {
		var err error
		_, more, err = changes.Number(t.Context(), b.pool)
		must(t, err)
	}
}

// invoice stores an invoice of a customer.
func (b *fixture) invoice(t testing.TB, id, customer, amount, is string) {
	t.Helper()
	b.put(t, "invoice", id, fmt.Sprintf(`{"customer": %q, "number": %q, "amount": {"due": %s}}`, customer, "n_"+id,
		amount), is)
}

// A window summarizes the objects that changed in it. A later change belongs to the next window,
// also one that is committed late. Objects that are deleted or uncertain, or belong to another
// customer meanwhile, do not count.
func TestSummary_changes_belongToTheirWindow(t *testing.T) {
	t.Parallel()
	b, a := setupRule(t, 2, perCustomer(t, 0))
	b.change(t, func() {
		for _, id := range []string{"ada", "bob", "cy"} {
			b.put(t, "customer", id, `{}`, "certain")
		}
		b.invoice(t, "1", "ada", "10", "certain")
		b.invoice(t, "2", "ada", `"0.25"`, "certain")
		b.invoice(t, "3", "ada", "null", "certain")
		b.invoice(t, "4", "bob", "7", "certain")
		b.invoice(t, "5", "ada", "100", "deleted")
		b.invoice(t, "6", "ada", "100", "ambiguous")
		b.invoice(t, "7", "ada", "100", "bare")
		b.invoice(t, "8", "nobody", "100", "certain")
		b.put(t, "receipt", "9", `{"customer": "ada", "amount": {"due": 100}}`, "certain")
	})
	b.setClock(t, "11:00:01")
	b.change(t, func() {
		b.invoice(t, "10", "ada", "1000", "certain")
		b.invoice(t, "4", "cy", "7", "certain") // was bob's
	})
	tick(t, a)
	wantPlanned(t, b.planned(t), "ada 11 3 10.25")
	b.setClock(t, "10:59:59") // a transaction that began before the window was evaluated
	b.change(t, func() { b.invoice(t, "11", "ada", "2000", "certain") })
	b.setClock(t, "12:00:00")
	b.change(t, func() {
		b.invoice(t, "12", "ada", "1", "certain")
		b.invoice(t, "6", "ada", "100", "certain")
	})
	tick(t, a)
	wantPlanned(t, b.planned(t)[1:], "ada 12 2 3000", "cy 12 1 7")
	b.tickAt(t, a, "15:00:00") // three windows were missed
	wantPlanned(t, b.planned(t)[3:], "ada 13 2 101")
	wantPlanned(t, b.db.QueryStrings(t, `SELECT template_data->>'summary' FROM effects WHERE key LIKE 'ada%T12%'`),
		`{"sums": {"total": 3000}, "type": "invoice", "count": 2, `+
			`"objects": [{"n": "n_10", "id": "10"}, {"n": "n_11", "id": "11"}], "truncated": false}`)
	b.setClock(t, "14:59:59") // late, before any later change
	b.change(t, func() { b.invoice(t, "13", "bob", "5", "certain") })
	b.tickAt(t, a, "16:00:00")
	wantPlanned(t, b.planned(t)[4:], "bob 16 1 5")
	a = b.newScheduler(2, perCustomer(t, 0)) // maintains at once
	tick(t, a)
	wantPlanned(t, b.db.QueryStrings(t, `SELECT count(*)::text FROM effect_window_changes`), "0")
}

// Changes that were collected for another summary do not count. A text that is too long for an id,
// and a listed value that is too large, prevent nothing.
func TestSummary_editedRule_collectsAgain(t *testing.T) {
	t.Parallel()
	edited := perCustomer(t, 0)
	edited.Summary = &rules.Summary{Type: "receipt", By: invoices.By, Sums: invoices.Sums, Fields: invoices.Fields}
	b, _ := setupRule(t, 2, edited)
	b.change(t, func() {
		b.put(t, "customer", "ada", `{}`, "certain")
		b.invoice(t, "1", "ada", "10", "certain")
		b.invoice(t, "2", strings.Repeat("x", 300), "10", "certain")
		b.put(t, "receipt", "3", `{"customer": "ada", "amount": {"due": 100}}`, "certain")
		b.put(t, "invoice", "4", `{"customer": "ada", "number": "`+strings.Repeat("x", 5000)+`"}`, "certain")
	})
	b.setClock(t, "11:00:01")
	b.db.Exec(t, `UPDATE effect_windows SET window_start = '2026-11-02 10:00+00', window_end = '2026-11-02 11:00+00',
		summary = 'receipt by customer', collected_until = 99, changes_until = 99`) // as the edited rule left it
	b.db.Exec(t, `INSERT INTO effect_window_changes SELECT 'x', $1, 'customer', '', 'ada', '2026-11-02 11:00+00',
		'2026-11-02 10:00+00', number, object_id, 'receipt by customer' FROM changes WHERE object_type = 'receipt'`,
		b.source)
	tick(t, b.newScheduler(2, perCustomer(t, 0)))
	wantPlanned(t, b.planned(t), "ada 11 2 10")
	wantPlanned(t, b.db.QueryStrings(t, `SELECT template_data->'summary'->'objects'->>1 FROM effects`),
		`{"n": null, "id": "4"}`)
	tick(t, b.newScheduler(2, perCustomer(t, 0))) // maintains at once
	wantPlanned(t, b.db.QueryStrings(t, `SELECT count(*)::text FROM effect_window_changes`), "0")
}

// Windows that are longer than the interval overlap, also in their summaries.
func TestSummary_overlappingWindows_repeatChanges(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.setClock(t, "09:30")
	a := b.newScheduler(2, perCustomer(t, 2*time.Hour))
	tick(t, a)
	b.change(t, func() {
		b.put(t, "customer", "ada", `{}`, "certain")
		b.invoice(t, "1", "ada", "10", "certain")
	})
	for _, at := range []string{"10:00:01", "11:00:01", "12:00:01"} {
		b.tickAt(t, a, at)
	}
	wantPlanned(t, b.planned(t), "ada 10 1 10", "ada 11 1 10")
}

// A window waits until each change before its end has a number.
func TestSummary_changeWithoutNumber_delaysTheWindow(t *testing.T) {
	t.Parallel()
	b, a := setupRule(t, 2, perCustomer(t, 0))
	b.change(t, func() { b.put(t, "customer", "ada", `{}`, "certain") })
	b.invoice(t, "1", "ada", "10", "certain")
	b.db.Exec(t, `INSERT INTO outbox (sources, accounts, types, ids, created_at)
		SELECT ARRAY[source], ARRAY[account], ARRAY[object_type], ARRAY[object_id], clock_now() FROM objects
		WHERE object_type = 'invoice'`)
	b.tickAt(t, a, "11:00:01")
	wantPlanned(t, b.planned(t))
	b.change(t, func() {})
	tick(t, a)
	wantPlanned(t, b.planned(t), "ada 11 1 10")
}

// The list of a summary has 1,000 objects, and says that there are more. Count and sums are
// complete.
func TestSummary_manyObjects_listIsCut(t *testing.T) {
	t.Parallel()
	b, a := setupRule(t, 10, perCustomer(t, 0))
	b.change(t, func() {
		b.db.Exec(t, insertInvoicesSQL, b.source, 1001, 1)
		b.db.Exec(t, insertInvoicesSQL, b.source, 1000, 2)
		for _, id := range []string{"cus_1", "cus_2", "cus_3"} {
			b.put(t, "customer", id, `{}`, "certain")
		}
		b.invoice(t, "1", "cus_3", "5", "certain")
	})
	b.tickAt(t, a, "11:00:01")
	wantPlanned(t, b.planned(t), "cus_1 11 1001 2002 truncated after 1000", "cus_2 11 1000 2000", "cus_3 11 1 5")
}

// insertInvoicesSQL inserts invoices of customer cus_$3, or, if it is 0, three of each customer.
const insertInvoicesSQL = `
INSERT INTO objects (source, account, object_type, object_id, version_final, version_at, version_seen, version_rank,
	tied_states, overflow, time_from, time_to, refetch_after, ambiguous, deleted, state_hash, exact_hash,
  state, sanitized, last_event_id, revision, rule_version, created_at, updated_at)
SELECT $1, '', 'invoice', 'in_' || $3::int || '_' || n, false, 1, 0, 0, '[]', false, 0, 0, 0, false, false, '', '',
	jsonb_build_object('customer', 'cus_' || CASE $3 WHEN 0 THEN (n + 2) / 3 ELSE $3 END, 'number', n,
	'amount', '{"due": 2}'::jsonb, 'text', repeat('x', 500)), false, 1, 1, 1, clock_now(), clock_now()
FROM generate_series(1, $2::int) n`

// A value that is not a number makes the effect of its customer need review, and no other.
func TestSummary_valueIsNoNumber_needsReview(t *testing.T) {
	t.Parallel()
	b, a := setupRule(t, 10, perCustomer(t, 0))
	b.change(t, func() {
		for i, amount := range []string{`"1,50"`, `2`, `true`, `[1]`} {
			id := fmt.Sprint(i)
			b.put(t, "customer", id, `{}`, "certain")
			b.invoice(t, id, id, amount, "certain")
		}
	})
	b.tickAt(t, a, "11:00:01")
	wantPlanned(t, b.planned(t), "1 11 1 2")
	const reason = "summary.sums.total: 1 values of changed objects are not numbers: correct the path amount.due"
	wantPlanned(t, b.db.QueryStrings(t, `SELECT object_id || ' ' || reason FROM effects WHERE state = 'needs_review'
		ORDER BY 1`), "0 "+reason, "2 "+reason, "3 "+reason)
}

// A customer that is ambiguous gets the summary of the window when it is certain.
func TestSummary_uncertainObject_keepsItsChanges(t *testing.T) {
	t.Parallel()
	b, a := setupRule(t, 10, perCustomer(t, 0))
	b.change(t, func() {
		b.put(t, "customer", "ada", `{}`, "ambiguous")
		b.invoice(t, "1", "ada", "10", "certain")
	})
	b.tickAt(t, a, "11:00:01")
	b.change(t, func() { b.invoice(t, "2", "ada", "20", "certain") })
	b.tickAt(t, b.newScheduler(10, perCustomer(t, 0)), "12:00:01")
	wantPlanned(t, b.planned(t))
	b.change(t, func() { b.put(t, "customer", "ada", `{}`, "certain") })
	tick(t, b.newScheduler(10, perCustomer(t, 0)))
	wantPlanned(t, b.planned(t), "ada 11 1 10", "ada 12 1 20")
	wantPlanned(t, b.db.QueryStrings(t, `SELECT count(*)::text FROM effect_window_changes`), "0")
}

// A process may die before or after each commit of a window. Other processes continue it with the
// same changes, and changes that are committed meanwhile belong to the next window.
func TestSummary_processDiesAtEachCommit_sameSummaries(t *testing.T) {
	t.Parallel()
	r := perCustomer(t, 0)
	b, _ := setupRule(t, 3, r)
	const customers = 7
	b.change(t, func() {
		for i := range customers {
			id := fmt.Sprintf("cus_%d", i)
			b.put(t, "customer", id, `{}`, "certain")
			for n := range 3 {
				b.invoice(t, fmt.Sprintf("%s_%d", id, n), id, "1", "certain")
			}
		}
	})
	b.failEveryOtherPage(t)
	done := func(window string) bool {
		return b.db.QueryStrings(t, `SELECT (window_end IS NULL AND decided_at = '2026-11-02 `+window+`:00+00')::text
			FROM effect_windows`)[0] == "true"
	}
	run := func(window, clock string, meanwhile func(n int)) {
		b.setClock(t, clock)
		for n := 0; !done(window); n++ {
			if n > 60 {
				t.Fatalf("makes no progress: %s", b.log)
			}
			a := b.newScheduler(3, r)
			a.Settings.Every, a.Settings.PageChanges = 0, 4 // one transaction in each tick, then it dies
			if err := a.Tick(t.Context()); err != nil && !strings.Contains(err.Error(), "dies") {
				t.Fatal(err)
			}
			meanwhile(n)
		}
	}
	run("11", "11:00:01", func(n int) {
		b.change(t, func() { b.invoice(t, fmt.Sprint("late_", n), fmt.Sprintf("cus_%d", n%customers), "1", "certain") })
	})
	var want []string
	for i := range customers {
		want = append(want, fmt.Sprintf("cus_%d 11 3 3", i))
	}
	wantPlanned(t, b.planned(t), want...)
	late := b.db.QueryStrings(t, `SELECT state->>'customer' || ' 12 ' || count(*) || ' ' || count(*) FROM objects
		WHERE object_id LIKE 'late_%' GROUP BY state->>'customer' ORDER BY 1`)
	if len(late) < customers {
		t.Errorf("too few late changes: %q", late)
	}
	run("12", "12:00:01", func(int) {})
	wantPlanned(t, b.planned(t)[customers:], late...)
}

// No statement about summaries reads a large table completely.
func TestSummary_largeTables_plansUseIndexes(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.db.Exec(t, `ALTER TABLE effect_window_changes SET (autovacuum_enabled = false)`)
	b.db.Exec(t, `ANALYZE`) // between windows, when the table is empty
	b.db.Exec(t, insertInvoicesSQL, b.source, 30_000, 0)
	b.db.Exec(t, `INSERT INTO changes SELECT source, account, object_type, object_id, row_number() OVER (), updated_at
		FROM objects`)
	b.db.Exec(t, `INSERT INTO effect_window_changes SELECT 'hourly', source, 'customer', '', state->>'customer',
		'2026-11-02 11:00+00', '2026-11-02 10:00+00', row_number() OVER (), object_id,
		'invoice by customer' FROM objects`)
	b.db.Exec(t, `INSERT INTO effect_windows (rule, source, object_type, cron, time_zone, decided_at)
		SELECT 'other', 1, 'customer', n::text, '', now() FROM generate_series(1, 2000) n`)
	start, end := time.Date(2026, 11, 2, 10, 0, 0, 0, time.UTC), time.Date(2026, 11, 2, 11, 0, 0, 0, time.UTC)
	page := func(more ...any) []any {
		var accounts, ids []string
		var starts, ends []time.Time
		for n := range 100 {
			accounts, ids = append(accounts, ""), append(ids, fmt.Sprint("cus_", n))
			starts, ends = append(starts, start), append(ends, end)
		}
		return append([]any{"hourly", b.source, "customer", accounts, ids, starts, ends,
			invoices.Identity()}, more...)
	}
	fullScan := regexp.MustCompile(`Seq Scan on (objects|changes|effect_window_changes)|Rows Removed by .*: \d{4,}`)
	b.db.WithEachPlan(t, func(name string, tx pgx.Tx) {
		for sql, args := range map[string][]any{
			windows.CollectSQL: {int64(10_000), int64(20_000), 2000, "hourly", b.source, "customer", start, end,
				"invoice", "customer", 255, invoices.Identity()},
			windows.ListedSQL: page(1000, 2000),
			windows.SummarySQL: page(1000, "invoice", "customer", []string{"total"}, []string{"amount.due"},
				[]string{"n"}, []string{"number"}, 1000, 4096),
			windows.DeleteChangesSQL: page(),
		} {
			plan, err := postgres.Collect(t.Context(), tx, pgx.RowTo[string], "EXPLAIN (ANALYZE, TIMING OFF) "+sql,
				args...)
			must(t, err)
			if text := strings.Join(plan, "\n"); fullScan.MatchString(text) {
				t.Errorf("%s:\n%s", name, text)
			}
		}
	})
}
