package signature_test

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/signature"
)

// row is one sender's scheme, with a secret to sign with, and a body as it sends them.
type row struct {
	signature.Scheme
	secret string
	body   string
	// bodyUnsigned: the signature does not cover the body.
	bodyUnsigned bool
}

func in(refs ...string) []signature.Ref {
	var out []signature.Ref
	for _, ref := range refs {
		out = append(out, signature.MustRef(ref))
	}
	return out
}

func header(name string) signature.Layout { return prefixed(name, "") }

func prefixed(header, prefix string) signature.Layout {
	return signature.Layout{In: in("header:" + header), Prefix: prefix}
}

func pairs(header, item string) signature.Layout {
	return signature.Layout{In: in("header:" + header), Separator: ",", KeySeparator: "=", Item: item}
}

func at(ref string, unit signature.Unit) *signature.Clock {
	return &signature.Clock{From: signature.MustRef(ref), Unit: unit}
}

func uncheckedAt(ref string, unit signature.Unit) *signature.Clock {
	return &signature.Clock{From: signature.MustRef(ref), Unit: unit, Unchecked: true}
}

var (
	text    = signature.MustTemplate
	base64d = signature.Key{Form: signature.KeyBase64}
	hexed   = signature.Key{Form: signature.KeyHex}
	whsec   = signature.Key{Form: signature.KeyBase64, Strip: []string{"v1,whsec_", "whsec_"}}
	// prefixOnly requires the prefix; orText uses a secret without it verbatim.
	prefixOnly = signature.Key{Form: signature.KeyBase64, Strip: []string{"whsec_"}, RequirePrefix: true}
	orText     = signature.Key{Form: signature.KeyBase64, Strip: []string{"whsec_"}, VerbatimWithoutPrefix: true}
)

const (
	publicURL  = "https://hooks.example:8443/in/a?x=1&data.id=AB-7"
	jsonBody   = `{"id":"evt_1","data":{"id":"obj_1"}}`
	formBody   = "To=%2B18005551212&From=%2B14158675309&Digits=1234&Digits=99"
	base64Key  = "bWFyeSBoYWQgYSBsaXR0bGUgbGFtYiEh"
	standard   = "whsec_" + base64Key
	hexKey     = "00112233445566778899aabbccddeeff"
	demoSecret = "any" + signature.DemoSuffix
	// sendgridKey is the public key of SendGrid's own tests.
	sendgridKey = "MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEEDr2LjtURuePQzplybdC+u4C" +
		"wrqDqBaWjcMMsTbhdbcwHBcepxo7yAQGhHPTnlvFYPAZFceEu/1FwCM/QmGUhA=="
)

