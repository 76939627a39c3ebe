package stream_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/testkit"
)

func TestToken_texts_areValidSubjects(t *testing.T) {
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

// validSubject matches a part of a subject with at most 200 bytes that needs no quoting anywhere.
var validSubject = regexp.MustCompile(`^[A-Za-z0-9_=-]+(\.[A-Za-z0-9_=-]+)*$`)

func FuzzToken(f *testing.F) {
	for _, s := range []string{"", ".", "a.b", "é", "=", strings.Repeat("é.", 100), strings.Repeat(".", 300),
		strings.Repeat("=", 70)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if token := stream.Token(s); len(token) > 200 || !validSubject.MatchString(token) {
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
				t.Fatalf("Escape(%q) = %q contains byte %#x", s, e, c)
			}
		}
		if back := stream.Unescape(e); back != s {
			t.Errorf("%q became %q, encoded as %q", s, back, e)
		}
	})
}

func fullEvent() stream.Event {
	return stream.Event{Source: "a source.é", ObjectType: "thing", ObjectID: "x\r\ny",
		OccurredAt: time.Unix(1, 5).UTC(), Retry: true,
		Trace: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
		StoredEvent: provider.StoredEvent{ID: 1<<62 + 1, Key: "k%20\x00", Type: "t.*.>", Account: "acct 1",
			APIVersion: "v", Origin: "webhook", Index: 3,
			ReceivedAt: time.Unix(1_700_000_000, 123_456_000).UTC(), Body: []byte("\x00\xff raw")}}
}

// An event in a message is read back unchanged, and BodyInLog is set for a claim check.
func TestMessage_roundTrip_isUnchanged(t *testing.T) {
	t.Parallel()
	large, long := fullEvent(), fullEvent()
	large.Body = make([]byte, stream.MaxBody+1)
	long.Key = strings.Repeat("k", 1<<20)
	for name, tc := range map[string]struct {
		in, want stream.Event
	}{
		"everything": {fullEvent(), fullEvent()},
		"nothing":    {stream.Event{}, stream.Event{}},
		"large body": {large, func() stream.Event { e := fullEvent(); e.Body, e.BodyInLog = nil, true; return e }()},
		"long names": {long, stream.Event{Source: long.Source, Retry: true, BodyInLog: true, Trace: long.Trace,
			StoredEvent: provider.StoredEvent{ID: long.ID, ReceivedAt: long.ReceivedAt, Index: long.Index}}},
	} {
		m, got, err := stream.RoundTrip(tc.in)
		if diff := cmp.Diff(tc.want, got); err != nil || diff != "" {
			t.Errorf("%s (-want +got): %v\n%s", name, err, diff)
		}
		if size := m.Size(); size > 512<<10 {
			t.Errorf("%s has %d bytes in its message", name, size)
		}
	}
}

// No message makes parseEvent panic or return an event without an id.
func FuzzParseEvent(f *testing.F) {
	f.Add("1", "2026-03-01T10:00:00Z", "", "", "k", "")
	f.Add("x", "", "yesterday", "-1", "%zz", "log")
	f.Fuzz(func(t *testing.T, id, received, occurred, index, key, body string) {
		h := nats.Header{"Postern-Id": {id}, "Postern-Received-At": {received}, "Postern-Occurred-At": {occurred},
			"Postern-Index": {index}, "Postern-Event-Id": {key}, "Postern-Body": {body}}
		e, err := stream.ParseEvent(h, []byte(body))
		if err == nil && e.ReceivedAt.IsZero() && received != "0001-01-01T00:00:00Z" &&
			!strings.HasPrefix(received, "000") {
			t.Errorf("an event without a time of receipt: %q", received)
		}
		if err != nil && err.Error() == "" {
			t.Error("an error without a message")
		}
	})
}

// eventOfSize returns an event with long names, which take three times their size in headers, and a
// body of the given size.
func eventOfSize(n, body int) stream.Event {
	return stream.Event{Source: "s", StoredEvent: provider.StoredEvent{ID: int64(n), Key: strings.Repeat("é", 4000),
		Type: "t", ReceivedAt: time.Unix(1, 0), Body: bytes.Repeat([]byte("x"), body)}}
}

