package declared

import (
	"fmt"

	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/provider"
)

// Observe reads what a stored event says of its object.
func (p *Provider) Observe(_ *provider.Source, e *provider.Stored) (provider.Observation, error) {
	body, err := p.spec.Events.read(e.Body)
	if err != nil {
		return provider.Observation{}, err
	}
	if len(body.items) == 0 {
		return provider.Observation{Ignored: "the delivery holds no events"}, nil
	}
	if e.Index < 0 || e.Index >= len(body.items) {
		return provider.Observation{}, &provider.Dead{Reason: fmt.Sprintf("the delivery has %d events and none at place %d; the source may have been configured otherwise when it came", len(body.items), e.Index)}
	}
	c := &context{spec: &p.spec, root: body.root, item: body.items[e.Index], index: e.Index, eventType: e.Type}
	o, rule := p.object(c)
	if rule == nil {
		return o, nil
	}
	o.Account = e.Account
	p.state(c, rule, &o)
	return o, nil
}

// object names the object of an event; rule is nil where there is none, and the observation says why.
func (p *Provider) object(c *context) (provider.Observation, *Object) {
	for i := range p.spec.Objects {
		rule := &p.spec.Objects[i]
		if len(rule.Events) > 0 && !Matches(rule.Events, c.eventType) {
			continue
		}
		if rule.Ignored != "" {
			return provider.Observation{Ignored: rule.Ignored}, nil
		}
		o := provider.Observation{ObjectType: c.first(rule.Type), ObjectID: c.first(rule.ID), Rank: 1, Unit: 1}
		if o.ObjectType == "" || o.ObjectID == "" {
			return provider.Observation{Ignored: "the event names no object where those of its type do"}, nil
		}
		return o, rule
	}
	return provider.Observation{Ignored: "events of this type concern no object"}, nil
}

// state reads version and state of an event's object.
func (p *Provider) state(c *context, rule *Object, o *provider.Observation) {
	p.version(c, rule, o)
	state := c.value(rule.State)
	deleted := Matches(rule.Deletes, c.eventType)
	switch {
	case rule.Partial != "":
		o.Partial = rule.Partial
	case deleted && (o.HasAt || rule.Final):
		o.Deleted, o.Final = true, rule.Final
		if rule.State != "" && state.Kind() == canonical.Object {
			o.State = state
		}
	case deleted:
		o.Partial = "the delete carries no time, and the same object can come back"
	case rule.State == "":
		o.Partial = "the event carries no state of its object"
	case state.Kind() != canonical.Object:
		o.Partial = fmt.Sprintf("the event has no object at %q", rule.State)
	case !o.HasAt:
		o.Partial = "the event carries no version and no time, so it has no place in the order"
	default:
		o.State = state
		if before := c.value(rule.Before); rule.Before != "" && before.Kind() == canonical.Object {
			o.Before = before
		}
	}
	o.Volatile = rule.Volatile
}

func (p *Provider) version(c *context, rule *Object, o *provider.Observation) {
	if v := rule.Version; v != nil {
		if at, unit, ok := c.at(v.From, v.Unit); ok {
			o.At, o.Unit, o.HasAt, o.Own, o.Still = at, unit, true, true, v.Still
		}
		return // where its own version is missing the event's time is no substitute: it is another clock
	}
	if t := p.spec.Events.Occurred; t != nil {
		if at, unit, ok := c.at(t.From, t.Unit); ok {
			o.At, o.Unit, o.HasAt = at, unit, true
		}
	}
}
