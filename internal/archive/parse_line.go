package archive

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"time"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/provider"
)

// line is an event as a line of an export has it.
type line struct {
	id               int64
	source, provider string
	event            provider.Event
	receivedAt       time.Time
	origin           string
	// headers and verification are JSON objects.
	headers, verification []byte
	deliveryID            int64
	index                 int32
	body                  []byte
}

// parseLine reads a line that appendLine has written, with its members in any order. A missing or
// unknown member is an error, because its meaning must not be lost silently.
func parseLine(text []byte) (*line, error) {
	root, err := canonical.Parse(text)
	if err != nil {
		return nil, err
	}
	defer root.Release()
	if root.Kind() != canonical.Object {
		return nil, fmt.Errorf("a JSON %s, not an event", root.Kind())
	}
	if version, ok := root.Get("postern").Int64(); !ok {
		return nil, errors.New(`no line of an export: "postern", the version of its format, is missing`)
	} else if version != Version {
		return nil, fmt.Errorf("version %d of the format; this release reads version %d", version, Version)
	}
	f := &fields{root: root}
	l := &line{}
	f.readNames(l)
	f.readTimes(l)
	f.readContents(l)
	f.checkNoOthers()
	return l, f.err
}

// fields reads members; err is the first error.
type fields struct {
	root  *canonical.Value
	count int
	err   error
}

func (f *fields) fail(format string, args ...any) {
	if f.err == nil {
		f.err = fmt.Errorf(format, args...)
	}
}

func (f *fields) get(name string) *canonical.Value {
	v := f.root.Get(name)
	if v == nil {
		f.fail("%q is missing", name)
	}
	f.count++
	return v
}

func (f *fields) readNames(l *line) {
	l.id, l.deliveryID = f.id("id"), f.id("delivery_id")
	l.source, l.provider = f.text("source"), f.text("provider")
	e := &l.event
	e.Key, e.Type, e.Account, e.ObjectType, e.ObjectID = f.text("event_id"), f.text("event_type"), f.text("account"),
		f.text("object_type"), f.text("object_id")
	e.APIVersion, l.origin = f.text("api_version"), f.text("origin")
	switch {
	case e.Key == "":
		f.fail("event_id is empty")
	case l.source == "":
		f.fail("source is empty")
	}
	switch l.origin {
	case events.OriginWebhook, events.OriginReconcile, events.OriginImport:
	default:
		f.fail("origin %.40q is not known", l.origin)
	}
}

func (f *fields) readTimes(l *line) {
	l.receivedAt, l.event.OccurredAt = f.time("received_at"), f.time("occurred_at")
	if l.receivedAt.IsZero() {
		f.fail("received_at is null")
	}
}

func (f *fields) readContents(l *line) {
	l.headers, l.verification = f.object("headers"), f.object("verification")
	sum, err := hex.DecodeString(f.text("fingerprint"))
	if err != nil || len(sum) != len(l.event.Fingerprint) {
		f.fail("fingerprint: %d bytes in hexadecimal digits are expected", len(l.event.Fingerprint))
	}
	copy(l.event.Fingerprint[:], sum)
	index, ok := f.get("delivery_index").Int64()
	if !ok || index < 0 || index != int64(int32(index)) {
		f.fail("delivery_index is not an index in a delivery")
	}
	l.index = int32(index)
	l.body = f.body()
}

// checkNoOthers checks that there are no other members.
func (f *fields) checkNoOthers() {
	expected := f.count + 1 // with the version
	n := 0
	for range f.root.Members() {
		n++
	}
	if n != expected {
		f.fail("%d members, but version %d of the format has %d", n, Version, expected)
	}
}

func (f *fields) text(name string) string {
	v := f.get(name)
	if f.err != nil {
		return ""
	}
	if v.Kind() != canonical.String {
		f.fail("%s is a %s, not a string", name, v.Kind())
		return ""
	}
	text, err := unquote(v.Raw())
	if err != nil {
		f.fail("%s: %w", name, err)
	}
	if s := string(text); s != events.SanitizeText(s) {
		f.fail("%s contains NUL", name)
	}
	return string(text)
}

func (f *fields) id(name string) int64 {
	id, ok := events.ParseID(f.text(name))
	if !ok {
		f.fail("%s is not an id of Postern", name)
	}
	return id
}

// time returns zero for null.
func (f *fields) time(name string) time.Time {
	if f.root.Get(name).Kind() == canonical.Null {
		f.count++
		return time.Time{}
	}
	text := f.text(name)
	if f.err != nil {
		return time.Time{}
	}
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil || at.IsZero() || at.Year() < 1 {
		f.fail("%s %.40q is not a time", name, text)
	}
	return at
}

func (f *fields) object(name string) []byte {
	v := f.get(name)
	if f.err == nil && v.Kind() != canonical.Object {
		f.fail("%s is a %s, not an object", name, v.Kind())
	}
	return bytes.Clone(v.Raw())
}

// body returns the exact body. It is an error if a byte is uncertain.
func (f *fields) body() []byte {
	text, coded := f.root.Get("body"), f.root.Get("body_base64")
	if text != nil && coded != nil {
		f.fail("body and body_base64: one of them is expected")
	}
	if coded != nil {
		body, err := base64.StdEncoding.Strict().DecodeString(f.text("body_base64"))
		if err != nil {
			f.fail("body_base64: %w", err)
		}
		return body
	}
	v := f.get("body")
	if f.err != nil {
		return nil
	}
	if v.Kind() != canonical.String {
		f.fail("body is a %s, not a string", v.Kind())
		return nil
	}
	body, err := unquote(v.Raw())
	if err != nil {
		f.fail("body: %w", err)
	}
	return body
}

// unquote reads a valid JSON string. A lone surrogate represents no bytes and is an error.
func unquote(text []byte) ([]byte, error) {
	text = text[1 : len(text)-1]
	out := make([]byte, 0, len(text))
	for {
		i := bytes.IndexByte(text, '\\')
		if i < 0 {
			return append(out, text...), nil
		}
		out = append(out, text[:i]...)
		n, r := readEscape(text[i:])
		if r < 0 {
			return nil, fmt.Errorf("half of a surrogate pair, %s, represents no bytes", text[i:i+6])
		}
		out, text = utf8.AppendRune(out, r), text[i+n:]
	}
}

// readEscape returns the length of the escape at the beginning of a valid text, and its character;
// -1 for half of a pair.
func readEscape(text []byte) (n int, r rune) {
	if text[1] != 'u' {
		const from, to = `"\/bfnrt`, "\"\\/\b\f\n\r\t"
		return 2, rune(to[bytes.IndexByte([]byte(from), text[1])])
	}
	r = hexUnit(text)
	switch {
	case !utf16.IsSurrogate(r):
		return 6, r
	case len(text) >= 12 && text[6] == '\\' && text[7] == 'u':
		if r = utf16.DecodeRune(r, hexUnit(text[6:])); r != utf8.RuneError {
			return 12, r
		}
	}
	return 6, -1
}

// hexUnit returns the number of \u and four hexadecimal digits.
func hexUnit(text []byte) rune {
	n, err := strconv.ParseUint(string(text[2:6]), 16, 16)
	if err != nil {
		return -1
	}
	return rune(n)
}
