// Package versioning decides which of two states of an object is newer, and stores the result in
// the objects table. The processor, rebuilds and reconciliation call it. The rule itself is pure
// (rule.go, observe.go): it never reads a clock, the network or the database. Save (store.go)
// writes a decision and enforces the rule again in SQL.
package versioning

import (
	"cmp"
	"math"
	"strconv"
	"time"
)

// RuleVersion is stored with every outcome and object, so that the decisions of an older rule can
// be found. The paths that a provider ignores when it compares states are part of the rule, because
// stored states cannot be compared again without the JSON.
//
//   - 1: the first version.
//   - 2: these fields are ignored: GitHub fields that only webhooks or only the API contain,
//     GitHub counters inside assets, Stripe links and secrets that differ in each response or
//     appear only once, and what a Stripe card reader reports of itself. A refetch without an
//     own version has rank 0.
//   - 3: if the versions of a declared sender's objects are times from more than one field,
//     they are cut to whole seconds. Otherwise a clock of milliseconds would always beat a
//     clock of whole seconds. Two events are ambiguous if one names a whole second and the
//     other a moment within it.
const RuleVersion = 3

// Version is a point on the provider's clock, compared in the order of its fields. Times are
// microseconds.
type Version struct {
	// Final marks a permanent delete, of a type whose ids are never reused. It outranks any At.
	Final bool `json:"final"`
	// At is the object's own version, or else the event's time.
	At int64 `json:"at"`
	// Seen is 0 for an event. For a refetch that began after the unit of At was over, it is the
	// start of the refetch.
	Seen int64 `json:"seen"`
	// Rank orders states with the same At, where the provider stores the state with the event. For
	// a refetch it is 0 if At is not the object's own version, but a moment before Seen.
	Rank int16 `json:"rank"`
}

// NoVersion is the version of a row that has only had partial events. It is less than any other.
var NoVersion = Version{At: math.MinInt64}

// Compare orders versions by final, at, seen and rank.
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

// String describes the version for an operator. It writes At as a UTC time when it is one, and
// leaves out empty parts.
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

// describeAt formats a time, or any other number (an integer version) as it is.
func describeAt(at int64) string {
	if !isTime(at) {
		return strconv.FormatInt(at, 10)
	}
	return time.UnixMicro(at).UTC().Format(time.RFC3339Nano)
}

// isTime decides by the size: numbers of microseconds between the years below are times.
func isTime(at int64) bool {
	const oldest, newest = 1e14, 4e15 // the years 1973 and 2096
	return at >= oldest && at <= newest
}

// IsTime reports whether At is a time and not an integer version, as far as its size tells.
func (v Version) IsTime() bool { return isTime(v.At) }

// Hash is a SHA-256 digest.
type Hash [32]byte

// State is an object's content at one version.
type State struct {
	// Hash is used to compare states. It covers Deleted and the canonical JSON, without null
	// members and ignored paths.
	Hash Hash
	// ExactHash covers Deleted and the whole canonical JSON. Of several states with the same Hash,
	// the one with the greatest ExactHash is shown.
	ExactHash Hash
	// Deleted means that the object does not exist at the provider any more.
	Deleted bool
	// JSON is the state in a form that jsonb accepts; nil means null. It may be absent in a row
	// that was read without it.
	JSON []byte
	// Sanitized means that JSON differs from the body, because jsonb does not accept the body's
	// text.
	Sanitized bool
}

// TiedState is the content of one or more events with exactly the row's version.
type TiedState struct {
	// Before is the hash of the state before the change; nil without a change-set.
	Before *Hash
	State  State
	// TimeFrom and TimeTo enclose the provider time in which the content was observed.
	TimeFrom, TimeTo int64
	// FromRefetch means that the content came from the provider's API.
	FromRefetch bool
}

// Row is an object in the mirror: the greatest version, and the contents of all inputs of exactly
// that version.
type Row struct {
	Version Version
	// TiedStates has one entry per content, in a fixed order.
	TiedStates []TiedState
	// Overflow means that there were too many tied states and only the greatest is kept. The row
	// stays ambiguous until a greater version arrives.
	Overflow bool
	State    State
	// Ambiguous means that the order of different states of this version is not known.
	Ambiguous bool
	// TimeFrom and TimeTo enclose the time ranges of TiedStates.
	TimeFrom, TimeTo int64
	// RefetchAfter is the provider time after which the pending refetch must begin; 0 when none is
	// pending.
	RefetchAfter int64
	// OverwrittenAt is a time of our clock. Inputs received before it do not count, because an
	// operator overwrote the object from the provider then. It is 0 when no operator did.
	OverwrittenAt int64
	// OverwriteBegan is when that refetch began on the provider's clock, in microseconds; 0 without
	// an overwrite. The refetch contains every change that the provider stamped before this time,
	// so an input with such a change no longer wins.
	OverwriteBegan int64
}

// Input is one event or refetch, as the rule needs it.
type Input struct {
	Version Version
	State   State
	// Before is the hash of the state before the change; nil without a change-set.
	Before *Hash
	// IsRefetch means that the input came from the provider's API, not from an event.
	IsRefetch bool
	// OwnVersion means that Version.At is the object's own version field.
	OwnVersion bool
	// Partial says why the input has no whole state; empty if it has one.
	Partial string
	// TimeFrom and TimeTo are the provider time in which the object had this state.
	TimeFrom, TimeTo int64
	// Received is our time of receipt, in microseconds.
	Received int64
	// StampedUntil is the end of the unit of time that an event's version names; 0 if the version
	// names no time. A refetch has its time range instead.
	StampedUntil int64
	// OverwriteAt is set when an operator overwrites the object with this refetch. Inputs received
	// before this time of our clock do not count any more. It is never after Received; 0 means no
	// overwrite.
	OverwriteAt int64
}

// Status is the result of applying an event.
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
	// Reason explains the status to an operator.
	Reason string
	// DecidedBy is the row's version after the decision. For a stale input it is the version that
	// won.
	DecidedBy Version
}
