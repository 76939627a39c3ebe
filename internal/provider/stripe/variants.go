package stripe

import (
	"encoding/hex"
	"encoding/json"
	"strconv"
	"strings"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
)

// MakeVariant makes another event from a sample or from any event of Stripe. The variant has an id
// of its own. Its time, and the object's own version if there is one, are the given time. The
// metadata contain n, so that each variant changes something visible.
func (Stripe) MakeVariant(s provider.Sample, n int, at time.Time, newObject bool) (provider.Sample, error) {
	body, err := provider.EditJSON(s.Body, "  ", func(root map[string]any) {
		token := provider.SampleToken(s.Type, n, at)
		root["id"] = "evt_1" + hex.EncodeToString(token[:12])
		if root["object"] == "v2.core.event" {
			editIDOnly(root, n, at, newObject)
			return
		}
		root["created"] = at.Unix()
		data, _ := root["data"].(map[string]any)
		object, ok := data["object"].(map[string]any)
		if !ok {
			return
		}
		editObject(object, n, at, newObject)
		if setSequence(object, n, at) && n > 1 && strings.HasSuffix(s.Type, ".updated") {
			data["previous_attributes"] = map[string]any{"metadata": map[string]any{sequence: strconv.Itoa(n - 1)}}
		}
	})
	s.Body = body
	return s, err
}

func editIDOnly(root map[string]any, n int, at time.Time, newObject bool) {
	root["created"] = at.UTC().Format("2006-01-02T15:04:05.000Z")
	related, ok := root["related_object"].(map[string]any)
	if !ok || !newObject {
		return
	}
	old, _ := related["id"].(string)
	appendToID(related, n)
	if url, ok := related["url"].(string); ok {
		related["url"] = strings.TrimSuffix(url, old) + related["id"].(string)
	}
}

func editObject(object map[string]any, n int, at time.Time, newObject bool) {
	if _, ok := object["updated"].(json.Number); ok {
		object["updated"] = at.Unix()
	}
	if newObject {
		appendToID(object, n)
	}
}

// sequence is the key in an object's metadata with the number of the event.
const sequence = "sequence"

// setSequence writes n and the time into the object's metadata. It returns false if there is none.
func setSequence(object map[string]any, n int, at time.Time) bool {
	metadata, ok := object["metadata"].(map[string]any)
	if ok {
		metadata[sequence] = strconv.Itoa(n)
		metadata["sent_at"] = at.UTC().Format(time.RFC3339)
	}
	return ok
}

// appendToID appends n to an object's id, so that each n is a separate object.
func appendToID(object map[string]any, n int) {
	id, _ := object["id"].(string)
	object["id"] = id + "_" + strconv.Itoa(n)
}
