// Package provider defines what the gateway needs to know of each sender of webhooks: how its
// deliveries are verified, split into events and read, and how its API is called. Each provider is
// a folder below this one, registered in package all. The package and its providers are pure: they
// use no clock, no network and no database.
package provider

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"net/http"
	"time"

	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/signature"
)

// Provider describes a sender of webhooks. Its methods are pure: no clock, no network, no state.
type Provider interface {
	// Name is the provider's name in the configuration, in lower case.
	Name() string
	// Check returns what is missing or wrong in a source's configuration, or nil.
	Check(src *Source) error
	// Headers returns the request headers that are stored with an event, in canonical form. None of
	// them may contain a credential.
	Headers() []string
	// Verify verifies the signature of a delivery from its bytes and its time of receipt. The error
	// is a *Rejection.
	Verify(src *Source, d *Delivery) (Verification, error)
	// Identify splits a verified delivery into at least one event, and names each. An unreadable
	// body becomes one event with a content key, because every verified delivery is stored. The
	// error is a *Rejection (a forbidden account).
	Identify(src *Source, d *Delivery) ([]Event, error)
	// Observe reads what a stored event says about its object. A *Dead error needs an operator.
	// After any other error the event is retried.
	Observe(src *Source, e *StoredEvent) (Observation, error)
	// Samples returns realistic events for trying a source. Their types are in the provider's own
	// spelling.
	Samples() []Sample
	// Sign makes a signed delivery from the body of a sample or of a user, signed at the given
	// time.
	Sign(src *Source, s Sample, at time.Time) (*Delivery, error)
	// MakeVariant makes the n-th variant of a sample. It always has an event id of its own, made
	// from the type, n and at, so that the same call gives the same bytes. Every time that says
	// when the event happened is set to at. The variant is about the sample's own object, unless
	// newObject is set: then the object's id ends in n.
	MakeVariant(s Sample, n int, at time.Time, newObject bool) (Sample, error)
}

// Source holds the settings of a configured source that its provider needs.
type Source struct {
	// Name is the configured name, which is the last part of the ingest path.
	Name string
	// Account is the single tenant of this source. It is empty if deliveries name their tenant, or
	// there is none.
	Account string
	// Accounts are the allowed tenants; "*" allows any. If it is empty, the provider's default
	// applies.
	Accounts []string
	// Key selects which value identifies an event, if the provider has a choice (Shopify:
	// webhook-id, event-id).
	Key string
	// Secrets verify deliveries; any of them may match.
	Secrets []Secret
	// Tolerance is the maximum difference between a signed time and the time of receipt, in both
	// directions; 0 means the provider's default.
	Tolerance time.Duration
	// URL is the address that was entered at the provider, for schemes that sign it
	// ("https://hooks.example/webhooks/twilio"). The address of the received request is never used,
	// because a proxy may change it. If URL has no query, the delivery's query is added.
	URL string
	// Keys caches the decoded secrets. If it is nil, they are decoded for every delivery.
	Keys *signature.Keys
	// WholeSeconds are the object types whose versions are times from several fields, for example
	// one in events and one in the API. One field may have milliseconds and another whole seconds,
	// so all are cut to whole seconds. Changes within one second are then ambiguous; otherwise the
	// finer clock would decide them wrongly. "*" stands for types that are read from the body.
	WholeSeconds map[string]bool
}

// Observe calls p.Observe, and cuts the version to seconds if the source needs that (WholeSeconds).
func Observe(p Provider, src *Source, e *StoredEvent) (Observation, error) {
	o, err := p.Observe(src, e)
	if src.WholeSeconds[o.ObjectType] || src.WholeSeconds["*"] {
		o.CutToSecond()
	}
	return o, err
}

// Secret is one of a source's signing secrets. Its name is stored with each event that it verified.
// Its value is never printed.
type Secret struct {
	Name  string
	Value []byte `json:"-"`
}

// String masks the value, so that no log line or error can contain it.
func (s Secret) String() string { return "secret " + s.Name }

// GoString masks the value for %#v too.
func (s Secret) GoString() string { return s.String() }

// Delivery is one received request.
type Delivery struct {
	// Method is the HTTP method; empty means POST.
	Method string
	// Query is the raw query, without the question mark.
	Query      string
	Header     http.Header
	Body       []byte
	ReceivedAt time.Time
}

