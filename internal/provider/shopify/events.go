package shopify

import (
	"slices"
	"strings"
	"unicode"

	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/provider"
)

// inEvents distinguishes an event type of the Events family ("Product/update") from a topic
// ("products/update").
func inEvents(eventType string) bool { return eventType[0] >= 'A' && eventType[0] <= 'Z' }

// readEvents reads a body of the Events family. It contains only what the subscription's query
// requested, so it is never a whole object. Topic and action are in the body, and so they are
// signed.
func readEvents(eventType string, root *canonical.Value) (provider.Observation, error) {
	noun, action := textOf(root, "topic"), textOf(root, "action")
	if named := noun + "/" + action; named != eventType {
		return provider.Observation{}, newDead("the headers say %.100s and the signed body says %.100q, so the "+
			"headers are not trusted", eventType, named)
	}
	o := provider.Observation{ObjectType: eventsType(noun), ObjectID: gidNumber(subject(noun, root)), Rank: 1,
		Unit: second}
	if !provider.ValidName(o.ObjectID) {
		return o, newDead("the body does not contain the id of its %.100s; add the id to the subscription's query",
			noun)
	}
	switch {
	case action != "delete" || hasData(root):
		o.Partial = "the body contains only what the subscription's query requested"
	case !isFinalDelete(noun):
		o.Partial = "the delete has no time, and such an object may return"
	default:
		o.Deleted, o.Final = true, true
	}
	return o, nil
}

// isFinalDelete reports whether the table says that deletes of the noun's objects are final.
func isFinalDelete(noun string) bool {
	return slices.ContainsFunc(objectRules, func(k objectRule) bool {
		return k.gid == noun && len(k.deletes) > 0 && !k.canReturn
	})
}

// hasData reports whether the query returned anything. It returns nothing for a deleted object.
func hasData(root *canonical.Value) bool {
	for _, v := range root.Get("data").Members() {
		if !empty(v) {
			return true
		}
	}
	return false
}

// eventsType returns the object's type in the mirror: the same as for the older topics, so that
// both update one object.
func eventsType(noun string) string {
	for i := range objectRules {
		if objectRules[i].gid == noun {
			return objectRules[i].name
		}
	}
	var b strings.Builder
	for i, r := range noun {
		if unicode.IsUpper(r) && i > 0 {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}

// subject returns the GraphQL id of the body's object: from the query's result, its variables, or
// the paths of the changed fields ("product[id: 'gid://shopify/Product/1'].title").
func subject(noun string, root *canonical.Value) string {
	field := strings.ToLower(noun[:1]) + noun[1:]
	candidates := []string{textOf(root, "data", field, "id"), textOf(root, "query_variables", field+"Id")}
	for _, path := range changedPaths(root.Get("fields_changed")) {
		_, rest, _ := strings.Cut(path, field+"[id: '")
		gid, _, _ := strings.Cut(rest, "'")
		candidates = append(candidates, gid)
	}
	for _, gid := range candidates {
		if gidNoun(gid) == noun {
			return gid
		}
	}
	return ""
}

// changedPaths returns the paths of changed fields: one list, or since September 2026 lists of
// added, updated and removed fields.
func changedPaths(v *canonical.Value) []string {
	lists := []*canonical.Value{v, v.Get("added"), v.Get("updated"), v.Get("removed")}
	var out []string
	for _, list := range lists {
		for _, item := range list.Elements() {
			s, _ := item.Text()
			out = append(out, s)
		}
	}
	return out
}
