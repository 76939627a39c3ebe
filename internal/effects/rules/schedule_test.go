package rules_test

import (
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/effects/rules"
	"github.com/postern-gateway/postern/internal/timetable"
)

// Windows depend on the schedule alone: whenever and however often is looked, they follow each other without a gap, also where clocks are changed.
func TestWindowsFollowEachOther(t *testing.T) {
	t.Parallel()
	for _, cron := range []string{"0 * * * *", "30 2 * * *", "*/20 1-3 * * *", "0 9 * * 1", "0 0 29 2 *"} {
		for _, zone := range []string{"UTC", "Europe/Berlin", "America/New_York"} {
			times, err := timetable.Parse(cron, zone)
			if err != nil {
				t.Fatal(err)
			}
			s := &rules.Schedule{Times: times, CatchUp: 10_000}
			begun := time.Date(2026, 3, 26, 11, 11, 0, 0, time.UTC)
			until, steps := begun.AddDate(0, 0, 7), []time.Duration{7 * time.Minute, 26 * time.Hour, 7 * 24 * time.Hour}
			if cron == "0 0 29 2 *" {
				until, steps = begun.AddDate(9, 0, 0), []time.Duration{300 * 24 * time.Hour}
			}
			for _, step := range steps {
				last, n := time.Time{}, 0
				decided := begun
				for now := begun; !now.After(until); now = now.Add(step) {
					for {
						end, passed := s.Due(decided, now)
						if end.IsZero() {
							break
						}
						start := s.Start(end)
						if !passed.IsZero() || end.After(now) || !start.Before(end) || !last.IsZero() && !start.Equal(last) {
							t.Fatalf("%s in %s, at %s: from %s to %s, the one before ended %s, passed over %s", cron, zone, now, start, end, last, passed)
						}
						decided, last, n = end, end, n+1
					}
				}
				if n == 0 {
					t.Errorf("%s in %s has no window", cron, zone)
				}
			}
		}
	}
}