// Reply is a response in the provider's own format, instead of the receipt. Status 0 means 200.
type Reply struct {
	Status      int
	ContentType string
	Header      http.Header
	Body        []byte
}

// Challenger is a provider that checks, with an unsigned request (GET or HEAD), whether an address
// belongs to the user. Challenge returns the response. It returns nil for any other request, which
// gets 405. It must not become a signing oracle: no MAC over a text that the caller chose freely,
// under a key that signs deliveries.
type Challenger interface {
	Challenge(src *Source, d *Delivery) *Reply
}

// Challenges reports whether a provider sends challenges. A provider for which that depends on its
// configuration implements a method Challenges.
func Challenges(p Provider) bool {
	if may, ok := p.(interface{ Challenges() bool }); ok {
		return may.Challenges()
	}
	_, ok := p.(Challenger)
	return ok
}

// Handshaker is a provider that sends handshakes: signed requests that are no events, such as the
// verification of an address, or a ping with a response of its own. Handshake is called after
// Verify, so only the provider can make it compute anything. It returns nil for an ordinary
// delivery. If it returns a response, nothing is stored.
type Handshaker interface {
	Handshake(src *Source, d *Delivery) *Reply
}

// Acknowledger is a provider whose sender expects another response than the receipt for a stored
// delivery.
type Acknowledger interface {
	Acknowledge(src *Source, d *Delivery) *Reply
}

// Verification says how a delivery was verified. It is stored with the event.
type Verification struct {
	// Scheme is the name of the scheme, e.g. "stripe-v1".
	Scheme string `json:"scheme"`
	// Secret is the name of the secret that matched.
	Secret string `json:"secret"`
	// SignedAt is the signed time; zero if the scheme signs none.
	SignedAt time.Time `json:"signed_at,omitzero"`
}

// Event is what the log stores about one event of a delivery.
type Event struct {
	// Key is the provider's id of the event, or else a content key ("sha256:...").
	Key string
	// ContentKey means that Key was made from the content.
	ContentKey bool
	// Type is the provider's event type, or "unknown" if none can be read.
	Type string
	// Account is the tenant inside the source, or "".
	Account string
	// ObjectType and ObjectID name the object of the event; "" if it is unknown.
	ObjectType, ObjectID string
	// OccurredAt is the provider's time of the event; zero if there is none.
	OccurredAt time.Time
	// APIVersion is the API version that rendered the body, or "" if it is unknown.
	APIVersion string
	// VersionSigned means that APIVersion is part of what is signed. Only then the same event
	// rendered in another version is treated as a duplicate. Anyone can write a version into an
	// unsigned header, and could make two events look like one.
	VersionSigned bool
	// Fingerprint differs between deliveries of one key whose content differs in more than the
	// provider allows.
	Fingerprint [16]byte
}

// StoredEvent is an event as it is read from the log.
type StoredEvent struct {
	ID         int64
	Key        string
	Type       string
	Account    string
	APIVersion string
	Origin     string
	ReceivedAt time.Time
	// Index is the event's position in its delivery, from 0.
	Index int
	// Body is the body of the whole delivery.
	Body []byte
}

// CutToSecond cuts a version that is a time to whole seconds. It does not change an integer
// version, whose unit is 1.
func (o *Observation) CutToSecond() {
	const second = int64(time.Second / time.Microsecond)
	if o.HasAt && o.Unit > 1 {
		o.At, o.Unit = o.At-o.At%second, max(o.Unit, second)
	}
}

