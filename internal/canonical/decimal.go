package canonical

import "strconv"

const (
	maxZeros    = 20 // maximum number of padding zeros of a canonical number without an exponent
	maxExpInt64 = 18 // exponents with at most this many digits are computed as int64
)

// decimal is a parsed number: digits × 10^exponent. The digits have no leading or trailing zeros;
// zero has none.
type decimal struct {
	negative bool
	digits   []byte
	exponent int64
	// longExponent is the text of an exponent that may not fit int64. Such a number is never
	// written without an exponent.
	longExponent []byte
}

// split parses the text of a number without loss.
func split(text []byte) decimal {
	var d decimal
	if text[0] == '-' {
		d.negative, text = true, text[1:]
	}
	mantissa, exponent := cutExponent(text)
	var shift int64
	d.digits, shift = join(mantissa)
	if len(d.digits) == 0 {
		return decimal{}
	}
	d.setExponent(exponent, shift)
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

// setExponent adds shift to the written exponent. An exponent that may not fit int64 is computed as
// text, so any length is exact, in linear time.
func (d *decimal) setExponent(text []byte, shift int64) {
	negative := len(text) > 0 && text[0] == '-'
	if len(text) > 0 && (text[0] == '-' || text[0] == '+') {
		text = text[1:]
	}
	text = trimZeros(text)
	if len(text) <= maxExpInt64 {
		n, _ := strconv.ParseInt("0"+string(text), 10, 64)
		if negative {
			n = -n
		}
		d.exponent = n + shift
		return
	}
	if negative {
		shift = -shift
	}
	d.longExponent = addSmall(text, shift)
	if negative {
		d.longExponent = append([]byte{'-'}, d.longExponent...)
	}
}

// addSmall adds n to a decimal text that is greater than |n|.
func addSmall(text []byte, n int64) []byte {
	sum := append([]byte{'0'}, text...)
	for i := len(sum) - 1; n != 0; i-- {
		n += int64(sum[i] - '0')
		digit := n % 10
		if digit < 0 {
			digit += 10
		}
		sum[i] = byte('0' + digit)
		n = (n - digit) / 10
	}
	return trimZeros(sum)
}

// append writes the canonical form of the number: without an exponent if at most maxZeros zeros
// must be added, else digits and exponent.
func (d decimal) append(dst []byte) []byte {
	if len(d.digits) == 0 {
		return append(dst, '0')
	}
	if d.negative {
		dst = append(dst, '-')
	}
	point := int64(len(d.digits)) + d.exponent // digits before the point
	switch {
	case d.longExponent != nil:
		return append(append(append(dst, d.digits...), 'e'), d.longExponent...)
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
