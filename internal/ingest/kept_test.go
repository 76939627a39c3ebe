package ingest_test

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/ingest"
	"github.com/postern-gateway/postern/internal/provider"
)

// strange are texts that JSON has to escape or cannot hold, among others.
func strange() *rapid.Generator[string] {
	return rapid.OneOf(rapid.String(), rapid.SampledFrom([]string{"", `"`, `\`, "\x00", "\x1f\t\n", "<&>\u2028", "\xff", "\xed\xa0\x80", "é\U0001F600", "\x7f"}),
		rapid.Map(rapid.SliceOf(rapid.Byte()), func(b []byte) string { return string(b) }))
}

// What is written by hand is what encoding/json writes and reads.
func TestKeptIsJSON(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		d := &provider.Delivery{Header: http.Header{}, Query: strange().Draw(t, "query")}
		want := map[string]string{}
		for _, name := range []string{"X-One", "X-Many", "X-Absent"} {
			values := rapid.SliceOfN(strange(), 0, 3).Draw(t, name)
			if d.Header[name] = values; len(values) > 0 {
				want[name] = events.Text(strings.Join(values, ", "))
			}
		}
		if d.Query != "" {
			want[":query"] = events.Text(d.Query)
		}
		var got map[string]string
		if text := ingest.KeptHeaders([]string{"X-One", "X-Many", "X-Absent", ":query"}, d); json.Unmarshal(text, &got) != nil || !cmp.Equal(got, want) {
			t.Fatalf("%q, want %q", text, want)
		}
	})
}

func TestVerificationIsJSON(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.String()
		v := provider.Verification{Scheme: name.Draw(t, "scheme"), Secret: name.Draw(t, "secret")}
		if rapid.Bool().Draw(t, "signed") {
			v.SignedAt = time.Unix(rapid.Int64Range(0, 250_000_000_000).Draw(t, "at"), rapid.Int64Range(0, 999_999_999).Draw(t, "ns")).UTC()
		}
		var got provider.Verification
		if text := ingest.AppendVerification(nil, v); json.Unmarshal(text, &got) != nil || !cmp.Equal(got, v) {
			t.Fatalf("%s reads as %+v, want %+v", text, got, v)
		}
	})
}

func TestReceiptIsJSON(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		r := events.Receipt{ID: rapid.Int64Range(0, 1<<62).Draw(t, "id"), Key: strange().Draw(t, "key"), Duplicate: rapid.Bool().Draw(t, "duplicate"), Conflict: rapid.Bool().Draw(t, "conflict")}
		want := map[string]any{"event_id": strings.ToValidUTF8(r.Key, "\ufffd"), "id": strconv.FormatInt(r.ID, 10), "duplicate": r.Duplicate,
			"received_at": events.Time(r.ID).Format("2006-01-02T15:04:05.000000Z07:00")}
		if r.Conflict {
			want["conflict"] = true
		}
		var got map[string]any
		if text := ingest.AppendReceipt(nil, r); json.Unmarshal(text, &got) != nil || !cmp.Equal(got, want) {
			t.Fatalf("%s, want %v", text, want)
		}
	})
}
