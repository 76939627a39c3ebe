package twilio_test

import (
	"flag"
	"net/http"
	"net/url"
	"testing"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/declared"
	"github.com/postern-gateway/postern/internal/provider/providertest"
	"github.com/postern-gateway/postern/internal/provider/twilio"
)

var update = flag.Bool("update", false, "write the golden files")

func suite() providertest.Suite {
	return providertest.Suite{
		Provider: twilio.New(),
		Source: &provider.Source{Name: "twilio", URL: "https://hooks.example/webhooks/twilio", Secrets: []provider.Secret{
			{Name: "new", Value: []byte("0123456789abcdef0123456789abcdef")}, {Name: "old", Value: []byte("fedcba9876543210fedcba9876543210")}}},
		Signature: "X-Twilio-Signature",
		NoKey: func(t *testing.T, src *provider.Source, d *provider.Delivery) {
			t.Helper()
			form, err := url.ParseQuery(string(d.Body))
			if err != nil {
				t.Fatal(err)
			}
			form.Del("MessageSid")
			again, err := twilio.New().Sign(src, provider.Sample{Body: []byte(form.Encode())}, d.ReceivedAt)
			if err != nil {
				t.Fatal(err)
			}
			d.Header, d.Body = again.Header, again.Body
		},
		Types: map[string][]string{"com.twilio.messaging.message.sent": {
			"com.twilio.messaging.message.sent", "com.twilio.messaging.message.delivered", "com.twilio.messaging.message.failed"}},
		ContentKeys:  []string{"call.*"},
		EventObjects: true,
		Readable:     []string{"an array"},
		Reply:        &provider.Reply{ContentType: "text/xml; charset=utf-8", Body: []byte(`<?xml version="1.0" encoding="UTF-8"?><Response></Response>`)},
	}
}

func TestConformance(t *testing.T) {
	t.Parallel()
	providertest.Run(t, suite())
}

// Event Streams are signed otherwise: the same, beginning with a list of events.
func TestConformanceOfEventStreams(t *testing.T) {
	t.Parallel()
	s := suite()
	s.Provider = withSamples{twilio.New(), twilio.New().Samples()[7:]}
	s.NoKey = func(t *testing.T, src *provider.Source, d *provider.Delivery) {
		t.Helper()
		again, err := twilio.New().Sign(src, provider.Sample{Body: []byte(`[{"type":"com.twilio.messaging.message.sent","time":"2026-06-01T09:07:00.000Z"}]`)}, d.ReceivedAt)
		if err != nil {
			t.Fatal(err)
		}
		d.Header, d.Body, d.Query = again.Header, again.Body, again.Query
	}
	providertest.Run(t, s)
}

// withSamples is the provider with other samples.
type withSamples struct {
	*declared.Provider
	samples []provider.Sample
}

func (p withSamples) Samples() []provider.Sample { return p.samples }

func TestSamplesAreReadAsBefore(t *testing.T) {
	t.Parallel()
	providertest.Golden(t, suite(), "testdata/samples.golden", *update)
}

func TestSamplesInAnyOrder(t *testing.T) {
	t.Parallel()
	providertest.AnyOrder(t, suite())
}

func FuzzIdentify(f *testing.F) {
	for _, s := range twilio.New().Samples() {
		f.Add(s.Body)
	}
	f.Add([]byte("MessageSid=a&MessageSid=b&SmsStatus=c"))
	f.Add([]byte(`[1,{"id":2},[]]`))
	f.Fuzz(func(t *testing.T, body []byte) {
		providertest.Sound(t, twilio.New(), &provider.Source{}, &provider.Delivery{Header: http.Header{}, Body: body})
	})
}
