// Package windows asks rules that are on a schedule: at each of its times, about every object of their type.
package windows

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/effects"
	"github.com/postern-gateway/postern/internal/effects/rules"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/lifecycle"
)

// Settings are the numbers; tests change them.
type Settings struct {
	// Every is how often is looked for what is due, and how long a tick takes about it before trouble is told.
	Every time.Duration
	// Page is how many objects a transaction is about at most, and Spend for how long it asks its rule about them; it is about one at least.
	Page  int
	Spend time.Duration
	// Bytes is how many bytes of objects, as they are stored, it begins with at most.
	Bytes int64
	// Out is for how long others may look for what is due without a rule before it counts as taken out: put back, it begins from then on.
	Out time.Duration
	// Within bounds one transaction.
	Within time.Duration
}

// DefaultSettings are the shipped ones.
var DefaultSettings = Settings{Every: time.Second, Page: 200, Spend: time.Second, Bytes: 4 << 20, Out: time.Hour, Within: 10 * time.Second}

// Options are what an Asker works with.
type Options struct {
	// Pool is connected as postern_processor.
	Pool     *pgxpool.Pool
	Settings Settings
	Logger   *slog.Logger
	// Metrics tell how far the rules are; nil: nobody does.
	Metrics *Metrics
	// Planned is told the destinations that have something to do; nil: nobody is.
	Planned func(destinations []string)
}

// Asker asks rules. Any number of processes may ask the same ones: at a time one of them has a rule's row.
type Asker struct {
	Options

	mu    sync.Mutex
	rules []*rules.Rule

	// frozen is an id up to which the log is known to be complete, and kept when was looked after what is kept; who ticks owns them.
	frozen int64
	kept   time.Time
	// told is when was told last of each rule that is ahead of the clock; who ticks owns it.
	told map[string]time.Time
}

// New is an asker without rules; Replace gives it some.
func New(o Options) *Asker { return &Asker{Options: o} }

// Replace makes others the rules in use. One whose schedule, source or type is another begins with its first time from now on.
func (a *Asker) Replace(all *effects.Rules) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.rules = all.Scheduled()
	a.Metrics.know(a.rules)
}

func (a *Asker) inUse() []*rules.Rule {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.rules
}

