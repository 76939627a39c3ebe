package provider

import "time"

// Erasure is a legal request that a sender makes with an event: to erase the data of a person or an
// account, or to disclose it.
type Erasure struct {
	// Kind is "redact", or "report" if the person wants to know what is stored.
	Kind string
	// Within is the time limit for the request, counted from the receipt.
	Within time.Duration
	// FullySigned means that the signed part of the delivery contains the whole request, so that it
	// may be executed without an operator.
	FullySigned bool
	// AllEvents selects all events of the account.
	AllEvents bool
	// Account is the tenant inside the source.
	Account string
	// Objects are the objects to erase, as type and id.
	Objects [][2]string
	// Values are paths ($.customer.email) and values. An event whose body has one of them must be
	// erased.
	Values []PathValue
}

// The kinds of an Erasure.
const (
	EraseRedact = "redact"
	EraseReport = "report"
)

// PathValue is a value at a path of a body.
type PathValue struct{ Path, Value string }

// Eraser is a provider that sends such requests.
type Eraser interface {
	// ErasureTypes returns the event types of erasure requests.
	ErasureTypes() []string
	// Erasure reads a request. The error is a *Dead.
	Erasure(e *StoredEvent) (*Erasure, error)
}
