// Package versioning decides which of two states of an object is newer, and keeps the objects table that obeys it.
// The rule is pure (rule.go, observe.go); store.go writes what it decided and enforces it again.
package versioning

import (
	"cmp"
	"math"
	"strconv"
	"time"
)

// RuleVersion is stored with every outcome and object, so that what an older rule decided can be found. Which fields a provider leaves out when states are compared is part of the rule, as the
// comparison of a stored state cannot be made again without reading it.
//
//   - 1: the first.
//   - 2: GitHub's fields that its webhooks or its API tell alone, or that are counted in assets, and Stripe's links and secrets that are rendered anew in each answer or are given once, and what a reader of cards says of itself, are left out; a look without an own version has rank 0.
//   - 3: times that order the objects of a declared sender are cut to whole seconds where they are read from more than one
//     field; else a clock of milliseconds would beat one of whole seconds for ever. Two events are undecided where one names
//     a whole second and the other a moment within it.
const RuleVersion = 3

// Version is a point on the provider's own clock, compared in the order of its fields. Times are microseconds.
type Version struct {
	// Final: deleted for good, of a type whose ids are never given again; outranks any At.
	Final bool `json:"final"`
	// At is the object's own version or the event's time.
	At int64 `json:"at"`
	// Seen is 0 for events; for a look that closes At, when the look began.
	Seen int64 `json:"seen"`
	// Rank orders states of one At where the provider freezes them with the event. Of a look it is 0 where At is no version of the object's own, but a moment before Seen.
	Rank int16 `json:"rank"`
}

// NoVersion is the version of a row that only partial events were about: it loses to any.
var NoVersion = Version{At: math.MinInt64}

// Compare orders versions by (final, at, seen, rank).
func (v Version) Compare(w Version) int {
	if v.Final != w.Final {
		if v.Final {
			return 1
		}
		return -1
	}
	return cmp.Or(cmp.Compare(v.At, w.At), cmp.Compare(v.Seen, w.Seen), cmp.Compare(v.Rank, w.Rank))
}

// MarshalJSON writes null for NoVersion.
func (v Version) MarshalJSON() ([]byte, error) {
	if v == NoVersion {
		return []byte("null"), nil
	}
	b := append(make([]byte, 0, 96), `{"final":`...)
	b = strconv.AppendBool(b, v.Final)
	b = strconv.AppendInt(append(b, `,"at":`...), v.At, 10)
	b = strconv.AppendInt(append(b, `,"seen":`...), v.Seen, 10)
	b = strconv.AppendInt(append(b, `,"rank":`...), int64(v.Rank), 10)
	return append(b, '}'), nil
}

// String is the version in words for an operator: times in UTC where At is one, and only the parts that say something.
func (v Version) String() string {
	if v == NoVersion {
		return "no version"
	}
	text := "at " + describeAt(v.At)
	if v.Final {
		text = "final, " + text
	}
	if v.Seen != 0 {
		text += ", seen " + describeAt(v.Seen)
	}
	return text + ", rank " + strconv.Itoa(int(v.Rank))
}

// describeAt writes a time as such, any other number (an integer version) as it is.
func describeAt(at int64) string {
	if !isTime(at) {
		return strconv.FormatInt(at, 10)
	}
	return time.UnixMicro(at).UTC().Format(time.RFC3339Nano)
}

// isTime goes by the size alone: microseconds of the last and next hundred years or so are a time.
func isTime(at int64) bool {
	const oldest, newest = 1e14, 4e15 // the years 1973 and 2096
	return at >= oldest && at <= newest
}

// Timed says whether At is a time, as far as its size tells, and no number that counts changes.
func (v Version) Timed() bool { return isTime(v.At) }

// Hash is a SHA-256.
type Hash [32]byte

// State is what an object is at one version.
type State struct {
	// Hash compares states: it covers Deleted and the canonical JSON without members that are null and without volatile fields.
	Hash Hash
	// Exact covers Deleted and the whole canonical JSON; among states of one Hash the greatest Exact is shown.
	Exact Hash
	// Deleted: the object is gone at the provider.
	Deleted bool
	// JSON is the state as jsonb can hold it; nil is null. It may be missing in a row that was read without it.
	JSON []byte
	// Repaired: JSON is not quite what the body said, since jsonb refuses that.
	Repaired bool
}

// Member is the content of one or more events of a row's version.
type Member struct {
	// Before is the hash of the state the change started from; nil where none is told.
	Before *Hash
	State  State
	// Lo and Hi are the hull of the provider time the content was observed in.
	Lo, Hi int64
	// Look: the content came from the provider's API.
	Look bool
}

// Row is an object as the mirror has it: the greatest version seen and the union of what was said at exactly that version.
type Row struct {
	Version Version
	// Set has one member per content, in a fixed order.
	Set []Member
	// Overflow: the set grew beyond its limit and only the greatest member is kept; the row stays ambiguous until a greater version.
	Overflow bool
	State    State
	// Ambiguous: the order of differing states of this version is not known.
	Ambiguous bool
	// Lo and Hi are the hull of the windows of Set.
	Lo, Hi int64
	// LookAfter is the provider time after which a look must begin to settle what is owed; 0 where none is owed.
	LookAfter int64
	// Settled: what was received before this point of our clock does not count, since a person had a look of then win over all of it; 0 where nobody had.
	Settled int64
	// OverwriteSeen is when the refetch of Settled began on the provider's clock, in microseconds; 0 where Settled is 0. The
	// refetch contains every change that the provider stamped before it, so such an input no longer wins.
	OverwriteSeen int64
}

// Input is one event or look in the terms of the rule.
type Input struct {
	Version Version
	State   State
	// Before is the hash of the state the change started from; nil where none is told.
	Before *Hash
	// Look: from the provider's API, not from an event.
	Look bool
	// Own: Version.At is the object's own version field.
	Own bool
	// Partial is why no whole state enters; empty for a whole one.
	Partial string
	// Lo and Hi are the window of provider time in which this was true.
	Lo, Hi int64
	// Received is our time of receipt.
	Received int64
	// Stamp is the end of the unit of time that an event's version names; 0 where it names none. A refetch has its window.
	Stamp int64
	// Settles: a person has this look win over all that was received before this point of our clock, which is not after Received; 0 for what nobody has.
	Settles int64
}

// Status is what became of an event.
type Status string

// The statuses of an outcome.
const (
	Applied   Status = "applied"
	Unchanged Status = "unchanged"
	Stale     Status = "stale"
	Ambiguous Status = "ambiguous"
	Ignored   Status = "ignored"
	Failed    Status = "failed"
	Dead      Status = "dead"
)

// Decision is the outcome of one input against one row.
type Decision struct {
	Status Status
	// Reason says in words why; which version decided is in DecidedBy.
	Reason string
	// DecidedBy is the version the row had when the decision fell (the one that won, for a stale input).
	DecidedBy Version
}
