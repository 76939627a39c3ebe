package windows_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/postern-gateway/postern/internal/effects"
	"github.com/postern-gateway/postern/internal/effects/rules"
	"github.com/postern-gateway/postern/internal/effects/windows"
	"github.com/postern-gateway/postern/internal/timetable"
)

// asks has a processor ask for some minutes of the database's clock, which is then at the time that is returned.
func (b *testBundle) asks(t *testing.T, rules []*rules.Rule, from string, minutes int) string {
	t.Helper()
	a := b.asker(10, rules...)
	a.Settings.Out = 10 * time.Minute
	at, err := time.Parse(time.TimeOnly, from)
	must(t, err)
	for range minutes {
		at = at.Add(time.Minute)
		b.at(t, at.Format(time.TimeOnly))
		a.Replace(effects.NewRules(rules))
		tick(t, a)
	}
	return at.Format(time.TimeOnly)
}

// A rule that was out of the configuration for long while processors ran begins with its next window, with a half window and all that it waited for given up; one that was out for a moment, or with all processors, goes on.
func TestRulesThatArePutBack(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		others  bool
		without int
		planned []string
		waits   string
	}{
		"long":                   {true, 12, []string{"in_1 10 11", "in_1 13 14", "in_2 13 14"}, "1"},
		"long, with no other":    {false, 12, []string{"in_1 10 11", "in_1 13 14", "in_2 13 14"}, "1"},
		"for a moment":           {true, 8, []string{"in_1 10 11", "in_2 10 11", "in_1 11 12", "in_2 11 12", "in_1 12 13", "in_2 12 13", "in_1 13 14", "in_2 13 14"}, "4"},
		"as all processors were": {true, 0, []string{"in_1 10 11", "in_2 10 11", "in_1 11 12", "in_2 11 12", "in_1 12 13", "in_2 12 13", "in_1 13 14", "in_2 13 14"}, "4"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.at(t, "10:30:00")
			each := rule(t, perWindow, "", 0)
			var others []*rules.Rule
			if c.others {
				other := rule(t, "x", "false", 0)
				other.Name = "other"
				others = append(others, other)
			}
			b.asks(t, []*rules.Rule{each}, "10:30:00", 1)
			b.object(t, "in_0", `{}`, "ambiguous")
			b.object(t, "in_1", `{}`, "certain")
			b.object(t, "in_2", `{}`, "certain")
			b.at(t, "11:00:01")
			ctx, die := context.WithCancel(t.Context())
			a := b.asker(2, each) // which dies in the middle of the window
			a.Planned = func([]string) { die() }
			_ = a.Tick(ctx)
			b.asks(t, others, "12:00:00", c.without)
			b.asks(t, []*rules.Rule{each}, "13:10:00", 1)
			b.asks(t, []*rules.Rule{each}, "14:00:00", 1)
			wants(t, b.planned(t), c.planned...)
			wants(t, b.db.Rows(t, `SELECT count(*)::text FROM effect_window_waits`), c.waits)
			told := strings.Contains(b.log.String(), `rule=hourly seen_to_until=2026-11-02T10:`) && strings.Contains(b.log.String(), "given_up_in_window=2026-11-02T11:00:00.000Z")
			if told != (len(c.planned) == 3) {
				t.Errorf("told %s", b.log)
			}
		})
	}
}

// Under another timetable a rule begins anew, and one that comes back to the first does not make up for what it did under the other, nor lose what it waits for.
func TestTimetablesThatArePutBack(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.at(t, "10:30:00")
	each, other := rule(t, perWindow, "", 0), rule(t, perWindow, "", 0)
	times, err := timetable.Parse("30 * * * *", "UTC")
	must(t, err)
	other.Schedule.Cron, other.Schedule.Times = "30 * * * *", times
	b.object(t, "in_1", `{}`, "ambiguous")
	b.asks(t, []*rules.Rule{each}, "10:50:00", 11) // sees to the window of 11:00
	b.asks(t, []*rules.Rule{other}, "11:20:00", 12)
	b.asks(t, []*rules.Rule{other}, "14:00:00", 1)
	b.asks(t, []*rules.Rule{each}, "14:10:00", 2)
	b.object(t, "in_1", `{}`, "certain")
	b.asks(t, []*rules.Rule{each}, "14:59:00", 1)
	wants(t, b.planned(t), "in_1 14 15", "in_1 10 11", "in_1 10:30:00Z 11:30:00Z", "in_1 11:30:00Z 12:30:00Z", "in_1 12:30:00Z 13:30:00Z")
}

