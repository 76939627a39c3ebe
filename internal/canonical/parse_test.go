package canonical_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/postern-gateway/postern/internal/canonical"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// parse parses a text that must be JSON.
func parse(t testing.TB, text string) *canonical.Value {
	t.Helper()
	v, err := canonical.Parse([]byte(text))
	if err != nil {
		t.Fatalf("parse %q: %v", text, err)
	}
	return v
}

// text returns the canonical text without options.
func text(v *canonical.Value) string {
	return string(v.AppendCanonical(nil, canonical.Options{}))
}

func TestParse_invalidText_isRejected(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		text   string
		offset int
		msg    string
	}{
		{"", 0, "ends too early"},
		{"  \n", 3, "ends too early"},
		{"\xef\xbb\xbf{}", 0, "expected a value"},
		{"{} {}", 3, "unexpected text"},
		{"[1,]", 3, "expected a value"},
		{"[1 2]", 3, "comma or ]"},
		{"[,1]", 1, "expected a value"},
		{"[1", 2, "ends too early"},
		{`{"a" 1}`, 5, "colon"},
		{`{"a":1,}`, 7, "key in quotes"},
		{`{"a":1;"b":2}`, 6, "comma or }"},
		{`{1:2}`, 1, "key in quotes"},
		{`{'a':1}`, 1, "key in quotes"},
		{`"abc`, 4, "ends too early"},
		{"\"a\nb\"", 2, "control character"},
		{"\"\x1f\"", 1, "control character"},
		{`"\x41"`, 1, "not an escape"},
		{`"\u12G4"`, 1, "not an escape"},
		{`"\u12`, 1, "not an escape"},
		{`"\`, 1, "not an escape"},
		{"\"\xff\"", 1, "UTF-8"},
		{"\"ab\xed\xa0\x80\"", 3, "UTF-8"},
		{"\"\xc0\xaf\"", 1, "UTF-8"},
		{"01", 1, "unexpected text"},
		{"-", 1, "ends too early"},
		{"-x", 1, "expected a digit"},
		{"+1", 0, "expected a value"},
		{".5", 0, "expected a value"},
		{"1.", 2, "ends too early"},
		{"1.e3", 2, "expected a digit"},
		{"1e", 2, "ends too early"},
		{"1e+", 3, "ends too early"},
		{"NaN", 0, "expected a value"},
		{"nul", 3, "ends too early"},
		{"nuLl", 2, "expected null"},
		{"truefalse", 4, "unexpected text"},
		{"[1]\x00", 3, "unexpected text"},
		{strings.Repeat("[", canonical.MaxDepth+1), canonical.MaxDepth, "nested deeper"},
		{strings.Repeat(`{"a":`, canonical.MaxDepth+1), 5 * canonical.MaxDepth, "nested deeper"},
	} {
		_, err := canonical.Parse([]byte(c.text))
		var syntax *canonical.SyntaxError
		if !errors.As(err, &syntax) {
			t.Errorf("%.40q: error %v, want a SyntaxError", c.text, err)
			continue
		}
		if syntax.Offset != c.offset || !strings.Contains(syntax.Error(), c.msg) {
			t.Errorf("%.40q: %v, want %q at byte %d", c.text, err, c.msg, c.offset)
		}
	}
}

func TestParse_maxDepth_isAccepted(t *testing.T) {
	t.Parallel()
	deep := strings.Repeat("[", canonical.MaxDepth) + strings.Repeat("]", canonical.MaxDepth)
	if got := text(parse(t, deep)); got != deep {
		t.Errorf("the deepest allowed array has %d bytes, want %d", len(got), len(deep))
	}
}

// An implementation with quadratic time would need hours for these.
func TestParse_longText_takesLinearTime(t *testing.T) {
	t.Parallel()
	const n = 1 << 21
	for name, body := range map[string]string{
		"open brackets in a string": `"` + strings.Repeat("[", n) + `"`,
		"one string of escapes":     `"` + strings.Repeat(`\"`, n/2) + `"`,
		"one long exponent":         "1e" + strings.Repeat("9", n),
		"one long mantissa":         strings.Repeat("9", n) + "." + strings.Repeat("9", n),
		"equal keys":                `{` + strings.Repeat(`"k":0,`, n/6) + `"k":1}`,
		"keys in falling order":     `{` + strings.Repeat(`"z":0,"y":0,"x":0,`, n/18) + `"a":1}`,
		"small elements":            `[` + strings.Repeat("0,", n/2) + `0]`,
	} {
		v, err := canonical.Parse([]byte(body))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got := v.AppendCanonical(nil, canonical.Options{}); len(got) > len(body)+2 {
			t.Errorf("%s: %d bytes became %d", name, len(body), len(got))
		}
	}
}

// A hostile text must not use many times its own size in memory. This test is not parallel, because
// it measures the whole process.
func TestParse_hostileText_usesLittleMemory(t *testing.T) {
	body := []byte(`[` + strings.Repeat("0,", 1<<20) + `0]`)
	got := testing.Benchmark(func(b *testing.B) {
		for range b.N {
			if _, err := canonical.Parse(body); err != nil {
				b.Fatal(err)
			}
		}
	}).AllocedBytesPerOp()
	// 16 bytes of node for each byte of "0,", and the memory that was discarded while the slice
	// grew.
	if limit := int64(96 * len(body)); got > limit {
		t.Errorf("%d bytes of text cost %d bytes of memory, want at most %d", len(body), got, limit)
	}
}

func FuzzParseAgainstEncodingJSON(f *testing.F) {
	for _, seed := range []string{
		`{"a":[1,2.50,-0,1e400],"b":null,"a":"\u00e9\ud83d\ude00"}`, `"\ud800"`, `"\u0000"`, `[[[]]]`, ` tru`,
		`{"":{"":0}}`, "[1e-5 ,0.10]",
		`{"a":1,"a":{"b":2}}`, "\"\\u2028\x7f\"", `1E+2`, "\"\xff\"",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		v, err := canonical.Parse(body)
		if err != nil {
			if json.Valid(body) && bytes.Equal(bytes.ToValidUTF8(body, nil), body) &&
				!strings.Contains(err.Error(), "nested deeper") {
				t.Fatalf("%q is JSON, but: %v", body, err)
			}
			return
		}
		if !json.Valid(body) {
			t.Fatalf("%q is not JSON, but was read", body)
		}
		if len(body) < 1500 && !farExponent.Match(body) && !strings.Contains(text(v), `\ud`) {
			agree(t, body, v)
		}
		canonicalTwice := parse(t, text(v))
		if text(canonicalTwice) != text(v) {
			t.Fatalf("%q: the canonical text %q has another canonical text: %q", body, text(v), text(canonicalTwice))
		}
		stored, sanitized := v.Storable()
		if !sanitized && !bytes.Equal(stored, bytes.Trim(body, " \n\t\r")) {
			t.Fatalf("%q: the storable text %q differs from the source, but sanitized is false", body, stored)
		}
		if _, canonicalTwice := parse(t, string(stored)).Storable(); canonicalTwice {
			t.Fatalf("%q: the storable text %q would be sanitized again", body, stored)
		}
	})
}

// farExponent finds numbers for which an implementation with fractions would need megabytes.
var farExponent = regexp.MustCompile(`[eE][+-]?0*[1-9][0-9]{3}`)

// agree compares what encoding/json reads from the source and from the canonical text.
// encoding/json cannot distinguish lone surrogates, so the text must have none.
func agree(t *testing.T, body []byte, v *canonical.Value) {
	t.Helper()
	want, got := read(t, string(body)), read(t, text(v))
	if a, b := plainText(t, want), plainText(t, got); a != b {
		t.Fatalf("%q: encoding/json reads %s from the source and %s from the canonical text", body, a, b)
	}
}

func read(t *testing.T, text string) (tree any) {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	if err := d.Decode(&tree); err != nil {
		t.Fatalf("encoding/json reads %q: %v", text, err)
	}
	return tree
}

// plainText writes a tree of encoding/json with sorted keys and exact decimals.
func plainText(t *testing.T, tree any) string {
	t.Helper()
	b, err := json.Marshal(exact(tree))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// A released document is reused; texts that were read from it stay unchanged.
func TestRelease_reusedDocument_keepsTexts(t *testing.T) {
	t.Parallel()
	for i := range 1000 {
		text := fmt.Sprintf(`{"n":%d,"s":"text %d","l":[1,{"a":null}]}`, i, i)
		v, err := canonical.Parse([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		inner := v.Get("l")
		s, _ := v.Get("s").Text()
		raw, sum := v.Raw(), v.Sum(canonical.Options{})
		inner.Release()
		canonicalTwice, err := canonical.Parse([]byte(text))
		if err != nil || canonicalTwice.Sum(canonical.Options{}) != sum || s != fmt.Sprintf("text %d", i) ||
			string(raw) != text {
			t.Fatalf("%s, %q, %s, %v", raw, s, canonicalTwice.Raw(), err)
		}
		canonicalTwice.Release()
	}
}
