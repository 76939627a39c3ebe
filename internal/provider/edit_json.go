package provider

import (
	"bytes"
	"crypto/sha256"
	"embed"
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

// SampleStory reads the steps of a provider's samples from the embedded file samples/story.json. It
// panics on an error.
func SampleStory[S any](files embed.FS) (steps []S) {
	b, err := files.ReadFile("samples/story.json")
	mustBeSample(err)
	mustBeSample(json.Unmarshal(b, &steps))
	return steps
}

// SampleObject reads a JSON object of a provider's samples from an embedded file, and replaces the
// members that change, another JSON object, has too. path may be "", and change nil. It
// panics on an error, because both are constants that a test reads.
func SampleObject(files embed.FS, path string, change json.RawMessage) map[string]json.RawMessage {
	object := map[string]json.RawMessage{}
	if path != "" {
		b, err := files.ReadFile(path)
		mustBeSample(err)
		mustBeSample(json.Unmarshal(b, &object))
	}
	if change != nil {
		mustBeSample(json.Unmarshal(change, &object))
	}
	return object
}

// SampleJSON encodes a sample, indented if indent is not empty.
func SampleJSON(v any, indent string) []byte {
	b, err := json.Marshal(v)
	if indent != "" {
		b, err = json.MarshalIndent(v, "", indent)
	}
	mustBeSample(err)
	return b
}

func mustBeSample(err error) {
	if err != nil {
		panic(err)
	}
}

// SampleUUID makes an id that looks like a random UUID from a text.
func SampleUUID(text string) string {
	b := sha256.Sum256([]byte(text))
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:16])
}
