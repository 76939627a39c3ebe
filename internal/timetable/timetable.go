// Package timetable computes when something is due, from a cron expression and a time zone. When
// clocks change, each planned time is due exactly once. It is used by job schedules and effect
// rules, and never reads the clock.
package timetable

import (
	"fmt"
	"slices"
	"strings"
	"time"
	_ "time/tzdata" // zone names for containers without a zone database; 450 kB

	"github.com/hashicorp/cronexpr"
)

// Timetable is an expression in a zone. It is safe for concurrent use.
type Timetable struct {
	expression cronexpr.Expression
	zone       *time.Location
	// everyHour reports that the expression names no hour, so that it follows elapsed time and not
	// the wall clock.
	everyHour bool
}

// macros are names of expressions.
var macros = []string{"@hourly", "@daily", "@weekly", "@monthly", "@yearly"}

const usage = "write five fields, minute hour day-of-month month day-of-week, e.g. 30 3 * * *, or one of "

// Parse parses an expression of five fields (minute, hour, day of month, month, day of week), or
// one of @hourly, @daily, @weekly, @monthly and @yearly. The zone is a name ("": UTC). The error
// says what to write.
func Parse(expression, zone string) (*Timetable, error) {
	loc, err := Zone(zone)
	if err != nil {
		return nil, err
	}
	fields := strings.Fields(expression)
	if !slices.Contains(macros, expression) && len(fields) != 5 {
		return nil, fmt.Errorf("%q is not a cron expression: %s", expression, usage+strings.Join(macros, ", "))
	}
	e, err := cronexpr.Parse(strings.Join(fields, " "))
	if err != nil {
		return nil, fmt.Errorf("%q is not a cron expression (%w): %s", expression, err,
			usage+strings.Join(macros, ", "))
	}
	t := &Timetable{expression: *e, zone: loc,
		everyHour: expression == "@hourly" || len(fields) == 5 && fields[1] == "*"}
	if t.nextWallTime(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)).IsZero() {
		return nil, fmt.Errorf("%q is never due: no date matches its fields", expression)
	}
	return t, nil
}

// Zone returns a time zone by its name in the IANA database; "" is UTC. It rejects Local, which
// means another zone on each machine.
func Zone(name string) (*time.Location, error) {
	if name == "Local" {
		return nil, fmt.Errorf("time zone %q differs from machine to machine: name it, e.g. Europe/Berlin", name)
	}
	loc, err := time.LoadLocation(name)
	if err != nil {
		return nil, fmt.Errorf("time zone %q is unknown: write a name of the IANA database, e.g. UTC or "+
			"Europe/Berlin", name)
	}
	return loc, nil
}

// Next returns the first planned time after an instant, zero if there is none.
//
// When clocks are set forward, a time in the skipped hour is due once, at the end of the gap. When
// they are set back, a time that occurs twice is due the first time only. An expression whose hour
// is * follows elapsed time, so that neither case applies.
func (t *Timetable) Next(after time.Time) time.Time {
	if t.everyHour {
		return t.nextHourly(after)
	}
	for wall := t.nextWallTime(wallClock(after, t.zone)); !wall.IsZero(); wall = t.nextWallTime(wall) {
		if at := instant(wall, t.zone); at.After(after) {
			return at
		}
	}
	return time.Time{}
}

// Latest returns the last planned time that is later than after and not later than now; zero if
// there is none.
func (t *Timetable) Latest(after, now time.Time) time.Time {
	var last time.Time
	for back := time.Minute; last.IsZero(); back *= 2 {
		from := now.Add(-back)
		reachesStart := !from.After(after)
		if reachesStart {
			from = after
		}
		for at := t.Next(from); !at.IsZero() && !at.After(now); at = t.Next(at) {
			last = at
		}
		if reachesStart {
			break
		}
	}
	return last
}

// nextWallTime returns the next matching time of the wall clock, represented as UTC.
func (t *Timetable) nextWallTime(after time.Time) time.Time {
	e := t.expression // Next modifies it
	return e.Next(after)
}

// nextHourly searches from one clock change to the next.
func (t *Timetable) nextHourly(after time.Time) time.Time {
	for {
		_, offset := after.In(t.zone).Zone()
		wall := t.nextWallTime(wallClock(after, t.zone))
		if wall.IsZero() {
			return wall
		}
		at := wall.Add(-time.Duration(offset) * time.Second)
		_, change := after.In(t.zone).ZoneBounds()
		if change.IsZero() || at.Before(change) {
			return at.In(t.zone)
		}
		if first := wallClock(change, t.zone); t.nextWallTime(first.Add(-time.Second)).Equal(first) {
			return change
		}
		after = change
	}
}

// wallClock returns the wall clock time at an instant, represented as UTC.
func wallClock(at time.Time, zone *time.Location) time.Time {
	_, offset := at.In(zone).Zone()
	return at.UTC().Add(time.Duration(offset) * time.Second)
}

// instant returns when the wall clock shows a time: the first instant if there are two, the end of
// the gap if there is none.
func instant(wall time.Time, zone *time.Location) time.Time {
	var found time.Time
	for _, near := range []time.Duration{-24 * time.Hour, 24 * time.Hour} {
		_, offset := wall.Add(near).In(zone).Zone()
		at := wall.Add(-time.Duration(offset) * time.Second)
		if wallClock(at, zone).Equal(wall) && (found.IsZero() || at.Before(found)) {
			found = at
		}
	}
	if found.IsZero() {
		_, before := wall.Add(-24 * time.Hour).In(zone).Zone()
		found, _ = wall.Add(-time.Duration(before) * time.Second).In(zone).ZoneBounds()
	}
	return found.In(zone)
}
