package github

import (
	"encoding/json"

	"github.com/postern-gateway/postern/internal/canonical"
)

// before returns the old values of the changed fields, from a body's changes: {"title": {"from":
// "old"}}. It returns nil unless every change has an old value, of a field that the object has. An
// incomplete change-set would give a state that never existed.
func before(object, changes *canonical.Value) *canonical.Value {
	old, ok := oldValues(object, changes)
	if !ok || len(old) == 0 {
		return nil
	}
	return toValue(old)
}

// oldValues returns the old values of an object's fields; ok is false if one of the changes cannot
// be laid over the object.
func oldValues(object, changes *canonical.Value) (map[string]any, bool) {
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
			below, ok := oldValues(now, change)
			if !ok || len(below) == 0 {
				return nil, false
			}
			old[field] = below
		}
	}
	return old, true
}

// toValue converts a Go value to JSON, for values that the body has only in parts.
func toValue(v any) *canonical.Value {
	b, err := json.Marshal(v)
	if err != nil {
		return nil
	}
	value, err := canonical.Parse(b)
	if err != nil {
		return nil
	}
	return value
}
