package github

import (
	"fmt"
	"slices"
	"strings"

	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/provider"
)

// Observe reads what an event says of its object.
func (GitHub) Observe(_ *provider.Source, e *provider.Stored) (provider.Observation, error) {
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

// observe says what a body under an event means for its object. With an error the object's name is there if it could be told.
func observe(event string, root *canonical.Value) (provider.Observation, error) {
	if event == "" {
		return provider.Observation{}, dead("the delivery names no event that can be read; a proxy may have dropped the %s header", eventHeader)
	}
	action := text(root, "action")
	r, role := find(event, action)
	if r == nil || r.object == "" && role == unlisted {
		return observeUnlisted(event, root), nil
	}
	if role == ignored {
		return provider.Observation{Ignored: r.ignored[action]}, nil
	}
	o := r.observation(r.key(root))
	if err := r.plausible(o.ObjectID, root); err != nil {
		return o, err
	}
	switch role {
	case whole:
		return o, r.observeWhole(&o, root)
	case gone:
		r.observeDelete(&o, root)
	case part:
		o.Partial = r.why[action]
	default:
		o.Partial = "the action is not known here, so it is not known what it made of the object"
	}
	return o, nil
}

// plausible refuses a body that is not the event's: the event's name comes unsigned, so a captured delivery can be sent again
// under another one.
func (r *row) plausible(id string, root *canonical.Value) error {
	if name := r.missing(root); name != "" {
		return dead("a body of the event %s has a member %s, and this one has none: the event's name is not signed, so it is not believed", r.event, name)
	}
	if name := r.stranger(root); name != "" {
		return dead("the body has a member %.64q, which no body of the event %s has: the event's name is not signed, so it is not believed", name, r.event)
	}
	if !provider.ValidName(id) {
		return dead("a body of the event %s must name its %s, and this one does not", r.event, r.object)
	}
	return nil
}

// observeWhole reads a body that carries the object as it is. One that cannot be told from a copy in another event's body is
// none, and one without a time has no place in the order.
func (r *row) observeWhole(o *provider.Observation, root *canonical.Value) error {
	version, ok := readTime(at(root, r.versionPath()))
	if why := r.notWhole(root); why != "" {
		o.Partial = why
		return nil
	}
	if !ok {
		o.Partial = "the body's " + r.versionPath() + " is no time, so the state has no place in the order"
		return nil
	}
	o.At, o.HasAt, o.Own, o.Still = version+r.attempts(root), true, true, r.still
	if r.shape != nil {
		return r.shape.fill(o, root)
	}
	o.State = root.Get(r.member)
	o.Before = before(o.State, root.Get("changes"))
	o.Volatile = r.volatile
	return nil
}

// attempts orders states of one second by their attempt. A later attempt begins when the one before has ended, so the times of
// its states are never earlier: (time, attempt) orders as (attempt, time) does, and the attempt decides within a second alone.
// It is written into the microseconds, which GitHub's clock leaves empty.
func (r *row) attempts(root *canonical.Value) int64 {
	if r.attempt == "" {
		return 0
	}
	n, _ := at(root, r.attempt).Int64()
	return min(max(n, 1)-1, second-1)
}

// notWhole says why the body of a whole object is not taken for one, "" if it is.
func (r *row) notWhole(root *canonical.Value) string {
	if field := r.lacking(root); field != "" {
		return "the body has no " + field + ", so it may be a copy cut short"
	}
	if name := r.unknown(root); r.alone && name != "" {
		return fmt.Sprintf("the body has a member %.64q, so it may be another event's; the event's name is not signed", name)
	}
	return ""
}

// observeDelete reads a body that ends its object. The delete has no time of its own, and needs none, being for good. It is
// believed only from a body that can be nothing else.
func (r *row) observeDelete(o *provider.Observation, root *canonical.Value) {
	strict := *r
	strict.alone = true
	if why := strict.notWhole(root); why != "" {
		o.Partial = why
		return
	}
	o.Deleted, o.Final, o.State, o.Volatile = true, true, root.Get(r.member), r.volatile
}

// observeUnlisted is the safe reading of an event that the table does not know: a reason to look where it names an object.
func observeUnlisted(event string, root *canonical.Value) provider.Observation {
	member := event
	if strings.HasSuffix(event, "_comment") {
		member = "comment"
	}
	id := number(root.Get(member, "id"))
	if id == "" || slices.Contains(copies, member) {
		return provider.Observation{Ignored: "the event " + event + " is not known here, and its body has no object " + member + " with an id"}
	}
	return provider.Observation{ObjectType: event, ObjectID: id, Rank: 1, Unit: second,
		Partial: "the event " + event + " is not known here, so its body may be part of an object"}
}
