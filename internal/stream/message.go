package stream

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/postern-gateway/postern/internal/provider"
)

// MaxBody is the maximum body size in a message, in bytes. A larger body is read from the log
// (claim check).
const MaxBody = 256 << 10

// Event is a stored event in a message.
type Event struct {
	provider.StoredEvent
	// Source is the name of the source.
	Source     string
	ObjectType string
	ObjectID   string
	OccurredAt time.Time
	// BodyInLog is true if the body or the names are too large for a message; the whole event must
	// be read from the log.
	BodyInLog bool
	// Redacted is true if the event's body was cleared permanently. It is set only for events that
	// were read from the log.
	Redacted bool
	// Retry is true if the event failed before; it is then applied as a single event.
	Retry bool
	// Trace is the W3C traceparent of the delivery's append if its trace is sampled, otherwise "".
	// It is sent in the header traceparent and is not stored in the log.
	Trace string
}

// Token converts s to subject tokens: split at dots, every byte outside [A-Za-z0-9_-] as =XX, an
// empty token as "=". A result longer than 200 bytes is truncated and gets a hash.
func Token(s string) string {
	if isPlain(s) {
		return s
	}
	var b strings.Builder
	for i, token := range strings.Split(s, ".") {
		if i > 0 {
			b.WriteByte('.')
		}
		if token == "" {
			b.WriteByte('=')
		}
		for _, c := range []byte(token) {
			if tokenByte(c) {
				b.WriteByte(c)
			} else {
				fmt.Fprintf(&b, "=%02X", c)
			}
		}
	}
	if b.Len() <= 200 {
		return b.String()
	}
	sum := sha256.Sum256([]byte(s))
	return strings.TrimRight(b.String()[:160], ".=") + "-" + hex.EncodeToString(sum[:8])
}

// isPlain returns true if Token need not change s.
func isPlain(s string) bool {
	last := byte('.')
	for i := range len(s) {
		c := s[i]
		if !tokenByte(c) && (c != '.' || last == '.') {
			return false
		}
		last = c
	}
	return last != '.' && len(s) <= 200
}

func tokenByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-'
}

// traceHeader is the header of W3C Trace Context, so that tracing in other consumers finds it.
const traceHeader = "traceparent"

// maxHeaderBytes bounds the names in a message's headers. A message with longer names has none of
// them; the consumer reads the whole event from the log.
const maxHeaderBytes = 8 << 10

// maxHeaders bounds the number of headers in a message.
const maxHeaders = 16

// pooledMessage is a message with memory for the values of its headers.
type pooledMessage struct {
	nats.Msg
	values [maxHeaders]string
}

func newPooledMessage() *pooledMessage {
	return &pooledMessage{Msg: nats.Msg{Header: make(nats.Header, maxHeaders)}}
}

// reset clears the message and keeps its memory.
func (m *pooledMessage) reset() {
	clear(m.Header)
	*m = pooledMessage{Msg: nats.Msg{Header: m.Header}}
}

// toMessage returns the NATS message of an event for the events stream. A body of more than maxBody
// bytes is omitted.
func (e *Event) toMessage(maxBody int) *nats.Msg { return e.toMessageBelow(EventsSubject, maxBody) }

// toMessageBelow returns the message for a subject below prefix.
func (e *Event) toMessageBelow(prefix string, maxBody int) *nats.Msg {
	m := newPooledMessage()
	m.encode(e, prefix, maxBody)
	return &m.Msg
}

