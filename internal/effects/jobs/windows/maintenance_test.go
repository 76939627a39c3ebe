package windows_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/postern-gateway/postern/internal/effects"
	"github.com/postern-gateway/postern/internal/effects/jobs/windows"
	"github.com/postern-gateway/postern/internal/effects/rules"
)

// tickEachMinute runs a tick at each of some minutes of the database's clock, and returns the time
// after them.
func (b *fixture) tickEachMinute(t *testing.T, rules []*rules.Rule, from string, minutes int) string {
	t.Helper()
	a := b.newScheduler(10, rules...)
	a.Settings.AbsentAfter = 10 * time.Minute
	at, err := time.Parse(time.TimeOnly, from)
	must(t, err)
	for range minutes {
		at = at.Add(time.Minute)
		b.setClock(t, at.Format(time.TimeOnly))
		a.Replace(effects.NewRules(rules))
		tick(t, a)
	}
	return at.Format(time.TimeOnly)
}

// A rule that was absent for long while processors ran starts with its next window. Its open window
// and its deferred objects are dropped. A rule that was absent for a moment, or while no processor
// ran, continues.
func TestRestart_ruleBackInConfiguration(t *testing.T) {
	t.Parallel()
	nextWindow, allWindows := []string{"in_1 10 11", "in_1 13 14", "in_2 13 14"}, []string{"in_1 10 11", "in_2 10 11",
		"in_1 11 12", "in_2 11 12", "in_1 12 13", "in_2 12 13", "in_1 13 14", "in_2 13 14"}
	for name, c := range map[string]struct {
		others  bool
		without int
		planned []string
		waits   string
	}{
		"long":                       {true, 12, nextWindow, "1"},
		"long, without another rule": {false, 12, nextWindow, "1"},
		"for a moment":               {true, 8, allWindows, "4"},
		"while no processor ran":     {true, 0, allWindows, "4"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.setClock(t, "10:30:00")
			each := rule(t, keyPerWindow, "", 0)
			var others []*rules.Rule
			if c.others {
				other := rule(t, "x", "false", 0)
				other.Name = "other"
				others = append(others, other)
			}
			b.tickEachMinute(t, []*rules.Rule{each}, "10:30:00", 1)
			b.putObject(t, "in_0", `{}`, "ambiguous")
			b.putObject(t, "in_1", `{}`, "certain")
			b.putObject(t, "in_2", `{}`, "certain")
			b.setClock(t, "11:00:01")
			ctx, die := context.WithCancel(t.Context())
			a := b.newScheduler(2, each) // it dies in the middle of the window
			a.NotifyDestinations = func([]string) { die() }
			_ = a.Tick(ctx)
			b.tickEachMinute(t, others, "12:00:00", c.without)
			b.tickEachMinute(t, []*rules.Rule{each}, "13:10:00", 1)
			b.tickEachMinute(t, []*rules.Rule{each}, "14:00:00", 1)
			wantPlanned(t, b.planned(t), c.planned...)
			wantPlanned(t, b.db.QueryStrings(t, `SELECT count(*)::text FROM effect_window_waits`), c.waits)
			logged := strings.Contains(b.log.String(), `rule=hourly decided_until=2026-11-02T10:`) &&
				strings.Contains(b.log.String(), "abandoned_window_end=2026-11-02T11:00:00.000Z")
			if logged != (len(c.planned) == 3) {
				t.Errorf("logged %s", b.log)
			}
		})
	}
}

// A rule with a new schedule starts at the current time. If the old schedule comes back, its missed
// windows are not evaluated later, and its deferred objects remain.
func TestRestart_scheduleChangedBack(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.setClock(t, "10:30:00")
	each, other := rule(t, keyPerWindow, "", 0), ruleAt(t, "30 * * * *", keyPerWindow)
	b.putObject(t, "in_1", `{}`, "ambiguous")
	b.tickEachMinute(t, []*rules.Rule{each}, "10:50:00", 11) // evaluates the window of 11:00
	b.tickEachMinute(t, []*rules.Rule{other}, "11:20:00", 12)
	b.tickEachMinute(t, []*rules.Rule{other}, "14:00:00", 1)
	b.tickEachMinute(t, []*rules.Rule{each}, "14:10:00", 2)
	b.putObject(t, "in_1", `{}`, "certain")
	b.tickEachMinute(t, []*rules.Rule{each}, "14:59:00", 1)
	wantPlanned(t, b.planned(t), "in_1 14 15", "in_1 10 11", "in_1 10:30:00Z 11:30:00Z", "in_1 11:30:00Z 12:30:00Z",
		"in_1 12:30:00Z 13:30:00Z")
}

