// Package gitlab is the provider GitLab. A hook with a signing token signs body, id and time as
// Standard Webhooks do. A hook with a secret token only sends that token, which verifies the sender
// but nothing of the body. An update contains the old values of the changed fields, in other
// formats than those of the object.
package gitlab

import (
	"embed"
	"encoding/json"
	"strings"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/declared"
	"github.com/postern-gateway/postern/internal/signature"
)

//go:embed spec.yaml samples
var files embed.FS

// New returns the provider.
var New = declared.Embedded(files, complete)

func complete(s *declared.Spec) {
	signing := s.Schemes[0]
	// A secret token is in every delivery, so anyone who saw one could sign with it if it were used
	// as a key.
	signing.Key.RequirePrefix = true
	s.SetHeaders = func(src *provider.Source, d *provider.Delivery, _ provider.Sample) {
		setHeaders(signing, src, d)
	}
}

// setHeaders sets GitLab's headers. It sets the id under its older name too. Without a signing
// token it sets the id only under the older name.
func setHeaders(signing *signature.Scheme, src *provider.Source, d *provider.Delivery) {
	d.Header.Set("Idempotency-Key", d.Header.Get("Webhook-Id"))
	if len(src.Secrets) > 0 && signing.CheckSecret(src.Secrets[0].Value) != nil {
		d.Header.Del("Webhook-Id")
	}
	var body struct {
		Kind string `json:"object_kind"`
	}
	if json.Unmarshal(d.Body, &body) == nil && body.Kind != "" {
		d.Header.Set("X-Gitlab-Event", eventName(body.Kind))
	}
	d.Header.Set("X-Gitlab-Instance", "https://gitlab.example")
}

// eventName returns the kind in the format of X-Gitlab-Event ("merge_request": "Merge Request
// Hook").
func eventName(kind string) string {
	if kind == "build" {
		return "Job Hook"
	}
	words := strings.Split(kind, "_")
	for i, word := range words {
		words[i] = strings.ToUpper(word[:min(1, len(word))]) + word[min(1, len(word)):]
	}
	return strings.Join(words, " ") + " Hook"
}
