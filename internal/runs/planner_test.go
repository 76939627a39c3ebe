package runs_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/timetable"
)

// clock is the database's, in the hand of a test.
type clock struct {
	testBundle
	db *testkit.DB
}

func setupClock(t *testing.T, at string) *clock {
	t.Helper()
	db := testkit.Database(t)
	for _, sql := range []string{`CREATE TABLE test_clock (at timestamptz)`, `INSERT INTO test_clock VALUES ('` + at + `')`, `GRANT SELECT ON test_clock TO PUBLIC`,
		`CREATE OR REPLACE FUNCTION clock_now() RETURNS timestamptz LANGUAGE sql VOLATILE AS 'SELECT at FROM postern.test_clock'`} {
		db.Exec(t, sql)
	}
	return &clock{testBundle{db.Role(t, "operator"), db.Role(t, "processor")}, db}
}

func (c *clock) set(t *testing.T, at time.Time) {
	t.Helper()
	c.db.Exec(t, `UPDATE test_clock SET at = $1`, at)
}

func instant(t *testing.T, text string) time.Time {
	t.Helper()
	at, err := time.Parse(time.RFC3339, text)
	must(t, err)
	return at
}

// jobs has a job that takes the parameter at, and refuses "bad".
var jobs = map[string]runs.Plan{job: func(_ context.Context, _ *pgxpool.Pool, values url.Values) (o runs.Order, err error) {
	switch values.Get("at") {
	case "bad":
		return o, fmt.Errorf("%w: at", events.ErrInvalid)
	case "away":
		return o, errors.New("no answer")
	}
	o.Asked, o.Propose = map[string]string{"at": values.Get("at")}, values.Get("at") == "asking"
	return o, nil
}}

func (b *testBundle) planner(schedules ...runs.Schedule) *runs.Planner {
	p := &runs.Planner{Pool: b.processor, Jobs: jobs, Logger: slog.New(slog.DiscardHandler), Every: time.Millisecond}
	p.Replace(schedules)
	return p
}

func schedule(name, cron string) runs.Schedule {
	return runs.Schedule{Name: name, Job: job, Cron: cron, Overlap: runs.OverlapSkip, Missed: runs.MissedRun, Parameters: map[string]string{"at": "x"}}
}

func tick(t *testing.T, p *runs.Planner) {
	t.Helper()
	must(t, p.Tick(t.Context()))
}

// at sets the clock and plans.
func (c *clock) at(t *testing.T, p *runs.Planner, text string) {
	t.Helper()
	c.set(t, instant(t, text))
	tick(t, p)
}

// of are the runs of a schedule, the oldest first: when they were planned, and how they stand.
func (b *testBundle) of(t *testing.T, name string) (all []string) {
	t.Helper()
	page, err := runs.List(t.Context(), b.operator, runs.Filter{Schedule: name}, "", 500)
	must(t, err)
	for i := range page.Items {
		r := page.Items[len(page.Items)-1-i]
		all = append(all, r.PlannedAt.UTC().Format("02 15:04 ")+string(r.Status))
	}
	return all
}

// finish ends every run that can be taken.
func (b *testBundle) finish(t *testing.T) (n int) {
	t.Helper()
	for h := b.take(t, "me", time.Hour); h != nil; h = b.take(t, "me", time.Hour) {
		must(t, h.End(t.Context(), runs.Done, ""))
		n++
	}
	return n
}

func (b *testBundle) scheduled(t *testing.T, name string) *runs.Scheduled {
	t.Helper()
	s, err := runs.ShowSchedule(t.Context(), b.operator, name)
	must(t, err)
	return s
}

