package providertest

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/provider"
)

// unreadable are bodies that no provider can have meant.
var unreadable = map[string]string{
	"empty":         "",
	"text":          "hello",
	"cut short":     `{"id": "evt_1", "type": `,
	"not UTF-8":     "{\"id\": \"\xff\xfe\"}",
	"too deep":      strings.Repeat(`{"a":`, 5000) + "1" + strings.Repeat("}", 5000),
	"deep arrays":   strings.Repeat("[", 100_000),
	"an array":      `[{"id": "evt_1"}]`,
	"null":          "null",
	"a number":      "1e999999",
	"two documents": `{"id":"evt_1"}{"id":"evt_2"}`,
}

func badBodies(t *testing.T, s Suite) {
	sampleType := s.Provider.Samples()[0].Type
	for name, body := range unreadable {
		d := s.signed(t, s.Source, provider.Sample{Type: sampleType, ID: "", Body: []byte(body)})
		if _, err := s.Provider.Verify(s.Source, d); err != nil {
			t.Errorf("%s: a rightly signed body is refused: %v", name, err)
		}
		e := s.identified(t, d)
		if e.Key == "" || e.Type == "" || e.Fingerprint == [16]byte{} {
			t.Errorf("%s: identified as %+v", name, e)
		}
		_, err := s.Provider.Observe(s.Source, s.stored(e, d))
		if dead := new(provider.Dead); !errors.As(err, &dead) || dead.Reason == "" {
			t.Errorf("%s: observe: error %v, want dead", name, err)
		}
	}
}

// stored is an event as the log would give it back.
func (s Suite) stored(e provider.Event, d *provider.Delivery) *provider.Stored {
	return &provider.Stored{Key: e.Key, Type: e.Type, Account: e.Account, APIVersion: e.APIVersion, ReceivedAt: d.ReceivedAt, Body: d.Body}
}

// Observed is what a delivery says, through Identify and Observe.
func (s Suite) Observed(t *testing.T, d *provider.Delivery) (provider.Event, provider.Observation, error) {
	t.Helper()
	e := s.identified(t, d)
	o, err := s.Provider.Observe(s.Source, s.stored(e, d))
	return e, o, err
}

func vary(t *testing.T, s Suite) {
	at := now.Add(time.Hour)
	for _, sample := range s.Provider.Samples() {
		original, before, _ := s.Observed(t, s.signed(t, s.Source, sample))
		keys := map[string]bool{original.Key: true}
		for n := range 3 {
			varied, err := s.Provider.Vary(sample, n, at, false)
			if err != nil || !json.Valid(varied.Body) {
				t.Fatalf("vary %s: %v", sample.Type, err)
			}
			e, o, err := s.Observed(t, s.signed(t, s.Source, varied))
			if err != nil || o.ObjectID != before.ObjectID || keys[e.Key] || e.ContentKey {
				t.Errorf("vary %s: event %+v of object %q, %v", sample.Type, e, o.ObjectID, err)
			}
			keys[e.Key] = true
			if o.HasAt && o.At/1e6 != at.Unix() {
				t.Errorf("vary %s: at %d, want %d s", sample.Type, o.At, at.Unix())
			}
		}
		s.varyObject(t, sample, before)
	}
	if _, err := s.Provider.Vary(provider.Sample{Body: []byte("[]")}, 1, at, false); err == nil {
		t.Error("vary takes a body that is no object")
	}
}

func (s Suite) varyObject(t *testing.T, sample provider.Sample, before provider.Observation) {
	t.Helper()
	ids := map[string]bool{before.ObjectID: true}
	for n := range 3 {
		a, err := s.Provider.Vary(sample, n, now, true)
		b, err2 := s.Provider.Vary(sample, n, now, true)
		if err != nil || err2 != nil || cmp.Diff(a, b) != "" {
			t.Errorf("vary %s twice: %v, %v, %s", sample.Type, err, err2, cmp.Diff(a, b))
		}
		_, o, err := s.Observed(t, s.signed(t, s.Source, a))
		if err != nil || before.Ignored == "" && ids[o.ObjectID] {
			t.Errorf("vary %s, object %d: id %q again, %v", sample.Type, n, o.ObjectID, err)
		}
		ids[o.ObjectID] = true
	}
}
