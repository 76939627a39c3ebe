package signature_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/signature"
)

func TestFind(t *testing.T) {
	t.Parallel()
	r := signature.Request{URL: "https://hooks.example:8443/a%2Fb/?x=1&y=2&y=3&z=&e=%41",
		Body:   []byte(`{"a":{"b":"C","b2":1.50,"t":true,"n":null,"l":["x",{"k":"v"}]},"a.b":"no","d":1,"d":2}`),
		Header: http.Header{"X-One": {"One"}, "X-Two": {"1", "2"}, "X-Empty": {""}}}
	tests := map[string]string{ // empty: nothing is found
		"header:X-One": "One", "header:X-One|lower": "one", "header:X-Two": "", "header:X-Empty": "",
		"header:X-None": "",
		"json:a.b":      "C", "json:a.b|lower": "c", "json:a.b2": "1.50", "json:a.t": "true", "json:a.n": "",
		"json:a":   "",
		"json:a.l": "", "json:a.l.0": "x", "json:a.l.1.k": "v",
		"json:a.l.2": "", "json:a.l.00": "", "json:a.l.-1": "", "json:a.b.c": "", "json:d": "2", "json:nothing": "",
		"query:x": "1", "query:y": "", "query:z": "", "query:e": "A", "query:none": "",
		"path": "/a%2Fb/?x=1&y=2&y=3&z=&e=%41", "method": "POST",
		"url|port":      "https://hooks.example/a%2Fb/?x=1&y=2&y=3&z=&e=%41",
		"url|unescaped": "https://hooks.example:8443/a/b/?x=1&y=2&y=3&z=&e=%41",
		"timestamp":     "", "item:t": "", "form:a": "", "secret": "",
	}
	for ref, want := range tests {
		got, ok := signature.Find(r, signature.MustRef(ref))
		if got != want || ok != (want != "") {
			t.Errorf("%s: %q, %t; want %q", ref, got, ok, want)
		}
	}
	r.Method = "PUT"
	if got, _ := signature.Find(r, signature.MustRef("method")); got != "PUT" {
		t.Errorf("method: %s", got)
	}
}

func TestRef_otherPort(t *testing.T) {
	t.Parallel()
	wantFound(t, "url|port", map[string]string{
		"https://a.example/x?y:1": "https://a.example:443/x?y:1", "http://a.example": "http://a.example:80",
		"HTTPS://a?b":              "HTTPS://a:443?b",
		"https://a.example:8443/x": "https://a.example/x", "https://a:443#b": "https://a#b",
		"https://[::1]/x": "https://[::1]:443/x", "https://[::1]:8443/x": "https://[::1]/x",
		"https://user:pass@a/x": "https://user:pass@a:443/x", "https://user:pass@a:1/x": "https://user:pass@a/x",
		"": "", "no address": "",
	})
}

// wantFound checks what a reference finds in each URL.
func wantFound(t *testing.T, ref string, urls map[string]string) {
	t.Helper()
	for address, want := range urls {
		if got, _ := signature.Find(signature.Request{URL: address}, signature.MustRef(ref)); got != want {
			t.Errorf("%s: %s, want %s", address, got, want)
		}
	}
}

