package canonical

import "strconv"

const (
	maxZeros    = 20 // maximum number of padding zeros of a canonical number without an exponent
	maxExpInt64 = 18 // exponents with at most this many digits fit int64
)

// decimal is a parsed number: digits × 10^exponent. The digits have no leading or trailing zeros;
// zero has none.
type decimal struct {
	negative bool
	digits   []byte
	exponent int64
	// text is the source of a number whose exponent may not fit int64. It is its canonical form:
	// such numbers are equal only if they are written alike.
	text []byte
}

// split parses the text of a number without loss.
func split(text []byte) decimal {
	d, source := decimal{}, text
	if text[0] == '-' {
		d.negative, text = true, text[1:]
	}
	mantissa, exponent := cutExponent(text)
	var shift int64
	d.digits, shift = join(mantissa)
	if len(d.digits) == 0 {
		return decimal{}
	}
	var ok bool
	if d.exponent, ok = parseExponent(exponent); !ok {
		return decimal{text: source}
	}
	d.exponent += shift
	return d
}

func cutExponent(text []byte) (mantissa, exponent []byte) {
	for i, c := range text {
		if c|0x20 == 'e' {
			return text[:i], text[i+1:]
		}
	}
	return text, nil
}

// join removes the point and the outer zeros of a mantissa; mantissa = digits × 10^shift.
func join(mantissa []byte) (digits []byte, shift int64) {
	digits = mantissa
	for i, c := range mantissa {
		if c == '.' {
			digits = append(append(make([]byte, 0, len(mantissa)), mantissa[:i]...), mantissa[i+1:]...)
			shift = -int64(len(mantissa) - i - 1)
			break
		}
	}
	for len(digits) > 0 && digits[len(digits)-1] == '0' {
		digits = digits[:len(digits)-1]
		shift++
	}
	return trimZeros(digits), shift
}

// parseExponent returns the value of a written exponent, or false if it may not fit int64.
func parseExponent(text []byte) (n int64, ok bool) {
	negative := len(text) > 0 && text[0] == '-'
	if len(text) > 0 && (text[0] == '-' || text[0] == '+') {
		text = text[1:]
	}
	text = trimZeros(text)
	n, _ = strconv.ParseInt("0"+string(text), 10, 64)
	if negative {
		n = -n
	}
	return n, len(text) <= maxExpInt64
}

// append writes the canonical form of the number: without an exponent if at most maxZeros zeros
// must be added, else digits and exponent.
func (d decimal) append(dst []byte) []byte {
	switch {
	case d.text != nil:
		return append(dst, d.text...)
	case len(d.digits) == 0:
		return append(dst, '0')
	}
	if d.negative {
		dst = append(dst, '-')
	}
	point := int64(len(d.digits)) + d.exponent // digits before the point
	switch {
	case d.exponent >= 0 && d.exponent <= maxZeros:
		return appendZeros(append(dst, d.digits...), d.exponent)
	case d.exponent < 0 && point > 0:
		return append(append(append(dst, d.digits[:point]...), '.'), d.digits[point:]...)
	case d.exponent < 0 && point > -maxZeros:
		return append(appendZeros(append(dst, '0', '.'), -point), d.digits...)
	}
	return strconv.AppendInt(append(append(dst, d.digits...), 'e'), d.exponent, 10)
}

func appendZeros(dst []byte, n int64) []byte {
	for ; n > 0; n-- {
		dst = append(dst, '0')
	}
	return dst
}