// After the database's clock was ahead and is corrected, a rule is not evaluated until the clock
// reaches its progress. This is logged and measured.
func TestTick_clockWasAhead_isLoggedAndMeasured(t *testing.T) {
	t.Parallel()
	b := setup(t)
	a, reg := b.measured(t, rule(t, keyPerWindow, "", 0))
	b.tickAt(t, a, "10:30")
	b.tickAt(t, a, "20:00")
	b.tickAt(t, a, "19:59:30") // clocks are corrected by some seconds every day
	if strings.Contains(b.log.String(), "rule not evaluated") {
		t.Errorf("logged %s", b.log)
	}
	b.tickAt(t, a, "11:00")
	tick(t, a)
	if strings.Count(b.log.String(), "rule not evaluated: the database's clock was set back") != 1 ||
		!strings.Contains(b.log.String(), "rule=hourly decided_until=2026-11-02T20:00:00.000Z "+
			"clock=2026-11-02T11:00:00.000Z") {
		t.Errorf("logged %s", b.log)
	}
	if got := metricValues(t, reg)[0]; got != "postern_effect_window_lag_seconds 32400" {
		t.Error(got)
	}
	b.db.Exec(t, clockRepairSQL)
	b.putObject(t, "in_1", `{}`, "certain")
	b.tickAt(t, a, "12:00")
	wantPlanned(t, b.planned(t), "in_1 11 12")
}

// clockRepairSQL is the repair that docs/how-to/recover-from-an-outage.md describes.
const clockRepairSQL = `UPDATE effect_windows SET decided_at = clock_now(), window_start = NULL, window_end = NULL,
	account = '', object_id = '' WHERE decided_at > clock_now()`

// The deferred objects of a removed rule are deleted after a while.
func TestDeleteDetached_removedRule_dropsDeferredObjects(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.setClock(t, "10:30:00")
	b.putObject(t, "in_1", `{}`, "ambiguous")
	b.tickEachMinute(t, []*rules.Rule{rule(t, keyPerWindow, "", 0)}, "10:50:00", 11)
	waits := func() string { return b.db.QueryStrings(t, `SELECT count(*)::text FROM effect_window_waits`)[0] }
	at := b.tickEachMinute(t, nil, "11:10:00", 8)
	if n := waits(); n != "1" {
		t.Errorf("%s", n)
	}
	at = b.tickEachMinute(t, nil, at, 4)
	b.tickEachMinute(t, nil, at, 1) // a new process
	if n := waits(); n != "0" || !strings.Contains(b.log.String(), "deferred objects deleted") {
		t.Errorf("%s, logged %s", n, b.log)
	}
}

// A rule that always has work neither delays other rules nor hides its own removal.
func TestTick_busyRule_letsOthersRun(t *testing.T) {
	t.Parallel()
	b := setup(t)
	busy, hourly := ruleAt(t, "* * * * *", "busy "+keyPerWindow), rule(t, keyPerWindow, "", 0)
	busy.Name = "busy"
	a := b.newScheduler(1, busy, hourly)
	b.tickAt(t, a, "10:30")
	b.putInvoices(t, 3)
	pages := 0
	count := func(rule string) string {
		return b.db.QueryStrings(t, `SELECT count(*)::text FROM effects WHERE rule = '`+rule+`'`)[0]
	}
	a.NotifyDestinations = func([]string) {
		switch pages++; pages {
		case 3:
			b.setClock(t, "11:00:01") // the other rule becomes due while the busy one has 28 windows left
		case 30:
			a.Replace(effects.NewRules([]*rules.Rule{hourly}))
		}
	}
	b.tickAt(t, a, "10:32:01")
	if all, busy := count("hourly"), count("busy"); all != "3" || busy != "27" {
		t.Errorf("%s effects of the rule that became due meanwhile, and %s of one that was removed after 30 pages",
			all, busy)
	}
}

