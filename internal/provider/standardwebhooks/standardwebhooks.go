// Package standardwebhooks reads what every sender signs alike that follows Standard Webhooks (https://www.standardwebhooks.com), or is
// served by Svix: an id, a time and the body, under headers that begin with webhook- or svix-. What the events say is each sender's
// own matter, so no object is mirrored until the configuration names some.
package standardwebhooks

import (
	"embed"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/declared"
	"github.com/postern-gateway/postern/internal/signature"
)

//go:embed samples/*.json
var files embed.FS

// New returns the provider.
func New() *declared.Provider { return declared.New(spec) }

// The two families of headers. Svix sends both.
const (
	webhook = "Webhook"
	svix    = "Svix"
)

// shared are secrets that both sides have: whsec_ and base64 of the key, before which Supabase writes "v1,". OpenAI and Polar take
// any other text as the key itself; bare are those of senders who leave whsec_ out and mean base64 all the same. A public key must say that it
// is one: the 32 bytes alone look like a shared secret, and everybody knows them.
var (
	shared = signature.Key{Form: signature.KeyBase64, Strip: []string{"v1,whsec_", "whsec_"}, PlainElse: true}
	bare   = signature.Key{Form: signature.KeyBase64}
	pair   = signature.Key{Prefixed: true}
)

// scheme is how senders sign under one family of headers. A header may hold many signatures, each after its version; those of
// another version are passed over.
func scheme(name, family, version string, method signature.Method, key signature.Key) *signature.Scheme {
	header := func(what string) string { return "header:" + family + "-" + what }
	return &signature.Scheme{
		Name: name, Method: method, Key: key, Encoding: signature.Base64,
		Signature: signature.Layout{In: []signature.Ref{signature.MustRef(header("Signature"))}, Separator: " ", Assign: ",", Item: version},
		Timestamp: &signature.Clock{From: signature.MustRef(header("Timestamp"))},
		Message:   signature.MustTemplate("{" + header("Id") + "}.{timestamp}.{body}"),
	}
}

var spec = declared.Spec{
	Name: "standardwebhooks", Title: "Standard Webhooks",
	Schemes: []*signature.Scheme{
		scheme("standardwebhooks-v1", webhook, "v1", signature.HMAC, shared),
		scheme("svix-v1", svix, "v1", signature.HMAC, shared),
		scheme("standardwebhooks-v1a", webhook, "v1a", signature.Ed25519, pair),
		scheme("svix-v1a", svix, "v1a", signature.Ed25519, pair),
		scheme("standardwebhooks-v1-base64", webhook, "v1", signature.HMAC, bare),
		scheme("svix-v1-base64", svix, "v1", signature.HMAC, bare),
	},
	Refuse: twoIDs,
	Events: declared.Events{
		Key:      declared.Templates("{header:Webhook-Id}", "{header:Svix-Id}"),
		Type:     declared.Templates("{json:type}"),
		Occurred: declared.At("json:timestamp", declared.Auto),
	},
	Objects: []declared.Object{{Ignored: "what the events of this sender are about is not known; name it under objects: of the source"}},
	Samples: []provider.Sample{
		declared.Sample(files, "user.created", "samples/created.json"),
		declared.Sample(files, "user.updated", "samples/updated.json"),
		declared.Sample(files, "user.deleted", "samples/deleted.json"),
		declared.Sample(files, "invoice.paid", "samples/paid.json"),
	},
	Vary: declared.Vary{
		Times:   []declared.Time{*declared.At("json:timestamp", declared.Auto), *declared.At("json:data.updated_at", declared.Auto)},
		Objects: []string{"data.id"},
		Counter: "data.name",
	},
	Docs: docs,
}

// twoIDs refuses a delivery under two ids: one of them nobody signed, and whoever has a delivery that was signed could name it anew.
func twoIDs(_ *provider.Source, d *provider.Delivery) *provider.Rejection {
	a, b := d.Header.Get("Webhook-Id"), d.Header.Get("Svix-Id")
	if a != "" && b != "" && a != b {
		return &provider.Rejection{Reason: provider.MalformedSignature, Detail: "Webhook-Id and Svix-Id name two deliveries; the sender gives both the same id"}
	}
	return nil
}
