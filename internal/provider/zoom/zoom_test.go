package zoom_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/providertest"
	"github.com/postern-gateway/postern/internal/provider/zoom"
)

const validation = `{"event":"endpoint.url_validation","event_ts":1780304300000,` +
	`"payload":{"plainToken":"qgg8vlvZRS6UYooatFL8Aw"}}`

// The MACs of the token under each secret, made with Python's hmac.
const (
	newAnswer = `{"encryptedToken":"12e253b21c9b153e9deaa3cb66de518a8a05cf30e99b5ee47e25522be5e00f50",` +
		`"plainToken":"qgg8vlvZRS6UYooatFL8Aw"}`
	oldAnswer = `{"encryptedToken":"661de33ce7a30cabd0462858d32c17a4d3daed1ad41938c50e4d2a80c3194025",` +
		`"plainToken":"qgg8vlvZRS6UYooatFL8Aw"}`
)

func suite() providertest.Suite {
	return providertest.Suite{
		Provider:    zoom.New(),
		Source:      providertest.Source("zoom", "zoom_new", "zoom_old"),
		Signature:   "X-Zm-Signature",
		SignsTime:   true,
		ContentKeys: []string{"*"},
		// The signature was made with Python's hmac.
		Vectors: []providertest.Vector{{Secret: "zoom_vector", Body: `{"event":"meeting.started"}`, At: 1739923528,
			Headers: map[string]string{"X-Zm-Request-Timestamp": "1739923528",
				"X-Zm-Signature": "v0=fa537a0657be6aecfa0dda02d7c8bd754a516e49d48752fad008a542132bf326"}}},
		Handshakes: []providertest.Handshake{{Name: "endpoint.url_validation",
			Sample: provider.Sample{Type: "endpoint.url_validation", Body: []byte(validation)},
			Want:   &provider.Reply{ContentType: "application/json", Body: []byte(newAnswer)}}},
	}
}

func TestProvider_conforms(t *testing.T) {
	t.Parallel()
	providertest.Conform(t, suite())
}

// While a secret is replaced, the response uses the secret that signed the request.
func TestHandshake_validation_usesMatchingSecret(t *testing.T) {
	t.Parallel()
	s := suite()
	old := *s.Source
	old.Secrets = s.Source.Secrets[1:]
	d := s.Deliver(t, &old, s.Handshakes[0].Sample)
	if got := zoom.New().Handshake(s.Source, d); got == nil || string(got.Body) != oldAnswer {
		t.Errorf("response %+v, want %s", got, oldAnswer)
	}
}

// An unsigned request gets no MAC, before and after verification, and neither does a text that
// signatures cover.
func TestHandshake_unsignedRequest_getsNoMAC(t *testing.T) {
	t.Parallel()
	s := suite()
	respond := func(body string, change func(http.Header)) *provider.Reply {
		d := s.Deliver(t, s.Source, provider.Sample{Body: []byte(body)})
		change(d.Header)
		return zoom.New().Handshake(s.Source, d)
	}
	unchanged := func(http.Header) {}
	for name, change := range map[string]func(http.Header){
		"unsigned":    func(h http.Header) { h.Del("X-Zm-Signature") },
		"forged":      func(h http.Header) { h.Set("X-Zm-Signature", "v0="+strings.Repeat("0", 64)) },
		"another day": func(h http.Header) { h.Set("X-Zm-Request-Timestamp", "1700000000") },
	} {
		if got := respond(validation, change); got != nil {
			t.Errorf("%s: %s", name, got.Body)
		}
	}
	if respond(validation, unchanged) == nil {
		t.Fatal("a signed request gets no response")
	}
	for _, plain := range []string{`v0:1780304300:{}`, ``, strings.Repeat("a", 129), `a\nb`, `v0:`} {
		if got := respond(strings.Replace(validation, "qgg8vlvZRS6UYooatFL8Aw", plain, 1), unchanged); got != nil {
			t.Errorf("plain token %q: %s", plain, got.Body)
		}
	}
	for _, body := range []string{`{"event":"endpoint.url_validation","payload":{"plainToken":7}}`,
		`{"event":"meeting.started","payload":{"plainToken":"abc"}}`, `[]`, `{`} {
		if got := respond(body, unchanged); got != nil {
			t.Errorf("%s: %s", body, got.Body)
		}
	}
}

func FuzzIdentify(f *testing.F) {
	for _, s := range zoom.New().Samples() {
		f.Add(s.Body)
	}
	f.Add([]byte(validation))
	s := suite()
	f.Fuzz(func(t *testing.T, body []byte) {
		d := &provider.Delivery{Header: http.Header{}, Body: body}
		providertest.CheckSound(t, zoom.New(), &provider.Source{}, d)
		if got := zoom.New().Handshake(s.Source, d); got != nil {
			t.Errorf("an unsigned request gets the response %s", got.Body)
		}
	})
}
