package canonical_test

import (
	"encoding/json"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/postern-gateway/postern/internal/canonical"
)

// Whatever stands where in a text, it ends where encoding/json thinks it does, and is refused where that refuses it.
func TestTextsEndWhereTheyEnd(t *testing.T) {
	t.Parallel()
	part := rapid.SampledFrom([]string{"a", "abcdefg", "abcdefgh", "é", "\x7f", "\x80", "\x1f", "\x00", "\n", `"`, `\`, `\"`, `\\`, `\u0041`, `\u12`, " ", "!", "#", "[", "]", "\ufffd", "\U0001F600"})
	rapid.Check(t, func(t *rapid.T) {
		text := `["`
		for _, p := range rapid.SliceOfN(part, 0, 12).Draw(t, "parts") {
			text += p
		}
		text += `"]`
		_, err := canonical.Parse([]byte(text))
		var want []string
		if wanted := json.Unmarshal([]byte(text), &want) == nil && utf8.ValidString(text); (err == nil) != wanted {
			t.Fatalf("%q: %v", text, err)
		}
		if err == nil {
			v, _ := canonical.Parse([]byte(text))
			for i, e := range v.Elements() {
				if got, _ := e.Text(); got != want[i] {
					t.Fatalf("%q: %q, want %q", text, got, want[i])
				}
			}
		}
	})
}
