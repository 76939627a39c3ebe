// Package zoom is the provider Zoom. To verify an address, Zoom requests a MAC over a text of its
// choice, under the key that signs deliveries. The gateway computes it only for a request that is
// itself signed with that key.
package zoom

import (
	"crypto/hmac"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"encoding/json"
	"regexp"

	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/declared"
	"github.com/postern-gateway/postern/internal/signature"
)

//go:embed samples/*.json
var files embed.FS

// New returns the provider.
func New() *declared.Provider { return declared.New(spec) }

var scheme = &signature.Scheme{
	Name:      "zoom-v0",
	Signature: signature.Layout{In: []signature.Ref{signature.MustRef("header:X-Zm-Signature")}, Prefix: "v0="},
	Timestamp: &signature.Clock{From: signature.MustRef("header:X-Zm-Request-Timestamp")},
	Message:   signature.MustTemplate("v0:{timestamp}:{body}"),
}

// Why most events are partial.
const (
	onlyPart      = "the event contains a part of the object, and for an update only the changed fields"
	oneOccurrence = "the event may delete only one occurrence of a recurring object"
)

var (
	meeting = declared.Templates("meeting")
	webinar = declared.Templates("webinar")
	user    = declared.Templates("user")
	id      = declared.Templates("{json:payload.object.id}")
)

var spec = declared.Spec{
	Name: "zoom", Title: "Zoom",
	Schemes: []*signature.Scheme{scheme},
	Headers: []string{"X-Zm-Trackingid"},
	Events: declared.Events{
		Type:       declared.Templates("{json:event}"),
		Account:    declared.Templates("{json:payload.account_id}"),
		OccurredAt: declared.TimeAt("json:event_ts", declared.Milliseconds),
	},
	Objects: []declared.Object{
		{Events: []string{"meeting.created", "meeting.updated"}, Type: meeting, ID: id, Partial: onlyPart},
		{Events: []string{"webinar.created", "webinar.updated"}, Type: webinar, ID: id, Partial: onlyPart},
		{Events: []string{"meeting.deleted"}, Type: meeting, ID: id, Partial: oneOccurrence},
		{Events: []string{"webinar.deleted"}, Type: webinar, ID: id, Partial: oneOccurrence},
		{Events: []string{"user.created", "user.updated", "user.activated", "user.deactivated"}, Type: user, ID: id,
			Partial: onlyPart},
		{Events: []string{"user.deleted"}, Type: user, ID: id, Deletes: []string{"user.deleted"}},
	},
	Handshake: handshake,
	Samples: []provider.Sample{
		declared.LoadSample(files, "meeting.created", "samples/meeting_created.json"),
		declared.LoadSample(files, "meeting.updated", "samples/meeting_updated.json"),
		declared.LoadSample(files, "meeting.participant_joined", "samples/participant_joined.json"),
		declared.LoadSample(files, "meeting.deleted", "samples/meeting_deleted.json"),
		declared.LoadSample(files, "user.created", "samples/user_created.json"),
		declared.LoadSample(files, "user.deleted", "samples/user_deleted.json"),
	},
	Variants: declared.Variants{
		IDs:     []string{"payload.object.participant.participant_uuid"},
		Times:   []declared.Time{*declared.TimeAt("json:event_ts", declared.Milliseconds)},
		Objects: []string{"payload.object.id"},
		Counter: "payload.operator",
	},
	Docs: provider.Docs{
		Setup: "In the app's *Feature > Event Subscriptions* (or *Access*), copy the *Secret Token*. It is the " +
			"secret. Configure the source first. Then enter the ingest URL as event notification endpoint and " +
			"press *Validate*: Zoom sends a text and expects its MAC. Postern responds to that request only if the " +
			"request itself is signed. Each Zoom account is an account. List those that you accept under " +
			"`accounts`, or leave `accounts` out to accept all.",
		Unconfirmed: []string{
			"Zoom signs the request that validates an address like any other request. Postern rejects such a " +
				"request without a signature, because anyone who can request a MAC could sign deliveries.",
			"A retry sends the same bytes. Events are identified by their content, so a retry with other bytes " +
				"would be a second event.",
			"The events of meetings, webinars and users do not contain the whole object, so they only cause a " +
				"refetch. A deleted meeting causes one too: of a recurring meeting, the event may be about one " +
				"occurrence.",
			"Ids of users are never reused. Postern does not rely on this: no delete is final.",
			"Postern uses a tolerance of 300 s. We know neither Zoom's tolerance nor how often Zoom retries.",
		},
		Links: []string{"https://developers.zoom.us/docs/api/webhooks/", "https://github.com/zoom/webhook-sample"},
	},
}

// plainToken matches the text of a verification. It does not match a text that a delivery's
// signature covers: those begin with "v0:".
var plainToken = regexp.MustCompile(`^[0-9A-Za-z_+/=-]{1,128}$`)

// handshake responds to the verification of an address with the MAC of Zoom's text. It is called
// after the delivery's own signature was verified, and uses only the secret that matched.
func handshake(src *provider.Source, d *provider.Delivery) *provider.Reply {
	body, err := canonical.Parse(d.Body)
	if err != nil {
		return nil
	}
	event, _ := body.Get("event").Text()
	plain, _ := body.Get("payload").Get("plainToken").Text()
	if event != "endpoint.url_validation" || !plainToken.MatchString(plain) {
		return nil
	}
	for _, secret := range src.Secrets {
		one := *src
		one.Secrets = []provider.Secret{secret}
		if _, err := provider.VerifySchemes(&one, d, scheme); err != nil {
			continue
		}
		mac := hmac.New(sha256.New, secret.Value)
		mac.Write([]byte(plain))
		answer, err := json.Marshal(map[string]string{"plainToken": plain,
			"encryptedToken": hex.EncodeToString(mac.Sum(nil))})
		if err != nil {
			return nil
		}
		return &provider.Reply{ContentType: "application/json", Body: answer}
	}
	return nil
}
