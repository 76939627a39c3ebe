// Package declared is the provider that is data: how a sender signs, where its events are named, and what they say of objects,
// all by reference. Providers whose sender needs no more than that are one Spec each; `provider: hmac` reads its from the
// configuration.
package declared

import (
	"strings"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/signature"
)

// Spec says what a sender of webhooks means.
type Spec struct {
	// Name is the word used in configuration, lower case. Title is the sender's own name.
	Name, Title string
	// Schemes are how it signs. Any that a delivery has a signature of may prove it. Sign takes the first that the source's first
	// secret and the body fit.
	Schemes []*signature.Scheme
	// EachItem: every event of a delivery carries a signature of its own, and the schemes read the event as the body. Split is then
	// the path of one list.
	EachItem bool
	// Refuse finds what makes a delivery unbelievable before its signature is looked at (two headers that contradict each other); nil
	// where nothing can.
	Refuse func(*provider.Source, *provider.Delivery) *provider.Rejection
	// Headers are kept with an event besides those that schemes and events refer to.
	Headers []string
	// Events is where a delivery's events are and how they are named.
	Events Events
	// Objects is what events say of objects; the first whose Events fit counts.
	Objects []Object

	// Challenge, Greet and Acknowledge answer as provider.Challenger, Greeter and Acknowledger do; nil where the sender needs no
	// such answer.
	Challenge, Greet, Acknowledge func(*provider.Source, *provider.Delivery) *provider.Reply

	// Samples are realistic deliveries. Vary and Dress say how more are made of them.
	Samples []provider.Sample
	Vary    Vary
	// Dress sets the headers that a sender sends beside the signature; those that name key and type are set without it.
	Dress func(src *provider.Source, d *provider.Delivery, s provider.Sample)
	// Check finds what else is wrong with a source; nil if nothing can be.
	Check func(*provider.Source) error
	// Docs is what docs/providers.md says of the provider.
	Docs Docs
}

// Docs is a provider for people; what it leaves empty of Signature, Key and Objects is told from the Spec.
type Docs = provider.Docs

// Events is where a delivery's events are and how they are named. References find json: in the event, root: in the whole body,
// form:, header:, query:, index (the event's place, from 0), content (SHA-256 of the event without the paths in Omit).
type Events struct {
	// Bodies are how a body may be written, tried in order; empty: JSON.
	Bodies []BodyForm
	// Split is the path of the list of events; "." is the body itself; "entry.*.changes" is the list changes in each element of the
	// list entry, and root:entry.*.id the id of the element that the event is in. Empty: a delivery is one event.
	Split string
	// Alone: a body that is an object without that list is one event itself.
	Alone bool
	// Item is the path of the event within an element of the list; empty: the element.
	Item string
	// Key names an event: the first template that is complete. Where none is, the event gets a content key.
	Key []signature.Template
	// Type is the event's type, likewise; "unknown" where none is complete. The others may refer to it: {type}.
	Type []signature.Template
	// Account is the tenant, likewise; without one it is the source's.
	Account []signature.Template
	// Occurred is the time of the event.
	Occurred *Time
	// APIVersion is the version of the provider's API, likewise.
	APIVersion []signature.Template
	// Subject names what an event is about, for an object whose ID a source's configuration leaves out; empty: it must not be left out.
	Subject []signature.Template
	// EveryDelivery: an event that nothing names is a new one whenever it comes, since the sender's notifications look alike.
	EveryDelivery bool
	// Omit are dotted paths that may differ between deliveries of one event (a counter of attempts).
	Omit []string
}

// BodyForm is how a body is written.
type BodyForm int

// The forms.
const (
	// JSON is a JSON object, or an array where a delivery is split.
	JSON BodyForm = iota
	// Form is application/x-www-form-urlencoded; it is read as an object of texts, and of lists where a field repeats.
	Form
	// Payload is a form whose one field payload holds JSON.
	Payload
)

// Time is a time in a body.
type Time struct {
	// From is its path in the event, or root:path in the whole body.
	From signature.Ref
	Unit Unit
}

// Object is what events of some types say of an object. Its references find json:, root:, and type (the event's type).
type Object struct {
	// Events are the types it is about: patterns in which * stands for any text. Empty: all.
	Events []string
	// Ignored says in words why events of these types concern no object.
	Ignored string
	// Type and ID name the object: the first template that is complete.
	Type, ID []signature.Template
	// State is the path of the object's whole state, root:path in the whole body; "." is the event itself. Empty: the event
	// carries none, and is a reason to look.
	State string
	// Before is the path of the old values of what changed; empty: none are told.
	Before string
	// Changes is the path of what changed where each field has its old and its new value ({"previous": 1, "current": 2}). The old
	// values count if all the new ones are the state's: else the sender tells of other fields, or in other words, than it shows.
	Changes string
	// Version is the object's own version, in the state; nil: the event's time is the version.
	Version *Version
	// Deletes are the types after which the object is gone. Final: for good, since ids are never given again.
	Deletes []string
	Final   bool
	// FinalBare: only a delete without a version of its own is final, since nothing else gives it a place.
	FinalBare bool
	// Partial says in words why the state is not whole; "" where it is.
	Partial string
	// Volatile are dotted paths of the state that change without a version.
	Volatile []string
}

// Version is an object's own version.
type Version struct {
	// From is its path in the event (not in the state), or root:path.
	From signature.Ref
	Unit Unit
	// Still: it is not known to move with every change.
	Still bool
}

// Vary says how another event is made of a sample: dotted paths in its body (fields, in a form).
type Vary struct {
	// IDs get a new id each; where the event's id is in a header nothing needs to be named.
	IDs []string
	// Times are set to the time of the event.
	Times []Time
	// Objects are the ids of the object, for --new-objects.
	Objects []string
	// Versions are integer versions of the object; each grows with the number of the event.
	Versions []string
	// Counter is set to the number of the event, so that each changes something that shows.
	Counter string
}

// Templates reads templates in the program's text.
func Templates(texts ...string) []signature.Template {
	out := make([]signature.Template, len(texts))
	for i, text := range texts {
		out[i] = signature.MustTemplate(text)
	}
	return out
}

// At is a Time in the program's text.
func At(ref string, unit Unit) *Time { return &Time{From: signature.MustRef(ref), Unit: unit} }

// Own is a Version in the program's text.
func Own(ref string, unit Unit) *Version { return &Version{From: signature.MustRef(ref), Unit: unit} }

// Matches tells whether a type fits one of the patterns.
func Matches(patterns []string, eventType string) bool {
	for _, p := range patterns {
		if matches(p, eventType) {
			return true
		}
	}
	return false
}

func matches(pattern, text string) bool {
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
