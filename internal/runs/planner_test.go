package runs_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/timetable"
)

// testClock replaces the database's clock.
type testClock struct {
	testBundle
	db *testkit.DB
}

func setupClock(t *testing.T, at string) *testClock {
	t.Helper()
	db := testkit.Database(t)
	db.StopClock(t, instant(t, at))
	return &testClock{testBundle{db.Role(t, "operator"), db.Role(t, "processor")}, db}
}

func (c *testClock) set(t *testing.T, at time.Time) {
	t.Helper()
	c.db.Exec(t, `UPDATE test_clock SET at = $1`, at)
}

func instant(t *testing.T, text string) time.Time {
	t.Helper()
	at, err := time.Parse(time.RFC3339, text)
	must(t, err)
	return at
}

// jobs has a job with the parameter at; it rejects "bad".
var jobs = map[string]runs.RequestBuilder{job: func(_ context.Context, _ *pgxpool.Pool,
	values map[string]string) (o runs.Request, err error) {
	switch values["at"] {
	case "bad":
		return o, fmt.Errorf("%w: at", events.ErrInvalid)
	case "away":
		return o, errors.New("no response")
	}
	o.Params, o.NeedsApproval = map[string]string{"at": values["at"]}, values["at"] == "asking"
	return o, nil
}}

func (b *testBundle) planner(schedules ...runs.Schedule) *runs.Planner {
	p := &runs.Planner{Pool: b.processor, Jobs: jobs, Logger: slog.New(slog.DiscardHandler), Interval: time.Millisecond}
	p.Replace(schedules)
	return p
}

func schedule(name, cron string) runs.Schedule {
	return runs.Schedule{Name: name, Job: job, Cron: cron, Overlap: runs.OverlapSkip, Missed: runs.MissedRun,
		Parameters: map[string]string{"at": "x"}}
}

func tick(t *testing.T, p *runs.Planner) {
	t.Helper()
	must(t, p.Tick(t.Context()))
}

// at sets the clock and plans.
func (c *testClock) at(t *testing.T, p *runs.Planner, text string) {
	t.Helper()
	c.set(t, instant(t, text))
	tick(t, p)
}

// runsOf returns the runs of a schedule, the oldest first, as planned time and status.
func (b *testBundle) runsOf(t *testing.T, name string) (all []string) {
	t.Helper()
	page, err := runs.List(t.Context(), b.operator, runs.Filter{Schedule: name}, "", 500)
	must(t, err)
	for i := range page.Items {
		r := page.Items[len(page.Items)-1-i]
		all = append(all, r.PlannedAt.UTC().Format("02 15:04 ")+string(r.Status))
	}
	return all
}

// finish leases and ends all open runs.
func (b *testBundle) finish(t *testing.T) (n int) {
	t.Helper()
	for h := b.acquire(t, "me", time.Hour); h != nil; h = b.acquire(t, "me", time.Hour) {
		must(t, h.End(t.Context(), runs.Done, ""))
		n++
	}
	return n
}

func (b *testBundle) scheduleState(t *testing.T, name string) *runs.ScheduleState {
	t.Helper()
	s, err := runs.ShowSchedule(t.Context(), b.operator, name)
	must(t, err)
	return s
}

