package intercom_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/intercom"
	"github.com/postern-gateway/postern/internal/provider/providertest"
)

func suite() providertest.Suite {
	return providertest.Suite{
		Provider:  intercom.New(),
		Source:    providertest.Source("intercom", "intercom_new", "intercom_old"),
		Signature: "X-Hub-Signature",
		NoKey:     providertest.SignAgain(intercom.New(), providertest.Body(ping)),
		Retries:   map[string]string{`"delivery_attempts": 1`: `"delivery_attempts": 2`},
		Summaries: summaries,
		// printf '{}' | openssl dgst -sha1 -hmac intercom_vector
		Vectors: []providertest.Vector{{Secret: "intercom_vector", Body: `{}`,
			Headers: map[string]string{"X-Hub-Signature": "sha1=" + vector}}},
		Challenges: []providertest.Challenge{
			{Name: "the address is tried", Request: &provider.Delivery{Method: http.MethodHead, Header: http.Header{}},
				Want: &provider.Reply{}},
			{Name: "GET", Request: &provider.Delivery{Method: http.MethodGet, Query: "challenge=abc",
				Header: http.Header{}}},
		},
	}
}

const ping = `{"type":"notification_event","app_id":"wk5h0p1r",` +
	`"data":{"type":"notification_event_data","item":{"type":"ping","message":"hello"}},` +
	`"id":null,"topic":"ping","delivery_attempts":1,"created_at":1767261601}`

// summaries are bodies with their expected summaries.
var summaries = map[string]string{
	`{"id":"n","topic":"contact.user.tag.created",` +
		`"data":{"item":{"type":"contact","id":"c","updated_at":1767261601}}}`: "contact c, " +
		"at 1767261601000000/1000000, rank 1, own, may not advance",
	`{"id":"n","topic":"contact.user.updated",` +
		`"data":{"item":{"type":"contact","id":"c","updated_at":"1767261601"}}}`: "contact c, " +
		"at 1767261601000000/1000000, rank 1, own, may not advance",
	`{"id":"n","topic":"contact.user.updated",` +
		`"data":{"item":{"type":"contact","id":"c","updated_at":"2026-01-01T10:00:01.000Z"}}}`: "contact c, " +
		"at 1767261601000000/1000000, rank 1, own, may not advance",
	`{"id":"n","topic":"contact.user.updated",` +
		`"data":{"item":{"type":"contact","id":"c","updated_at":1767261601123}}}`: "contact c, " +
		"at 1767261601123000/1000, rank 1, own, may not advance",
	`{"id":"n","topic":"contact.user.updated","created_at":1767261601,` +
		`"data":{"item":{"type":"contact","id":"c","updated_at":null}}}`: "contact c, partial: " +
		"the event has no version and no time, so its order is unknown",
	`{"id":"n","topic":"ticket.deleted",` +
		`"data":{"item":{"type":"ticket","id":"54","updated_at":1768212000}}}`: "ticket 54, " +
		"at 1768212000000000/1000000, rank 1, deleted, own, may not advance",
	`{"id":"n","topic":"ticket.deleted","data":{"item":{"type":"ticket","id":"53"}}}`: "ticket 53, " +
		"rank 1, deleted, final",
	`{"id":"n","topic":"conversation.admin.closed",` +
		`"data":{"item":{"type":"conversation","id":"1","updated_at":1767261601}}}`: "conversation 1, " +
		"at 1767261601000000/1000000, rank 1, own, may not advance, without conversation_parts",
	`{"id":"n","topic":"contact.tag.created",` +
		`"data":{"item":{"type":"contact_tag","tag":{"id":"1"},"contact":{"id":"c"}}}}`: "ignored: " +
		"the event has no object type or id, although events of its type should",
	`{"id":"n","topic":"admin.logged_in","data":{"item":{"type":"admin","id":"1"}}}`: "ignored: " +
		"the event describes what a user did, not an object that is mirrored",
	ping: "ignored: a ping tests the address",
}

func TestProvider_conforms(t *testing.T) {
	t.Parallel()
	providertest.Conform(t, suite())
}

const vector = "f1c652c7035f22ce3b91c719ec23f17a109808d8"

// Other senders put a longer digest into this header. It is not a signature of Intercom.
func TestVerify_otherDigest_isRejected(t *testing.T) {
	t.Parallel()
	s := suite()
	for _, value := range []string{vector, "sha256=" + vector, "sha256=" + strings.Repeat("2", 64), "SHA1=" + vector} {
		d := &provider.Delivery{Body: []byte(`{}`), Header: http.Header{"X-Hub-Signature": {value}}}
		src := providertest.Source("intercom", "intercom_vector", "other")
		s.CheckRejected(t, src, d, provider.MissingSignature, provider.MalformedSignature)
	}
}

func FuzzIdentify(f *testing.F) { providertest.Fuzz(f, suite()) }
