package shopify

import (
	"slices"
	"strings"

	"github.com/postern-gateway/postern/internal/canonical"
)

// objectRule says what one type of object means for the version rule: the topics that contain it,
// and how.
type objectRule struct {
	// name is the object type, a singular noun.
	name string
	// gid is the noun of its GraphQL ids; empty if bodies contain none, or another's.
	gid string
	// wholeTopics are topics whose body is the object itself.
	wholeTopics []string
	// requiredFields are fields that every whole object has in its body, even if null. A body
	// without one of them is only part of an object. They are few and old, so that every API
	// version has them, and unimportant, so that a subscription's include_fields rarely lists them
	// all.
	requiredFields []string
	// deletes are topics that delete the object. Shopify makes the ids and never reuses them, so a
	// delete is final unless canReturn is set.
	deletes []string
	// leftovers are the fields that a delete's body may have in addition to id and
	// admin_graphql_api_id. "*" means any; then absentInDelete distinguishes the delete from the
	// object.
	leftovers []string
	// absentInDelete is a field that the object always has and its delete never.
	absentInDelete string
	// canReturn means that a deleted object can return under the same key.
	canReturn bool
	// partialReasons are the topics without a whole object, and what they contain instead.
	partialReasons map[string]string
	// noObject means that the topics in partialReasons are about no object at all.
	noObject bool
	// ids are the fields that name the object together, joined by a colon. Empty means its id, or
	// else its GraphQL id.
	ids []string
	// textIDs means that its ids are texts; otherwise they are numbers.
	textIDs bool
	// otherIDPaths are other paths of the id in the topics of partialReasons; the first that is
	// present is used.
	otherIDPaths []string
	// created is the version field of an object that is created once and never changed. Empty means
	// updated_at, the object's own version.
	created string
	// mayNotAdvance means that updated_at may stay the same after a change.
	mayNotAdvance bool
	// unit is the resolution of its times in microseconds; 0 means a second.
	unit int64
}

// role says how a topic contains its object.
type role int

const (
	roleUnknown role = iota
	roleWhole
	roleDeleted
	rolePartial
	roleIgnored
)

// find looks up a topic in the table.
func find(topic string) (*objectRule, role) {
	for i := range objectRules {
		k := &objectRules[i]
		switch {
		case slices.Contains(k.wholeTopics, topic):
			return k, roleWhole
		case slices.Contains(k.deletes, topic):
			return k, roleDeleted
		case k.partialReasons[topic] != "" && k.noObject:
			return k, roleIgnored
		case k.partialReasons[topic] != "":
			return k, rolePartial
		}
	}
	return nil, roleUnknown
}

// key returns the object's name in the mirror from a topic's body, or "".
func (k *objectRule) key(topic string, root *canonical.Value) string {
	if k.partialReasons[topic] != "" {
		for _, path := range k.otherIDPaths {
			if id := idText(root.Get(strings.Split(path, ".")...)); id != "" {
				return id
			}
		}
	}
	if len(k.ids) == 0 {
		return k.ownID(root)
	}
	parts := make([]string, len(k.ids))
	for i, field := range k.ids {
		if parts[i] = idText(root.Get(field)); parts[i] == "" {
			return ""
		}
	}
	return strings.Join(parts, ":")
}

// ownID returns the id in a body. A checkout has one only in its delete; before, its name is "#"
// and the id.
func (k *objectRule) ownID(root *canonical.Value) string {
	if id := bodyID(root); id != "" || k.name != "checkout" {
		return id
	}
	return strings.TrimPrefix(textOf(root, "name"), "#")
}

// version returns the field that orders the object's states.
func (k *objectRule) version() string {
	if k.created != "" {
		return k.created
	}
	return "updated_at"
}

// missingField returns a field of a whole object that the body lacks, or "".
func (k *objectRule) missingField(root *canonical.Value) string {
	for _, field := range append([]string{k.version()}, k.requiredFields...) {
		if root.Get(field).Kind() == canonical.Missing {
			return field
		}
	}
	return ""
}

func (k *objectRule) resolution() int64 {
	if k.unit != 0 {
		return k.unit
	}
	return second
}

// beyondDelete returns a field of the body that a delete never has, or "". It ignores null and
// empty fields.
func (k *objectRule) beyondDelete(root *canonical.Value) string {
	for field, v := range root.Members() {
		if !empty(v) && !k.mayRemain(field) {
			return field
		}
	}
	return ""
}

func (k *objectRule) mayRemain(field string) bool {
	switch field {
	case "id", "admin_graphql_api_id":
		return true
	case "created_at", "updated_at", k.absentInDelete:
		return false
	}
	return slices.Contains(k.ids, field) || slices.Contains(k.leftovers, field) || slices.Contains(k.leftovers, "*")
}

func empty(v *canonical.Value) bool {
	switch v.Kind() {
	case canonical.Null:
		return true
	case canonical.Array:
		return len(v.Elements()) == 0
	}
	return false
}
