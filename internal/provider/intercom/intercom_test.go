package intercom_test

import (
	"bytes"
	"flag"
	"net/http"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/intercom"
	"github.com/postern-gateway/postern/internal/provider/providertest"
)

var update = flag.Bool("update", false, "write the golden files")

func suite() providertest.Suite {
	return providertest.Suite{
		Provider: intercom.New(),
		Source: &provider.Source{Name: "intercom", Secrets: []provider.Secret{
			{Name: "new", Value: []byte("intercom_new")}, {Name: "old", Value: []byte("intercom_old")}}},
		Signature: "X-Hub-Signature",
		NoKey: func(t *testing.T, src *provider.Source, d *provider.Delivery) {
			again, err := intercom.New().Sign(src, provider.Sample{Body: []byte(ping)}, d.ReceivedAt)
			if err != nil {
				t.Fatal(err)
			}
			*d = provider.Delivery{Header: again.Header, Body: again.Body, ReceivedAt: d.ReceivedAt}
		},
		Challenges: []providertest.Challenge{
			{Name: "the address is tried", Ask: &provider.Delivery{Method: http.MethodHead, Header: http.Header{}}, Want: &provider.Reply{}},
			{Name: "GET", Ask: &provider.Delivery{Method: http.MethodGet, Query: "challenge=abc", Header: http.Header{}}},
		},
	}
}

const ping = `{"type":"notification_event","app_id":"wk5h0p1r","data":{"type":"notification_event_data","item":{"type":"ping","message":"hello"}},"id":null,"topic":"ping","delivery_attempts":1,"created_at":1767261601}`

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

// The signature was made with: printf '{}' | openssl dgst -sha1 -hmac intercom_vector
func TestVector(t *testing.T) {
	t.Parallel()
	s := suite()
	src := &provider.Source{Secrets: []provider.Secret{{Name: "vector", Value: []byte("intercom_vector")}}}
	d := &provider.Delivery{Body: []byte(`{}`), Header: http.Header{"X-Hub-Signature": {"sha1=f1c652c7035f22ce3b91c719ec23f17a109808d8"}}}
	if _, err := s.Provider.Verify(src, d); err != nil {
		t.Error(err)
	}
	// Others send a longer digest in this header. It is no signature of Intercom's.
	for _, value := range []string{"f1c652c7035f22ce3b91c719ec23f17a109808d8", "sha256=f1c652c7035f22ce3b91c719ec23f17a109808d8", "sha256=2222222222222222222222222222222222222222222222222222222222222222", "SHA1=f1c652c7035f22ce3b91c719ec23f17a109808d8"} {
		d.Header.Set("X-Hub-Signature", value)
		s.Refused(t, src, d, provider.MissingSignature, provider.MalformedSignature)
	}
}

// A retry counts its deliveries in the body and is the same event.
func TestRetryIsTheSameEvent(t *testing.T) {
	t.Parallel()
	s := suite()
	first := s.Deliver(t, s.Source, s.Provider.Samples()[0])
	retried := *first
	retried.Body = bytes.Replace(first.Body, []byte(`"delivery_attempts": 1`), []byte(`"delivery_attempts": 2`), 1)
	if bytes.Equal(retried.Body, first.Body) {
		t.Fatal("the sample has no number of attempts")
	}
	a, _, _ := s.Observed(t, first)
	b, _, _ := s.Observed(t, &retried)
	if a.Key != b.Key || a.Fingerprint != b.Fingerprint {
		t.Errorf("%+v and its retry %+v", a, b)
	}
}

func TestWhatEventsSay(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]string{
		`{"id":"n","topic":"contact.user.tag.created","data":{"item":{"type":"contact","id":"c","updated_at":1767261601}}}`:               "contact c, at 1767261601000000/1000000, rank 1, own, still",
		`{"id":"n","topic":"contact.user.updated","data":{"item":{"type":"contact","id":"c","updated_at":"1767261601"}}}`:                 "contact c, at 1767261601000000/1000000, rank 1, own, still",
		`{"id":"n","topic":"contact.user.updated","data":{"item":{"type":"contact","id":"c","updated_at":"2026-01-01T10:00:01.000Z"}}}`:   "contact c, at 1767261601000000/1000000, rank 1, own, still",
		`{"id":"n","topic":"contact.user.updated","data":{"item":{"type":"contact","id":"c","updated_at":1767261601123}}}`:                "contact c, at 1767261601123000/1000, rank 1, own, still",
		`{"id":"n","topic":"contact.user.updated","created_at":1767261601,"data":{"item":{"type":"contact","id":"c","updated_at":null}}}`: "contact c, partial: the event carries no version and no time, so it has no place in the order",
		`{"id":"n","topic":"ticket.deleted","data":{"item":{"type":"ticket","id":"54","updated_at":1768212000}}}`:                         "ticket 54, at 1768212000000000/1000000, rank 1, deleted, own, still",
		`{"id":"n","topic":"ticket.deleted","data":{"item":{"type":"ticket","id":"53"}}}`:                                                 "ticket 53, rank 1, deleted, final",
		`{"id":"n","topic":"conversation.admin.closed","data":{"item":{"type":"conversation","id":"1","updated_at":1767261601}}}`:         "conversation 1, at 1767261601000000/1000000, rank 1, own, still, without conversation_parts",
		`{"id":"n","topic":"contact.tag.created","data":{"item":{"type":"contact_tag","tag":{"id":"1"},"contact":{"id":"c"}}}}`:           "ignored: the event names no object where those of its type do",
		`{"id":"n","topic":"admin.logged_in","data":{"item":{"type":"admin","id":"1"}}}`:                                                  "ignored: the event tells what somebody did, no object that is mirrored",
		ping: "ignored: a ping tries the address",
	} {
		s := suite()
		_, o, err := s.Observed(t, &provider.Delivery{Header: http.Header{}, Body: []byte(body), ReceivedAt: time.Unix(1767312000, 0)})
		o.Account = ""
		if got := providertest.Summary(o, err); got != want {
			t.Errorf("%s\n got %s\nwant %s", body, got, want)
		}
	}
}

func FuzzIdentify(f *testing.F) {
	for _, s := range intercom.New().Samples() {
		f.Add(s.Body)
	}
	f.Add([]byte(ping))
	s := suite()
	f.Fuzz(func(t *testing.T, body []byte) {
		providertest.Sound(t, s.Provider, s.Source, &provider.Delivery{Header: http.Header{}, Body: body})
	})
}