// Each planned time is one run, however many processes plan it, whenever they end and wherever in between: killed by their context, by the
// loss of their session, or replaced.
func TestAPlannedTimeIsOneRun(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(testkit.Seed(t), 3))
	now := time.Date(2026, 10, 24, 20, 0, 0, 0, time.UTC)
	c := setupClock(t, now.Format(time.RFC3339))
	s := schedule("often", "*/20 0-23 * * *")
	s.TimeZone = "Europe/Berlin"
	times, err := timetable.Parse(s.Cron, s.TimeZone)
	must(t, err)
	const n = 5
	planners := make([]*runs.Planner, n)
	for i := range planners {
		planners[i] = c.planner(s)
	}
	tick(t, planners[0])
	decided := now
	var want []string
	for range 40 {
		now = now.Add(time.Duration(r.IntN(3600)) * time.Second)
		if r.IntN(10) == 0 {
			now = now.Add(-time.Hour) // and nothing is decided twice
		}
		c.set(t, now)
		var all sync.WaitGroup
		for i := range planners {
			if r.IntN(4) == 0 {
				planners[i] = c.planner(s)
			}
			p, after, kills := planners[i], time.Duration(r.IntN(6000))*time.Microsecond, i == 0 && r.IntN(3) == 0
			all.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), after)
				defer cancel()
				_ = p.Tick(ctx) // killed, perhaps
				if kills {
					_, _ = c.db.Pool.Exec(t.Context(), `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND query LIKE '%schedules%'`)
				}
			})
		}
		all.Go(func() { // so that no run that is open keeps another away
			for range 30 {
				if h, err := runs.Take(t.Context(), c.processor, "me", time.Hour, job); err == nil && h != nil {
					for h.End(t.Context(), runs.Done, "") != nil && t.Context().Err() == nil {
						continue // its session was one of those that are killed
					}
				}
			}
		})
		all.Wait()
		testkit.Eventually(t, time.Minute, func() error { return planners[r.IntN(n)].Tick(t.Context()) })
		if due := times.Latest(decided, now); !due.IsZero() {
			decided = due
			want = append(want, due.UTC().Format("02 15:04 ")+"done")
		}
		c.finish(t)
	}
	equal(t, "want one run for each planned time", want, c.of(t, "often"))
	if s := c.scheduled(t, "often"); s.Skipped != 0 {
		t.Errorf("%d were decided again: %s", s.Skipped, s.SkippedWhy)
	}
	if len(want) < 10 {
		t.Errorf("only %d planned times: nothing is shown", len(want))
	}
}

// A schedule begins when it is first seen; what was missed is one run; a clock that goes back decides nothing again.
func TestAbsence(t *testing.T) {
	t.Parallel()
	c := setupClock(t, "2026-05-01T12:00:00Z")
	runOnce, none := schedule("run", "0 * * * *"), schedule("none", "0 * * * *")
	none.Missed = runs.MissedSkip
	p := c.planner(runOnce, none)
	tick(t, p)
	if got := c.of(t, "run"); got != nil {
		t.Errorf("a new schedule has runs: %v", got)
	}
	c.at(t, p, "2026-05-01T13:00:30Z")
	c.finish(t)
	c.at(t, p, "2026-05-04T09:30:00Z")
	c.at(t, p, "2026-05-02T09:30:00Z")
	c.at(t, p, "2026-05-04T09:59:59Z")
	c.finish(t)
	c.at(t, p, "2026-05-04T10:00:00Z")
	equal(t, "", []string{"01 13:00 done", "04 09:00 done", "04 10:00 waiting"}, c.of(t, "run"))
	equal(t, "", []string{"01 13:00 done", "04 10:00 waiting"}, c.of(t, "none"))
	if s := c.scheduled(t, "none"); s.Skipped != 1 || !strings.Contains(s.SkippedWhy, "nobody was there") || s.SkippedAt.IsZero() {
		t.Errorf("%+v", s)
	}
	if s := c.scheduled(t, "run"); s.Skipped != 0 || s.Last == 0 || s.LastStatus != runs.Waiting || s.Next.Hour() != 11 || !s.SucceededAt.Equal(instant(t, "2026-05-04T09:59:59Z")) {
		t.Errorf("%+v", s)
	}
}

