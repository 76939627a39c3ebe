package runs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/timetable"
)

// What becomes of a planned time at which a run of the schedule is still open: nothing, or a run that waits for its end, of which there is at
// most one.
const (
	OverlapSkip  = "skip"
	OverlapQueue = "queue"
)

// What becomes of a planned time that comes more than a minute late, since nobody was there to see it: one run for all of them, or none.
const (
	MissedRun  = "run"
	MissedSkip = "skip"
)

// Schedule is a job that is asked for by a clock.
type Schedule struct {
	Name string `json:"schedule"`
	Job  string `json:"job"`
	// Cron and TimeZone are as timetable.Parse takes them.
	Cron     string `json:"cron"`
	TimeZone string `json:"time_zone"`
	Overlap  string `json:"overlap"`
	Missed   string `json:"missed"`
	// Parameters are what the job is asked for, in the words of its command's flags.
	Parameters map[string]string `json:"parameters"`
}

// Scheduled is a schedule as it stands.
type Scheduled struct {
	Schedule
	// Next is the next planned time; zero while the schedule is paused or no process plans it.
	Next events.Instant `json:"next"`
	// DecidedAt: everything planned up to then was decided.
	DecidedAt events.Instant `json:"decided_at"`
	// Skipped counts planned times that no run was entered for; SkippedWhy says why of the last, at SkippedAt.
	Skipped    int64          `json:"skipped"`
	SkippedAt  events.Instant `json:"skipped_at"`
	SkippedWhy string         `json:"skipped_why"`
	// SucceededAt is when the last run that succeeded was done.
	SucceededAt events.Instant `json:"succeeded_at"`
	PausedAt    events.Instant `json:"paused_at"`
	PausedBy    string         `json:"paused_by"`
	// SeenAt is when a processor last said that its configuration has the schedule; Planned, that this was less than a minute ago.
	SeenAt  events.Instant `json:"seen_at"`
	Planned bool           `json:"planned"`
	// Last is the newest run; 0 for none. LastStatus is how it stands.
	Last       int64          `json:"last_run"`
	LastStatus Status         `json:"last_status"`
	LastEnded  events.Instant `json:"last_ended_at"`

	now time.Time
}

// Parameter values, as a job reads them.
func (s *Schedule) values() url.Values {
	values := url.Values{}
	for name, value := range s.Parameters {
		values.Set(name, value)
	}
	return values
}

const scheduleColumns = `s.name, s.job, s.cron, s.time_zone, s.overlap, s.missed, s.parameters, s.planned_at, s.skipped, s.skipped_at, s.skipped_why, s.succeeded_at,
  s.paused_at, s.paused_by, s.seen_at, clock_now(), coalesce(l.run, 0), coalesce(l.status, ''), l.ended_at
FROM schedules s LEFT JOIN LATERAL (SELECT r.run, r.status, r.ended_at FROM runs r WHERE r.schedule = s.name ORDER BY r.run DESC LIMIT 1) l ON true`

const (
	schedulesSQL    = `SELECT ` + scheduleColumns + ` WHERE s.seen_at > clock_now() - $1::interval AND s.name > $2 ORDER BY s.name LIMIT $3`
	showScheduleSQL = `SELECT ` + scheduleColumns + ` WHERE s.name = $1`
)

const (
	// plannedWithin is how long ago a processor must have spoken of a schedule for it to be planned.
	plannedWithin = time.Minute
	// keptFor is how long a schedule that no configuration has any more is shown.
	keptFor = 7 * 24 * time.Hour
)

// Schedules returns a page of schedules by name, without those that have been in no process's configuration for a week. Errors: events.ErrInvalid.
func Schedules(ctx context.Context, pool *pgxpool.Pool, cursor string, limit int) (events.Page[Scheduled], error) {
	var page events.Page[Scheduled]
	limit, err := events.PageSize(limit)
	if err != nil {
		return page, err
	}
	var after string
	if err := events.ReadCursor(cursor, &after); err != nil {
		return page, err
	}
	rows, err := pool.Query(ctx, schedulesSQL, keptFor, after, limit)
	if err != nil {
		return page, fmt.Errorf("list schedules: %w", err)
	}
	if page.Items, err = pgx.CollectRows(rows, scanSchedule); err != nil {
		return page, fmt.Errorf("list schedules: %w", err)
	}
	if len(page.Items) == limit {
		page.Next = events.MakeCursor(page.Items[limit-1].Name)
	}
	return page, nil
}

