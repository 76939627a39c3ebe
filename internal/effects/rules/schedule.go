package rules

import (
	"time"

	"github.com/expr-lang/expr/types"

	"github.com/postern-gateway/postern/internal/timetable"
)

// Trigger says when a rule is evaluated.
type Trigger string

// The triggers.
const (
	// OnChange evaluates a rule for each change of an object from one certain state to the next. It
	// is the default.
	OnChange Trigger = "change"
	// OnEvent evaluates a rule for each event about an object after it was applied or found stale,
	// even if it changes nothing.
	OnEvent Trigger = "event"
	// OnSchedule evaluates a rule for each object, at each time of a schedule.
	OnSchedule Trigger = "schedule"
	// OnRevision forwards each new revision of an object, as the feed of changes publishes it. Such
	// a rule has no condition and no key of its own; it lists its objects in Forwards.
	OnRevision Trigger = "revision"
)

// Schedule says when a rule is evaluated for each object of its type. A window ends at one of its
// times. The windows depend on the schedule only.
type Schedule struct {
	// Cron and TimeZone are the source of Times.
	Cron, TimeZone string
	Times          *timetable.Timetable
	// WindowLength is the length of a window; 0 means since the previous time of the schedule.
	WindowLength time.Duration
	// CatchUp is how many missed windows are evaluated later, at most. The newest are chosen, older
	// ones are skipped.
	CatchUp int
}

// Summary says which other objects of the source a rule on a schedule summarizes: for each of its
// objects, those that changed in the window and contain its id.
type Summary struct {
	// Type is the type of the other objects. By is the path in their states of the id.
	Type, By string
	// Sums and Fields map names to paths in their states: of numbers to add up, and of values to
	// list.
	Sums, Fields map[string]string
}

// Bounds of a summary: the objects that it lists, the bytes of each of their fields, and the
// objects that it counts and adds up.
const (
	MaxListed      = 1000
	MaxListedBytes = 4096
	MaxSummarized  = 100_000
)

// Identity names what the changes of a window are collected for: the type of the objects, and where
// they have the id of the rule's object. It is empty without a summary.
func (s *Summary) Identity() string {
	if s == nil {
		return ""
	}
	return s.Type + " by " + s.By
}

// variables returns the types of the members of a summary.
func (s *Summary) variables() types.Map {
	sums, listed := types.Map{}, types.Map{"id": types.String}
	for name := range s.Sums {
		sums[name] = types.Any
	}
	for name := range s.Fields {
		listed[name] = types.Any
	}
	return types.Map{"type": types.String, "count": types.Int, "sums": sums, "objects": types.Array(listed),
		"truncated": types.Bool}
}

// maxScheduleGap is longer than the gap between two times of any schedule.
const maxScheduleGap = 30 * 366 * 24 * time.Hour

// WindowStart returns the start of the window that ends at a time of the schedule.
func (s *Schedule) WindowStart(end time.Time) time.Time {
	if s.WindowLength > 0 {
		return end.Add(-s.WindowLength)
	}
	return s.Times.Latest(end.Add(-maxScheduleGap), end.Add(-time.Nanosecond))
}

// NextWindow returns the end of the next window to evaluate after doneUntil; zero if none is due
// yet. skippedFrom is the end of the first window that is skipped because too many are due; zero if
// none is.
func (s *Schedule) NextWindow(doneUntil, now time.Time) (end, skippedFrom time.Time) {
	first := s.Times.Next(doneUntil)
	if first.IsZero() || first.After(now) {
		return time.Time{}, time.Time{}
	}
	for range s.CatchUp {
		before := now
		if !end.IsZero() {
			before = end.Add(-time.Nanosecond)
		}
		at := s.Times.Latest(doneUntil, before)
		if at.IsZero() {
			break
		}
		end = at
	}
	if end.After(first) {
		skippedFrom = first
	}
	return end, skippedFrom
}
