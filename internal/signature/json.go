package signature

import (
	"bytes"
	"encoding/json"
	"iter"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// findJSON returns a string, number or boolean at a dotted path; numbers and booleans as they are
// written. The body must be valid JSON. It stores nothing of other values, because the body is not
// verified yet. If a name occurs twice, it uses the last member, as encoding/json does.
func findJSON(body []byte, path string) ([]byte, bool) {
	at := locateJSON(body[skipSpace(body, 0):], path)
	if at == nil {
		return nil, false
	}
	return readScalar(at)
}

// locateJSON returns the text from the value at a dotted path on; nil if there is none.
func locateJSON(at []byte, path string) []byte {
	for more := true; more && at != nil; {
		var name string
		name, path, more = strings.Cut(path, ".")
		at = findMember(at, name)
	}
	return at
}

// Elements returns the elements of the list at a dotted path of a JSON body, as they are written.
// With item it returns the value of each element at that path, nil if there is none. ok is false if
// the body is not JSON or has no such list. It stores nothing of other values, so that an
// unverified body costs no more than its length.
func Elements(body []byte, list, item string) (elements iter.Seq[[]byte], ok bool) {
	if !json.Valid(body) {
		return nil, false
	}
	text := locateJSON(body[skipSpace(body, 0):], list)
	if text == nil || text[0] != '[' {
		return nil, false
	}
	return func(yield func([]byte) bool) {
		for i := skipSpace(text, 1); text[i] != ']'; {
			end := valueEnd(text, i)
			value := text[i:end]
			if item != "" {
				value = locateJSON(value, item)
			}
			if value != nil {
				value = value[:valueEnd(value, 0)]
			}
			if !yield(value) {
				return
			}
			if i = skipSpace(text, end); text[i] == ',' {
				i = skipSpace(text, i+1)
			}
		}
	}, true
}

// readScalar reads the value at the beginning of text. It copies the value only if that contains an
// escape or invalid UTF-8.
func readScalar(text []byte) ([]byte, bool) {
	switch end := valueEnd(text, 0); text[0] {
	case '"':
		if raw := text[1 : end-1]; utf8.Valid(raw) && bytes.IndexByte(raw, '\\') < 0 {
			return raw, true
		}
		return unquoteInto(make([]byte, 0, end), text[:end]), true
	case '{', '[', 'n':
		return nil, false
	default:
		return text[:end], true
	}
}

// unquoteInto appends the contents of a quoted text to a buffer, as encoding/json does: invalid
// bytes and escapes become U+FFFD.
func unquoteInto(to, quoted []byte) []byte {
	for i := 1; i < len(quoted)-1; {
		switch c := quoted[i]; {
		case c == '\\' && quoted[i+1] == 'u':
			r, size := unescape(quoted[i:])
			to = utf8.AppendRune(to, r)
			i += size
		case c == '\\':
			to = append(to, "\"\\/\b\f\n\r\t"[strings.IndexByte(`"\/bfnrt`, quoted[i+1])])
			i += 2
		case c < utf8.RuneSelf:
			to = append(to, c)
			i++
		default:
			r, size := utf8.DecodeRune(quoted[i : len(quoted)-1])
			to = utf8.AppendRune(to, r)
			i += size
		}
	}
	return to
}

// unescape reads \uXXXX, or a pair of them.
func unescape(text []byte) (r rune, size int) {
	half := func(i int) rune {
		if text[i] != '\\' || text[i+1] != 'u' {
			return -1
		}
		n, _ := strconv.ParseUint(string(text[i+2:i+6]), 16, 32) // four digits, because the text is valid
		return rune(n)
	}
	r = half(0)
	if !utf16.IsSurrogate(r) {
		return r, 6
	}
	if whole := utf16.DecodeRune(r, half(6)); whole != utf8.RuneError {
		return whole, 12
	}
	return utf8.RuneError, 6
}

// findMember finds the last member with a name, or the element at an index, of the object or array
// at the beginning of text. It returns the text from its value on.
func findMember(text []byte, name string) []byte {
	if text[0] != '{' && text[0] != '[' {
		return nil
	}
	place, err := strconv.Atoi(name)
	if err != nil || strconv.Itoa(place) != name {
		place = -1
	}
	var found []byte
	i := skipSpace(text, 1)
	for n := 0; text[i] != '}' && text[i] != ']'; n++ {
		here := n == place
		if text[0] == '{' {
			end := stringEnd(text, i)
			here = isName(text[i:end], name)
			i = skipSpace(text, skipSpace(text, end)+1) // past the colon
		}
		if here {
			found = text[i:]
		}
		i = skipSpace(text, valueEnd(text, i))
		if text[i] == ',' {
			i = skipSpace(text, i+1)
		}
	}
	return found
}

func isName(quoted []byte, name string) bool {
	if len(quoted) > 6*len(name)+2 { // one byte needs at most six in quoted text
		return false
	}
	var buf [64]byte
	return string(unquoteInto(buf[:0], quoted)) == name
}

func skipSpace(text []byte, i int) int {
	for i < len(text) && (text[i] == ' ' || text[i] == '\t' || text[i] == '\r' || text[i] == '\n') {
		i++
	}
	return i
}

// stringEnd returns the position after the string that begins at i.
func stringEnd(text []byte, i int) int {
	for i++; text[i] != '"'; i++ {
		if text[i] == '\\' {
			i++
		}
	}
	return i + 1
}

// valueEnd returns the position after the value that begins at i.
func valueEnd(text []byte, i int) int {
	switch text[i] {
	case '"':
		return stringEnd(text, i)
	case '{', '[':
		return containerEnd(text, i)
	}
	for i < len(text) && strings.IndexByte(",]} \t\r\n", text[i]) < 0 {
		i++
	}
	return i
}

func containerEnd(text []byte, i int) int {
	for depth := 0; ; {
		switch text[i] {
		case '"':
			i = stringEnd(text, i)
			continue
		case '{', '[':
			depth++
		case '}', ']':
			depth--
		}
		i++
		if depth == 0 {
			return i
		}
	}
}