// ShowSchedule returns one schedule. Errors: events.ErrNotFound.
func ShowSchedule(ctx context.Context, db postgres.DB, name string) (*Scheduled, error) {
	rows, err := db.Query(ctx, showScheduleSQL, name)
	if err != nil {
		return nil, fmt.Errorf("show schedule %s: %w", name, err)
	}
	found, err := pgx.CollectExactlyOneRow(rows, scanSchedule)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil, fmt.Errorf("schedule %s: %w", name, events.ErrNotFound)
	case err != nil:
		return nil, fmt.Errorf("show schedule %s: %w", name, err)
	}
	return &found, nil
}

func scanSchedule(row pgx.CollectableRow) (Scheduled, error) {
	var s Scheduled
	var skipped, succeeded, paused, ended *time.Time
	err := row.Scan(&s.Name, &s.Job, &s.Cron, &s.TimeZone, &s.Overlap, &s.Missed, &s.Parameters, &s.DecidedAt.Time, &s.Skipped, &skipped, &s.SkippedWhy,
		&succeeded, &paused, &s.PausedBy, &s.SeenAt.Time, &s.now, &s.Last, &s.LastStatus, &ended)
	if err != nil {
		return s, err
	}
	s.SkippedAt, s.SucceededAt, s.PausedAt, s.LastEnded = instant(skipped), instant(succeeded), instant(paused), instant(ended)
	s.Planned = s.now.Sub(s.SeenAt.Time) < plannedWithin
	if t, err := timetable.Parse(s.Cron, s.TimeZone); err == nil && s.Planned && paused == nil {
		s.Next.Time = t.Next(s.DecidedAt.Time)
	}
	return s, nil
}

const pauseSQL = `
UPDATE schedules SET paused_at = clock_now(), paused_by = $2 WHERE name = $1 AND paused_at IS NULL`

const resumeSQL = `
UPDATE schedules SET paused_at = NULL, paused_by = '', planned_at = clock_now() WHERE name = $1 AND paused_at IS NOT NULL`

// PauseSchedule lets planned times pass by until ResumeSchedule; runs that are open go on. It returns the schedule as it stands then. Errors: events.ErrNotFound.
func PauseSchedule(ctx context.Context, db postgres.DB, name, who string) (*Scheduled, error) {
	if _, err := db.Exec(ctx, pauseSQL, name, cmp.Or(events.Text(who), "unknown")); err != nil {
		return nil, fmt.Errorf("pause schedule %s: %w", name, err)
	}
	return ShowSchedule(ctx, db, name)
}

// ResumeSchedule has a schedule planned again, from now on. Errors: events.ErrNotFound.
func ResumeSchedule(ctx context.Context, db postgres.DB, name string) (*Scheduled, error) {
	if _, err := db.Exec(ctx, resumeSQL, name); err != nil {
		return nil, fmt.Errorf("resume schedule %s: %w", name, err)
	}
	return ShowSchedule(ctx, db, name)
}

// Plan makes an order out of parameters, but for who asks and why. It is called without a pool for a check that connects to nothing. An error
// that is events.ErrInvalid or events.ErrNotFound is the parameters' fault.
type Plan func(ctx context.Context, pool *pgxpool.Pool, parameters url.Values) (Order, error)

// Fire asks for a schedule's job now, paused or not, as who; its overlap policy holds. It returns the run and whether it is new: with a once
// key that was used before it is the first one's. Errors: events.ErrNotFound, events.ErrInvalid.
func Fire(ctx context.Context, pool *pgxpool.Pool, jobs map[string]Plan, name, who, reason, onceKey string) (run int64, fresh bool, err error) {
	f, err := PlanFire(ctx, pool, jobs, name, who, reason, onceKey)
	if err != nil {
		return 0, false, err
	}
	err = postgres.InTx(ctx, pool, "run schedule "+name, decideWithin, func(ctx context.Context, tx pgx.Tx) (err error) {
		run, fresh, err = f.Enter(ctx, tx)
		return err
	})
	return run, fresh, err
}