// rsaKey is a private key, which is made once.
var rsaKey = sync.OnceValue(func() string {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		panic(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		panic(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
})

// catalogue returns every known sender's scheme, as its documentation describes it.
func catalogue() map[string]row {
	bodyOnly, timeAndBody := text("{body}"), text("{timestamp}.{body}")
	return map[string]row{
		"GitHub":  {Scheme: ofBody(signature.Hex, prefixed("X-Hub-Signature-256", "sha256="))},
		"Shopify": {Scheme: ofBody(signature.Base64, header("X-Shopify-Hmac-Sha256"))},
		"Intercom": {Scheme: signature.Scheme{Digest: signature.SHA1, Signature: prefixed("X-Hub-Signature", "sha1="),
			Message: bodyOnly}},
		"Paystack": {Scheme: signature.Scheme{Digest: signature.SHA512, Signature: header("X-Paystack-Signature"),
			Message: bodyOnly}},
		"Authorize": {Scheme: signature.Scheme{Digest: signature.SHA512, Key: hexed,
			Signature: prefixed("X-Anet-Signature", "sha512="), Message: bodyOnly}, secret: hexKey},
		"Typeform": {Scheme: ofBody(signature.Base64, prefixed("Typeform-Signature", "sha256="))},
		"Airtable": {Scheme: signature.Scheme{Key: base64d,
			Signature: prefixed("X-Airtable-Content-Mac", "hmac-sha256="), Message: bodyOnly}, secret: base64Key},
		"EasyPost": {Scheme: signature.Scheme{Key: signature.Key{Form: signature.KeyNFKD},
			Signature: prefixed("X-Hmac-Signature", "hmac-sha256-hex="), Message: bodyOnly},
			secret: "s\u00e9cret\ufb01"},
		"Teams": {Scheme: signature.Scheme{Key: base64d, Signature: prefixed("Authorization", "HMAC "),
			Encoding: signature.Base64, Message: bodyOnly}, secret: base64Key},
		"LinkedIn": {Scheme: signature.Scheme{Signature: header("X-Li-Signature"), Message: text("hmacsha256={body}")}},
		"Linear": {Scheme: signature.Scheme{Signature: header("Linear-Signature"), Message: bodyOnly,
			Timestamp: &signature.Clock{From: signature.MustRef("json:webhookTimestamp"), Unit: signature.Milliseconds,
				Tolerance: time.Minute}}, body: `{"webhookTimestamp":1}`},
		"PagerDuty": {Scheme: ofBody(signature.Hex, pairs("X-Pagerduty-Signature", "v1"))},
		"CircleCI":  {Scheme: ofBody(signature.Hex, pairs("Circleci-Signature", "v1"))},
		"DocuSign":  {Scheme: ofBody(signature.Base64, header("X-DocuSign-Signature-#"))},
		"Cronofy": {Scheme: ofBody(signature.Base64, signature.Layout{In: in("header:Cronofy-Hmac-Sha256"),
			Separator: ","})},
		"Stripe": {Scheme: signature.Scheme{Signature: pairs("Stripe-Signature", "v1"),
			Timestamp: at("item:t", signature.Seconds), Message: timeAndBody}},
		"WorkOS": {Scheme: signature.Scheme{Signature: signature.Layout{In: in("header:Workos-Signature"),
			Separator: ",", TrimSpaces: true, KeySeparator: "=", Item: "v1"},
			Timestamp: at("item:t", signature.Milliseconds), Message: timeAndBody}},
		"Paddle": {Scheme: signature.Scheme{Signature: signature.Layout{In: in("header:Paddle-Signature"),
			Separator: ";", KeySeparator: "=", Item: "h1"},
			Timestamp: at("item:ts", signature.Seconds), Message: text("{timestamp}:{body}")}},
		"Recurly": {Scheme: signature.Scheme{Signature: signature.Layout{In: in("header:Recurly-Signature"),
			Separator: ",", Skip: 1}, Timestamp: at("item:0", signature.Magnitude), Message: timeAndBody}},
		"Sanity": {Scheme: signature.Scheme{Signature: pairs("Sanity-Webhook-Signature", "v1"),
			Encoding:  signature.Base64URL,
			Timestamp: uncheckedAt("item:t", signature.Milliseconds), Message: timeAndBody}},
		"Persona": {Scheme: signature.Scheme{Signature: signature.Layout{In: in("header:Persona-Signature"), Group: " ",
			Separator: ",", KeySeparator: "=", Item: "v1"},
			Timestamp: at("item:t", signature.Seconds), Message: timeAndBody}},
		"Affirm": {Scheme: signature.Scheme{Digest: signature.SHA512, Signature: pairs("X-Affirm-Signature", "v0"),
			Timestamp: at("item:t", signature.Seconds), Message: timeAndBody}},
		"Knock": {Scheme: signature.Scheme{Signature: pairs("X-Knock-Signature", "s"), Encoding: signature.Base64,
			Timestamp: at("item:t", signature.Milliseconds), Message: timeAndBody}},
		"Buildkite": {Scheme: signature.Scheme{Signature: pairs("X-Buildkite-Signature", "signature"),
			Timestamp: at("item:timestamp", signature.Seconds), Message: timeAndBody}},
		"Mercado Pago": {Scheme: signature.Scheme{Signature: pairs("X-Signature", "v1"),
			Timestamp: uncheckedAt("item:ts", signature.Magnitude),
			Message:   text("[id:{query:data.id|lower};][request-id:{header:X-Request-Id};]ts:{timestamp};")},
			bodyUnsigned: true},
		"Slack": {Scheme: signature.Scheme{Signature: prefixed("X-Slack-Signature", "v0="),
			Timestamp: at("header:X-Slack-Request-Timestamp", signature.Seconds),
			Message:   text("v0:{timestamp}:{body}")}},
		"Box": {Scheme: signature.Scheme{Signature: signature.Layout{In: in("header:BOX-SIGNATURE-PRIMARY",
			"header:BOX-SIGNATURE-SECONDARY")}, Encoding: signature.Base64,
			Timestamp: &signature.Clock{From: signature.MustRef("header:BOX-DELIVERY-TIMESTAMP"),
				Unit: signature.RFC3339, Tolerance: 10 * time.Minute}, Message: text("{body}{timestamp}")}},
		"Klaviyo": {Scheme: signature.Scheme{Signature: header("Klaviyo-Signature"),
			Message: text("{body}{header:Klaviyo-Timestamp}")}},
		"Webflow": {Scheme: signature.Scheme{Signature: header("X-Webflow-Signature"),
			Timestamp: at("header:X-Webflow-Timestamp", signature.Milliseconds), Message: text("{timestamp}:{body}")}},
		"Twitch": {Scheme: signature.Scheme{Signature: prefixed("Twitch-Eventsub-Message-Signature", "sha256="),
			Timestamp: at("header:Twitch-Eventsub-Message-Timestamp", signature.RFC3339),
			Message:   text("{header:Twitch-Eventsub-Message-Id}{timestamp}{body}")}},
		"Standard Webhooks": {Scheme: standardWebhooks(signature.HMAC, "v1", whsec), secret: standard},
		"Standard Webhooks v1a": {Scheme: standardWebhooks(signature.Ed25519, "v1a", signature.Key{}),
			secret: demoSecret},
		"Supabase":    {Scheme: standardWebhooks(signature.HMAC, "v1", whsec), secret: "v1," + standard},
		"OpenAI":      {Scheme: standardWebhooks(signature.HMAC, "v1", orText), secret: "no prefix, no base64"},
		"Polar":       {Scheme: standardWebhooks(signature.HMAC, "v1", signature.Key{}), secret: "polar_whs_x"},
		"Twilio":      {Scheme: twilioForm, body: formBody},
		"Twilio JSON": {Scheme: twilioJSON, body: jsonBody},
		"Square": {Scheme: signature.Scheme{Signature: header("X-Square-Hmacsha256-Signature"),
			Encoding: signature.Base64, Message: text("{url}{body}")}},
		"HubSpot v3": {Scheme: signature.Scheme{Signature: header("X-HubSpot-Signature-v3"),
			Encoding: signature.Base64, Timestamp: at("header:X-HubSpot-Request-Timestamp", signature.Milliseconds),
			Message: text("{method}{url|unescaped}{body}{timestamp}")}},
		"HubSpot v2": {Scheme: hubspot("v2", "{secret}{method}{url}{body}")},
		"HubSpot v1": {Scheme: hubspot("v1", "{secret}{body}")},
		"Trello": {Scheme: signature.Scheme{Digest: signature.SHA1, Signature: header("X-Trello-Webhook"),
			Encoding: signature.Base64, Message: text("{body}{url}")}},
		"Mandrill": {Scheme: signature.Scheme{Digest: signature.SHA1, Signature: header("X-Mandrill-Signature"),
			Encoding: signature.Base64, Message: text("{url}{sorted_form}")}, body: formBody},
		"Deel": {Scheme: signature.Scheme{Signature: header("X-Deel-Signature"), Message: text("POST{body}")}},
		"Adyen item": {Scheme: signature.Scheme{Key: hexed,
			Signature: signature.Layout{In: in("json:additionalData.hmacSignature")}, Encoding: signature.Base64,
			Message: text("{json:pspReference}:[{json:originalReference}]:{json:amount.value}:{json:success}")},
			secret: hexKey, bodyUnsigned: true,
			body: `{"pspReference":"7914","amount":{"value":1130,"currency":"EUR"},"success":"true"}`},
		"Mailgun": {Scheme: signature.Scheme{Signature: signature.Layout{In: in("json:signature.signature")},
			Timestamp: at("json:signature.timestamp", signature.Seconds),
			Message:   text("{json:signature.timestamp}{json:signature.token}")}, bodyUnsigned: true,
			body: `{"signature":{"timestamp":"1","token":"abc"}}`},
		"Braintree": {Scheme: signature.Scheme{Digest: signature.SHA1, Key: signature.Key{Form: signature.KeySHA1},
			Signature: signature.Layout{In: in("form:bt_signature"), Separator: "&", KeySeparator: "|"},
			Message:   text("{form:bt_payload}"), Or: []signature.Template{text("{form:bt_payload}\n")}},
			bodyUnsigned: true, body: "bt_payload=PD94%0A"},
		"GitLab token": {Scheme: token(signature.Plain, header("X-Gitlab-Token")), bodyUnsigned: true},
		"Basic": {Scheme: token(signature.Base64, prefixed("Authorization", "Basic ")), secret: "user:password",
			bodyUnsigned: true},
		"Graph state": {Scheme: token(signature.Plain, signature.Layout{In: in("json:clientState")}),
			bodyUnsigned: true},
		"Discord": {Scheme: signature.Scheme{Method: signature.Ed25519, Signature: header("X-Signature-Ed25519"),
			Timestamp: at("header:X-Signature-Timestamp", signature.Seconds), Message: text("{timestamp}{body}")},
			secret: demoSecret},
		"Telnyx": {Scheme: signature.Scheme{Method: signature.Ed25519, Encoding: signature.Base64,
			Signature: header("Telnyx-Signature-Ed25519"), Timestamp: at("header:Telnyx-Timestamp", signature.Seconds),
			Message: text("{timestamp}|{body}")}, secret: demoSecret},
		"SendGrid": {Scheme: sendgrid, secret: demoSecret},
		"Wise": {Scheme: signature.Scheme{Method: signature.RSA, Encoding: signature.Base64,
			Signature: header("X-Signature-Sha256"), Message: bodyOnly}, secret: rsaKey()},
	}
}

// ofBody returns a scheme that signs only the body.
func ofBody(encoding signature.Encoding, layout signature.Layout) signature.Scheme {
	return signature.Scheme{Signature: layout, Encoding: encoding, Message: text("{body}")}
}

// token returns a scheme whose sender sends the secret.
func token(encoding signature.Encoding, layout signature.Layout) signature.Scheme {
	return signature.Scheme{Method: signature.Token, Encoding: encoding, Signature: layout}
}

func standardWebhooks(method signature.Method, item string, key signature.Key) signature.Scheme {
	return signature.Scheme{Method: method, Key: key, Encoding: signature.Base64,
		Signature: signature.Layout{In: in("header:Webhook-Signature"), Separator: " ", KeySeparator: ",", Item: item},
		Timestamp: at("header:Webhook-Timestamp", signature.Seconds),
		Message:   text("{header:Webhook-Id}.{timestamp}.{body}")}
}

func hubspot(version, message string) signature.Scheme {
	return signature.Scheme{Method: signature.Hash, Signature: header("X-HubSpot-Signature"), Message: text(message),
		When: &signature.Condition{From: signature.MustRef("header:X-HubSpot-Signature-Version"), Is: version}}
}

var (
	// The signature of a form covers the form. If the URL has a digest of the body, the digest
	// counts, and the body is not read as a form.
	twilioForm = signature.Scheme{Digest: signature.SHA1, Signature: header("X-Twilio-Signature"),
		Encoding: signature.Base64,
		When:     &signature.Condition{From: signature.MustRef("query:bodySHA256")},
		Message:  text("{url}{sorted_form}"), Or: []signature.Template{text("{url|port}{sorted_form}")}}
	twilioJSON = signature.Scheme{Digest: signature.SHA1, Signature: header("X-Twilio-Signature"),
		Encoding: signature.Base64, Message: text("{url}"), Or: []signature.Template{text("{url|port}")},
		Body: &signature.BodyDigest{From: signature.MustRef("query:bodySHA256")}}
	sendgrid = signature.Scheme{Method: signature.ECDSA, Encoding: signature.Base64,
		Signature: header("X-Twilio-Email-Event-Webhook-Signature"),
		Timestamp: at("header:X-Twilio-Email-Event-Webhook-Timestamp", signature.Seconds),
		Message:   text("{timestamp}{body}")}
)

// delivery returns a row's delivery, with the signed data that is not in the body.
func (r row) delivery(body string) signature.Request {
	header := http.Header{}
	for _, name := range []string{"Webhook-Id", "Klaviyo-Timestamp", "Twitch-Eventsub-Message-Id"} {
		header.Set(name, "id-1")
	}
	return signature.Request{URL: publicURL, Header: header, Body: []byte(body)}
}

func (r row) key() string {
	if r.secret == "" {
		return "correct horse battery"
	}
	return r.secret
}

// each runs a test for each row, with the row's name.
func each(t *testing.T, test func(t *testing.T, r row)) {
	t.Helper()
	for name, r := range catalogue() {
		r.Name = name
		if r.body == "" {
			r.body = jsonBody
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, r)
		})
	}
}

func problem(err error) signature.Problem {
	var e *signature.Error
	if errors.As(err, &e) {
		return e.Problem
	}
	return 0
}