// encode fills an empty message with an event, for a subject below prefix. Header values that are
// not plain ASCII are percent-encoded.
func (m *pooledMessage) encode(e *Event, prefix string, maxBody int) {
	if len(e.Source)+len(e.Key)+len(e.Type)+len(e.Account)+len(e.ObjectType)+len(e.ObjectID)+
		len(e.APIVersion) > maxHeaderBytes {
		e = &Event{Source: e.Source, Retry: e.Retry, Trace: e.Trace, BodyInLog: true,
			StoredEvent: provider.StoredEvent{ID: e.ID, ReceivedAt: e.ReceivedAt, Index: e.Index}}
	}
	m.Subject, m.Data = prefix+"."+Token(e.Source)+"."+Token(e.Type), e.Body
	n := 0
	set := func(name, value string) {
		if value != "" {
			m.values[n] = escape(value)
			n++
			m.Header[name] = m.values[n-1 : n : n]
		}
	}
	// All formatted values share one allocation.
	b := make([]byte, 0, 96)
	b = strconv.AppendInt(b, e.ID, 10)
	id := len(b)
	b = e.ReceivedAt.UTC().AppendFormat(b, time.RFC3339Nano)
	received := len(b)
	if !e.OccurredAt.IsZero() {
		b = e.OccurredAt.UTC().AppendFormat(b, time.RFC3339Nano)
	}
	text := string(b)
	set("Postern-Schema", "1")
	set("Postern-Id", text[:id])
	set("Postern-Source", e.Source)
	set("Postern-Event-Id", e.Key)
	set("Postern-Type", e.Type)
	set("Postern-Account", e.Account)
	set("Postern-Object-Type", e.ObjectType)
	set("Postern-Object-Id", e.ObjectID)
	set("Postern-Api-Version", e.APIVersion)
	set("Postern-Origin", e.Origin)
	set("Postern-Received-At", text[id:received])
	set("Postern-Occurred-At", text[received:])
	if e.Index > 0 {
		set("Postern-Index", strconv.Itoa(e.Index))
	}
	if e.Retry {
		set("Postern-Retry", "1")
	}
	set(traceHeader, e.Trace)
	if e.BodyInLog || len(e.Body) > maxBody {
		m.Data = nil
		set("Postern-Body", "log")
	}
}

// parseEvent parses a message that toMessage made. It returns an error for a message that Postern
// did not publish.
func parseEvent(h nats.Header, body []byte) (Event, error) {
	get := func(name string) string { return unescape(h.Get(name)) }
	var e Event
	var err error
	if e.ID, err = strconv.ParseInt(get("Postern-Id"), 10, 64); err != nil {
		return e, fmt.Errorf("message without a Postern-Id: %w", err)
	}
	if e.ReceivedAt, err = time.Parse(time.RFC3339Nano, get("Postern-Received-At")); err != nil {
		return e, fmt.Errorf("message %d: Postern-Received-At: %w", e.ID, err)
	}
	if s := get("Postern-Occurred-At"); s != "" {
		if e.OccurredAt, err = time.Parse(time.RFC3339Nano, s); err != nil {
			return e, fmt.Errorf("message %d: Postern-Occurred-At: %w", e.ID, err)
		}
	}
	if s := get("Postern-Index"); s != "" {
		if e.Index, err = strconv.Atoi(s); err != nil {
			return e, fmt.Errorf("message %d: Postern-Index: %w", e.ID, err)
		}
	}
	e.Source, e.Key, e.Type, e.Account = get("Postern-Source"), get("Postern-Event-Id"), get("Postern-Type"),
		get("Postern-Account")
	e.ObjectType, e.ObjectID = get("Postern-Object-Type"), get("Postern-Object-Id")
	e.APIVersion, e.Origin = get("Postern-Api-Version"), get("Postern-Origin")
	e.Retry = get("Postern-Retry") != ""
	e.Trace = get(traceHeader)
	e.BodyInLog, e.Body = get("Postern-Body") == "log", body
	return e, nil
}

// escape percent-encodes what a header cannot contain. Plain ASCII is unchanged.
func escape(s string) string {
	for _, c := range []byte(s) {
		if c <= ' ' || c >= 0x7f || c == '%' {
			return url.PathEscape(s)
		}
	}
	return s
}

func unescape(s string) string {
	if !strings.Contains(s, "%") {
		return s
	}
	if t, err := url.PathUnescape(s); err == nil {
		return t
	}
	return s
}
