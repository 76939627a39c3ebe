package twilio

import "github.com/postern-gateway/postern/internal/provider"

var docs = provider.Docs{
	Setup: "The secret is the account's *Auth Token* (the primary one; while it is replaced add the other). Enter " +
		"the " +
		"ingest URL wherever Twilio asks for a webhook or a status callback, with method " +
		"POST, or as the sink of an Event Stream, and set the same address under `url`, without a query: Twilio " +
		"signs the address that was entered, and behind a proxy the gateway receives another. " +
		"Every delivery gets an empty TwiML document: a message gets no reply, and a call that asks for " +
		"instructions ends. Each Twilio account is an account; list those you " +
		"accept under `accounts`, or leave it out for all.",
	Signature: "HMAC-SHA-1 over the address with its query and the fields of the form, sorted and joined, as base64 " +
		"in the header `X-Twilio-Signature`; over the address alone where that holds the " +
		"SHA-256 of the body in `bodySHA256`. With or without the address's default port. The values of a field that " +
		"occurs twice are sorted, and equal ones are counted once. No time is signed, " +
		"and fields are joined without separators. Anyone who captures a delivery can send it again, which is " +
		"the same event, or split the same text into other fields, which is another event. It may " +
		"name another message or call than Twilio did, if a text in it (anyone can write a message's words) was " +
		"written for that. It cannot be an event of a stream, and a form in which " +
		"a field occurs twice names no object.",
	Key: "For Event Streams the `id` of the event in its list, `{root:*.id}`. For forms, which have no event id: " +
		"`{MessageSid}:{MessageStatus}` or `{MessageSid}:{SmsStatus}`, `{CallSid}:{CallStatus}:{SequenceNumber}`, " +
		"`{RecordingSid}:{RecordingStatus}`, else a digest of the content. The header `I-Twilio-Idempotency-Token` " +
		"is stored, but it is not signed, so it is not used.",
	Unconfirmed: []string{
		"That `SequenceNumber` grows with each status callback of a call, and never starts again.",
		"That a message has each status once. A second callback of the same status with other content is stored " +
			"as a conflict.",
		"That a retry carries the same fields and the same `I-Twilio-Idempotency-Token` as the first attempt.",
		"That Twilio joins a repeated field as its SDK for Node does; its SDK for Go uses the first value alone.",
		"The format of Event Streams' deliveries, a JSON list of CloudEvents; no object is mirrored from them.",
	},
	Links: []string{"https://www.twilio.com/docs/usage/security",
		"https://www.twilio.com/docs/messaging/guides/track-outbound-message-status",
		"https://www.twilio.com/docs/voice/api/call-resource"},
}
