package redaction

import (
	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/provider"
)

// inEvent tells whether an event, or the body of its delivery, has a value that the order looks for; unread where that cannot be told. A look of ours has the object as the provider's API
// answers it, not at the place where the provider's events have it: there the endings of paths lead to it too.
func (o *Order) inEvent(e *events.Record, d delivery, headers []byte) (found, unread bool) {
	found, unread = d.found || o.isOwn(e.ObjectID) || mentioned(o.Finds, headers), d.unread
	if !found && e.Type == provider.LookType && e.Origin == events.OriginReconcile {
		found = inLook(o.Finds, d.body)
	}
	return found, unread && !found
}

// inLook looks for values in the object of a look, and where that holds one thing alone (as {"customer": {...}}), in that too.
func inLook(finds []Find, body []byte) bool {
	root, err := canonical.Parse(body)
	if err != nil {
		return false
	}
	for object := root.Get("object"); object != nil; object = onlyMember(object) {
		for i := range finds {
			if finds[i].ends(object) {
				return true
			}
		}
	}
	return false
}

// onlyMember is what an object with one member holds; nil for any other value.
func onlyMember(v *canonical.Value) (only *canonical.Value) {
	n := 0
	for _, member := range v.Members() {
		only = member
		n++
	}
	if n != 1 {
		return nil
	}
	return only
}

// ends tells whether the value lies at an ending of the path. Its last name alone is not enough for a short value, which may stand for anything there.
func (f *Find) ends(v *canonical.Value) bool {
	last := len(f.steps) - 1
	for i := range f.steps {
		if (i == 0 || i < last || f.Length > 0) && f.below(v, f.steps[i:]) {
			return true
		}
	}
	return false
}
