package activity_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/activity"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/testkit"
)

// waitTypes waits for event types as "source type count seconds", from the first to the last event.
func waitTypes(t *testing.T, db *testkit.DB, want ...string) {
	t.Helper()
	testkit.Eventually(t, time.Minute, func() error {
		if got := db.QueryStrings(t, `SELECT s.name || ' ' || event_type || ' ' || count || ' ' || extract(epoch FROM
			last_at - first_at)::int FROM source_types t JOIN sources s ON s.number = t.source
			ORDER BY 1`); !slices.Equal(got, want) {
			return fmt.Errorf("%q, want %q", got, want)
		}
		return nil
	})
}

// Types are added up with their first and last times. What could not be reported is reported later.
func TestReporter_types_areAddedOnce(t *testing.T) {
	t.Parallel()
	db := withSources(t, 2)
	r := newReporter(t, db, "one")
	r.Counters, r.Types = newCounters(t), new(activity.Types)
	at := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
	add := func(source, name string, seconds int) {
		r.Types.Add(source, name, events.FirstID(at.Add(time.Duration(seconds)*time.Second)))
	}
	add("s1", "a", 5)
	add("s1", "a", 1)
	add("s2", "b\x00", 1)
	add("unknown", "a", 1)
	stop := start(t, r)
	waitTypes(t, db, "s1 a 2 4", "s2 b\ufffd 1 0")
	db.Exec(t, `ALTER TABLE source_types RENAME TO lost; DELETE FROM processes`)
	add("s1", "a", 9)
	waitReport(t, db)
	add("s1", "a", 7)
	db.Exec(t, `ALTER TABLE lost RENAME TO source_types`)
	waitTypes(t, db, "s1 a 4 8", "s2 b\ufffd 1 0")
	stop()
}

// A sender with many types gets at most 500 rows, whatever it sends at once.
func TestReporter_manyTypes_areLimited(t *testing.T) {
	t.Parallel()
	db := withSources(t, 1)
	db.Exec(t, `INSERT INTO source_types SELECT 1, 'old' || n, now(), now(), 1 FROM generate_series(1, 490) n`)
	r := newReporter(t, db, "one")
	r.Types = new(activity.Types)
	for n := range 700 {
		r.Types.Add("s1", fmt.Sprint("new", n), events.FirstID(time.Now()))
	}
	r.Types.Add("s1", strings.Repeat("x", 5000), events.FirstID(time.Now()))
	r.Types.Add("s1", "old1", events.FirstID(time.Now()))
	testkit.Must(t, activity.ReportTypes(t.Context(), r))
	got := db.QueryStrings(t, `SELECT count(*) || ' ' || sum(count) || ' ' || max(length(event_type))
		FROM source_types`)
	if got[0] != "500 1192 7" {
		t.Errorf("rows, events and the longest type: %s, want 500 1192 7", got[0])
	}
}

// The longest interval covers the week of the last event and the week before, so a night counts and
// an outage of last month does not.
func TestReporter_longestInterval_coversTwoWeeks(t *testing.T) {
	t.Parallel()
	db := withSources(t, 1)
	r := newReporter(t, db, "one")
	r.Types = new(activity.Types)
	monday := time.Date(2026, 11, 2, 0, 0, 0, 0, time.UTC)
	for _, row := range []struct {
		name           string
		hours          []int // of a report's events, after the first Monday
		thisWeek, last int
	}{
		{"first events", []int{8, 9}, 0, 0},
		{"a pause of an hour", []int{10, 17}, 1, 0},
		{"a night", []int{32}, 15, 0},
		{"a shorter pause", []int{33}, 15, 0},
		{"an outage of the other days", []int{7 * 24}, 135, 15},
		{"the second week", []int{7*24 + 10}, 135, 15},
		{"the late report of another process", []int{7*24 - 1}, 135, 15},
		{"the third week", []int{14*24 + 2}, 160, 135},
		{"after a week without events", []int{29 * 24}, 358, 0},
	} {
		for _, h := range row.hours {
			r.Types.Add("s1", "a", events.FirstID(monday.Add(time.Duration(h)*time.Hour)))
		}
		testkit.Must(t, activity.ReportTypes(t.Context(), r))
		got := db.QueryStrings(t, `SELECT extract(epoch FROM longest_this_week)::int / 3600 || ' ' ||
			extract(epoch FROM longest_last_week)::int / 3600 FROM source_types`)
		if want := fmt.Sprint(row.thisWeek, " ", row.last); got[0] != want {
			t.Errorf("%s: %s hours, want %s", row.name, got[0], want)
		}
	}
}

// A type is silent if it is missing for twice its longest interval, and for an hour at least.
func TestSourceTypes_longestInterval_decidesSilence(t *testing.T) {
	t.Parallel()
	db := withSources(t, 2)
	db.Exec(t, `INSERT INTO source_types SELECT source, name, now() - first, now() - last, count, this, before
		FROM (VALUES
		(1, 'few', interval '30 days', interval '23 hours', 9, interval '1 hour', interval '1 hour'),
		(1, 'in the night', '30 days', '12 hours', 9000, '9 hours', '14 hours'),
		(1, 'new', '6 days', '40 hours', 9000, '1 hour', '1 hour'),
		(1, 'often', '30 days', '59 minutes', 9000, '1 minute', '1 minute'),
		(1, 'often, silent', '30 days', '61 minutes', 9000, '1 minute', '1 minute'),
		(1, 'silent', '30 days', '29 hours', 9000, '9 hours', '14 hours'),
		(2, 'other', '30 days', '29 hours', 10, '14 hours', '9 hours')) v (source, name, first, last, count, this,
		before)`)
	list := func(source int32, silent *bool) (names []string) {
		t.Helper()
		for cursor := ""; ; {
			page, err := activity.SourceTypes(t.Context(), db.Role(t, "operator"), source, silent, cursor, 3)
			testkit.Must(t, err)
			for _, one := range page.Items {
				names = append(names, one.Type)
				if one.Type == "in the night" && one.LongestInterval != 14*3600 {
					t.Errorf("%+v", one)
				}
			}
			if cursor = page.Next; cursor == "" {
				return names
			}
		}
	}
	yes := true
	testkit.Equal(t, "silent types", []string{"often, silent", "silent", "other"}, list(0, &yes))
	if all := list(1, nil); len(all) != 6 {
		t.Errorf("types of source 1: %q", all)
	}
}
