package windows_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/postern-gateway/postern/internal/effects"
	"github.com/postern-gateway/postern/internal/effects/rules"
	"github.com/postern-gateway/postern/internal/effects/windows"
	"github.com/postern-gateway/postern/internal/timetable"
)

// A rule that always has something to do keeps no other from being asked, nor its own removal from being seen.
func TestBusyRulesLeaveTurns(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.at(t, "10:30")
	b.invoices(t, 3)
	busy, hourly := rule(t, "busy "+perWindow, "", 0), rule(t, perWindow, "", 0)
	times, err := timetable.Parse("* * * * *", "UTC")
	if err != nil {
		t.Fatal(err)
	}
	busy.Name, busy.Schedule = "busy", &rules.Schedule{Cron: "* * * * *", TimeZone: "UTC", Times: times, CatchUp: 100}
	a := b.asker(1, busy, hourly)
	tick(t, a)
	pages := 0
	count := func(rule string) string {
		return b.db.Rows(t, `SELECT count(*)::text FROM effects WHERE rule = '`+rule+`'`)[0]
	}
	a.Planned = func([]string) {
		switch pages++; pages {
		case 3:
			b.at(t, "11:00:01") // the other rule is due while the busy one has 28 windows more
		case 30:
			a.Replace(effects.NewRules([]*rules.Rule{hourly}))
		}
	}
	b.at(t, "10:32:01")
	tick(t, a)
	if all, busily := count("hourly"), count("busy"); all != "3" || busily != "27" {
		t.Errorf("%s effects of the rule that became due meanwhile, and %s of one that was taken out behind 30 pages", all, busily)
	}
}

// What is owed of many objects gets done by a rule that takes long about each, in transactions that end.
func TestOwedBySlowRulesGetsDone(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.at(t, "10:30")
	a := b.asker(4, rule(t, perWindow, "", 0))
	a.Settings.Spend = 0
	tick(t, a)
	for i := range 6 {
		b.object(t, fmt.Sprintf("in_%d", i), `{}`, "ambiguous")
	}
	b.at(t, "11:00")
	tick(t, a)
	b.db.Exec(t, `UPDATE objects SET ambiguous = false`)
	var left []string
	a.Planned = func([]string) {
		left = append(left, b.db.Rows(t, `SELECT count(*)::text FROM effect_window_waits`)[0])
	}
	tick(t, a)
	wants(t, left, "5", "4", "3", "2", "1", "0")
	wants(t, b.planned(t), "in_0 10 11", "in_1 10 11", "in_2 10 11", "in_3 10 11", "in_4 10 11", "in_5 10 11")
}

// A page is of so many bytes at most, in a window and of what is owed of one, and of one object at least.
func TestPagesOfLargeObjects(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.at(t, "10:30")
	a := b.asker(100, rule(t, perWindow, "", 0))
	a.Settings.Bytes = 5000
	tick(t, a)
	large := func() string { // of random figures, which no compression makes small
		return b.db.Rows(t, `SELECT jsonb_build_object('n', string_agg(md5(random()::text), ''))::text FROM generate_series(1, 100)`)[0]
	}
	for _, id := range []string{"in_1", "in_2", "in_3"} {
		b.object(t, id, large(), "certain")
		b.object(t, id+"_doubt", large(), "ambiguous")
	}
	var pages []string
	a.Planned = func([]string) { pages = append(pages, b.db.Rows(t, `SELECT count(*)::text FROM effects`)[0]) }
	b.at(t, "11:00")
	tick(t, a)
	wants(t, pages, "1", "2", "3")
	b.db.Exec(t, `UPDATE objects SET ambiguous = false`)
	tick(t, a)
	wants(t, pages, "1", "2", "3", "5", "6") // two of them go beyond the bound
	if n := len(b.planned(t)); n != 6 {
		t.Errorf("%d effects", n)
	}
}

