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
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/timetable"
)

// Planner enters runs into the ledger when their schedules say so. Any number of processes may plan the same schedules: each planned time is
// one run.
type Planner struct {
	// Pool is connected as postern_processor.
	Pool *pgxpool.Pool
	// Jobs are those that can be planned, by name.
	Jobs   map[string]Plan
	Logger *slog.Logger
	// Every is how often is looked for what is due.
	Every time.Duration

	mu        sync.Mutex
	schedules []Schedule
	// registered: this process has told the tables its schedules.
	registered bool
	// others are schedules that were said to be planned as another process has them.
	others map[string]bool
}

// Replace makes these the schedules that are planned.
func (p *Planner) Replace(schedules []Schedule) {
	schedules = slices.Clone(schedules)
	slices.SortFunc(schedules, func(a, b Schedule) int { return cmp.Compare(a.Name, b.Name) })
	p.mu.Lock()
	defer p.mu.Unlock()
	p.schedules, p.registered, p.others = schedules, false, map[string]bool{}
}

// Run plans until ctx ends. Trouble is logged once per spell, and what was due meanwhile is decided after it.
func (p *Planner) Run(ctx context.Context) error {
	troubled := false
	for ctx.Err() == nil {
		err := p.Tick(ctx)
		if err != nil && !troubled && ctx.Err() == nil {
			p.Logger.Warn("schedules not planned; tried again", "error", err)
		}
		troubled = err != nil
		Pause(ctx, p.Every)
	}
	return nil
}

// Tick decides about everything that is due now.
func (p *Planner) Tick(ctx context.Context) error {
	schedules, err := p.register(ctx)
	if err != nil || len(schedules) == 0 {
		return err
	}
	rows, err := p.Pool.Query(ctx, plannedSQL, names(schedules), seenEvery, plannedWithin)
	if err != nil {
		return fmt.Errorf("read schedules: %w", err)
	}
	all, err := pgx.CollectRows(rows, scanPlanned)
	if err != nil {
		return fmt.Errorf("read schedules: %w", err)
	}
	var bad []error
	for i := range all {
		bad = append(bad, p.decide(ctx, &all[i]))
	}
	return errors.Join(append(bad, p.compare(ctx, schedules, all))...)
}

func names(schedules []Schedule) (all []string) {
	for i := range schedules {
		all = append(all, schedules[i].Name)
	}
	return all
}

// registerSQL keeps what was planned up to now, but where the timetable is another: that is planned from now on.
const registerSQL = `
INSERT INTO schedules AS s (name, job, cron, time_zone, overlap, missed, parameters, planned_at, skipped, skipped_why, paused_by, seen_at)
SELECT c.name, c.job, c.cron, c.time_zone, c.overlap, c.missed, c.parameters, clock_now(), 0, '', '', clock_now()
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::jsonb[]) AS c(name, job, cron, time_zone, overlap, missed, parameters)
ORDER BY c.name
ON CONFLICT (name) DO UPDATE SET job = excluded.job, cron = excluded.cron, time_zone = excluded.time_zone, overlap = excluded.overlap, missed = excluded.missed,
  parameters = excluded.parameters, seen_at = excluded.seen_at,
  planned_at = CASE WHEN (s.cron, s.time_zone) = (excluded.cron, excluded.time_zone) THEN s.planned_at ELSE excluded.planned_at END`

// register tells the tables what this process has to plan, once for each set of schedules, and returns it.
func (p *Planner) register(ctx context.Context) ([]Schedule, error) {
	p.mu.Lock()
	schedules, done := p.schedules, p.registered
	p.mu.Unlock()
	if done || len(schedules) == 0 {
		return schedules, nil
	}
	if err := p.put(ctx, schedules); err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.registered = len(p.schedules) == len(schedules) && &p.schedules[0] == &schedules[0]
	return schedules, nil
}

// put makes the rows of schedules what these are.
func (p *Planner) put(ctx context.Context, schedules []Schedule) (err error) {
	columns := make([][]string, 6)
	parameters := make([]json.RawMessage, len(schedules))
	for i, s := range schedules {
		for column, text := range []string{s.Name, s.Job, s.Cron, s.TimeZone, s.Overlap, s.Missed} {
			columns[column] = append(columns[column], text)
		}
		if parameters[i], err = json.Marshal(s.Parameters); err != nil {
			return err
		}
	}
	if _, err := p.Pool.Exec(ctx, registerSQL, columns[0], columns[1], columns[2], columns[3], columns[4], columns[5], parameters); err != nil {
		return fmt.Errorf("register schedules: %w", err)
	}
	return nil
}

// compare notes that rows are as they are here. A row that is not was registered later, by a process that has another configuration: all go by it as long as any process has it so, and
// after that it becomes what it is here. Without that an old process that starts once more while a new configuration is rolled out would leave its timetable behind.
func (p *Planner) compare(ctx context.Context, schedules []Schedule, all []planned) error {
	var stale []string
	var left []Schedule
	for i := range all {
		s := &all[i]
		here := &schedules[slices.IndexFunc(schedules, func(h Schedule) bool { return h.Name == s.Name })]
		same := s.same(here)
		if p.news(s.Name, !same && !s.left) {
			p.Logger.Warn("schedule planned as another process's configuration has it, until none has it so any more: give all processors the same", "schedule", s.Name,
				"cron", s.Cron, "cron_here", here.Cron)
		}
		switch {
		case same && s.stale:
			stale = append(stale, s.Name)
		case !same && s.left:
			left = append(left, *here)
			p.Logger.Info("schedule planned as it is here: no process has it otherwise any more", "schedule", s.Name, "cron", here.Cron)
		}
	}
	var bad error
	if len(left) > 0 {
		bad = p.put(ctx, left)
	}
	if len(stale) > 0 {
		_, err := p.Pool.Exec(ctx, seenSQL, stale, seenEvery)
		bad = errors.Join(bad, err)
	}
	return bad
}

