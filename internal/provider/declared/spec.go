// Package declared implements providers that are described by data (Spec): how a sender signs,
// where a delivery contains its events, and what they say about objects. Most provider packages are
// one Spec each, and the configuration builds a Spec for the providers hmac and api. The package
// makes no calls and stores nothing.
package declared

import (
	"strings"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/settings"
	"github.com/postern-gateway/postern/internal/signature"
)

// Spec describes a sender of webhooks.
type Spec struct {
	// Name is the provider's name in the configuration, in lower case. Title is the sender's own
	// name.
	Name  string `yaml:"name"`
	Title string `yaml:"title"`
	// Schemes are the signature schemes. A delivery is verified by any scheme that it has a
	// signature of. Sign uses the first scheme that fits the source's first secret and the body.
	Schemes []*signature.Scheme `yaml:"schemes"`
	// SignedItems means that every event of a delivery is signed separately, and that the schemes
	// read the event as the body. Split is then the path of one list.
	SignedItems bool `yaml:"signed_items,omitempty"`
	// Reject returns why a delivery must be rejected before its signature is checked (for example
	// two contradicting headers), or nil.
	Reject func(*provider.Source, *provider.Delivery) *provider.Rejection `yaml:"-"`
	// Headers are stored with an event, in addition to those that schemes and events refer to.
	Headers []string `yaml:"headers,omitempty"`
	// Events says where a delivery contains its events, and what their keys and types are.
	Events Events `yaml:"events"`
	// Objects says what events say about objects. The first element whose Events match is used.
	Objects []Object `yaml:"objects,omitempty"`

	// Challenge, Handshake and Acknowledge return the responses of provider.Challenger, Handshaker
	// and Acknowledger. They are nil if the sender needs none.
	Challenge, Handshake, Acknowledge func(*provider.Source, *provider.Delivery) *provider.Reply `yaml:"-"`

	// Samples are realistic deliveries. Variants and SetHeaders say how to make more of them.
	Samples  []provider.Sample `yaml:"-"`
	Variants Variants          `yaml:"variants"`
	// SetHeaders sets the headers that a sender sends in addition to the signature. Headers with
	// the key and the type are set without it.
	SetHeaders func(src *provider.Source, d *provider.Delivery, s provider.Sample) `yaml:"-"`
	// Check returns what else is wrong with a source; nil if there is nothing to check.
	Check func(*provider.Source) error `yaml:"-"`
	// Docs is the provider's part of docs/reference/providers.md.
	Docs Docs `yaml:"docs"`
}

// Docs describes a provider to people. Signature, Key and Objects are generated from the Spec if
// they are empty.
type Docs = provider.Docs

// Events says where a delivery contains its events, and which values are their key, type, account
// and time. It is for provider: hmac and standardwebhooks. Values are texts with references:
// {json:PATH} in the event, {root:PATH} in the whole body, {form:FIELD}, {header:NAME},
// {query:NAME}, {type} (not in type itself), {index} (the event's position in its delivery, from 0)
// and {content} (a digest of the event). A list of texts means alternatives: Postern uses the first
// one whose references all have a value.
type Events struct {
	// Bodies is the format of bodies: json, form, or payload (a form whose field payload contains
	// JSON). Postern tries the formats of a list in order.
	Bodies settings.List[BodyForm] `yaml:"body,omitempty" unset:"json" words:"json form payload"`
	// Split is the path of the list of events, if a delivery has many events, e.g. data.events. '.'
	// means that the body is the list. entry.*.changes means the list changes in each element of
	// the list entry; {root:entry.*.id} then refers to the element that contains the event.
	Split string `yaml:"split,omitempty"`
	// Item is the path of the event in an element of that list. Leave it empty if the element is
	// the event.
	Item string `yaml:"item,omitempty" path:"true"`
	// Key identifies an event permanently: a later delivery with the same key is a duplicate. Leave
	// it empty if the sender has no such value: Postern then uses a digest of the content.
	Key Alternatives `yaml:"key,omitempty" refs:"json root form header query type index content method"`
	// UniquePerDelivery: true makes each delivery without a key a separate event, even if its
	// content is repeated. It is for senders whose notifications look alike.
	UniquePerDelivery bool `yaml:"every_delivery,omitempty" unset:"false"`
	// Type is the event's type.
	Type Alternatives `yaml:"type,omitempty" refs:"json root form header query"`
	// Account is the tenant, for a source with several tenants; see accounts.
	Account Alternatives `yaml:"account,omitempty" refs:"json root form header query"`
	// OccurredAt is the time of the event.
	OccurredAt *Time `yaml:"occurred,omitempty"`
	// APIVersion is the version of the sender's API that produced the body.
	APIVersion Alternatives `yaml:"api_version,omitempty" refs:"json root form header query"`
	// Omit are paths in the event whose values may differ between deliveries of the same event,
	// e.g. a counter of attempts.
	Omit []string `yaml:"omit,omitempty"`
	// Headers are stored with each event. Postern also stores the headers that the scheme and these
	// settings use.
	Headers []string `yaml:"headers,omitempty"`

	// AllowSingle means that an object without the list at Split is one event itself.
	AllowSingle bool `yaml:"-"`
	// Subject gives the id of an object whose ID a source's configuration leaves out. If it is
	// empty, ID is required.
	Subject []signature.Template `yaml:"-"`
}