// A clock that was ahead, and was put right, silences a rule until it has come to where it was: that is told, and measured.
func TestClocksThatWereAheadAreTold(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.at(t, "10:30")
	reg := prometheus.NewPedanticRegistry()
	metrics, err := windows.NewMetrics(reg)
	must(t, err)
	a := b.asker(10)
	a.Metrics = metrics
	a.Replace(effects.NewRules([]*rules.Rule{rule(t, perWindow, "", 0)}))
	tick(t, a)
	b.at(t, "20:00")
	tick(t, a)
	b.at(t, "19:59:30") // clocks are put right by some seconds every day
	tick(t, a)
	if strings.Contains(b.log.String(), "rule not asked") {
		t.Errorf("told %s", b.log)
	}
	b.at(t, "11:00")
	tick(t, a)
	tick(t, a)
	if strings.Count(b.log.String(), "rule not asked: the database's clock was put back") != 1 || !strings.Contains(b.log.String(), "rule=hourly seen_to_until=2026-11-02T20:00:00.000Z clock=2026-11-02T11:00:00.000Z") {
		t.Errorf("told %s", b.log)
	}
	if got := measured(t, reg)[0]; got != "postern_effect_window_behind_seconds 32400" {
		t.Error(got)
	}
	b.db.Exec(t, putRight)
	b.object(t, "in_1", `{}`, "certain")
	b.at(t, "12:00")
	tick(t, a)
	wants(t, b.planned(t), "in_1 11 12")
}

// putRight is what docs/operations.md says to do.
const putRight = `UPDATE effect_windows SET decided_at = clock_now(), window_start = NULL, window_end = NULL, account = '', object_id = '' WHERE decided_at > clock_now()`

// What is owed of a rule that is gone is given up after a while.
func TestRulesThatAreGoneWaitForNothing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.at(t, "10:30:00")
	b.object(t, "in_1", `{}`, "ambiguous")
	b.asks(t, []*rules.Rule{rule(t, perWindow, "", 0)}, "10:50:00", 11)
	waits := func() string { return b.db.Rows(t, `SELECT count(*)::text FROM effect_window_waits`)[0] }
	at := b.asks(t, nil, "11:10:00", 8)
	if n := waits(); n != "1" {
		t.Errorf("%s", n)
	}
	at = b.asks(t, nil, at, 4)
	b.asks(t, nil, at, 1) // a process that has just begun
	if n := waits(); n != "0" || !strings.Contains(b.log.String(), "not waited for any more") {
		t.Errorf("%s, told %s", n, b.log)
	}
}

// A rule that always has something to do keeps no other from being asked, nor its own removal from being seen.
func TestBusyRulesLeaveTurns(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.at(t, "10:30")
	b.invoices(t, 3)
	busy, hourly := rule(t, "busy "+perWindow, "", 0), rule(t, perWindow, "", 0)
	times, err := timetable.Parse("* * * * *", "UTC")
	must(t, err)
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
	must(t, err)
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
	must(t, err)
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

// BenchmarkWindow is one window over 20,000 objects of 1 kB, of which a hundredth has an effect.
func BenchmarkWindow(t *testing.B) {
	const objects = 20_000
	b := setup(t)
	b.at(t, "10:30")
	b.db.Exec(t, `
INSERT INTO objects (source, account, object_type, object_id, version_final, version_at, version_seen, version_rank, tie_set, overflow, window_lo, window_hi, look_after, ambiguous, deleted, state_hash, exact_hash,
  state, repaired, last_event_id, revision, rule_version, created_at, updated_at)
SELECT $1, '', 'invoice', 'in_' || n, false, 1, 0, 0, '[]', false, 0, 0, 0, false, false, '', '', jsonb_build_object('id', 'in_' || n, 'n', n, 'text', repeat(md5(n::text), 30)), false, 1, 1, 1, now(), now() FROM generate_series(1, $2::int) n`,
		b.source, objects)
	b.db.Exec(t, `ANALYZE objects`)
	a := b.asker(200, rule(t, perWindow, `new.n % 100 == 0`, time.Hour))
	tick(t, a)
	t.ResetTimer()
	for n := range t.N {
		b.at(t, time.Date(2026, 11, 2, 11+n%12, 0, 0, 0, time.UTC).Format("15:04"))
		tick(t, a)
	}
	t.ReportMetric(float64(t.Elapsed().Microseconds())/float64(t.N*objects), "µs/object")
}
