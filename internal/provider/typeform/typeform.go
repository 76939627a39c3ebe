// Package typeform is the provider Typeform: one event for each response to a form. Responses do
// not change.
package typeform

import (
	"embed"

	"github.com/postern-gateway/postern/internal/provider/declared"
)

//go:embed spec.yaml samples
var files embed.FS

// New returns the provider.
var New = declared.Embedded(files, nil)
