package github

import (
	"slices"
	"strings"

	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/provider"
)

// eventRule says what some actions of one event mean for the version rule. Paths are dotted, from
// the body's root.
type eventRule struct {
	// event is the event's name in the header.
	event string
	// object is the object type, a singular noun.
	object string
	// member of the body is the object, or a member that only bodies of this event have.
	member string
	// requiredMembers are further members of the event's bodies; optionalMembers may be present.
	requiredMembers, optionalMembers []string
	// noOtherMembers means that the bodies of many events contain the object's member, so a body
	// belongs to this event only if it has no other member.
	noOtherMembers bool
	// requiredFields are fields of a whole object that a shortened copy in another body lacks.
	requiredFields []string

	// wholeActions are actions whose body contains the whole object; the action of a body without
	// one is "".
	wholeActions []string
	// deletes are actions that delete the object permanently: GitHub makes the ids and never reuses
	// one.
	deletes []string
	// partialReasons are the actions whose body has no whole object, and what it contains instead.
	partialReasons map[string]string
	// ignoredReasons are the actions that are about no object, or do not change theirs.
	ignoredReasons map[string]string

	// ids name the object together, joined by a colon. Empty means the member's id.
	ids []string
	// version is the time that orders the object's states. Empty means the member's updated_at.
	version string
	// mayNotAdvance means that the version may stay the same after a change.
	mayNotAdvance bool
	// attempt is the number of the attempt, which orders states of one second; empty if there is
	// none.
	attempt string
	// ignoredPaths are fields of the object that change without a new version.
	ignoredPaths []string
	// shape reads a body whose object is not one of its members; nil for other bodies.
	shape shape
}

// role says how an action contains its object.
type role int

const (
	roleUnknown role = iota
	roleWhole
	roleDeleted
	rolePartial
	roleIgnored
)

// find looks up an event and its action in the table. An unknown action has the role unknown and
// the event's first rule. An unknown event has no rule.
func find(event, action string) (*eventRule, role) {
	var first *eventRule
	for i := range eventRules {
		r := &eventRules[i]
		if r.event != event {
			continue
		}
		if first == nil {
			first = r
		}
		switch {
		case slices.Contains(r.wholeActions, action):
			return r, roleWhole
		case slices.Contains(r.deletes, action):
			return r, roleDeleted
		case r.partialReasons[action] != "":
			return r, rolePartial
		case r.ignoredReasons[action] != "":
			return r, roleIgnored
		}
	}
	return first, roleUnknown
}

// key returns the object's name in the mirror, or "".
func (r *eventRule) key(root *canonical.Value) string {
	if r.shape != nil {
		if id := r.shape.name(root); id != "" {
			return id
		}
	}
	parts := make([]string, 0, 2)
	for _, path := range r.idPaths() {
		id := number(at(root, path))
		if id == "" {
			return ""
		}
		parts = append(parts, id)
	}
	return strings.Join(parts, ":")
}

func (r *eventRule) idPaths() []string {
	if len(r.ids) == 0 {
		return []string{r.member + ".id"}
	}
	return r.ids
}

func (r *eventRule) versionPath() string {
	if r.version == "" {
		return r.member + ".updated_at"
	}
	return r.version
}

// observation returns an observation of the rule's object, without a state yet.
func (r *eventRule) observation(id string) provider.Observation {
	return provider.Observation{ObjectType: r.object, ObjectID: id, Rank: 1, Unit: second}
}

// commonMembers can be in a body of any event: the action, its sender, and copies of where it
// happened.
var commonMembers = []string{"action", "changes", "sender", "repository", "organization", "installation", "enterprise"}

// identifyingMembers show what a body is about, for events that are not in the table.
var identifyingMembers = []string{"alert", "answer", "blocked_user", "build", "discussion", "forkee", "hook",
	"invitation", "key", "marketplace_purchase", "merge_group", "package", "pages", "parent_issue", "project",
	"project_card", "project_column", "projects_v2", "projects_v2_item", "registry_package", "rule",
	"security_advisory", "sponsorship", "sub_issue", "thread"}

// foreignMember returns a member that only another event's body has, or "".
func (r *eventRule) foreignMember(root *canonical.Value) string {
	for name := range root.Members() {
		if !r.mayHave(name) && identifiesEvent(name) {
			return name
		}
	}
	return ""
}

// identifiesEvent reports whether a body with the member is about a specific event.
func identifiesEvent(member string) bool {
	of := func(r eventRule) bool { return r.member == member || slices.Contains(r.requiredMembers, member) }
	return slices.Contains(identifyingMembers, member) || !slices.Contains(commonMembers, member) &&
		slices.ContainsFunc(eventRules, of)
}

// unknownMember returns a member of the body that the rule does not list, or "".
func (r *eventRule) unknownMember(root *canonical.Value) string {
	for name := range root.Members() {
		if !r.mayHave(name) {
			return name
		}
	}
	return ""
}

func (r *eventRule) mayHave(member string) bool {
	return member == r.member || slices.Contains(commonMembers, member) || slices.Contains(r.requiredMembers, member) ||
		slices.Contains(r.optionalMembers, member)
}

// missingMember returns a member that the rule's bodies have and this body lacks, or "".
func (r *eventRule) missingMember(root *canonical.Value) string {
	for _, name := range append([]string{r.member}, r.requiredMembers...) {
		if !has(root, name) {
			return name
		}
	}
	return ""
}

// missingField returns a field of a whole object that this body lacks, or "".
func (r *eventRule) missingField(root *canonical.Value) string {
	for _, field := range r.requiredFields {
		if !has(root.Get(r.member), field) {
			return r.member + "." + field
		}
	}
	return ""
}
