// Package linear is the provider Linear. The signed time is in the body and may be a minute old.
// The id of a delivery is in an unsigned header. An update contains the old values of the changed
// fields.
package linear

import (
	"embed"
	"strings"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/declared"
)

//go:embed spec.yaml samples
var files embed.FS

// New returns the provider.
var New = declared.Embedded(files, complete)

func complete(s *declared.Spec) {
	s.Schemes[0].Timestamp.Tolerance = time.Minute
	s.SetHeaders = func(_ *provider.Source, d *provider.Delivery, s provider.Sample) {
		kind, _, _ := strings.Cut(s.Type, ".")
		d.Header.Set("Linear-Event", kind)
	}
}
