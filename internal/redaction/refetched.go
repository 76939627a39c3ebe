package redaction

import (
	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/provider"
)

// matchEvent reports whether an event, or the body of its delivery, contains a searched value;
// unreadable reports that this is unknown. A refetched object is at the top of its body, as the
// provider's API returns it, and not at its place in the provider's events. There the endings of
// paths match too.
func (o *Params) matchEvent(e *events.Record, d delivery, headers []byte) (found, unread bool) {
	found, unread = d.found || o.isSearched(e.ObjectID) || mentionsAny(o.Matchers, headers), d.unreadable
	if !found && e.Type == provider.RefetchType && e.Origin == events.OriginReconcile {
		found = matchesRefetched(o.Matchers, d.body)
	}
	return found, unread && !found
}

// matchesRefetched searches in a refetched object. If that object has one member only, such as
// {"customer": {...}}, it also searches in that.
func matchesRefetched(finds []ValueMatcher, body []byte) bool {
	root, err := canonical.Parse(body)
	if err != nil {
		return false
	}
	for object := root.Get("object"); object != nil; object = onlyMember(object) {
		for i := range finds {
			if finds[i].matchesEnding(object) {
				return true
			}
		}
	}
	return false
}

// onlyMember returns the value of an object's only member; nil for any other value.
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

// matchesEnding reports whether the value is at an ending of the path. The last name alone is not
// enough for a short value, which may mean anything there.
func (f *ValueMatcher) matchesEnding(v *canonical.Value) bool {
	last := len(f.steps) - 1
	for i := range f.steps {
		if (i == 0 || i < last || f.Length > 0) && f.matchesBelow(v, f.steps[i:]) {
			return true
		}
	}
	return false
}
