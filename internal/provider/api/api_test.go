package api_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/api"
	"github.com/postern-gateway/postern/internal/provider/providertest"
)

func source() *provider.Source {
	return &provider.Source{Name: "api", Secrets: []provider.Secret{{Name: "new", Value: []byte("api_test_new")},
		{Name: "old", Value: []byte("api_test_old")}}}
}

func suite() providertest.Suite {
	return providertest.Suite{
		Provider:       api.New(),
		Source:         source(),
		Signature:      "Authorization",
		BodyNotCovered: "The token does not protect the body",
		Readable:       []string{"an array"},
		NoKey: func(t *testing.T, src *provider.Source, d *provider.Delivery) {
			t.Helper()
			body, err := provider.EditJSON(d.Body, "", func(root map[string]any) { delete(root, "id") })
			if err != nil {
				t.Fatal(err)
			}
			d.Body = body
		},
	}
}

func TestProvider_conforms(t *testing.T) {
	t.Parallel()
	providertest.Conform(t, suite())
}

// The word before the token may have any case, and must be followed by the token only.
func TestVerify_authorizationHeaders_areChecked(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]provider.Reason{
		"Bearer api_test_new":              "",
		"bearer api_test_old":              "",
		"BEARER api_test_new":              "",
		"Bearer api_test_NEW":              provider.WrongSignature,
		"Bearer  api_test_new":             provider.WrongSignature,
		"Bearer api_test_new ":             provider.WrongSignature,
		"Bearer ":                          provider.WrongSignature,
		"Bearer":                           provider.MalformedSignature,
		"api_test_new":                     provider.MalformedSignature,
		"Basic YXBpX3Rlc3RfbmV3":           provider.MalformedSignature,
		"Token api_test_new":               provider.MalformedSignature,
		"":                                 provider.MissingSignature,
		"Bearer api_test_new, api_test_x":  provider.WrongSignature,
		"Bearer api_test_newapi_test_new":  provider.WrongSignature,
		"Bearer api_test_new\x00":          provider.WrongSignature,
		"Bearer \"api_test_new\"":          provider.WrongSignature,
		"Bearer YXBpX3Rlc3RfbmV3":          provider.WrongSignature,
		"Bearer api_test_new api_test_new": provider.WrongSignature,
	} {
		d := &provider.Delivery{Header: http.Header{"Authorization": {value}}, Body: []byte("{}"),
			ReceivedAt: time.Unix(1783168215, 0)}
		if want == "" {
			if _, err := api.New().Verify(source(), d); err != nil {
				t.Errorf("%q: %v", value, err)
			}
			if d.Header.Get("Authorization") != value {
				t.Errorf("%q: the delivery was changed", value)
			}
			continue
		}
		suite().CheckRejected(t, source(), d, want)
	}
	for _, name := range api.New().Headers() {
		if name == "Authorization" {
			t.Error("the token is stored")
		}
	}
}

// Every delivery is rejected with a message, or its events have the sender's keys and can be stored
// and read. The stored delivery gives the same events again.
func FuzzAccept(f *testing.F) {
	event := `{` + minimalEvent + `,"subject":"o","time":"2026-07-04T12:30:15Z","data":{"version":1}}`
	f.Add([]byte(event), structured, "", "", "")
	f.Add([]byte("["+event+"]"), batch, "", "", "")
	f.Add([]byte(`{"version":1}`), "application/json", "", "1", "a%20%E2%82%AC")
	f.Add([]byte(`<x/>`), "text/xml; charset=latin1", "", "1", `"a \"b\""`)
	f.Add([]byte(event), "application/json", `"order 1"`, "", "")
	f.Add([]byte(`{"specversion":"1.0","id":"\ud800","source":"\u0000"}`), structured, "k", "", "")
	f.Add([]byte("[[[["), batch, "", "", "%")
	f.Fuzz(func(t *testing.T, body []byte, contentType, key, id, subject string) {
		d := request(string(body))
		for name, value := range map[string]string{"Content-Type": contentType, "Idempotency-Key": key,
			"Ce-Id":      id,
			"Ce-Subject": subject} {
			if value != "" {
				d.Header[name] = []string{value}
			}
		}
		if id != "" {
			d.Header["Ce-Specversion"], d.Header["Ce-Source"], d.Header["Ce-Type"] = []string{"1.0"}, []string{"/s"},
				[]string{"com.example.order.updated"}
		}
		p := api.New()
		a, err := p.Accept(source(), d)
		if err != nil {
			var why *provider.InvalidDelivery
			if !errors.As(err, &why) || why.Status < 400 || why.Status > 499 || why.Detail == "" {
				t.Fatalf("accept: %v", err)
			}
			return
		}
		providertest.CheckSound(t, p, source(), a.Delivery)
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
			checkSingleEvents(t, a, events)
			return
		}
		if again, err := p.Accept(source(), a.Delivery); err == nil {
			if identified, err := p.Identify(source(), again.Delivery); err != nil ||
				cmp.Diff(events, identified) != "" {
				t.Fatalf("the stored delivery gives other events: %v\n%s", err, cmp.Diff(events, identified))
			}
		} else if key == "" { // a key is stored without quotes
			t.Fatalf("the stored delivery is rejected: %v", err)
		}
	})
}
