package declared

import (
	"bytes"
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
	if len(body.items) == 0 {
		return p.whole(src, d, emptyType)
	}
	out := make([]provider.Event, len(body.items))
	for i, item := range body.items {
		c := &context{spec: &p.spec, root: body.root, item: item, index: i, src: src, delivery: d}
		if out[i], err = p.identify(c); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// whole is a delivery whose body names no event: one event under a content key.
func (p *Provider) whole(src *provider.Source, d *provider.Delivery, eventType string) ([]provider.Event, error) {
	c := &context{spec: &p.spec, src: src, delivery: d}
	e := provider.Event{Type: eventType, Fingerprint: provider.BodyFingerprint(d.Body)}
	if eventType == provider.UnknownType {
		if named := c.first(p.spec.Events.Type); named != "" { // a header may tell it
			e.Type = named
		}
	}
	var err error
	if e.Account, err = p.account(c); err != nil {
		return nil, err
	}
	if e.Key = c.first(p.spec.Events.Key); e.Key == "" || p.spec.Events.Split != "" {
		provider.NameByContent(&e, d.Body)
	}
	return []provider.Event{e}, nil
}

func (p *Provider) identify(c *context) (provider.Event, error) {
	ev := &p.spec.Events
	account, err := p.account(c)
	if err != nil {
		return provider.Event{}, err
	}
	e := provider.Event{Account: account, Type: c.first(ev.Type), APIVersion: c.first(ev.APIVersion), Key: c.first(ev.Key)}
	if e.Type == "" {
		e.Type = provider.UnknownType
	}
	c.eventType = e.Type
	if ev.Occurred != nil {
		if at, _, ok := c.at(ev.Occurred.From, ev.Occurred.Unit); ok {
			e.OccurredAt = time.UnixMicro(at).UTC()
		}
	}
	sum := c.item.Sum(canonical.Options{Without: ev.Omit})
	e.Fingerprint = [16]byte(sum[:16])
	if e.Key == "" {
		e.Key, e.ContentKey = contentKey(&e, c, ev), true
	}
	if o, rule := p.object(c); rule != nil {
		e.ObjectType, e.ObjectID = o.ObjectType, o.ObjectID
	}
	return e, nil
}

// contentKey covers the bytes of the event or, where some of them may differ between its deliveries, what is left of it.
func contentKey(e *provider.Event, c *context, ev *Events) string {
	content := c.item.Raw()
	if len(ev.Omit) > 0 {
		content = c.item.AppendCanonical(nil, canonical.Options{Without: ev.Omit})
	} else if ev.Split == "" {
		content = c.delivery.Body
	}
	return provider.ContentKey(e.Type, e.Account, bytes.TrimSpace(content))
}

// account is the tenant of an event: what the delivery says, if the source takes it, else the source's own.
func (p *Provider) account(c *context) (string, error) {
	told := c.first(p.spec.Events.Account)
	switch {
	case told == "":
		return c.src.Account, nil
	case c.src.Account == "" && len(c.src.Accounts) == 0, told == c.src.Account, slices.Contains(c.src.Accounts, told), slices.Contains(c.src.Accounts, "*"):
		return told, nil
	}
	return "", &provider.Rejection{Reason: provider.ForbiddenAccount, Detail: fmt.Sprintf("account %.100q is not allowed here", told)}
}