// While a run is open the next planned time is skipped, or waits: one at most, and only for the end of the first.
func TestOverlaps(t *testing.T) {
	t.Parallel()
	c := setupClock(t, "2026-05-01T12:00:00Z")
	skip, queue := schedule("skip", "0 * * * *"), schedule("queue", "0 * * * *")
	queue.Overlap = runs.OverlapQueue
	p, lease := c.planner(skip, queue), 24*time.Hour
	tick(t, p)
	c.at(t, p, "2026-05-01T13:00:00Z")
	first, second := c.take(t, "me", lease), c.take(t, "me", lease)
	c.at(t, p, "2026-05-01T14:00:00Z")
	c.at(t, p, "2026-05-01T14:30:00Z")
	if h := c.take(t, "me", lease); h != nil {
		t.Fatalf("a run was taken while the one before is open: %+v", h.Run)
	}
	c.at(t, p, "2026-05-01T15:00:00Z")
	equal(t, "", []string{"01 13:00 running"}, c.of(t, "skip"))
	equal(t, "", []string{"01 13:00 running", "01 14:00 waiting"}, c.of(t, "queue"))
	for _, h := range []*runs.Hold{first, second} {
		must(t, h.End(t.Context(), runs.Failed, "for a test"))
	}
	if n := c.finish(t); n != 1 {
		t.Errorf("%d runs were waiting", n)
	}
	c.at(t, p, "2026-05-01T16:00:00Z")
	equal(t, "", []string{"01 13:00 failed", "01 16:00 waiting"}, c.of(t, "skip"))
	if s := c.scheduled(t, "skip"); s.Skipped != 2 || !strings.Contains(s.SkippedWhy, "is still running") || !s.SucceededAt.IsZero() {
		t.Errorf("%+v", s)
	}
	if s := c.scheduled(t, "queue"); s.Skipped != 1 || !strings.Contains(s.SkippedWhy, "is still waiting") {
		t.Errorf("%+v", s)
	}
}

// What is planned while a schedule is paused passes by.
func TestPause(t *testing.T) {
	t.Parallel()
	c := setupClock(t, "2026-05-01T12:00:00Z")
	p := c.planner(schedule("s", "0 * * * *"))
	tick(t, p)
	s, err := runs.PauseSchedule(t.Context(), c.operator, "s", "me")
	if err != nil || s.PausedBy != "me" || s.PausedAt.IsZero() || !s.Next.IsZero() {
		t.Fatalf("%+v, %v", s, err)
	}
	if s, err = runs.PauseSchedule(t.Context(), c.operator, "s", "another"); err != nil || s.PausedBy != "me" {
		t.Errorf("%+v, %v", s, err)
	}
	c.at(t, p, "2026-05-01T14:30:00Z")
	if s, err = runs.ResumeSchedule(t.Context(), c.operator, "s"); err != nil || !s.PausedAt.IsZero() || s.Next.Hour() != 15 {
		t.Errorf("%+v, %v", s, err)
	}
	c.at(t, p, "2026-05-01T14:40:00Z")
	c.at(t, p, "2026-05-01T15:00:01Z")
	equal(t, "", []string{"01 15:00 waiting"}, c.of(t, "s"))
	if _, err := runs.PauseSchedule(t.Context(), c.operator, "none", "me"); !errors.Is(err, events.ErrNotFound) {
		t.Error(err)
	}
}