// Alternatives are templates. The first one whose references all have a value is used.
type Alternatives = settings.List[signature.Template]

// BodyForm is the format of a body.
type BodyForm string

// The formats.
const (
	// JSON is a JSON object, or an array if deliveries are split. It is the default.
	JSON BodyForm = "json"
	// Form is application/x-www-form-urlencoded. It is read as an object of strings, and of lists
	// for repeated fields.
	Form BodyForm = "form"
	// Payload is a form with a single field payload that contains JSON.
	Payload BodyForm = "payload"
)

// Time is a time in an event.
type Time struct {
	// From is the place of the value: json:PATH in the event, root:PATH in the whole body or
	// form:FIELD.
	From signature.Ref `yaml:"from,omitempty" refs:"json root form"`
	// Unit is s, ms, rfc3339 or auto. With auto, Postern recognizes the format.
	Unit Unit `yaml:"unit,omitempty" unset:"auto" words:"auto s ms rfc3339"`
}

// Object says how events of some types describe an object.
type Object struct {
	// Events are the event types to which this object applies. * matches any text. Leave it empty
	// for all types. Postern uses the first object that matches.
	Events settings.List[string] `yaml:"events,omitempty"`
	// Ignored gives the reason why events of these types change no object. It excludes all other
	// settings except events.
	Ignored string `yaml:"ignored,omitempty"`
	// Type is the object's type: a text with references {json:PATH}, {root:PATH}, {form:FIELD} and
	// {type}.
	Type Alternatives `yaml:"type,omitempty" refs:"json root form type"`
	// ID is the object's id, with the same references. For provider: api it may be empty: the
	// CloudEvent's subject is then the id.
	ID Alternatives `yaml:"id,omitempty" refs:"json root form type"`
	// State is the path of the complete object in the event, or root:PATH; '.' is the event itself.
	// Leave it empty if events do not contain the state. Postern then refetches the object from the
	// sender's API.
	State string `yaml:"state,omitempty" path:"true"`
	// Before is the path of the previous values of the changed fields.
	Before string `yaml:"before,omitempty" path:"true"`
	// Changes is the path of the changed fields, each with its previous and current value:
	// {"previous": 1, "current": 2}. Postern uses the previous values only if all current values
	// equal those of the state.
	Changes string `yaml:"changes,omitempty" path:"true"`
	// Version is the value that orders the states of an object: its version or its time of change.
	// Leave it empty to use the event's time.
	Version *Version `yaml:"version,omitempty"`
	// Deletes are the event types that delete the object. * matches any text.
	Deletes settings.List[string] `yaml:"deletes,omitempty"`
	// Final: true says that deletes are permanent, because the sender never reuses an id.
	Final bool `yaml:"final,omitempty" unset:"false"`
	// Partial gives the reason why the state is only a part of the object. Postern then refetches
	// the object.
	Partial string `yaml:"partial,omitempty"`
	// IgnoredPaths are paths in the state whose values change without a new version. Comparisons of
	// states ignore them. A path applies to each element of an array.
	IgnoredPaths []string `yaml:"ignored_paths,omitempty"`

	// FinalWithoutVersion means that only a delete without a version is final, because nothing else
	// gives it an order.
	FinalWithoutVersion bool `yaml:"-"`
}

// Version is the value that orders the states of an object.
type Version struct {
	// From is the place of the value: json:PATH in the event (not in the state), root:PATH in the
	// whole body or form:FIELD.
	From signature.Ref `yaml:"from,omitempty" refs:"json root form"`
	// Unit is s, ms, rfc3339, integer (a number that grows with each change) or auto. With auto,
	// Postern recognizes the format of the time. If the times of a type come from more than one
	// field, here and in api.objects, Postern compares them in whole seconds.
	Unit Unit `yaml:"unit,omitempty" unset:"auto" words:"auto s ms rfc3339 integer"`
	// MayNotAdvance: true says that an object can change without a new version.
	MayNotAdvance bool `yaml:"may_not_advance,omitempty" unset:"false"`
}

// Variants says how to make another event from a sample, with dotted paths in its body (fields, in
// a form).
type Variants struct {
	// IDs get a new id each. If the event's id is in a header, no path is needed.
	IDs []string `yaml:"ids,omitempty"`
	// Times are set to the time of the event.
	Times []Time `yaml:"times,omitempty"`
	// Objects are the ids of the object, for --new-objects.
	Objects []string `yaml:"objects,omitempty"`
	// Versions are integer versions of the object. Each gets the number of the event appended.
	Versions []string `yaml:"versions,omitempty"`
	// Counter gets the number of the event appended, so that each event changes something visible.
	Counter string `yaml:"counter,omitempty"`
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
