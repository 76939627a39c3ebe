package processor_test

import (
	"bytes"
	"encoding/json"
	"testing"

	"pgregory.net/rapid"

	"github.com/postern-gateway/postern/internal/processor"
)

// jsonText draws JSON as somebody writes it: space between any two tokens, escapes and quotes in strings.
func jsonText() *rapid.Generator[string] {
	space := rapid.SampledFrom([]string{"", " ", "\n\t", "\r\n    "})
	text := rapid.SampledFrom([]string{`""`, `" "`, `"a b\n\t"`, `"\""`, `"\\"`, `"\\\" \\"`, `"é <&> \u0020"`, "\"\u2028\"", `"[ { , : "`, `"eight bytes at a time, \\\" or seven \\\\"`, `"12345678"`, `"1234567\""`, `"1234567\\"`})
	leaf := rapid.OneOf(text, rapid.SampledFrom([]string{"0", "-1.50e+10", "true", "false", "null"}))
	var value func(depth int) *rapid.Generator[string]
	value = func(depth int) *rapid.Generator[string] {
		if depth == 0 {
			return leaf
		}
		return rapid.Custom(func(t *rapid.T) string {
			s := func() string { return space.Draw(t, "space") }
			object := rapid.Bool().Draw(t, "object")
			b := "["
			if object {
				b = "{"
			}
			for i := range rapid.IntRange(0, 3).Draw(t, "items") {
				if i > 0 {
					b += s() + ","
				}
				if object {
					b += s() + text.Draw(t, "key") + s() + ":"
				}
				b += s() + value(depth-1).Draw(t, "value")
			}
			if object {
				return b + s() + "}"
			}
			return b + s() + "]"
		})
	}
	return value(3)
}

// What goes out is what encoding/json would write, byte for byte: the envelope is a contract.
func TestEnvelopeIsWhatJSONWrites(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var state json.RawMessage
		if rapid.Bool().Draw(t, "state") {
			state = json.RawMessage(jsonText().Draw(t, "text"))
		}
		got, want, err := processor.Envelopes(state, rapid.Bool().Draw(t, "omitted") && state == nil, rapid.SampledFrom([]string{"cus_1", "<é> \" \\ null}"}).Draw(t, "id"))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Fatalf("wrote  %s\nwanted %s", got, want)
		}
	})
}
