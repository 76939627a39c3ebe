package activity_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/postern-gateway/postern/internal/activity"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/testkit"
)

// counters are the counters of a process that the reporter reads.
type counters struct {
	*prometheus.Registry
	events, rejections, outcomes, verified *prometheus.CounterVec
}

func newCounters(t testing.TB) *counters {
	t.Helper()
	vector := func(name, label string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: "x"}, []string{"source", label})
	}
	c := &counters{Registry: prometheus.NewRegistry(), events: vector("postern_events_total", "result"),
		rejections: vector("postern_rejections_total", "reason"), outcomes: vector("postern_outcomes_total", "status"),
		verified: vector("postern_verified_requests_total", "secret")}
	c.MustRegister(c.events, c.rejections, c.outcomes, c.verified)
	return c
}

// withSources returns a database with sources that are named s1, s2 and so on.
func withSources(t testing.TB, n int) *testkit.DB {
	t.Helper()
	db := testkit.Database(t)
	db.Exec(t, `INSERT INTO sources (name, provider) SELECT 's' || n, 'stripe' FROM generate_series(1, $1::int) n`, n)
	return db
}

// waitReport waits until a process has reported.
func waitReport(t *testing.T, db *testkit.DB) {
	t.Helper()
	testkit.Eventually(t, time.Minute, func() error {
		if len(db.QueryStrings(t, `SELECT id FROM processes`)) == 0 {
			return errors.New("no report")
		}
		return nil
	})
}

// waitCounts waits until the last hour has these counts.
func waitCounts(t *testing.T, r *activity.Reporter, want activity.Counts) {
	t.Helper()
	testkit.Eventually(t, time.Minute, func() error {
		var sum activity.Counts
		for _, step := range []string{activity.Minute, activity.Hour} {
			p, err := activity.ReadPoints(t.Context(), r.Pool, activity.Filter{Step: step})
			testkit.Must(t, err)
			sum = activity.Counts{}
			for _, one := range p.Points { // a test may run across a full hour
				sum.Stored, sum.Rejected, sum.Failed = sum.Stored+one.Stored, sum.Rejected+one.Rejected,
					sum.Failed+one.Failed
			}
			if sum != want {
				return fmt.Errorf("%s: %+v, want %+v", step, sum, want)
			}
		}
		return nil
	})
}

// The differences of the counters are added once, those of several processes are added up, and what
// was counted while the database fails is reported later. A stop reports the rest.
func TestReporter_counts_areAddedOnce(t *testing.T) {
	t.Parallel()
	db := withSources(t, 2)
	counted := newCounters(t)
	r, other := newReporter(t, db, "one"), newReporter(t, db, "two")
	r.Counters, other.Counters = counted, counted
	counted.events.WithLabelValues("s1", "stored").Add(3)
	counted.events.WithLabelValues("unknown", "stored").Add(7)
	counted.rejections.WithLabelValues("s2", "wrong_signature").Inc()
	counted.rejections.WithLabelValues("s2", "stale_timestamp").Inc()
	counted.verified.WithLabelValues("s1", "new").Add(2)
	stop := start(t, r)
	waitCounts(t, r, activity.Counts{Stored: 3, Rejected: 2})
	stopOther := start(t, other)
	waitCounts(t, r, activity.Counts{Stored: 6, Rejected: 4})
	stopOther()

	db.Exec(t, `ALTER TABLE activity_hours RENAME TO lost`)
	counted.events.WithLabelValues("s1", "stored").Add(10)
	counted.outcomes.WithLabelValues("s2", "failed").Inc()
	db.Exec(t, `DELETE FROM processes`) // its row returns with the next report, before the counts
	waitReport(t, db)
	db.Exec(t, `ALTER TABLE lost RENAME TO activity_hours`)
	waitCounts(t, r, activity.Counts{Stored: 16, Rejected: 4, Failed: 1})
	stop()
	waitCounts(t, r, activity.Counts{Stored: 16, Rejected: 4, Failed: 1})
	testkit.Equal(t, "verified by secrets, 2 of each process", []string{"1 new 4"},
		db.QueryStrings(t, `SELECT source || ' ' || secret || ' ' || sum(verified) FROM activity_secrets
			GROUP BY source, secret`))
}

