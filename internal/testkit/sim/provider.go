package sim

import (
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/provider"
)

// Provider reads the events of a History. Its signature is a fixed header, because signatures do
// not matter here.
type Provider struct{}

var _ provider.Provider = Provider{}

const (
	signatureHeader = "Sim-Signature"
	signature       = "signed by the simulated provider"
)

// Name returns "sim".
func (Provider) Name() string { return "sim" }

// Check accepts any source.
func (Provider) Check(*provider.Source) error { return nil }

// Headers returns none.
func (Provider) Headers() []string { return nil }

// Verify requires the fixed header.
func (Provider) Verify(_ *provider.Source, d *provider.Delivery) (provider.Verification, error) {
	switch d.Header.Get(signatureHeader) {
	case signature:
		return provider.Verification{Scheme: "sim", Secret: "sim"}, nil
	case "":
		return provider.Verification{}, &provider.Rejection{Reason: provider.MissingSignature, Detail: "no " +
			signatureHeader}
	}
	return provider.Verification{}, &provider.Rejection{Reason: provider.WrongSignature, Detail: "another " +
		signatureHeader}
}

// Identify reads the one event of a body. A body that cannot be parsed gets a content key.
func (Provider) Identify(_ *provider.Source, d *provider.Delivery) ([]provider.Event, error) {
	e := provider.Event{Type: "unknown", Fingerprint: provider.BodyFingerprint(d.Body)}
	if v, err := canonical.Parse(d.Body); err == nil {
		e.Key, _ = v.Get("id").Text()
		e.Type, _ = v.Get("type").Text()
		e.ObjectType = "thing"
		e.ObjectID, _ = v.Get("object_id").Text()
		if at, ok := v.Get("time").Int64(); ok && at >= Start {
			e.OccurredAt = time.UnixMicro(at).UTC()
		}
	}
	if e.Key == "" {
		e.Key, e.ContentKey = provider.ContentKey("", "", d.Body), true
	}
	return []provider.Event{e}, nil
}

// Observe reads the fields of the body as they were generated.
func (Provider) Observe(_ *provider.Source, e *provider.StoredEvent) (provider.Observation, error) {
	v, err := canonical.Parse(e.Body)
	if err != nil {
		return provider.Observation{}, &provider.Dead{Reason: err.Error()}
	}
	o := provider.Observation{ObjectType: "thing", State: v.Get("object"), Before: v.Get("previous")}
	o.ObjectID, _ = v.Get("object_id").Text()
	o.Partial, _ = v.Get("partial").Text()
	o.Deleted, _ = v.Get("deleted").Bool()
	o.Final, _ = v.Get("final").Bool()
	o.OwnVersion, _ = v.Get("own").Bool()
	o.MayNotAdvance, _ = v.Get("still").Bool()
	o.At, o.HasAt = v.Get("time").Int64()
	o.Unit, _ = v.Get("unit").Int64()
	rank, _ := v.Get("rank").Int64()
	o.Rank = int(rank)
	for _, path := range v.Get("volatile").Elements() {
		text, _ := path.Text()
		o.IgnoredPaths = append(o.IgnoredPaths, text)
	}
	return o, nil
}

// Samples returns one sample.
func (Provider) Samples() []provider.Sample {
	return []provider.Sample{{Type: "thing.updated",
		Body: []byte(`{"id":"evt_1","type":"thing.updated","object_id":"obj_1","object":{"id":"obj_1"},` +
			`"rank":1,"time":1700000000000000,"unit":1}`)}}
}

// Sign adds the fixed header to a body.
func (Provider) Sign(_ *provider.Source, s provider.Sample, at time.Time) (*provider.Delivery, error) {
	header := http.Header{"Content-Type": {"application/json"}}
	header.Set(signatureHeader, signature)
	return &provider.Delivery{Header: header, Body: s.Body, ReceivedAt: at}, nil
}

// MakeVariant gives a sample a new key and time and, on request, a new object.
func (Provider) MakeVariant(s provider.Sample, n int, at time.Time, newObject bool) (provider.Sample, error) {
	var body map[string]any
	if err := json.Unmarshal(s.Body, &body); err != nil {
		return provider.Sample{}, fmt.Errorf("vary sample %s: %w", s.Type, err)
	}
	body["id"], body["time"] = fmt.Sprintf("evt_%d_%d", at.UnixMicro(), n), at.UnixMicro()
	if id := fmt.Sprintf("obj_%d", n); newObject {
		body["object_id"], body["object"] = id, map[string]any{"id": id}
	}
	return provider.Sample{Type: s.Type, Body: text(body)}, nil
}