// Another timetable counts from when it is seen; what no process has in its configuration is not planned, and said to be so.
func TestChangedSchedules(t *testing.T) {
	t.Parallel()
	c := setupClock(t, "2026-05-01T12:00:00Z")
	p := c.planner(schedule("a", "0 14 * * *"), schedule("b", "0 14 * * *"))
	tick(t, p)
	changed := schedule("a", "0 16 * * *")
	changed.Parameters = map[string]string{"at": "y"}
	p.Replace([]runs.Schedule{changed})
	c.at(t, p, "2026-05-01T18:00:00Z")
	if c.of(t, "a") != nil || c.of(t, "b") != nil {
		t.Errorf("%v %v", c.of(t, "a"), c.of(t, "b"))
	}
	c.at(t, p, "2026-05-02T16:00:00Z")
	equal(t, "", []string{"02 16:00 waiting"}, c.of(t, "a"))
	if s := c.scheduled(t, "b"); s.Planned || !s.Next.IsZero() {
		t.Errorf("%+v", s)
	}
	if r := c.show(t, c.scheduled(t, "a").Last); string(r.Asked) != `{"at": "y"}` || r.Schedule != "a" || r.Who != "schedule a" || r.Reason != "planned for 2026-05-02T16:00:00Z" {
		t.Errorf("%+v", r)
	}
	c.set(t, instant(t, "2026-05-20T00:00:00Z"))
	if all, err := runs.Schedules(t.Context(), c.operator, "", 0); err != nil || len(all.Items) != 0 {
		t.Errorf("%+v, %v", all, err)
	}
}

// Processes whose configurations differ go by the one that came last, and the other says so; when no process has that any more, what one has comes back, by itself.
func TestTwoConfigurations(t *testing.T) {
	t.Parallel()
	c := setupClock(t, "2026-05-01T12:00:00Z")
	of := schedule("a", "0 16 * * *")
	of.Parameters = map[string]string{"at": "y"}
	old, fresh := c.planner(schedule("a", "0 14 * * *")), c.planner(of)
	var saidByOld, saidByFresh bytes.Buffer
	old.Logger, fresh.Logger = slog.New(slog.NewTextHandler(&saidByOld, nil)), slog.New(slog.NewTextHandler(&saidByFresh, nil))
	tick(t, old)
	tick(t, fresh)
	both := func(at string, old *runs.Planner, cron string) {
		t.Helper()
		c.at(t, fresh, at)
		c.at(t, old, at)
		if got := c.scheduled(t, "a"); got.Cron != cron || !got.Planned {
			t.Errorf("at %s: %+v, want %s", at, got, cron)
		}
	}
	both("2026-05-01T12:00:59Z", old, "0 16 * * *")
	both("2026-05-01T14:00:00Z", old, "0 16 * * *") // which nobody has been seen with for long, but who has it is there
	both("2026-05-01T14:00:30Z", old, "0 16 * * *")
	old = c.planner(schedule("a", "0 14 * * *")) // it ends, and comes again
	both("2026-05-01T15:57:00Z", old, "0 14 * * *")
	both("2026-05-01T15:57:40Z", old, "0 14 * * *")
	both("2026-05-01T15:58:20Z", old, "0 14 * * *")
	c.at(t, fresh, "2026-05-01T15:59:19Z") // it has ended for good
	if got := c.scheduled(t, "a"); got.Cron != "0 14 * * *" {
		t.Errorf("taken back before a minute was over: %+v", got)
	}
	c.at(t, fresh, "2026-05-01T15:59:21Z")
	if got := c.scheduled(t, "a"); got.Cron != "0 16 * * *" || got.Parameters["at"] != "y" || !got.Planned {
		t.Errorf("not taken back: %+v", got)
	}
	c.at(t, fresh, "2026-05-01T16:00:00Z")
	equal(t, "", []string{"01 16:00 waiting"}, c.of(t, "a"))
	const warns = `level=WARN msg="schedule planned as another process's configuration has it`
	for _, said := range []*bytes.Buffer{&saidByOld, &saidByFresh} {
		if strings.Count(said.String(), warns) != 1 || !strings.Contains(said.String(), `schedule=a`) {
			t.Errorf("said\n%s", said)
		}
	}
	if !strings.Contains(saidByOld.String(), `cron="0 16 * * *" cron_here="0 14 * * *"`) {
		t.Error(saidByOld.String())
	}
}

