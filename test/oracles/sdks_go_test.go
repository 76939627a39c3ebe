package oracles_test

import (
	"crypto/ed25519"
	"encoding/hex"
	"encoding/json"
	"errors"
	"strconv"
	"time"

	paddle "github.com/PaddleHQ/paddle-go-sdk/v4"
	"github.com/PagerDuty/go-pagerduty/webhookv3"
	"github.com/bwmarrin/discordgo"
	playbitbucket "github.com/go-playground/webhooks/v6/bitbucket-server"
	playgithub "github.com/go-playground/webhooks/v6/github"
	playgitlab "github.com/go-playground/webhooks/v6/gitlab"
	"github.com/google/go-github/v66/github"
	line "github.com/line/line-bot-sdk-go/v8/linebot/webhook"
	"github.com/mailgun/mailgun-go/v4"
	razorpay "github.com/razorpay/razorpay-go/utils"
	"github.com/sendgrid/sendgrid-go/helpers/eventwebhook"
	"github.com/slack-go/slack"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
	stripe "github.com/stripe/stripe-go/v84/webhook"
	svix "github.com/svix/svix-webhooks/go"
	twilio "github.com/twilio/twilio-go/client"
	"pgregory.net/rapid"

	"github.com/postern-gateway/postern/internal/provider"
)

var five = &window{5 * time.Minute, 5 * time.Minute}

