package stripe

import (
	"fmt"

	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/provider"
)

// Observe reads what an event says of its object.
func (Stripe) Observe(src *provider.Source, stored *provider.Stored) (provider.Observation, error) {
	e, err := readEvent(stored.Body)
	if err != nil {
		return provider.Observation{}, err
	}
	id, ignored, err := e.identity(src)
	if err != nil || ignored != "" {
		return provider.Observation{Ignored: ignored}, err
	}
	o := provider.Observation{Account: id.account, ObjectType: id.objectType, ObjectID: id.objectID, Rank: 1}
	at, unit := e.occurred()
	o.Unit = unit
	if !at.IsZero() {
		o.At, o.HasAt = at.UnixMicro(), true
	}
	if e.thin {
		o.Partial = "a thin event names its object and carries none of it"
		return o, nil
	}
	if !o.HasAt {
		return o, &provider.Dead{Reason: fmt.Sprintf("the event's created is %s, no time in Unix seconds", brief(e.root.Get("created")))}
	}
	e.observe(&o)
	return o, nil
}

// observe reads the whole and frozen object of a snapshot event by its type's row.
func (e event) observe(o *provider.Observation) {
	r := types[o.ObjectType]
	o.State = e.object
	deleted, final := r.isDeleted(e.kind())
	o.Deleted, o.Final = deleted, final && !r.shares(e.object)
	o.Rank = r.rank(e.kind(), e.object)
	o.Volatile = r.volatile
	o.AnyTime = text(e.object, "test_clock") != "" || o.ObjectType == "test_helpers.test_clock"
	if !o.Deleted {
		o.Before = e.before()
	}
	e.ownVersion(r, o)
}

// ownVersion takes the object's own version field where its type has one. A delete keeps the event's time: its object
// is the last one before the delete, and that one's version cannot tell the two apart.
func (e event) ownVersion(r row, o *provider.Observation) {
	seconds, ok := e.object.Get(r.own).Int64()
	if r.own == "" || !ok || !sensible(seconds) || o.Deleted {
		return
	}
	if o.HasAt {
		o.Until = o.At + o.Unit - 1
	}
	o.At, o.HasAt, o.Own, o.Still = seconds*second, true, true, r.still
}

// before is what the changed fields were before: previous_attributes wherever it is present, whatever the event's type
// (charge.refunded has it, some *.updated do not). An empty one tells nothing that changed, so it tells no order either.
func (e event) before() *canonical.Value {
	v := e.root.Get("data", "previous_attributes")
	if v.Kind() != canonical.Object {
		return nil
	}
	for range v.Members() {
		return v
	}
	return nil
}

// brief is a value's source for a message, cut short.
func brief(v *canonical.Value) string {
	if v == nil {
		return "missing"
	}
	return fmt.Sprintf("%.40q", v.Raw())
}