// Parameters that the job refuses make a run that has failed, so that somebody sees it; trouble that passes is waited for.
func TestWhatCannotBePlanned(t *testing.T) {
	t.Parallel()
	c := setupClock(t, "2026-05-01T12:00:00Z")
	bad, away, other := schedule("bad", "0 * * * *"), schedule("away", "0 * * * *"), schedule("other", "0 * * * *")
	bad.Parameters["at"], away.Parameters["at"], other.Job = "bad", "away", "unknown"
	p := c.planner(bad, away, other, schedule("good", "0 * * * *"))
	var log bytes.Buffer
	p.Logger = slog.New(slog.NewTextHandler(&log, nil))
	tick(t, p)
	c.set(t, instant(t, "2026-05-01T13:00:00Z"))
	err := p.Tick(t.Context())
	if err == nil || !strings.Contains(err.Error(), "plan schedule away: no answer") || !strings.Contains(err.Error(), "does not know job unknown") {
		t.Error(err)
	}
	for name, want := range map[string][]string{"bad": {"01 13:00 failed"}, "away": nil, "other": nil, "good": {"01 13:00 waiting"}} {
		equal(t, name, want, c.of(t, name))
	}
	if r := c.show(t, c.scheduled(t, "bad").Last); !strings.Contains(r.Detail, "at") || r.EndedAt.IsZero() {
		t.Errorf("%+v", r)
	}
	if !strings.Contains(log.String(), `level=ERROR msg="run failed" schedule=bad job=replay`) {
		t.Error(log.String())
	}
	p.Jobs = map[string]runs.Plan{job: func(context.Context, *pgxpool.Pool, url.Values) (runs.Order, error) { return runs.Order{Asked: 1}, nil }}
	if err := p.Tick(t.Context()); err == nil || c.of(t, "away") == nil {
		t.Errorf("%v, %v", c.of(t, "away"), err)
	}
}

// A job that allows one open run has the planned time of another schedule skipped, and a person told.
func TestJobsOfOneOpenRun(t *testing.T) {
	t.Parallel()
	c := setupClock(t, "2026-05-01T12:00:00Z")
	c.db.Exec(t, `CREATE UNIQUE INDEX one_open ON runs (job) WHERE ended_at IS NULL`)
	p := c.planner(schedule("a", "0 * * * *"), schedule("b", "0 * * * *"), schedule("c", "0 0 1 1 *"))
	tick(t, p)
	c.at(t, p, "2026-05-01T13:00:00Z")
	if s := c.scheduled(t, "b"); c.of(t, "a") == nil || c.of(t, "b") != nil || s.Skipped != 1 || !strings.Contains(s.SkippedWhy, "another run of job replay is open") {
		t.Errorf("%v %v %+v", c.of(t, "a"), c.of(t, "b"), s)
	}
	if _, _, err := runs.Fire(t.Context(), c.operator, jobs, "c", "me", "", ""); !errors.Is(err, events.ErrInvalid) || !strings.Contains(err.Error(), "it allows no second") {
		t.Error(err)
	}
	c.finish(t)
	c.at(t, p, "2026-05-01T14:00:00Z")
	order := runs.Order{Job: job, OnceKey: "k"}
	if _, _, err := runs.AskOnce(t.Context(), c.operator, order); err == nil {
		t.Error("a second open run")
	}
	c.finish(t)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			if _, _, err := runs.AskOnce(t.Context(), c.operator, order); err != nil {
				t.Errorf("one key, one run: %v", err)
			}
		})
	}
	all.Wait()
}

// A run that a person must approve is open from the start.
func TestProposedByASchedule(t *testing.T) {
	t.Parallel()
	c := setupClock(t, "2026-05-01T12:00:00Z")
	s := schedule("s", "0 * * * *")
	s.Parameters["at"], s.Overlap = "asking", runs.OverlapQueue
	p := c.planner(s)
	tick(t, p)
	c.at(t, p, "2026-05-01T13:00:00Z")
	c.at(t, p, "2026-05-01T14:00:00Z")
	if diff := cmp.Diff([]string{"01 13:00 proposed"}, c.of(t, "s")); diff != "" || c.scheduled(t, "s").Skipped != 1 {
		t.Error(diff)
	}
}
