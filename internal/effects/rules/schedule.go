package rules

import (
	"time"

	"github.com/postern-gateway/postern/internal/timetable"
)

// On is what a rule is asked about.
type On string

// What rules are asked about.
const (
	// OnChange: each change of an object from one certain state to the next. It is what a rule without a word on it is about.
	OnChange On = "change"
	// OnEvent: each event about an object, once it was applied or found to be stale, whether it changes anything or not.
	OnEvent On = "event"
	// OnSchedule: each object, at each time of a schedule.
	OnSchedule On = "schedule"
)

// Schedule is when a rule is asked about each object of its type. A window is the time up to one of its times: which windows there are depends on the schedule alone.
type Schedule struct {
	// Cron and TimeZone are what Times was parsed of.
	Cron, TimeZone string
	Times          *timetable.Timetable
	// Length is how long a window is; 0: from one time of the schedule to the next.
	Length time.Duration
	// CatchUp is how many windows are made up for at most that nobody was there for, the newest; what is before these is passed over.
	CatchUp int
}

// beforeAny is longer ago than two times of any schedule are apart.
const beforeAny = 30 * 366 * 24 * time.Hour

// Start is where the window begins that ends at a time of the schedule.
func (s *Schedule) Start(end time.Time) time.Time {
	if s.Length > 0 {
		return end.Add(-s.Length)
	}
	return s.Times.Latest(end.Add(-beforeAny), end.Add(-time.Nanosecond))
}

// Due is the end of the window that is to be seen to next where all up to a time were; zero where none is due yet. passed is the end of the first window that is passed over, since too many are due; zero for none.
func (s *Schedule) Due(decided, now time.Time) (end, passed time.Time) {
	first := s.Times.Next(decided)
	if first.IsZero() || first.After(now) {
		return time.Time{}, time.Time{}
	}
	for range s.CatchUp {
		before := now
		if !end.IsZero() {
			before = end.Add(-time.Nanosecond)
		}
		at := s.Times.Latest(decided, before)
		if at.IsZero() {
			break
		}
		end = at
	}
	if end.After(first) {
		passed = first
	}
	return end, passed
}
