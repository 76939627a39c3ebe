// Package standardwebhooks is the provider for senders that follow Standard Webhooks
// (https://www.standardwebhooks.com) or use Svix. They sign an id, a time and the body, in headers
// that begin with webhook- or svix-. The content of events differs between senders, so no object is
// mirrored until the configuration describes some.
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

// The formats of secrets. shared is whsec_ and base64 of the key, to which Supabase adds the prefix
// "v1,"; OpenAI and Polar use any other text as the key itself. bare is base64 of the key without
// whsec_, as some senders write it. A public key must have its prefix: its 32 bytes alone look like
// a shared secret, but everybody can know them.
var (
	shared = signature.Key{Form: signature.KeyBase64, Strip: []string{"v1,whsec_", "whsec_"},
		VerbatimWithoutPrefix: true}
	bare      = signature.Key{Form: signature.KeyBase64}
	publicKey = signature.Key{RequirePrefix: true}
)

// scheme returns a signature scheme of one family of headers. A header may contain many signatures,
// each after its version; those of another version are ignored.
func scheme(name, family, version string, method signature.Method, key signature.Key) *signature.Scheme {
	header := func(what string) string { return "header:" + family + "-" + what }
	return &signature.Scheme{
		Name: name, Method: method, Key: key, Encoding: signature.Base64,
		Signature: signature.Layout{In: []signature.Ref{signature.MustRef(header("Signature"))}, Separator: " ",
			KeySeparator: ",", Item: version},
		Timestamp: &signature.Clock{From: signature.MustRef(header("Timestamp"))},
		Message:   signature.MustTemplate("{" + header("Id") + "}.{timestamp}.{body}"),
	}
}

var spec = declared.Spec{
	Name: "standardwebhooks", Title: "Standard Webhooks",
	Schemes: []*signature.Scheme{
		scheme("standardwebhooks-v1", webhook, "v1", signature.HMAC, shared),
		scheme("svix-v1", svix, "v1", signature.HMAC, shared),
		scheme("standardwebhooks-v1a", webhook, "v1a", signature.Ed25519, publicKey),
		scheme("svix-v1a", svix, "v1a", signature.Ed25519, publicKey),
		scheme("standardwebhooks-v1-base64", webhook, "v1", signature.HMAC, bare),
		scheme("svix-v1-base64", svix, "v1", signature.HMAC, bare),
	},
	Reject: rejectTwoIDs,
	Events: declared.Events{
		Key:        declared.Templates("{header:Webhook-Id}", "{header:Svix-Id}"),
		Type:       declared.Templates("{json:type}"),
		OccurredAt: declared.TimeAt("json:timestamp", declared.Auto),
	},
	Objects: []declared.Object{{Ignored: "the objects of this sender's events are not known; describe them under " +
		"objects: of the source"}},
	Samples: []provider.Sample{
		declared.LoadSample(files, "user.created", "samples/created.json"),
		declared.LoadSample(files, "user.updated", "samples/updated.json"),
		declared.LoadSample(files, "user.deleted", "samples/deleted.json"),
		declared.LoadSample(files, "invoice.paid", "samples/paid.json"),
	},
	Variants: declared.Variants{
		Times: []declared.Time{*declared.TimeAt("json:timestamp", declared.Auto),
			*declared.TimeAt("json:data.updated_at", declared.Auto)},
		Objects: []string{"data.id"},
		Counter: "data.name",
	},
	Docs: docs,
}

// rejectTwoIDs rejects a delivery with two different ids: one of them is not signed, so anyone with
// a captured delivery could rename it.
func rejectTwoIDs(_ *provider.Source, d *provider.Delivery) *provider.Rejection {
	a, b := d.Header.Get("Webhook-Id"), d.Header.Get("Svix-Id")
	if a != "" && b != "" && a != b {
		return &provider.Rejection{Reason: provider.MalformedSignature,
			Detail: "Webhook-Id and Svix-Id differ; the sender gives both the same id"}
	}
	return nil
}
