package reconcile_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/postern-gateway/postern/internal/reconcile"
)

// What is owed and what is proven is measured, and is not known while the database does not answer.
func TestOwedIsMeasured(t *testing.T) {
	t.Parallel()
	b := newWorld(t, 84, eventTime)
	b.DB.Exec(t, `INSERT INTO hints (source, account, object_type, object_id, reason, made_at, due, after)
		SELECT $1, '', 'thing', d.id, 'in doubt', now(), now() + d.due, 1 FROM (VALUES ('a', interval '-1 hour'), ('b', interval '-1 minute'), ('c', interval '1 hour')) d(id, due)`, b.Source)
	b.DB.Exec(t, `INSERT INTO hints (source, account, object_type, object_id, reason, made_at, due, after) VALUES ($1, '', 'thing', 'd', 'in doubt', now(), 'infinity', 1)`, b.Source)
	b.DB.Exec(t, `INSERT INTO watermarks (source, account, what, since, until, run, at) VALUES
		($1, '', 'events', to_timestamp(0), to_timestamp(2000), 1, now()), ($1, 'other', 'events', to_timestamp(0), to_timestamp(1000), 1, now()), ($1, '', 'run 7', to_timestamp(0), to_timestamp(7), 7, now())`, b.Source)
	b.DB.Exec(t, `INSERT INTO runs (run, job, asked, who, reason, detail, counts, status, made_at, updated_at, ended_at) OVERRIDING SYSTEM VALUE
		SELECT n, 'reconcile', jsonb_build_object('dry_run', n = 4), 'test', '', '', '{}', 'done', now(), now(), now() FROM generate_series(1, 6) n`)
	// Of the first account the newest sweep that is done is the third, since the fourth is a dry run and the fifth is under way; the sixth is another account's.
	b.DB.Exec(t, `INSERT INTO sweeps (run, source, account, object_type, phase, began, updated_at, missing, behind, ahead, different, ghosts, mended, remaining, hidden, checked)
		SELECT n, $1, CASE n WHEN 6 THEN 'other' ELSE '' END, 'thing', CASE n WHEN 5 THEN 'list' ELSE 'done' END, now(), now(), n, 10 * n, 100 * n, 1000 * n, 10000 * n, 100000 * n, 1000000 * n, 10000000 * n, 5 * n
		FROM generate_series(1, 6) n`, b.Source)
	b.DB.Exec(t, `INSERT INTO sweeps (run, source, account, object_type, phase, began, updated_at, remaining) VALUES (2, $1, '', 'widget', 'done', now(), now(), 7), (3, 99, '', 'gadget', 'done', now(), now(), 8)`, b.Source)
	// The day before the last that counts is over, and the account that has the most calls tells.
	b.DB.Exec(t, `INSERT INTO budgets (source, account, tokens, refilled_at, blocked_until, throttles, in_flight, calls)
		SELECT $1, a.account, 1, now(), now(), 0, '{}', jsonb_build_object(n.today - 31, 100 * a.calls, n.today - 30, a.calls, n.today, 7)
		FROM (VALUES ('', 5), ('other', 4)) a(account, calls), (SELECT floor(extract(epoch FROM now()) / 86400)::int AS today) n`, b.Source)
	reg := prometheus.NewRegistry()
	o, err := reconcile.NewOwed(reg, b.sources())
	if err != nil {
		t.Fatal(err)
	}
	read := func() map[string]float64 { return gauges(t, reg) }
	if err := o.Read(t.Context(), b.Pool); err != nil {
		t.Fatal(err)
	}
	got := read()
	if waits := got["postern_hints_waiting_seconds sim"]; waits < 3600 || waits > 3600+600 {
		t.Errorf("the oldest look is due for %v s", waits)
	}
	delete(got, "postern_hints_waiting_seconds sim")
	if diff := cmp.Diff(map[string]float64{"postern_api_monthly_calls sim": 12, "postern_api_monthly_limit_calls sim": 0, "postern_accounts_left_out sim excepted": 0, "postern_accounts_left_out sim disconnected": 0, "postern_hints sim": 4, "postern_hints_parked sim": 1, "postern_proven_until_timestamp_seconds sim events": 1000,
		"postern_drift_objects missing sim thing": 9, "postern_drift_objects behind sim thing": 90, "postern_drift_objects ahead sim thing": 900, "postern_drift_objects different sim thing": 9000,
		"postern_drift_objects ghost sim thing": 90000, "postern_drift_hidden_objects sim thing": 90000000, "postern_drift_checked_objects sim thing": 45, "postern_drift_mended_objects sim thing": 900000, "postern_drift_left_objects sim thing": 9000000,
		"postern_drift_objects missing sim widget": 0, "postern_drift_objects behind sim widget": 0, "postern_drift_objects ahead sim widget": 0, "postern_drift_objects different sim widget": 0,
		"postern_drift_objects ghost sim widget": 0, "postern_drift_hidden_objects sim widget": 0, "postern_drift_checked_objects sim widget": 0, "postern_drift_mended_objects sim widget": 0, "postern_drift_left_objects sim widget": 7}, got); diff != "" {
		t.Error(diff)
	}
	pool := b.DB.Role(t, "processor")
	pool.Close()
	if err := o.Read(t.Context(), pool); err == nil {
		t.Error("read from no database")
	}
	for name, v := range read() {
		if name != "postern_api_monthly_limit_calls sim" && !math.IsNaN(v) {
			t.Error(fmt.Sprint(name, " is ", v, " of a database that does not answer"))
		}
	}
}

// gauges are all that a registry has, by name and labels.
func gauges(t *testing.T, reg *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := f.GetName()
			for _, l := range m.GetLabel() {
				name += " " + l.GetValue()
			}
			got[name] = m.GetGauge().GetValue()
		}
	}
	return got
}
