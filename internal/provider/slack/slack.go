// Package slack is the provider Slack: its Events API, its slash commands and its interactive
// payloads. The first is JSON, the others are forms. All are signed the same way, and the user who
// caused them may see the response.
package slack

import (
	"embed"

	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/declared"
)

//go:embed spec.yaml samples
var files embed.FS

// New returns the provider.
var New = declared.Embedded(files, func(s *declared.Spec) { s.Handshake = handshake })

// maxChallenge is far above what Slack sends.
const maxChallenge = 1024

// handshake responds to the verification of an address with its challenge. Slack signs that request
// like any other. The response contains nothing computed with a key, so it reveals nothing.
func handshake(_ *provider.Source, d *provider.Delivery) *provider.Reply {
	body, err := canonical.Parse(d.Body)
	if err != nil {
		return nil
	}
	kind, _ := body.Get("type").Text()
	challenge, _ := body.Get("challenge").Text()
	if kind != "url_verification" || challenge == "" || len(challenge) > maxChallenge {
		return nil
	}
	return &provider.Reply{ContentType: "text/plain; charset=utf-8", Body: []byte(challenge)}
}
