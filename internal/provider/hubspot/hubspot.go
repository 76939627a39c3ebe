// Package hubspot is the provider HubSpot, with signature version 3, which covers method, address,
// body and time. A delivery is a list of events. Each says that one property of an object changed,
// and never contains the object.
package hubspot

import (
	"embed"

	"github.com/postern-gateway/postern/internal/provider/declared"
)

//go:embed spec.yaml samples
var files embed.FS

// New returns the provider.
var New = declared.Embedded(files, complete)

// complete adds the message with the address as it is. HubSpot removes some escapes from the
// address before it signs it; if there are none both forms are equal.
func complete(s *declared.Spec) {
	s.Schemes[0].Or = declared.Templates("{method}{url}{body}{timestamp}")
}
