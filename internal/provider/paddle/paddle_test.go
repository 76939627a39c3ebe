package paddle_test

import (
	"strings"
	"testing"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/paddle"
	"github.com/postern-gateway/postern/internal/provider/providertest"
)

const header = "Paddle-Signature"

func suite() providertest.Suite {
	return providertest.Suite{
		Provider:  paddle.New(),
		Source:    providertest.Source("paddle", "pdl_ntfset_new", "pdl_ntfset_old"),
		Signature: header,
		SignsTime: true,
		NoKey: providertest.SignAgain(paddle.New(),
			providertest.Body(`{"event_type":"customer.created","data":{"id":"ctm_1"}}`)),
		Summaries: summaries,
		// Two destinations receive one event under different notification ids.
		Retries: map[string]string{"ntf_01hv6y1k02s9d6z7k4w8xq2r5t": "ntf_other"},
		// printf '1767258000:{}' | openssl dgst -sha256 -hmac pdl_ntfset_vector
		Vectors: []providertest.Vector{{Secret: "pdl_ntfset_vector", Body: `{}`, At: 1767258000,
			Headers: map[string]string{header: "ts=1767258000;h1=d21e078bfcb98e0aa00227d070e41777a4" +
				"4ece39cdf343f5bdb61fe983e83229"}}},
	}
}

// summaries are bodies with their expected summaries.
var summaries = map[string]string{
	`{"event_id":"e","event_type":"discount_group.updated","occurred_at":"2026-01-01T00:00:00.000001Z",` +
		`"data":{"id":"dsg_1"}}`: "discount_group dsg_1, at 1767225600000001/1000, rank 1",
	`{"event_id":"e","event_type":"product.updated","occurred_at":"2026-01-01T00:00:00.5Z",` +
		`"data":{"id":"pro_1","status":"archived"}}`: "product pro_1, at 1767225600500000/1000, rank 1",
	`{"event_id":"e","event_type":"product.updated","data":{"id":"pro_1"}}`: "product pro_1, partial: " +
		"the event has no version and no time, so its order is unknown",
	`{"event_id":"e","event_type":"api_key_exposure.created","occurred_at":"2026-01-01T00:00:00Z",` +
		`"data":{"id":"a"}}`: "ignored: events of this type are about no object that is mirrored",
}

func TestProvider_conforms(t *testing.T) {
	t.Parallel()
	providertest.Conform(t, suite())
}

// While a secret is replaced there is a signature of each; any right one is accepted, and nothing
// else in the header is.
func TestVerify_severalSignatures_oneMustMatch(t *testing.T) {
	t.Parallel()
	s := suite()
	sample := s.Provider.Samples()[0]
	right := s.Deliver(t, s.Source, sample).Header.Get(header)
	ts, h1, _ := strings.Cut(right, ";")
	wrong := "h1=" + strings.Repeat("0", 64)
	for value, want := range map[string]provider.Reason{
		right:                               "",
		ts + ";" + wrong + ";" + h1:         "",
		ts + ";" + h1 + ";" + wrong:         "",
		ts + ";h2=anything;" + h1:           "",
		ts + ";" + wrong + ";" + wrong:      provider.WrongSignature,
		ts + ";h2=" + h1[len("h1="):]:       provider.MalformedSignature,
		"ts=1;" + ts + ";" + h1:             provider.MalformedSignature,
		h1:                                  provider.MalformedSignature,
		strings.ReplaceAll(right, ";", ","): provider.MalformedSignature,
	} {
		d := s.Deliver(t, s.Source, sample)
		d.Header.Set(header, value)
		if want != "" {
			s.CheckRejected(t, s.Source, d, want, provider.MissingSignature)
		} else if _, err := s.Provider.Verify(s.Source, d); err != nil {
			t.Errorf("%s: %v", value, err)
		}
	}
}

func FuzzIdentify(f *testing.F) { providertest.Fuzz(f, suite()) }