// What was redacted is there, and nothing is told of it: rules are not asked about it, as about what is gone.
func TestWindowsLeaveOutWhatWasRedacted(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.at(t, "10:30")
	a := b.asker(2, rule(t, perWindow, "", 0))
	tick(t, a)
	b.object(t, "in_1", `{"n": 1}`, "certain")
	b.object(t, "in_2", `{"n": 1}`, "certain")
	b.object(t, "in_3", `{"n": 1}`, "ambiguous")
	b.at(t, "11:00")
	tick(t, a)
	b.db.Exec(t, `UPDATE objects SET state = NULL, tie_set = '[]', ambiguous = false WHERE object_id <> 'in_2'`) // as a redaction does
	b.at(t, "12:00")
	tick(t, a)
	wants(t, b.db.Rows(t, `SELECT state || ' ' || object_id || ' ' || (facts->'new'->>'n') FROM effects ORDER BY effect`), "planned in_1 1", "planned in_2 1", "planned in_2 1")
}

// An object that stays in doubt is owed as many windows as a rule makes up for, and what is given up is told.
func TestDoubtIsOwedAsFarAsIsMadeUpFor(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.at(t, "00:30")
	each := rule(t, perWindow, "", 0)
	each.Schedule.CatchUp = 2
	a := b.asker(10, each)
	tick(t, a)
	b.object(t, "in_1", `{}`, "ambiguous")
	b.object(t, "in_2", `{}`, "bare")
	for _, at := range []string{"01:00", "02:00", "03:00", "04:00", "05:00"} {
		b.at(t, at)
		tick(t, a)
	}
	wants(t, b.db.Rows(t, `SELECT object_id || ' ' || extract(hour FROM window_end) FROM effect_window_waits ORDER BY 1`), "in_1 4", "in_1 5", "in_2 4", "in_2 5")
	if log := b.log.String(); strings.Count(log, "windows of objects that are in doubt passed over") != 3 || !strings.Contains(log, "windows=2 first_end=2026-11-02T03:00:00.000Z") {
		t.Errorf("told %s", log)
	}
	b.object(t, "in_1", `{}`, "certain")
	tick(t, a)
	wants(t, b.planned(t), "in_1 03 04", "in_1 04 05")
}

// How much a rule waits for is in the metrics.
func TestWaitsAreMeasured(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.at(t, "10:30")
	each := rule(t, perWindow, "", 0)
	tick(t, b.asker(10, each))
	for i := range 3 {
		b.object(t, fmt.Sprintf("in_%d", i), `{}`, "ambiguous")
	}
	b.at(t, "12:00")
	tick(t, b.asker(10, each))
	b.at(t, "12:30")
	reg := prometheus.NewPedanticRegistry()
	metrics, err := windows.NewMetrics(reg)
	if err != nil {
		t.Fatal(err)
	}
	a := b.asker(10)
	a.Metrics = metrics
	a.Replace(effects.NewRules([]*rules.Rule{each}))
	tick(t, a)
	wants(t, measured(t, reg), "postern_effect_window_behind_seconds 0", "postern_effect_window_waits 6", "postern_effect_window_waits_seconds 5400")
}

// measured are the metrics of the one rule.
func measured(t *testing.T, reg *prometheus.Registry) (all []string) {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if len(f.GetMetric()) != 1 {
			t.Errorf("%s has %d series", f.GetName(), len(f.GetMetric()))
		}
		all = append(all, fmt.Sprint(f.GetName(), " ", f.GetMetric()[0].GetGauge().GetValue()))
	}
	return all
}

// What wants the key of another account waits for a person once, and not in each window.
func TestKeysOfOtherAccountsAreToldOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.at(t, "10:30")
	a := b.asker(10, rule(t, "welcome:{{ new.id }}", "", 0))
	tick(t, a)
	b.object(t, "in_1", `{"id": "in_1"}`, "certain")
	b.db.Exec(t, `INSERT INTO objects SELECT (jsonb_populate_record(o, '{"account": "acct_2"}')).* FROM objects o`)
	for _, at := range []string{"11:00", "12:00", "14:00"} {
		b.at(t, at)
		tick(t, a)
	}
	wants(t, b.db.Rows(t, `SELECT account || ' ' || state || ' ' || regexp_replace(key, '[0-9a-f]{32}', 'HASH') FROM effects ORDER BY effect`), " planned welcome:in_1", "acct_2 review hourly:trouble:0:HASH:1")
	if n := strings.Count(b.log.String(), "keys of effects were those of other accounts"); n != 1 {
		t.Errorf("told %d times", n)
	}
}
