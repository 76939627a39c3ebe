package canonical_test

import (
	"encoding/json"
	"math/big"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/postern-gateway/postern/internal/canonical"
)

// exact replaces numbers by fractions in lowest terms, as an independent implementation. Exponents
// of more than four digits, which math/big would expand to megabytes, all count as equal.
func exact(tree any) any {
	switch x := tree.(type) {
	case json.Number:
		if i := strings.IndexAny(string(x), "eE"); i >= 0 && len(strings.TrimLeft(string(x[i+1:]), "+-0")) > 4 {
			return "a number too long for the independent implementation"
		}
		r, _ := new(big.Rat).SetString(string(x))
		return r.String()
	case []any:
		for i := range x {
			x[i] = exact(x[i])
		}
	case map[string]any:
		for k := range x {
			x[k] = exact(x[k])
		}
	}
	return tree
}

func TestNumberText_numbers_haveCanonicalText(t *testing.T) {
	t.Parallel()
	twenty := strings.Repeat("0", 20)
	for in, want := range map[string]string{
		"0": "0", "-0": "0", "0.000": "0", "0e99999999999999999999": "0", "-0.0E-5": "0",
		"1": "1", "1.0": "1", "10e-1": "1", "0.1e1": "1", "1e0": "1", "-1.50": "-1.5",
		"1000": "1000", "1e3": "1000", "0.01": "0.01", "1e-2": "0.01", "123.456e1": "1234.56",
		"820982911946154508":          "820982911946154508",
		"9007199254740993":            "9007199254740993",
		"1e20":                        "1" + twenty,
		"1" + twenty:                  "1" + twenty,
		"10" + twenty:                 "1e21",
		"1e21":                        "1e21",
		"100000e16":                   "1e21",
		"12e20":                       "12" + twenty,
		"12e21":                       "12e21",
		"1e-20":                       "0." + twenty[1:] + "1",
		"1e-21":                       "1e-21",
		"0.1e-20":                     "1e-21",
		"5e-324":                      "5e-324",
		"1e999999999999999999":        "1e999999999999999999",
		"1e1000000000000000000":       "1e1000000000000000000",
		"10e999999999999999999":       "1e1000000000000000000",
		"0.1e1000000000000000000":     "0.1e1000000000000000000", // too long an exponent to be computed
		"1e-1000000000000000000":      "1e-1000000000000000000",
		"0.01e-999999999999999998":    "1e-1000000000000000000",
		"1e00000000000000000000005":   "100000",
		"10e99999999999999999999999":  "10e99999999999999999999999",
		"-0.5e-9999999999999999999":   "-0.5e-9999999999999999999",
		strings.Repeat("9", 40):       strings.Repeat("9", 40),
		strings.Repeat("9", 40) + "0": strings.Repeat("9", 40) + "0",
	} {
		v := parse(t, in)
		if got := v.NumberText(); got != want {
			t.Errorf("%s: %q, want %q", in, got, want)
		}
		if got := text(v); got != want {
			t.Errorf("%s: canonical %q, want %q", in, got, want)
		}
	}
	if got := parse(t, `"1"`).NumberText(); got != "" {
		t.Errorf("a string has the number text %q", got)
	}
}

func TestInt64_numbers_areConverted(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]int64{
		"0": 0, "-0.0": 0, "0e99": 0, "0e99999999999999999999": 0, "1e3": 1000, "5.0": 5, "-12": -12, "120e-1": 12,
		"9007199254740993":    9007199254740993,
		"9223372036854775807": 9223372036854775807, "-9223372036854775808": -9223372036854775808,
		"92233720368547758.07e2": 9223372036854775807,
	} {
		if got, ok := parse(t, in).Int64(); !ok || got != want {
			t.Errorf("%s: %d, %v; want %d", in, got, ok, want)
		}
	}
	for _, in := range []string{"1.5", "9223372036854775808", "-9223372036854775809", "1e19", "1e400",
		"1e99999999999999999999", "1e-1", `"1"`, "null", "18446744073709551616"} {
		if got, ok := parse(t, in).Int64(); ok {
			t.Errorf("%s: %d, want none", in, got)
		}
	}
}

// Two numbers have the same text exactly if an independent implementation finds them equal.
func TestNumberText_equalNumbers_haveEqualText(t *testing.T) {
	t.Parallel()
	number := rapid.StringMatching(`-?(0|[1-9][0-9]{0,3})(\.[0-9]{1,3})?([eE][+-]?[0-3]?[0-9])?`)
	rapid.Check(t, func(t *rapid.T) {
		a := number.Draw(t, "a")
		b := rapid.OneOf(number, rapid.SampledFrom(spellings(a))).Draw(t, "b")
		x, _ := new(big.Rat).SetString(a)
		y, _ := new(big.Rat).SetString(b)
		va, err := canonicalNumber(a)
		if err != nil {
			t.Fatal(err)
		}
		vb, err := canonicalNumber(b)
		if err != nil {
			t.Fatal(err)
		}
		if (va == vb) != (x.Cmp(y) == 0) {
			t.Fatalf("%s and %s have the texts %s and %s", a, b, va, vb)
		}
		if z, ok := new(big.Rat).SetString(va); !ok || z.Cmp(x) != 0 {
			t.Fatalf("%s became %s", a, va)
		}
	})
}

// spellings returns other ways to write a number, equal or nearly equal.
func spellings(a string) []string {
	mantissa, exponent, found := strings.Cut(strings.ToLower(a), "e")
	if !found {
		exponent = "0"
	}
	if !strings.Contains(mantissa, ".") {
		mantissa += ".0"
	}
	return []string{mantissa + "00e" + exponent, mantissa + "1e" + exponent, strings.TrimPrefix("-"+mantissa, "--") +
		"e" + exponent}
}

// The end of a text must be where encoding/json finds it, and a text that encoding/json rejects
// must be rejected.
func TestParse_texts_endLikeEncodingJSON(t *testing.T) {
	t.Parallel()
	part := rapid.SampledFrom([]string{"a", "abcdefg", "abcdefgh", "é", "\x7f", "\x80", "\x1f", "\x00", "\n", `"`, `\`,
		`\"`, `\\`, `\u0041`, `\u12`, " ", "!", "#", "[", "]", "\ufffd", "\U0001F600"})
	rapid.Check(t, func(t *rapid.T) {
		text := `["`
		for _, p := range rapid.SliceOfN(part, 0, 12).Draw(t, "parts") {
			text += p
		}
		text += `"]`
		_, err := canonical.Parse([]byte(text))
		var want []string
		if wanted := json.Unmarshal([]byte(text), &want) == nil && utf8.ValidString(text); (err == nil) != wanted {
			t.Fatalf("%q: %v", text, err)
		}
		if err == nil {
			v, _ := canonical.Parse([]byte(text))
			for i, e := range v.Elements() {
				if got, _ := e.Text(); got != want[i] {
					t.Fatalf("%q: %q, want %q", text, got, want[i])
				}
			}
		}
	})
}
