package adyen_test

import (
	"bytes"
	"flag"
	"net/http"
	"testing"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/adyen"
	"github.com/postern-gateway/postern/internal/provider/providertest"
)

var update = flag.Bool("update", false, "write the golden files")

const item = "notificationItems.0.NotificationRequestItem."

func suite() providertest.Suite {
	return providertest.Suite{
		Provider: adyen.New(),
		Source: &provider.Source{Name: "adyen", Secrets: []provider.Secret{
			{Name: "new", Value: []byte("44782DEF547AAA06C910C43932B1EB0C71FC68D9D0C057550C48EC2ACF6BA056")},
			{Name: "old", Value: []byte("009E9E92268087AAD241638D3325201AFA8AAE6E3DCD369B6D32E87129FFAB10")}}},
		InBody:         item + "additionalData.hmacSignature",
		BodyNotCovered: "Only reference, amount, merchant, event code and success are signed",
		Covered: []string{item + "pspReference", item + "merchantAccountCode", item + "merchantReference", item + "amount.value", item + "amount.currency",
			item + "eventCode", item + "success"},
		Types:        map[string][]string{"REFUND": {"REFUND", "REFUND", "CANCELLATION"}},
		EventObjects: true,
		BadSecrets:   []string{"no hexadecimal"},
		Reply:        &provider.Reply{ContentType: "text/plain", Body: []byte("[accepted]")},
		NoKey: func(t *testing.T, src *provider.Source, d *provider.Delivery) {
			body := bytes.Replace(d.Body, []byte(`"success"`), []byte(`"other"`), 1)
			again, err := adyen.New().Sign(src, provider.Sample{Body: body}, d.ReceivedAt)
			if err != nil {
				t.Fatal(err)
			}
			d.Body = again.Body
		},
	}
}

func TestConformance(t *testing.T) {
	t.Parallel()
	providertest.Run(t, suite())
}

func TestSamplesAreReadAsBefore(t *testing.T) {
	t.Parallel()
	providertest.Golden(t, suite(), "testdata/samples.golden", *update)
}

func TestSamplesInAnyOrder(t *testing.T) {
	t.Parallel()
	providertest.AnyOrder(t, suite())
}

// Every notification of a delivery must be signed: one forged among right ones refuses all.
func TestOneForgedAmongRight(t *testing.T) {
	t.Parallel()
	s := suite()
	d := s.Deliver(t, s.Source, s.Provider.Samples()[2])
	if _, err := s.Provider.Verify(s.Source, d); err != nil {
		t.Fatal(err)
	}
	for _, change := range [][2]string{{`"value":9900`, `"value":9901`}, {`"value":250`, `"value":251`}, {`"value":1400`, `"value":1401`}} {
		forged := *d
		forged.Body = bytes.Replace(d.Body, []byte(change[0]), []byte(change[1]), 1)
		if bytes.Equal(forged.Body, d.Body) {
			t.Fatalf("%s is not in %s", change[0], d.Body)
		}
		s.Refused(t, s.Source, &forged, provider.WrongSignature)
	}
}

// The signature was made with: printf '7914073381342284::TestMerchant:TestPayment-1407325143704:1130:EUR:AUTHORISATION:true' |
// openssl dgst -sha256 -mac HMAC -macopt hexkey:44782DEF547AAA06C910C43932B1EB0C71FC68D9D0C057550C48EC2ACF6BA056 -binary | base64
func TestVector(t *testing.T) {
	t.Parallel()
	body := `{"live": "false", "notificationItems": [{"NotificationRequestItem": {"additionalData": {"hmacSignature": "coqCmt/IZ4E3CzPvMY8zTjQVL5hYJUiBRg8UU+iCWo0="},
		"amount": {"currency": "EUR", "value": 1130}, "pspReference": "7914073381342284", "eventCode": "AUTHORISATION", "eventDate": "2019-05-06T17:15:34.121+02:00",
		"merchantAccountCode": "TestMerchant", "merchantReference": "TestPayment-1407325143704", "success": "true"}}]}`
	if _, err := adyen.New().Verify(suite().Source, &provider.Delivery{Header: http.Header{}, Body: []byte(body)}); err != nil {
		t.Error(err)
	}
}

func FuzzIdentify(f *testing.F) {
	for _, s := range adyen.New().Samples() {
		f.Add(s.Body)
	}
	s := suite()
	f.Fuzz(func(t *testing.T, body []byte) {
		providertest.Sound(t, s.Provider, s.Source, &provider.Delivery{Header: http.Header{}, Body: body})
	})
}
