// Package windows evaluates effect rules that are on a schedule, at each time of the schedule for
// every object of their type. The processor daemon runs it. It plans effects and never executes
// them.
package windows

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/effects"
	"github.com/postern-gateway/postern/internal/effects/rules"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/lifecycle"
	"github.com/postern-gateway/postern/internal/postgres"
)

// Settings are the limits and timings; tests change them.
type Settings struct {
	// Every is the interval of ticks, and the time that a tick spends before it reports errors.
	Every time.Duration
	// After a round of pages there is a pause, PauseFactor times as long as the round took, and at
	// most Every: a large window must not slow down events that are applied meanwhile. Pages have
	// no pause if their window ended longer ago than PausedAge or half an interval of the schedule,
	// and if they evaluate deferred objects. Each process pauses on its own.
	PauseFactor int
	PausedAge   time.Duration
	// PageObjects bounds the objects of a transaction. PageTime bounds the time of their
	// evaluation, after the first object.
	PageObjects int
	PageTime    time.Duration
	// PageBytes bounds the bytes of stored objects that a transaction reads.
	PageBytes int64
	// PageChanges bounds the changes that a transaction compares with a summary.
	PageChanges int
	// AbsentAfter is for how long other rules may be evaluated without a rule before it counts as
	// removed. If it comes back later, it starts at that time.
	AbsentAfter time.Duration
	// TxTimeout bounds one transaction.
	TxTimeout time.Duration
}

// DefaultSettings are the settings of production.
var DefaultSettings = Settings{Every: time.Second, PauseFactor: 20, PausedAge: 5 * time.Minute, PageObjects: 200,
	PageTime: time.Second, PageBytes: 4 << 20, PageChanges: 2000, AbsentAfter: time.Hour, TxTimeout: 10 * time.Second}

// Options configure a Scheduler.
type Options struct {
	// Pool is connected as postern_processor.
	Pool     *pgxpool.Pool
	Settings Settings
	Logger   *slog.Logger
	// Metrics may be nil.
	Metrics *Metrics
	// NotifyDestinations is called with the destinations that have a step due; it may be nil.
	NotifyDestinations func(destinations []string)
}

// Scheduler evaluates rules on a schedule. Several processes may evaluate the same rules; a row
// lock lets one of them work on a rule at a time.
type Scheduler struct {
	Options

	mu    sync.Mutex
	rules []*rules.Rule

	// frozenID is an id up to which the log is complete. maintainedAt is the time of the last
	// maintenance. Only the goroutine of Tick uses them.
	frozenID     int64
	maintainedAt time.Time
	// clockLoggedAt is the time of the last log line about each rule that is ahead of the
	// database's clock; only the goroutine of Tick uses it.
	clockLoggedAt map[string]time.Time
}

// New returns a scheduler without rules; Replace sets them.
func New(o Options) *Scheduler { return &Scheduler{Options: o} }

// Replace sets the rules. A rule whose schedule, source or type changed starts with its first time
// from now on.
func (a *Scheduler) Replace(all *effects.Rules) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.rules = all.Scheduled()
	a.Metrics.register(a.rules)
}

func (a *Scheduler) currentRules() []*rules.Rule {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.rules
}

// Run evaluates rules until ctx ends. Consecutive errors are logged once. Windows that became due
// meanwhile are evaluated after the errors stop.
func (a *Scheduler) Run(ctx context.Context) error {
	return lifecycle.Repeat(ctx, a.Settings.Every, nil, func(err error) {
		a.Logger.Warn("rules on a schedule not evaluated; retrying", "error", err)
	}, func(ctx context.Context) (bool, error) { return false, a.Tick(ctx) })
}

