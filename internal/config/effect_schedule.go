package config

import (
	"fmt"
	"strings"
	"time"

	"github.com/postern-gateway/postern/internal/effects/rules"
	"github.com/postern-gateway/postern/internal/timetable"
)

// EffectSchedule is when a rule is asked about each object of its type that there is, with the window of time that ends then: window.start and window.end. Its expressions know new, object and window, and no old,
// event or changed(), since nothing happens to the object then.
type EffectSchedule struct {
	// Cron is when, as in schedules, e.g. "0 * * * *"; leave the section out for a rule about changes.
	Cron string `yaml:"cron,omitempty"`
	// TimeZone is the zone of cron, by its name in the IANA database, e.g. Europe/Berlin.
	TimeZone string `yaml:"time_zone,omitempty" default:"UTC"`
	// Window is how long the window is, e.g. 3h; leave unset for the time since cron's time before. One that is longer than that overlaps with the one before it, so that what came late is in the next: the key is then to name the object alone.
	Window time.Duration `yaml:"window,omitempty" shown:"from one time to the next" validate:"omitempty,gte=60000000000"`
	// CatchUp is how many windows are made up for at most that no processor was there for, and of how many an object is owed that was in doubt, the newest; what is before these is passed over, and logged.
	CatchUp int `yaml:"catch_up,omitempty" default:"100" validate:"gte=1,lte=1000"`
}

// scope is what expressions of a rule may name.
func (b *ruleBuilder) scope(e *Effect) rules.Scope {
	if e.Schedule.Cron != "" {
		b.knows = "a rule on a schedule knows new, object and window"
		return rules.Scope{Window: true}
	}
	if e.Each == string(rules.OnEvent) {
		b.knows = "a rule about each event knows new, object and event"
		return rules.Scope{Event: true}
	}
	return rules.Scope{Change: true}
}

// told is an error of an expression, with what the rule knows where it names something else.
func (b *ruleBuilder) told(err error) error {
	if b.knows != "" && strings.Contains(err.Error(), "unknown name") {
		return fmt.Errorf("%w: %s", err, b.knows)
	}
	return err
}

// asked checks what a rule is asked about, and when.
func (b *ruleBuilder) asked(path, name string, e *Effect, r *rules.Rule) {
	r.On = rules.On(e.Each)
	if e.Schedule.Cron != "" {
		b.schedule(path, name, e, r)
		return
	}
	for _, set := range []struct {
		name string
		is   bool
	}{{"window", e.Schedule.Window != 0}, {"time_zone", e.Schedule.TimeZone != "UTC"}, {"catch_up", e.Schedule.CatchUp != 100}} {
		if set.is {
			b.fail(path+".schedule."+set.name, "is of no schedule: write when the rule is asked, e.g. cron: \"0 * * * *\"")
		}
	}
	if r.On != rules.OnEvent {
		return
	}
	if r.Key != nil && !r.Key.Names("event.id") && !r.Key.Names("event.key") {
		b.fail(path+".key", "does not name the event, so that events would share one effect: put {{ event.id }} or {{ event.key }} into it, e.g. \"%s:{{ event.id }}\"", name)
	}
	if e.Supersede {
		b.fail(path+".supersede", "is for rules about changes: leave it out")
	}
}

// warnings tells of keys that name windows in a way that has effects follow twice, or not at all.
func (s *EffectSchedule) warnings(name, key string) (all []string) {
	times, err := timetable.Parse(s.Cron, s.TimeZone)
	text, bad := rules.CompileText(key, rules.Scope{Window: true})
	if err != nil || bad != nil || !text.Names("window") {
		return nil
	}
	if text.Names("window.start") && !text.Names("window.end") {
		all = append(all, fmt.Sprintf("effects.%s: its key names where a window begins and not where it ends: where cron or window is changed, a window that begins where one of before began has its key, and is left out; write {{ window.end }}", name))
	}
	if s.Window > 0 && s.overlaps(times) {
		all = append(all, fmt.Sprintf("effects.%s: its windows overlap and its key names the window, so that what two windows see follows twice: leave the window out of the key, or schedule.window out", name))
	}
	return all
}

// overlaps says whether a window begins before the one before it ends.
func (s *EffectSchedule) overlaps(times *timetable.Timetable) bool {
	const looked = 100 // times of a schedule are not all as far apart
	at := times.Next(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	for range looked {
		next := times.Next(at)
		if !next.IsZero() && next.Sub(at) < s.Window {
			return true
		}
		at = next
	}
	return false
}

// schedule checks when a rule is asked.
func (b *ruleBuilder) schedule(path, name string, e *Effect, r *rules.Rule) {
	if r.On == rules.OnEvent {
		b.fail(path+".each", "is not for a rule on a schedule, which is asked about each object: leave it out")
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
	r.Schedule = &rules.Schedule{Cron: s.Cron, TimeZone: s.TimeZone, Times: times, Length: s.Window, CatchUp: s.CatchUp}
	if r.Key != nil && !r.Key.Names("object") && !r.Key.Names("new") {
		b.fail(path+".key", "names no object, so that all objects of a window would share one effect: write e.g. \"%s:{{ object.id }}:{{ window.end }}\"", name)
	}
	if e.Supersede {
		b.fail(path+".supersede", "is for rules about changes: leave it out")
	}
}
