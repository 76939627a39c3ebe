package canonical

import (
	"encoding/binary"
	"math/bits"
	"unicode/utf16"
	"unicode/utf8"
)

// text reads a string whose opening quote is the current byte.
func (r *reader) text() (mark, error) {
	start := r.pos
	var marks mark
	for i := start + 1; i < len(r.src); i++ {
		if i = skipPlain(r.src, i); i == len(r.src) {
			break
		}
		switch c := r.src[i]; {
		case c == '"':
			r.pos = i + 1
			r.add(String, start, marks)
			return marks, nil
		case c == '\\':
			n, bad := escape(r.src[i:])
			if n == 0 {
				return 0, r.syntaxError(i, "not an escape")
			}
			marks |= escaped
			if bad {
				marks |= unstorable
			}
			i += n - 1
		case c < 0x20:
			return 0, r.syntaxError(i, "a control character must be escaped")
		}
	}
	return 0, r.syntaxError(len(r.src), "")
}

// skipPlain returns the position of the first byte from i on that is a quote, a backslash or a
// control character, or is among the last seven bytes. It returns the length if there is none. It
// checks eight bytes at a time, because most of the input is text.
func skipPlain(src []byte, i int) int {
	const ones, highs = 0x0101010101010101, 0x8080808080808080
	for ; i+8 <= len(src); i += 8 {
		w := binary.LittleEndian.Uint64(src[i:])
		quote, slash := w^(ones*'"'), w^(ones*'\\')
		// The lowest set high bit marks the first such byte, because subtraction borrows only from
		// higher bytes.
		if found := ((quote-ones)&^quote | (slash-ones)&^slash | (w-ones*0x20)&^w) & highs; found != 0 {
			return i + bits.TrailingZeros64(found)/8
		}
	}
	return i
}

// escape returns the length of the escape at the start of b, with a surrogate pair as one escape; 0
// if it is invalid. bad means NUL or a lone surrogate.
func escape(b []byte) (n int, bad bool) {
	if len(b) < 2 {
		return 0, false
	}
	if b[1] != 'u' {
		return simpleEscape(b[1])
	}
	unit, ok := hex4(b)
	if !ok {
		return 0, false
	}
	if !utf16.IsSurrogate(unit) {
		return 6, unit == 0
	}
	if low, ok := hex4(b[6:]); ok && utf16.DecodeRune(unit, low) != utf8.RuneError {
		return 12, false
	}
	return 6, true
}

func simpleEscape(c byte) (n int, bad bool) {
	switch c {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return 2, false
	}
	return 0, false
}

// hex4 reads \uXXXX at the start of b.
func hex4(b []byte) (unit rune, ok bool) {
	if len(b) < 6 || b[0] != '\\' || b[1] != 'u' {
		return 0, false
	}
	for _, c := range b[2:6] {
		switch {
		case c >= '0' && c <= '9':
			c -= '0'
		case c >= 'a' && c <= 'f':
			c -= 'a' - 10
		case c >= 'A' && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, false
		}
		unit = unit<<4 | rune(c)
	}
	return unit, true
}

// appendDecoded appends the decoded text of a valid string without its quotes. A lone surrogate
// becomes U+FFFD if replace is set. Otherwise it becomes the three bytes that UTF-8 would use:
// distinct from any text, and ordered.
func appendDecoded(dst, inner []byte, replace bool) []byte {
	for i := 0; i < len(inner); {
		if inner[i] != '\\' {
			dst = append(dst, inner[i])
			i++
			continue
		}
		n, bad := escape(inner[i:])
		r := escapedRune(inner[i : i+n])
		switch {
		case !bad || r == 0:
			dst = utf8.AppendRune(dst, r)
		case replace:
			dst = utf8.AppendRune(dst, utf8.RuneError)
		default:
			dst = append(dst, 0xE0|byte(r>>12), 0x80|byte(r>>6)&0x3F, 0x80|byte(r)&0x3F)
		}
		i += n
	}
	return dst
}

// escapedRune returns the rune of one escape; a lone surrogate is returned as it is.
func escapedRune(b []byte) rune {
	switch b[1] {
	case 'u':
		unit, _ := hex4(b)
		if len(b) == 12 {
			low, _ := hex4(b[6:])
			return utf16.DecodeRune(unit, low)
		}
		return unit
	case 'b':
		return '\b'
	case 'f':
		return '\f'
	case 'n':
		return '\n'
	case 'r':
		return '\r'
	case 't':
		return '\t'
	}
	return rune(b[1])
}

// AppendText appends text, which must be UTF-8, as a JSON string with only the necessary escapes.
func AppendText(dst []byte, text string) []byte { return appendQuoted(dst, text) }

// appendQuoted appends decoded text (lone surrogates as three bytes) as a JSON string with only the
// necessary escapes.
func appendQuoted[T string | []byte](dst []byte, text T) []byte {
	const hex = "0123456789abcdef"
	dst = append(dst, '"')
	for i := 0; i < len(text); i++ {
		c := text[i]
		switch {
		case c == '"' || c == '\\':
			dst = append(dst, '\\', c)
		case c < 0x20:
			dst = appendControl(dst, c)
		case c == 0xED && text[i+1] >= 0xA0: // the text is UTF-8 except for surrogates, so two more bytes follow
			unit := rune(c&0xF)<<12 | rune(text[i+1]&0x3F)<<6 | rune(text[i+2]&0x3F)
			dst = append(dst, '\\', 'u', 'd', hex[unit>>8&0xF], hex[unit>>4&0xF], hex[unit&0xF])
			i += 2
		default:
			dst = append(dst, c)
		}
	}
	return append(dst, '"')
}

func appendControl(dst []byte, c byte) []byte {
	const hex, short = "0123456789abcdef", "\x00\x00\x00\x00\x00\x00\x00\x00btn\x00fr"
	if int(c) < len(short) && short[c] != 0 {
		return append(dst, '\\', short[c])
	}
	return append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&0xF])
}
