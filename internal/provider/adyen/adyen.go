// Package adyen is the provider Adyen, for its standard webhooks. Every notification of a delivery
// has a signature of its own in the body, over eight of its fields only. Adyen expects the response
// "[accepted]".
package adyen

import (
	"embed"

	"github.com/postern-gateway/postern/internal/provider/declared"
)

//go:embed spec.yaml samples
var files embed.FS

// New returns the provider.
var New = declared.Embedded(files, nil)
