package api_test

import (
	"errors"
	"strings"
	"testing"
	"unicode"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/api"
	"github.com/postern-gateway/postern/internal/provider/providertest"
)

// Whatever comes is refused in words, or has events that are all named by the sender and can be stored and read; and what is kept of it says the same when it is read again.
func FuzzAccept(f *testing.F) {
	event := `{` + least + `,"subject":"o","time":"2026-07-04T12:30:15Z","data":{"version":1}}`
	f.Add([]byte(event), structured, "", "", "")
	f.Add([]byte("["+event+"]"), batch, "", "", "")
	f.Add([]byte(`{"version":1}`), "application/json", "", "1", "a%20%E2%82%AC")
	f.Add([]byte(`<x/>`), "text/xml; charset=latin1", "", "1", `"a \"b\""`)
	f.Add([]byte(event), "application/json", `"order 1"`, "", "")
	f.Add([]byte(`{"specversion":"1.0","id":"\ud800","source":"\u0000"}`), structured, "k", "", "")
	f.Add([]byte("[[[["), batch, "", "", "%")
	f.Fuzz(func(t *testing.T, body []byte, contentType, key, id, subject string) {
		d := request(string(body))
		for name, value := range map[string]string{"Content-Type": contentType, "Idempotency-Key": key, "Ce-Id": id, "Ce-Subject": subject} {
			if value != "" {
				d.Header[name] = []string{value}
			}
		}
		if id != "" {
			d.Header["Ce-Specversion"], d.Header["Ce-Source"], d.Header["Ce-Type"] = []string{"1.0"}, []string{"/s"}, []string{"com.example.order.updated"}
		}
		p := api.New()
		a, err := p.Accept(source(), d)
		if err != nil {
			var why *provider.Invalid
			if !errors.As(err, &why) || why.Status < 400 || why.Status > 499 || why.Detail == "" {
				t.Fatalf("accept: %v", err)
			}
			return
		}
		providertest.Sound(t, p, source(), a.Delivery)
		events, err := p.Identify(source(), a.Delivery)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range events {
			if e.ContentKey || strings.ContainsFunc(e.Key, unicode.IsControl) {
				t.Fatalf("event %+v", e)
			}
		}
		if a.Bodies != nil {
			alone(t, a, events)
			return
		}
		if again, err := p.Accept(source(), a.Delivery); err == nil {
			if named, err := p.Identify(source(), again.Delivery); err != nil || cmp.Diff(events, named) != "" {
				t.Fatalf("what is kept says something else: %v\n%s", err, cmp.Diff(events, named))
			}
		} else if key == "" { // a key is kept as it is without quotes
			t.Fatalf("what is kept is refused: %v", err)
		}
	})
}
