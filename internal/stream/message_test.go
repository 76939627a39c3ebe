package stream_test

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/stream"
)

func TestToken(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"invoice.paid":                  "invoice.paid",
		"orders/create":                 "orders=2Fcreate",
		"":                              "=",
		".":                             "=.=",
		"a..b":                          "a.=.b",
		"*":                             "=2A",
		">":                             "=3E",
		"=":                             "=3D",
		"a b\x00":                       "a=20b=00",
		"é\xff":                         "=C3=A9=FF",
		"$JS.API":                       "=24JS.API",
		strings.Repeat("a", 200):        strings.Repeat("a", 200),
		strings.Repeat("a", 201):        strings.Repeat("a", 160) + "-a92efd82109373e5",
		strings.Repeat(".", 150):        "-b05c6c22e453586a",
		strings.Repeat("a.", 99) + "ab": strings.Repeat("a.", 99) + "ab",
	} {
		if got := stream.Token(in); got != want {
			t.Errorf("Token(%.20q…, %d bytes) = %s, want %s", in, len(in), got, want)
		}
	}
}

// legal is a subject's part of at most 200 bytes that needs no quoting anywhere.
var legal = regexp.MustCompile(`^[A-Za-z0-9_=-]+(\.[A-Za-z0-9_=-]+)*$`)

func FuzzToken(f *testing.F) {
	for _, s := range []string{"", ".", "a.b", "é", "=", strings.Repeat("é.", 100), strings.Repeat(".", 300), strings.Repeat("=", 70)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if token := stream.Token(s); len(token) > 200 || !legal.MatchString(token) {
			t.Errorf("Token(%q) = %q", s, token)
		}
		if other := s + "x"; stream.Token(s) == stream.Token(other) {
			t.Errorf("%q and %q have one subject", s, other)
		}
	})
}

func FuzzEscape(f *testing.F) {
	for _, s := range []string{"", " ", "a b", "%", "%20", "é", "\xff\x00", "line\r\nbreak: x", "a%zz"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		e := stream.Escape(s)
		for _, c := range []byte(e) {
			if c <= ' ' || c >= 0x7f {
				t.Fatalf("Escape(%q) = %q holds byte %#x", s, e, c)
			}
		}
		if back := stream.Unescape(e); back != s {
			t.Errorf("%q came back as %q by way of %q", s, back, e)
		}
	})
}

func full() stream.Event {
	return stream.Event{Source: "a source.é", ObjectType: "thing", ObjectID: "x\r\ny", OccurredAt: time.Unix(1, 5).UTC(), Retry: true,
		Trace: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
		Stored: provider.Stored{ID: 1<<62 + 1, Key: "k%20\x00", Type: "t.*.>", Account: "acct 1", APIVersion: "v", Origin: "webhook", Index: 3,
			ReceivedAt: time.Unix(1_700_000_000, 123_456_000).UTC(), Body: []byte("\x00\xff raw")}}
}

// What a message carries is read back as it was, and a claim check says so.
func TestMessageRoundTrip(t *testing.T) {
	t.Parallel()
	large, long := full(), full()
	large.Body = make([]byte, stream.MaxBody+1)
	long.Key = strings.Repeat("k", 1<<20)
	for name, tc := range map[string]struct {
		in, want stream.Event
	}{
		"everything": {full(), full()},
		"nothing":    {stream.Event{}, stream.Event{}},
		"large body": {large, func() stream.Event { e := full(); e.Body, e.BodyInLog = nil, true; return e }()},
		"long names": {long, stream.Event{Source: long.Source, Retry: true, BodyInLog: true, Trace: long.Trace,
			Stored: provider.Stored{ID: long.ID, ReceivedAt: long.ReceivedAt, Index: long.Index}}},
	} {
		m, got, err := stream.RoundTrip(tc.in)
		if diff := cmp.Diff(tc.want, got); err != nil || diff != "" {
			t.Errorf("%s (-want +got): %v\n%s", name, err, diff)
		}
		if size := m.Size(); size > 512<<10 {
			t.Errorf("%s travels as %d bytes", name, size)
		}
	}
}

// Whatever is in a message, reading it neither panics nor makes up an event without id.
func FuzzParseEvent(f *testing.F) {
	f.Add("1", "2026-03-01T10:00:00Z", "", "", "k", "")
	f.Add("x", "", "yesterday", "-1", "%zz", "log")
	f.Fuzz(func(t *testing.T, id, received, occurred, index, key, body string) {
		h := nats.Header{"Postern-Id": {id}, "Postern-Received-At": {received}, "Postern-Occurred-At": {occurred}, "Postern-Index": {index},
			"Postern-Event-Id": {key}, "Postern-Body": {body}}
		e, err := stream.ParseEvent(h, []byte(body))
		if err == nil && e.ReceivedAt.IsZero() && received != "0001-01-01T00:00:00Z" && !strings.HasPrefix(received, "000") {
			t.Errorf("an event without time of receipt: %q", received)
		}
		if err != nil && err.Error() == "" {
			t.Error("an error without words")
		}
	})
}
