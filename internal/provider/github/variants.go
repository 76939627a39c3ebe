package github

import (
	"crypto/sha1" //nolint:gosec // it makes ids that look like commits
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
)

// MakeVariant makes another event from a sample or from any JSON body. It has a delivery id of its
// own, and the object's version is the given time in whole seconds, in GitHub's format. One
// harmless field contains the number of the event, so that each variant changes something visible.
// The n-th push leads from the commit of the push before to one of its own.
func (GitHub) MakeVariant(s provider.Sample, n int, at time.Time, newObject bool) (provider.Sample, error) {
	token := provider.SampleToken(s.Type, n, at)
	s.ID = provider.SampleUUID(hex.EncodeToString(token[:]))
	body, err := provider.EditJSON(s.Body, "",
		func(root map[string]any) { editVariant(root, s.Type, n, at, newObject) })
	s.Body = body
	return s, err
}

func editVariant(root map[string]any, eventType string, n int, at time.Time, newObject bool) {
	event, _, _ := strings.Cut(eventType, ".")
	action, _ := root["action"].(string)
	r, _ := find(event, action)
	if r == nil {
		r = &eventRule{member: event}
	}
	setTime(root, r.versionPath(), at)
	if r.shape == (ref{}) {
		moveRef(root, n, newObject)
		return
	}
	setMarkerField(root, r.member, n)
	if newObject {
		ids := r.idPaths()
		renumber(root, ids[len(ids)-1], n)
	}
}

// parentOf returns the object that contains the last name of a dotted path, and that name.
func parentOf(root map[string]any, path string) (object map[string]any, name string) {
	names := strings.Split(path, ".")
	for _, name := range names[:len(names)-1] {
		root, _ = root[name].(map[string]any)
	}
	return root, names[len(names)-1]
}

// setTime replaces a time in the same format.
func setTime(root map[string]any, path string, at time.Time) {
	object, name := parentOf(root, path)
	switch object[name].(type) {
	case string:
		object[name] = at.UTC().Truncate(time.Second).Format(time.RFC3339)
	case json.Number:
		object[name] = json.Number(strconv.FormatInt(at.Unix(), 10))
	}
}

// setMarkerField writes n into the first of these fields that the object has, and n - 1 into its
// old value if the body contains it.
func setMarkerField(root map[string]any, member string, n int) {
	object, _ := root[member].(map[string]any)
	for _, field := range []string{"title", "description", "body", "display_title"} {
		if _, ok := object[field]; !ok {
			continue
		}
		object[field] = "event " + strconv.Itoa(n)
		if change, name := parentOf(root, "changes."+field+".from"); change[name] != nil {
			change[name] = "event " + strconv.Itoa(n-1)
		}
		return
	}
}

// renumber appends n to the number that names the object.
func renumber(root map[string]any, path string, n int) {
	object, name := parentOf(root, path)
	old, ok := object[name].(json.Number)
	if !ok {
		return
	}
	// The last digits are replaced, so that a float can hold the id exactly.
	const suffixDigits = 6
	digits := old.String()
	if len(digits) > 15-suffixDigits {
		digits = digits[:15-suffixDigits]
	}
	object[name] = json.Number(digits + fmt.Sprintf("%0*d", suffixDigits, n))
}

// moveRef makes a push the n-th of its ref, or of another ref.
func moveRef(root map[string]any, n int, newObject bool) {
	if name, ok := root["ref"].(string); ok && newObject {
		root["ref"] = name + "-" + strconv.Itoa(n)
	}
	if after, ok := root["after"].(string); ok && !isNone(after) {
		root["before"], root["after"] = commit(n-1), commit(n)
		if head, ok := root["head_commit"].(map[string]any); ok {
			head["id"] = commit(n)
		}
	}
}

// commit returns an id that looks like a commit's.
func commit(n int) string {
	sum := sha1.Sum([]byte("commit " + strconv.Itoa(n))) //nolint:gosec // see the import
	return hex.EncodeToString(sum[:])
}
