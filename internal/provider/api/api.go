// Package api is the provider for the user's own services. They push events under a token, as
// CloudEvents 1.0 (https://github.com/cloudevents/spec: structured, binary, batch) or as JSON with
// an Idempotency-Key (draft-ietf-httpapi-idempotency-key-header-07). Every event is stored as a
// JSON object, and every CloudEvent in the JSON format, so that the same references read all modes.
package api

import (
	"bytes"
	"embed"
	"encoding/json"
	"net/http"
	"slices"
	"strings"

	"github.com/postern-gateway/postern/internal/idempotency"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/declared"
	"github.com/postern-gateway/postern/internal/signature"
)

// Name is the provider's name in the configuration.
const Name = "api"

//go:embed spec.yaml samples
var files embed.FS

// Provider is the declared provider with checks and normalization of requests.
type Provider struct{ *declared.Provider }

var _ provider.DirectProvider = Provider{}

// New returns the provider with the objects of its samples, for the demo source.
func New() Provider { return Provider{described()} }

var described = declared.Embedded(files, func(s *declared.Spec) {
	s.Events.AllowSingle = true
	s.Events.Subject = declared.Templates("{json:subject}")
	s.Handshake, s.SetHeaders = emptyBatch, setHeaders
})

// Events says how a delivery is split and which value is the key. A list is a batch, and everything
// else one event. The header Idempotency-Key is the key if it is present; Accept removes it from
// events that contain their own key.
func Events() declared.Events { return described().Spec().Events }

// Of returns the provider for a source's configured events and objects.
func Of(events declared.Events, objects []declared.Object) Provider {
	spec := described().Spec()
	spec.Events, spec.Objects = events, objects
	return Provider{declared.New(spec)}
}

// bearer precedes the token (RFC 6750); upper and lower case are equal (RFC 9110, 11.1).
const bearer = "Bearer "

// Verify verifies the sender by its token.
func (p Provider) Verify(src *provider.Source, d *provider.Delivery) (provider.Verification, error) {
	return p.Provider.Verify(src, normalizeScheme(d))
}

// Explain explains step by step why a delivery is verified or rejected.
func (p Provider) Explain(src *provider.Source, d *provider.Delivery) []signature.Step {
	return p.Provider.Explain(src, normalizeScheme(d))
}

// normalizeScheme spells the word before the token as the constant bearer does.
func normalizeScheme(d *provider.Delivery) *provider.Delivery {
	values := d.Header["Authorization"]
	if len(values) != 1 || len(values[0]) < len(bearer) || values[0][:len(bearer)] == bearer ||
		!strings.EqualFold(values[0][:len(bearer)], bearer) {
		return d
	}
	normalized := *d
	normalized.Header = d.Header.Clone()
	normalized.Header["Authorization"] = []string{bearer + values[0][len(bearer):]}
	return &normalized
}

// setHeaders sets the Content-Type for the body. A CloudEvent needs no Idempotency-Key.
func setHeaders(_ *provider.Source, d *provider.Delivery, _ provider.Sample) {
	var event struct {
		SpecVersion json.RawMessage `json:"specversion"`
	}
	switch body := bytes.TrimSpace(d.Body); {
	case len(body) > 0 && body[0] == '[':
		d.Header.Set(contentType, batchType)
	case json.Unmarshal(body, &event) == nil && event.SpecVersion != nil:
		d.Header.Set(contentType, structuredType)
	default:
		return
	}
	d.Header.Del(idempotency.Header)
}

// maxEmptyBatch is the maximum length of a batch without events.
const maxEmptyBatch = 64

// emptyBatch responds to a batch without events, which CloudEvents allows. There is nothing to
// store.
func emptyBatch(_ *provider.Source, d *provider.Delivery) *provider.Reply {
	if media, _, err := mediaType(d.Header); err != nil || media != batchType || len(d.Body) > maxEmptyBatch ||
		!slices.Equal(bytes.Join(bytes.Fields(d.Body), nil), []byte("[]")) {
		return nil
	}
	return &provider.Reply{Status: http.StatusOK, ContentType: "application/json", Body: []byte("[]\n")}
}
