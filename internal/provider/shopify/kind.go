package shopify

import (
	"slices"
	"strings"

	"github.com/postern-gateway/postern/internal/canonical"
)

// kind is what one type of object means for the version rule: which topics carry it, and how.
type kind struct {
	// name is the singular noun the object is kept under.
	name string
	// gid is the noun of its GraphQL ids; empty where bodies carry none or another's.
	gid string
	// whole are topics whose body is the object itself.
	whole []string
	// always are fields that the body of a whole object has whatever its state, null or not. A body without one of them is
	// part of an object. They are few and old, so that every API version has them, and of little use by themselves, so that
	// a subscription's include_fields hardly names them all.
	always []string
	// deletes are topics after which it is gone. Ids are numbers that Shopify makes and gives once, so a delete is for
	// good unless returns is set.
	deletes []string
	// leftovers are the fields that a delete's body may have beside id and admin_graphql_api_id; "*" is any, and then
	// lacks tells the delete from the object.
	leftovers []string
	// lacks is a field that the object always has and its delete never.
	lacks string
	// returns: what is deleted can come back under the same key.
	returns bool
	// why are the topics that carry no whole object, and what they carry instead.
	why map[string]string
	// none: the topics under why concern no object at all.
	none bool
	// ids are the fields that name the object together, joined by a colon; empty: its id, or else its GraphQL id.
	ids []string
	// named: its ids are texts; else they are numbers.
	named bool
	// elsewhere are where the topics under why may name it instead; the first that is there counts.
	elsewhere []string
	// created is the field that is the version of an object that is made once and never changed; empty: updated_at, the
	// object's own version.
	created string
	// still: updated_at is not known to move with every change.
	still bool
	// unit is the resolution of its times in microseconds; 0: a second.
	unit int64
}

// role is how a topic carries its object.
type role int

const (
	unlisted role = iota
	whole
	gone
	part
	ignored
)

// find looks a topic up in the table.
func find(topic string) (*kind, role) {
	for i := range kinds {
		k := &kinds[i]
		switch {
		case slices.Contains(k.whole, topic):
			return k, whole
		case slices.Contains(k.deletes, topic):
			return k, gone
		case k.why[topic] != "" && k.none:
			return k, ignored
		case k.why[topic] != "":
			return k, part
		}
	}
	return nil, unlisted
}

// key names an object in the mirror by what a topic's body says; "" where it does not say.
func (k *kind) key(topic string, root *canonical.Value) string {
	if k.why[topic] != "" {
		for _, path := range k.elsewhere {
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

// ownID is the id of a body. A checkout has one only in its delete; before, its name is "#" and the id.
func (k *kind) ownID(root *canonical.Value) string {
	if id := anyID(root); id != "" || k.name != "checkout" {
		return id
	}
	return strings.TrimPrefix(textOf(root, "name"), "#")
}

// version is the field that orders the object's states.
func (k *kind) version() string {
	if k.created != "" {
		return k.created
	}
	return "updated_at"
}

// lacking is a field that the body of a whole object has and this one lacks, "" if there is none.
func (k *kind) lacking(root *canonical.Value) string {
	for _, field := range append([]string{k.version()}, k.always...) {
		if root.Get(field).Kind() == canonical.Missing {
			return field
		}
	}
	return ""
}

func (k *kind) resolution() int64 {
	if k.unit != 0 {
		return k.unit
	}
	return second
}

// beyondDelete is a field of the body that a delete never has, "" if there is none. Fields that are null or empty say nothing.
func (k *kind) beyondDelete(root *canonical.Value) string {
	for field, v := range root.Members() {
		if !empty(v) && !k.mayRemain(field) {
			return field
		}
	}
	return ""
}

func (k *kind) mayRemain(field string) bool {
	switch field {
	case "id", "admin_graphql_api_id":
		return true
	case "created_at", "updated_at", k.lacks:
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
