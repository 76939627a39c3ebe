package redaction

import (
	"bytes"
	"html"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/postern-gateway/postern/internal/canonical"
)

// matches tells whether a body has any of some values.
func matches(finds []Find, body []byte) bool {
	found, _ := search(finds, body)
	return found
}

// search looks for some values in a body, at their paths; any will do. One that is neither JSON nor a form is looked through for the value as it stands; where that finds
// nothing, it is unread: the value may be there otherwise written.
func search(finds []Find, body []byte) (found, unread bool) {
	if len(finds) == 0 || len(body) == 0 {
		return false, false
	}
	if mentioned(finds, body) {
		return true, false
	}
	root, err := canonical.Parse(body)
	var form url.Values
	if err != nil {
		form, err = url.ParseQuery(string(body)) // what it can read of it, it gives also with an error
		root = nil
	}
	if slices.ContainsFunc(finds, func(f Find) bool { return !f.mention() && f.in(root, form) }) {
		return true, false
	}
	if root != nil || err == nil && isForm(body) {
		return false, false
	}
	text := plain(body)
	found = slices.ContainsFunc(finds, func(f Find) bool { return !f.mention() && f.stands(text) })
	return found, !found
}

// isForm tells a form from any other text, which could be read as one field with an odd name.
func isForm(body []byte) bool {
	return bytes.IndexByte(body, '=') > 0 && !bytes.ContainsFunc(body, func(r rune) bool { return r <= ' ' || r >= 0x7f || strings.ContainsRune("\"<>\\`{}", r) })
}

// plain is a text as it reads: without the escapes of JSON and the entities of XML, and without regard to case.
func plain(body []byte) string { return strings.ToLower(unescaped(string(body))) }

// unescaped is a text without the escapes of JSON and the entities of XML.
func unescaped(body string) string {
	var text strings.Builder
	for i := 0; i < len(body); i++ {
		if body[i] != '\\' || i+1 == len(body) {
			text.WriteByte(body[i])
			continue
		}
		i++
		switch body[i] {
		case 'n', 'r', 't', 'b', 'f':
			text.WriteByte(' ')
		case 'u':
			n, err := strconv.ParseUint(body[i+1:min(i+5, len(body))], 16, 16)
			if err == nil {
				text.WriteRune(rune(n))
				i += 4
			}
		default:
			text.WriteByte(body[i])
		}
	}
	return html.UnescapeString(text.String())
}

// shortest is how long a value is, in bytes, that may be looked for without a path: what is shorter stands in anything.
const shortest = 6

// stands tells whether the value stands in a text by itself, not as a part of a longer word or address.
func (f *Find) stands(text string) bool {
	for at := 0; f.Length > 0 && at+f.Length <= len(text); at++ {
		end := at + f.Length
		if at > 0 && (isWord(text[at-1]) || strings.IndexByte("._+-", text[at-1]) >= 0) || end < len(text) && goesOn(text[end:]) {
			continue
		}
		if f.is(text[at:end]) {
			return true
		}
	}
	return false
}

func goesOn(rest string) bool {
	return isWord(rest[0]) || strings.IndexByte("@_+-", rest[0]) >= 0 || rest[0] == '.' && len(rest) > 1 && isWord(rest[1])
}

func isWord(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c >= 0x80
}
