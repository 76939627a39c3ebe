package signature_test

import (
	"bytes"
	"net/http"
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

// BenchmarkHostile refuses bodies of 4 MiB that are made to cost much.
func BenchmarkHostile(b *testing.B) {
	for name, h := range hostile() {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(h.body)))
			b.ReportAllocs()
			for b.Loop() {
				h.verify(b)
			}
		})
	}
}
