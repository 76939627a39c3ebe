package api

import "github.com/postern-gateway/postern/internal/provider"

var docs = provider.Docs{
	Setup: "For services of your own that push events: `POST /webhooks/SOURCE` with `Authorization: Bearer TOKEN`. " +
		"The tokens are the source's `secrets`; use several while one is replaced. Make one with " +
		"`openssl rand -hex 32`. The body is a CloudEvent 1.0 in any of its modes (`application/cloudevents+json`, a " +
		"batch as `application/cloudevents-batch+json`, or its attributes in headers `ce-*`), or a JSON object " +
		"as `application/json` with the header `Idempotency-Key`. [api-source.md](api-source.md) shows each with " +
		"curl, " +
		"the responses, and the objects. The token covers no byte of the body: send it over TLS only.",
	Signature: "The token in the header `Authorization`, after `Bearer`, compared in constant time. It is not stored " +
		"with events, so a rejected delivery cannot be verified again: its sender gets the error and sends it again.",
	Key: "For a CloudEvent its source and id, `{json:source} {json:id}`: together they are unique. For other JSON " +
		"the " +
		"header `Idempotency-Key`. The same key with the same content gets the stored receipt; " +
		"with other content 422, and nothing of the delivery is stored; 409 while the first is in progress.",
	Objects: "None, until the source's `objects:` name some. Without an `id:` of its own an object is named by the " +
		"CloudEvent's subject, `{json:subject}`; the event's `time` is the version where `version:` names none. " +
		"Those of the samples are `{events: [\"com.example.order.*\"], type: order, state: data, version: {from: " +
		"json:data.version, unit: integer}, deletes: [com.example.order.deleted], final: true}`.",
	Links: []string{"https://github.com/cloudevents/spec/blob/main/cloudevents/spec.md",
		"https://github.com/cloudevents/spec/blob/main/cloudevents/bindings/http-protocol-binding.md",
		"https://github.com/cloudevents/spec/blob/main/cloudevents/formats/json-format.md",
		"https://datatracker.ietf.org/doc/html/draft-ietf-httpapi-idempotency-key-header-07"},
}
