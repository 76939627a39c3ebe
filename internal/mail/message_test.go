package mail_test

import (
	"bytes"
	"encoding/base64"
	"io"
	"mime"
	"mime/multipart"
	"mime/quotedprintable"
	netmail "net/mail"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/postern-gateway/postern/internal/mail"
)

// ParseAddress and NewAddress return exactly one address, or an error.
func TestParseAddress_returnsOneAddressOrError(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"jo@example.com":                       "jo@example.com",
		"Jo Smith <jo+x@example.com>":          "jo+x@example.com",
		`"Smith, Jo" <jo@example.com>`:         "jo@example.com",
		"jo@bücher.example":                    "jo@xn--bcher-kva.example",
		"":                                     "",
		"jo":                                   "",
		"jo@":                                  "",
		"jo@example.com, al@example.com":       "",
		"jo@example.com\r\nBcc: al@example":    "",
		`"jo@example.com> al"@example.com`:     "",
		"jo@[127.0.0.1]":                       "",
		"jö@example.com":                       "",
		"jo..x@example.com":                    "",
		"jo@exa mple.com":                      "",
		"<jo@example.com> SIZE=1":              "",
		strings.Repeat("a", 65) + "@x.example": "",
	} {
		got, err := mail.ParseAddress(text)
		if (err == nil) != (want != "") || got.Address != want {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
	}
	if _, err := mail.NewAddress("Jo\nBcc: x", "jo@example.com"); err == nil {
		t.Error("a name with a line end is accepted")
	}
}

// encodedNames are addresses whose name is an encoded word with characters that a name must not
// contain.
var encodedNames = []string{
	"=?utf-8?b?" + base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{0x80}, 60)) + "?= <jo@example.com>",
	"=?utf-8?b?" + base64.StdEncoding.EncodeToString(append([]byte("A"), bytes.Repeat([]byte{0x80}, 60)...)) +
		"?= <jo@example.com>",
	"=?utf-8?q?Jo=ff?= <jo@example.com>",
	"=?utf-8?b?" + base64.StdEncoding.EncodeToString([]byte("Jo\r\nBcc: al@example.com")) + "?= <jo@example.com>",
	"=?iso-8859-1?q?Jo=00?= <jo@example.com>",
}

// The encoding of a name does not bypass the check of its characters.
func TestParseAddress_encodedControlCharacters_areRejected(t *testing.T) {
	t.Parallel()
	for _, text := range encodedNames {
		if a, err := mail.ParseAddress(text); err == nil {
			t.Errorf("%q is accepted as %q", text, a.Name)
		}
		read, err := netmail.ParseAddress(text)
		if err != nil {
			t.Fatal(err)
		}
		if b, err := (&mail.Message{To: []mail.Address{*read}}).Bytes(); err == nil {
			t.Errorf("%q is written as %q", read.Name, b)
		}
	}
}

// line is an allowed line of a message.
var line = regexp.MustCompile(`^[\t -~]{0,998}$`)

// Whatever texts a message has, it has no additional header, its lines are valid, and a reader gets
// each text unchanged. The same message is the same bytes.
func TestMessageBytes_anyTexts_areReadUnchanged(t *testing.T) {
	t.Parallel()
	word := rapid.StringMatching(`([ -~]|[äß€😀]){0,90}`)
	rapid.Check(t, func(t *rapid.T) {
		m := &mail.Message{ID: "postern-x@shop.example", Date: time.Unix(1_700_000_000, 0),
			Subject: strings.TrimSpace(word.Draw(t, "subject")), Text: rapid.String().Draw(t, "text"),
			HTML:    rapid.StringMatching(`|<p>[^\r]*</p>`).Draw(t, "html"),
			Headers: map[string]string{"List-Id": strings.TrimSpace(word.Draw(t, "header"))}}
		var err error
		if m.From, err = mail.NewAddress(word.Draw(t, "name"), "shop@shop.example"); err != nil {
			t.Fatal(err)
		}
		for range rapid.IntRange(1, 20).Draw(t, "recipients") {
			m.To = append(m.To, m.From)
		}
		b, err := m.Bytes()
		if err != nil {
			t.Fatal(err)
		}
		if again, _ := m.Bytes(); !bytes.Equal(b, again) {
			t.Fatal("the second call returns other bytes")
		}
		for _, l := range strings.Split(string(b), "\r\n") {
			if !line.MatchString(l) {
				t.Fatalf("line %q", l)
			}
		}
		read(t, m, b)
	})
}

