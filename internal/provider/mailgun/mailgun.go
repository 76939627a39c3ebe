// Package mailgun is the provider Mailgun. Its signature is in the body and covers a time and a
// token, but nothing of the event: anyone with one delivery can attach any event to its signature
// while the time is valid.
package mailgun

import (
	"embed"

	"github.com/postern-gateway/postern/internal/provider/declared"
)

//go:embed spec.yaml samples
var files embed.FS

// New returns the provider.
var New = declared.Embedded(files, nil)
