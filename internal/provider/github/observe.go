package github

import (
	"fmt"
	"slices"
	"strings"

	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/provider"
)

// Observe reads what an event says about its object.
func (GitHub) Observe(_ *provider.Source, e *provider.StoredEvent) (provider.Observation, error) {
	root, err := read(e.Body)
	if err != nil {
		return provider.Observation{}, err
	}
	event, _, _ := strings.Cut(e.Type, ".")
	if event == provider.UnknownType {
		event = ""
	}
	return observe(event, root)
}

// observe says what a body of an event means for its object. With an error it still names the
// object if possible.
func observe(event string, root *canonical.Value) (provider.Observation, error) {
	if event == "" {
		return provider.Observation{}, newDead("the delivery has no readable event name; a proxy may have dropped "+
			"the %s header", eventHeader)
	}
	action := text(root, "action")
	r, role := find(event, action)
	if r == nil || r.object == "" && role == roleUnknown {
		return observeUnknown(event, root), nil
	}
	if role == roleIgnored {
		return provider.Observation{Ignored: r.ignoredReasons[action]}, nil
	}
	o := r.observation(r.key(root))
	if err := r.checkBody(o.ObjectID, root); err != nil {
		return o, err
	}
	switch role {
	case roleWhole:
		return o, r.observeWhole(&o, root)
	case roleDeleted:
		r.observeDelete(&o, root)
	case rolePartial:
		o.Partial = r.partialReasons[action]
	default:
		o.Partial = "the action is unknown, so its effect on the object is unknown"
	}
	return o, nil
}

// checkBody rejects a body that does not belong to the event. The event's name is not signed, so a
// captured delivery can be sent again under another one.
func (r *eventRule) checkBody(id string, root *canonical.Value) error {
	if name := r.missingMember(root); name != "" {
		return newDead("a body of the event %s has a member %s, but this one has none: the event's name is not "+
			"signed, so it is not trusted", r.event, name)
	}
	if name := r.foreignMember(root); name != "" {
		return newDead("the body has a member %.64q, which no body of the event %s has: the event's name is not "+
			"signed, so it is not trusted", name, r.event)
	}
	if !provider.ValidName(id) {
		return newDead("a body of the event %s must contain the id of its %s, and this one does not", r.event, r.object)
	}
	return nil
}

// observeWhole reads a body that contains the whole object. A body that may be a copy from another
// event is partial, and a body without a time has no order.
func (r *eventRule) observeWhole(o *provider.Observation, root *canonical.Value) error {
	version, ok := readTime(at(root, r.versionPath()))
	if why := r.partialReason(root); why != "" {
		o.Partial = why
		return nil
	}
	if !ok {
		o.Partial = "the body's " + r.versionPath() + " is not a time, so the order of the state is unknown"
		return nil
	}
	o.At, o.HasAt, o.OwnVersion, o.MayNotAdvance = version+r.attemptOffset(root), true, true, r.mayNotAdvance
	if r.shape != nil {
		return r.shape.fill(o, root)
	}
	o.State = root.Get(r.member)
	o.Before = before(o.State, root.Get("changes"))
	o.IgnoredPaths = r.ignoredPaths
	return nil
}

// attemptOffset orders states of one second by their attempt. A later attempt begins after the end
// of the one before, so its times are never earlier. So ordering by (time, attempt) equals ordering
// by (attempt, time), and the attempt decides only within a second. It is written into the
// microseconds, which GitHub's clock leaves empty.
func (r *eventRule) attemptOffset(root *canonical.Value) int64 {
	if r.attempt == "" {
		return 0
	}
	n, _ := at(root, r.attempt).Int64()
	return min(max(n, 1)-1, second-1)
}

// partialReason returns why a body is not accepted as the whole object, or "".
func (r *eventRule) partialReason(root *canonical.Value) string {
	if field := r.missingField(root); field != "" {
		return "the body has no " + field + ", so it may be a shortened copy"
	}
	if name := r.unknownMember(root); r.noOtherMembers && name != "" {
		return fmt.Sprintf("the body has a member %.64q, so it may be another event's; the event's name is not signed",
			name)
	}
	return ""
}

// observeDelete reads a body that deletes its object. The delete has no time, and needs none
// because it is final. It is accepted only from a body that can be nothing else.
func (r *eventRule) observeDelete(o *provider.Observation, root *canonical.Value) {
	strict := *r
	strict.noOtherMembers = true
	if why := strict.partialReason(root); why != "" {
		o.Partial = why
		return
	}
	o.Deleted, o.Final, o.State, o.IgnoredPaths = true, true, root.Get(r.member), r.ignoredPaths
}

// observeUnknown reads an event that is not in the table: it makes a refetch pending if the body
// names an object.
func observeUnknown(event string, root *canonical.Value) provider.Observation {
	member := event
	if strings.HasSuffix(event, "_comment") {
		member = "comment"
	}
	id := number(root.Get(member, "id"))
	if id == "" || slices.Contains(commonMembers, member) {
		return provider.Observation{Ignored: "the event " + event + " is unknown, and its body has no object " +
			member + " with an id"}
	}
	return provider.Observation{ObjectType: event, ObjectID: id, Rank: 1, Unit: second,
		Partial: "the event " + event + " is unknown, so its body may be part of an object"}
}
