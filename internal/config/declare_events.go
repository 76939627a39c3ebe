package config

import (
	"net/http"
	"reflect"
	"slices"
	"strings"

	"github.com/postern-gateway/postern/internal/provider/declared"
	"github.com/postern-gateway/postern/internal/signature"
)

// The kinds of references that events and objects accept. Objects are named again from the stored
// body alone, so only kinds that a body has are allowed for them.
var (
	eventKinds = refKinds{signature.JSON, signature.Root, signature.Form, signature.Header, signature.Query,
		signature.EventType, signature.Index, signature.Content,
		signature.HTTPMethod}
	typeKinds   = refKinds{signature.JSON, signature.Root, signature.Form, signature.Header, signature.Query}
	objectKinds = refKinds{signature.JSON, signature.Root, signature.Form, signature.EventType}
	bodyKinds   = refKinds{signature.JSON, signature.Root, signature.Form}
)

// events reads where events are and how they are named. own are the provider's own settings, which
// the source's settings replace.
func (b *providerBuilder) events(e *Events, base declared.Events) declared.Events {
	base.Split, base.Item, base.Omit, base.UniquePerDelivery = e.Split, e.Item, e.Omit, e.EveryDelivery
	base.Bodies = nil
	for _, word := range e.Body {
		base.Bodies = append(base.Bodies, choose(b, "body", word, choice[declared.BodyForm]{"json", declared.JSON},
			choice[declared.BodyForm]{"form", declared.Form}, choice[declared.BodyForm]{"payload", declared.Payload}))
	}
	if len(e.Key) > 0 {
		base.Key = b.templates("key", e.Key, eventKinds)
	}
	if len(e.Type) > 0 {
		base.Type = b.templates("type", e.Type, typeKinds)
	}
	if len(e.Account) > 0 {
		base.Account = b.templates("account", e.Account, typeKinds)
	}
	if len(e.APIVersion) > 0 {
		base.APIVersion = b.templates("api_version", e.APIVersion, typeKinds)
	}
	if e.Occurred != (EventTime{}) {
		under := b.under("occurred")
		base.OccurredAt = &declared.Time{From: under.ref("from", e.Occurred.From, bodyKinds),
			Unit: under.unit(e.Occurred.Unit, false)}
	}
	for _, t := range base.Key {
		b.checkKeyVaries("key", t)
	}
	b.checkPaths(e, &base)
	return base
}

// checkKeyVaries requires a reference outside brackets in a key. Otherwise all events could get the
// same key.
func (b *providerBuilder) checkKeyVaries(key string, t signature.Template) {
	constant, err := t.Expand(func(signature.Ref) (string, bool) { return "", false })
	if err == nil && constant != "" {
		b.fail(key, "%q is the same for all events where no value is found: put a reference outside brackets", t)
	}
}

// checkPaths checks the paths of lists, and the headers that are stored.
func (b *providerBuilder) checkPaths(e *Events, own *declared.Events) {
	if e.Item != "" && e.Split == "" {
		b.fail("item", "is a path inside an element of the list at split: set split")
	}
	for part := range strings.SplitSeq(e.Split, ".*.") {
		if e.Split != "" && (part == "" || strings.Contains(part, "*") || part == "." && e.Split != ".") {
			b.fail("split", "%q is not the path of a list: write e.g. data.events, '.', or entry.*.changes", e.Split)
			break
		}
		b.checkPath("split", part)
	}
	b.checkPath("item", e.Item)
	for _, name := range slices.Concat(e.Headers, referencedHeaders(own)) {
		if isCredentialHeader(name) {
			b.fail("headers", "%s contains a credential, which is not stored with events: leave it out", name)
		}
	}
}

// rejectTokenInEvents rejects keys, types and accounts that contain the token which identifies the
// sender: they are stored, logged and published. Stored headers leave the token out automatically.
func (b *providerBuilder) rejectTokenInEvents(e *declared.Events, schemes []*signature.Scheme) {
	for key, texts := range map[string][]signature.Template{"key": e.Key, "type": e.Type, "account": e.Account,
		"api_version": e.APIVersion} {
		b.rejectToken(key, texts, schemes)
	}
}

