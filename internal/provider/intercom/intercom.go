// Package intercom is the provider Intercom. Deliveries are signed with SHA-1 by the app's secret,
// without a time. The time of an object's change is in seconds in some topics and a date in others.
// Deletes only name their object.
package intercom

import (
	"embed"
	"net/http"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/declared"
)

//go:embed spec.yaml samples
var files embed.FS

// New returns the provider.
var New = declared.Embedded(files, complete)

func complete(s *declared.Spec) {
	s.Objects[2].FinalWithoutVersion = true
	s.Challenge = challenge
}

// challenge responds to the request with which Intercom tests an address before it accepts it.
func challenge(_ *provider.Source, d *provider.Delivery) *provider.Reply {
	if d.Method != http.MethodHead {
		return nil
	}
	return &provider.Reply{}
}
