package github

import (
	"encoding/json"

	"github.com/postern-gateway/postern/internal/canonical"
)

// before is what the changed fields of an object were before, from a body's changes: {"title": {"from": "old"}}. It is nil
// unless every change is told so, of a field that the object has: a change-set that leaves something out would lead from a
// state that never was.
func before(object, changes *canonical.Value) *canonical.Value {
	old, ok := told(object, changes)
	if !ok || len(old) == 0 {
		return nil
	}
	return made(old)
}

// told are the old values of an object's fields; not ok if one of the changes cannot be laid over the object.
func told(object, changes *canonical.Value) (map[string]any, bool) {
	old := map[string]any{}
	for field, change := range changes.Members() {
		now, from := object.Get(field), change.Get("from")
		switch {
		case now.Kind() == canonical.Missing:
			return nil, false
		case from.Kind() == canonical.Object:
			return nil, false
		case from.Kind() != canonical.Missing:
			old[field] = json.RawMessage(from.Raw())
		default:
			below, ok := told(now, change)
			if !ok || len(below) == 0 {
				return nil, false
			}
			old[field] = below
		}
	}
	return old, true
}

// made is a value that the body has only in pieces.
func made(v any) *canonical.Value {
	b, err := json.Marshal(v)
	if err != nil {
		return nil
	}
	made, err := canonical.Parse(b)
	if err != nil {
		return nil
	}
	return made
}
