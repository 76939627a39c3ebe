package provider

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"time"
)

// Edit rewrites a JSON object by a function, for Vary: numbers keep their digits, members come out sorted, on lines
// of their own where indent is not empty.
func Edit(body []byte, indent string, edit func(map[string]any)) ([]byte, error) {
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.UseNumber()
	var object map[string]any
	if err := decoder.Decode(&object); err != nil {
		return nil, fmt.Errorf("read sample: it must be a JSON object: %w", err)
	}
	if object == nil {
		return nil, fmt.Errorf("read sample: it must be a JSON object, not null")
	}
	edit(object)
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", indent)
	err := encoder.Encode(object)
	return bytes.TrimSpace(out.Bytes()), err
}

// Token is a text for the n-th sample of a type made at a time, for ids: the same for the same arguments, and for no others.
func Token(eventType string, n int, at time.Time) [32]byte {
	return sha256.Sum256(fmt.Appendf(nil, "%q %d %d", eventType, n, at.UnixNano()))
}
