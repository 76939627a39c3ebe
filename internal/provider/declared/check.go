package declared

import (
	"slices"
	"strconv"
	"strings"

	"github.com/postern-gateway/postern/internal/settings"
	"github.com/postern-gateway/postern/internal/signature"
)

// Over returns the events of a source's configuration on top of the provider's own. A key, type,
// account, time or API version that the configuration leaves out is the provider's.
func (e Events) Over(own Events) Events {
	for _, of := range []struct{ set, own *Alternatives }{{&e.Key, &own.Key}, {&e.Type, &own.Type},
		{&e.Account, &own.Account}, {&e.APIVersion, &own.APIVersion}} {
		if len(*of.set) == 0 {
			*of.set = *of.own
		}
	}
	if e.OccurredAt == nil {
		e.OccurredAt = own.OccurredAt
	}
	e.AllowSingle, e.Subject = own.AllowSingle, own.Subject
	return e
}

// Check reports settings that cannot work, or that store a credential.
func (e *Events) Check(c settings.Checker) {
	signature.CheckFields(c, e)
	for _, t := range e.Key {
		constant, err := t.Expand(func(signature.Ref) (string, bool) { return "", false })
		if err == nil && constant != "" {
			c.Fail("key", "%q is the same for all events where no value is found: put a reference outside brackets", t)
		}
	}
	if e.Item != "" && e.Split == "" {
		c.Fail("item", "is a path inside an element of the list at split: set split")
	}
	for part := range strings.SplitSeq(e.Split, listSeparator) {
		if e.Split != "" && (part == "" || strings.Contains(part, "*") || part == "." && e.Split != ".") {
			c.Fail("split", "%q is not the path of a list: write e.g. data.events, '.', or entry.*.changes", e.Split)
			break
		}
		c.Path("split", part)
	}
	headers := e.Headers
	for _, t := range e.names() {
		for _, r := range t.Refs() {
			if r.Kind == signature.Header {
				headers = append(slices.Clip(headers), r.Name)
			}
		}
	}
	for _, name := range headers {
		if settings.IsCredentialHeader(name) {
			c.Fail("headers", "%s contains a credential, which is not stored with events: leave it out", name)
		}
	}
}

// names returns the templates that name an event.
func (e *Events) names() []signature.Template {
	return slices.Concat(e.Key, e.Type, e.Account, e.APIVersion)
}

// CheckToken rejects keys, types and accounts that contain the token which identifies the sender:
// they are stored, logged and published. Stored headers leave the token out automatically.
func (e *Events) CheckToken(c settings.Checker, schemes []*signature.Scheme) {
	for key, texts := range map[string]Alternatives{"key": e.Key, "type": e.Type, "account": e.Account,
		"api_version": e.APIVersion} {
		rejectToken(c, key, texts, schemes)
	}
}

// rejectToken rejects a setting's templates that contain the token.
func rejectToken(c settings.Checker, key string, names Alternatives, schemes []*signature.Scheme) {
	for _, s := range schemes {
		if s.Method != signature.Token {
			continue
		}
		for _, t := range names {
			isToken := func(r signature.Ref) bool { return slices.ContainsFunc(s.Signature.In, coversRef(r)) }
			if i := slices.IndexFunc(t.Refs(), isToken); i >= 0 {
				c.Fail(key, "{%s} is the token that authenticates the sender, and this value is stored with events: "+
					"use another value", t.Refs()[i])
			}
		}
	}
}

// coversRef returns a function that reports whether a place contains the value of a reference. A
// header name that ends in # matches all headers with that prefix. Values of the body compare by
// name alone, because a form's field is also read as a member of JSON.
func coversRef(r signature.Ref) func(place signature.Ref) bool {
	inBody := func(k signature.Kind) bool {
		return k == signature.JSON || k == signature.Root || k == signature.Form
	}
	return func(place signature.Ref) bool {
		prefix, many := strings.CutSuffix(place.Name, "#")
		same := place.Kind == r.Kind || inBody(place.Kind) && inBody(r.Kind)
		return same && (place.Name == r.Name || many && r.Kind == signature.Header && strings.HasPrefix(r.Name, prefix))
	}
}

