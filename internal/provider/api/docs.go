package api

import "github.com/postern-gateway/postern/internal/provider"

var docs = provider.Docs{
	Setup: "This provider is for your own services that push events: `POST /webhooks/SOURCE` with `Authorization: " +
		"Bearer TOKEN`. The tokens are the source's `secrets`. Use several while you replace one. Generate one " +
		"with `openssl rand -hex 32`. The body is a CloudEvent 1.0 or a JSON object. A CloudEvent may have each of " +
		"its modes: `application/cloudevents+json`, a batch as `application/cloudevents-batch+json`, or its " +
		"attributes in headers `ce-*`. A JSON object has the type `application/json` and needs the header " +
		"`Idempotency-Key`. [api-source.md](api-source.md) shows each with curl, the responses, and the objects. " +
		"The token does not protect the body, so send it over TLS only.",
	Signature: "The token in the header `Authorization`, after `Bearer`, compared in constant time. The token is " +
		"not stored with events, so a rejected delivery cannot be verified again. Its sender gets the error and " +
		"must send the delivery again.",
	Key: "For a CloudEvent, its source and id, `{json:source} {json:id}`, which are unique together. For other " +
		"JSON, the header `Idempotency-Key`. The same key with the same content gets the stored receipt. The same " +
		"key with other content gets 422, and nothing of the delivery is stored. While the first delivery is in " +
		"progress, another one with its key gets 409.",
	Objects: "None, unless the source's `objects:` describe some. Without an `id:` setting, the object's id is the " +
		"CloudEvent's subject, `{json:subject}`. Without a `version:` setting, the version is the event's `time`. " +
		"The objects of the samples are `{events: [\"com.example.order.*\"], type: order, state: data, version: " +
		"{from: json:data.version, unit: integer}, deletes: [com.example.order.deleted], final: true}`.",
	Links: []string{"https://github.com/cloudevents/spec/blob/main/cloudevents/spec.md",
		"https://github.com/cloudevents/spec/blob/main/cloudevents/bindings/http-protocol-binding.md",
		"https://github.com/cloudevents/spec/blob/main/cloudevents/formats/json-format.md",
		"https://datatracker.ietf.org/doc/html/draft-ietf-httpapi-idempotency-key-header-07"},
}