// Run asks until ctx ends. Trouble is logged once per spell, and what was due meanwhile is seen to after it.
func (a *Asker) Run(ctx context.Context) error {
	tick := time.NewTicker(a.Settings.Every)
	defer tick.Stop()
	troubled := false
	for {
		err := a.Tick(ctx)
		if err != nil && !troubled && ctx.Err() == nil {
			a.Logger.Warn("rules on a schedule not asked; tried again", "error", err)
		}
		troubled = err != nil
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// Tick asks about what is due, for as long as Every at most where there is more: a page of each rule in turn, so that none waits for all objects of another. Which rules there are and what is due is read before each round, since a
// reload and what becomes due do not wait either. Trouble of one rule does not keep the others from being asked.
func (a *Asker) Tick(ctx context.Context) error {
	began := time.Now()
	if err := errors.Join(a.count(ctx), a.keep(ctx)); err != nil {
		a.Metrics.lost()
		return err
	}
	rest := map[string]bool{} // until the next tick: they have nothing more to do at once, or came to nothing
	var bad []error
	for more := true; more && ctx.Err() == nil; {
		var err error
		if more, err = a.round(ctx, rest); err != nil {
			bad = append(bad, err)
		}
		if time.Since(began) > a.Settings.Every {
			break
		}
	}
	return errors.Join(bad...)
}

// round sees to a page of each rule that is due and does not rest.
func (a *Asker) round(ctx context.Context, rest map[string]bool) (more bool, err error) {
	all := a.inUse()
	if len(all) == 0 {
		a.Metrics.behind(nil)
		return false, nil
	}
	busy, until, err := a.due(ctx, all)
	if err != nil {
		a.Metrics.lost()
		return false, err
	}
	if until > a.frozen {
		if err := a.freeze(ctx); err != nil {
			return false, err
		}
	}
	var bad []error
	for _, rule := range busy {
		if rest[rule.Name] {
			continue
		}
		again, err := a.page(ctx, rule)
		if err != nil {
			bad = append(bad, fmt.Errorf("rule %s: %w", rule.Name, err))
		}
		rest[rule.Name] = !again
		more = more || again
	}
	return more, errors.Join(bad...)
}

const (
	// registerSQL begins with the first time from now on.
	registerSQL = `
INSERT INTO effect_windows (rule, source, object_type, cron, time_zone, decided_at, asked)
SELECT c.rule, s.number, c.type, c.cron, c.zone, clock_now(), coalesce((SELECT seconds FROM effect_asking), 0)
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[]) AS c(rule, source, type, cron, zone) JOIN sources s ON s.name = c.source
ORDER BY c.rule
ON CONFLICT DO NOTHING`

	// standsSQL says how far rules are, for how long others were asked without them, and whether there are objects that were in doubt when it was asked about them, and are not any more.
	standsSQL = `
SELECT c.n, w.decided_at, w.window_end, clock_now(), coalesce((SELECT seconds FROM effect_asking), 0) - w.asked,
  EXISTS (SELECT FROM effect_window_waits v LEFT JOIN objects o USING (source, account, object_type, object_id)
    WHERE v.rule = w.rule AND v.source = w.source AND v.object_type = w.object_type AND ` + certain + `)
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[]) WITH ORDINALITY AS c(rule, source, type, cron, zone, n) JOIN sources s ON s.name = c.source
JOIN effect_windows w ON w.rule = c.rule AND w.source = s.number AND w.object_type = c.type AND w.cron = c.cron AND w.time_zone = c.zone
ORDER BY c.n`
)

// named are rules as the statements above take them.
func named(all []*rules.Rule) []any {
	columns := make([][]string, 5)
	for _, r := range all {
		for i, text := range []string{r.Name, r.Source, r.Type, r.Schedule.Cron, r.Schedule.TimeZone} {
			columns[i] = append(columns[i], text)
		}
	}
	return []any{columns[0], columns[1], columns[2], columns[3], columns[4]}
}

// freeze waits for whoever appends events now, so that each event of a window that is over can be seen.
func (a *Asker) freeze(ctx context.Context) (err error) {
	ctx, cancel := lifecycle.WithTimeout(ctx, "wait for appends", a.Settings.Within)
	defer cancel()
	a.frozen, err = events.FreezeBound(ctx, a.Pool)
	return err
}

// last is the greatest id of what is stored before a time.
func last(before time.Time) int64 { return events.FirstID(before) - 1 }

// stand is how far a rule is.
type stand struct {
	rule         *rules.Rule
	decided, now time.Time
	// under is the end of the window that is under way; nil: none is.
	under *time.Time
	// without is for how many seconds others were asked without it.
	without int64
	// owed: there are objects that were in doubt, and are not any more.
	owed bool
}

// stands are those of rules that are known.
func (a *Asker) stands(ctx context.Context, all []*rules.Rule) (known []stand, err error) {
	rows, err := a.Pool.Query(ctx, standsSQL, named(all)...)
	if err == nil {
		known, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (s stand, err error) {
			var n int64
			if err = row.Scan(&n, &s.decided, &s.under, &s.now, &s.without, &s.owed); err == nil {
				s.rule = all[n-1]
			}
			return s, err
		})
	}
	if err != nil {
		return nil, fmt.Errorf("read how far rules are: %w", err)
	}
	return known, nil
}

// due are the rules that have something to do, and the last id of the windows that are over. One that is new is entered, and has nothing to do yet.
func (a *Asker) due(ctx context.Context, all []*rules.Rule) (busy []*rules.Rule, until int64, err error) {
	known, err := a.stands(ctx, all)
	if err != nil {
		return nil, 0, err
	}
	var out []*rules.Rule
	renew := false
	behind := map[string]time.Duration{}
	for _, rule := range all {
		behind[rule.Name] = 0
	}
	for _, s := range known {
		if s.without > a.out() {
			out = append(out, s.rule)
			continue
		}
		renew = renew || s.without != 0
		end, _ := s.rule.Schedule.Due(s.decided, s.now)
		switch {
		case s.under != nil:
			end = *s.under
		case !end.IsZero():
			until = max(until, last(end))
		}
		if !end.IsZero() {
			behind[s.rule.Name] = s.now.Sub(end)
		} else if ahead := s.decided.Sub(s.now); ahead > aheadTold {
			behind[s.rule.Name] = ahead
			a.tellAhead(&s)
		}
		if s.owed || !end.IsZero() {
			busy = append(busy, s.rule)
		}
	}
	a.Metrics.behind(behind)
	if len(known) < len(all) {
		if _, err := a.Pool.Exec(ctx, registerSQL, named(all)...); err != nil {
			return nil, 0, fmt.Errorf("enter rules on a schedule: %w", err)
		}
	}
	if renew {
		if _, err := a.Pool.Exec(ctx, askedSQL, append(named(all), a.out())...); err != nil {
			return nil, 0, fmt.Errorf("keep that rules are asked: %w", err)
		}
	}
	return busy, until, a.beginAnew(ctx, out)
}

// aheadTold is from when on is told that the database's clock is behind the time up to which a rule's windows were seen to.
const aheadTold = time.Minute

// tellAhead tells of a rule that nobody asks until the database's clock has come to where it was, once a minute at most.
func (a *Asker) tellAhead(s *stand) {
	if time.Since(a.told[s.rule.Name]) < time.Minute {
		return
	}
	if a.told == nil {
		a.told = map[string]time.Time{}
	}
	a.told[s.rule.Name] = time.Now()
	a.Logger.Warn("rule not asked: the database's clock was put back behind what was seen to (docs/operations.md says what to do)", "rule", s.rule.Name, "seen_to_until", s.decided, "clock", s.now)
}

// Statements are all SQL statements of this package, for the test that prepares each.
func Statements() []string {
	return []string{registerSQL, standsSQL, countSQL, askedSQL, anewSQL, goneSQL, takeSQL, objectsSQL, moveSQL, waitSQL, boundSQL, waitsSQL, owedSQL, settledSQL}
}
