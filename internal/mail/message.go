package mail

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"mime/quotedprintable"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// Message is a mail. The same message is always the same bytes.
type Message struct {
	// ID is the Message-ID without its < and >, as name@domain.
	ID   string
	Date time.Time
	From Address
	// To and Cc are the recipients.
	To, Cc []Address
	// ReplyTo are the addresses for replies; if empty, From.
	ReplyTo []Address
	Subject string
	// Text is the plain text. HTML is the same content as HTML; empty if there is none.
	Text, HTML string
	// Headers are additional headers. CheckHeaderName checks their names.
	Headers map[string]string
}

const (
	// foldAt is the column where header lines are folded. longestLine is where a server may cut
	// them (RFC 5322, 2.1.1).
	foldAt      = 76
	longestLine = 998
	// maxWordBytes is how many bytes of text an encoded word holds (RFC 2047, 2).
	maxWordBytes = 42
)

// reservedHeaders are set from the fields of the message, or written by servers.
var reservedHeaders = []string{"From", "Sender", "To", "Cc", "Bcc", "Reply-To", "Subject", "Date", "Message-Id",
	"Mime-Version",
	"Return-Path", "Received", "Dkim-Signature"}

// CheckHeaderName returns an error if an additional header may not have the name.
func CheckHeaderName(name string) error {
	if name == "" || strings.ContainsFunc(name, func(c rune) bool {
		return !isLetterOrDigit(c) && c != '-' && c != '_'
	}) {
		return errors.New("is not a header name: use letters, digits and -")
	}
	lower := strings.ToLower(name)
	if strings.HasPrefix(lower, "content-") || strings.HasPrefix(lower, "resent-") ||
		slices.ContainsFunc(reservedHeaders, func(o string) bool { return strings.EqualFold(o, name) }) {
		return errors.New("is a header that the message sets itself: leave it out")
	}
	return nil
}

// Bytes returns the message as it is sent, in ASCII with CRLF line ends.
func (m *Message) Bytes() ([]byte, error) {
	w := &writer{}
	w.addresses("From", []Address{m.From})
	w.addresses("To", m.To)
	w.addresses("Cc", m.Cc)
	w.addresses("Reply-To", m.ReplyTo)
	w.text("Subject", m.Subject)
	w.header("Date", m.Date.UTC().Format(time.RFC1123Z))
	w.header("Message-ID", "<"+m.ID+">")
	for _, name := range slices.Sorted(maps.Keys(m.Headers)) {
		w.text(name, m.Headers[name])
	}
	w.header("MIME-Version", "1.0")
	if m.HTML == "" {
		w.part("text/plain", m.Text)
		return w.b.Bytes(), w.err
	}
	sum := sha256.Sum256([]byte(m.ID))
	boundary := "=_" + hex.EncodeToString(sum[:16]) // no line of a quoted-printable text begins with it
	w.header("Content-Type", `multipart/alternative; boundary="`+boundary+`"`)
	for _, part := range [][2]string{{"text/plain", m.Text}, {"text/html", m.HTML}} {
		w.b.WriteString("\r\n--" + boundary + "\r\n")
		w.part(part[0], part[1])
	}
	w.b.WriteString("\r\n--" + boundary + "--\r\n")
	return w.b.Bytes(), w.err
}

// writer writes a message and keeps the first error.
type writer struct {
	b   bytes.Buffer
	err error
}

func (w *writer) fail(format string, args ...any) {
	if w.err == nil {
		w.err = fmt.Errorf(format, args...)
	}
}

func (w *writer) addresses(name string, all []Address) {
	if len(all) == 0 {
		return
	}
	texts := make([]string, len(all))
	for i := range all {
		if !utf8.ValidString(all[i].Name) || strings.ContainsFunc(all[i].Name, isControl) {
			w.fail("%s: the name %q is not valid UTF-8, or contains a control character", name, all[i].Name)
		}
		texts[i] = formatAddress(all[i])
	}
	w.header(name, strings.Join(texts, ", "))
}

// formatAddress returns an address in header form.
func formatAddress(a Address) string {
	if name := encodeHeader(a.Name); name != a.Name {
		return name + " <" + a.Address + ">"
	}
	return a.String()
}

// text writes a header of free text. A line end in the text would end the header.
func (w *writer) text(name, text string) {
	if strings.ContainsFunc(text, isControl) || !utf8.ValidString(text) {
		w.fail("%s: contains a line end or another control character", name)
		return
	}
	w.header(name, encodeHeader(strings.TrimSpace(text)))
}

// header writes a header of ASCII, folded before spaces.
func (w *writer) header(name, value string) {
	w.b.WriteString(name + ":")
	line := len(name) + 1
	for i, word := range strings.Split(value, " ") {
		if i > 0 && word != "" && line+1+len(word) > foldAt {
			w.b.WriteString("\r\n")
			line = 0
		}
		w.b.WriteString(" " + word)
		if line += 1 + len(word); line > longestLine {
			w.fail("%s: has more than %d characters without a space", name, longestLine)
		}
	}
	w.b.WriteString("\r\n")
}

// part writes a body part with its headers.
func (w *writer) part(kind, text string) {
	w.header("Content-Type", kind+"; charset=utf-8")
	w.header("Content-Transfer-Encoding", "quoted-printable")
	w.b.WriteString("\r\n")
	q := quotedprintable.NewWriter(&w.b)
	_, err := q.Write([]byte(text))
	if err = errors.Join(err, q.Close()); err != nil {
		w.fail("text: %w", err)
	}
	w.b.WriteString("\r\n")
}

// encodeHeader returns a text in header form: unchanged if it is ASCII, otherwise in encoded words
// that do not split a character. It terminates for invalid UTF-8 too.
func encodeHeader(text string) string {
	if !strings.Contains(text, "=?") && !strings.ContainsFunc(text, func(c rune) bool { return c >= utf8.RuneSelf }) {
		return text
	}
	var words []string
	for text != "" {
		n := min(len(text), maxWordBytes)
		for n > maxWordBytes-utf8.UTFMax && n < len(text) && !utf8.RuneStart(text[n]) {
			n--
		}
		words = append(words, "=?utf-8?b?"+base64.StdEncoding.EncodeToString([]byte(text[:n]))+"?=")
		text = text[n:]
	}
	return strings.Join(words, " ")
}
