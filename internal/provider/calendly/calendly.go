// Package calendly is the provider Calendly. Its deliveries have no event id, so they are
// identified by their content.
package calendly

import (
	"embed"

	"github.com/postern-gateway/postern/internal/provider/declared"
)

//go:embed spec.yaml samples
var files embed.FS

// New returns the provider.
var New = declared.Embedded(files, nil)