// A slow rule advances by one object at a time, and skips none, also of many deferred objects.
func TestTick_slowRule_advances(t *testing.T) {
	t.Parallel()
	b, a := setupRule(t, 4, rule(t, keyPerWindow, "", 0))
	a.Settings.PageTime = 0
	b.putInvoices(t, 4)
	for i := range 6 {
		b.putObject(t, fmt.Sprintf("in_%d", i), `{}`, "ambiguous")
	}
	b.tickAt(t, a, "11:00")
	wantPlanned(t, b.planned(t), "in_000 10 11", "in_001 10 11", "in_002 10 11", "in_003 10 11")
	b.db.Exec(t, `UPDATE objects SET ambiguous = false`)
	var left []string
	a.NotifyDestinations = func([]string) {
		left = append(left, b.db.QueryStrings(t, `SELECT count(*)::text FROM effect_window_waits`)[0])
	}
	tick(t, a)
	wantPlanned(t, left, "5", "4", "3", "2", "1", "0")
	wantPlanned(t, b.planned(t)[4:], "in_0 10 11", "in_1 10 11", "in_2 10 11", "in_3 10 11", "in_4 10 11", "in_5 10 11")
}

// A page has a limit in bytes, for a window and for deferred objects, and at least one object.
func TestProcessPage_largeObjects_areBoundedInBytes(t *testing.T) {
	t.Parallel()
	b, a := setupRule(t, 100, rule(t, keyPerWindow, "", 0))
	a.Settings.PageBytes = 5000
	large := func() string { // random digits, which do not compress well
		return b.db.QueryStrings(t, `SELECT jsonb_build_object('n', string_agg(md5(random()::text), ''))::text
			FROM generate_series(1, 100)`)[0]
	}
	for _, id := range []string{"in_1", "in_2", "in_3"} {
		b.putObject(t, id, large(), "certain")
		b.putObject(t, id+"_ambiguous", large(), "ambiguous")
	}
	var pages []string
	a.NotifyDestinations = func([]string) {
		pages = append(pages, b.db.QueryStrings(t, `SELECT count(*)::text FROM effects`)[0])
	}
	b.tickAt(t, a, "11:00")
	wantPlanned(t, pages, "1", "2", "3")
	b.db.Exec(t, `UPDATE objects SET ambiguous = false`)
	tick(t, a)
	wantPlanned(t, pages, "1", "2", "3", "5", "6") // two of them exceed the limit
	if n := len(b.planned(t)); n != 6 {
		t.Errorf("%d effects", n)
	}
}

// A redacted object exists without a state. Rules are not evaluated for it, as for a deleted
// object.
func TestEvaluate_redactedObject_isSkipped(t *testing.T) {
	t.Parallel()
	b, a := setupRule(t, 2, rule(t, keyPerWindow, "", 0))
	b.putObject(t, "in_1", `{"n": 1}`, "certain")
	b.putObject(t, "in_2", `{"n": 1}`, "certain")
	b.putObject(t, "in_3", `{"n": 1}`, "ambiguous")
	b.tickAt(t, a, "11:00")
	// as a redaction does
	b.db.Exec(t, `UPDATE objects SET state = NULL, tied_states = '[]', ambiguous = false WHERE object_id <> 'in_2'`)
	b.tickAt(t, a, "12:00")
	wantPlanned(t, b.db.QueryStrings(t, `SELECT state || ' ' || object_id || ' ' || (template_data->'new'->>'n')
		FROM effects ORDER BY effect`), "planned in_1 1", "planned in_2 1", "planned in_2 1")
}

