package declared

import (
	"encoding/hex"
	"strconv"
	"strings"

	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/signature"
)

// eventReader finds the values of references for one event.
type eventReader struct {
	spec     *Spec
	root     *canonical.Value
	position position
	index    int
	// repeated means that the body is a form in which a field occurs twice.
	repeated bool
	// eventType is set after the type is read. delivery is set only while an event is identified.
	eventType string
	src       *provider.Source
	delivery  *provider.Delivery
}

func (r *eventReader) find(ref signature.Ref) (string, bool) {
	s, ok := r.raw(ref)
	if ref.Lower {
		s = strings.ToLower(s)
	}
	return s, ok
}

func (r *eventReader) raw(ref signature.Ref) (string, bool) {
	switch ref.Kind {
	case signature.JSON:
		return Scalar(Lookup(r.position.event, ref.Name))
	case signature.Root:
		return Scalar(r.inRoot(ref.Name))
	case signature.Form: // the name of a field may contain dots
		return Scalar(r.root.Get(ref.Name))
	case signature.Index:
		return strconv.Itoa(r.index), true
	case signature.EventType:
		return r.eventType, r.eventType != ""
	case signature.Content:
		content := r.position.content()
		if content.Kind() == canonical.Missing { // all unreadable bodies would get the same key
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

// Find returns the value of a reference in a delivery. It finds query parameters even if the source
// has no URL, because nothing is verified here.
func Find(src *provider.Source, d *provider.Delivery, ref signature.Ref) (string, bool) {
	request := provider.SignatureRequest(src, d)
	if ref.Kind == signature.Query {
		request.URL = "/?" + d.Query
	}
	return signature.Find(request, ref)
}

// firstComplete returns the text of the first template that is complete and a valid name.
func (r *eventReader) firstComplete(templates []signature.Template) string {
	for _, t := range templates {
		if s, err := t.Expand(r.find); err == nil && provider.ValidName(s) {
			return s
		}
	}
	return ""
}

// value returns the value at a path in the event, or with root: in the whole body.
func (r *eventReader) value(path string) *canonical.Value {
	if rest, ok := strings.CutPrefix(path, "root:"); ok {
		return r.inRoot(rest)
	}
	return Lookup(r.position.event, path)
}

// inRoot returns the value at a path in the whole body, where * stands for the event's own position
// in a list of Split.
func (r *eventReader) inRoot(path string) *canonical.Value {
	if !strings.Contains(path, "*") {
		return Lookup(r.root, path)
	}
	var found *canonical.Value
	at := ""
	for i, list := range strings.Split(r.spec.Events.Split, listSeparator) {
		at = strings.TrimPrefix(at+"."+list+".*", ".")
		if list == "." {
			at = "*"
		}
		if rest, ok := strings.CutPrefix(path+".", at+"."); ok && i < len(r.position.parents) {
			found = Lookup(r.position.parents[i], strings.TrimSuffix(rest, "."))
		}
	}
	return found
}

// time reads a time or a version, and the resolution of its clock.
func (r *eventReader) time(ref signature.Ref, unit Unit) (at, resolution int64, ok bool) {
	text, ok := r.find(ref)
	if !ok {
		return 0, 0, false
	}
	return unit.Read(text)
}
