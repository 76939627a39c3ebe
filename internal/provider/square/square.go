// Package square is the provider Square. The signature covers the entered address and the body, but
// no time. Many objects have an integer version, which orders them. The events of an order name it
// but do not contain it.
package square

import (
	"embed"

	"github.com/postern-gateway/postern/internal/provider/declared"
)

//go:embed spec.yaml samples
var files embed.FS

// New returns the provider.
var New = declared.Embedded(files, nil)
