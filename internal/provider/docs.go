package provider

import "github.com/postern-gateway/postern/internal/signature"

// Docs describes a provider to people, in docs/reference/providers.md and in `postern providers
// show`. All texts are Markdown.
type Docs struct {
	// Title is the sender's own name.
	Title string `json:"title"`
	// Setup says where the secret is found and what to enter at the provider.
	Setup string `json:"setup"`
	// Signature says how a delivery is verified.
	Signature string `json:"signature"`
	// Key says which value identifies an event.
	Key string `json:"key"`
	// Objects says which objects are mirrored from which events.
	Objects string `json:"objects"`
	// Unconfirmed are statements about the sender that no document of the sender confirms, as far
	// as the authors know.
	Unconfirmed []string `json:"unsure,omitempty" yaml:"unconfirmed"`
	// Links are the sender's own documents.
	Links []string `json:"links"`
}

// Documented is a provider that describes itself.
type Documented interface{ Docs() Docs }

// Signed is a provider that exposes its signature schemes, to explain why a delivery is verified or
// rejected.
type Signed interface {
	// Schemes are tried in order. A delivery is verified by any scheme that it has a signature of.
	Schemes() []*signature.Scheme
}