// goSDKs are the SDKs for Go.
func goSDKs() []*oracle {
	return []*oracle{
		{
			sdk: "stripe-go", source: preset("stripe"), keys: stripeKeys, body: raw,
			headers: canonical("Stripe-Signature"),
			ours:    five, theirs: &window{5 * time.Minute, forever},
			sign: func(secret, _ string, d *provider.Delivery, at time.Time) error {
				d.Header.Set("Stripe-Signature",
					stripe.GenerateTestSignedPayload(&stripe.UnsignedPayload{Payload: d.Body, Secret: secret,
						Timestamp: at}).Header)
				return nil
			},
			differs: []difference{severalLines, skippedItem(",", "v1=a=b"), looseTime, twoTimes},
			verify: func(secret, _ string, d *provider.Delivery) bool {
				return stripe.ValidatePayload(d.Body, d.Header.Get("Stripe-Signature"), secret) == nil
			},
		},
		{
			sdk: "standard-webhooks", source: preset("standardwebhooks"), keys: standardKeys, body: raw, ours: five,
			theirs:  five,
			headers: canonical("webhook-signature", "webhook-timestamp", "webhook-id"),
			sign: func(secret, _ string, d *provider.Delivery, at time.Time) error {
				return signStandard(d, "webhook", at, func(id string) (string, error) {
					w, err := standardwebhooks.NewWebhook(secret)
					if err != nil {
						return "", err
					}
					return w.Sign(id, at, d.Body)
				})
			},
			differs: []difference{severalLines, thirdPart, looseClock},
			verify: func(secret, _ string, d *provider.Delivery) bool {
				w, err := standardwebhooks.NewWebhook(secret)
				return err == nil && w.Verify(d.Body, d.Header) == nil
			},
		},
		{
			sdk: "svix", source: preset("standardwebhooks"), keys: standardKeys, body: raw, ours: five, theirs: five,
			headers: canonical("svix-signature", "svix-timestamp", "svix-id"),
			dress:   asSvix,
			sign: func(secret, _ string, d *provider.Delivery, at time.Time) error {
				return signStandard(d, "svix", at, func(id string) (string, error) {
					w, err := svix.NewWebhook(secret)
					if err != nil {
						return "", err
					}
					return w.Sign(id, at, d.Body)
				})
			},
			differs: []difference{severalLines, thirdPart, looseClock},
			verify: func(secret, _ string, d *provider.Delivery) bool {
				w, err := svix.NewWebhook(secret)
				return err == nil && w.Verify(d.Body, d.Header) == nil
			},
		},
		{
			sdk: "go-github", source: preset("github"), keys: textKeys, body: raw,
			headers: canonical("X-Hub-Signature-256"),
			differs: []difference{severalLines},
			verify: func(secret, _ string, d *provider.Delivery) bool {
				_, err := github.ValidatePayload(request(d), []byte(secret))
				return err == nil
			},
		},
		{
			sdk: "go-playground/webhooks/github", source: preset("github"), keys: textKeys, body: objects,
			headers: canonical("X-Hub-Signature-256"),
			differs: []difference{severalLines, upperHex, noPrefix},
			verify: func(secret, _ string, d *provider.Delivery) bool {
				hook, err := playgithub.New(playgithub.Options.Secret(secret))
				if err != nil {
					return false
				}
				_, err = hook.Parse(request(d), playgithub.PushEvent)
				return believed(err, playgithub.ErrMissingHubSignatureHeader, playgithub.ErrHMACVerificationFailed,
					playgithub.ErrParsingPayload)
			},
		},
		{
			sdk: "go-playground/webhooks/gitlab", source: preset("gitlab"), keys: textKeys, body: objects,
			headers: canonical("X-Gitlab-Token"), bodyOpen: true,
			dress:   func(d *provider.Delivery) { d.Header.Set("X-Gitlab-Event", "Push Hook") },
			differs: []difference{severalLines},
			verify: func(secret, _ string, d *provider.Delivery) bool {
				hook, err := playgitlab.New(playgitlab.Options.Secret(secret))
				if err != nil {
					return false
				}
				_, err = hook.Parse(request(d), playgitlab.PushEvents)
				return believed(err, playgitlab.ErrGitLabTokenVerificationFailed)
			},
		},
		{
			sdk: "go-playground/webhooks/bitbucket-server", source: declared("bitbucket"), keys: textKeys,
			body: objects, headers: canonical("X-Hub-Signature"),
			dress:   func(d *provider.Delivery) { d.Header.Set("X-Event-Key", "repo:refs_changed") },
			differs: []difference{severalLines, upperHex, anyPrefix},
			verify: func(secret, _ string, d *provider.Delivery) bool {
				hook, err := playbitbucket.New(playbitbucket.Options.Secret(secret))
				// Of a header shorter than its prefix it would panic.
				if err != nil || d.Header.Get("X-Hub-Signature") != "" &&
					len(d.Header.Get("X-Hub-Signature")) < len("sha256=") {
					return false
				}
				_, err = hook.Parse(request(d), playbitbucket.RepositoryReferenceChangedEvent)
				return believed(err, playbitbucket.ErrMissingHubSignatureHeader,
					playbitbucket.ErrHMACVerificationFailed, playbitbucket.ErrParsingPayload)
			},
		},
		{
			sdk: "slack-go", source: preset("slack"), keys: textKeys, body: raw, headers: canonical("X-Slack-Signature",
				"X-Slack-Request-Timestamp"), ours: five, theirs: five,
			differs: []difference{severalLines},
			verify: func(secret, _ string, d *provider.Delivery) bool {
				v, err := slack.NewSecretsVerifier(d.Header, secret)
				if err != nil {
					return false
				}
				_, err = v.Write(d.Body)
				return err == nil && v.Ensure() == nil
			},
		},
		{
			sdk: "twilio-go, forms", source: preset("twilio"), keys: textKeys, body: forms, same: sameForm,
			headers: canonical("X-Twilio-Signature"),
			url:     true, queries: []string{"", "tenant=7", "a=1&b=2"}, differs: []difference{severalLines},
			verify: verifiedByTwilio,
		},
		{
			sdk: "twilio-go, JSON", source: preset("twilio"), keys: textKeys, body: objects,
			headers: canonical("X-Twilio-Signature"), url: true, differs: []difference{severalLines},
			verify: verifiedByTwilio,
		},
		{
			sdk: "paddle-go-sdk", source: preset("paddle"), keys: textKeys, body: raw,
			headers: canonical("Paddle-Signature"), ours: five, theirs: &window{forever, forever},
			differs: []difference{severalLines, upperHex, skippedItem(";", "h1=00")},
			verify: func(secret, _ string, d *provider.Delivery) bool {
				ok, err := paddle.NewWebhookVerifier(secret).Verify(request(d))
				return ok && err == nil
			},
		},
		{
			sdk: "go-pagerduty", source: declared("pagerduty"), keys: textKeys, body: raw,
			headers: canonical("X-PagerDuty-Signature"),
			differs: []difference{severalLines, emptyItem},
			verify: func(secret, _ string, d *provider.Delivery) bool {
				return webhookv3.VerifySignature(request(d), secret) == nil
			},
		},
		{
			sdk: "line-bot-sdk-go", source: declared("line"), keys: textKeys, body: raw,
			headers: canonical("X-Line-Signature"),
			differs: []difference{severalLines, spareBits},
			verify: func(secret, _ string, d *provider.Delivery) bool {
				return line.ValidateSignature(secret, d.Header.Get("X-Line-Signature"), d.Body)
			},
		},
		{
			sdk: "razorpay-go", source: declared("razorpay"), keys: textKeys, body: raw,
			headers: canonical("X-Razorpay-Signature"),
			differs: []difference{severalLines, upperHex},
			verify: func(secret, _ string, d *provider.Delivery) bool {
				return razorpay.VerifyWebhookSignature(string(d.Body), d.Header.Get("X-Razorpay-Signature"), secret)
			},
		},
		{
			sdk: "sendgrid-go", source: sendgrid, keys: ecdsaKeys, body: raw, ours: five,
			theirs:  &window{forever, forever},
			headers: canonical(eventwebhook.VerificationHTTPHeader, eventwebhook.TimestampHTTPHeader),
			differs: []difference{severalLines, trailing},
			verify: func(secret, _ string, d *provider.Delivery) bool {
				key, err := eventwebhook.ConvertPublicKeyBase64ToECDSA(secret)
				if err != nil {
					return false
				}
				ok, err := eventwebhook.VerifySignature(key, d.Body, d.Header.Get(eventwebhook.VerificationHTTPHeader),
					d.Header.Get(eventwebhook.TimestampHTTPHeader))
				return ok && err == nil
			},
		},
		{
			sdk: "discordgo", source: preset("discord"), keys: ed25519Keys, body: raw,
			headers: canonical("X-Signature-Ed25519", "X-Signature-Timestamp"),
			ours:    &window{15 * time.Minute, 15 * time.Minute}, theirs: &window{forever, forever},
			differs: []difference{severalLines},
			verify: func(secret, _ string, d *provider.Delivery) bool {
				key, err := hex.DecodeString(secret)
				return err == nil && discordgo.VerifyInteraction(request(d), ed25519.PublicKey(key))
			},
		},
		{
			sdk: "mailgun-go", source: preset("mailgun"), keys: textKeys, bodyOpen: true, ours: five,
			theirs: &window{forever, forever},
			body: objectsWith(func(t *rapid.T) map[string]any {
				return map[string]any{"signature": map[string]any{"token": rapid.StringMatching(`[0-9a-f]{50}`).Draw(t,
					"token"), "timestamp": "", "signature": ""}}
			}),
			tamper: func(t *rapid.T, body string) string {
				return tampered(t, body, "signature", "timestamp", "token", "signature")
			},
			verify: func(secret, _ string, d *provider.Delivery) bool {
				var payload mailgun.WebhookPayload
				if json.Unmarshal(d.Body, &payload) != nil {
					return false
				}
				m := mailgun.NewMailgun("shop.example", "none")
				m.SetWebhookSigningKey(secret)
				ok, err := m.VerifyWebhookSignature(payload.Signature)
				return ok && err == nil
			},
		},
	}
}