// Each planned time gets one run, however many processes plan it. Planners are stopped by their
// context, lose their session or are replaced at any moment.
func TestPlanner_concurrentPlannersAndLostSessions_oneRunPerPlannedTime(t *testing.T) {
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
			now = now.Add(-time.Hour) // no time may be decided twice
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
				_ = p.Tick(ctx) // the context may end it
				if kills {
					_, _ = c.db.Pool.Exec(t.Context(), `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
						WHERE datname = current_database() AND pid <> pg_backend_pid() AND query LIKE '%schedules%'`)
				}
			})
		}
		all.Go(func() { // ends runs, so that no open run causes a skip
			for range 30 {
				if h, err := runs.Acquire(t.Context(), c.processor, "me", time.Hour, job); err == nil && h != nil {
					for h.End(t.Context(), runs.Done, "") != nil && t.Context().Err() == nil {
						continue // its session may be one of those that the test kills
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
	equal(t, "runs per planned time", want, c.runsOf(t, "often"))
	if s := c.scheduleState(t, "often"); s.Skipped != 0 {
		t.Errorf("%d times were skipped: %s", s.Skipped, s.SkippedReason)
	}
	if len(want) < 10 {
		t.Errorf("only %d planned times, too few for this test", len(want))
	}
}

// Planning starts when a schedule is registered. All missed times together get one run. A clock
// that is set back decides nothing again.
func TestPlanner_missedTimes_oneRunOrSkip(t *testing.T) {
	t.Parallel()
	c := setupClock(t, "2026-05-01T12:00:00Z")
	runOnce, skipping := schedule("run", "0 * * * *"), schedule("none", "0 * * * *")
	skipping.Missed = runs.MissedSkip
	p := c.planner(runOnce, skipping)
	tick(t, p)
	if got := c.runsOf(t, "run"); got != nil {
		t.Errorf("a new schedule has runs: %v", got)
	}
	c.at(t, p, "2026-05-01T13:00:30Z")
	c.finish(t)
	c.at(t, p, "2026-05-04T09:30:00Z")
	c.at(t, p, "2026-05-02T09:30:00Z")
	c.at(t, p, "2026-05-04T09:59:59Z")
	c.finish(t)
	c.at(t, p, "2026-05-04T10:00:00Z")
	equal(t, "", []string{"01 13:00 done", "04 09:00 done", "04 10:00 queued"}, c.runsOf(t, "run"))
	equal(t, "", []string{"01 13:00 done", "04 10:00 queued"}, c.runsOf(t, "none"))
	if s := c.scheduleState(t, "none"); s.Skipped != 1 || !strings.Contains(s.SkippedReason,
		"no processor was running") || s.SkippedAt.IsZero() {
		t.Errorf("%+v", s)
	}
	if s := c.scheduleState(t, "run"); s.Skipped != 0 || s.LastRun == 0 || s.LastStatus != runs.Queued ||
		s.Next.Hour() != 11 || !s.SucceededAt.Equal(instant(t, "2026-05-04T09:59:59Z")) {
		t.Errorf("%+v", s)
	}
}

// While a run is open, the next planned time is skipped or queued. At most one run is queued, and
// it starts after the first has ended. A run that awaits approval counts as open.
func TestPlanner_runStillOpen_skipsOrQueues(t *testing.T) {
	t.Parallel()
	c := setupClock(t, "2026-05-01T12:00:00Z")
	const hourly = "0 * * * *"
	skip, queue, approval := schedule("skip", hourly), schedule("queue", hourly), schedule("approval", hourly)
	queue.Overlap, approval.Overlap, approval.Parameters["at"] = runs.OverlapQueue, runs.OverlapQueue, "asking"
	p, lease := c.planner(skip, queue, approval), 24*time.Hour
	tick(t, p)
	c.at(t, p, "2026-05-01T13:00:00Z")
	first, second := c.acquire(t, "me", lease), c.acquire(t, "me", lease)
	c.at(t, p, "2026-05-01T14:00:00Z")
	c.at(t, p, "2026-05-01T14:30:00Z")
	if h := c.acquire(t, "me", lease); h != nil {
		t.Fatalf("leased a run while the schedule's previous run is open: %+v", h.Run)
	}
	c.at(t, p, "2026-05-01T15:00:00Z")
	equal(t, "", []string{"01 13:00 running"}, c.runsOf(t, "skip"))
	equal(t, "", []string{"01 13:00 running", "01 14:00 queued"}, c.runsOf(t, "queue"))
	equal(t, "", []string{"01 13:00 awaiting_approval"}, c.runsOf(t, "approval"))
	if s := c.scheduleState(t, "approval"); s.Skipped != 2 {
		t.Errorf("%+v", s)
	}
	for _, h := range []*runs.Lease{first, second} {
		must(t, h.End(t.Context(), runs.Failed, "for a test"))
	}
	if n := c.finish(t); n != 1 {
		t.Errorf("%d runs were queued", n)
	}
	c.at(t, p, "2026-05-01T16:00:00Z")
	equal(t, "", []string{"01 13:00 failed", "01 16:00 queued"}, c.runsOf(t, "skip"))
	if s := c.scheduleState(t, "skip"); s.Skipped != 2 || !strings.Contains(s.SkippedReason, "is still running") ||
		!s.SucceededAt.IsZero() {
		t.Errorf("%+v", s)
	}
	if s := c.scheduleState(t, "queue"); s.Skipped != 1 || !strings.Contains(s.SkippedReason, "is still queued") {
		t.Errorf("%+v", s)
	}
}

// Planned times during a pause get no run.
func TestPauseSchedule_plannedTimesDuringPause_createNoRuns(t *testing.T) {
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
	if s, err = runs.ResumeSchedule(t.Context(), c.operator, "s"); err != nil || !s.PausedAt.IsZero() ||
		s.Next.Hour() != 15 {
		t.Errorf("%+v, %v", s, err)
	}
	c.at(t, p, "2026-05-01T14:40:00Z")
	c.at(t, p, "2026-05-01T15:00:01Z")
	equal(t, "", []string{"01 15:00 queued"}, c.runsOf(t, "s"))
	if _, err := runs.PauseSchedule(t.Context(), c.operator, "none", "me"); !errors.Is(err, events.ErrNotFound) {
		t.Error(err)
	}
}

// A changed timetable is planned from its registration on. A schedule that no process has in its
// configuration is not planned and is shown as such.
func TestPlanner_timetableChanges_planningStartsAgain(t *testing.T) {
	t.Parallel()
	c := setupClock(t, "2026-05-01T12:00:00Z")
	p := c.planner(schedule("a", "0 14 * * *"), schedule("b", "0 14 * * *"))
	tick(t, p)
	changed := schedule("a", "0 16 * * *")
	changed.Parameters = map[string]string{"at": "y"}
	p.Replace([]runs.Schedule{changed})
	c.at(t, p, "2026-05-01T18:00:00Z")
	if c.runsOf(t, "a") != nil || c.runsOf(t, "b") != nil {
		t.Errorf("%v %v", c.runsOf(t, "a"), c.runsOf(t, "b"))
	}
	c.at(t, p, "2026-05-02T16:00:00Z")
	equal(t, "", []string{"02 16:00 queued"}, c.runsOf(t, "a"))
	if s := c.scheduleState(t, "b"); s.Planned || !s.Next.IsZero() {
		t.Errorf("%+v", s)
	}
	if r := c.show(t, c.scheduleState(t, "a").LastRun); string(r.Params) != `{"at": "y"}` || r.Schedule != "a" ||
		r.Actor != "schedule a" || r.Reason != "planned for 2026-05-02T16:00:00Z" {
		t.Errorf("%+v", r)
	}
	c.set(t, instant(t, "2026-05-20T00:00:00Z"))
	if all, err := runs.ListSchedules(t.Context(), c.operator, "", 0); err != nil || len(all.Items) != 0 {
		t.Errorf("%+v, %v", all, err)
	}
}

// Processes with different configurations follow the one that was registered last, and the others
// log that. When no process has that configuration any more, the remaining one is used again.
func TestPlanner_differentConfigurations_latestRegisteredWins(t *testing.T) {
	t.Parallel()
	c := setupClock(t, "2026-05-01T12:00:00Z")
	changed := schedule("a", "0 16 * * *")
	changed.Parameters = map[string]string{"at": "y"}
	old, newer := c.planner(schedule("a", "0 14 * * *")), c.planner(changed)
	var oldLog, newerLog bytes.Buffer
	old.Logger, newer.Logger = slog.New(slog.NewTextHandler(&oldLog, nil)),
		slog.New(slog.NewTextHandler(&newerLog, nil))
	tick(t, old)
	tick(t, newer)
	both := func(at string, old *runs.Planner, cron string) {
		t.Helper()
		c.at(t, newer, at)
		c.at(t, old, at)
		if got := c.scheduleState(t, "a"); got.Cron != cron || !got.Planned {
			t.Errorf("at %s: %+v, want %s", at, got, cron)
		}
	}
	both("2026-05-01T12:00:59Z", old, "0 16 * * *")
	// No process has registered it recently, but a process that has it still runs.
	both("2026-05-01T14:00:00Z", old, "0 16 * * *")
	both("2026-05-01T14:00:30Z", old, "0 16 * * *")
	old = c.planner(schedule("a", "0 14 * * *")) // the process restarts
	both("2026-05-01T15:57:00Z", old, "0 14 * * *")
	both("2026-05-01T15:57:40Z", old, "0 14 * * *")
	both("2026-05-01T15:58:20Z", old, "0 14 * * *")
	c.at(t, newer, "2026-05-01T15:59:19Z") // the process has ended for good
	if got := c.scheduleState(t, "a"); got.Cron != "0 14 * * *" {
		t.Errorf("replaced before a minute had passed: %+v", got)
	}
	c.at(t, newer, "2026-05-01T15:59:21Z")
	if got := c.scheduleState(t, "a"); got.Cron != "0 16 * * *" || got.Parameters["at"] != "y" || !got.Planned {
		t.Errorf("not replaced: %+v", got)
	}
	c.at(t, newer, "2026-05-01T16:00:00Z")
	equal(t, "", []string{"01 16:00 queued"}, c.runsOf(t, "a"))
	const warns = `level=WARN msg="schedule follows another process's configuration`
	for _, logged := range []*bytes.Buffer{&oldLog, &newerLog} {
		if strings.Count(logged.String(), warns) != 1 || !strings.Contains(logged.String(), `schedule=a`) {
			t.Errorf("logged\n%s", logged)
		}
	}
	if !strings.Contains(oldLog.String(), `cron="0 16 * * *" cron_here="0 14 * * *"`) {
		t.Error(oldLog.String())
	}
}

// Parameters that the job rejects create a failed run, which operators see. Errors that may pass
// only delay the planning.
func TestPlanner_invalidParameters_createsFailedRun(t *testing.T) {
	t.Parallel()
	c := setupClock(t, "2026-05-01T12:00:00Z")
	bad, unavailable, other := schedule("bad", "0 * * * *"), schedule("away", "0 * * * *"),
		schedule("other", "0 * * * *")
	bad.Parameters["at"], unavailable.Parameters["at"], other.Job = "bad", "away", "unknown"
	p := c.planner(bad, unavailable, other, schedule("good", "0 * * * *"))
	var log bytes.Buffer
	p.Logger = slog.New(slog.NewTextHandler(&log, nil))
	tick(t, p)
	c.set(t, instant(t, "2026-05-01T13:00:00Z"))
	err := p.Tick(t.Context())
	if err == nil || !strings.Contains(err.Error(), "plan schedule away: no response") ||
		!strings.Contains(err.Error(), "does not know job unknown") {
		t.Error(err)
	}
	for name, want := range map[string][]string{"bad": {"01 13:00 failed"}, "away": nil, "other": nil,
		"good": {"01 13:00 queued"}} {
		equal(t, name, want, c.runsOf(t, name))
	}
	if r := c.show(t, c.scheduleState(t, "bad").LastRun); !strings.Contains(r.Detail, "at") || r.EndedAt.IsZero() {
		t.Errorf("%+v", r)
	}
	if !strings.Contains(log.String(), `level=ERROR msg="run failed" schedule=bad job=replay`) {
		t.Error(log.String())
	}
	p.Jobs = map[string]runs.RequestBuilder{job: func(context.Context, *pgxpool.Pool, map[string]string) (runs.Request,
		error) {
		return runs.Request{Params: 1}, nil
	}}
	if err := p.Tick(t.Context()); err == nil || c.runsOf(t, "away") == nil {
		t.Errorf("%v, %v", c.runsOf(t, "away"), err)
	}
}

// If a job allows one open run, the planned time of another schedule is skipped with a reason.
func TestPlanner_jobAllowsOneOpenRun_skipsAndReports(t *testing.T) {
	t.Parallel()
	c := setupClock(t, "2026-05-01T12:00:00Z")
	c.db.Exec(t, `CREATE UNIQUE INDEX one_open ON runs (job) WHERE ended_at IS NULL`)
	p := c.planner(schedule("a", "0 * * * *"), schedule("b", "0 * * * *"), schedule("c", "0 0 1 1 *"))
	tick(t, p)
	c.at(t, p, "2026-05-01T13:00:00Z")
	if s := c.scheduleState(t, "b"); c.runsOf(t, "a") == nil || c.runsOf(t, "b") != nil || s.Skipped != 1 ||
		!strings.Contains(s.SkippedReason, "another run of job replay is open") {
		t.Errorf("%v %v %+v", c.runsOf(t, "a"), c.runsOf(t, "b"), s)
	}
	if _, _, err := runs.RunSchedule(t.Context(), c.operator, jobs, "c", "me", "", ""); !errors.Is(err,
		events.ErrInvalid) || !strings.Contains(err.Error(), "the job allows only one") {
		t.Error(err)
	}
	c.finish(t)
	c.at(t, p, "2026-05-01T14:00:00Z")
	request := runs.Request{Job: job, IdempotencyKey: "k"}
	if _, _, err := runs.CreateIdempotent(t.Context(), c.operator, request); err == nil {
		t.Error("a second open run")
	}
	c.finish(t)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			if _, _, err := runs.CreateIdempotent(t.Context(), c.operator, request); err != nil {
				t.Errorf("a request with the same key failed: %v", err)
			}
		})
	}
	all.Wait()
}
