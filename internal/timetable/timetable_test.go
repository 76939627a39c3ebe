package timetable_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/timetable"
)

func parse(t *testing.T, expression, zone string) *timetable.Timetable {
	t.Helper()
	tt, err := timetable.Parse(expression, zone)
	if err != nil {
		t.Fatal(err)
	}
	return tt
}

// times returns the planned times in a time range, in UTC.
func times(tt *timetable.Timetable, from, to string) (all []string) {
	at, _ := time.Parse(time.RFC3339, from)
	end, _ := time.Parse(time.RFC3339, to)
	for at = tt.Next(at.Add(-time.Second)); at.Before(end); at = tt.Next(at) {
		all = append(all, at.UTC().Format("15:04"))
	}
	return all
}

// A time in the skipped hour is due at the end of the gap. A time that occurs twice is due the
// first time. An expression without an hour follows elapsed time.
func TestTimetableNext_clockChanges(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		expression, zone, from, to string
		want                       []string
	}{
		// Berlin: 2026-03-29 02:00 CET becomes 03:00 CEST at 01:00 UTC; 2026-10-25 03:00 CEST
		// becomes 02:00 CET at 01:00 UTC.
		{"30 2 * * *", "Europe/Berlin", "2026-03-29T00:00:00Z", "2026-03-30T00:00:00Z", []string{"01:00"}},
		{"0 3 * * *", "Europe/Berlin", "2026-03-29T00:00:00Z", "2026-03-30T00:00:00Z", []string{"01:00"}},
		{"0,20,40 2,3 * * *", "Europe/Berlin", "2026-03-29T00:00:00Z", "2026-03-29T12:00:00Z",
			[]string{"01:00", "01:20", "01:40"}},
		{"30 * * * *", "Europe/Berlin", "2026-03-29T00:00:00Z", "2026-03-29T03:00:00Z",
			[]string{"00:30", "01:30", "02:30"}},
		{"30 2 * * *", "Europe/Berlin", "2026-10-25T00:00:00Z", "2026-10-26T00:00:00Z", []string{"00:30"}},
		{"0 3 * * *", "Europe/Berlin", "2026-10-25T00:00:00Z", "2026-10-26T00:00:00Z", []string{"02:00"}},
		{"*/30 2 * * *", "Europe/Berlin", "2026-10-25T00:00:00Z", "2026-10-26T00:00:00Z", []string{"00:00", "00:30"}},
		{"30 * * * *", "Europe/Berlin", "2026-10-25T00:00:00Z", "2026-10-25T03:00:00Z",
			[]string{"00:30", "01:30", "02:30"}},
		{"0 * * * *", "Europe/Berlin", "2026-10-25T00:00:00Z", "2026-10-25T03:00:00Z",
			[]string{"00:00", "01:00", "02:00"}},
		{"@hourly", "Europe/Berlin", "2026-03-29T00:00:00Z", "2026-03-29T03:00:00Z",
			[]string{"00:00", "01:00", "02:00"}},
		// New York: 2026-03-08 02:00 EST becomes 03:00 EDT at 07:00 UTC; 2026-11-01 02:00 EDT
		// becomes 01:00 EST at 06:00 UTC.
		{"15 2 * * *", "America/New_York", "2026-03-08T05:00:00Z", "2026-03-09T04:00:00Z", []string{"07:00"}},
		{"15 2 * * 0", "America/New_York", "2026-03-08T05:00:00Z", "2026-03-09T04:00:00Z", []string{"07:00"}},
		{"15 1 * * *", "America/New_York", "2026-11-01T04:00:00Z", "2026-11-02T05:00:00Z", []string{"05:15"}},
		{"15 2 * * *", "America/New_York", "2026-11-01T04:00:00Z", "2026-11-02T05:00:00Z", []string{"07:15"}},
		{"15 * * * *", "America/New_York", "2026-11-01T04:00:00Z", "2026-11-01T08:00:00Z",
			[]string{"04:15", "05:15", "06:15", "07:15"}},
		// Lord Howe changes by half an hour. Apia skipped all of 2011-12-30; the gap ended at 10:00
		// UTC.
		{"15 2 * * *", "Australia/Lord_Howe", "2026-10-03T14:00:00Z", "2026-10-04T12:00:00Z", []string{"15:30"}},
		{"0 12 * * *", "Pacific/Apia", "2011-12-30T00:00:00Z", "2011-12-31T12:00:00Z", []string{"10:00", "22:00"}},
		{"0 12 * * *", "", "2026-10-25T00:00:00Z", "2026-10-26T00:00:00Z", []string{"12:00"}},
	} {
		if diff := cmp.Diff(c.want, times(parse(t, c.expression, c.zone), c.from, c.to)); diff != "" {
			t.Errorf("%s in %s: %s", c.expression, c.zone, diff)
		}
	}
}

