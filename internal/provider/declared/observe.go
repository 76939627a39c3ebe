package declared

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/signature"
)

// Observe reads what a stored event says about its object.
func (p *Provider) Observe(_ *provider.Source, e *provider.StoredEvent) (provider.Observation, error) {
	body, err := p.spec.Events.parse(e.Body)
	if err != nil {
		return provider.Observation{}, err
	}
	if len(body.positions) == 0 {
		return provider.Observation{Ignored: "the delivery has no events"}, nil
	}
	if e.Index < 0 || e.Index >= len(body.positions) {
		return provider.Observation{}, &provider.Dead{Reason: fmt.Sprintf("the delivery has %d events and none at "+
			"position %d; the configuration of the source may have changed since it was received", len(body.positions),
			e.Index)}
	}
	r := &eventReader{spec: &p.spec, root: body.root, position: body.positions[e.Index], index: e.Index,
		repeated: body.repeated, eventType: e.Type}
	if p.nameChanged(r, e) {
		return provider.Observation{}, &provider.Dead{Reason: "the configuration of the source changed since the " +
			"event was received: the body now has another event at this position"}
	}
	o, rule := p.object(r)
	if rule == nil {
		return o, nil
	}
	o.Account = e.Account
	p.state(r, rule, &o)
	return o, nil
}

// nameChanged reports whether the event that is now found at a stored event's position has another
// key or type. The configuration of the list, or of keys and types, changed after the delivery was
// received. Only keys and types read from the body alone are compared; a content key is not.
func (p *Provider) nameChanged(r *eventReader, e *provider.StoredEvent) bool {
	ev := &p.spec.Events
	if usesOnlyBody(ev.Type) && cmp.Or(r.firstComplete(ev.Type), provider.UnknownType) != e.Type {
		return true
	}
	key := ""
	if usesOnlyBody(ev.Key) {
		key = r.firstComplete(ev.Key)
	}
	return key != "" && key != e.Key
}

// usesOnlyBody reports whether templates need nothing but the body.
func usesOnlyBody(templates []signature.Template) bool {
	outside := func(r signature.Ref) bool {
		return !slices.Contains([]signature.Kind{signature.JSON, signature.Root, signature.Form, signature.Index,
			signature.Content, signature.EventType}, r.Kind)
	}
	return len(templates) > 0 &&
		!slices.ContainsFunc(templates,
			func(t signature.Template) bool { return slices.ContainsFunc(t.Refs(), outside) })
}

// object finds the object of an event. rule is nil if there is none; then the observation says why.
func (p *Provider) object(r *eventReader) (provider.Observation, *Object) {
	for i := range p.spec.Objects {
		rule := &p.spec.Objects[i]
		if len(rule.Events) > 0 && !Matches(rule.Events, r.eventType) {
			continue
		}
		if rule.Ignored != "" {
			return provider.Observation{Ignored: rule.Ignored}, nil
		}
		if r.repeated && p.signsJoinedFields() {
			return provider.Observation{Ignored: "a field of the form occurs twice, and the signature does not show " +
				"which value belongs to which"}, nil
		}
		o := provider.Observation{ObjectType: r.firstComplete(rule.Type), ObjectID: r.firstComplete(rule.ID), Rank: 1,
			Unit: 1}
		if o.ObjectType == "" || o.ObjectID == "" {
			return provider.Observation{Ignored: "the event has no object type or id, although events of its type " +
				"should"}, nil
		}
		return o, rule
	}
	return provider.Observation{Ignored: "events of this type are about no object"}, nil
}

// signsJoinedFields reports whether form fields are signed joined without separators, so that the
// same signed text can be split into other fields.
func (p *Provider) signsJoinedFields() bool {
	return slices.ContainsFunc(p.schemeRefs(), func(r signature.Ref) bool { return r.Kind == signature.SortedForm })
}

// state reads the version and the state of an event's object.
func (p *Provider) state(r *eventReader, rule *Object, o *provider.Observation) {
	p.version(r, rule, o)
	state := r.value(rule.State)
	deleted := Matches(rule.Deletes, r.eventType)
	switch {
	case rule.Partial != "":
		o.Partial = rule.Partial
	case deleted && (o.HasAt || rule.Final):
		o.Deleted, o.Final = true, rule.Final && !(rule.FinalWithoutVersion && o.HasAt)
		if rule.State != "" && state.Kind() == canonical.Object {
			o.State = state
		}
	case deleted:
		o.Partial = "the delete has no time, and the same object can return"
	case rule.State == "":
		o.Partial = "the event has no state of its object"
	case state.Kind() != canonical.Object:
		o.Partial = fmt.Sprintf("the event has no object at %q", rule.State)
	case !o.HasAt:
		o.Partial = "the event has no version and no time, so its order is unknown"
	default:
		o.State, o.Before = state, rule.previousValues(r, state)
	}
	o.IgnoredPaths = rule.IgnoredPaths
}

// previousValues returns the old values of the changed fields. It returns nil if there are none, or
// if they do not match the state.
func (rule *Object) previousValues(r *eventReader, state *canonical.Value) *canonical.Value {
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
		if previous.Kind() == canonical.Missing || current.Kind() == canonical.Missing ||
			state.Get(name).Sum(canonical.Options{}) != current.Sum(canonical.Options{}) {
			return nil
		}
		if len(text) > 1 {
			text = append(text, ',')
		}
		quoted, _ := json.Marshal(name) // a string always marshals
		text = append(append(append(text, quoted...), ':'), previous.Raw()...)
	}
	before, err := canonical.Parse(append(text, '}'))
	if err != nil || len(before.Raw()) <= len("{}") {
		return nil
	}
	return before
}

func (p *Provider) version(r *eventReader, rule *Object, o *provider.Observation) {
	if v := rule.Version; v != nil {
		if at, unit, ok := r.time(v.From, v.Unit); ok {
			o.At, o.Unit, o.HasAt, o.OwnVersion, o.MayNotAdvance = at, unit, true, true, v.MayNotAdvance
		}
		return // the event's time is another clock, so it cannot replace the object's own version
	}
	if t := p.spec.Events.OccurredAt; t != nil {
		if at, unit, ok := r.time(t.From, t.Unit); ok {
			o.At, o.Unit, o.HasAt = at, unit, true
		}
	}
}