// An object that stays uncertain keeps at most catch_up windows. Dropped windows are logged.
func TestDeferObjects_moreThanCatchUp_dropsOldest(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.setClock(t, "00:30")
	each := rule(t, keyPerWindow, "", 0)
	each.Schedule.CatchUp = 2
	a := b.newScheduler(10, each)
	tick(t, a)
	b.putObject(t, "in_1", `{}`, "ambiguous")
	b.putObject(t, "in_2", `{}`, "bare")
	for _, at := range []string{"01:00", "02:00", "03:00", "04:00", "05:00"} {
		b.tickAt(t, a, at)
	}
	wantPlanned(t, b.db.QueryStrings(t, `SELECT object_id || ' ' || extract(hour FROM window_end)
		FROM effect_window_waits ORDER BY 1`), "in_1 4", "in_1 5", "in_2 4", "in_2 5")
	if log := b.log.String(); strings.Count(log, "windows of uncertain objects skipped") != 3 ||
		!strings.Contains(log, "windows=2 first_end=2026-11-02T03:00:00.000Z") {
		t.Errorf("logged %s", log)
	}
	b.putObject(t, "in_1", `{}`, "certain")
	tick(t, a)
	wantPlanned(t, b.planned(t), "in_1 03 04", "in_1 04 05")
}

// The metrics count deferred objects.
func TestMetrics_deferredObjects(t *testing.T) {
	t.Parallel()
	each := rule(t, keyPerWindow, "", 0)
	b, _ := setupRule(t, 10, each)
	for i := range 3 {
		b.putObject(t, fmt.Sprintf("in_%d", i), `{}`, "ambiguous")
	}
	b.tickAt(t, b.newScheduler(10, each), "12:00")
	a, reg := b.measured(t, each)
	b.tickAt(t, a, "12:30")
	wantPlanned(t, metricValues(t, reg), "postern_effect_window_lag_seconds 0", "postern_effect_window_waits 6",
		"postern_effect_window_waits_seconds 5400")
}

// measured returns a scheduler of a rule with metrics.
func (b *fixture) measured(t *testing.T, r *rules.Rule) (*windows.Scheduler, *prometheus.Registry) {
	t.Helper()
	reg := prometheus.NewPedanticRegistry()
	metrics, err := windows.NewMetrics(reg)
	must(t, err)
	a := b.newScheduler(10)
	a.Metrics = metrics
	a.Replace(effects.NewRules([]*rules.Rule{r}))
	return a, reg
}

// metricValues are the metrics of the only rule.
func metricValues(t *testing.T, reg *prometheus.Registry) (all []string) {
	t.Helper()
	families, err := reg.Gather()
	must(t, err)
	for _, f := range families {
		if len(f.GetMetric()) != 1 {
			t.Errorf("%s has %d series", f.GetName(), len(f.GetMetric()))
		}
		all = append(all, fmt.Sprint(f.GetName(), " ", f.GetMetric()[0].GetGauge().GetValue()))
	}
	return all
}

// An effect that wants the key of another account needs review once, and not once per window.
func TestLogCommitted_collision_isLoggedOnce(t *testing.T) {
	t.Parallel()
	b, a := setupRule(t, 10, rule(t, "welcome:{{ new.id }}", "", 0))
	b.putObject(t, "in_1", `{"id": "in_1"}`, "certain")
	b.db.Exec(t, `INSERT INTO objects SELECT (jsonb_populate_record(o, '{"account": "acct_2"}')).* FROM objects o`)
	for _, at := range []string{"11:00", "12:00", "14:00"} {
		b.tickAt(t, a, at)
	}
	wantPlanned(t, b.db.QueryStrings(t, `SELECT account || ' ' || state || ' ' || regexp_replace(key, '[0-9a-f]{32}',
		'HASH') FROM effects ORDER BY effect`), " planned welcome:in_1", "acct_2 needs_review hourly:trouble:0:HASH:1")
	if n := strings.Count(b.log.String(), "keys of effects belong to effects of other accounts"); n != 1 {
		t.Errorf("logged %d times", n)
	}
}

// BenchmarkWindow evaluates one window over 20,000 objects of half a kB, one in a hundred of which
// has an effect.
func BenchmarkWindow(t *testing.B) {
	const objects = 20_000
	b, a := setupRule(t, 200, rule(t, keyPerWindow, `new.number % 100 == 0`, time.Hour))
	b.db.Exec(t, insertInvoicesSQL, b.source, objects, 0)
	b.db.Exec(t, `ANALYZE objects`)
	t.ResetTimer()
	for n := range t.N {
		b.tickAt(t, a, time.Date(2026, 11, 2, 11+n%12, 0, 0, 0, time.UTC).Format("15:04"))
	}
	t.ReportMetric(float64(t.Elapsed().Microseconds())/float64(t.N*objects), "µs/object")
}
