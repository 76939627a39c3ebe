package discord_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/discord"
	"github.com/postern-gateway/postern/internal/provider/providertest"
)

const (
	ping            = `{"version":1,"application_id":"1234560123453231555","type":0}`
	interactionPing = `{"id":"1249210000000000001","application_id":"1234560123453231555","type":1,` +
		`"token":"a-token","version":1}`
)

func suite() providertest.Suite {
	return providertest.Suite{
		Provider:    discord.New(),
		Source:      providertest.Source("discord", "new_for_postern_dev", "old_for_postern_dev"),
		Signature:   "X-Signature-Ed25519",
		SignsTime:   true,
		Tolerance:   15 * time.Minute,
		ContentKeys: []string{"*"},
		BadSecrets:  []string{"public key", publicKey[2:], "whsec_" + publicKey},
		Handshakes: []providertest.Handshake{
			{Name: "webhook events", Sample: provider.Sample{Body: []byte(ping)},
				Want: &provider.Reply{Status: http.StatusNoContent,
					Header: http.Header{"Content-Type": {"application/json"}}}},
			{Name: "interactions", Sample: provider.Sample{Body: []byte(interactionPing)},
				Want: &provider.Reply{ContentType: "application/json", Body: []byte(`{"type":1}`)}},
		},
		Reply: &provider.Reply{Status: http.StatusNoContent},
	}
}

func TestProvider_conforms(t *testing.T) {
	t.Parallel()
	providertest.Conform(t, suite())
}

// A ping signed with openssl: genpkey -algorithm ed25519, pkeyutl -sign -rawin.
const (
	publicKey = "2317e551c20e18f693277e7da193bd630392dc1c606a5173bd5e8ba506b56187"
	signed    = "4c0be29d78f92987d719509c52b8957ef558e5fc522a95fa7b18f4d41945ce03a" +
		"aab4443f5b2dd9717a3a3e94c1f2d2f8d9b931a788139f00b620f326d7ef40d"
)

// Discord tests an address with wrongly signed requests. Each must be rejected; the gateway
// responds 401.
func TestVerify_wrongSignatures_areRejected(t *testing.T) {
	t.Parallel()
	src := &provider.Source{Secrets: []provider.Secret{{Name: "vector", Value: []byte(publicKey)}}}
	delivery := func(signature, timestamp, body string) *provider.Delivery {
		return &provider.Delivery{Body: []byte(body), ReceivedAt: time.Unix(1739923528, 0).Add(time.Minute),
			Header: http.Header{"X-Signature-Timestamp": {timestamp}, "X-Signature-Ed25519": {signature}}}
	}
	right := delivery(signed, "1739923528", ping)
	if v, err := discord.New().Verify(src, right); err != nil || v.Scheme != "discord-ed25519" {
		t.Fatalf("verify: %+v, %v", v, err)
	}
	for name, d := range map[string]*provider.Delivery{
		"zeros":           delivery(strings.Repeat("0", 128), "1739923528", ping),
		"short":           delivery(signed[2:], "1739923528", ping),
		"no hexadecimal":  delivery("g"+signed[1:], "1739923528", ping),
		"nothing":         delivery("", "1739923528", ping),
		"no time":         delivery(signed, "", ping),
		"another time":    delivery(signed, "1739923529", ping),
		"another body":    delivery(signed, "1739923528", strings.Replace(ping, "0}", "1}", 1)),
		"a digit shifted": delivery(signed, "173992352", "8"+ping),
	} {
		if _, err := discord.New().Verify(src, d); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// An interaction is stored under its own id, and differs from a webhook event with the same number.
func TestIdentify_interaction_isStoredUnderItsID(t *testing.T) {
	t.Parallel()
	s := suite()
	d := s.Deliver(t, s.Source,
		provider.Sample{Body: []byte(strings.Replace(interactionPing, `"type":1`, `"type":2`, 1))})
	if got := discord.New().Handshake(s.Source, d); got != nil {
		t.Errorf("a command gets the response to a ping: %+v", got)
	}
	e, o, err := s.Observed(t, d)
	if err != nil || e.Key != "1249210000000000001" || e.ContentKey || e.Type != "interaction.2" || o.Ignored == "" {
		t.Errorf("%+v, %+v, %v", e, o, err)
	}
}

func FuzzIdentify(f *testing.F) { providertest.Fuzz(f, suite()) }
