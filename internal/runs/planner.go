package runs

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/lifecycle"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/timetable"
)

// Planner creates the runs of schedules at their planned times. Any number of processes may plan
// the same schedules: each planned time gets one run.
type Planner struct {
	// Pool is connected as postern_processor.
	Pool *pgxpool.Pool
	// Jobs build the requests of the jobs that can be scheduled, by job name.
	Jobs   map[string]RequestBuilder
	Logger *slog.Logger
	// Interval is the time between two searches for due schedules.
	Interval time.Duration

	mu        sync.Mutex
	schedules []Schedule
	// registered is true if the tables have had the current schedules of this process.
	registered bool
	// reportedDifferent are schedules for which this process has logged that another configuration
	// is in force.
	reportedDifferent map[string]bool
}

// Replace sets the schedules to plan.
func (p *Planner) Replace(schedules []Schedule) {
	schedules = slices.Clone(schedules)
	slices.SortFunc(schedules, func(a, b Schedule) int { return cmp.Compare(a.Name, b.Name) })
	p.mu.Lock()
	defer p.mu.Unlock()
	p.schedules, p.registered, p.reportedDifferent = schedules, false, map[string]bool{}
}

// Run plans until ctx ends. It logs only the first of consecutive errors. Planned times during an
// outage are decided after it.
func (p *Planner) Run(ctx context.Context) error {
	return lifecycle.Repeat(ctx, p.Interval, nil, func(err error) {
		p.Logger.Warn("cannot plan schedules; retrying", "error", err)
	}, func(ctx context.Context) (bool, error) { return false, p.Tick(ctx) })
}

// Tick decides all planned times that are due now.
func (p *Planner) Tick(ctx context.Context) error {
	schedules, err := p.register(ctx)
	if err != nil || len(schedules) == 0 {
		return err
	}
	stored, err := postgres.Collect(ctx, p.Pool, pgx.RowToStructByPos[scheduleRow], scheduleRowsSQL,
		scheduleNames(schedules))
	if err != nil {
		return fmt.Errorf("read schedules: %w", err)
	}
	var errs []error
	for i := range stored {
		s := &stored[i]
		configured := slices.IndexFunc(schedules, func(h Schedule) bool { return h.Name == s.Name })
		p.reportDifference(s, &schedules[configured])
		errs = append(errs, p.decide(ctx, s))
	}
	return errors.Join(errs...)
}

func scheduleNames(schedules []Schedule) (names []string) {
	for i := range schedules {
		names = append(names, schedules[i].Name)
	}
	return names
}

// registerSQL writes schedules that are new ($8) or missing, confirms those that are unchanged, and
// replaces those that no process has confirmed for long. It keeps planned_at unless the timetable
// has changed. A changed timetable is planned from now on.
const registerSQL = `
INSERT INTO schedules AS s (name, job, cron, time_zone, overlap, missed, parameters, planned_at, skipped,
	skipped_reason,
	paused_by, configured_at)
SELECT c.name, c.job, c.cron, c.time_zone, c.overlap, c.missed, c.parameters, clock_now(), 0, '', '', clock_now()
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::jsonb[]) AS c(name, job, cron,
	time_zone, overlap, missed, parameters) LEFT JOIN schedules o ON o.name = c.name
WHERE $8 OR o.name IS NULL OR o.configured_at < clock_now() - $10::interval
	OR o.configured_at NOT BETWEEN clock_now() - $9::interval AND clock_now()
	AND (o.job, o.cron, o.time_zone, o.overlap, o.missed, o.parameters) =
		(c.job, c.cron, c.time_zone, c.overlap, c.missed, c.parameters)
ORDER BY c.name
ON CONFLICT (name) DO UPDATE SET job = excluded.job, cron = excluded.cron, time_zone = excluded.time_zone,
	overlap = excluded.overlap, missed = excluded.missed,
  parameters = excluded.parameters, configured_at = excluded.configured_at,
  planned_at = CASE WHEN (s.cron, s.time_zone) = (excluded.cron, excluded.time_zone) THEN s.planned_at
  	ELSE excluded.planned_at END`

// confirmInterval is the minimum time between two confirmations of a row.
const confirmInterval = 10 * time.Second

