package runs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/timetable"
)

// The overlap policies: what happens at a planned time while a run of the schedule is still open.
// OverlapSkip skips the time. OverlapQueue queues one run, at most one at a time.
const (
	OverlapSkip  = "skip"
	OverlapQueue = "queue"
)

// The policies for planned times that are decided more than a minute late, because no processor was
// running. MissedRun creates one run for all of them, MissedSkip none.
const (
	MissedRun  = "run"
	MissedSkip = "skip"
)

// Schedule is a job with a timetable.
type Schedule struct {
	Name string `json:"schedule"`
	Job  string `json:"job"`
	// Cron and TimeZone are written as in the configuration.
	Cron     string `json:"cron"`
	TimeZone string `json:"time_zone"`
	Overlap  string `json:"overlap"`
	Missed   string `json:"missed"`
	// Parameters are the parameters of the job, named like its command's flags.
	Parameters map[string]string `json:"parameters"`
}

// ScheduleState is a schedule with its current state.
type ScheduleState struct {
	Schedule
	// Next is the next planned time; zero while the schedule is paused or no process plans it.
	Next events.Instant `json:"next"`
	// DecidedAt is the time up to which all planned times are decided.
	DecidedAt events.Instant `json:"decided_at"`
	// Skipped counts planned times without a run. SkippedAt is the last of these times, and
	// SkippedReason says why it has no run.
	Skipped       int64          `json:"skipped"`
	SkippedAt     events.Instant `json:"skipped_at"`
	SkippedReason string         `json:"skipped_reason"`
	// SucceededAt is when the last successful run ended.
	SucceededAt events.Instant `json:"succeeded_at"`
	PausedAt    events.Instant `json:"paused_at"`
	PausedBy    string         `json:"paused_by"`
	// ConfirmedAt is when a processor last confirmed that its configuration has the schedule.
	// Planned is true if a processor confirmed it less than a minute ago.
	ConfirmedAt events.Instant `json:"configured_at"`
	Planned     bool           `json:"planned"`
	// LastRun is the number of the newest run; 0 for none. LastStatus is the status of the newest
	// run; "" for none.
	LastRun     int64          `json:"last_run"`
	LastStatus  Status         `json:"last_status"`
	LastEndedAt events.Instant `json:"last_ended_at"`
}

const scheduleColumns = `s.name, s.job, s.cron, s.time_zone, s.overlap, s.missed, s.parameters, s.planned_at, s.skipped,
	s.skipped_at, s.skipped_reason, s.succeeded_at,
  s.paused_at, s.paused_by, s.configured_at, clock_now(), coalesce(l.run, 0), coalesce(l.status, ''), l.ended_at
FROM schedules s LEFT JOIN LATERAL (SELECT r.run, r.status, r.ended_at FROM runs r WHERE r.schedule = s.name
	ORDER BY r.run DESC LIMIT 1) l ON true`

const (
	schedulesSQL = `SELECT ` + scheduleColumns + ` WHERE s.configured_at > clock_now() - $1::interval AND s.name > $2
		ORDER BY s.name LIMIT $3`
	showScheduleSQL = `SELECT ` + scheduleColumns + ` WHERE s.name = $1`
)

const (
	// confirmedWithin is the maximum age of a confirmation of a schedule that counts as planned.
	confirmedWithin = time.Minute
	// displayFor is how long a schedule is listed after no configuration has it any more.
	displayFor = 7 * 24 * time.Hour
)

// ListSchedules returns a page of schedules by name, without those that no process has had in its
// configuration for a week. Errors: events.ErrInvalid.
func ListSchedules(ctx context.Context, db postgres.DB, cursor string, limit int) (events.Page[ScheduleState],
	error) {
	return events.ReadPage("list schedules", cursor, limit, "", func(s *ScheduleState) string { return s.Name },
		func(after string, limit int) ([]ScheduleState, error) {
			return postgres.Collect(ctx, db, scanSchedule, schedulesSQL, displayFor, after, limit)
		})
}

// ShowSchedule returns one schedule. Errors: events.ErrNotFound.
func ShowSchedule(ctx context.Context, db postgres.DB, name string) (*ScheduleState, error) {
	found, err := postgres.CollectOne(ctx, db, scanSchedule, showScheduleSQL, name)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil, fmt.Errorf("schedule %s: %w", name, events.ErrNotFound)
	case err != nil:
		return nil, fmt.Errorf("show schedule %s: %w", name, err)
	}
	return &found, nil
}

func scanSchedule(row pgx.CollectableRow) (ScheduleState, error) {
	var s ScheduleState
	var now time.Time
	err := row.Scan(&s.Name, &s.Job, &s.Cron, &s.TimeZone, &s.Overlap, &s.Missed, &s.Parameters, &s.DecidedAt,
		&s.Skipped, &s.SkippedAt, &s.SkippedReason, &s.SucceededAt, &s.PausedAt, &s.PausedBy, &s.ConfirmedAt, &now,
		&s.LastRun, &s.LastStatus, &s.LastEndedAt)
	if err != nil {
		return s, err
	}
	s.Planned = now.Sub(s.ConfirmedAt.Time) < confirmedWithin
	if t, err := timetable.Parse(s.Cron, s.TimeZone); err == nil && s.Planned && s.PausedAt.IsZero() {
		s.Next.Time = t.Next(s.DecidedAt.Time)
	}
	return s, nil
}

const pauseSQL = `
UPDATE schedules SET paused_at = clock_now(), paused_by = $2 WHERE name = $1 AND paused_at IS NULL`

