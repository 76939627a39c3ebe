package signature_test

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/signature"
)

// layouts are the layouts that headers are fuzzed with, each with a correct header for body, signed
// at signedAt.
func layouts(tb testing.TB) (names []string, schemes map[string]*signature.Scheme, right map[string]string) {
	tb.Helper()
	schemes, right = map[string]*signature.Scheme{}, map[string]string{}
	for name, row := range catalogue() {
		place := row.Signature.In[0]
		if place.Kind != signature.Header || row.Method == signature.RSA || row.signsURL() {
			continue
		}
		r := row.delivery(body)
		if err := row.Sign([]byte(demoSecret), &r, time.Unix(signedAt, 0)); err != nil {
			continue // its time is in the body
		}
		names = append(names, name)
		schemes[name] = &row.Scheme
		right[name] = r.Header.Get(strings.Replace(place.Name, "#", "1", 1))
	}
	slices.Sort(names)
	return names, schemes, right
}

// signsURL reports whether a row signs a URL.
func (r row) signsURL() bool {
	return slices.ContainsFunc(r.Message.Refs(), func(ref signature.Ref) bool {
		return slices.Contains([]signature.Kind{signature.URL, signature.Query, signature.Path}, ref.Kind)
	})
}

// For any header and layout: nothing is verified without the secret, with it only a correct
// signature is accepted, and Explain agrees with Verify and shows no secret.
func FuzzHeaders(f *testing.F) {
	names, schemes, right := layouts(f)
	rows := catalogue()
	for i, name := range names {
		f.Add(byte(i), right[name])
		f.Add(byte(i), right[name]+","+right[name]+" "+right[name])
	}
	for i, seed := range []string{"t=,v1=", ",,,", "=", "t=1,t=2", "\x00=\xff", "====", "", "v1,", "sha256=",
		strings.Repeat(" ", 100)} {
		f.Add(byte(3*i), seed)
	}
	f.Fuzz(func(t *testing.T, which byte, header string) {
		name := names[int(which)%len(names)]
		s := schemes[name]
		place := strings.Replace(s.Signature.In[0].Name, "#", "1", 1)
		r := rows[name].delivery(body)
		for _, ref := range append(in("header:X-Slack-Request-Timestamp"), s.Message.Refs()...) {
			if ref.Kind == signature.Header && r.Header.Get(ref.Name) == "" {
				r.Header.Set(ref.Name, "x")
			}
		}
		if s.Timestamp != nil && s.Timestamp.From.Kind == signature.Header {
			signed := r
			signed.Header = http.Header{}
			if err := s.Sign([]byte(demoSecret), &signed, time.Unix(signedAt, 0)); err == nil {
				r.Header.Set(s.Timestamp.From.Name, signed.Header.Get(s.Timestamp.From.Name))
			}
		}
		r.ReceivedAt = time.Unix(signedAt, 0)
		r.Header.Set(place, header)
		if _, err := verify(t, s, [][]byte{[]byte("nobody knows" + signature.DemoSuffix)}, r, 0); err == nil {
			t.Fatalf("%s: %q is accepted with another secret", name, header)
		}
		_, err := verify(t, s, [][]byte{[]byte(demoSecret)}, r, 0)
		if err != nil || s.Method == signature.ECDSA || s.Method == signature.Ed25519 {
			return
		}
		for _, part := range runs.FindAllString(right[name], -1) {
			if !strings.Contains(strings.ToLower(header), strings.ToLower(part)) {
				t.Fatalf("%s: %q is accepted without %s", name, header, part)
			}
		}
	})
}

// A template that can be parsed can be formatted and expanded, and is the same when it is parsed
// again.
func FuzzTemplate(f *testing.F) {
	for _, seed := range []string{"{timestamp}.{body}", "[id:{query:data.id|lower};]ts:{timestamp};", "{{}}[[]]",
		"{url|unescaped|port}", "{", "[{", "[[a]", "}]", "{header:\x00}", "{item:0}|{secret}"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, written string) {
		template, err := signature.ParseTemplate(written)
		if err != nil {
			return
		}
		again, err := signature.ParseTemplate(template.String())
		if err != nil || !slices.Equal(again.Refs(), template.Refs()) {
			t.Fatalf("%q: read again: %v, %v", written, again, err)
		}
		for _, ref := range template.Refs() {
			same, err := signature.ParseRef(ref.String())
			if err != nil || same != ref {
				t.Fatalf("%q: %+v is written %s, and read as %+v, %v", written, ref, ref, same, err)
			}
		}
		all, err := template.Expand(func(signature.Ref) (string, bool) { return "", true })
		if err != nil || len(all) > len(written) {
			t.Fatalf("%q: expanded to %q, %v", written, all, err)
		}
		none, err := template.Expand(func(signature.Ref) (string, bool) { return "", false })
		if err == nil && len(none) > len(all) {
			t.Fatalf("%q: nothing is found and more is written: %q", written, none)
		}
	})
}