func read(t *rapid.T, m *mail.Message, b []byte) {
	got, err := netmail.ReadMessage(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	want := 8
	if m.HTML == "" {
		want++
	}
	if len(got.Header) != want {
		t.Fatalf("headers %v", got.Header)
	}
	decoder := new(mime.WordDecoder)
	for _, word := range regexp.MustCompile(`=\?utf-8\?b\?[^?]*\?=`).FindAllString(got.Header.Get("Subject"), -1) {
		if text, err := decoder.Decode(word); err != nil || !utf8.ValidString(text) || len(word) > 75 {
			t.Fatalf("%s is %q, %v", word, text, err)
		}
	}
	for name, want := range map[string]string{"Subject": m.Subject, "List-Id": m.Headers["List-Id"]} {
		if text, err := decoder.DecodeHeader(got.Header.Get(name)); err != nil || text != want {
			t.Fatalf("%s is %q, want %q; %v", name, text, want, err)
		}
	}
	to, err := got.Header.AddressList("To")
	if err != nil || len(to) != len(m.To) || to[0].Name != m.From.Name || to[0].Address != m.From.Address {
		t.Fatalf("%v, %v", to, err)
	}
	texts := []string{m.Text}
	if m.HTML != "" {
		texts = append(texts, m.HTML)
	}
	if diff := cmp.Diff(lines(texts), lines(bodies(t, got))); diff != "" {
		t.Fatal(diff)
	}
}

// lines are texts with one kind of line end, and none at the end.
func lines(texts []string) (all []string) {
	for _, text := range texts {
		text = strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(text)
		all = append(all, strings.TrimRight(text, "\n"))
	}
	return all
}

func bodies(t *rapid.T, m *netmail.Message) []string {
	kind, params, err := mime.ParseMediaType(m.Header.Get("Content-Type"))
	if err != nil {
		t.Fatal(err)
	}
	if kind == "text/plain" {
		return []string{text(t, m.Body)}
	}
	var all []string
	for parts := multipart.NewReader(m.Body, params["boundary"]); ; {
		p, err := parts.NextRawPart()
		if err == io.EOF {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, text(t, p))
	}
}

func text(t *rapid.T, r io.Reader) string {
	b, err := io.ReadAll(quotedprintable.NewReader(r))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// A text that would start another header is rejected, not sent.
func TestMessageBytes_lineEndsInHeaders_areRejected(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"a\r\nBcc: x@example.com", "a\nb", "a\rb", "a\x00b", "a\xffb"} {
		for _, m := range []mail.Message{{Subject: text}, {Headers: map[string]string{"X-A": text}}} {
			if b, err := m.Bytes(); err == nil {
				t.Errorf("%q: %q", text, b)
			}
		}
	}
	if _, err := (&mail.Message{Subject: strings.Repeat("a", 1000)}).Bytes(); err == nil {
		t.Error("a line that servers cut is accepted")
	}
	for _, name := range []string{"", "Bcc", "subject", "Content-Type", "X A", "X:", "X\r\nA", "Résumé"} {
		if mail.CheckHeaderName(name) == nil {
			t.Errorf("%q is accepted", name)
		}
	}
}

// FuzzAddress checks that an accepted address is one address, and is unchanged after formatting and
// parsing.
func FuzzAddress(f *testing.F) {
	f.Add("Jo <jo@example.com>")
	f.Add(`"a@b, c" <jo@bücher.example>`)
	for _, text := range encodedNames {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		a, err := mail.ParseAddress(text)
		if err != nil {
			return
		}
		if strings.ContainsAny(a.Address, "<> ,\r\n\"") || strings.ContainsAny(a.Name, "\r\n\x00") ||
			!utf8.ValidString(a.Name) {
			t.Fatalf("%q", a)
		}
		m := mail.Message{To: []mail.Address{a}}
		b, err := m.Bytes()
		if err != nil {
			return // a name without a space that is too long for a line
		}
		read, err := netmail.ReadMessage(bytes.NewReader(b))
		if err != nil {
			t.Fatal(err)
		}
		all, err := read.Header.AddressList("To")
		if err != nil || len(all) != 1 || all[0].Address != a.Address || all[0].Name != a.Name ||
			len(read.Header) != 8 {
			t.Fatalf("%v, %v of %q", all, err, b)
		}
	})
}

// A name is read unchanged, even if it looks like an encoded word or an address.
func TestMessageBytes_anyNames_areReadUnchanged(t *testing.T) {
	t.Parallel()
	for _, name := range []string{`\😀`, "=?utf-8?q?x?=", `Smith, Jo "Dr."`, "Jo <al@example.com>", "Müller & Söhne",
		strings.Repeat("ä ", 60) + "ä"} {
		a, err := mail.NewAddress(name, "jo@example.com")
		if err != nil {
			t.Fatal(err)
		}
		b, err := (&mail.Message{To: []mail.Address{a}}).Bytes()
		if err != nil {
			t.Fatal(err)
		}
		m, err := netmail.ReadMessage(bytes.NewReader(b))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := m.Header.AddressList("To"); err != nil || len(got) != 1 || got[0].Name != name ||
			got[0].Address != "jo@example.com" {
			t.Errorf("%q is %v, %v", name, got, err)
		}
	}
}
