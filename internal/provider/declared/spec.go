// Package declared implements providers that are described by data (Spec): how a sender signs,
// where a delivery contains its events, and what they say about objects. Most provider packages are
// one Spec each, and the configuration builds a Spec for the providers hmac and api. The package
// makes no calls and stores nothing.
package declared

import (
	"strings"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/signature"
)

// Spec describes a sender of webhooks.
type Spec struct {
	// Name is the provider's name in the configuration, in lower case. Title is the sender's own
	// name.
	Name, Title string
	// Schemes are the signature schemes. A delivery is verified by any scheme that it has a
	// signature of. Sign uses the first scheme that fits the source's first secret and the body.
	Schemes []*signature.Scheme
	// SignedItems means that every event of a delivery is signed separately, and that the schemes
	// read the event as the body. Split is then the path of one list.
	SignedItems bool
	// Reject returns why a delivery must be rejected before its signature is checked (for example
	// two contradicting headers), or nil.
	Reject func(*provider.Source, *provider.Delivery) *provider.Rejection
	// Headers are stored with an event, in addition to those that schemes and events refer to.
	Headers []string
	// Events says where a delivery contains its events, and what their keys and types are.
	Events Events
	// Objects says what events say about objects. The first element whose Events match is used.
	Objects []Object

	// Challenge, Handshake and Acknowledge return the responses of provider.Challenger, Handshaker
	// and Acknowledger. They are nil if the sender needs none.
	Challenge, Handshake, Acknowledge func(*provider.Source, *provider.Delivery) *provider.Reply

	// Samples are realistic deliveries. Variants and SetHeaders say how to make more of them.
	Samples  []provider.Sample
	Variants Variants
	// SetHeaders sets the headers that a sender sends in addition to the signature. Headers with
	// the key and the type are set without it.
	SetHeaders func(src *provider.Source, d *provider.Delivery, s provider.Sample)
	// Check returns what else is wrong with a source; nil if there is nothing to check.
	Check func(*provider.Source) error
	// Docs is the provider's part of docs/providers.md.
	Docs Docs
}

// Docs describes a provider to people. Signature, Key and Objects are generated from the Spec if
// they are empty.
type Docs = provider.Docs

// Events says where a delivery contains its events, and what their keys and types are. References
// can be json: (in the event), root: (in the whole body), form:, header:, query:, index (the
// event's position, from 0) and content (SHA-256 of the event without the paths in Omit).
type Events struct {
	// Bodies are the possible formats of a body, tried in order; empty means JSON.
	Bodies []BodyForm
	// Split is the path of the list of events. "." is the body itself. "entry.*.changes" is the
	// list changes in each element of the list entry, and then root:entry.*.id is the id of the
	// element that contains the event. Empty means that a delivery is one event.
	Split string
	// AllowSingle means that an object without that list is one event itself.
	AllowSingle bool
	// Item is the path of the event in an element of the list; empty means the element itself.
	Item string
	// Key gives the event's key: the first template that is complete. If none is, the event gets a
	// content key.
	Key []signature.Template
	// Type gives the event's type in the same way, or "unknown". The other templates may refer to
	// it: {type}.
	Type []signature.Template
	// Account gives the tenant in the same way, or else the source's own.
	Account []signature.Template
	// OccurredAt is the time of the event.
	OccurredAt *Time
	// APIVersion gives the version of the provider's API in the same way.
	APIVersion []signature.Template
	// Subject gives the id of an object whose ID a source's configuration leaves out. If it is
	// empty, ID is required.
	Subject []signature.Template
	// UniquePerDelivery means that an event without a key is a new event in each delivery, because
	// the sender's notifications look alike.
	UniquePerDelivery bool
	// Omit are dotted paths that may differ between deliveries of one event (a counter of
	// attempts).
	Omit []string
}

// BodyForm is the format of a body.
type BodyForm int

// The formats.
const (
	// JSON is a JSON object, or an array if deliveries are split.
	JSON BodyForm = iota
	// Form is application/x-www-form-urlencoded. It is read as an object of strings, and of lists
	// for repeated fields.
	Form
	// Payload is a form with a single field payload that contains JSON.
	Payload
)

// Time is the place of a time in a body.
type Time struct {
	// From is its path in the event, or root:path in the whole body.
	From signature.Ref
	Unit Unit
}

// Object says what events of some types say about an object. Its references can be json:, root: and
// type (the event's type).
type Object struct {
	// Events are the event types: patterns in which * stands for any text. Empty means all.
	Events []string
	// Ignored says why events of these types are about no object.
	Ignored string
	// Type and ID give the object's type and id: the first template that is complete.
	Type, ID []signature.Template
	// State is the path of the object's whole state, or root:path in the whole body; "." is the
	// event itself. Empty means that the event has no state, so the object needs a refetch.
	State string
	// Before is the path of the old values of the changed fields; empty if there are none.
	Before string
	// Changes is the path of the changes if each field has its old and its new value ({"previous":
	// 1, "current": 2}). The old values are used only if all new values equal those of the state:
	// otherwise the changes are about other fields, or in another format than the state.
	Changes string
	// Version is the object's own version, in the state; nil means that the event's time is the
	// version.
	Version *Version
	// Deletes are the event types that delete the object. Final means permanently, because ids are
	// never reused.
	Deletes []string
	Final   bool
	// FinalWithoutVersion means that only a delete without a version is final, because nothing else
	// gives it an order.
	FinalWithoutVersion bool
	// Partial says why the state is not whole; "" if it is.
	Partial string
	// IgnoredPaths are dotted paths of the state that change without a new version.
	IgnoredPaths []string
}

// Version is an object's own version.
type Version struct {
	// From is its path in the event (not in the state), or root:path.
	From signature.Ref
	Unit Unit
	// MayNotAdvance means that the version may stay the same after a change.
	MayNotAdvance bool
}

// Variants says how to make another event from a sample, with dotted paths in its body (fields, in
// a form).
type Variants struct {
	// IDs get a new id each. If the event's id is in a header, no path is needed.
	IDs []string
	// Times are set to the time of the event.
	Times []Time
	// Objects are the ids of the object, for --new-objects.
	Objects []string
	// Versions are integer versions of the object. Each gets the number of the event appended.
	Versions []string
	// Counter gets the number of the event appended, so that each event changes something visible.
	Counter string
}

// Templates parses templates in the program's code.
func Templates(texts ...string) []signature.Template {
	out := make([]signature.Template, len(texts))
	for i, text := range texts {
		out[i] = signature.MustTemplate(text)
	}
	return out
}

// TimeAt returns a Time in the program's code.
func TimeAt(ref string, unit Unit) *Time { return &Time{From: signature.MustRef(ref), Unit: unit} }

// OwnVersion returns a Version in the program's code.
func OwnVersion(ref string, unit Unit) *Version {
	return &Version{From: signature.MustRef(ref), Unit: unit}
}

// Matches reports whether a type matches one of the patterns.
func Matches(patterns []string, eventType string) bool {
	for _, p := range patterns {
		if matchesPattern(p, eventType) {
			return true
		}
	}
	return false
}

func matchesPattern(pattern, text string) bool {
	stem, rest, open := strings.Cut(pattern, "*")
	if !open {
		return pattern == text
	}
	text, ok := strings.CutPrefix(text, stem)
	for ok {
		part, more, another := strings.Cut(rest, "*")
		if !another {
			return strings.HasSuffix(text, part)
		}
		_, text, ok = strings.Cut(text, part)
		rest = more
	}
	return false
}
