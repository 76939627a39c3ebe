package providertest

import (
	"bytes"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
)

// Vector is a delivery that another program signed.
type Vector struct {
	Secret  string
	Headers map[string]string
	Body    string
	// At is the time of receipt in seconds.
	At int64
}

// Source returns a source with two secrets, of which the first signs.
func Source(name, newSecret, oldSecret string) *provider.Source {
	return &provider.Source{Name: name, Secrets: []provider.Secret{
		{Name: "new", Value: []byte(newSecret)}, {Name: "old", Value: []byte(oldSecret)}}}
}

// SignAgain returns a NoKey that edits the body and signs it again.
func SignAgain(p provider.Provider, edit func(body []byte) []byte) func(*testing.T, *provider.Source,
	*provider.Delivery) {
	return func(t *testing.T, src *provider.Source, d *provider.Delivery) {
		t.Helper()
		again, err := p.Sign(src, provider.Sample{Body: edit(d.Body)}, d.ReceivedAt)
		if err != nil {
			t.Fatal(err)
		}
		*d = provider.Delivery{Header: again.Header, Query: again.Query, Body: again.Body, ReceivedAt: d.ReceivedAt}
	}
}

// Without returns an edit that removes a member of a JSON body.
func Without(member string) func(body []byte) []byte {
	return func(body []byte) []byte {
		out, err := provider.EditJSON(body, "", func(root map[string]any) { delete(root, member) })
		if err != nil {
			return body
		}
		return out
	}
}

// Body returns an edit that replaces the whole body.
func Body(text string) func(body []byte) []byte { return func([]byte) []byte { return []byte(text) } }

// Conform runs the suite, compares the samples with testdata/samples.golden, and applies them in
// any order.
func Conform(t *testing.T, s Suite) {
	t.Helper()
	Run(t, s)
	t.Run("samples are read as before", func(t *testing.T) { t.Parallel(); Golden(t, s, "testdata/samples.golden") })
	t.Run("samples in any order", func(t *testing.T) { t.Parallel(); AnyOrder(t, s) })
}

// Fuzz gives arbitrary bodies to CheckSound and to Handshake. The fuzzer also chooses the value of
// the named headers.
func Fuzz(f *testing.F, s Suite, headers ...string) {
	f.Helper()
	seeds := []string{`{"type":1e0,"event":[]}`, `[1,{"id":2},[]]`,
		"payload=%7B%22type%22%3A%22view_closed%22%7D&payload=1"}
	for _, sample := range s.Provider.Samples() {
		seeds = append(seeds, string(sample.Body))
	}
	for _, g := range s.Handshakes {
		seeds = append(seeds, string(g.Sample.Body))
	}
	try := func(t *testing.T, body []byte, text string) {
		d := &provider.Delivery{Header: http.Header{}, Body: body}
		for _, name := range headers {
			d.Header.Set(name, text)
		}
		CheckSound(t, s.Provider, s.Source, d)
		if g, ok := s.Provider.(provider.Handshaker); ok {
			g.Handshake(s.Source, d)
		}
	}
	for _, seed := range seeds {
		if len(headers) > 0 {
			f.Add([]byte(seed), "id")
		} else {
			f.Add([]byte(seed))
		}
	}
	if len(headers) > 0 {
		f.Fuzz(try)
	} else {
		f.Fuzz(func(t *testing.T, body []byte) { try(t, body, "") })
	}
}

// testVectors checks that the provider accepts each delivery of a vector, and rejects it under
// another secret.
func testVectors(t *testing.T, s Suite) {
	for _, v := range s.Vectors {
		d := &provider.Delivery{Header: http.Header{}, Body: []byte(v.Body), ReceivedAt: time.Unix(v.At, 0)}
		for name, value := range v.Headers {
			d.Header.Set(name, value)
		}
		got, err := s.Provider.Verify(s.withSecrets(provider.Secret{Name: "vector", Value: []byte(v.Secret)}), d)
		if err != nil || s.SignsTime && got.SignedAt.Unix() != v.At {
			t.Errorf("verify %s: %+v, %v", v.Body, got, err)
		}
		s.CheckRejected(t, s.withSecrets(unknownSecret), d, provider.WrongSignature)
	}
}

// testSummaries checks that the provider reads each body as its summary says.
func testSummaries(t *testing.T, s Suite) {
	for body, want := range s.Summaries {
		d := &provider.Delivery{Header: http.Header{}, Body: []byte(body), ReceivedAt: time.Unix(1767312000, 0)}
		e, o, err := s.Observed(t, d)
		got := Summary(o, err)
		if strings.HasPrefix(want, e.Type+": ") {
			got = e.Type + ": " + got
		}
		if got != want {
			t.Errorf("%s\n got %s\nwant %s", body, got, want)
		}
	}
}

// testRetries checks that a retry which differs from the first sample in one text is the same
// event.
func testRetries(t *testing.T, s Suite) {
	first := s.firstDelivery(t)
	for text, replacement := range s.Retries {
		retried := *first
		retried.Body = bytes.Replace(first.Body, []byte(text), []byte(replacement), 1)
		if slices.Equal(retried.Body, first.Body) {
			t.Fatalf("the first sample has no %s", text)
		}
		a, b := s.identified(t, first)[0], s.identified(t, &retried)[0]
		if a.Key != b.Key || a.Fingerprint != b.Fingerprint {
			t.Errorf("with %s instead of %s: %+v and %+v", replacement, text, a, b)
		}
	}
}