// findJSON finds the same as parsing the whole document.
func FuzzFindJSON(f *testing.F) {
	for _, seed := range []string{`{"a":{"b":1},"a":{}}`, `{"a":[1,{"b":"x"}],"\u0061":2}`,
		`{"a":"\ud83d\ude00\ud83d\n\/"}`, "{\"\xff\":1}", `[[[]]]`, `"a"`, `{"a.b":1}`, ` { "a" : -1.5e+3 } `,
		`{"a":1}x`, `{`} {
		f.Add([]byte(seed), "a.b")
		f.Add([]byte(seed), "a")
		f.Add([]byte(seed), "a.1.b")
	}
	for _, seed := range []struct{ name, path, body string }{
		{"last of two", "a", `{"a":1,"a":2}`},
		{"last of two containers has no such name", "a.b", `{"a":{"b":1},"a":{"c":2}}`},
		{"last is no scalar", "a", `{"a":1,"a":[]}`},
		{"escaped name", "a", `{"\u0061":"x"}`},
		{"escaped text", "a", `{"a":"\u00e9\n\/\ud83d\ude00\ud83d"}`},
		{"no UTF-8", "a", "{\"a\":\"\xff\"}"},
		{"no UTF-8 in a name", "a\ufffd", "{\"a\xff\":\"x\"}"},
		{"number at the end", "a", `{"a":1e5}`},
		{"space everywhere", "a.b", " { \"a\" :\t{ \"b\" : \r\n 1 } , \"c\" : [ ] } "},
		{"brackets in texts", "z", `{"x":"}]{[\"","y":["}"],"z":"end"}`},
		{"empty name", "a.", `{"a":{"":"x"}}`},
		{"cut", "a", `{"a":1`},
		{"deep", "a", `{"b":` + strings.Repeat("[", 9000) + strings.Repeat("]", 9000) + `,"a":1}`},
		{"too deep", "a", `{"b":` + strings.Repeat("[", 20000) + strings.Repeat("]", 20000) + `,"a":1}`},
		{"long escaped name is another", "a", `{"\u0061\u0061":"x"}`},
	} {
		f.Add([]byte(seed.body), seed.path)
	}
	f.Fuzz(func(t *testing.T, body []byte, path string) {
		got, ok := signature.FindJSON(body, path)
		if want, wantOK := slowly(body, path); got != want || ok != wantOK {
			t.Fatalf("%q in %q: %q, %t; want %q, %t", path, body, got, ok, want, wantOK)
		}
	})
}

// The values of a form are the same as with net/url, if it has few enough fields.
func FuzzForm(f *testing.F) {
	for _, seed := range []string{"a=1&b=2", "a=1&a=1&a=0", "%41=%zz", "a;b", "&&&", "=", "a", "+=%2B",
		strings.Repeat("a&", 1200)} {
		f.Add(seed, "a")
	}
	f.Fuzz(func(t *testing.T, body, name string) {
		r := signature.Request{Body: []byte(body), URL: "https://a.example/?" + body}
		fields, err := url.ParseQuery(body)
		if err != nil || strings.Count(body, "&") >= 1000 {
			fields = nil
		}
		want := ""
		if len(fields[name]) == 1 {
			want = fields[name][0]
		}
		if got, _ := signature.Find(r, signature.Ref{Kind: signature.Form, Name: name}); got != want {
			t.Fatalf("%q: %q, want %q", name, got, want)
		}
		sorted, ok := signature.Find(r, signature.Ref{Kind: signature.SortedForm})
		if fields == nil && ok {
			t.Fatalf("sorted though it is no form: %q", sorted)
		}
		for name, values := range fields {
			for _, value := range values {
				if !strings.Contains(sorted, name+value) {
					t.Fatalf("%q=%q is not in %q", name, value, sorted)
				}
			}
		}
		// A query is part of a URL, which has its own rules: it must only not panic.
		signature.Find(r, signature.Ref{Kind: signature.Query, Name: name})
		signature.Find(r, signature.Ref{Kind: signature.Path})
		signature.Find(r, signature.Ref{Kind: signature.URL, OtherPort: true, Unescaped: true})
	})
}

// A text that is a valid secret can sign, or returns an error; its signatures are accepted. Any
// other text verifies nothing.
func FuzzSecrets(f *testing.F) {
	for i, seed := range []string{"", "whsec_", standard, base64Key, hexKey, demoSecret, "whpk_AAAA", "whsk_AAAA",
		"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n",
		rsaKey(), strings.Repeat("0", 64), "\xff\x00", "v1,whsec_YQ"} {
		f.Add(byte(i), seed)
		f.Add(byte(7*i), seed)
	}
	forms := []signature.Key{{}, base64d, hexed, whsec, {Form: signature.KeySHA1}, {Form: signature.KeyNFKD},
		prefixOnly, orText}
	methods := []signature.Method{signature.HMAC, signature.Hash, signature.Ed25519, signature.ECDSA, signature.RSA,
		signature.Token}
	f.Fuzz(func(t *testing.T, which byte, secret string) {
		s := signature.Scheme{Name: "fuzzed", Method: methods[int(which)%len(methods)],
			Key:       forms[int(which)/len(methods)%len(forms)],
			Signature: signature.Layout{In: in("header:X-S")}, Message: text("{body}")}
		if s.Method == signature.Hash {
			s.Message = text("{secret}{body}")
		}
		bad := s.CheckSecret([]byte(secret))
		if bad != nil && len(secret) > 6 && strings.Contains(bad.Error(), secret) {
			t.Fatalf("the error contains the secret: %v", bad)
		}
		r := signature.Request{Body: []byte(body), ReceivedAt: time.Unix(signedAt, 0)}
		err := s.Sign([]byte(secret), &r, r.ReceivedAt)
		public := s.Method == signature.Ed25519 || s.Method == signature.ECDSA || s.Method == signature.RSA
		if bad == nil && err != nil && !public || bad != nil && err == nil {
			t.Fatalf("checked: %v; signed: %v", bad, err)
		}
		if err != nil {
			r.Header.Set("X-S", strings.Repeat("00", 32))
		}
		if _, got := s.Verify([][]byte{[]byte(secret)}, r, 0); (got == nil) != (err == nil) {
			t.Fatalf("signed: %v; verified: %v", err, got)
		}
	})
}
