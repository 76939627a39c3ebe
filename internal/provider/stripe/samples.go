package stripe

import (
	"embed"
	"encoding/hex"
	"encoding/json"
	"slices"
	"sync"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
)

//go:embed samples/*.json
var files embed.FS

// sampleStart is the time of the first sample.
var sampleStart = time.Date(2026, time.January, 1, 0, 0, 0, 0, time.UTC)

// version is the API version of the samples.
const version = "2026-08-26.dahlia"

// step is one event of the samples' story: a customer subscribes, pays, and leaves. Events of one
// object share its file and id, so invoice.created and invoice.paid are about one invoice.
type step struct {
	Event string
	// After is in seconds from the start.
	After  int
	Object string
	// Change is laid over the object. Before becomes previous_attributes.
	Change, Before json.RawMessage
}

// samples are made once, because their JSON takes milliseconds.
var samples = sync.OnceValue(func() (out []provider.Sample) {
	for i, s := range provider.SampleStory[step](files) {
		out = append(out, provider.Sample{Type: s.Event, Body: slices.Clip(s.body(i))})
	}
	return append(out, idOnlySample())
})

// Samples returns the events of the story and one id-only event.
func (Stripe) Samples() []provider.Sample { return slices.Clone(samples()) }

// body returns the event as Stripe sends it, indented.
func (s step) body(n int) []byte {
	at := sampleStart.Add(time.Duration(s.After) * time.Second)
	object := provider.SampleObject(files, "samples/"+s.Object+".json", s.Change)
	data := map[string]any{"object": object}
	if s.Before != nil {
		data["previous_attributes"] = s.Before
	}
	token := provider.SampleToken(s.Event, n, at)
	return provider.SampleJSON(map[string]any{
		"id": "evt_1" + hex.EncodeToString(token[:12]), "object": "event", "api_version": version, "created": at.Unix(),
		"data":     data,
		"livemode": false, "pending_webhooks": 1, "type": s.Event,
		"request": map[string]any{"id": "req_" + hex.EncodeToString(token[12:19]), "idempotency_key": nil},
	}, "  ")
}

func idOnlySample() provider.Sample {
	const kind = "v2.core.account.updated"
	token := provider.SampleToken(kind, 0, sampleStart)
	return provider.Sample{Type: kind, Body: provider.SampleJSON(map[string]any{
		"id": "evt_test_6" + hex.EncodeToString(token[:12]), "object": "v2.core.event", "type": kind, "livemode": false,
		"created": "2026-01-01T00:00:00.250Z", "context": nil, "reason": nil,
		"related_object": map[string]any{"id": "acct_1Postern0Shop0001", "type": "v2.core.account",
			"url": "/v2/core/accounts/acct_1Postern0Shop0001"},
	}, "  ")}
}
