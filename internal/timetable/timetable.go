// Package timetable tells when something is due: a cron expression in a time zone, with each planned time once where clocks are changed.
package timetable

import (
	"fmt"
	"slices"
	"strings"
	"time"
	_ "time/tzdata" // zones by name in a container that has none; 450 kB

	"github.com/hashicorp/cronexpr"
)

// Timetable is an expression in a zone. It may be used by several goroutines.
type Timetable struct {
	expression cronexpr.Expression
	zone       *time.Location
	// hourly: it goes by the time that passes, since it names no hour.
	hourly bool
}

// macros are names for expressions.
var macros = []string{"@hourly", "@daily", "@weekly", "@monthly", "@yearly"}

const want = "write five fields, minute hour day-of-month month day-of-week, e.g. 30 3 * * *, or one of "

// Parse reads an expression of five fields (minute, hour, day of month, month, day of week), or one of @hourly, @daily, @weekly, @monthly
// and @yearly, in a zone by its name ("": UTC). The error says what to write.
func Parse(expression, zone string) (*Timetable, error) {
	loc, err := Zone(zone)
	if err != nil {
		return nil, err
	}
	fields := strings.Fields(expression)
	if !slices.Contains(macros, expression) && len(fields) != 5 {
		return nil, fmt.Errorf("%q is no cron expression: %s", expression, want+strings.Join(macros, ", "))
	}
	e, err := cronexpr.Parse(strings.Join(fields, " "))
	if err != nil {
		return nil, fmt.Errorf("%q is no cron expression (%w): %s", expression, err, want+strings.Join(macros, ", "))
	}
	t := &Timetable{expression: *e, zone: loc, hourly: expression == "@hourly" || len(fields) == 5 && fields[1] == "*"}
	if t.wall(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)).IsZero() {
		return nil, fmt.Errorf("%q never comes: its fields fit no time of any year", expression)
	}
	return t, nil
}

// Zone is a time zone by its name in the IANA database; "" is UTC. The machine's own zone has no name that means the same on another.
func Zone(name string) (*time.Location, error) {
	if name == "Local" {
		return nil, fmt.Errorf("time zone %q differs from machine to machine: name it, e.g. Europe/Berlin", name)
	}
	loc, err := time.LoadLocation(name)
	if err != nil {
		return nil, fmt.Errorf("time zone %q is not known: write a name of the IANA database, e.g. UTC or Europe/Berlin", name)
	}
	return loc, nil
}

// Next is the first planned time after an instant, zero where there is none any more.
//
// Where clocks are put forward, what is planned for an hour that does not exist is due once, right after the gap. Where they are put back,
// a time that exists twice is due the first time only. An expression whose hour is * goes by the time that passes: neither happens to it.
func (t *Timetable) Next(after time.Time) time.Time {
	if t.hourly {
		return t.nextHourly(after)
	}
	for wall := t.wall(clock(after, t.zone)); !wall.IsZero(); wall = t.wall(wall) {
		if at := instant(wall, t.zone); at.After(after) {
			return at
		}
	}
	return time.Time{}
}

// Latest is the last planned time at or before now that is after another; zero where there is none. What was planned in between is passed over.
func (t *Timetable) Latest(after, now time.Time) time.Time {
	var last time.Time
	for back := time.Minute; last.IsZero(); back *= 2 {
		from := now.Add(-back)
		whole := !from.After(after)
		if whole {
			from = after
		}
		for at := t.Next(from); !at.IsZero() && !at.After(now); at = t.Next(at) {
			last = at
		}
		if whole {
			break
		}
	}
	return last
}

// wall is the next time that a clock on the wall shows, written as if it were UTC's.
func (t *Timetable) wall(after time.Time) time.Time {
	e := t.expression // Next writes into it
	return e.Next(after)
}

// nextHourly looks from one change of the clocks to the next.
func (t *Timetable) nextHourly(after time.Time) time.Time {
	for {
		_, offset := after.In(t.zone).Zone()
		wall := t.wall(clock(after, t.zone))
		if wall.IsZero() {
			return wall
		}
		at := wall.Add(-time.Duration(offset) * time.Second)
		_, change := after.In(t.zone).ZoneBounds()
		if change.IsZero() || at.Before(change) {
			return at.In(t.zone)
		}
		if first := clock(change, t.zone); t.wall(first.Add(-time.Second)).Equal(first) {
			return change
		}
		after = change
	}
}

// clock is what the clock on the wall shows at an instant, as if it were UTC's.
func clock(at time.Time, zone *time.Location) time.Time {
	_, offset := at.In(zone).Zone()
	return at.UTC().Add(time.Duration(offset) * time.Second)
}

// instant is when the clock on the wall shows a time: the first where it does so twice, the end of the gap where it never does.
func instant(wall time.Time, zone *time.Location) time.Time {
	var found time.Time
	for _, near := range []time.Duration{-24 * time.Hour, 24 * time.Hour} {
		_, offset := wall.Add(near).In(zone).Zone()
		at := wall.Add(-time.Duration(offset) * time.Second)
		if clock(at, zone).Equal(wall) && (found.IsZero() || at.Before(found)) {
			found = at
		}
	}
	if found.IsZero() {
		_, before := wall.Add(-24 * time.Hour).In(zone).Zone()
		found, _ = wall.Add(-time.Duration(before) * time.Second).In(zone).ZoneBounds()
	}
	return found.In(zone)
}
