// Package provider says what a provider of webhooks means: how its deliveries are proven, split, named and read.
// Each provider is one folder below this one; adding one touches nothing else but the registry of package all.
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

// Provider is what a sender of webhooks means to Postern. Its methods are pure: no clock, no network, no state.
type Provider interface {
	// Name is the word used in configuration, lower case.
	Name() string
	// Check tells what is missing or wrong in a source's configuration; nil if it can be used.
	Check(src *Source) error
	// Headers are the request headers worth keeping with an event, in canonical form. None of them may carry a credential.
	Headers() []string
	// Verify proves the sender of a delivery from its bytes and its time of receipt. The error is a *Rejection.
	Verify(src *Source, d *Delivery) (Verification, error)
	// Identify splits a verified delivery into its events, at least one, and names each. A body that cannot be read
	// becomes one event under a content key: nothing verified is refused. The error is a *Rejection (a forbidden account).
	Identify(src *Source, d *Delivery) ([]Event, error)
	// Observe reads what a stored event says of its object. A *Dead error needs a person; any other is tried again.
	Observe(src *Source, e *Stored) (Observation, error)
	// Samples are realistic events for trying a source, by event type in the provider's own spelling.
	Samples() []Sample
	// Sign makes a delivery of the provider out of a sample's or a user's body, signed at the given time.
	Sign(src *Source, s Sample, at time.Time) (*Delivery, error)
	// Vary makes the n-th event of its own out of a sample: always an event id of its own (made from the type, n and at,
	// so that the same call gives the same bytes), and every time that says when it happened set to at. It concerns the
	// sample's own object, unless newObject is set: then the object's id ends in n.
	Vary(s Sample, n int, at time.Time, newObject bool) (Sample, error)
}

// Source is what a provider needs to know of a configured endpoint.
type Source struct {
	// Name is the configured name, the last part of the ingest path.
	Name string
	// Account is the one tenant this source belongs to; empty where the delivery says or there is none.
	Account string
	// Accounts are the tenants allowed; "*" allows any. Empty: the provider's default.
	Accounts []string
	// Key chooses what names an event where the provider leaves a choice (Shopify: webhook-id, event-id).
	Key string
	// Secrets verify; any of them may match.
	Secrets []Secret
	// Tolerance is how far a signed time may lie from the time of receipt, both ways; 0: the provider's default.
	Tolerance time.Duration
	// URL is the address that the provider was given, for schemes that sign it ("https://hooks.example/webhooks/twilio"). What a
	// proxy shows is never used. Without a query of its own it takes the delivery's.
	URL string
	// Keys remembers what the secrets are good for; nil: they are read for every delivery.
	Keys *signature.Keys
	// WholeSeconds are the types of objects whose versions are times that are read from more than one field, be it of
	// several kinds of events or of events and the API. One field may count milliseconds and another whole seconds, so all
	// are cut to whole seconds: what differs within one second is then undecided, never decided by the finer clock. "*"
	// stands for types that are read from the body.
	WholeSeconds map[string]bool
}

// Observe reads what a stored event says of its object, with its version cut where the source's other readers need that.
func Observe(p Provider, src *Source, e *Stored) (Observation, error) {
	o, err := p.Observe(src, e)
	if src.WholeSeconds[o.ObjectType] || src.WholeSeconds["*"] {
		o.CutToSecond()
	}
	return o, err
}

// Secret is one of a source's signing secrets. Its name is stored with what it verified; its value is never printed.
type Secret struct {
	Name  string
	Value []byte `json:"-"`
}

// String hides the value, so that no log line or error can carry it.
func (s Secret) String() string { return "secret " + s.Name }

// GoString hides it from %#v too.
func (s Secret) GoString() string { return s.String() }

// Delivery is one request as it arrived.
type Delivery struct {
	// Method is the request's; empty: POST.
	Method string
	// Query is the request's raw query, without the question mark.
	Query      string
	Header     http.Header
	Body       []byte
	ReceivedAt time.Time
}

