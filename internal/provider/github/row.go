package github

import (
	"slices"
	"strings"

	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/provider"
)

// row says what some actions of one event mean for the version rule. Paths are dotted, from the body's root.
type row struct {
	// event is the event's name in the header.
	event string
	// object is the noun the object is kept under.
	object string
	// member of the body is the object, or is what only this event's bodies have.
	member string
	// with are the members that the event's bodies have besides, may those that they can have.
	with, may []string
	// alone: the object's member is in the bodies of many events, so that only a body without any other is this one's.
	alone bool
	// always are fields of a whole object, which a copy cut short for another body lacks.
	always []string

	// whole are actions whose body carries the object as it is; the action of a body without one is "".
	whole []string
	// deletes are actions that end the object for good: GitHub makes the ids and never gives one again.
	deletes []string
	// why are actions whose body carries no whole object, and what it carries instead.
	why map[string]string
	// ignored are actions that concern no object, or do not change theirs.
	ignored map[string]string

	// ids name the object together, joined by a colon; empty: the member's id.
	ids []string
	// version is the time that orders the object's states; empty: the member's updated_at.
	version string
	// still: the version is not known to move with every change.
	still bool
	// attempt is the number of the try, which orders states of one second; empty: there is none.
	attempt string
	// volatile are fields of the object that change without a new version.
	volatile []string
	// shape reads a body that is not simply the object; nil: it is.
	shape shape
}

// role is how an action carries its object.
type role int

const (
	unlisted role = iota
	whole
	gone
	part
	ignored
)

// find looks an event and its action up in the table. An action that the table does not know is unlisted and has the
// event's first row; an event that it does not know has none.
func find(event, action string) (*row, role) {
	var first *row
	for i := range rows {
		r := &rows[i]
		if r.event != event {
			continue
		}
		if first == nil {
			first = r
		}
		switch {
		case slices.Contains(r.whole, action):
			return r, whole
		case slices.Contains(r.deletes, action):
			return r, gone
		case r.why[action] != "":
			return r, part
		case r.ignored[action] != "":
			return r, ignored
		}
	}
	return first, unlisted
}

// key names the object in the mirror; "" where the body does not say.
func (r *row) key(root *canonical.Value) string {
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

func (r *row) idPaths() []string {
	if len(r.ids) == 0 {
		return []string{r.member + ".id"}
	}
	return r.ids
}

func (r *row) versionPath() string {
	if r.version == "" {
		return r.member + ".updated_at"
	}
	return r.version
}

// observation is of the row's object, as yet without a state.
func (r *row) observation(id string) provider.Observation {
	return provider.Observation{ObjectType: r.object, ObjectID: id, Rank: 1, Unit: second}
}

// copies are the members that a body of any event can have: the action, who did it, and copies of what it happened in.
var copies = []string{"action", "changes", "sender", "repository", "organization", "installation", "enterprise"}

// telling are members that tell what a body is about, of events that the table does not list.
var telling = []string{"alert", "answer", "blocked_user", "build", "discussion", "forkee", "hook", "invitation", "key", "marketplace_purchase",
	"merge_group", "package", "pages", "parent_issue", "project", "project_card", "project_column", "projects_v2", "projects_v2_item",
	"registry_package", "rule", "security_advisory", "sponsorship", "sub_issue", "thread"}

// stranger is a member of the body by which it is another event's, "" if there is none.
func (r *row) stranger(root *canonical.Value) string {
	for name := range root.Members() {
		if !r.mayHave(name) && tells(name) {
			return name
		}
	}
	return ""
}

// tells tells whether a body with the member is about something of its own.
func tells(member string) bool {
	of := func(r row) bool { return r.member == member || slices.Contains(r.with, member) }
	return slices.Contains(telling, member) || !slices.Contains(copies, member) && slices.ContainsFunc(rows, of)
}

// unknown is a member of the body that the row does not know, "" if there is none.
func (r *row) unknown(root *canonical.Value) string {
	for name := range root.Members() {
		if !r.mayHave(name) {
			return name
		}
	}
	return ""
}

func (r *row) mayHave(member string) bool {
	return member == r.member || slices.Contains(copies, member) || slices.Contains(r.with, member) || slices.Contains(r.may, member)
}

// missing is a member or a field that the row's bodies have and this one lacks, "" if there is none.
func (r *row) missing(root *canonical.Value) string {
	for _, name := range append([]string{r.member}, r.with...) {
		if !has(root, name) {
			return name
		}
	}
	return ""
}

// lacking is a field of a whole object that this one lacks, "" if there is none.
func (r *row) lacking(root *canonical.Value) string {
	for _, field := range r.always {
		if !has(root.Get(r.member), field) {
			return r.member + "." + field
		}
	}
	return ""
}