// CheckObjects reports objects that cannot work, or that unsigned values could change or delete. It
// completes an empty ID with the events' subject.
func CheckObjects(c settings.Checker, objects []Object, events *Events, schemes []*signature.Scheme) {
	for i := range objects {
		at := c.Under(strconv.Itoa(i))
		if i > 0 && len(objects[i-1].Events) == 0 {
			at.Fail("", "is never used, because the object before it matches all events: set events in that one")
		}
		objects[i].check(at, events)
		if ref, unsigned := findUnsignedType(events, schemes); unsigned && len(objects[i].Deletes) > 0 {
			at.Fail("deletes", "the type, in %s, is not signed, so anyone who captured a delivery could delete "+
				"objects: take events.type from a signed value (json:PATH), or leave deletes out", ref)
		}
		rejectToken(at, "type", objects[i].Type, schemes)
		rejectToken(at, "id", objects[i].ID, schemes)
	}
}

func (o *Object) check(c settings.Checker, events *Events) {
	if o.Ignored != "" {
		if !settings.IsZero(func(o Object) Object { o.Events, o.Ignored = nil, ""; return o }(*o)) {
			c.Fail("ignored", "an ignored event changes no object: set only events")
		}
		return
	}
	signature.CheckFields(c, o)
	if len(o.ID) == 0 {
		o.ID = events.Subject
	}
	o.checkReachable(c, events)
	switch {
	case len(o.Type) == 0:
		c.Fail("type", "is not set: write the object's type, e.g. order")
	case len(o.ID) == 0:
		c.Fail("id", "is not set: write where the object's id is, e.g. '{json:data.id}'")
	case o.State != "" && o.Partial == "" && o.Version == nil && events.OccurredAt == nil:
		c.Fail("version", "is not set, and neither is events.occurred: without a version or a time, states have no "+
			"order; leave state out where the sender has neither")
	case o.Before != "" && o.State == "":
		c.Fail("before", "describes a change of the state: set state")
	case o.Changes != "" && o.State == "":
		c.Fail("changes", "describes a change of the state: set state")
	case o.Final && len(o.Deletes) == 0:
		c.Fail("final", "applies to deletes: set deletes to the types after which the object is deleted")
	}
}

// findUnsignedType returns a reference of the type that a scheme does not sign. A token signs
// nothing, which the source accepts explicitly.
func findUnsignedType(events *Events, schemes []*signature.Scheme) (signature.Ref, bool) {
	for _, t := range events.Type {
		for _, ref := range t.Refs() {
			unsigned := func(s *signature.Scheme) bool {
				return s.Method != signature.Token && !s.Message.Covers(ref)
			}
			if (ref.Kind == signature.Header || ref.Kind == signature.Query) && slices.ContainsFunc(schemes, unsigned) {
				return ref, true
			}
		}
	}
	return signature.Ref{}, false
}

// checkReachable rejects patterns that never match an event: types where no type is read, and
// deletes that are not among the object's events.
func (o *Object) checkReachable(c settings.Checker, events *Events) {
	if len(events.Type) == 0 {
		typed := func(pattern string) bool { return strings.Trim(pattern, "*") != "" }
		if slices.ContainsFunc(slices.Concat(o.Events, o.Deletes), typed) {
			c.Fail("events", "contains types, but events.type is not set, so no event has a type: set it, e.g. type: "+
				"'{json:type}', or leave events out")
		}
		return
	}
	for _, deleted := range o.Deletes {
		overlaps := func(pattern string) bool { return patternsOverlap(pattern, deleted) }
		if len(o.Events) > 0 && !slices.ContainsFunc(o.Events, overlaps) {
			c.Fail("deletes", "%q is not among this object's events (%s), so it never deletes an object: add it to "+
				"events", deleted, strings.Join(o.Events, ", "))
		}
	}
}

// patternsOverlap reports whether some text matches both patterns, in which * matches any text.
func patternsOverlap(a, b string) bool {
	switch {
	case a == "" && b == "":
		return true
	case a != "" && a[0] == '*':
		return patternsOverlap(a[1:], b) || b != "" && patternsOverlap(a, b[1:])
	case b != "" && b[0] == '*':
		return patternsOverlap(b, a)
	}
	return a != "" && b != "" && a[0] == b[0] && patternsOverlap(a[1:], b[1:])
}
