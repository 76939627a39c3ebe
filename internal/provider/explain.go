package provider

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/postern-gateway/postern/internal/signature"
)

// Explainer is a provider whose verification is more than its schemes, for example when each event
// is signed.
type Explainer interface {
	Explain(src *Source, d *Delivery) []signature.Step
}

// Explain explains VerifySchemes step by step, for each scheme that the delivery has a signature
// of, or else the first. The last step is the result of VerifySchemes.
func Explain(src *Source, d *Delivery, schemes ...*signature.Scheme) []signature.Step {
	secrets, names := make([][]byte, len(src.Secrets)), make([]string, len(src.Secrets))
	for i, secret := range src.Secrets {
		secrets[i], names[i] = secret.Value, secret.Name
	}
	r := SignatureRequest(src, d)
	present := slices.DeleteFunc(slices.Clone(schemes), func(s *signature.Scheme) bool { return !s.HasSignature(r) })
	if len(present) == 0 {
		present = schemes[:1]
	}
	var out []signature.Step
	for _, s := range present {
		if len(present) > 1 {
			out = append(out, signature.Step{Name: "scheme", OK: true, Detail: s.Name})
		}
		steps := s.Explain(secrets, r, src.Tolerance, names...)
		out = append(out, steps...)
		if steps[len(steps)-1].OK {
			break
		}
	}
	return out
}

// Explanation says step by step how a gateway handles a delivery.
type Explanation struct {
	// True if a gateway accepts the signature.
	Verified bool `json:"verified"`
	// Steps are the checks in order: the place and the form of the signature, the signed bytes,
	// each secret, the age of the signed time, and the probable causes of a failure.
	Steps []signature.Step `json:"steps"`
	// What the gateway responds instead of storing events; "" if it stores them.
	Response string `json:"response,omitempty"`
	// The events that it stores.
	Events []ExplainedEvent `json:"events,omitempty"`
	// Rejected is why a gateway rejects the delivery; "" if it does not.
	Rejected string `json:"-"`
}

// ExplainedEvent is an event that a gateway would store.
type ExplainedEvent struct {
	Key        string `json:"event_id"`
	Type       string `json:"type"`
	Account    string `json:"account,omitempty"`
	ObjectType string `json:"object_type,omitempty"`
	ObjectID   string `json:"object_id,omitempty"`
	// OccurredAt is RFC 3339; "" if the event has no time.
	OccurredAt string `json:"occurred_at,omitempty"`
	// What the event does to its object.
	Effect string `json:"change"`
}

// ExplainDelivery processes a delivery like a gateway, without storing anything. With anyAge it
// uses the signed time as the time of receipt.
func ExplainDelivery(p Provider, src *Source, d *Delivery, anyAge bool) (*Explanation, error) {
	v, err := p.Verify(src, d)
	var rejection *Rejection
	aged := errors.As(err, &rejection) && (rejection.Reason == StaleTimestamp || rejection.Reason == FutureTimestamp)
	if aged && anyAge {
		tolerant := *src
		tolerant.Tolerance = 1 << 62
		v, err = p.Verify(&tolerant, d)
		d.ReceivedAt = v.SignedAt
	}
	if err != nil && !errors.As(err, &rejection) {
		return nil, err
	}
	x := &Explanation{Verified: err == nil}
	switch explained := p.(type) {
	case Explainer:
		x.Steps = explained.Explain(src, d)
	case Signed:
		x.Steps = Explain(src, d, explained.Schemes()...)
	default:
		return nil, fmt.Errorf("provider %s does not explain its signatures", p.Name())
	}
	if !x.Verified {
		x.reject(rejection)
		return x, nil
	}
	if g, ok := p.(Handshaker); ok {
		if reply := g.Handshake(src, d); reply != nil {
			x.Response = fmt.Sprintf("a handshake: the response is %q, and nothing is stored", reply.Body)
			return x, nil
		}
	}
	a, err := Accept(p, src, d)
	if invalid := new(InvalidDelivery); errors.As(err, &invalid) {
		x.Response, x.Rejected = fmt.Sprintf("rejected with %d, and nothing is stored: %s", invalid.Status,
			invalid.Detail), "it cannot be stored"
		return x, nil
	}
	if err != nil {
		return nil, err
	}
	return x, x.addEvents(p, src, a.Delivery)
}

// reject adds the reason why a gateway rejects the delivery.
func (x *Explanation) reject(r *Rejection) {
	x.Verified, x.Rejected = false, string(r.Reason)
	x.Steps = append(x.Steps, signature.Step{Name: "rejected", Detail: string(r.Reason) + ": " + r.Reason.Explain()})
}

// addEvents adds the events that a gateway would store and their effect on the mirror.
func (x *Explanation) addEvents(p Provider, src *Source, d *Delivery) error {
	found, err := p.Identify(src, d)
	if rejection := new(Rejection); errors.As(err, &rejection) {
		x.reject(rejection)
		return nil
	}
	if err != nil {
		return err
	}
	for i, e := range found {
		one := ExplainedEvent{Key: e.Key, Type: e.Type, Account: e.Account, ObjectType: e.ObjectType,
			ObjectID: e.ObjectID}
		if !e.OccurredAt.IsZero() {
			one.OccurredAt = e.OccurredAt.Format(time.RFC3339Nano)
		}
		o, err := Observe(p, src, &StoredEvent{Key: e.Key, Type: e.Type, Account: e.Account,
			APIVersion: e.APIVersion, ReceivedAt: d.ReceivedAt, Index: i, Body: d.Body})
		one.Effect = describeObservation(o, err)
		x.Events = append(x.Events, one)
	}
	return nil
}

// describeObservation describes the effect of an event on its object.
func describeObservation(o Observation, err error) string {
	switch {
	case err != nil:
		return "dead: " + err.Error()
	case o.Ignored != "":
		return "ignored: " + o.Ignored
	case o.Partial != "":
		return "refetch needed: " + o.Partial
	case o.Deleted && o.Final:
		return "the object is deleted for good"
	case o.Deleted:
		return "the object is deleted"
	}
	return "the full state of the object"
}
