package shopify

import (
	"slices"
	"strings"
	"unicode"

	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/provider"
)

// inEvents tells an event type of the Events family ("Product/update") from a topic ("products/update").
func inEvents(eventType string) bool { return eventType[0] >= 'A' && eventType[0] <= 'Z' }

// readEvents reads a body of the Events family. It holds only what the subscription's query asked for, so it is never a
// whole object; topic and action are in the body, and so under the signature.
func readEvents(eventType string, root *canonical.Value) (provider.Observation, error) {
	noun, action := textOf(root, "topic"), textOf(root, "action")
	if said := noun + "/" + action; said != eventType {
		return provider.Observation{}, dead("the headers say %.100s and the signed body says %.100q, so the headers are not believed", eventType, said)
	}
	o := provider.Observation{ObjectType: eventsType(noun), ObjectID: gidNumber(subject(noun, root)), Rank: 1, Unit: second}
	if !provider.ValidName(o.ObjectID) {
		return o, dead("the body does not name the %.100s it is about; let the subscription's query ask for its id", noun)
	}
	switch {
	case action != "delete" || hasData(root):
		o.Partial = "the body holds only what the subscription's query asked for"
	case !deletedForGood(noun):
		o.Partial = "the delete carries no time, and it is not known that such an object never comes back"
	default:
		o.Deleted, o.Final = true, true
	}
	return o, nil
}

// deletedForGood tells whether the table knows that a delete of the noun's objects is never taken back.
func deletedForGood(noun string) bool {
	return slices.ContainsFunc(kinds, func(k kind) bool { return k.gid == noun && len(k.deletes) > 0 && !k.returns })
}

// hasData tells whether the query returned anything. Of what is deleted it returns nothing.
func hasData(root *canonical.Value) bool {
	for _, v := range root.Get("data").Members() {
		if !empty(v) {
			return true
		}
	}
	return false
}

// eventsType is the object's noun in the mirror: the same as for the older topics, so that both feed one object.
func eventsType(noun string) string {
	for i := range kinds {
		if kinds[i].gid == noun {
			return kinds[i].name
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

// subject is the GraphQL id of the object a body is about: in what the query returned, in the query's variables, or in
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

// changedPaths are the paths of changed fields: a list, or since September 2026 lists of added, updated and removed ones.
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
