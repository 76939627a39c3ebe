// Package standardwebhooks is the provider for senders that follow Standard Webhooks
// (https://www.standardwebhooks.com) or use Svix. They sign an id, a time and the body, in headers
// that begin with webhook- or svix-. The content of events differs between senders, so no object is
// mirrored until the configuration describes some.
package standardwebhooks

import (
	"embed"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/declared"
)

//go:embed spec.yaml samples
var files embed.FS

// New returns the provider.
var New = declared.Embedded(files, complete)

func complete(s *declared.Spec) {
	for _, scheme := range s.Schemes {
		if scheme.IsAsymmetric() {
			// The 32 bytes of a public key alone look like a shared secret, but everybody can know
			// them.
			scheme.Key.RequirePrefix = true
		}
	}
	s.Reject = rejectTwoIDs
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