// Tick evaluates what is due, and continues while there is more, until Every has passed. It
// evaluates one page of each rule in turn, so that no rule waits for all objects of another. Each
// round reads the rules and their due windows again, so that a reload and a new window take effect
// at once. An error of one rule does not stop the others.
func (a *Scheduler) Tick(ctx context.Context) error {
	began := time.Now()
	if err := errors.Join(a.advanceClock(ctx), a.maintain(ctx)); err != nil {
		a.Metrics.setUnknown()
		return err
	}
	idle := map[string]bool{} // until the next tick: rules that have nothing more to do at once, or failed
	var bad []error
	for more := true; more && ctx.Err() == nil; {
		var pause bool
		var err error
		roundBegan := time.Now()
		if more, pause, err = a.round(ctx, idle); err != nil {
			bad = append(bad, err)
		}
		if time.Since(began) > a.Settings.Every {
			break
		}
		if pause {
			select {
			case <-ctx.Done():
			case <-time.After(min(time.Duration(a.Settings.PauseFactor)*time.Since(roundBegan), a.Settings.Every)):
			}
		}
	}
	return errors.Join(bad...)
}

// round evaluates a page of each rule that is due and not idle. pause reports that all rules with
// more to do have time for a pause.
func (a *Scheduler) round(ctx context.Context, idle map[string]bool) (more, pause bool, err error) {
	all := a.currentRules()
	if len(all) == 0 {
		a.Metrics.setBehind(nil)
		return false, false, nil
	}
	due, until, err := a.dueRules(ctx, all)
	if err != nil {
		a.Metrics.setUnknown()
		return false, false, err
	}
	if until > a.frozenID {
		if err := a.freeze(ctx); err != nil {
			return false, false, err
		}
	}
	var bad []error
	pause = true
	for _, rule := range due {
		if idle[rule.Name] {
			continue
		}
		hasMore, hasTime, err := a.processPage(ctx, rule)
		if err != nil {
			bad = append(bad, fmt.Errorf("rule %s: %w", rule.Name, err))
		}
		idle[rule.Name] = !hasMore
		more, pause = more || hasMore, pause && (hasTime || !hasMore)
	}
	return more, more && pause, errors.Join(bad...)
}

const (
	// registerSQL makes new rules start with their first time from now on.
	registerSQL = `
INSERT INTO effect_windows (rule, source, object_type, cron, time_zone, decided_at, clock_seconds)
SELECT c.rule, s.number, c.type, c.cron, c.zone, clock_now(), coalesce((SELECT seconds FROM effect_schedule_clock), 0)
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[]) AS c(rule, source, type, cron, zone)
	JOIN sources s ON s.name = c.source
ORDER BY c.rule
ON CONFLICT DO NOTHING`

	// progressSQL reads the progress of rules, for how long others were evaluated without them, and
	// whether they have deferred objects that are certain now.
	progressSQL = `
SELECT c.n, w.decided_at, w.window_end, clock_now(), coalesce((SELECT seconds FROM effect_schedule_clock),
	0) - w.clock_seconds,
  EXISTS (SELECT FROM effect_window_waits v LEFT JOIN objects o USING (source, account, object_type, object_id)
    WHERE v.rule = w.rule AND v.source = w.source AND v.object_type = w.object_type AND ` + certainSQL + `)
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[]) WITH ORDINALITY AS c(rule, source, type, cron,
	zone, n) JOIN sources s ON s.name = c.source
JOIN effect_windows w ON w.rule = c.rule AND w.source = s.number AND w.object_type = c.type AND w.cron = c.cron
	AND w.time_zone = c.zone
ORDER BY c.n`
)

// ruleColumns returns rules as arguments of the statements above.
func ruleColumns(all []*rules.Rule) []any {
	columns := make([][]string, 5)
	for _, r := range all {
		for i, text := range []string{r.Name, r.Source, r.Type, r.Schedule.Cron, r.Schedule.TimeZone} {
			columns[i] = append(columns[i], text)
		}
	}
	return []any{columns[0], columns[1], columns[2], columns[3], columns[4]}
}

// freeze waits for appends in progress, so that each event of a window that is over is visible.
func (a *Scheduler) freeze(ctx context.Context) (err error) {
	ctx, cancel := lifecycle.WithTimeout(ctx, "wait for appends", a.Settings.TxTimeout)
	defer cancel()
	a.frozenID, err = events.FreezeBound(ctx, a.Pool)
	return err
}