// HubSpot decodes a list of escapes, and no others: neither the percent sign nor a space.
func TestRef_unescapedURL(t *testing.T) {
	t.Parallel()
	const address = "https://a.example/%3a%2F%3F%40%21%24%27%28%29%2a%2C%3B%25%20%2B%253A?x=%3A"
	const want = "https://a.example/:/?@!$'()*,;%25%20%2B%253A?x=:"
	if got, _ := signature.Find(signature.Request{URL: address}, signature.MustRef("url|unescaped")); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestFind_forms(t *testing.T) {
	t.Parallel()
	tests := map[string]struct{ sorted, a string }{
		"b=2&a=1":                      {"a1b2", "1"},
		"":                             {"", ""},
		"a":                            {"a", ""},
		"a=%2B+%41":                    {"a+ A", "+ A"},
		"a=2&a=1&a=2":                  {"a1a2", ""}, // as Twilio's Node SDK does
		"a=1;b=2":                      {"", ""},     // not a form
		"a=%zz":                        {"", ""},
		strings.Repeat("a=1&", 999):    {"a1", ""},
		strings.Repeat("a=1&", 1000):   {"", ""},
		"B=1&a=\u00e9&A=%C3%A9&\xff=0": {"A\u00e9B1a\u00e9\xff0", "\u00e9"},
	}
	for body, want := range tests {
		r := signature.Request{Body: []byte(body)}
		sorted, _ := signature.Find(r, signature.MustRef("sorted_form"))
		a, _ := signature.Find(r, signature.MustRef("form:a"))
		if sorted != want.sorted || a != want.a {
			t.Errorf("%.40q: %q and %q, want %+v", body, sorted, a, want)
		}
	}
}

// The fields of a query are limited like those of a form.
func TestFind_longQuery_isRejected(t *testing.T) {
	t.Parallel()
	for fields, want := range map[int]bool{999: true, 1000: false} {
		r := signature.Request{URL: "https://a.example/?a=1" + strings.Repeat("&b=2", fields)}
		if _, ok := signature.Find(r, signature.MustRef("query:a")); ok != want {
			t.Errorf("%d fields beside it: %t", fields, ok)
		}
	}
}

// slowly finds the same as FindJSON, but parses the whole body first.
func slowly(body []byte, path string) (string, bool) {
	d := json.NewDecoder(strings.NewReader(string(body)))
	d.UseNumber()
	var root any
	if !json.Valid(body) || d.Decode(&root) != nil {
		return "", false
	}
	for _, name := range strings.Split(path, ".") {
		switch at := root.(type) {
		case map[string]any:
			root = at[name]
		case []any:
			n, err := strconv.Atoi(name)
			if err != nil || strconv.Itoa(n) != name || n < 0 || n >= len(at) {
				return "", false
			}
			root = at[n]
		default:
			return "", false
		}
	}
	switch value := root.(type) {
	case string:
		return value, true
	case json.Number:
		return value.String(), true
	case bool:
		return strconv.FormatBool(value), true
	}
	return "", false
}

// hostile returns unverified bodies of a MiB, and how many times their size reading them may
// cost in memory.
func hostile() map[string]hostileBody {
	const size = 1 << 20
	place := in("header:X-H")
	timed := &signature.Scheme{Signature: signature.Layout{In: place}, Timestamp: at("json:a.b", signature.Seconds),
		Message: text("{body}")}
	form := &signature.Scheme{Signature: signature.Layout{In: place}, Message: text("{sorted_form}")}
	return map[string]hostileBody{
		"JSON of short texts":   {timed, "[" + strings.Repeat(`"",`, size/3) + `""]`, 0.5},
		"JSON nested":           {timed, strings.Repeat("[", size), 0.5},
		"JSON of escaped names": {timed, "{" + strings.Repeat(`"\u0061":1,`, size/11) + `"b":1}`, 0.5},
		"JSON of escaped text":  {timed, `{"a":{"b":"` + strings.Repeat(`\u0061`, size/6) + `"}}`, 2.5},
		"form of escapes":       {form, "a=" + strings.Repeat("%41", size/3), 3},
		"form of fields":        {form, strings.Repeat("a=b&", size/4), 0.5},
		"form of long fields":   {form, strings.Repeat("&a="+strings.Repeat("+", size/999), 999), 5},
	}
}

type hostileBody struct {
	scheme *signature.Scheme
	body   string
	most   float64
}

// verify reads the body with three secrets and rejects it.
func (h hostileBody) verify(tb testing.TB) {
	tb.Helper()
	r := signature.Request{Header: http.Header{"X-H": {strings.Repeat("ab", 32)}}, Body: []byte(h.body)}
	if _, err := h.scheme.Verify([][]byte{[]byte("one"), []byte("two"), []byte("three")}, r, 0); err == nil {
		tb.Error("accepted")
	}
}

// Any unverified body costs no more memory than a few times its size. Not parallel, because memory
// is measured for the whole process.
func TestVerify_hostileBodies_areCheap(t *testing.T) {
	for name, h := range hostile() {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		h.verify(t)
		runtime.ReadMemStats(&after)
		size := float64(len(h.body))
		// once for the copy of the text
		if times := float64(after.TotalAlloc-before.TotalAlloc)/size - 1; times > h.most {
			t.Errorf("%s: %.1f times its size", name, times)
		}
	}
}

func TestParseRef(t *testing.T) {
	t.Parallel()
	tests := map[string]signature.Ref{
		"body":                 {Kind: signature.Body},
		"header:x-request-id":  {Kind: signature.Header, Name: "X-Request-Id"},
		"json:data.id|lower":   {Kind: signature.JSON, Name: "data.id", Lower: true},
		"query:data.id":        {Kind: signature.Query, Name: "data.id"},
		"form:a:b":             {Kind: signature.Form, Name: "a:b"},
		"item:0":               {Kind: signature.Item, Name: "0"},
		"url":                  {Kind: signature.URL},
		"url|port":             {Kind: signature.URL, OtherPort: true},
		"url|unescaped|port":   {Kind: signature.URL, OtherPort: true, Unescaped: true},
		"url|lower|port":       {Kind: signature.URL, OtherPort: true, Lower: true},
		"sorted_form":          {Kind: signature.SortedForm},
		"root:data.object|low": {Kind: signature.Root, Name: "data.object|low"},
	}
	for text, want := range tests {
		got, err := signature.ParseRef(text)
		if err != nil || got != want {
			t.Errorf("%s: %+v, %v; want %+v", text, got, err, want)
		}
		again, err := signature.ParseRef(got.String())
		if err != nil || again != got {
			t.Errorf("%s is written as %s, which is %+v, %v", text, got, again, err)
		}
	}
	for _, text := range []string{"", "Body", "header", "header:", "json:|lower", "body:x", "url:x", "body|port",
		"header:A|unescaped", "url|upper", "body |lower", "timestamp:"} {
		if r, err := signature.ParseRef(text); err == nil {
			t.Errorf("%q is %+v", text, r)
		} else if !strings.Contains(err.Error(), fmt.Sprintf("%q", text)) {
			t.Errorf("%q: the error does not show it: %v", text, err)
		}
	}
}

func TestParseTemplate(t *testing.T) {
	t.Parallel()
	values := map[string]string{"body": "B", "header:A": "h", "url": "U", "json:empty": ""}
	find := func(r signature.Ref) (string, bool) {
		s, ok := values[r.String()]
		return s, ok
	}
	tests := map[string]struct{ want, err string }{
		"":                                   {"", ""},
		"v0:{header:A}.{body}":               {"v0:h.B", ""},
		"[id:{header:A};][x:{header:X};]end": {"id:h;end", ""},
		"[{header:A}{header:X}]":             {"", ""},
		"[{json:empty}|]":                    {"|", ""},
		"[plain]":                            {"plain", ""},
		"[]":                                 {"", ""},
		"{{}} [[]]":                          {"{} []", ""},
		"{{{body}}}":                         {"{B}", ""},
		"{body}{header:X}":                   {"B", "header:X is missing"},
		"a\x00\xff{body}":                    {"a\x00\xffB", ""},
	}
	for text, want := range tests {
		template, err := signature.ParseTemplate(text)
		if err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		got, err := template.Expand(find)
		said := ""
		if err != nil {
			said = err.Error()
		}
		if got != want.want || said != want.err || template.String() != text {
			t.Errorf("%q: %q, %v; want %+v", text, got, err, want)
		}
	}
	for _, text := range []string{"{", "{body", "}", "]", "[", "[a", "[a[b]]", "{}", "{nothing}", "{body}}", "[{body}",
		"{bo{dy}", "[[a]"} {
		if template, err := signature.ParseTemplate(text); err == nil {
			t.Errorf("%q is %+v", text, template)
		} else if template.String() != "" {
			t.Errorf("%q: an error and half a template", text)
		}
	}
	refs := text("a{body}[{header:X}b{url}]{body}").Refs()
	if diff := cmp.Diff(in("body", "header:X", "url", "body"), refs); diff != "" {
		t.Error(diff)
	}
}

func TestMust_invalid_panics(t *testing.T) {
	t.Parallel()
	for name, must := range map[string]func(){
		"ref": func() { signature.MustRef("x") }, "template": func() { signature.MustTemplate("{x}") },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("no panic: %s", name)
				}
			}()
			must()
		}()
	}
}
