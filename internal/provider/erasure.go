package provider

import "time"

// Erasure is what a sender asks for by one of its events, because the law has it ask: that the data of a person, or of an account, be forgotten or told.
type Erasure struct {
	// Kind is "redact", or "tell" where the person wants to know what is stored.
	Kind string
	// Within is how long after the receipt it must be done.
	Within time.Duration
	// Proven: what the sender signed says by itself what is asked for, so that it may be done without a person.
	Proven bool
	// All: all events of the account.
	All bool
	// Account is the tenant inside the source.
	Account string
	// Objects are to be forgotten, as type and id.
	Objects [][2]string
	// Values lie at paths ($.customer.email) of the bodies of events to be forgotten; any of them will do.
	Values []PathValue
}

// The kinds of an Erasure.
const (
	EraseRedact = "redact"
	EraseTell   = "tell"
)

// PathValue is a value at a path of a body.
type PathValue struct{ Path, Value string }

// Eraser is a provider that sends such events.
type Eraser interface {
	// ErasureTypes are the event types.
	ErasureTypes() []string
	// Erasure reads one. The error is a *Dead.
	Erasure(e *Stored) (*Erasure, error)
}