// rejectTokenInObjects rejects types and ids of objects that contain the token.
func (b *providerBuilder) rejectTokenInObjects(objects []declared.Object, schemes []*signature.Scheme) {
	for i := range objects {
		at := b.under("objects." + itoa(i))
		at.rejectToken("type", objects[i].Type, schemes)
		at.rejectToken("id", objects[i].ID, schemes)
	}
}

// rejectToken rejects a setting's templates that contain the token.
func (b *providerBuilder) rejectToken(key string, names []signature.Template, schemes []*signature.Scheme) {
	for _, s := range schemes {
		if s.Method != signature.Token {
			continue
		}
		for _, t := range names {
			isToken := func(r signature.Ref) bool { return slices.ContainsFunc(s.Signature.In, coversRef(r)) }
			if i := slices.IndexFunc(t.Refs(), isToken); i >= 0 {
				b.fail(key, "{%s} is the token that authenticates the sender, and this value is stored with events: "+
					"use another value", t.Refs()[i])
			}
		}
	}
}

// coversRef returns a function that reports whether a place contains the value of a reference. A
// header name that ends in # matches all headers with that prefix. Values of the body compare by
// name alone, because a form's field is also read as a member of JSON.
func coversRef(r signature.Ref) func(place signature.Ref) bool {
	return func(place signature.Ref) bool {
		prefix, many := strings.CutSuffix(place.Name, "#")
		same := place.Kind == r.Kind || slices.Contains(bodyKinds, place.Kind) && slices.Contains(bodyKinds, r.Kind)
		return same && (place.Name == r.Name || many && r.Kind == signature.Header && strings.HasPrefix(r.Name, prefix))
	}
}

