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

// emptyType is the type of a delivery that holds no events.
const emptyType = "empty"

// Identify splits a delivery and names its events.
func (p *Provider) Identify(src *provider.Source, d *provider.Delivery) ([]provider.Event, error) {
	body, err := p.spec.Events.read(d.Body)
	if err != nil { // a verified body that cannot be read is one event all the same
		return p.whole(src, d, provider.UnknownType)
	}
	if len(body.places) == 0 {
		return p.whole(src, d, emptyType)
	}
	out := make([]provider.Event, len(body.places))
	for i, at := range body.places {
		r := &reading{spec: &p.spec, root: body.root, place: at, index: i, repeated: body.repeated, src: src, delivery: d}
		if out[i], err = p.identify(r); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// CheckBody wants a body that can be read in one of its forms, with its list of events.
func (p *Provider) CheckBody(body []byte) error {
	_, err := p.spec.Events.read(body)
	return err
}

// TellsTypes says whether anything names an event's type.
func (p *Provider) TellsTypes() bool { return len(p.spec.Events.Type) > 0 }

// whole is a delivery whose body names no event: one event, under a content key unless a header names it.
func (p *Provider) whole(src *provider.Source, d *provider.Delivery, eventType string) ([]provider.Event, error) {
	r := &reading{spec: &p.spec, src: src, delivery: d}
	e := provider.Event{Type: eventType, Fingerprint: provider.BodyFingerprint(d.Body)}
	if eventType == provider.UnknownType {
		e.Type = cmp.Or(r.first(p.spec.Events.Type), provider.UnknownType)
	}
	r.eventType = e.Type
	var err error
	if e.Account, err = p.account(r); err != nil {
		return nil, err
	}
	if e.Key = r.first(p.spec.Events.Key); e.Key == "" || p.spec.Events.Split != "" {
		e.Key, e.ContentKey = p.spec.Events.contentKey(&e, r, d.Body), true
	}
	return []provider.Event{e}, nil
}

func (p *Provider) identify(r *reading) (provider.Event, error) {
	ev := &p.spec.Events
	r.eventType = cmp.Or(r.first(ev.Type), provider.UnknownType)
	account, err := p.account(r)
	if err != nil {
		return provider.Event{}, err
	}
	e := provider.Event{Account: account, Type: r.eventType, APIVersion: r.first(ev.APIVersion), Key: r.first(ev.Key)}
	if ev.Occurred != nil {
		if at, _, ok := r.at(ev.Occurred.From, ev.Occurred.Unit); ok {
			e.OccurredAt = time.UnixMicro(at).UTC()
		}
	}
	sum := r.place.content().Sum(canonical.Options{Without: ev.Omit})
	e.Fingerprint = [16]byte(sum[:16])
	if e.Key == "" {
		e.Key, e.ContentKey = ev.contentKey(&e, r, ev.content(r)), true
	}
	if o, rule := p.object(r); rule != nil {
		e.ObjectType, e.ObjectID = o.ObjectType, o.ObjectID
	}
	return e, nil
}

// content is what tells an event without a name from others: its bytes or, where some of them may differ between its deliveries, what
// is left of it. Events of one body that are equal byte for byte are one event.
func (e *Events) content(r *reading) []byte {
	switch {
	case len(e.Omit) > 0:
		return r.place.content().AppendCanonical(nil, canonical.Options{Without: e.Omit})
	case e.Split == "":
		return bytes.TrimSpace(r.delivery.Body)
	}
	return r.place.content().Raw()
}

func (e *Events) contentKey(ev *provider.Event, r *reading, content []byte) string {
	if e.EveryDelivery {
		content = fmt.Appendf(nil, "%d %d %s", r.delivery.ReceivedAt.UnixNano(), r.index, content)
	}
	return provider.ContentKey(ev.Type, ev.Account, content)
}

// account is the tenant of an event: what the delivery says, if the source takes it, else the source's own.
func (p *Provider) account(r *reading) (string, error) {
	told := r.first(p.spec.Events.Account)
	switch {
	case told == "":
		return r.src.Account, nil
	case r.src.Account == "" && len(r.src.Accounts) == 0, told == r.src.Account, slices.Contains(r.src.Accounts, told), slices.Contains(r.src.Accounts, "*"):
		return told, nil
	}
	return "", &provider.Rejection{Reason: provider.ForbiddenAccount, Detail: fmt.Sprintf("account %.100q is not allowed here", told)}
}
