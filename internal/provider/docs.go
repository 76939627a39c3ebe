package provider

import (
	"slices"

	"github.com/postern-gateway/postern/internal/signature"
)

// Docs is a provider for people: what docs/providers.md and `postern providers show` say of it. All texts are Markdown.
type Docs struct {
	// Title is the sender's own name.
	Title string `json:"title"`
	// Setup is where the secret is found and what to enter at the provider.
	Setup string `json:"setup"`
	// Signature is what proves a delivery.
	Signature string `json:"signature"`
	// Key is what names an event.
	Key string `json:"key"`
	// Objects is what is mirrored of which events.
	Objects string `json:"objects"`
	// Unsure are statements about the sender that no document of its own, read by us, confirms.
	Unsure []string `json:"unsure,omitempty"`
	// Links are the sender's own documents.
	Links []string `json:"links"`
}

// Documented is a provider that tells about itself.
type Documented interface{ Docs() Docs }

// Signed is a provider that shows how it signs, for explaining why a delivery is proven or not.
type Signed interface {
	// Schemes are tried in order; any of which a delivery has a signature may prove it.
	Schemes() []*signature.Scheme
}

// Explainer is a provider whose proof is more than its schemes: of many events each.
type Explainer interface {
	Explain(src *Source, d *Delivery) []signature.Step
}

// Explain explains Prove: each scheme that the delivery carries a signature of, else the first. The last step is Prove's answer.
func Explain(src *Source, d *Delivery, schemes ...*signature.Scheme) []signature.Step {
	secrets, names := make([][]byte, len(src.Secrets)), make([]string, len(src.Secrets))
	for i, secret := range src.Secrets {
		secrets[i], names[i] = secret.Value, secret.Name
	}
	r := Request(src, d)
	present := slices.DeleteFunc(slices.Clone(schemes), func(s *signature.Scheme) bool { return !s.Present(r) })
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