// Next neither skips nor repeats a planned time. The test walks minute by minute. A minute is
// planned if its wall clock time matches for the first time, or if it ends a gap that contains a
// match.
func TestTimetableNext_skipsAndRepeatsNothing(t *testing.T) {
	t.Parallel()
	seed := testkit.Seed(t)
	r := rand.New(rand.NewPCG(seed, 1))
	zones := []string{"Europe/Berlin", "America/New_York", "America/Sao_Paulo", "Australia/Lord_Howe",
		"Africa/Casablanca", "Asia/Kolkata", "UTC"}
	for range 40 {
		minute, hour, zone := r.IntN(12)*5, r.IntN(24), zones[r.IntN(len(zones))]
		tt := parse(t, fmt.Sprintf("%d %d * * *", minute, hour), zone)
		loc, err := timetable.Zone(zone)
		if err != nil {
			t.Fatal(err)
		}
		at := time.Date(2015+r.IntN(20), time.Month(1+r.IntN(12)), 1, 0, 0, 0, 0, time.UTC)
		planned := at
		for range 400 {
			next := tt.Next(planned)
			here := next.In(loc)
			start, _ := here.ZoneBounds()
			if here.Hour() != hour || here.Minute() != minute {
				if !next.Equal(start) {
					t.Fatalf("%d:%d in %s: %s is not a planned time", hour, minute, zone, here)
				}
			}
			if gap := next.Sub(planned); planned != at && (gap < 22*time.Hour || gap > 26*time.Hour) {
				t.Fatalf("%d:%d in %s: %s comes %s after %s", hour, minute, zone, here, gap, planned)
			}
			planned = next
		}
	}
}

// After an absence of any length, Latest returns the last time that repeated calls of Next return.
func TestTimetableLatest_equalsRepeatedNext(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(testkit.Seed(t), 2))
	expressions := []string{"* * * * *", "*/7 * * * *", "0 * * * *", "30 2 * * *", "15 1,2 * * 1-5", "0 0 1 * *",
		"@weekly", "@yearly"}
	for range 300 {
		tt := parse(t, expressions[r.IntN(len(expressions))], []string{"Europe/Berlin", "America/New_York"}[r.IntN(2)])
		after := time.Date(2026, 1, 1+r.IntN(365), 0, r.IntN(1440), r.IntN(60), 0, time.UTC)
		now := after.Add(time.Duration(r.Int64N(int64([]time.Duration{time.Minute, 5 * time.Hour,
			72 * time.Hour}[r.IntN(3)]))))
		var want time.Time
		for at := tt.Next(after); !at.After(now); at = tt.Next(at) {
			want = at
		}
		if got := tt.Latest(after, now); !got.Equal(want) {
			t.Fatalf("after %s until %s: %s, want %s", after, now, got, want)
		}
	}
	if at := parse(t, "* * * * *", "").Latest(time.Time{},
		time.Date(2026, 5, 1, 0, 0, 30, 0, time.UTC)); at.Second() != 0 || at.Day() != 1 {
		t.Errorf("%s", at)
	}
	if at := parse(t, "0 3 * * *", "").Latest(time.Date(2026, 5, 1, 4, 0, 0, 0, time.UTC),
		time.Date(2026, 5, 1, 3, 0, 0, 0, time.UTC)); !at.IsZero() {
		t.Errorf("the clock was set back: %s", at)
	}
}

func TestParse_invalidExpressions_areRejected(t *testing.T) {
	t.Parallel()
	for _, c := range [][3]string{
		{"", "", "five fields"}, {"* * * *", "", "five fields"}, {"0 0 * * * *", "", "five fields"},
		{"61 * * * *", "", "five fields"},
		{"x * * * *", "", "five fields"}, {"5-1 * * * *", "", "never due"}, {"@every 1h", "", "five fields"},
		{"@reboot", "", "@daily"}, {"TZ=UTC 0 0 * * *", "", "five fields"},
		{"0 0 30 2 *", "", "never due"}, {"0 0 * * *", "Europe/Bern", "IANA"}, {"0 0 * * *", "Local", "differs"},
		{"0 0 * * *", "../etc", "IANA"},
		{"*/0 * * * *", "", "five fields"}, {"0 0 * * 8", "", "five fields"},
	} {
		if _, err := timetable.Parse(c[0], c[1]); err == nil || !strings.Contains(err.Error(), c[2]) {
			t.Errorf("%q in %q: %v", c[0], c[1], err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("*/5 * * * *", "Europe/Berlin")
	f.Add("0 0 29 2 1#3", "UTC")
	f.Add("0 0 LW * 5L", "")
	f.Fuzz(func(t *testing.T, expression, zone string) {
		tt, err := timetable.Parse(expression, zone)
		if err != nil {
			return
		}
		now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		if at := tt.Next(now); !at.IsZero() && !at.After(now) {
			t.Errorf("%s is not after %s", at, now)
		}
	})
}
