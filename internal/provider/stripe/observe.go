package stripe

import (
	"fmt"

	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/provider"
)

// Observe reads what an event says about its object.
func (Stripe) Observe(src *provider.Source, stored *provider.StoredEvent) (provider.Observation, error) {
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
	if e.idOnly {
		o.Partial = "an id-only event names its object and contains no state"
		return o, nil
	}
	if !o.HasAt {
		return o, &provider.Dead{Reason: fmt.Sprintf("the event's created is %s, which is not a time in Unix seconds",
			quoteShort(e.root.Get("created")))}
	}
	e.observe(&o)
	return o, nil
}

// observe reads the object of a snapshot event by the rule of its type. Stripe stores the object
// with the event.
func (e event) observe(o *provider.Observation) {
	r := types[o.ObjectType]
	o.State = e.object
	deleted, final := r.isDeleted(e.kind())
	o.Deleted, o.Final = deleted, final && !r.sharesID(e.object)
	o.Rank = r.rank(e.kind(), e.object)
	o.IgnoredPaths = r.ignoredPaths
	o.AllowFuture = text(e.object, "test_clock") != "" || o.ObjectType == "test_helpers.test_clock"
	if !o.Deleted {
		o.Before = e.before()
	}
	e.ownVersion(r, o)
}

// ownVersion uses the object's own version field if its type has one. A delete keeps the event's
// time: its object is the last state before the delete, with the same own version.
func (e event) ownVersion(r typeRule, o *provider.Observation) {
	seconds, ok := e.object.Get(r.ownVersion).Int64()
	if r.ownVersion == "" || !ok || !isStorableTime(seconds) || o.Deleted {
		return
	}
	if o.HasAt {
		o.EventTimeEnd = o.At + o.Unit - 1
	}
	o.At, o.HasAt, o.OwnVersion, o.MayNotAdvance = seconds*second, true, true, r.mayNotAdvance
}

// before returns the old values of the changed fields: previous_attributes whenever it is present,
// whatever the event's type (charge.refunded has it, some *.updated do not). An empty one gives no
// order.
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

// quoteShort returns a value's JSON for a message, cut short.
func quoteShort(v *canonical.Value) string {
	if v == nil {
		return "missing"
	}
	return fmt.Sprintf("%.40q", v.Raw())
}