// Reply is an answer of the provider's own kind in place of the receipt. The zero Status is 200.
type Reply struct {
	Status      int
	ContentType string
	Header      http.Header
	Body        []byte
}

// Challenger is a provider that asks, by a request that is no delivery (GET or HEAD, signed by nobody), whether an address is
// ours. Challenge gives the answer; nil where the request is none of its challenges, which is answered 405. It must not become
// a signing oracle: no MAC over text that the caller chose freely, under a key that signs deliveries.
type Challenger interface {
	Challenge(src *Source, d *Delivery) *Reply
}

// Challenges tells whether a provider asks whether an address is ours. One that may or may not, as its data says, tells by a method
// Challenges.
func Challenges(p Provider) bool {
	if may, ok := p.(interface{ Challenges() bool }); ok {
		return may.Challenges()
	}
	_, ok := p.(Challenger)
	return ok
}

// Greeter is a provider that sends signed requests which are no events: the verification of an address, a ping that wants an
// answer of its own. Greet is asked after Verify, so nobody but the provider can make it compute anything. A nil Reply says
// that the delivery is an ordinary one; otherwise nothing is stored.
type Greeter interface {
	Greet(src *Source, d *Delivery) *Reply
}

// Acknowledger is a provider whose sender wants an answer other than the receipt, for a delivery that is stored.
type Acknowledger interface {
	Acknowledge(src *Source, d *Delivery) *Reply
}

// Verification is what proved a delivery; kept with the event.
type Verification struct {
	// Scheme names how it was proven, e.g. "stripe-v1".
	Scheme string `json:"scheme"`
	// Secret is the name of the secret that matched.
	Secret string `json:"secret"`
	// SignedAt is the signed time, zero where the scheme signs none.
	SignedAt time.Time `json:"signed_at,omitzero"`
}

// Event is what the log must know of one event of a delivery.
type Event struct {
	// Key is the provider's id of the event or, where it gave none, a content key ("sha256:...").
	Key string
	// ContentKey says that Key was made from the content.
	ContentKey bool
	// Type is the provider's event type; "unknown" where none can be read.
	Type string
	// Account is the tenant inside the source, "" where there is none.
	Account string
	// ObjectType and ObjectID name the object the event is about, "" where none can be told.
	ObjectType, ObjectID string
	// OccurredAt is the provider's time of the event; zero where it gives none.
	OccurredAt time.Time
	// APIVersion is the version of the provider's API that rendered the body, "" where it does not say.
	APIVersion string
	// VersionSigned: APIVersion is in what is signed, so that the same event told in another version is believed to be just that. A version that anybody can write, in a header,
	// would let a forger make two events pass for one.
	VersionSigned bool
	// Fingerprint tells deliveries of one key apart that differ in more than the provider lets them.
	Fingerprint [16]byte
}

// Stored is an event as the log has it.
type Stored struct {
	ID         int64
	Key        string
	Type       string
	Account    string
	APIVersion string
	Origin     string
	ReceivedAt time.Time
	// Index is the event's place in its delivery, from 0.
	Index int
	// Body is the whole delivery's body.
	Body []byte
}

// CutToSecond cuts a version that is a time to whole seconds. A number that counts changes, whose unit is 1, stays.
func (o *Observation) CutToSecond() {
	const second = int64(time.Second / time.Microsecond)
	if o.HasAt && o.Unit > 1 {
		o.At, o.Unit = o.At-o.At%second, max(o.Unit, second)
	}
}

