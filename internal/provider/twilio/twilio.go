// Package twilio reads what Twilio tells of messages and calls: forms, signed together with the address they are sent to, and the
// JSON of its Event Streams, signed by a digest in that address. Forms have no id, and most of them no time.
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

// scheme is an HMAC over the address that the operator gave Twilio, and what follows it. Twilio's own programs try the address with
// and without its default port.
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
	Refuse:  otherBody,
	Headers: []string{"I-Twilio-Idempotency-Token"},
	Events: declared.Events{
		Bodies: []declared.BodyForm{declared.JSON, declared.Form},
		Split:  ".", Alone: true, // Event Streams send lists
		// An event of a stream is named where it stands in a list, which no form can be: otherwise a captured form, its text divided into
		// other fields, could take the name of an event.
		Key: declared.Templates("{root:*.id}", "{json:MessageSid}:{json:MessageStatus}", "{json:MessageSid}:{json:SmsStatus}",
			"{json:CallSid}:{json:CallStatus}:{json:SequenceNumber}", "{json:RecordingSid}:{json:RecordingStatus}"),
		// Event Streams name types. Of forms, the type is made of what they are about and its state.
		Type: declared.Templates("{json:type}", "{json:EventType}", "{json:StatusCallbackEvent}", "recording.{json:RecordingStatus}", "message.{json:MessageStatus}",
			"message.{json:SmsStatus}", "{json:CallbackSource}.{json:CallStatus}", "call.{json:CallStatus}"),
		Account:  declared.Templates("{json:AccountSid}", "{json:data.accountSid}"),
		Occurred: declared.At("json:time", declared.RFC3339),
	},
	Objects: []declared.Object{
		{Events: []string{"call-progress-events.*"}, Type: declared.Templates("call"), ID: declared.Templates("{json:CallSid}"), State: ".",
			Version: declared.Own("json:SequenceNumber", declared.Integer)},
		{Events: []string{"call.*"}, Ignored: "Twilio asks what to do with a call; what becomes of it is told by its status callbacks"},
		{Events: []string{"message.*"}, Type: declared.Templates("message"), ID: declared.Templates("{json:MessageSid}"),
			Partial: "a message's statuses carry no time and no number, so none is known to be the latest"},
	},
	// A call or a message waits for instructions, and anything but TwiML is an error that the caller hears. Where nothing is awaited
	// the answer is not read.
	Acknowledge: func(*provider.Source, *provider.Delivery) *provider.Reply {
		return &provider.Reply{ContentType: "text/xml; charset=utf-8", Body: []byte(`<?xml version="1.0" encoding="UTF-8"?><Response></Response>`)}
	},
	Check: check,
	Samples: []provider.Sample{
		declared.Sample(files, "message.received", "samples/received.form"),
		declared.Sample(files, "message.sent", "samples/sent.form"),
		declared.Sample(files, "message.delivered", "samples/delivered.form"),
		declared.Sample(files, "call.ringing", "samples/voice.form"),
		declared.Sample(files, "call-progress-events.initiated", "samples/initiated.form"),
		declared.Sample(files, "call-progress-events.ringing", "samples/ringing.form"),
		declared.Sample(files, "call-progress-events.completed", "samples/completed.form"),
		declared.Sample(files, "com.twilio.messaging.message.sent", "samples/stream.json"),
	},
	Vary: declared.Vary{
		IDs:   []string{"MessageSid", "CallSid", "0.id", "1.id", "2.id"},
		Times: []declared.Time{*declared.At("json:0.time", declared.RFC3339), *declared.At("json:1.time", declared.RFC3339), *declared.At("json:2.time", declared.RFC3339)},
	},
	Docs: docs,
}

// check wants an address without a query: Twilio signs the one of each delivery, and Event Streams add to it.
func check(src *provider.Source) error {
	if strings.ContainsAny(src.URL, "?#") {
		return errors.New("url: leave out what begins with ? or #; the query is taken from each delivery")
	}
	return nil
}

// otherBody refuses a body that is not the one whose digest the address holds, whatever proves the rest: what is signed over an address
// alone is signed over an empty form at that address as well.
func otherBody(_ *provider.Source, d *provider.Delivery) *provider.Rejection {
	query, _ := url.ParseQuery(d.Query) // what of it can be read counts
	if !query.Has("bodySHA256") {
		return nil
	}
	sum := sha256.Sum256(d.Body)
	if strings.EqualFold(query.Get("bodySHA256"), hex.EncodeToString(sum[:])) {
		return nil
	}
	return &provider.Rejection{Reason: provider.WrongSignature, Detail: "the body is not the one whose digest is in the address, in bodySHA256"}
}