// news notes whether a schedule is planned as another process has it, and tells whether it was not before.
func (p *Planner) news(name string, other bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	fresh := other && !p.others[name]
	p.others[name] = other
	return fresh
}

// planned is a schedule as its row says, by which all processes go.
type planned struct {
	Schedule
	decided, now time.Time
	paused       bool
	// stale: nobody has noted for a while that a configuration has it like this; left: for so long that none has.
	stale, left bool
}

// same tells whether a schedule is planned as a configuration has it.
func (s *planned) same(as *Schedule) bool {
	return s.Job == as.Job && s.Cron == as.Cron && s.TimeZone == as.TimeZone && s.Overlap == as.Overlap && s.Missed == as.Missed && maps.Equal(s.Parameters, as.Parameters)
}

const (
	plannedSQL = `
SELECT name, job, cron, time_zone, overlap, missed, parameters, planned_at, paused_at IS NOT NULL, clock_now(), seen_at NOT BETWEEN clock_now() - $2::interval AND clock_now(),
  seen_at < clock_now() - $3::interval
FROM schedules WHERE name = ANY($1::text[]) ORDER BY name`

	seenSQL = `UPDATE schedules SET seen_at = clock_now() WHERE name = ANY($1::text[]) AND seen_at NOT BETWEEN clock_now() - $2::interval AND clock_now()`
)

// seenEvery spaces the notes that a schedule is in this process's configuration.
const seenEvery = 10 * time.Second

func scanPlanned(row pgx.CollectableRow) (s planned, err error) {
	return s, row.Scan(&s.Name, &s.Job, &s.Cron, &s.TimeZone, &s.Overlap, &s.Missed, &s.Parameters, &s.decided, &s.paused, &s.now, &s.stale, &s.left)
}

// late is when a planned time counts as missed.
const late = time.Minute

// decide enters a run for the latest planned time that is due, if there is one, or says why it does not.
func (p *Planner) decide(ctx context.Context, s *planned) error {
	times, err := timetable.Parse(s.Cron, s.TimeZone)
	if err != nil {
		return fmt.Errorf("schedule %s: %w", s.Name, err)
	}
	due := times.Latest(s.decided, s.now)
	if s.paused || due.IsZero() {
		return nil
	}
	e, err := p.order(ctx, s, due)
	if err != nil {
		return fmt.Errorf("plan schedule %s: %w", s.Name, err)
	}
	run, skipped, err := p.enter(ctx, s, e, due, "")
	if noRoom(err) {
		run, skipped, err = p.enter(ctx, s, e, due, "another run of job "+s.Job+" is open, and it allows no second")
	}
	if err == nil {
		p.tell(s, e, due, run, skipped)
	}
	return err
}

// enter decides about a planned time: it enters a run, or skips it, always where why says so. Neither, where it was decided meanwhile.
func (p *Planner) enter(ctx context.Context, s *planned, e *entry, due time.Time, why string) (run int64, skipped string, err error) {
	err = postgres.InTx(ctx, p.Pool, "decide schedule "+s.Name, decideWithin, func(ctx context.Context, tx pgx.Tx) (err error) {
		run, skipped = 0, why
		l, err := lockSchedule(ctx, tx, s.Name)
		if err != nil || l.paused || !l.planned.Before(due) || l.cron != s.Cron || l.timeZone != s.TimeZone {
			skipped = ""
			return err // another process was faster, or a person
		}
		switch {
		case skipped != "":
		case s.Missed == MissedSkip && s.now.Sub(due) > late:
			skipped = "nobody was there to see it in time"
		default:
			if skipped, err = overlaps(ctx, tx, &s.Schedule); err != nil {
				return err
			}
		}
		if skipped == "" {
			if run, err = e.enter(ctx, tx); err != nil {
				return err
			}
		}
		_, err = tx.Exec(ctx, decidedSQL, s.Name, due, skipped)
		return err
	})
	return run, skipped, err
}

const decidedSQL = `
UPDATE schedules SET planned_at = $2, skipped = skipped + CASE WHEN $3 = '' THEN 0 ELSE 1 END, skipped_why = CASE WHEN $3 = '' THEN skipped_why ELSE $3 END,
  skipped_at = CASE WHEN $3::text = '' THEN skipped_at ELSE clock_now() END WHERE name = $1`

// order is the entry for a planned time: one that has failed already where the job refuses its parameters. An error passes with time.
func (p *Planner) order(ctx context.Context, s *planned, due time.Time) (*entry, error) {
	plan, ok := p.Jobs[s.Job]
	if !ok {
		return nil, fmt.Errorf("this release does not know job %s; left to other processes", s.Job)
	}
	e := &entry{schedule: s.Name, planned: &due}
	var err error
	e.Order, err = plan(ctx, p.Pool, s.values())
	e.Job, e.Who, e.Reason = s.Job, "schedule "+s.Name, "planned for "+due.UTC().Format(time.RFC3339)
	if errors.Is(err, events.ErrInvalid) || errors.Is(err, events.ErrNotFound) {
		e.Asked, e.fault, err = s.Parameters, err.Error(), nil
	}
	return e, err
}

func (p *Planner) tell(s *planned, e *entry, due time.Time, run int64, skipped string) {
	log := p.Logger.With("schedule", s.Name, "job", s.Job, "planned_at", due)
	switch {
	case skipped != "":
		log.Warn("planned time skipped", "reason", skipped)
	case run != 0 && e.fault != "":
		log.Error("run failed", "run", run, "error", e.fault)
	case run != 0:
		log.Info("run planned", "run", run)
	}
}