// A secret can be removed once others verify all deliveries for a day. One that was never used, or
// the only one, is not named.
func TestSecretUses_rotation_namesTheUnusedSecret(t *testing.T) {
	t.Parallel()
	db := withSources(t, 2)
	db.Exec(t, `INSERT INTO activity_secrets SELECT source, secret, floor(extract(epoch FROM now()) / 3600) - hours, n,
			now() - hours * interval '1 hour' FROM (VALUES (1, 'new', 0, 30), (1, 'new', 23, 60), (1, 'new', 30, 5),
			(1, 'old', 26, 7), (1, 'other', 2, 10), (2, 'only', 100, 1)) v (source, secret, hours, n)`)
	operator := db.Role(t, "operator")
	got, err := activity.SecretUses(t.Context(), operator, 1)
	testkit.Must(t, err)
	var texts []string
	for _, u := range got {
		texts = append(texts, fmt.Sprintf("%s %d %.2f %t %d %d", u.Secret, u.Verified, u.Share, u.Removable,
			u.Hours[0], u.Hours[activity.SecretHours-1]))
	}
	testkit.Equal(t, "uses", []string{"new 90 0.90 false 60 30", "old 0 0.00 true 0 0", "other 10 0.10 false 0 0"},
		texts)
	if got, err := activity.SecretUses(t.Context(), operator, 2); err != nil || len(got) != 1 || got[0].Removable {
		t.Errorf("an idle source: %+v %v", got, err)
	}
}

// A stop reports what was counted since the last report.
func TestReporter_stop_reportsTheRest(t *testing.T) {
	t.Parallel()
	db := withSources(t, 1)
	counted := newCounters(t)
	r := newReporter(t, db, "one")
	r.Counters, r.Interval = counted, time.Hour
	stop := start(t, r)
	waitReport(t, db)
	counted.events.WithLabelValues("s1", "stored").Inc()
	stop()
	waitCounts(t, r, activity.Counts{Stored: 1})
}

// Old minutes and hours are deleted.
func TestReporter_oldCounts_areDeleted(t *testing.T) {
	t.Parallel()
	db := withSources(t, 1)
	db.Exec(t, `INSERT INTO activity_minutes (minute, source) SELECT floor(extract(epoch FROM now()) / 60) - n, 1
		FROM unnest(ARRAY[10, 47 * 60, 49 * 60, 1000 * 60]) n`)
	db.Exec(t, `INSERT INTO activity_hours (hour, source) SELECT floor(extract(epoch FROM now()) / 3600) - n, 1
		FROM unnest(ARRAY[10, 89 * 24, 91 * 24]) n`)
	db.Exec(t, `INSERT INTO activity_secrets SELECT 1, 'a', floor(extract(epoch FROM now()) / 3600) - n, 1, now()
		FROM unnest(ARRAY[10, 29 * 24, 31 * 24]) n`)
	defer start(t, newReporter(t, db, "one"))()
	testkit.Eventually(t, time.Minute, func() error {
		if got := db.QueryStrings(t, `SELECT (SELECT count(*) FROM activity_minutes) || ' ' || (SELECT count(*)
			FROM activity_hours) || ' ' || (SELECT count(*) FROM activity_secrets)`)[0]; got != "2 2 2" {
			return errors.New(got)
		}
		return nil
	})
}

// The step follows from the range, and each range has at most so many points.
func TestReadPoints_range_choosesTheStep(t *testing.T) {
	t.Parallel()
	db := withSources(t, 2)
	db.Exec(t, `INSERT INTO activity_minutes (minute, source, stored, dead)
		SELECT floor(extract(epoch FROM now()) / 60) - n, s, 1, nullif(s, 1) FROM generate_series(0, 2) n,
		generate_series(1, 2) s`)
	now := time.Now()
	ago := func(hours float64) time.Time { return now.Add(-time.Duration(hours * float64(time.Hour))) }
	operator := db.Role(t, "operator")
	for name, tc := range map[string]struct {
		f    activity.Filter
		want string
	}{
		"the last hour":           {activity.Filter{}, "minute"},
		"a day":                   {activity.Filter{Since: ago(24)}, "minute"},
		"26 hours":                {activity.Filter{Since: ago(26)}, "hour"},
		"an hour, 3 days ago":     {activity.Filter{Since: ago(72), Until: ago(71)}, "hour"},
		"62 days":                 {activity.Filter{Since: ago(62 * 24)}, "hour"},
		"63 days":                 {activity.Filter{Since: ago(63 * 24)}, "at most 1500 hours"},
		"26 hours by minute":      {activity.Filter{Since: ago(26), Step: "minute"}, "use the step hour"},
		"an hour by hour":         {activity.Filter{Step: "hour"}, "hour"},
		"the future":              {activity.Filter{Since: ago(-1)}, "in the past"},
		"backwards":               {activity.Filter{Since: ago(1), Until: ago(2)}, "before until"},
		"2 hours by source":       {activity.Filter{Since: ago(2), BySource: true}, "hour"},
		"3 days by source":        {activity.Filter{Since: ago(72), BySource: true}, "at most 60 hours"},
		"the year 1":              {activity.Filter{Since: time.Time{}.Add(1)}, "at most 1500 hours"},
		"the year 1 to the other": {activity.Filter{Since: time.Time{}.Add(1), Until: time.Time{}.Add(2)}, "hour"},
	} {
		p, err := activity.ReadPoints(t.Context(), operator, tc.f)
		switch {
		case err != nil && (!errors.Is(err, events.ErrInvalid) || !strings.Contains(err.Error(), tc.want)):
			t.Errorf("%s: %v", name, err)
		case err == nil && p.Step != tc.want:
			t.Errorf("%s: step %s, want %s", name, p.Step, tc.want)
		}
	}
	for name, tc := range map[string]struct {
		f      activity.Filter
		points int
		at     int
		want   activity.Point // the point at this index, without its time
	}{
		"sums of the sources": {activity.Filter{}, 3, 1, activity.Point{Counts: activity.Counts{Stored: 2, Dead: 2}}},
		"by source": {activity.Filter{BySource: true, Since: ago(0.5)}, 6, 1,
			activity.Point{Source: "s2", Counts: activity.Counts{Stored: 1, Dead: 2}}},
		"of one source": {activity.Filter{Source: 1}, 3, 2, activity.Point{Counts: activity.Counts{Stored: 1}}},
	} {
		p, err := activity.ReadPoints(t.Context(), operator, tc.f)
		testkit.Must(t, err)
		if len(p.Points) != tc.points || p.Points[tc.at].Counts != tc.want.Counts ||
			p.Points[tc.at].Source != tc.want.Source {
			t.Errorf("%s: %+v", name, p.Points)
		}
	}
}

