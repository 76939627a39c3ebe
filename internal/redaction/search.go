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

// matchesAny reports whether a body contains any of the values.
func matchesAny(finds []ValueMatcher, body []byte) bool {
	found, _ := search(finds, body)
	return found
}

// search searches values in a body, at their paths; one match is enough. In a body that is neither
// JSON nor a form it searches the literal value. If that fails, the body counts as unread, because
// the value may be encoded in another way.
func search(finds []ValueMatcher, body []byte) (found, unread bool) {
	if len(finds) == 0 || len(body) == 0 {
		return false, false
	}
	if mentionsAny(finds, body) {
		return true, false
	}
	root, err := canonical.Parse(body)
	var form url.Values
	if err != nil {
		form, err = url.ParseQuery(string(body)) // it also returns what it could parse before an error
		root = nil
	}
	if slices.ContainsFunc(finds, func(f ValueMatcher) bool { return !f.isMention() && f.matchesBody(root, form) }) {
		return true, false
	}
	if root != nil || err == nil && isForm(body) {
		return false, false
	}
	text := normalizeText(body)
	found = slices.ContainsFunc(finds, func(f ValueMatcher) bool { return !f.isMention() && f.occursIn(text) })
	return found, !found
}

// isForm distinguishes a form from other texts, which could be parsed as one field with an odd
// name.
func isForm(body []byte) bool {
	return bytes.IndexByte(body, '=') > 0 && !bytes.ContainsFunc(body, func(r rune) bool {
		return r <= ' ' || r >= 0x7f || strings.ContainsRune("\"<>\\`{}", r)
	})
}

// normalizeText returns a text without the escapes of JSON and the entities of XML, in lower case.
func normalizeText(body []byte) string { return strings.ToLower(unescape(string(body))) }

// unescape returns a text without the escapes of JSON and the entities of XML.
func unescape(body string) string {
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

// escapedRune decodes the four hexadecimal digits at the beginning of a text.
func escapedRune(text string) (rune, bool) {
	n, err := strconv.ParseUint(text[:min(4, len(text))], 16, 16)
	return rune(n), err == nil && len(text) >= 4
}

// minSearchLength is the shortest value, in bytes, that can be searched without a path. A shorter
// value would match unrelated data.
const minSearchLength = 6

// occursIn reports whether the value is a separate token of a text, and not a part of a longer word
// or address.
func (f *ValueMatcher) occursIn(text string) bool {
	for at := 0; f.Length > 0 && at+f.Length <= len(text); at++ {
		end := at + f.Length
		if isSpace(text[at]) || isSpace(text[end-1]) { // no value begins or ends with space
			continue
		}
		if !utf8.RuneStart(text[at]) || at > 0 && continuesBefore(text[:at]) || end < len(text) &&
			continuesAfter(text[end:]) {
			continue
		}
		if f.equals(text[at:end]) {
			return true
		}
	}
	return false
}

// OccursIn reports whether the value occurs in a text that an operator wrote.
func (f *ValueMatcher) OccursIn(text string) bool { return f.occursIn(strings.ToLower(text)) }

// continuesBefore reports whether the end of a text belongs to the word that follows it.
func continuesBefore(text string) bool {
	r, _ := utf8.DecodeLastRuneInString(text)
	return isWord(r) || r == '.' || r == '_' || r == '+' || r == '-'
}

func continuesAfter(rest string) bool {
	r, size := utf8.DecodeRuneInString(rest)
	if r == '.' {
		next, _ := utf8.DecodeRuneInString(rest[size:])
		return len(rest) > size && isWord(next)
	}
	return isWord(r) || r == '@' || r == '_' || r == '+' || r == '-'
}

// isWord reports whether a character is a letter or digit of any script. Invalid UTF-8 may be a
// letter.
func isWord(r rune) bool {
	if r < utf8.RuneSelf {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
	}
	return r == utf8.RuneError || unicode.IsLetter(r) || unicode.IsNumber(r) || unicode.IsMark(r) &&
		!unicode.Is(unicode.Variation_Selector, r)
}

func isSpace(c byte) bool { return c == ' ' || c == '\n' || c == '\t' || c == '\r' }
