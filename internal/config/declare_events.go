package config

import (
	"net/http"
	"reflect"
	"slices"
	"strings"

	"github.com/postern-gateway/postern/internal/provider/declared"
	"github.com/postern-gateway/postern/internal/signature"
)

// What the settings of events and objects may refer to. An object is named again from the stored body alone, so by nothing else.
var (
	eventKinds = kinds{signature.JSON, signature.Root, signature.Form, signature.Header, signature.Query, signature.EventType, signature.Index, signature.Content,
		signature.HTTPMethod}
	typeKinds   = kinds{signature.JSON, signature.Root, signature.Form, signature.Header, signature.Query}
	objectKinds = kinds{signature.JSON, signature.Root, signature.Form, signature.EventType}
	bodyKinds   = kinds{signature.JSON, signature.Root, signature.Form}
)

// events reads where events are and how they are named, over what the provider has of its own.
func (b *builder) events(e *Events, own declared.Events) declared.Events {
	own.Split, own.Item, own.Omit, own.EveryDelivery = e.Split, e.Item, e.Omit, e.EveryDelivery
	own.Bodies = nil
	for _, word := range e.Body {
		own.Bodies = append(own.Bodies, oneOf(b, "body", word, choice[declared.BodyForm]{"json", declared.JSON},
			choice[declared.BodyForm]{"form", declared.Form}, choice[declared.BodyForm]{"payload", declared.Payload}))
	}
	if len(e.Key) > 0 {
		own.Key = b.templates("key", e.Key, eventKinds)
	}
	if len(e.Type) > 0 {
		own.Type = b.templates("type", e.Type, typeKinds)
	}
	if len(e.Account) > 0 {
		own.Account = b.templates("account", e.Account, typeKinds)
	}
	if len(e.APIVersion) > 0 {
		own.APIVersion = b.templates("api_version", e.APIVersion, typeKinds)
	}
	if e.Occurred != (EventTime{}) {
		under := b.under("occurred")
		own.Occurred = &declared.Time{From: under.ref("from", e.Occurred.From, bodyKinds), Unit: under.unit(e.Occurred.Unit, false)}
	}
	for _, t := range own.Key {
		b.tellsApart("key", t)
	}
	b.places(e, &own)
	return own
}

// tellsApart wants a reference in a name: without one everything would have the same.
func (b *builder) tellsApart(key string, t signature.Template) {
	constant, err := t.Expand(func(signature.Ref) (string, bool) { return "", false })
	if err == nil && constant != "" {
		b.fail(key, "%q names everything alike where nothing is found: put a reference outside brackets", t)
	}
}

// places checks paths of lists, and headers that are kept.
func (b *builder) places(e *Events, own *declared.Events) {
	if e.Item != "" && e.Split == "" {
		b.fail("item", "is a path in an element of the list that split names: set split")
	}
	for part := range strings.SplitSeq(e.Split, ".*.") {
		if e.Split != "" && (part == "" || strings.Contains(part, "*") || part == "." && e.Split != ".") {
			b.fail("split", "%q is no path of a list: write e.g. data.events, '.', or entry.*.changes", e.Split)
			break
		}
		b.plainPath("split", part)
	}
	b.plainPath("item", e.Item)
	for _, name := range slices.Concat(e.Headers, headersOf(own)) {
		if credential(name) {
			b.fail("headers", "%s holds a credential, and is not kept with events: leave it out", name)
		}
	}
}

// noToken refuses names of events that are made of the token by which the source knows its sender: they are stored, logged and sent on. Headers that are kept leave it out by themselves.
func (b *builder) noToken(e *declared.Events, schemes []*signature.Scheme) {
	for key, texts := range map[string][]signature.Template{"key": e.Key, "type": e.Type, "account": e.Account, "api_version": e.APIVersion} {
		b.noTokenIn(key, texts, schemes)
	}
}

// noTokenInObjects rejects names of objects that are made of the token.
func (b *builder) noTokenInObjects(objects []declared.Object, schemes []*signature.Scheme) {
	for i := range objects {
		at := b.under("objects." + itoa(i))
		at.noTokenIn("type", objects[i].Type, schemes)
		at.noTokenIn("id", objects[i].ID, schemes)
	}
}

// noTokenIn rejects a setting's names that are made of the token.
func (b *builder) noTokenIn(key string, names []signature.Template, schemes []*signature.Scheme) {
	for _, s := range schemes {
		if s.Method != signature.Token {
			continue
		}
		for _, t := range names {
			isToken := func(r signature.Ref) bool { return slices.ContainsFunc(s.Signature.In, covers(r)) }
			if i := slices.IndexFunc(t.Refs(), isToken); i >= 0 {
				b.fail(key, "{%s} is the token that proves the sender, and events are stored under what this makes: "+
					"take another value", t.Refs()[i])
			}
		}
	}
}

// covers tells whether a place is that of a reference; one whose name ends in # is that of all that go
// on from there. Values of the body compare by name alone, because a form's field is also read as a
// member of JSON.
func covers(r signature.Ref) func(place signature.Ref) bool {
	return func(place signature.Ref) bool {
		stem, many := strings.CutSuffix(place.Name, "#")
		same := place.Kind == r.Kind || slices.Contains(bodyKinds, place.Kind) && slices.Contains(bodyKinds, r.Kind)
		return same && (place.Name == r.Name || many && r.Kind == signature.Header && strings.HasPrefix(r.Name, stem))
	}
}

// headersOf are the headers that names of events are made of.
func headersOf(e *declared.Events) []string {
	var out []string
	for _, t := range slices.Concat(e.Key, e.Type, e.Account, e.APIVersion) {
		for _, r := range t.Refs() {
			if r.Kind == signature.Header {
				out = append(out, r.Name)
			}
		}
	}
	return out
}

