package rest

import (
	"fmt"
	"strings"

	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/declared"
)

// Snapshot reads an object as Get answers it.
func (r *Reader) Snapshot(_ *provider.Source, s *provider.Snapshot) (provider.Observation, error) {
	o := provider.Observation{Account: s.Account, ObjectType: s.ObjectType, ObjectID: s.ObjectID, Unit: second, Rank: 1}
	t, ok := r.spec.Types[s.ObjectType]
	if !ok { // another process may have been configured before this one
		return o, fmt.Errorf("the source's section api.objects has no %s: add it, the look is read again", s.ObjectType)
	}
	if s.Missing {
		if o.Deleted = true; t.counted() {
			o.Partial = "not found, and a number that grows with each change has no place for that"
		}
		return o, nil
	}
	root, err := canonical.Parse(s.Body)
	if err != nil {
		return o, &provider.Dead{Reason: "the answer is not JSON: " + err.Error()}
	}
	object := declared.Lookup(root, t.Item)
	if object.Kind() != canonical.Object {
		return o, &provider.Dead{Reason: fmt.Sprintf("asked for the %s %s, the API answered no object%s: is api.objects.%s.item right?", s.ObjectType, s.ObjectID, place(t.Item), s.ObjectType)}
	}
	if got, _ := declared.Scalar(declared.Lookup(object, t.ID)); got != s.ObjectID {
		return o, &provider.Dead{Reason: fmt.Sprintf("asked for the %s %s, the API answered one whose %s is %s", s.ObjectType, s.ObjectID, t.ID, s.API.Quote(got, 64))}
	}
	o.State, o.Deleted, o.Volatile = object, t.Deleted.holds(object), t.Volatile
	return o, t.order(object, &o)
}

// counted: the version is a number that grows with each change, and no time.
func (t Type) counted() bool { return t.Version != nil && t.Version.Unit == declared.Integer }

// order reads the object's own version. An object that has no time of change yet is ordered by when it was looked at; a counter has no place among such.
func (t Type) order(object *canonical.Value, o *provider.Observation) error {
	at, unit, ok := t.at(object)
	switch {
	case ok:
		o.At, o.HasAt, o.Own, o.Unit, o.Still = at, true, true, unit, t.Version.Still
		o.CutToSecond() // as its events' versions are (provider.Source.WholeSeconds)
	case t.counted():
		return &provider.Dead{Reason: fmt.Sprintf("the %s %s has no whole number%s, which orders its states", o.ObjectType, o.ObjectID, place(t.Version.Path))}
	}
	return nil
}

// at is the object's own version, and the resolution of its clock.
func (t Type) at(object *canonical.Value) (at, unit int64, ok bool) {
	if t.Version == nil {
		return 0, 0, false
	}
	text, ok := declared.Scalar(declared.Lookup(object, t.Version.Path))
	if !ok {
		return 0, 0, false
	}
	return t.Version.Unit.Read(text)
}

// place is a path in words; empty for the answer itself.
func place(path string) string {
	if path == "" || path == "." {
		return ""
	}
	return fmt.Sprintf(" at %q", path)
}

// wrap puts an object where Get's answer has it.
func (t Type) wrap(object []byte) []byte {
	if place(t.Item) == "" {
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
