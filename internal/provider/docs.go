package provider

import (
	"slices"

	"github.com/postern-gateway/postern/internal/signature"
)

// Docs describes a provider to people, in docs/providers.md and in `postern providers show`. All
// texts are Markdown.
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
	Unconfirmed []string `json:"unsure,omitempty"`
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

// Explainer is a provider whose verification is more than its schemes, for example when each event
// is signed.
type Explainer interface {
	Explain(src *Source, d *Delivery) []signature.Step
}

// Explain explains VerifySchemes step by step, for each scheme that the delivery has a signature
// of, or else the first. The last step is the result of VerifySchemes.
func Explain(src *Source, d *Delivery, schemes ...*signature.Scheme) []signature.Step {
	secrets, names := make([][]byte, len(src.Secrets)), make([]string, len(src.Secrets))
	for i, secret := range src.Secrets {
		secrets[i], names[i] = secret.Value, secret.Name
	}
	r := SignatureRequest(src, d)
	present := slices.DeleteFunc(slices.Clone(schemes), func(s *signature.Scheme) bool { return !s.HasSignature(r) })
	if len(present) == 0 {
		present = schemes[:1]
	}
	var out []signature.Step
	for _, s := range present {
		if len(present) > 1 {
			out = append(out, signature.Step{Name: "scheme", OK: true, Detail: s.Name})
		}
		steps := s.Explain(secrets, r, src.Tolerance, names...)
		out = append(out, steps...)
		if steps[len(steps)-1].OK {
			break
		}
	}
	return out
}