// Observation is what one event says of one object. Exactly one of three shapes: Ignored is set (no object is concerned);
// Partial is set (a reason to look, no state enters); or a whole state.
type Observation struct {
	// Account, ObjectType and ObjectID name the object.
	Account, ObjectType, ObjectID string
	// Ignored says in words why the event concerns no object.
	Ignored string
	// Partial says in words why the event carries no whole state.
	Partial string

	// Deleted: the object is gone at the provider. A look that is Partial says so where a number alone orders the object's states: a person's word makes that a tombstone.
	Deleted bool
	// Final: a delete that is never taken back, of a type whose ids are never given again.
	Final bool
	// State is the object, nil where the event carries none (a bare delete).
	State *canonical.Value
	// Before is what the changed fields were before (laid over State it gives the state before); nil where none is told.
	Before *canonical.Value

	// At is the version: microseconds of the provider's clock (or an integer version). HasAt is false where the event has none.
	At    int64
	HasAt bool
	// Unit is the resolution of the clock At was read from, in microseconds, at least 1.
	Unit int64
	// Own: At is the object's own version field, not the event's time.
	Own bool
	// Still: the own version is not known to move with every change, so the window reaches to the receipt.
	Still bool
	// Until is the last microsecond of the event's own time where At is the object's version, 0 where the event tells none: a Still one's window reaches as far,
	// though the clock of the receipt be behind the provider's.
	Until int64
	// Rank is 0 for the event that opens the object, else 1 + the place of its status in the type's order; 1 where no rank is safe.
	Rank int
	// AnyTime exempts At from the bound against the time of receipt (Stripe test clocks).
	AnyTime bool
	// Volatile are dotted paths of fields that change without a version and are left out when states are compared; they go through each element of arrays.
	Volatile []string
}

// Sample is an event for trying a source.
type Sample struct {
	// Type is the provider's event type.
	Type string
	// ID is the event's id where the provider sends it in a header; empty where it is in the body or is to be made from it.
	ID string
	// Body is the JSON to send.
	Body []byte
}

// Dead is an error that no further attempt can mend: a person must look into it.
type Dead struct {
	Reason string
	// Look: the object owes a look at the provider's API besides.
	Look bool
	// Moved: the API answered another object at the address of the one that was asked for, and will again.
	Moved bool
}

func (d *Dead) Error() string { return d.Reason }

// Reason is why a delivery was refused, from a closed set.
type Reason string

// The reasons a delivery is refused for.
const (
	MissingSignature   Reason = "missing_signature"
	MalformedSignature Reason = "malformed_signature"
	WrongSignature     Reason = "wrong_signature"
	StaleTimestamp     Reason = "stale_timestamp"
	FutureTimestamp    Reason = "future_timestamp"
	MissingHeader      Reason = "missing_header"
	ForbiddenAccount   Reason = "forbidden_account"
)

// Explain says in words what a reason means and what usually causes it.
func (r Reason) Explain() string {
	switch r {
	case MissingSignature:
		return "the delivery carries no signature; usually not sent by the provider at all, or a proxy dropped the header"
	case MalformedSignature:
		return "the signature header cannot be read; usually a proxy or a hand-made request changed it"
	case WrongSignature:
		return "no configured secret made this signature; usually the wrong secret (another endpoint's, test against live), or a proxy that changed the body"
	case StaleTimestamp:
		return "the signed time is too old; usually a captured delivery sent again, a long queue before the gateway, or this machine's clock is ahead"
	case FutureTimestamp:
		return "the signed time lies in the future; usually this machine's clock is behind"
	case MissingHeader:
		return "a header the provider always sends is missing; usually a proxy dropped it or the source names the wrong provider"
	case ForbiddenAccount:
		return "the delivery is from an account this source does not allow; add it to the source's accounts if it is yours"
	}
	return string(r)
}

// Rejection is the error of a delivery that is not believed: a reason and what exactly was seen, without any secret.
type Rejection struct {
	Reason Reason
	Detail string
}

func (r *Rejection) Error() string { return string(r.Reason) + ": " + r.Detail }

// ContentKey is the key of an event whose delivery names none: SHA-256 over length-prefixed topic, account and body.
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

// BodyFingerprint is the fingerprint where the provider defines no other: SHA-256 of the body, cut to 16 bytes.
func BodyFingerprint(body []byte) [16]byte {
	sum := sha256.Sum256(body)
	return [16]byte(sum[:16])
}
