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

// MaxBody is the largest body that travels in a message; above it the message is a claim check and the consumer reads the
// body from the log.
const MaxBody = 256 << 10

// Event is a stored event on its way through the stream.
type Event struct {
	provider.Stored
	// Source is the source's name.
	Source     string
	ObjectType string
	ObjectID   string
	OccurredAt time.Time
	// BodyInLog: body or names were too large to travel; the whole event must be read from the log.
	BodyInLog bool
	// Redacted: the event's body is gone for good; known only of what was read from the log.
	Redacted bool
	// Retry: the event failed before and is tried alone.
	Retry bool
	// Trace is the W3C traceparent of the delivery's append where its trace is sampled; "" otherwise. It travels in the header
	// traceparent and is no part of the log.
	Trace string
}

// Token writes s as subject tokens: split at dots, every byte outside [A-Za-z0-9_-] as =XX, an empty token as "=", and cut with
// a hash when longer than 200 bytes.
func Token(s string) string {
	if plain(s) {
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

// plain tells whether s is subject tokens as it is.
func plain(s string) bool {
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

// traceHeader is W3C Trace Context's, so that a consumer's own tracing finds it.
const traceHeader = "traceparent"

// maxNames bounds what a message says in headers; above it the message is a claim check for those too.
const maxNames = 8 << 10

// mostHeaders is how many headers a message of ours may have.
const mostHeaders = 16

// parcel is a message with the values of its headers, in one piece of memory.
type parcel struct {
	nats.Msg
	values [mostHeaders]string
}

func newParcel() *parcel { return &parcel{Msg: nats.Msg{Header: make(nats.Header, mostHeaders)}} }

// empty lets go of all that the message has, but for room.
func (m *parcel) empty() {
	clear(m.Header)
	*m = parcel{Msg: nats.Msg{Header: m.Header}}
}

// message makes the NATS message of an event in the feed of events, whose body travels up to largest bytes.
func (e *Event) message(largest int) *nats.Msg { return e.messageTo(EventsSubject, largest) }

// messageTo makes the message for a subject below prefix.
func (e *Event) messageTo(prefix string, largest int) *nats.Msg {
	m := newParcel()
	m.fill(e, prefix, largest)
	return &m.Msg
}

// fill makes an empty one the message of an event for a subject below prefix. Header values are percent-encoded where they are not plain ASCII.
func (m *parcel) fill(e *Event, prefix string, largest int) {
	if len(e.Source)+len(e.Key)+len(e.Type)+len(e.Account)+len(e.ObjectType)+len(e.ObjectID)+len(e.APIVersion) > maxNames {
		e = &Event{Source: e.Source, Retry: e.Retry, Trace: e.Trace, BodyInLog: true, Stored: provider.Stored{ID: e.ID, ReceivedAt: e.ReceivedAt, Index: e.Index}}
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
	// What is made here stands in one piece of memory, too.
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
	if e.BodyInLog || len(e.Body) > largest {
		m.Data = nil
		set("Postern-Body", "log")
	}
}

// parseEvent reads what message wrote; an error means that the message is not ours.
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
	e.Source, e.Key, e.Type, e.Account = get("Postern-Source"), get("Postern-Event-Id"), get("Postern-Type"), get("Postern-Account")
	e.ObjectType, e.ObjectID = get("Postern-Object-Type"), get("Postern-Object-Id")
	e.APIVersion, e.Origin = get("Postern-Api-Version"), get("Postern-Origin")
	e.Retry = get("Postern-Retry") != ""
	e.Trace = get(traceHeader)
	e.BodyInLog, e.Body = get("Postern-Body") == "log", body
	return e, nil
}

// escape percent-encodes what a header line cannot carry; plain ASCII stays as it is.
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
