package github

import (
	"crypto/sha1" //nolint:gosec // it makes ids that look like commits
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
)

// Vary makes another event out of a sample or of any JSON body: a delivery id of its own, and the time that is the object's
// version set to the given time in whole seconds, as GitHub writes it there. One harmless field says which it is, so that each
// changes something that shows; the n-th push leads from the commit of the one before to one of its own.
func (GitHub) Vary(s provider.Sample, n int, at time.Time, newObject bool) (provider.Sample, error) {
	token := provider.Token(s.Type, n, at)
	s.ID = uuid(hex.EncodeToString(token[:]))
	body, err := provider.Edit(s.Body, "", func(root map[string]any) { vary(root, s.Type, n, at, newObject) })
	s.Body = body
	return s, err
}

func vary(root map[string]any, eventType string, n int, at time.Time, newObject bool) {
	event, _, _ := strings.Cut(eventType, ".")
	action, _ := root["action"].(string)
	r, _ := find(event, action)
	if r == nil {
		r = &row{member: event}
	}
	setTime(root, r.versionPath(), at)
	if r.shape == (ref{}) {
		moveRef(root, n, newObject)
		return
	}
	mark(root, r.member, n)
	if newObject {
		ids := r.idPaths()
		renumber(root, ids[len(ids)-1], n)
	}
}

// holder is the object that a dotted path ends in, and the path's last name.
func holder(root map[string]any, path string) (object map[string]any, name string) {
	names := strings.Split(path, ".")
	for _, name := range names[:len(names)-1] {
		root, _ = root[name].(map[string]any)
	}
	return root, names[len(names)-1]
}

// setTime writes a time over another one in its spelling.
func setTime(root map[string]any, path string, at time.Time) {
	object, name := holder(root, path)
	switch object[name].(type) {
	case string:
		object[name] = at.UTC().Truncate(time.Second).Format(time.RFC3339)
	case json.Number:
		object[name] = json.Number(strconv.FormatInt(at.Unix(), 10))
	}
}

// mark writes n into the first of these fields that the object has, and into what it was before where the body tells that.
func mark(root map[string]any, member string, n int) {
	object, _ := root[member].(map[string]any)
	for _, field := range []string{"title", "description", "body", "display_title"} {
		if _, ok := object[field]; !ok {
			continue
		}
		object[field] = "event " + strconv.Itoa(n)
		if change, name := holder(root, "changes."+field+".from"); change[name] != nil {
			change[name] = "event " + strconv.Itoa(n-1)
		}
		return
	}
}

// renumber ends the number that names the object in n.
func renumber(root map[string]any, path string, n int) {
	object, name := holder(root, path)
	old, ok := object[name].(json.Number)
	if !ok {
		return
	}
	// The first digits make room, so that an id stays one that a float holds.
	const room = 6
	digits := old.String()
	if len(digits) > 15-room {
		digits = digits[:15-room]
	}
	object[name] = json.Number(digits + fmt.Sprintf("%0*d", room, n))
}

// moveRef makes a push the n-th of its ref, or of another one.
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

// commit is an id like a commit's.
func commit(n int) string {
	sum := sha1.Sum([]byte("commit " + strconv.Itoa(n))) //nolint:gosec // see the import
	return hex.EncodeToString(sum[:])
}

// uuid makes an id that looks like GitHub's out of a text.
func uuid(text string) string {
	b := sha256.Sum256([]byte(text))
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:16])
}