// consumeAndAck receives n messages and acknowledges them.
func (b *testBundle) consumeAndAck(t *testing.T, n int) map[int64]stream.Event {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitTime)
	defer cancel()
	got := map[int64]stream.Event{}
	err := b.conn.Consume(ctx, n, func(m stream.Message) error {
		if got[m.ID] = m.Event; len(got) == n {
			cancel()
		}
		return m.Ack()
	}, func(err error) { t.Error(err) })
	if err != nil || len(got) != n {
		t.Fatalf("%d of %d messages were read: %v", len(got), n, err)
	}
	return got
}

// With any max_payload of the server, every event is published: with its body if that fits with the
// longest names, otherwise as a claim check, by PublishEvents and by the publisher.
func TestMaxMessageBody_smallMaxPayload_eventsFit(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		maxPayload int32
		largest    int
	}{
		"the server's default": {0, stream.MaxBody},
		"128 KiB":              {128 << 10, 96 << 10},
		"headers only":         {32 << 10, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := testkit.JetStreamMaxPayload(t, tc.maxPayload)
			b := connect(t, server, server.URL, stream.DefaultLimits.MaxMessages)
			if n := b.conn.MaxMessageBody(); n != tc.largest {
				t.Fatalf("the largest body is %d bytes, want %d", n, tc.largest)
			}
			b.run(t)
			bodies := []int{0, tc.largest, tc.largest + 1, stream.MaxBody, stream.MaxBody + 1}
			for i, n := range bodies {
				for j, ack := range b.conn.PublishEvents(t.Context(), []stream.Event{eventOfSize(i, n)}) {
					if ack.Err != nil {
						t.Errorf("event %d of %d bytes: %v", j, n, ack.Err)
					}
				}
				b.Offer(eventOfSize(100+i, n))
			}
			b.waitPublishCount(t, "acknowledged", len(bodies))
			for id, e := range b.consumeAndAck(t, 2*len(bodies)) {
				n := bodies[id%100]
				if claim := n > tc.largest; e.BodyInLog != claim || !claim && len(e.Body) != n {
					t.Errorf("event %d of %d bytes came with %d, a claim check: %v", id, n, len(e.Body), e.BodyInLog)
				}
			}
		})
	}
}

// HasChange returns true only for a change's sequence and batch: not for another batch, nor after
// the stream was emptied or deleted.
func TestHasChange_otherBatchOrStream_isFalse(t *testing.T) {
	t.Parallel()
	b, _ := setup(t, 1000, false)
	acks := b.conn.PublishChanges(t.Context(), []stream.Change{
		{Source: "s", ObjectType: "t", Batch: 7, Envelope: []byte("{}")}, {Source: "s", ObjectType: "t", Batch: 8,
			Envelope: []byte("{}")}})
	has := func(sequence uint64, batch int64) (has bool) {
		t.Helper()
		testkit.Eventually(t, waitTime, func() (err error) {
			has, err = b.conn.HasChange(t.Context(), sequence, batch)
			return err
		})
		return has
	}
	for i, batch := range []int64{7, 8} {
		if acks[i].Err != nil {
			t.Fatal(acks[i].Err)
		}
		if !has(acks[i].Sequence, batch) || has(acks[i].Sequence, batch+1) || has(acks[i].Sequence+2, batch) {
			t.Errorf("batch %d is not found at %d, or also elsewhere", batch, acks[i].Sequence)
		}
	}
	b.nats.Wipe(t)
	if has(acks[0].Sequence, 7) {
		t.Error("a change is found in a deleted stream")
	}
	testkit.Eventually(t, waitTime, func() error { return b.conn.Ensure(t.Context(), b.limits) })
	if has(acks[0].Sequence, 7) {
		t.Error("a change is found in an empty stream")
	}
}