// believed tells whether an error of a parser says something of the body only, not of the proof.
func believed(err error, refusals ...error) bool {
	for _, refusal := range refusals {
		if errors.Is(err, refusal) {
			return false
		}
	}
	return true
}

// signStandard signs under one of the two families of headers.
func signStandard(d *provider.Delivery, family string, at time.Time, sign func(id string) (string, error)) error {
	const id = "msg_2KWPBgLlAfxdpx2AI54pPJ85f4W"
	text, err := sign(id)
	d.Header.Set(family+"-id", id)
	d.Header.Set(family+"-timestamp", strconv.FormatInt(at.Unix(), 10))
	d.Header.Set(family+"-signature", text)
	return err
}

// asSvix gives a delivery that was signed here the headers of the other family.
func asSvix(d *provider.Delivery) {
	for _, name := range []string{"Id", "Timestamp", "Signature"} {
		if value := d.Header.Get("Webhook-" + name); value != "" {
			d.Header.Set("Svix-"+name, value)
			d.Header.Del("Webhook-" + name)
		}
	}
}

func verifiedByTwilio(secret, url string, d *provider.Delivery) bool {
	v := twilio.NewRequestValidator(secret)
	return v.ValidateBody(url, d.Body, d.Header.Get("X-Twilio-Signature"))
}

// sendgrid is the sender's configuration, which is none of the hmac provider's tests: it signs with
// a key pair.
func sendgrid(t rapid.TB, secret string) *source {
	t.Helper()
	return configured(t, `
sources:
  sendgrid:
    provider: hmac
    secrets: [{name: live, env: SENDGRID_SECRET}]
    scheme:
      method: ecdsa
      encoding: base64
      header: X-Twilio-Email-Event-Webhook-Signature
      message: "{timestamp}{body}"
      timestamp: {from: header:X-Twilio-Email-Event-Webhook-Timestamp}
    events: {split: ".", key: "{json:sg_event_id}", type: "{json:event}"}
`, secret)
}
