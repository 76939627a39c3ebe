package paddle_test

import (
	"bytes"
	"flag"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/paddle"
	"github.com/postern-gateway/postern/internal/provider/providertest"
)

var update = flag.Bool("update", false, "write the golden files")

const header = "Paddle-Signature"

func suite() providertest.Suite {
	return providertest.Suite{
		Provider: paddle.New(),
		Source: &provider.Source{Name: "paddle", Secrets: []provider.Secret{
			{Name: "new", Value: []byte("pdl_ntfset_new")}, {Name: "old", Value: []byte("pdl_ntfset_old")}}},
		Signature: header,
		Dated:     true,
		NoKey: func(t *testing.T, src *provider.Source, d *provider.Delivery) {
			again, err := paddle.New().Sign(src, provider.Sample{Body: []byte(`{"event_type":"customer.created","data":{"id":"ctm_1"}}`)}, d.ReceivedAt)
			if err != nil {
				t.Fatal(err)
			}
			*d = provider.Delivery{Header: again.Header, Body: again.Body, ReceivedAt: d.ReceivedAt}
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

// The signature was made with: printf '1767258000:{}' | openssl dgst -sha256 -hmac pdl_ntfset_vector
func TestVector(t *testing.T) {
	t.Parallel()
	src := &provider.Source{Secrets: []provider.Secret{{Name: "vector", Value: []byte("pdl_ntfset_vector")}}}
	d := &provider.Delivery{Body: []byte(`{}`), ReceivedAt: time.Unix(1767258000, 0), Header: http.Header{header: {"ts=1767258000;h1=d21e078bfcb98e0aa00227d070e41777a44ece39cdf343f5bdb61fe983e83229"}}}
	if v, err := paddle.New().Verify(src, d); err != nil || v.SignedAt.Unix() != 1767258000 {
		t.Errorf("%+v, %v", v, err)
	}
}

// While a secret is replaced there is a signature by each; any that is right counts, and nothing else in the header does.
func TestManySignatures(t *testing.T) {
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
			s.Refused(t, s.Source, d, want, provider.MissingSignature)
		} else if _, err := s.Provider.Verify(s.Source, d); err != nil {
			t.Errorf("%s: %v", value, err)
		}
	}
}

// Two destinations are told of one event under different notifications.
func TestOtherDestinationIsTheSameEvent(t *testing.T) {
	t.Parallel()
	s := suite()
	first := s.Deliver(t, s.Source, s.Provider.Samples()[0])
	other := *first
	other.Body = bytes.Replace(first.Body, []byte("ntf_01hv6y1k02s9d6z7k4w8xq2r5t"), []byte("ntf_other"), 1)
	if bytes.Equal(other.Body, first.Body) {
		t.Fatal("the sample has another notification_id")
	}
	a, _, _ := s.Observed(t, first)
	b, _, _ := s.Observed(t, &other)
	if a.Key != b.Key || a.Fingerprint != b.Fingerprint {
		t.Errorf("%+v and %+v", a, b)
	}
}

func TestWhatEventsSay(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]string{
		`{"event_id":"e","event_type":"discount_group.updated","occurred_at":"2026-01-01T00:00:00.000001Z","data":{"id":"dsg_1"}}`:         "discount_group dsg_1, at 1767225600000001/1000, rank 1",
		`{"event_id":"e","event_type":"product.updated","occurred_at":"2026-01-01T00:00:00.5Z","data":{"id":"pro_1","status":"archived"}}`: "product pro_1, at 1767225600500000/1000, rank 1",
		`{"event_id":"e","event_type":"product.updated","data":{"id":"pro_1"}}`:                                                            "product pro_1, partial: the event carries no version and no time, so it has no place in the order",
		`{"event_id":"e","event_type":"api_key_exposure.created","occurred_at":"2026-01-01T00:00:00Z","data":{"id":"a"}}`:                  "ignored: events of this type concern no object that is mirrored",
	} {
		s := suite()
		_, o, err := s.Observed(t, &provider.Delivery{Header: http.Header{}, Body: []byte(body), ReceivedAt: time.Unix(1767312000, 0)})
		if got := providertest.Summary(o, err); got != want {
			t.Errorf("%s\n got %s\nwant %s", body, got, want)
		}
	}
}

func FuzzIdentify(f *testing.F) {
	for _, s := range paddle.New().Samples() {
		f.Add(s.Body)
	}
	s := suite()
	f.Fuzz(func(t *testing.T, body []byte) {
		providertest.Sound(t, s.Provider, s.Source, &provider.Delivery{Header: http.Header{}, Body: body})
	})
}
