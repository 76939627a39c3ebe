package canonical_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/postern-gateway/postern/internal/canonical"
)

func canonicalNumber(text string) (string, error) {
	v, err := canonical.Parse([]byte(text))
	return v.NumberText(), err
}

func TestAppendCanonical_values_haveCanonicalText(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		` { "b" : 1 , "a" : [ true , false , null ] } `: `{"a":[true,false,null],"b":1}`,
		`{"a":1,"b":2,"a":3}`:                           `{"a":3,"b":2}`,
		`{"a":1,"\u0061":3}`:                            `{"a":3}`,
		`{"\u00e9":1,"e":2,"z":3}`:                      `{"e":2,"z":3,"é":1}`,
		`{"":1}`:                                        `{"":1}`,
		`{}`:                                            `{}`,
		`[]`:                                            `[]`,
		`"\u0041\/\"\\"`:                                `"A/\"\\"`,
		`"\u0008\u0009\u000a\u000c\u000d\u000B\u001f"`: `"\b\t\n\f\r\u000b\u001f"`,
		`"\u0000"`:             `"\u0000"`,
		`"\ud83d\ude00"`:       `"😀"`,
		`"\uD800"`:             `"\ud800"`,
		`"\udfff\ud800x"`:      `"\udfff\ud800x"`,
		`"\ud800\ud83d\ude00"`: `"\ud800😀"`,
		`"\ud800\n"`:           `"\ud800\n"`,
		`"\ud800\u0041"`:       `"\ud800A"`,
		`"\ud7ff\ue000\uFFFD"`: "\"\ud7ff\ue000\uFFFD\"",
		`{"\ud800":1,"\ud801":2,"\ud800":3,"\uffff":4}`: `{"\ud800":3,"\ud801":2,"` + "\uffff" + `":4}`,
		"\"\u2028\x7f<>&\"":                             "\"\u2028\x7f<>&\"",
	} {
		if got := text(parse(t, in)); got != want {
			t.Errorf("%s: %s, want %s", in, got, want)
		}
	}
}

func TestAppendCanonical_options_leaveOutMembers(t *testing.T) {
	t.Parallel()
	const in = `{"a":null,"b":{"c":null,"d":[null,{"e":null}]},"f":1,"f":null,` +
		`"g.h":{"i":1},"g":{"h":2,"j":3},"":{"k":1}}`
	for _, c := range []struct {
		o    canonical.Options
		want string
	}{
		{canonical.Options{DropNull: true}, `{"":{"k":1},"b":{"d":[null,{}]},"g":{"h":2,"j":3},"g.h":{"i":1}}`},
		{canonical.Options{Without: []string{"b", "g.h", ".k", "nowhere", "f"}}, `{"":{},"a":null,"g":{"j":3}}`},
		{canonical.Options{Without: []string{"g.h.i", "b.d.e", "a", "f", "gg"}},
			`{"":{"k":1},"b":{"c":null,"d":[null,{}]},"g":{"h":2,"j":3},"g.h":{}}`},
	} {
		if got := string(parse(t, in).AppendCanonical(nil, c.o)); got != c.want {
			t.Errorf("%+v: %s, want %s", c.o, got, c.want)
		}
	}
	const near = `{"g":{"":1,"gg":2}}`
	if got := string(parse(t, near).AppendCanonical(nil, canonical.Options{Without: []string{"gg", "g.g"}})); got !=
		near {
		t.Errorf("paths that only begin alike left %s of %s", got, near)
	}
}

func TestAppendCanonical_prefix_isKept(t *testing.T) {
	t.Parallel()
	if got := string(parse(t, "[1]").AppendCanonical([]byte("x"), canonical.Options{})); got != "x[1]" {
		t.Errorf("appended to %q", got)
	}
	var none *canonical.Value
	if got := text(none); got != "null" {
		t.Errorf("a missing value is written as %q", got)
	}
}

func TestSum_equalValues_haveEqualSums(t *testing.T) {
	t.Parallel()
	a, b := parse(t, `{"x":1.0,"y":{"z":null}}`), parse(t, `{ "y":{}, "x":10e-1 }`)
	drop := canonical.Options{DropNull: true}
	if a.Sum(drop) != b.Sum(drop) {
		t.Error("values that differ in a null member have different sums with DropNull")
	}
	if a.Sum(canonical.Options{}) == b.Sum(canonical.Options{}) {
		t.Error("a null member does not change the sum")
	}
}

// document draws a JSON text with many equal keys and different spellings.
func document() *rapid.Generator[string] {
	leaf := rapid.SampledFrom([]string{"0", "1", "1.0", "10e-1", "-0", "null", "true", `""`, `"a"`, `"\u0061"`,
		`"\ud800"`, `"é"`, `"\u0000"`, "1e400"})
	key := rapid.SampledFrom([]string{`"a"`, `"\u0061"`, `"b"`, `"é"`, `"\ud800"`, `"\udc00"`, `"\ufffd"`, `""`,
		`"a.b"`})
	var value func(depth int) *rapid.Generator[string]
	value = func(depth int) *rapid.Generator[string] {
		if depth == 0 {
			return leaf
		}
		return rapid.Custom(func(t *rapid.T) string {
			space := rapid.SampledFrom([]string{"", " ", "\n\t"}).Draw(t, "space")
			switch rapid.IntRange(0, 2).Draw(t, "kind") {
			case 0:
				return leaf.Draw(t, "leaf")
			case 1:
				return "[" + strings.Join(rapid.SliceOfN(value(depth-1), 0, 3).Draw(t, "elements"), space+",") + space +
					"]"
			}
			var members []string
			for range rapid.IntRange(0, 4).Draw(t, "members") {
				members = append(members, space+key.Draw(t, "key")+":"+space+value(depth-1).Draw(t, "value"))
			}
			return "{" + strings.Join(members, ",") + "}"
		})
	}
	return value(3)
}