func TestCheckServer_belowFirstCleanReleaseOfItsLine_isRejected(t *testing.T) {
	t.Parallel()
	const newer = "a newer release of these lines"
	if err := stream.CheckServer(server.VERSION); err != nil {
		t.Errorf("the embedded server: %v", err)
	}
	for version, want := range map[string]string{
		"1.4.1":       newer,
		"2.9.10":      newer,
		"2.10.29":     newer,
		"2.11.15":     newer, // GHSA-9983-vrx2-fg9c is fixed there, later notes are not
		"2.11.17":     newer,
		"2.12.0":      "install 2.12.12 or",
		"2.12.3":      "install 2.12.12 or", // CVE-2026-33222
		"2.12.6":      "install 2.12.12 or", // CVE-2026-58253
		"2.12.7":      "install 2.12.12 or", // CVE-2026-58250
		"2.12.8-fips": "install 2.12.12 or",
		"2.12.11":     "install 2.12.12 or", // CVE-2026-58210
		"2.12.12":     "",
		"2.12.15":     "",
		"2.13.0":      newer, // a line that was never released
		"2.14.0":      "install 2.14.3 or",
		"2.14.2":      "install 2.14.3 or",
		"2.14.3":      "",
		"2.14.9":      "",
		"2.15.0":      "",
		"2.15.0-RC.1": "",
		"2.15.2":      "",
		"2.16.0":      "",
		"3.0.0":       "",
		"unreadable":  `read the version of nats-server "unreadable"`,
	} {
		err := stream.CheckServer(version)
		switch {
		case want == "" && err != nil:
			t.Errorf("%s is rejected: %v", version, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%s: error %v, want %q", version, err, want)
		case want != "" && version != "unreadable" &&
			!strings.Contains(err.Error(), "published vulnerabilities (https://advisories.nats.io)"):
			t.Errorf("%s: error %v does not say why", version, err)
		}
	}
}

func TestConn_vulnerableServer_isRejectedAndLogged(t *testing.T) {
	t.Parallel()
	log := &recordLog{level: slog.LevelWarn}
	conn, err := stream.Connect(stream.Options{URL: fakeServer(t, "2.12.11"), Name: t.Name(), Logger: slog.New(log)})
	testkit.Must(t, err)
	t.Cleanup(conn.Close)
	eventually(t, "no warning is logged", func() bool { return len(log.containing("install 2.12.12")) > 0 })
	if err := conn.CheckServer(); err == nil || !strings.Contains(err.Error(), "nats-server 2.12.11 ") {
		t.Errorf("the check says %v", err)
	}
}

// fakeServer implements the part of the protocol that a client needs to connect, with the given
// version.
func fakeServer(t *testing.T, version string) (url string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.Must(t, err)
	done := make(chan struct{})
	t.Cleanup(func() { _ = l.Close(); <-done })
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			fmt.Fprintf(c, "INFO {\"server_id\":\"x\",\"version\":%q,\"max_payload\":1048576}\r\n", version)
			for lines := bufio.NewScanner(c); lines.Scan(); {
				if bytes.HasPrefix(lines.Bytes(), []byte("PING")) {
					fmt.Fprint(c, "PONG\r\n")
				}
			}
			_ = c.Close()
		}
	}()
	return "nats://" + l.Addr().String()
}

func TestDocuments_nameTheCleanReleases(t *testing.T) {
	t.Parallel()
	for _, page := range []string{"docs/how-to/install.md",
		"docs/decisions/0016-nats-releases.md"} {
		text, err := os.ReadFile(filepath.Join("..", "..", page))
		testkit.Must(t, err)
		for _, r := range stream.CleanReleases() {
			if !strings.Contains(string(text), r) {
				t.Errorf("%s does not name NATS %s", page, r)
			}
		}
	}
}

// A request whose response is lost ends long before the caller's own limit.
func TestConn_responseIsLost_requestEnds(t *testing.T) {
	t.Parallel()
	b, proxy := setup(t, 1000, true)
	proxy.StallResponses()
	var group sync.WaitGroup
	for name, request := range map[string]func(context.Context) error{
		"ensure": func(ctx context.Context) error { return b.conn.Ensure(ctx, b.limits) },
		"change": func(ctx context.Context) error { _, err := b.conn.HasChange(ctx, 1, 1); return err },
	} {
		group.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			if err := request(ctx); err == nil || ctx.Err() != nil {
				t.Errorf("%s: %v, the caller's limit: %v", name, err, ctx.Err())
			}
		})
	}
	group.Wait()
}
