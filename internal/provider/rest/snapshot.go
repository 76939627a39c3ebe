package rest

import (
	"fmt"
	"strings"

	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/declared"
)

// Snapshot reads an object from the response to Get.
func (r *Reader) Snapshot(_ *provider.Source, s *provider.Snapshot) (provider.Observation, error) {
	o := provider.Observation{Account: s.Account, ObjectType: s.ObjectType, ObjectID: s.ObjectID, Unit: second, Rank: 1}
	t, ok := r.spec.Objects[s.ObjectType]
	if !ok { // another process may have read the configuration earlier
		return o, fmt.Errorf("the source's section api.objects has no %s: add it, and the refetch is retried",
			s.ObjectType)
	}
	if s.Missing {
		if o.Deleted = true; t.hasIntegerVersion() {
			o.Partial = "not found, and an integer version cannot express that"
		}
		return o, nil
	}
	root, err := canonical.Parse(s.Body)
	if err != nil {
		return o, &provider.Dead{Reason: "the response is not JSON: " + err.Error()}
	}
	object := declared.Lookup(root, t.Item)
	if object.Kind() != canonical.Object {
		return o, &provider.Dead{Reason: fmt.Sprintf("requested the %s %s, and the API returned no object%s: is "+
			"api.objects.%s.item right?", s.ObjectType, s.ObjectID, describePath(t.Item), s.ObjectType)}
	}
	if got, _ := declared.Scalar(declared.Lookup(object, t.ID)); got != s.ObjectID {
		return o, &provider.Dead{Reason: fmt.Sprintf("requested the %s %s, and the API returned one whose %s is %s",
			s.ObjectType, s.ObjectID, t.ID, s.API.Quote(got, 64))}
	}
	o.State, o.Deleted, o.IgnoredPaths = object, t.Deleted.holds(object), t.IgnoredPaths
	return o, t.readVersion(object, &o)
}

// hasIntegerVersion reports whether the version is an integer that grows with each change, not a
// time.
func (t Type) hasIntegerVersion() bool { return t.Version != nil && t.Version.Unit == declared.Integer }

// readVersion reads the object's own version. An object without a time of change is ordered by the
// start of the refetch. An integer version cannot be compared with that.
func (t Type) readVersion(object *canonical.Value, o *provider.Observation) error {
	at, unit, ok := t.version(object)
	switch {
	case ok:
		o.At, o.HasAt, o.OwnVersion, o.Unit, o.MayNotAdvance = at, true, true, unit, t.Version.MayNotAdvance
		o.CutToSecond() // the versions of its events are cut too (provider.Source.WholeSeconds)
	case t.hasIntegerVersion():
		return &provider.Dead{Reason: fmt.Sprintf("the %s %s has no integer%s, which orders its states",
			o.ObjectType, o.ObjectID, describePath(t.Version.Path))}
	}
	return nil
}

// version returns the object's own version, and the resolution of its clock.
func (t Type) version(object *canonical.Value) (at, unit int64, ok bool) {
	if t.Version == nil {
		return 0, 0, false
	}
	text, ok := declared.Scalar(declared.Lookup(object, t.Version.Path))
	if !ok {
		return 0, 0, false
	}
	return t.Version.Unit.Read(text)
}

// describePath describes a path for a message; it is empty for the whole response.
func describePath(path string) string {
	if path == "" || path == "." {
		return ""
	}
	return fmt.Sprintf(" at %q", path)
}

// wrap puts an object at its path in the response to Get.
func (t Type) wrap(object []byte) []byte {
	if describePath(t.Item) == "" {
		return object
	}
	steps := strings.Split(t.Item, ".")
	var out, end []byte
	for _, step := range steps {
		if step == "0" {
			out, end = append(out, '['), append(end, ']')
			continue
		}
		out = append(canonical.AppendText(append(out, '{'), step), ':')
		end = append(end, '}')
	}
	out = append(out, object...)
	for i := range end {
		out = append(out, end[len(end)-1-i])
	}
	return out
}
