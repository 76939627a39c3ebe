// Package twilio is the provider Twilio. It sends forms about messages and calls, and the JSON of
// Event Streams. Both are signed with the address that they are sent to; for JSON the address
// contains a digest of the body. Forms have no id, and most of them no time.
package twilio

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"net/url"
	"strings"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/declared"
	"github.com/postern-gateway/postern/internal/signature"
)

//go:embed samples/*
var files embed.FS

// New returns the provider.
func New() *declared.Provider { return declared.New(spec) }

// scheme returns an HMAC over the address that the operator entered at Twilio, and the given rest.
// Twilio's own programs try the address with and without its default port.
func scheme(name, rest string, body *signature.BodyDigest) *signature.Scheme {
	return &signature.Scheme{
		Name: name, Digest: signature.SHA1, Encoding: signature.Base64,
		Signature: signature.Layout{In: []signature.Ref{signature.MustRef("header:X-Twilio-Signature")}},
		Message:   signature.MustTemplate("{url}" + rest), Or: declared.Templates("{url|port}" + rest),
		Body: body,
	}
}

var spec = declared.Spec{
	Name: "twilio", Title: "Twilio",
	Schemes: []*signature.Scheme{
		scheme("twilio-form", "{sorted_form}", nil),
		scheme("twilio-body", "", &signature.BodyDigest{From: signature.MustRef("query:bodySHA256")}),
	},
	Reject:  rejectOtherBody,
	Headers: []string{"I-Twilio-Idempotency-Token"},
	Events: declared.Events{
		Bodies: []declared.BodyForm{declared.JSON, declared.Form},
		Split:  ".", AllowSingle: true, // Event Streams send lists
		// An event of a stream is identified by its id in a list, which no form can contain.
		// Otherwise a captured form, its text split into other fields, could get the key of an
		// event.
		Key: declared.Templates("{root:*.id}", "{json:MessageSid}:{json:MessageStatus}",
			"{json:MessageSid}:{json:SmsStatus}",
			"{json:CallSid}:{json:CallStatus}:{json:SequenceNumber}", "{json:RecordingSid}:{json:RecordingStatus}"),
		// Event Streams contain types. For forms, the type is composed of the kind of object and
		// its status.
		Type: declared.Templates("{json:type}", "{json:EventType}", "{json:StatusCallbackEvent}",
			"recording.{json:RecordingStatus}", "message.{json:MessageStatus}",
			"message.{json:SmsStatus}", "{json:CallbackSource}.{json:CallStatus}", "call.{json:CallStatus}"),
		Account:    declared.Templates("{json:AccountSid}", "{json:data.accountSid}"),
		OccurredAt: declared.TimeAt("json:time", declared.RFC3339),
	},
	Objects: []declared.Object{
		{Events: []string{"call-progress-events.*"}, Type: declared.Templates("call"),
			ID: declared.Templates("{json:CallSid}"), State: ".",
			Version: declared.OwnVersion("json:SequenceNumber", declared.Integer)},
		{Events: []string{"call.*"}, Ignored: "Twilio requests instructions for a call; the call's progress is in " +
			"its status callbacks"},
		{Events: []string{"message.*"}, Type: declared.Templates("message"),
			ID:      declared.Templates("{json:MessageSid}"),
			Partial: "the statuses of a message have no time and no number, so their order is unknown"},
	},
	// A call or a message waits for instructions, and any other response than TwiML is an error
	// that the caller hears. For other deliveries Twilio ignores the response.
	Acknowledge: func(*provider.Source, *provider.Delivery) *provider.Reply {
		return &provider.Reply{ContentType: "text/xml; charset=utf-8",
			Body: []byte(`<?xml version="1.0" encoding="UTF-8"?><Response></Response>`)}
	},
	Check: check,
	Samples: []provider.Sample{
		declared.LoadSample(files, "message.received", "samples/received.form"),
		declared.LoadSample(files, "message.sent", "samples/sent.form"),
		declared.LoadSample(files, "message.delivered", "samples/delivered.form"),
		declared.LoadSample(files, "call.ringing", "samples/voice.form"),
		declared.LoadSample(files, "call-progress-events.initiated", "samples/initiated.form"),
		declared.LoadSample(files, "call-progress-events.ringing", "samples/ringing.form"),
		declared.LoadSample(files, "call-progress-events.completed", "samples/completed.form"),
		declared.LoadSample(files, "com.twilio.messaging.message.sent", "samples/stream.json"),
	},
	Variants: declared.Variants{
		IDs: []string{"MessageSid", "CallSid", "0.id", "1.id", "2.id"},
		Times: []declared.Time{*declared.TimeAt("json:0.time", declared.RFC3339),
			*declared.TimeAt("json:1.time", declared.RFC3339), *declared.TimeAt("json:2.time", declared.RFC3339)},
	},
	Docs: docs,
}

// check requires an address without a query: Twilio signs the query of each delivery, and Event
// Streams add to it.
func check(src *provider.Source) error {
	if strings.ContainsAny(src.URL, "?#") {
		return errors.New("url: leave out the part that begins with ? or #; the query is taken from each delivery")
	}
	return nil
}

// rejectOtherBody rejects a body that does not match the digest in the address, even if the
// signature is right: a signature over an address alone is also valid for an empty form at that
// address.
func rejectOtherBody(_ *provider.Source, d *provider.Delivery) *provider.Rejection {
	query, _ := url.ParseQuery(d.Query) // unreadable parts do not count
	if !query.Has("bodySHA256") {
		return nil
	}
	sum := sha256.Sum256(d.Body)
	if strings.EqualFold(query.Get("bodySHA256"), hex.EncodeToString(sum[:])) {
		return nil
	}
	return &provider.Rejection{Reason: provider.WrongSignature,
		Detail: "the body does not match the digest in the address, bodySHA256"}
}
