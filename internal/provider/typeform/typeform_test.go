package typeform_test

import (
	"bytes"
	"testing"

	"github.com/postern-gateway/postern/internal/provider/providertest"
	"github.com/postern-gateway/postern/internal/provider/typeform"
)

func suite() providertest.Suite {
	return providertest.Suite{
		Provider:  typeform.New(),
		Source:    providertest.Source("typeform", "typeform_new", "typeform_old"),
		Signature: "Typeform-Signature",
		NoKey: providertest.SignAgain(typeform.New(), func(body []byte) []byte {
			return bytes.Replace(body, []byte("event_id"), []byte("other_id"), 1)
		}),
		// printf '{"event_type":"form_response"}' | openssl dgst -sha256 -hmac typeform_vector
		// -binary | base64
		Vectors: []providertest.Vector{{Secret: "typeform_vector", Body: `{"event_type":"form_response"}`,
			Headers: map[string]string{"Typeform-Signature": "sha256=CDGJvoX8QkzWBtn6ymULcP7n0t+2zzy0xFj/Ei4JU3k="}}},
	}
}

func TestProvider_conforms(t *testing.T) {
	t.Parallel()
	providertest.Conform(t, suite())
}

func FuzzIdentify(f *testing.F) { providertest.Fuzz(f, suite()) }
