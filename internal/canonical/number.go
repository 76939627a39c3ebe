package canonical

import (
	"math"
	"strconv"
)

const (
	maxExponent    = 300  // numbers with a larger exponent, positive or negative, are not passed to jsonb
	maxDigits      = 1000 // numbers with more digits are not passed to jsonb
	plainMaxDigits = 18   // integers with at most this many digits are canonical as they are written
)

// number reads a number whose first byte is the current one.
func (r *reader) number() (mark, error) {
	start := r.pos
	if r.peek() == '-' {
		r.pos++
	}
	integer := r.pos
	if r.peek() == '0' {
		r.pos++
	} else if err := r.digits(); err != nil {
		return 0, err
	}
	whole := r.pos - integer
	digits := whole
	if r.peek() == '.' {
		r.pos++
		at := r.pos
		if err := r.digits(); err != nil {
			return 0, err
		}
		digits += r.pos - at
	}
	exponent, err := r.exponent()
	if err != nil {
		return 0, err
	}
	marks := numberMarks(r.src[start:r.pos], whole, digits, exponent)
	r.add(Number, start, marks)
	return marks & unstorable, nil
}

// numberMarks returns the marks of a number, from its text and the lengths of its parts.
func numberMarks(text []byte, whole, digits int, exponent []byte) mark {
	switch {
	case digits > maxDigits || exponentTooLarge(exponent):
		return unstorable
	case len(exponent) == 0 && digits == whole && digits <= plainMaxDigits && string(text) != "-0":
		return plain
	}
	return 0
}

func (r *reader) digits() error {
	start := r.pos
	for c := r.peek(); c >= '0' && c <= '9'; c = r.peek() {
		r.pos++
	}
	if r.pos == start {
		return r.syntaxError(r.pos, "expected a digit")
	}
	return nil
}

// exponent reads the exponent, if there is one, and returns its digits.
func (r *reader) exponent() ([]byte, error) {
	if r.peek()|0x20 != 'e' {
		return nil, nil
	}
	r.pos++
	if c := r.peek(); c == '+' || c == '-' {
		r.pos++
	}
	start := r.pos
	err := r.digits()
	return r.src[start:r.pos], err
}

// exponentTooLarge parses the digits of an exponent. If there are too many for an int, Atoi returns
// the greatest int.
func exponentTooLarge(digits []byte) bool {
	n, _ := strconv.Atoi("0" + string(digits))
	return n > maxExponent
}

func trimZeros(digits []byte) []byte {
	for len(digits) > 0 && digits[0] == '0' {
		digits = digits[1:]
	}
	return digits
}

// NumberText returns the canonical decimal of a number ("12.5", "1000", "5e-324"), which is the
// same for equal numbers. It returns "" for any other kind. It has an exponent only if the number
// would otherwise need more than 20 padding zeros.
func (v *Value) NumberText() string {
	if v.Kind() != Number {
		return ""
	}
	return string(v.appendNumber(nil))
}

func (v *Value) appendNumber(dst []byte) []byte {
	if v.marks&plain != 0 {
		return append(dst, v.Raw()...)
	}
	return split(v.Raw()).append(dst)
}

// shortInteger returns the value of a plain number.
func shortInteger(raw []byte) (n int64) {
	for _, c := range raw {
		if c != '-' {
			n = n*10 + int64(c-'0')
		}
	}
	if raw[0] == '-' {
		return -n
	}
	return n
}

// Int64 returns the value of a number that is a 64-bit integer, in any format (1e3, 5.0). ok is
// false for any other number or kind.
func (v *Value) Int64() (n int64, ok bool) {
	if v.Kind() != Number {
		return 0, false
	}
	if v.marks&plain != 0 {
		return shortInteger(v.Raw()), true
	}
	d := split(v.Raw())
	if d.text != nil || d.exponent < 0 || int64(len(d.digits))+d.exponent > 19 {
		return 0, false
	}
	text := appendZeros(append([]byte{}, d.digits...), d.exponent)
	u, err := strconv.ParseUint("0"+string(text), 10, 64)
	switch {
	case err != nil:
		return 0, false
	case d.negative:
		return -int64(u), u <= -math.MinInt64
	}
	return int64(u), u <= math.MaxInt64
}
