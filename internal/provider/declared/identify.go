package declared

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/provider"
)

// emptyType is the type of a delivery without events.
const emptyType = "empty"

// Identify splits a delivery and names its events.
func (p *Provider) Identify(src *provider.Source, d *provider.Delivery) ([]provider.Event, error) {
	body, err := p.spec.Events.parse(d.Body)
	if err != nil { // a verified body that cannot be read is stored as one event
		return p.unreadableEvent(src, d, provider.UnknownType)
	}
	if len(body.positions) == 0 {
		return p.unreadableEvent(src, d, emptyType)
	}
	out := make([]provider.Event, len(body.positions))
	for i, at := range body.positions {
		r := &eventReader{spec: &p.spec, root: body.root, position: at, index: i, repeated: body.repeated, src: src,
			delivery: d}
		if out[i], err = p.identifyEvent(r); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// CheckBody checks that a body can be read in one of its forms and has its list of events.
func (p *Provider) CheckBody(body []byte) error {
	_, err := p.spec.Events.parse(body)
	return err
}

// HasEventTypes reports whether the Spec says where an event's type is.
func (p *Provider) HasEventTypes() bool { return len(p.spec.Events.Type) > 0 }

// unreadableEvent returns one event for a delivery without readable events. It gets a content key
// unless a header names it.
func (p *Provider) unreadableEvent(src *provider.Source, d *provider.Delivery, eventType string) ([]provider.Event,
	error) {
	r := &eventReader{spec: &p.spec, src: src, delivery: d}
	e := provider.Event{Type: eventType, Fingerprint: provider.BodyFingerprint(d.Body)}
	if eventType == provider.UnknownType {
		e.Type = cmp.Or(r.firstComplete(p.spec.Events.Type), provider.UnknownType)
	}
	r.eventType = e.Type
	var err error
	if e.Account, err = p.account(r); err != nil {
		return nil, err
	}
	if e.Key = r.firstComplete(p.spec.Events.Key); e.Key == "" || p.spec.Events.Split != "" {
		e.Key, e.ContentKey = p.spec.Events.contentKey(&e, r, d.Body), true
	}
	return []provider.Event{e}, nil
}

func (p *Provider) identifyEvent(r *eventReader) (provider.Event, error) {
	ev := &p.spec.Events
	r.eventType = cmp.Or(r.firstComplete(ev.Type), provider.UnknownType)
	account, err := p.account(r)
	if err != nil {
		return provider.Event{}, err
	}
	e := provider.Event{Account: account, Type: r.eventType, APIVersion: r.firstComplete(ev.APIVersion),
		Key: r.firstComplete(ev.Key)}
	if ev.OccurredAt != nil {
		if at, _, ok := r.time(ev.OccurredAt.From, ev.OccurredAt.Unit); ok {
			e.OccurredAt = time.UnixMicro(at).UTC()
		}
	}
	sum := r.position.content().Sum(canonical.Options{Without: ev.Omit})
	e.Fingerprint = [16]byte(sum[:16])
	if e.Key == "" {
		e.Key, e.ContentKey = ev.contentKey(&e, r, ev.content(r)), true
	}
	if o, rule := p.object(r); rule != nil {
		e.ObjectType, e.ObjectID = o.ObjectType, o.ObjectID
	}
	return e, nil
}

// content returns the text from which the key of an event without a key is made. That is its bytes,
// or its canonical JSON without the paths that may differ between deliveries. Events of one body
// with equal bytes are one event.
func (e *Events) content(r *eventReader) []byte {
	switch {
	case len(e.Omit) > 0:
		return r.position.content().AppendCanonical(nil, canonical.Options{Without: e.Omit})
	case e.Split == "":
		return bytes.TrimSpace(r.delivery.Body)
	}
	return r.position.content().Raw()
}

func (e *Events) contentKey(ev *provider.Event, r *eventReader, content []byte) string {
	if e.UniquePerDelivery {
		content = fmt.Appendf(nil, "%d %d %s", r.delivery.ReceivedAt.UnixNano(), r.index, content)
	}
	return provider.ContentKey(ev.Type, ev.Account, content)
}

// account returns the tenant of an event: the one in the delivery, if the source accepts it, or
// else the source's own.
func (p *Provider) account(r *eventReader) (string, error) {
	account := r.firstComplete(p.spec.Events.Account)
	switch {
	case account == "":
		return r.src.Account, nil
	case r.src.Account == "" && len(r.src.Accounts) == 0, account == r.src.Account,
		slices.Contains(r.src.Accounts, account), slices.Contains(r.src.Accounts, "*"):
		return account, nil
	}
	return "", &provider.Rejection{Reason: provider.ForbiddenAccount,
		Detail: fmt.Sprintf("account %.100q is not allowed here", account)}
}
