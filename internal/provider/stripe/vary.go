package stripe

import (
	"encoding/hex"
	"encoding/json"
	"strconv"
	"strings"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
)

// Vary makes another event out of a sample or of any event of Stripe's: an id of its own, created at the given time, and
// so is the object's own version where it has one. Metadata says which it is, so that each changes something that shows.
func (Stripe) Vary(s provider.Sample, n int, at time.Time, newObject bool) (provider.Sample, error) {
	body, err := provider.Edit(s.Body, "  ", func(root map[string]any) {
		token := provider.Token(s.Type, n, at)
		root["id"] = "evt_1" + hex.EncodeToString(token[:12])
		if root["object"] == "v2.core.event" {
			varyThin(root, n, at, newObject)
			return
		}
		root["created"] = at.Unix()
		data, _ := root["data"].(map[string]any)
		object, ok := data["object"].(map[string]any)
		if !ok {
			return
		}
		varyObject(object, n, at, newObject)
		if number(object, n, at) && n > 1 && strings.HasSuffix(s.Type, ".updated") {
			data["previous_attributes"] = map[string]any{"metadata": map[string]any{sequence: strconv.Itoa(n - 1)}}
		}
	})
	s.Body = body
	return s, err
}

func varyThin(root map[string]any, n int, at time.Time, newObject bool) {
	root["created"] = at.UTC().Format("2006-01-02T15:04:05.000Z")
	related, ok := root["related_object"].(map[string]any)
	if !ok || !newObject {
		return
	}
	old, _ := related["id"].(string)
	suffix(related, n)
	if url, ok := related["url"].(string); ok {
		related["url"] = strings.TrimSuffix(url, old) + related["id"].(string)
	}
}

func varyObject(object map[string]any, n int, at time.Time, newObject bool) {
	if _, ok := object["updated"].(json.Number); ok {
		object["updated"] = at.Unix()
	}
	if newObject {
		suffix(object, n)
	}
}

// sequence is the key of an object's metadata under which its n-th event says n.
const sequence = "sequence"

// number writes n and the second into the object's metadata, and tells whether it has any.
func number(object map[string]any, n int, at time.Time) bool {
	metadata, ok := object["metadata"].(map[string]any)
	if ok {
		metadata[sequence] = strconv.Itoa(n)
		metadata["sent_at"] = at.UTC().Format(time.RFC3339)
	}
	return ok
}

// suffix ends an object's id in n, so that each n is an object of its own.
func suffix(object map[string]any, n int) {
	id, _ := object["id"].(string)
	object["id"] = id + "_" + strconv.Itoa(n)
}