const resumeSQL = `
UPDATE schedules SET paused_at = NULL, paused_by = '', planned_at = clock_now() WHERE name = $1
	AND paused_at IS NOT NULL`

// PauseSchedule skips planned times until ResumeSchedule. Open runs continue. It returns the
// changed schedule. Errors: events.ErrNotFound.
func PauseSchedule(ctx context.Context, db postgres.DB, name, actor string) (*ScheduleState, error) {
	if _, err := db.Exec(ctx, pauseSQL, name, cmp.Or(events.SanitizeText(actor), "unknown")); err != nil {
		return nil, fmt.Errorf("pause schedule %s: %w", name, err)
	}
	return ShowSchedule(ctx, db, name)
}

// ResumeSchedule plans a schedule again, from now on. Errors: events.ErrNotFound.
func ResumeSchedule(ctx context.Context, db postgres.DB, name string) (*ScheduleState, error) {
	if _, err := db.Exec(ctx, resumeSQL, name); err != nil {
		return nil, fmt.Errorf("resume schedule %s: %w", name, err)
	}
	return ShowSchedule(ctx, db, name)
}

// RequestBuilder builds a request from parameters; the caller adds actor and reason. A
// configuration check calls it without a pool. The errors events.ErrInvalid and events.ErrNotFound
// mean that the parameters are wrong.
type RequestBuilder func(ctx context.Context, pool *pgxpool.Pool, parameters map[string]string) (Request, error)

// ScheduleRun is a run of a schedule that an operator requests now.
type ScheduleRun struct {
	newRun
	state *ScheduleState
}

// PrepareScheduleRun reads what Insert needs to create a run of a schedule's job now, paused or
// not. The overlap policy applies. With an idempotency key that was used before, Insert returns the
// earlier run. Errors: events.ErrNotFound, events.ErrInvalid.
func PrepareScheduleRun(ctx context.Context, pool *pgxpool.Pool, jobs map[string]RequestBuilder, name, actor, reason,
	idempotencyKey string) (*ScheduleRun, error) {
	if err := checkKey(idempotencyKey); err != nil {
		return nil, err
	}
	s, err := ShowSchedule(ctx, pool, name)
	if err != nil {
		return nil, err
	}
	build, ok := jobs[s.Job]
	if !ok {
		return nil, fmt.Errorf("%w: schedule %s is of job %s, which this release does not know", events.ErrInvalid,
			name, s.Job)
	}
	request, err := build(ctx, pool, s.Parameters)
	if err != nil {
		return nil, fmt.Errorf("plan schedule %s: %w", name, err)
	}
	request.Job, request.Actor, request.Reason, request.IdempotencyKey, request.ParamsText = s.Job, actor, reason,
		idempotencyKey, "schedule="+name
	return &ScheduleRun{newRun{Request: request, schedule: name}, s}, nil
}

// Insert inserts the run and reports whether it is new. Errors: events.ErrInvalid, after which the
// caller must roll back the transaction.
func (f *ScheduleRun) Insert(ctx context.Context, tx pgx.Tx) (run int64, created bool, err error) {
	if f.IdempotencyKey != "" {
		if run, err := f.findByKey(ctx, tx); err != nil || run != 0 {
			return run, false, err
		}
	}
	if _, err := lockSchedule(ctx, tx, f.schedule); err != nil {
		return 0, false, err
	}
	overlap, err := overlapReason(ctx, tx, &f.state.Schedule)
	if err != nil {
		return 0, false, err
	}
	if overlap == "" {
		if run, err := f.insert(ctx, tx); err != nil || run != 0 {
			return run, true, f.explainConflict(err)
		}
	}
	if f.IdempotencyKey != "" { // a concurrent request may have inserted it meanwhile
		if run, err := f.findByKey(ctx, tx); err != nil || run != 0 {
			return run, false, err
		}
	}
	return 0, false, fmt.Errorf("%w: %s", events.ErrInvalid, overlap)
}

func (f *ScheduleRun) explainConflict(err error) error {
	if isOpenRunConflict(err) {
		return fmt.Errorf("%w: another run of job %s is open, and the job allows only one", events.ErrInvalid, f.Job)
	}
	return err
}

// decideTimeout limits the transaction that decides a planned time.
const decideTimeout = 10 * time.Second

// lockedSchedule are the columns to check again after the schedule's row is locked.
type lockedSchedule struct {
	plannedAt      time.Time
	paused         bool
	cron, timeZone string
}

const lockScheduleSQL = `SELECT planned_at, paused_at IS NOT NULL, cron, time_zone FROM schedules
	WHERE name = $1 FOR UPDATE`

// lockSchedule ensures that one process at a time decides about a schedule.
func lockSchedule(ctx context.Context, tx pgx.Tx, name string) (l lockedSchedule, err error) {
	err = tx.QueryRow(ctx, lockScheduleSQL, name).Scan(&l.plannedAt, &l.paused, &l.cron, &l.timeZone)
	return l, err
}

const openRunsSQL = `SELECT run, status FROM runs WHERE schedule = $1 AND ended_at IS NULL ORDER BY run`

// overlapReason says which open run prevents another run of a schedule; "" if none does.
func overlapReason(ctx context.Context, tx pgx.Tx, s *Schedule) (reason string, err error) {
	var run int64
	var status Status
	err = postgres.ForEach(ctx, tx, openRunsSQL, []any{s.Name}, []any{&run, &status}, func() error {
		if s.Overlap == OverlapSkip || status != Running {
			reason = fmt.Sprintf("run %d of schedule %s is still %s", run, s.Name, status)
		}
		return nil
	})
	return reason, err
}