// credential tells whether a header carries a credential, by its name. A signature that stands in such a header is kept all the same: it proves one delivery and opens nothing.
func credential(header string) bool {
	name := http.CanonicalHeaderKey(header)
	return slices.Contains([]string{"Authorization", "Proxy-Authorization", "Cookie", "Set-Cookie", "X-Forwarded-Client-Cert"}, name) ||
		slices.ContainsFunc([]string{"Token", "Secret", "Password", "Api-Key", "Apikey"}, func(end string) bool { return name == end || strings.HasSuffix(name, "-"+end) })
}

// unit reads how a time or, for versions, a number is written.
func (b *builder) unit(word string, version bool) declared.Unit {
	units := []choice[declared.Unit]{{"auto", declared.Auto}, {"s", declared.Seconds}, {"ms", declared.Milliseconds}, {"rfc3339", declared.RFC3339}}
	if version {
		units = append(units, choice[declared.Unit]{"integer", declared.Integer})
	}
	return oneOf(b, "unit", word, units...)
}

// objects reads what events say of objects.
func (b *builder) objects(objects []Object, events *declared.Events) []declared.Object {
	var out []declared.Object
	for i := range objects {
		at := b.under(itoa(i))
		if i > 0 && len(objects[i-1].Events) == 0 {
			at.fail("", "is never reached: the object before it is about all events; give that one events")
		}
		out = append(out, at.object(&objects[i], events))
	}
	return out
}

func (b *builder) object(o *Object, events *declared.Events) declared.Object {
	if o.Ignored != "" {
		if !isZero(Object{Type: o.Type, ID: o.ID, State: o.State, Before: o.Before, Changes: o.Changes, Version: o.Version, Deletes: o.Deletes, Final: o.Final, Partial: o.Partial, Volatile: o.Volatile}) {
			b.fail("ignored", "an ignored event concerns no object: set events and nothing else")
		}
		return declared.Object{Events: o.Events, Ignored: o.Ignored}
	}
	out := declared.Object{Events: o.Events, Type: b.templates("type", o.Type, objectKinds), ID: b.templates("id", o.ID, objectKinds), State: o.State,
		Before: o.Before, Changes: o.Changes, Deletes: o.Deletes, Final: o.Final, Partial: o.Partial, Volatile: o.Volatile}
	if len(o.ID) == 0 {
		out.ID = events.Subject
	}
	if o.Version != (ObjectVersion{}) {
		under := b.under("version")
		out.Version = &declared.Version{From: under.ref("from", o.Version.From, bodyKinds), Unit: under.unit(o.Version.Unit, true), Still: o.Version.Still}
	}
	b.plainPath("state", o.State)
	b.plainPath("before", o.Before)
	b.plainPath("changes", o.Changes)
	b.reachable(o, events)
	switch {
	case len(o.Type) == 0:
		b.fail("type", "is not set: say what the object is, e.g. order")
	case len(out.ID) == 0:
		b.fail("id", "is not set: say what names the object, e.g. '{json:data.id}'")
	case o.State != "" && o.Partial == "" && out.Version == nil && events.Occurred == nil:
		b.fail("version", "is not set, and neither is events.occurred: without a version or a time states have no order; leave state out where the sender tells none")
	case (o.Before != "" || o.Changes != "") && o.State == "":
		b.fail(map[bool]string{true: "before", false: "changes"}[o.Before != ""], "is what changed of the state: set state")
	case o.Final && len(o.Deletes) == 0:
		b.fail("final", "is about deletes: name the types after which the object is gone")
	}
	return out
}

// signedTypes refuses deletes where the type that tells them stands outside of what is signed. A token signs nothing at all, which
// the source has said to accept.
func (b *builder) signedTypes(objects []Object, events *declared.Events, schemes []*signature.Scheme) {
	for i := range objects {
		if len(objects[i].Deletes) == 0 {
			continue
		}
		if ref, bad := unsignedType(events, schemes); bad {
			b.under("objects."+itoa(i)).fail("deletes", "the type comes unsigned, in %s, so anyone who captured a delivery could delete: "+
				"take events.type from what is signed (json:PATH), or leave deletes out", ref)
		}
	}
}

// unsignedType finds a reference of the type that a scheme leaves unsigned.
func unsignedType(events *declared.Events, schemes []*signature.Scheme) (signature.Ref, bool) {
	for _, t := range events.Type {
		for _, ref := range t.Refs() {
			if ref.Kind != signature.Header && ref.Kind != signature.Query {
				continue
			}
			unsigned := func(s *signature.Scheme) bool {
				return s.Method != signature.Token && !signs(plain(s.Message.Refs()), plain([]signature.Ref{ref})[0])
			}
			if slices.ContainsFunc(schemes, unsigned) {
				return ref, true
			}
		}
	}
	return signature.Ref{}, false
}

// plain are references as they name values, however those are then written.
func plain(refs []signature.Ref) []signature.Ref {
	out := make([]signature.Ref, len(refs))
	for i, r := range refs {
		out[i] = signature.Ref{Kind: r.Kind, Name: r.Name}
	}
	return out
}

// isZero tells whether nothing of a setting was set.
func isZero[T any](v T) bool { return empty(reflect.ValueOf(v)) }

// empty is IsZero, but for lists and maps that were set to nothing.
func empty(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Slice, reflect.Map:
		return v.Len() == 0
	case reflect.Struct:
		for i := range v.NumField() {
			if !empty(v.Field(i)) {
				return false
			}
		}
		return true
	}
	return v.IsZero()
}
