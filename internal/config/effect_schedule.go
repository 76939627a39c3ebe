package config

import (
	"fmt"
	"strings"
	"time"

	"github.com/postern-gateway/postern/internal/effects/rules"
	"github.com/postern-gateway/postern/internal/timetable"
)

// EffectSchedule evaluates a rule for each existing object of its type at planned times. Each
// planned time ends a time window, from window.start to window.end. Expressions may use new, object
// and window. They may not use old, event or changed(), because the object does not change at that
// time.
type EffectSchedule struct {
	// Cron is the planned times, as in schedules, e.g. "0 * * * *". Leave the section out for a
	// rule about changes.
	Cron string `yaml:"cron,omitempty"`
	// TimeZone is the time zone of cron, by its name in the IANA database, e.g. Europe/Berlin.
	TimeZone string `yaml:"time_zone,omitempty" default:"UTC"`
	// Window is the length of the time window, e.g. 3h. Leave it unset for the time since the
	// previous planned time. A longer window overlaps the previous one, so that late changes are
	// part of the next window. The key should then contain the object and not the window.
	Window time.Duration `yaml:"window,omitempty" unset:"previous interval" validate:"omitempty,gte=60000000000"`
	// CatchUp is the maximum number of missed windows that Postern evaluates later, the newest
	// first. A window is missed if no processor ran, or for an object that was ambiguous. Postern
	// skips and logs earlier windows.
	CatchUp int `yaml:"catch_up,omitempty" default:"100" validate:"gte=1,lte=1000"`
}

// scope returns the names that a rule's expressions may use.
func (b *ruleBuilder) scope(path string, e *Effect) rules.Scope {
	summary := b.summary(path+".summary", e)
	if e.Schedule.Cron != "" {
		b.scopeNote = "a rule on a schedule can use new, object and window, and summary if it has this section"
		return rules.Scope{Window: true, Summary: summary}
	}
	if e.Trigger == string(rules.OnEvent) {
		b.scopeNote = "a rule about each event can use new, object and event"
		return rules.Scope{Event: true}
	}
	b.scopeNote = "a rule about a change can use old, new, object, event and changed()"
	return rules.Scope{Change: true}
}

// explainError says what to write instead: an allowed name, nil, or the operator that compares.
func (b *ruleBuilder) explainError(err error) error {
	switch {
	case strings.Contains(err.Error(), `Operator("=")`):
		return fmt.Errorf("%w: write == to compare", err)
	case strings.HasSuffix(err.Error(), "unknown name null"):
		return fmt.Errorf("%w: write nil", err)
	case strings.Contains(err.Error(), "unknown name"):
		return fmt.Errorf("%w: %s", err, b.scopeNote)
	}
	return err
}

// checkTrigger checks when a rule is evaluated.
func (b *ruleBuilder) checkTrigger(path, name string, e *Effect, r *rules.Rule) {
	r.On = rules.Trigger(e.Trigger)
	if e.Schedule.Cron != "" {
		b.schedule(path, name, e, r)
		return
	}
	for _, set := range []struct {
		name string
		is   bool
	}{{"window", e.Schedule.Window != 0}, {"time_zone", e.Schedule.TimeZone != "UTC"},
		{"catch_up", e.Schedule.CatchUp != 100}} {
		if set.is {
			b.fail(path+".schedule."+set.name, "has an effect only with a schedule: write the planned times, e.g. "+
				"cron: \"0 * * * *\"")
		}
	}
	if r.On != rules.OnEvent {
		return
	}
	if r.Key != nil && !r.Key.Uses("event.id") && !r.Key.Uses("event.key") {
		b.fail(path+".key", "does not contain the event, so events would share one effect: put {{ event.id }} or "+
			"{{ event.key }} into it, e.g. \"%s:{{ event.id }}\"", name)
	}
	if e.Supersede {
		b.fail(path+".supersede", "applies to rules about changes only: leave it out")
	}
}

// warnings reports keys with windows for which effects happen twice or not at all.
func (s *EffectSchedule) warnings(name, key string) (all []string) {
	times, err := timetable.Parse(s.Cron, s.TimeZone)
	text, bad := rules.CompileText(key, rules.Scope{Window: true})
	if err != nil || bad != nil || !text.Uses("window") {
		return nil
	}
	if text.Uses("window.start") && !text.Uses("window.end") {
		all = append(all, fmt.Sprintf("effects.%s: the key contains the start of the window but not its end. After a "+
			"change of cron or window, a new window with the start of an earlier one has the same key and is "+
			"skipped; write {{ window.end }}", name))
	}
	if s.Window > 0 && s.windowsOverlap(times) {
		all = append(all, fmt.Sprintf("effects.%s: the windows overlap and the key contains the window, so a change "+
			"that is in two windows has two effects: remove the window from the key, or remove schedule.window", name))
	}
	return all
}

// windowsOverlap reports whether a window begins before the previous one ends.
func (s *EffectSchedule) windowsOverlap(times *timetable.Timetable) bool {
	const maxIntervals = 100 // the intervals of a schedule may differ
	at := times.Next(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	for range maxIntervals {
		next := times.Next(at)
		if !next.IsZero() && next.Sub(at) < s.Window {
			return true
		}
		at = next
	}
	return false
}

// schedule checks the planned times of a rule.
func (b *ruleBuilder) schedule(path, name string, e *Effect, r *rules.Rule) {
	if r.On == rules.OnEvent {
		b.fail(path+".each", "does not apply to a rule on a schedule, which is evaluated for each object: leave it out")
	}
	r.On = rules.OnSchedule
	s := &e.Schedule
	if _, err := timetable.Zone(s.TimeZone); err != nil {
		b.fail(path+".schedule.time_zone", "%v", err)
		return
	}
	times, err := timetable.Parse(s.Cron, s.TimeZone)
	if err != nil {
		b.fail(path+".schedule.cron", "%v", err)
	}
	r.Schedule = &rules.Schedule{Cron: s.Cron, TimeZone: s.TimeZone, Times: times, WindowLength: s.Window,
		CatchUp: s.CatchUp}
	if r.Key != nil && !r.Key.Uses("object") && !r.Key.Uses("new") {
		b.fail(path+".key", "does not contain the object, so all objects of a window would share one effect: write "+
			"e.g. \"%s:{{ object.id }}:{{ window.end }}\"", name)
	}
	if e.Supersede {
		b.fail(path+".supersede", "applies to rules about changes only: leave it out")
	}
}