// Firing is a run of a schedule that somebody wants now.
type Firing struct {
	entry
	scheduled *Scheduled
}

// PlanFire reads what Fire would enter. Errors: events.ErrNotFound, events.ErrInvalid.
func PlanFire(ctx context.Context, pool *pgxpool.Pool, jobs map[string]Plan, name, who, reason, onceKey string) (*Firing, error) {
	if err := checkKey(onceKey); err != nil {
		return nil, err
	}
	s, err := ShowSchedule(ctx, pool, name)
	if err != nil {
		return nil, err
	}
	plan, ok := jobs[s.Job]
	if !ok {
		return nil, fmt.Errorf("%w: schedule %s is of job %s, which this release does not know", events.ErrInvalid, name, s.Job)
	}
	order, err := plan(ctx, pool, s.values())
	if err != nil {
		return nil, fmt.Errorf("plan schedule %s: %w", name, err)
	}
	order.Job, order.Who, order.Reason, order.OnceKey, order.Said = s.Job, who, reason, onceKey, "schedule="+name
	return &Firing{entry{Order: order, schedule: name}, s}, nil
}

// Enter enters the run and says whether it is new. Errors: events.ErrInvalid, after which the transaction is of no more use.
func (f *Firing) Enter(ctx context.Context, tx pgx.Tx) (run int64, fresh bool, err error) {
	if f.OnceKey != "" {
		if run, err := f.earlier(ctx, tx); err != nil || run != 0 {
			return run, false, err
		}
	}
	if _, err := lockSchedule(ctx, tx, f.schedule); err != nil {
		return 0, false, err
	}
	why, err := overlaps(ctx, tx, &f.scheduled.Schedule)
	if err != nil {
		return 0, false, err
	}
	if why == "" {
		if run, err := f.enter(ctx, tx); err != nil || run != 0 {
			return run, true, f.explain(err)
		}
	}
	if f.OnceKey != "" { // whoever was faster may have entered it meanwhile
		if run, err := f.earlier(ctx, tx); err != nil || run != 0 {
			return run, false, err
		}
	}
	return 0, false, fmt.Errorf("%w: %s", events.ErrInvalid, why)
}

func (f *Firing) explain(err error) error {
	if noRoom(err) {
		return fmt.Errorf("%w: another run of job %s is open, and it allows no second", events.ErrInvalid, f.Job)
	}
	return err
}

// decideWithin bounds the transaction in which a planned time is decided.
const decideWithin = 10 * time.Second

// locked is what must still hold once the schedule's row is locked.
type locked struct {
	planned        time.Time
	paused         bool
	cron, timeZone string
}

const lockScheduleSQL = `SELECT planned_at, paused_at IS NOT NULL, cron, time_zone FROM schedules WHERE name = $1 FOR UPDATE`

// lockSchedule lets one process at a time decide about a schedule.
func lockSchedule(ctx context.Context, tx pgx.Tx, name string) (l locked, err error) {
	err = tx.QueryRow(ctx, lockScheduleSQL, name).Scan(&l.planned, &l.paused, &l.cron, &l.timeZone)
	return l, err
}

const openSQL = `SELECT run, status FROM runs WHERE schedule = $1 AND ended_at IS NULL ORDER BY run`

// overlaps says why there is no room for another run of a schedule; "" where there is.
func overlaps(ctx context.Context, tx pgx.Tx, s *Schedule) (why string, err error) {
	rows, err := tx.Query(ctx, openSQL, s.Name)
	if err != nil {
		return "", err
	}
	var run int64
	var status Status
	_, err = pgx.ForEachRow(rows, []any{&run, &status}, func() error {
		if s.Overlap == OverlapSkip || status != Running {
			why = fmt.Sprintf("run %d of schedule %s is still %s", run, s.Name, status)
		}
		return nil
	})
	return why, err
}