// No statement reads the minutes or hours completely, whatever the planner knows.
func TestActivity_manyRows_plansUseIndexes(t *testing.T) {
	t.Parallel()
	db := withSources(t, 10)
	db.Exec(t, `INSERT INTO activity_minutes (minute, source, stored)
		SELECT floor(extract(epoch FROM now()) / 60) - n, s, 1 FROM generate_series(0, 1999) n,
		generate_series(1, 10) s;
		INSERT INTO activity_hours (hour, source, stored)
		SELECT floor(extract(epoch FROM now()) / 3600) - n, s, 1 FROM generate_series(0, 1999) n,
		generate_series(1, 10) s;
		INSERT INTO activity_secrets SELECT s, 'a', floor(extract(epoch FROM now()) / 3600) - n, 1, now()
		FROM generate_series(0, 719) n, generate_series(1, 100) s`)
	db.WithEachPlan(t, func(name string, tx pgx.Tx) {
		plan, err := postgres.Collect(t.Context(), tx, pgx.RowTo[string], "EXPLAIN "+activity.SecretsSQL, 1, 24)
		testkit.Must(t, err)
		if text := strings.Join(plan, "\n"); strings.Contains(text, "Seq Scan") {
			t.Errorf("%s: %s", name, text)
		}
		for _, sql := range activity.ReadSQL {
			size := int64(60)
			if strings.Contains(sql, "activity_hours") {
				size = 3600
			}
			now := time.Now().Unix() / size
			plan, err := postgres.Collect(t.Context(), tx, pgx.RowTo[string], "EXPLAIN "+sql, now-14, now+1, int32(1),
				int32(1<<31-1))
			testkit.Must(t, err)
			if text := strings.Join(plan, "\n"); strings.Contains(text, "Seq Scan on activity") {
				t.Errorf("%s: %s", name, text)
			}
		}
	})
}

// BenchmarkReporter_200Sources measures one report of counts of 200 sources that all have new
// counts, with two days of minutes in the table.
func BenchmarkReporter_200Sources(b *testing.B) {
	db := withSources(b, 200)
	db.Exec(b, `INSERT INTO activity_minutes (minute, source, stored)
		SELECT floor(extract(epoch FROM now()) / 60) - n, s, 1 FROM generate_series(1, 2879) n,
		generate_series(1, 200) s`)
	db.Exec(b, `VACUUM ANALYZE activity_minutes`)
	counted := newCounters(b)
	r := &activity.Reporter{Pool: db.Role(b, "operator"), Counters: counted}
	for b.Loop() {
		for n := range 200 {
			source := fmt.Sprint("s", n+1)
			counted.events.WithLabelValues(source, "stored").Inc()
			for _, status := range []string{"applied", "stale", "unchanged"} {
				counted.outcomes.WithLabelValues(source, status).Inc()
			}
		}
		if err := activity.ReportCounts(b.Context(), r); err != nil {
			b.Fatal(err)
		}
	}
}
