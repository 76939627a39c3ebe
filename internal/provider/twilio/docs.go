package twilio

import "github.com/postern-gateway/postern/internal/provider"

var docs = provider.Docs{
	Setup: "The secret is the account's primary *Auth Token*. While you replace it, add the other token too. Enter " +
		"the ingest URL wherever Twilio asks for a webhook or a status callback, with method POST, or as the sink " +
		"of an Event Stream. Set the same URL under `url`, without a query. Twilio signs the URL that you entered, " +
		"and behind a proxy the gateway receives another one. Every delivery gets an empty TwiML document: a " +
		"message gets no reply, and a call that asks for instructions ends. Each Twilio account is an account. " +
		"List those that you accept under `accounts`, or leave `accounts` out to accept all.",
	Signature: "HMAC-SHA-1, as base64 in the header `X-Twilio-Signature`, over the URL with its query and the " +
		"fields of the form, sorted and joined. If the URL has the SHA-256 of the body in `bodySHA256`, the " +
		"signature covers only the URL. Postern accepts the URL with or without its default port. The values of a " +
		"field that occurs twice are sorted, and equal values are counted once. No time is signed, and fields are " +
		"joined without separators. Anyone who captures a delivery can therefore send it again, which is the same " +
		"event. They can also split the same text into other fields, which is another event. Such an event can " +
		"name another message or call, if a text in it was written for that purpose; anyone can write the text of " +
		"a message. It cannot be an event of a stream, and a form in which a field occurs twice names no object.",
	Key: "For Event Streams, the `id` of the event in its list, `{root:*.id}`. Forms have no event id. Their key " +
		"is `{MessageSid}:{MessageStatus}` or `{MessageSid}:{SmsStatus}`, " +
		"`{CallSid}:{CallStatus}:{SequenceNumber}`, `{RecordingSid}:{RecordingStatus}`, or else a digest of the " +
		"content. The header `I-Twilio-Idempotency-Token` is stored, but Postern does not use it, because it is " +
		"not signed.",
	Unconfirmed: []string{
		"`SequenceNumber` grows with each status callback of a call, and never starts again.",
		"A message has each status once. Postern stores a second callback of the same status with other content as " +
			"a conflict.",
		"A retry carries the same fields and the same `I-Twilio-Idempotency-Token` as the first attempt.",
		"Twilio joins a repeated field as its SDK for Node does. Its SDK for Go uses only the first value.",
		"A delivery of an Event Stream is a JSON list of CloudEvents. No object is mirrored from it.",
	},
	Links: []string{"https://www.twilio.com/docs/usage/security",
		"https://www.twilio.com/docs/messaging/guides/track-outbound-message-status",
		"https://www.twilio.com/docs/voice/api/call-resource"},
}
