package provider

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"time"
)

// EditJSON rewrites a JSON object with a function, for MakeVariant. Numbers keep their digits.
// Members are sorted, and each is on its own line if indent is not empty.
func EditJSON(body []byte, indent string, edit func(map[string]any)) ([]byte, error) {
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

// SampleToken returns random-looking bytes for ids in the n-th variant of a sample. The same
// arguments give the same bytes, and other arguments give others.
func SampleToken(eventType string, n int, at time.Time) [32]byte {
	return sha256.Sum256(fmt.Appendf(nil, "%q %d %d", eventType, n, at.UnixNano()))
}
