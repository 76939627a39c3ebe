// Package api is the provider for the user's own services: events that they push under a token, as CloudEvents 1.0 (https://github.com/cloudevents/spec: structured, binary, batch) or as JSON
// under an Idempotency-Key (draft-ietf-httpapi-idempotency-key-header-07). Every event is kept as a JSON object, a CloudEvent in the JSON format whatever mode it came in, so that one set of
// references finds everything.
package api

import (
	"bytes"
	"embed"
	"encoding/json"
	"net/http"
	"slices"
	"strings"

	"github.com/postern-gateway/postern/internal/idempotency/header"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/declared"
	"github.com/postern-gateway/postern/internal/signature"
)

// Name is the word used in configuration.
const Name = "api"

//go:embed samples/*.json
var files embed.FS

// Provider is the provider at work.
type Provider struct{ *declared.Provider }

var _ provider.Direct = Provider{}

// New is the provider with the objects of its samples, as the demo source has them.
func New() Provider {
	return Of(Events(), []declared.Object{{
		Events:  []string{"com.example.order.*"},
		Type:    declared.Templates("order"),
		ID:      Events().Subject,
		State:   "data",
		Version: declared.Own("json:data.version", declared.Integer),
		Deletes: []string{"com.example.order.deleted"},
		Final:   true,
	}})
}

// Events is where a delivery's events are and what names them: a list is a batch, and everything else one event. A delivery under an Idempotency-Key is named by that; Accept takes the header
// from those that are named by themselves.
func Events() declared.Events {
	return declared.Events{
		Split:      ".",
		Alone:      true,
		Key:        declared.Templates("{header:"+header.Name+"}", "{json:source} {json:id}"),
		Type:       declared.Templates("{json:type}"),
		Occurred:   declared.At("json:time", declared.RFC3339),
		APIVersion: declared.Templates("{json:specversion}"),
		Subject:    declared.Templates("{json:subject}"),
	}
}

// Of is the provider of what a source's configuration says of its events and objects. Headers are kept besides.
func Of(events declared.Events, objects []declared.Object, headers ...string) Provider {
	return Provider{declared.New(declared.Spec{
		Name:  Name,
		Title: "Your own services",
		Schemes: []*signature.Scheme{{
			Name:      "bearer",
			Method:    signature.Token,
			Encoding:  signature.Plain,
			Signature: signature.Layout{In: []signature.Ref{signature.MustRef("header:Authorization")}, Prefix: bearer},
		}},
		Headers: headers,
		Events:  events,
		Objects: objects,
		Greet:   emptyBatch,
		Samples: []provider.Sample{sample("com.example.order.created"), sample("com.example.order.updated"), sample("com.example.order.deleted")},
		Vary: declared.Vary{
			IDs:      []string{"id"},
			Times:    []declared.Time{*declared.At("json:time", declared.RFC3339)},
			Objects:  []string{"subject"},
			Versions: []string{"data.version"},
			Counter:  "data.note",
		},
		Dress: dress,
		Docs:  docs,
	})}
}

func sample(eventType string) provider.Sample {
	return declared.Sample(files, eventType, "samples/"+eventType+".json")
}

// bearer is how a token is announced (RFC 6750); in any case of letters (RFC 9110, 11.1).
const bearer = "Bearer "

// Verify proves the sender by its token.
func (p Provider) Verify(src *provider.Source, d *provider.Delivery) (provider.Verification, error) {
	return p.Provider.Verify(src, announced(d))
}

// Explain tells step by step why a delivery is proven or not.
func (p Provider) Explain(src *provider.Source, d *provider.Delivery) []signature.Step {
	return p.Provider.Explain(src, announced(d))
}

// announced is the delivery with the one spelling of the scheme that is looked for.
func announced(d *provider.Delivery) *provider.Delivery {
	values := d.Header["Authorization"]
	if len(values) != 1 || len(values[0]) < len(bearer) || values[0][:len(bearer)] == bearer || !strings.EqualFold(values[0][:len(bearer)], bearer) {
		return d
	}
	spelled := *d
	spelled.Header = d.Header.Clone()
	spelled.Header["Authorization"] = []string{bearer + values[0][len(bearer):]}
	return &spelled
}

// dress says what a body is. What names itself needs no key.
func dress(_ *provider.Source, d *provider.Delivery, _ provider.Sample) {
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
	d.Header.Del(header.Name)
}

// maxEmpty is how long a batch of nothing may be.
const maxEmpty = 64

// emptyBatch answers a batch without events, which CloudEvents allows: there is nothing to store.
func emptyBatch(_ *provider.Source, d *provider.Delivery) *provider.Reply {
	if media, _, err := mediaType(d.Header); err != nil || media != batchType || len(d.Body) > maxEmpty || !slices.Equal(bytes.Join(bytes.Fields(d.Body), nil), []byte("[]")) {
		return nil
	}
	return &provider.Reply{Status: http.StatusOK, ContentType: "application/json", Body: []byte("[]\n")}
}