func TestAppendCanonical_randomValues_isIdempotent(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		in := document().Draw(t, "document")
		v, err := canonical.Parse([]byte(in))
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range []canonical.Options{{}, {DropNull: true}, {Without: []string{"a", "b.a"}}} {
			once := v.AppendCanonical(nil, o)
			canonicalTwice, err := canonical.Parse(once)
			if err != nil {
				t.Fatalf("canonical text of %s: %v", in, err)
			}
			if twice := canonicalTwice.AppendCanonical(nil, o); !bytes.Equal(once, twice) {
				t.Fatalf("the canonical text %s has the canonical text %s", once, twice)
			}
			keysAscend(t, canonicalTwice)
		}
		if v.Kind() != canonicalTwice(v).Kind() {
			t.Fatalf("%s is another kind in canonical form", in)
		}
	})
}

func canonicalTwice(v *canonical.Value) *canonical.Value {
	w, _ := canonical.Parse(v.AppendCanonical(nil, canonical.Options{}))
	return w
}

// keysAscend checks the order of the keys in the text with encoding/json. encoding/json returns
// U+FFFD for each lone surrogate, so other tests compare those.
func keysAscend(t *rapid.T, v *canonical.Value) {
	last := ""
	first := true
	for key, value := range v.Members() {
		if !first && !strings.Contains(key+last, "\uFFFD") && key <= last {
			t.Fatalf("key %q after %q in %s", key, last, v.Raw())
		}
		last, first = key, false
		keysAscend(t, value)
	}
	for _, element := range v.Elements() {
		keysAscend(t, element)
	}
}

func TestValue_accessors_returnContents(t *testing.T) {
	t.Parallel()
	v := parse(t, ` {"s":"a\u00e9\ud800","n":12,"b":true,"f":false,"z":null,"o":{"p":{"q":1},"p":{"q":2}},`+
		`"l":[1,[2],{"x":3}],"\u0061":"escaped"} `)
	got := map[string]string{}
	for key, m := range v.Members() {
		got[key] = m.Kind().String() + " " + string(m.Raw())
	}
	want := map[string]string{
		"s": `string "a\u00e9\ud800"`, "n": "number 12", "b": "boolean true", "f": "boolean false", "z": "null null",
		"o": `object {"p":{"q":1},"p":{"q":2}}`, "l": `array [1,[2],{"x":3}]`, "a": `string "escaped"`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("members (-want +got):\n%s", diff)
	}
	if s, ok := v.Get("s").Text(); !ok || s != "aé\uFFFD" {
		t.Errorf("text %q, %v", s, ok)
	}
	if s, ok := v.Get("a").Text(); !ok || s != "escaped" {
		t.Errorf("text under an escaped key %q, %v", s, ok)
	}
	if n, ok := v.Get("o", "p", "q").Int64(); !ok || n != 2 {
		t.Errorf("last of duplicate keys: %d, %v", n, ok)
	}
	if b, ok := v.Get("b").Bool(); !b || !ok {
		t.Errorf("boolean %v, %v", b, ok)
	}
	if b, ok := v.Get("f").Bool(); b || !ok {
		t.Errorf("boolean %v, %v", b, ok)
	}
	elements := v.Get("l").Elements()
	if len(elements) != 3 || string(elements[1].Raw()) != "[2]" || string(elements[2].Get("x").Raw()) != "3" {
		t.Errorf("elements %v", elements)
	}
}

func TestValue_missing_returnsZeroValues(t *testing.T) {
	t.Parallel()
	v := parse(t, `{"s":"x","l":[1]}`)
	for name, m := range map[string]*canonical.Value{
		"no such key": v.Get("none"), "in a string": v.Get("s", "x"), "in a missing value": v.Get("none", "x"),
		"in an array": v.Get("l", "0"), "nil": nil,
	} {
		_, isText := m.Text()
		_, isInt := m.Int64()
		_, isBool := m.Bool()
		for range m.Members() {
			t.Errorf("%s: has members", name)
		}
		if m != nil || m.Kind() != canonical.Missing || m.Raw() != nil || m.Elements() != nil || m.NumberText() != "" ||
			isText || isInt || isBool || m.Get("x") != nil {
			t.Errorf("%s: %v is not missing", name, m)
		}
	}
	if v.Get() != v {
		t.Error("the empty path returns another value")
	}
	if got := canonical.Missing.String() + canonical.Array.String(); got != "missingarray" {
		t.Errorf("names of kinds: %s", got)
	}
}

// A body with the size and shape of a common event.
func stripeLike() []byte {
	var b strings.Builder
	b.WriteString(`{"id":"evt_1","object":"event","api_version":"2025-01-01","created":1700000000,` +
		`"data":{"object":{"id":"sub_1"`)
	for i := range 60 {
		fmt.Fprintf(&b, `,"field_%02d":{"amount":%d,"live":true,"note":null}`, i*7%60, i*100)
		if i >= 38 {
			break
		}
	}
	b.WriteString(`}},"livemode":false,"pending_webhooks":1,"request":{"id":"req_1","idempotency_key":null},` +
		`"type":"customer.subscription.updated"}`)
	body := b.String()
	if !json.Valid([]byte(body)) {
		panic("the sample is not JSON")
	}
	return []byte(body)
}

func BenchmarkParseAndSum(b *testing.B) {
	body := stripeLike()
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		v, err := canonical.Parse(body)
		if err != nil {
			b.Fatal(err)
		}
		v.Get("data", "object").Sum(canonical.Options{})
	}
}