// register writes the schedules of this process to the tables and returns them. It writes all of
// them once for each set of schedules. Later a row that differs was registered by a process with
// another configuration. All processes follow that row as long as any process confirms it.
// Otherwise an old process that restarts during a rollout would leave its timetable in force.
func (p *Planner) register(ctx context.Context) (schedules []Schedule, err error) {
	p.mu.Lock()
	schedules, done := p.schedules, p.registered
	p.mu.Unlock()
	if len(schedules) == 0 {
		return nil, nil
	}
	columns := make([][]string, 6)
	parameters := make([]json.RawMessage, len(schedules))
	for i, s := range schedules {
		for column, text := range []string{s.Name, s.Job, s.Cron, s.TimeZone, s.Overlap, s.Missed} {
			columns[column] = append(columns[column], text)
		}
		if parameters[i], err = json.Marshal(s.Parameters); err != nil {
			return nil, err
		}
	}
	if _, err := p.Pool.Exec(ctx, registerSQL, columns[0], columns[1], columns[2], columns[3], columns[4], columns[5],
		parameters, !done, confirmInterval, confirmedWithin); err != nil {
		return nil, fmt.Errorf("register schedules: %w", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.registered = len(p.schedules) == len(schedules) && &p.schedules[0] == &schedules[0]
	return schedules, nil
}

// reportDifference logs once that a schedule follows another process's configuration.
func (p *Planner) reportDifference(s *scheduleRow, configured *Schedule) {
	differs := !s.matches(configured)
	p.mu.Lock()
	isNew := differs && !p.reportedDifferent[s.Name]
	p.reportedDifferent[s.Name] = differs
	p.mu.Unlock()
	if isNew {
		p.Logger.Warn("schedule follows another process's configuration until no process has that configuration: "+
			"give all processors the same configuration", "schedule", s.Name,
			"cron", s.Cron, "cron_here", configured.Cron)
	}
}

// scheduleRow is a schedule as stored. All processes follow the stored row.
type scheduleRow struct {
	Schedule
	DecidedUntil time.Time
	Paused       bool
	Now          time.Time
}

// matches reports whether the row equals a configured schedule.
func (s *scheduleRow) matches(configured *Schedule) bool {
	return s.Job == configured.Job && s.Cron == configured.Cron && s.TimeZone == configured.TimeZone &&
		s.Overlap == configured.Overlap && s.Missed == configured.Missed &&
		maps.Equal(s.Parameters, configured.Parameters)
}

const scheduleRowsSQL = `
SELECT name, job, cron, time_zone, overlap, missed, parameters, planned_at, paused_at IS NOT NULL, clock_now()
FROM schedules WHERE name = ANY($1::text[]) ORDER BY name`

// missedAfter is the delay after which a planned time counts as missed.
const missedAfter = time.Minute

// decide creates a run for the latest planned time that is due, or records why it does not.
func (p *Planner) decide(ctx context.Context, s *scheduleRow) error {
	times, err := timetable.Parse(s.Cron, s.TimeZone)
	if err != nil {
		return fmt.Errorf("schedule %s: %w", s.Name, err)
	}
	due := times.Latest(s.DecidedUntil, s.Now)
	if s.Paused || due.IsZero() {
		return nil
	}
	entry, err := p.buildRun(ctx, s, due)
	if err != nil {
		return fmt.Errorf("plan schedule %s: %w", s.Name, err)
	}
	run, skipped, err := p.insertOrSkip(ctx, s, entry, due, "")
	if isOpenRunConflict(err) {
		run, skipped, err = p.insertOrSkip(ctx, s, entry, due, "another run of job "+s.Job+
			" is open, and the job allows only one")
	}
	if err == nil {
		p.logDecision(s, entry, due, run, skipped)
	}
	return err
}

// insertOrSkip decides a planned time: it inserts a run or skips the time. A reason in skipReason
// always skips it. Both results are empty if the time was decided meanwhile.
func (p *Planner) insertOrSkip(ctx context.Context, s *scheduleRow, e *newRun, due time.Time,
	skipReason string) (run int64, skipped string, err error) {
	err = postgres.InTx(ctx, p.Pool, "decide schedule "+s.Name, decideTimeout,
		func(ctx context.Context, tx pgx.Tx) (err error) {
			run, skipped = 0, skipReason
			locked, err := lockSchedule(ctx, tx, s.Name)
			if err != nil || locked.paused || !locked.plannedAt.Before(due) || locked.cron != s.Cron ||
				locked.timeZone != s.TimeZone {
				skipped = ""
				return err // another process or an operator was faster
			}
			switch {
			case skipped != "":
			case s.Missed == MissedSkip && s.Now.Sub(due) > missedAfter:
				skipped = "no processor was running at the planned time"
			default:
				if skipped, err = overlapReason(ctx, tx, &s.Schedule); err != nil {
					return err
				}
			}
			if skipped == "" {
				if run, err = e.insert(ctx, tx); err != nil {
					return err
				}
			}
			_, err = tx.Exec(ctx, recordDecisionSQL, s.Name, due, skipped)
			return err
		})
	return run, skipped, err
}

const recordDecisionSQL = `
UPDATE schedules SET planned_at = $2, skipped = skipped + CASE WHEN $3 = '' THEN 0 ELSE 1 END, skipped_reason = CASE
	WHEN $3 = '' THEN skipped_reason ELSE $3 END,
  skipped_at = CASE WHEN $3::text = '' THEN skipped_at ELSE clock_now() END WHERE name = $1`

// buildRun returns the run for a planned time. If the job rejects the parameters, the run is
// created as failed. Any other error may pass, and the time is decided later.
func (p *Planner) buildRun(ctx context.Context, s *scheduleRow, due time.Time) (*newRun, error) {
	build, ok := p.Jobs[s.Job]
	if !ok {
		return nil, fmt.Errorf("this release does not know job %s; other processes may plan it", s.Job)
	}
	e := &newRun{schedule: s.Name, plannedAt: &due}
	var err error
	e.Request, err = build(ctx, p.Pool, s.Parameters)
	e.Job, e.Actor, e.Reason = s.Job, "schedule "+s.Name, "planned for "+due.UTC().Format(time.RFC3339)
	if errors.Is(err, events.ErrInvalid) || errors.Is(err, events.ErrNotFound) {
		e.Params, e.failure, err = s.Parameters, err.Error(), nil
	}
	return e, err
}

func (p *Planner) logDecision(s *scheduleRow, e *newRun, due time.Time, run int64, skipped string) {
	log := p.Logger.With("schedule", s.Name, "job", s.Job, "planned_at", due)
	switch {
	case skipped != "":
		log.Warn("planned time skipped", "reason", skipped)
	case run != 0 && e.failure != "":
		log.Error("run failed", "run", run, "error", e.failure)
	case run != 0:
		log.Info("run planned", "run", run)
	}
}
