package declared

import (
	"encoding/json"
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
	if len(body.places) == 0 {
		return provider.Observation{Ignored: "the delivery holds no events"}, nil
	}
	if e.Index < 0 || e.Index >= len(body.places) {
		return provider.Observation{}, &provider.Dead{Reason: fmt.Sprintf("the delivery has %d events and none at place %d; the source may have been configured otherwise when it came", len(body.places), e.Index)}
	}
	r := &reading{spec: &p.spec, root: body.root, place: body.places[e.Index], index: e.Index, eventType: e.Type}
	o, rule := p.object(r)
	if rule == nil {
		return o, nil
	}
	o.Account = e.Account
	p.state(r, rule, &o)
	return o, nil
}

// object names the object of an event; rule is nil where there is none, and the observation says why.
func (p *Provider) object(r *reading) (provider.Observation, *Object) {
	for i := range p.spec.Objects {
		rule := &p.spec.Objects[i]
		if len(rule.Events) > 0 && !Matches(rule.Events, r.eventType) {
			continue
		}
		if rule.Ignored != "" {
			return provider.Observation{Ignored: rule.Ignored}, nil
		}
		o := provider.Observation{ObjectType: r.first(rule.Type), ObjectID: r.first(rule.ID), Rank: 1, Unit: 1}
		if o.ObjectType == "" || o.ObjectID == "" {
			return provider.Observation{Ignored: "the event names no object where those of its type do"}, nil
		}
		return o, rule
	}
	return provider.Observation{Ignored: "events of this type concern no object"}, nil
}

// state reads version and state of an event's object.
func (p *Provider) state(r *reading, rule *Object, o *provider.Observation) {
	p.version(r, rule, o)
	state := r.value(rule.State)
	deleted := Matches(rule.Deletes, r.eventType)
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
		o.State, o.Before = state, rule.before(r, state)
	}
	o.Volatile = rule.Volatile
}

// before is what the changed fields were before; nil where none is told, or not in terms of the state.
func (rule *Object) before(r *reading, state *canonical.Value) *canonical.Value {
	if before := r.value(rule.Before); rule.Before != "" && before.Kind() == canonical.Object {
		return before
	}
	changes := r.value(rule.Changes)
	if rule.Changes == "" || changes.Kind() != canonical.Object {
		return nil
	}
	text := []byte("{")
	for name, change := range changes.Members() {
		previous, current := change.Get("previous"), change.Get("current")
		if previous.Kind() == canonical.Missing || current.Kind() == canonical.Missing || state.Get(name).Sum(canonical.Options{}) != current.Sum(canonical.Options{}) {
			return nil
		}
		if len(text) > 1 {
			text = append(text, ',')
		}
		quoted, _ := json.Marshal(name) // a text can always be written
		text = append(append(append(text, quoted...), ':'), previous.Raw()...)
	}
	before, err := canonical.Parse(append(text, '}'))
	if err != nil || len(before.Raw()) <= len("{}") {
		return nil
	}
	return before
}

func (p *Provider) version(r *reading, rule *Object, o *provider.Observation) {
	if v := rule.Version; v != nil {
		if at, unit, ok := r.at(v.From, v.Unit); ok {
			o.At, o.Unit, o.HasAt, o.Own, o.Still = at, unit, true, true, v.Still
		}
		return // where its own version is missing the event's time is no substitute: it is another clock
	}
	if t := p.spec.Events.Occurred; t != nil {
		if at, unit, ok := r.at(t.From, t.Unit); ok {
			o.At, o.Unit, o.HasAt = at, unit, true
		}
	}
}
