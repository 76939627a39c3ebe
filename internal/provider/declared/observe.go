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
	r := &reading{spec: &p.spec, root: body.root, place: body.places[e.Index], index: e.Index, repeated: body.repeated, eventType: e.Type}
	if p.namedOtherwise(r, e) {
		return provider.Observation{}, &provider.Dead{Reason: "the source was configured otherwise when it came: its body now names another event at this place"}
	}
	o, rule := p.object(r)
	if rule == nil {
		return o, nil
	}
	o.Account = e.Account
	p.state(r, rule, &o)
	return o, nil
}

// namedOtherwise tells whether the event that is now found at a stored one's place has another name or type: the list, or where names
// stand, was configured otherwise when the delivery came. Only names that the body alone tells can be compared; one made of the content
// stands for no name.
func (p *Provider) namedOtherwise(r *reading, e *provider.Stored) bool {
	ev := &p.spec.Events
	if inBody(ev.Type) && cmp.Or(r.first(ev.Type), provider.UnknownType) != e.Type {
		return true
	}
	key := ""
	if inBody(ev.Key) {
		key = r.first(ev.Key)
	}
	return key != "" && key != e.Key
}

// inBody tells whether templates need nothing but the body.
func inBody(templates []signature.Template) bool {
	outside := func(r signature.Ref) bool {
		return !slices.Contains([]signature.Kind{signature.JSON, signature.Root, signature.Form, signature.Index, signature.Content, signature.EventType}, r.Kind)
	}
	return len(templates) > 0 && !slices.ContainsFunc(templates, func(t signature.Template) bool { return slices.ContainsFunc(t.Refs(), outside) })
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
		if r.repeated && p.joinsFields() {
			return provider.Observation{Ignored: "a field of the form comes twice, and the signature does not tell which text is whose"}, nil
		}
		o := provider.Observation{ObjectType: r.first(rule.Type), ObjectID: r.first(rule.ID), Rank: 1, Unit: 1}
		if o.ObjectType == "" || o.ObjectID == "" {
			return provider.Observation{Ignored: "the event names no object where those of its type do"}, nil
		}
		return o, rule
	}
	return provider.Observation{Ignored: "events of this type concern no object"}, nil
}

// joinsFields tells whether a form is signed field by field without marks between them, so that the same text may be divided otherwise.
func (p *Provider) joinsFields() bool {
	return slices.ContainsFunc(p.refs(), func(r signature.Ref) bool { return r.Kind == signature.SortedForm })
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
		o.Deleted, o.Final = true, rule.Final && !(rule.FinalBare && o.HasAt)
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
