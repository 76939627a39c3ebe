package windows_test

import (
	"context"
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
	if err != nil {
		t.Fatal(err)
	}
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
	if err != nil {
		t.Fatal(err)
	}
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
	if err != nil {
		t.Fatal(err)
	}
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
