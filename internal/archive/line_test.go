package archive_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/postern-gateway/postern/internal/archive"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/testkit"
)

var update = flag.Bool("update", false, "write golden files again")

func completeEvent(body []byte) *events.FullRecord {
	return &events.FullRecord{ID: 1882609560063049727, Source: 3, Key: []byte("evt_1"), Type: []byte("invoice.paid"),
		Account:    []byte("acct_1"),
		ObjectType: []byte("invoice"), ObjectID: []byte("in_1"), APIVersion: []byte("2025-03-31.basil"),
		Origin:     []byte("webhook"),
		OccurredAt: time.UnixMicro(1_790_000_000_000_000), ReceivedAt: time.UnixMicro(1_790_000_001_234_567),
		Headers:      []byte(`{"Stripe-Signature": "t=1,v1=a"}`),
		Verification: []byte(`{"scheme": "stripe-v1", "secret": "main"}`),
		Fingerprint:  bytes.Repeat([]byte{0xab}, 16), DeliveryID: 1882609560063049726, Index: 2, Body: body}
}

// The format is a contract: all later releases read the files of a release.
func TestAppendLine_golden_isUnchanged(t *testing.T) {
	t.Parallel()
	none := completeEvent([]byte("{\"a\":\"\\u0000 \x7f \u2028 \u2029 ä 😀\",\r\n\t\"b\":1}"))
	none.OccurredAt, none.Account, none.Headers = time.Time{}, nil, []byte(`{}`)
	var got []byte
	for _, e := range []*events.FullRecord{completeEvent([]byte(`{"id":"evt_1","n":1.50}`)), none,
		completeEvent([]byte("\xff\x00{}")),
		completeEvent([]byte{})} {
		got = archive.AppendLine(got, e, "stripe", "stripe")
	}
	const golden = "testdata/format-1.golden"
	if *update {
		testkit.Must(t, os.WriteFile(golden, got, 0o600))
	}
	want, err := os.ReadFile(golden)
	testkit.Must(t, err)
	testkit.Equal(t, "version 1 of the format has changed; a change needs a new version", string(want), string(got))
}

// Every body is restored exactly, and no reader can take a part of it for the line end.
func wantExactBody(t interface{ Fatalf(string, ...any) }, body []byte) {
	text := archive.AppendLine(nil, completeEvent(body), "stripe", "stripe")
	for _, end := range []string{"\n", "\r", "\u2028", "\u2029", "\x00"} {
		if i := bytes.Index(text, []byte(end)); i >= 0 && i != len(text)-1 {
			t.Fatalf("%q in the middle of the line %q", end, text)
		}
	}
	l, err := archive.ParseLine(text)
	if err != nil {
		t.Fatalf("%v in %q", err, text)
	}
	if !bytes.Equal(archive.ReadBody(l), body) {
		t.Fatalf("body %q became %q", body, archive.ReadBody(l))
	}
	var std map[string]any
	if err := json.Unmarshal(text, &std); err != nil {
		t.Fatalf("encoding/json does not read it: %v", err)
	}
	if s, ok := std["body"].(string); ok && s != string(body) {
		t.Fatalf("encoding/json reads %q for %q", s, body)
	}
}

func TestParseLine_bodies_areExact(t *testing.T) {
	t.Parallel()
	for _, body := range []string{"", "\x00", "{}", "\xff", "\xed\xa0\x80", "\u2028\u2029", "\xe2\x80", "\xe2",
		"\\u2028", `"\`, "\r\n\t\b\f\x1f\x7f", "ä😀", `{"a":"\ud800"}`} {
		wantExactBody(t, []byte(body))
	}
	rapid.Check(t, func(t *rapid.T) {
		wantExactBody(t, rapid.OneOf(rapid.SliceOf(rapid.Byte()),
			rapid.Map(rapid.String(), func(s string) []byte { return []byte(s) })).Draw(t, "body"))
	})
}

func FuzzBody(f *testing.F) {
	f.Add([]byte("{\"a\":\"\u2028\"}"))
	f.Fuzz(func(t *testing.T, body []byte) { wantExactBody(t, body) })
}

// A line that cannot be read exactly is an error with a reason.
func TestParseLine_invalid_fails(t *testing.T) {
	t.Parallel()
	good := strings.TrimSpace(string(archive.AppendLine(nil, completeEvent([]byte("{}")), "stripe", "stripe")))
	for _, c := range []struct{ from, to, want string }{
		{good, "", "invalid JSON"},
		{good, "[]", "not an event"},
		{good, "{}", `"postern", the version of its format, is missing`},
		{`"postern":1`, `"postern":2`, "version 2 of the format"},
		{`"source":"stripe",`, ``, `"source" is missing`},
		{`"postern":1`, `"postern":1,"more":1`, "members"},
		{`"body":"{}"`, `"body":"{}","body_base64":""`, "one of them"},
		{`"body":"{}"`, `"body":"\ud800"`, "surrogate"},
		{`"body":"{}"`, `"body":"\ud800\u0041"`, "surrogate"},
		{`"body":"{}"`, `"body":{}`, "not a string"},
		{`"body":"{}"`, `"body_base64":"e30"`, "base64"},
		{`"body":"{}"`, "\"body\":\"\xff\"", "not valid UTF-8"},
		{`"fingerprint":"ab`, `"fingerprint":"a`, "hexadecimal"},
		{`"evt_1"`, `"\u0000"`, "NUL"},
		{`"evt_1"`, `""`, "empty"},
		{`"webhook"`, `"guess"`, "origin"},
		{`"delivery_index":2`, `"delivery_index":-1`, "not an index"},
		{`"id":"1882609560063049727"`, `"id":1882609560063049727`, "not a string"},
		{`"2026-09-21T14:13:21.234567Z"`, `"yesterday"`, "not a time"},
		{`"2026-09-21T14:13:21.234567Z"`, `null`, "received_at is null"},
		{`{"Stripe-Signature": "t=1,v1=a"}`, `[]`, "not an object"},
	} {
		text := strings.Replace(good, c.from, c.to, 1)
		if text == good {
			t.Fatalf("%s is not in %s", c.from, good)
		}
		if _, err := archive.ParseLine([]byte(text)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", text, err, c.want)
		}
	}
}

func FuzzLine(f *testing.F) {
	f.Add(archive.AppendLine(nil, completeEvent([]byte("{}")), "stripe", "stripe"))
	f.Fuzz(func(_ *testing.T, text []byte) { _, _ = archive.ParseLine(text) })
}
