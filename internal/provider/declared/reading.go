package declared

import (
	"encoding/hex"
	"strconv"
	"strings"

	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/signature"
)

// reading finds what references name for one event.
type reading struct {
	spec  *Spec
	root  *canonical.Value
	place place
	index int
	// repeated: the body is a form in which a field comes twice.
	repeated bool
	// eventType is known once the type is read, the delivery while an event is named.
	eventType string
	src       *provider.Source
	delivery  *provider.Delivery
}

func (r *reading) find(ref signature.Ref) (string, bool) {
	s, ok := r.raw(ref)
	if ref.Lower {
		s = strings.ToLower(s)
	}
	return s, ok
}

func (r *reading) raw(ref signature.Ref) (string, bool) {
	switch ref.Kind {
	case signature.JSON:
		return Scalar(Lookup(r.place.item, ref.Name))
	case signature.Root:
		return Scalar(r.inRoot(ref.Name))
	case signature.Form: // a field's name may hold dots
		return Scalar(r.root.Get(ref.Name))
	case signature.Index:
		return strconv.Itoa(r.index), true
	case signature.EventType:
		return r.eventType, r.eventType != ""
	case signature.Content:
		content := r.place.content()
		if content.Kind() == canonical.Missing { // all bodies that cannot be read would have one name
			return "", false
		}
		sum := content.Sum(canonical.Options{Without: r.spec.Events.Omit})
		return hex.EncodeToString(sum[:16]), true
	}
	if r.delivery == nil {
		return "", false
	}
	return Find(r.src, r.delivery, ref)
}

// Find finds what a reference names in a delivery. A parameter of the query is found whether the source has a URL or not: it is
// no part of what is signed here.
func Find(src *provider.Source, d *provider.Delivery, ref signature.Ref) (string, bool) {
	request := provider.Request(src, d)
	if ref.Kind == signature.Query {
		request.URL = "/?" + d.Query
	}
	return signature.Find(request, ref)
}

// first is the first template that is complete, and can name something.
func (r *reading) first(templates []signature.Template) string {
	for _, t := range templates {
		if s, err := t.Expand(r.find); err == nil && provider.ValidName(s) {
			return s
		}
	}
	return ""
}

// value is what a path names: in the event, or with root: in the whole body.
func (r *reading) value(path string) *canonical.Value {
	if rest, ok := strings.CutPrefix(path, "root:"); ok {
		return r.inRoot(rest)
	}
	return Lookup(r.place.item, path)
}

// inRoot is the value at a path in the whole body, where * stands for the event's own place in a list of Split.
func (r *reading) inRoot(path string) *canonical.Value {
	if !strings.Contains(path, "*") {
		return Lookup(r.root, path)
	}
	var found *canonical.Value
	at := ""
	for i, list := range strings.Split(r.spec.Events.Split, stars) {
		at = strings.TrimPrefix(at+"."+list+".*", ".")
		if list == "." {
			at = "*"
		}
		if rest, ok := strings.CutPrefix(path+".", at+"."); ok && i < len(r.place.trail) {
			found = Lookup(r.place.trail[i], strings.TrimSuffix(rest, "."))
		}
	}
	return found
}

// at reads a time or a version, and the resolution of its clock.
func (r *reading) at(ref signature.Ref, unit Unit) (at, resolution int64, ok bool) {
	text, ok := r.find(ref)
	if !ok {
		return 0, 0, false
	}
	return unit.Read(text)
}
