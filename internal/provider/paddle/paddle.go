// Package paddle is the provider Paddle Billing. An event contains its whole entity as it was at
// that moment, and Paddle documents that events are ordered by their time. While a secret is
// replaced a delivery may have a signature of each.
package paddle

import (
	"embed"

	"github.com/postern-gateway/postern/internal/provider/declared"
)

//go:embed spec.yaml samples
var files embed.FS

// New returns the provider.
var New = declared.Embedded(files, nil)