// lastIDBefore returns the greatest id of an event stored before a time.
func lastIDBefore(before time.Time) int64 { return events.FirstID(before) - 1 }

// progress is the progress of a rule.
type progress struct {
	rule           *rules.Rule
	doneUntil, now time.Time
	// openWindowEnd is the end of the window in progress; nil if there is none.
	openWindowEnd *time.Time
	// absentSeconds is for how many seconds others were evaluated without it.
	absentSeconds int64
	// hasDeferred reports that it has deferred objects that are certain now.
	hasDeferred bool
}

// readProgress returns the progress of registered rules.
func (a *Scheduler) readProgress(ctx context.Context, all []*rules.Rule) (registered []progress, err error) {
	var n int64
	var s progress
	err = postgres.ForEach(ctx, a.Pool, progressSQL, ruleColumns(all), []any{&n, &s.doneUntil, &s.openWindowEnd, &s.now,
		&s.absentSeconds, &s.hasDeferred}, func() error {
		s.rule = all[n-1]
		registered = append(registered, s)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the progress of rules: %w", err)
	}
	return registered, nil
}

// dueRules returns the rules that have work, and the last id of the windows that are over. It
// registers new rules, which have no work yet.
func (a *Scheduler) dueRules(ctx context.Context, all []*rules.Rule) (due []*rules.Rule, until int64, err error) {
	registered, err := a.readProgress(ctx, all)
	if err != nil {
		return nil, 0, err
	}
	var absent []*rules.Rule
	markEvaluated := false
	behind := map[string]time.Duration{}
	for _, rule := range all {
		behind[rule.Name] = 0
	}
	for _, s := range registered {
		if s.absentSeconds > a.absentSeconds() {
			absent = append(absent, s.rule)
			continue
		}
		markEvaluated = markEvaluated || s.absentSeconds != 0
		end, _ := s.rule.Schedule.NextWindow(s.doneUntil, s.now)
		switch {
		case s.openWindowEnd != nil:
			end = *s.openWindowEnd
		case !end.IsZero():
			until = max(until, lastIDBefore(end))
		}
		if !end.IsZero() {
			behind[s.rule.Name] = s.now.Sub(end)
		} else if ahead := s.doneUntil.Sub(s.now); ahead > clockTolerance {
			behind[s.rule.Name] = ahead
			a.logClockBehind(&s)
		}
		if s.hasDeferred || !end.IsZero() {
			due = append(due, s.rule)
		}
	}
	a.Metrics.setBehind(behind)
	if len(registered) < len(all) {
		if _, err := a.Pool.Exec(ctx, registerSQL, ruleColumns(all)...); err != nil {
			return nil, 0, fmt.Errorf("register rules on a schedule: %w", err)
		}
	}
	if markEvaluated {
		if _, err := a.Pool.Exec(ctx, markEvaluatedSQL, append(ruleColumns(all), a.absentSeconds())...); err != nil {
			return nil, 0, fmt.Errorf("record that rules are evaluated: %w", err)
		}
	}
	return due, until, a.restart(ctx, absent)
}

// clockTolerance is how far the database's clock may be behind a rule's progress before it is
// reported.
const clockTolerance = time.Minute

// logClockBehind logs, at most once a minute, that a rule is not evaluated until the database's
// clock reaches its progress.
func (a *Scheduler) logClockBehind(s *progress) {
	if time.Since(a.clockLoggedAt[s.rule.Name]) < time.Minute {
		return
	}
	if a.clockLoggedAt == nil {
		a.clockLoggedAt = map[string]time.Time{}
	}
	a.clockLoggedAt[s.rule.Name] = time.Now()
	a.Logger.Warn("rule not evaluated: the database's clock was set back behind the rule's progress "+
		"(docs/how-to/recover-from-an-outage.md says what to do)", "rule", s.rule.Name, "decided_until", s.doneUntil,
		"clock", s.now)
}