// Observation is what one event says about one object. It has exactly one of three shapes: Ignored
// is set (it is about no object), Partial is set (a refetch is needed, no state is applied), or it
// has a whole state.
type Observation struct {
	// Account, ObjectType and ObjectID name the object.
	Account, ObjectType, ObjectID string
	// Ignored says why the event is about no object.
	Ignored string
	// Partial says why the event has no whole state.
	Partial string

	// Deleted means that the object does not exist at the provider any more. A refetch that finds
	// nothing sets it together with Partial if an integer version orders the object's states. An
	// operator's overwrite makes a tombstone from such a refetch.
	Deleted bool
	// Final means that the delete is permanent, for a type whose ids are never reused.
	Final bool
	// State is the object; nil if the event has none (a bare delete).
	State *canonical.Value
	// Before has the old values of the changed fields: laid over State it gives the state before.
	// It is nil without a change-set.
	Before *canonical.Value

	// At is the version: microseconds of the provider's clock, or an integer version. HasAt is
	// false if the event has no version.
	At    int64
	HasAt bool
	// Unit is the resolution of the clock of At, in microseconds, at least 1.
	Unit int64
	// OwnVersion means that At is the object's own version field, not the event's time.
	OwnVersion bool
	// MayNotAdvance means that the own version may stay the same after a change, so the time range
	// of the state extends to the receipt.
	MayNotAdvance bool
	// EventTimeEnd is the last microsecond of the event's own time when At is the object's version,
	// or 0 if the event has none. With MayNotAdvance the time range extends at least to it, even if
	// the clock of the receipt is behind the provider's.
	EventTimeEnd int64
	// Rank is 0 for the event that opens the object, else 1 + the position of its status in the
	// type's order. It is 1 if no order is documented.
	Rank int
	// AllowFuture exempts At from the limit against the time of receipt (Stripe test clocks).
	AllowFuture bool
	// IgnoredPaths are dotted paths of fields that change without a new version. The comparison of
	// states leaves them out. They apply to each element of arrays.
	IgnoredPaths []string
}

// Sample is an event for trying a source.
type Sample struct {
	// Type is the provider's event type.
	Type string
	// ID is the event's id if the provider sends it in a header. It is empty if the id is in the
	// body or is made from it.
	ID string
	// Body is the JSON to send.
	Body []byte
}

// Dead is an error that no retry can fix: an operator must look into it.
type Dead struct {
	Reason string
	// NeedsRefetch means that the object needs a refetch too.
	NeedsRefetch bool
	// WrongObject means that the API returned another object than the one requested at its address,
	// and will do so again.
	WrongObject bool
}

func (d *Dead) Error() string { return d.Reason }

// Reason is why a delivery was rejected. It is a closed set.
type Reason string

// The reasons for rejecting a delivery.
const (
	MissingSignature   Reason = "missing_signature"
	MalformedSignature Reason = "malformed_signature"
	WrongSignature     Reason = "wrong_signature"
	StaleTimestamp     Reason = "stale_timestamp"
	FutureTimestamp    Reason = "future_timestamp"
	MissingHeader      Reason = "missing_header"
	ForbiddenAccount   Reason = "forbidden_account"
)

// Explain describes a reason and its usual cause.
func (r Reason) Explain() string {
	switch r {
	case MissingSignature:
		return "the delivery has no signature; usually the provider did not send it, or a proxy dropped the header"
	case MalformedSignature:
		return "the signature header cannot be read; usually a proxy changed it, or the request was made by hand"
	case WrongSignature:
		return "the signature does not match any configured secret; usually the secret is wrong (of another " +
			"endpoint, or of test instead of live), or a proxy changed the body"
	case StaleTimestamp:
		return "the signed time is too old; usually a captured delivery was sent again, a queue before the gateway " +
			"is long, or this machine's clock is ahead"
	case FutureTimestamp:
		return "the signed time is in the future; usually this machine's clock is behind"
	case MissingHeader:
		return "a header that the provider always sends is missing; usually a proxy dropped it or the source names " +
			"the wrong provider"
	case ForbiddenAccount:
		return "the delivery is from an account this source does not allow; add it to the source's accounts if it is " +
			"yours"
	}
	return string(r)
}

// Rejection is the error of a delivery that is rejected: a reason, and what was received, without
// any secret.
type Rejection struct {
	Reason Reason
	Detail string
}

func (r *Rejection) Error() string { return string(r.Reason) + ": " + r.Detail }

// ContentKey returns the key of an event whose delivery has none: SHA-256 over the length-prefixed
// topic, account and body.
func ContentKey(topic, account string, body []byte) string {
	h := sha256.New()
	for _, part := range [][]byte{[]byte(topic), []byte(account), body} {
		var n [8]byte
		binary.BigEndian.PutUint64(n[:], uint64(len(part)))
		h.Write(n[:])
		h.Write(part)
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil))
}

// BodyFingerprint is the default fingerprint: SHA-256 of the body, cut to 16 bytes.
func BodyFingerprint(body []byte) [16]byte {
	sum := sha256.Sum256(body)
	return [16]byte(sum[:16])
}
