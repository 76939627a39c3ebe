package signature_test

import (
	"bytes"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/signature"
)

// BenchmarkVerify proves an ordinary delivery: a dated header, 2.4 KB of JSON.
func BenchmarkVerify(b *testing.B) {
	r := signature.Request{Header: http.Header{}, Body: bytes.Repeat([]byte(`{"id":"evt"}`), 200), ReceivedAt: time.Unix(signedAt, 0)}
	if err := dated.Sign([]byte(datedKey), &r, r.ReceivedAt); err != nil {
		b.Fatal(err)
	}
	secrets := [][]byte{[]byte(datedKey)}
	b.SetBytes(int64(len(r.Body)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := dated.Verify(secrets, r, 0); err != nil {
			b.Fatal(err)
		}
	}
}

func hostile(b *testing.B, s *signature.Scheme, body string) {
	b.Helper()
	r := signature.Request{Header: http.Header{"X-H": {strings.Repeat("ab", 32)}}, Body: []byte(body)}
	b.SetBytes(int64(len(r.Body)))
	b.ReportAllocs()
	for b.Loop() {
		_, _ = s.Verify([][]byte{[]byte("secret")}, r, 0)
	}
}

func BenchmarkHostile(b *testing.B) {
	in := []signature.Ref{signature.MustRef("header:X-H")}
	inJSON := &signature.Scheme{Signature: signature.Layout{In: in}, Timestamp: &signature.Clock{From: signature.MustRef("json:a.b")}, Message: signature.MustTemplate("{body}")}
	form := &signature.Scheme{Signature: signature.Layout{In: in}, Message: signature.MustTemplate("{sorted_form}")}
	const size = 4 << 20
	bodies := map[string]string{
		"short strings": "[" + strings.Repeat(`"",`, size/3) + `""]`,
		"nested":        strings.Repeat("[", size),
		"keys":          "{" + strings.Repeat(`"\u0061":1,`, size/11) + `"b":1}`,
		"one string":    `"` + strings.Repeat("x", size) + `"`,
	}
	for name, body := range bodies {
		b.Run("json "+name, func(b *testing.B) { hostile(b, inJSON, body) })
	}
	forms := map[string]string{"escapes": "a=" + strings.Repeat("%41", size/3), "fields": strings.Repeat("a=b&", size/4), "999": strings.Repeat("&a="+strings.Repeat("+", size/999), 999)}
	for name, body := range forms {
		b.Run("form "+name, func(b *testing.B) { hostile(b, form, body) })
	}
}