// referencedHeaders returns the headers that keys, types, accounts and versions of events use.
func referencedHeaders(e *declared.Events) []string {
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

// isCredentialHeader reports whether a header, by its name, carries a credential. A signature in
// such a header is stored all the same: it verifies one delivery and gives no access.
func isCredentialHeader(header string) bool {
	name := http.CanonicalHeaderKey(header)
	return slices.Contains([]string{"Authorization", "Proxy-Authorization", "Cookie", "Set-Cookie",
		"X-Forwarded-Client-Cert"}, name) ||
		slices.ContainsFunc([]string{"Token", "Secret", "Password", "Api-Key", "Apikey"},
			func(end string) bool { return name == end || strings.HasSuffix(name, "-"+end) })
}

// unit reads the format of a time or, for versions, of a number.
func (b *providerBuilder) unit(word string, version bool) declared.Unit {
	units := []choice[declared.Unit]{{"auto", declared.Auto}, {"s", declared.Seconds}, {"ms", declared.Milliseconds},
		{"rfc3339", declared.RFC3339}}
	if version {
		units = append(units, choice[declared.Unit]{"integer", declared.Integer})
	}
	return choose(b, "unit", word, units...)
}

// objects reads what events say about objects.
func (b *providerBuilder) objects(objects []Object, events *declared.Events) []declared.Object {
	var out []declared.Object
	for i := range objects {
		at := b.under(itoa(i))
		if i > 0 && len(objects[i-1].Events) == 0 {
			at.fail("", "is never used, because the object before it matches all events: set events in that one")
		}
		out = append(out, at.object(&objects[i], events))
	}
	return out
}

func (b *providerBuilder) object(o *Object, events *declared.Events) declared.Object {
	if o.Ignored != "" {
		if !isZero(Object{Type: o.Type, ID: o.ID, State: o.State, Before: o.Before, Changes: o.Changes,
			Version: o.Version, Deletes: o.Deletes, Final: o.Final, Partial: o.Partial, IgnoredPaths: o.IgnoredPaths}) {
			b.fail("ignored", "an ignored event changes no object: set only events")
		}
		return declared.Object{Events: o.Events, Ignored: o.Ignored}
	}
	out := declared.Object{Events: o.Events, Type: b.templates("type", o.Type, objectKinds),
		ID: b.templates("id", o.ID, objectKinds), State: o.State,
		Before: o.Before, Changes: o.Changes, Deletes: o.Deletes, Final: o.Final, Partial: o.Partial,
		IgnoredPaths: o.IgnoredPaths}
	if len(o.ID) == 0 {
		out.ID = events.Subject
	}
	if o.Version != (ObjectVersion{}) {
		under := b.under("version")
		out.Version = &declared.Version{From: under.ref("from", o.Version.From, bodyKinds),
			Unit: under.unit(o.Version.Unit, true), MayNotAdvance: o.Version.MayNotAdvance}
	}
	b.checkPath("state", o.State)
	b.checkPath("before", o.Before)
	b.checkPath("changes", o.Changes)
	b.checkReachable(o, events)
	switch {
	case len(o.Type) == 0:
		b.fail("type", "is not set: write the object's type, e.g. order")
	case len(out.ID) == 0:
		b.fail("id", "is not set: write where the object's id is, e.g. '{json:data.id}'")
	case o.State != "" && o.Partial == "" && out.Version == nil && events.OccurredAt == nil:
		b.fail("version", "is not set, and neither is events.occurred: without a version or a time, states have no "+
			"order; leave state out where the sender has neither")
	case (o.Before != "" || o.Changes != "") && o.State == "":
		b.fail(map[bool]string{true: "before", false: "changes"}[o.Before != ""],
			"describes a change of the state: set state")
	case o.Final && len(o.Deletes) == 0:
		b.fail("final", "applies to deletes: set deletes to the types after which the object is deleted")
	}
	return out
}

// checkSignedTypes rejects deletes where the event type is outside the signed message. A token
// signs nothing, which the source accepts explicitly.
func (b *providerBuilder) checkSignedTypes(objects []Object, events *declared.Events, schemes []*signature.Scheme) {
	for i := range objects {
		if len(objects[i].Deletes) == 0 {
			continue
		}
		if ref, bad := findUnsignedType(events, schemes); bad {
			b.under("objects."+itoa(i)).fail("deletes", "the type, in %s, is not signed, so anyone who captured a "+
				"delivery could delete objects: "+
				"take events.type from a signed value (json:PATH), or leave deletes out", ref)
		}
	}
}

// findUnsignedType returns a reference of the type that a scheme does not sign.
func findUnsignedType(events *declared.Events, schemes []*signature.Scheme) (signature.Ref, bool) {
	for _, t := range events.Type {
		for _, ref := range t.Refs() {
			if ref.Kind != signature.Header && ref.Kind != signature.Query {
				continue
			}
			unsigned := func(s *signature.Scheme) bool {
				return s.Method != signature.Token && !coversValue(withoutFormat(s.Message.Refs()),
					withoutFormat([]signature.Ref{ref})[0])
			}
			if slices.ContainsFunc(schemes, unsigned) {
				return ref, true
			}
		}
	}
	return signature.Ref{}, false
}

// withoutFormat returns references with kind and name only.
func withoutFormat(refs []signature.Ref) []signature.Ref {
	out := make([]signature.Ref, len(refs))
	for i, r := range refs {
		out[i] = signature.Ref{Kind: r.Kind, Name: r.Name}
	}
	return out
}

// isZero reports whether no setting of a value is set.
func isZero[T any](v T) bool { return isEmpty(reflect.ValueOf(v)) }

// isEmpty is like IsZero, but empty lists and maps count as empty too.
func isEmpty(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Slice, reflect.Map:
		return v.Len() == 0
	case reflect.Struct:
		for i := range v.NumField() {
			if !isEmpty(v.Field(i)) {
				return false
			}
		}
		return true
	}
	return v.IsZero()
}
