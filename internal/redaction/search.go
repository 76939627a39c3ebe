package redaction

import (
	"bytes"
	"html"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

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
			if r, ok := escapedRune(body[i+1:]); ok {
				i += 4
				if low, ok := strings.CutPrefix(body[i+1:], `\u`); ok && utf16.IsSurrogate(r) {
					if second, ok := escapedRune(low); ok && utf16.DecodeRune(r, second) != utf8.RuneError {
						r, i = utf16.DecodeRune(r, second), i+6
					}
				}
				text.WriteRune(r)
			}
		default:
			text.WriteByte(body[i])
		}
	}
	return html.UnescapeString(text.String())
}

// escapedRune is what the four hexadecimal digits at the beginning of a text stand for.
func escapedRune(text string) (rune, bool) {
	n, err := strconv.ParseUint(text[:min(4, len(text))], 16, 16)
	return rune(n), err == nil && len(text) >= 4
}

// shortest is how long a value is, in bytes, that may be looked for without a path: what is shorter stands in anything.
const shortest = 6

// stands tells whether the value stands in a text by itself, not as a part of a longer word or address.
func (f *Find) stands(text string) bool {
	for at := 0; f.Length > 0 && at+f.Length <= len(text); at++ {
		end := at + f.Length
		if isSpace(text[at]) || isSpace(text[end-1]) { // no value begins or ends with space
			continue
		}
		if !utf8.RuneStart(text[at]) || at > 0 && goesBefore(text[:at]) || end < len(text) && goesOn(text[end:]) {
			continue
		}
		if f.is(text[at:end]) {
			return true
		}
	}
	return false
}

// StandsIn tells whether the value stands in a text that a person wrote.
func (f *Find) StandsIn(text string) bool { return f.stands(strings.ToLower(text)) }

// goesBefore tells whether the end of a text is a part of the word that follows it.
func goesBefore(text string) bool {
	r, _ := utf8.DecodeLastRuneInString(text)
	return isWord(r) || r == '.' || r == '_' || r == '+' || r == '-'
}

func goesOn(rest string) bool {
	r, size := utf8.DecodeRuneInString(rest)
	if r == '.' {
		next, _ := utf8.DecodeRuneInString(rest[size:])
		return len(rest) > size && isWord(next)
	}
	return isWord(r) || r == '@' || r == '_' || r == '+' || r == '-'
}

// isWord tells letters and digits of all scripts from what stands between words. What is not UTF-8 may be a letter.
func isWord(r rune) bool {
	if r < utf8.RuneSelf {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
	}
	return r == utf8.RuneError || unicode.IsLetter(r) || unicode.IsNumber(r) || unicode.IsMark(r) && !unicode.Is(unicode.Variation_Selector, r)
}

func isSpace(c byte) bool { return c == ' ' || c == '\n' || c == '\t' || c == '\r' }
