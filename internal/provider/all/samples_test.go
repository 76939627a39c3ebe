package all_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/all"
	"github.com/postern-gateway/postern/internal/provider/providertest"
)

// demo are the sources of `postern dev`: one for each provider.
func demo(t *testing.T) []config.Endpoint {
	t.Helper()
	c := &config.Config{Sources: config.DemoSources()}
	endpoints := c.Endpoints()
	if len(endpoints) != len(all.All()) {
		t.Fatalf("%d demo sources for %d providers", len(endpoints), len(all.All()))
	}
	return endpoints
}

var at = time.Date(2026, time.July, 4, 12, 30, 15, 250e6, time.UTC)

// Whoever runs `postern dev` can try every provider: its demo source is usable, and every sample goes all the way.
func TestEverySampleGoesThroughItsDemoSource(t *testing.T) {
	t.Parallel()
	for _, e := range demo(t) {
		t.Run(e.Provider.Name(), func(t *testing.T) {
			t.Parallel()
			if err := e.Provider.Check(e.Source); err != nil {
				t.Fatalf("check the demo source: %v", err)
			}
			for _, sample := range samples(t, e) {
				through(t, e, sample)
			}
		})
	}
}

// samples are those of the provider by its name: one that a source's configuration makes has none of its own.
func samples(t *testing.T, e config.Endpoint) []provider.Sample {
	t.Helper()
	p, ok := all.Named(e.Provider.Name())
	if !ok || len(p.Samples()) == 0 {
		t.Fatalf("%s has no samples", e.Provider.Name())
	}
	return p.Samples()
}

// through signs a sample, proves it, names its events and reads them.
func through(t *testing.T, e config.Endpoint, sample provider.Sample) []provider.Event {
	t.Helper()
	d, err := e.Provider.Sign(e.Source, sample, at)
	if err != nil {
		t.Fatalf("sign %s: %v", sample.Type, err)
	}
	d.ReceivedAt = at
	if v, err := e.Provider.Verify(e.Source, d); err != nil || v.Secret != "demo" {
		t.Fatalf("verify %s: %+v, %v", sample.Type, v, err)
	}
	events, err := e.Provider.Identify(e.Source, d)
	if err != nil || len(events) == 0 {
		t.Fatalf("identify %s: %d events, %v", sample.Type, len(events), err)
	}
	for i, ev := range events {
		stored := &provider.Stored{Key: ev.Key, Type: ev.Type, Account: ev.Account, APIVersion: ev.APIVersion, ReceivedAt: at, Index: i, Body: d.Body}
		o, err := e.Provider.Observe(e.Source, stored)
		if err != nil {
			t.Errorf("observe %s: %v", sample.Type, err)
		}
		catalogued(t, e.Provider, o.ObjectType)
	}
	providertest.Sound(t, e.Provider, e.Source, d)
	return events
}

// catalogued wants that a provider that can say of which types its objects are knows a type.
func catalogued(t *testing.T, p provider.Provider, objectType string) {
	t.Helper()
	c, ok := p.(provider.Catalogued)
	if !ok || objectType == "" {
		return
	}
	if known := c.ObjectTypes(); len(known) > 0 && !slices.Contains(known, objectType) {
		t.Errorf("type %s is not among %v", objectType, known)
	}
}

// A thousand `postern send` are a thousand events: no two of them, of whatever sample, have one key.
func TestVariedSamplesAreEventsOfTheirOwn(t *testing.T) {
	t.Parallel()
	for _, e := range demo(t) {
		t.Run(e.Provider.Name(), func(t *testing.T) {
			t.Parallel()
			keys := map[string]bool{}
			for _, sample := range samples(t, e) {
				for n := range 5 {
					varied, err := e.Provider.Vary(sample, n, at.Add(time.Duration(n)*time.Second), n%2 == 1)
					if err != nil {
						t.Fatalf("vary %s: %v", sample.Type, err)
					}
					for _, ev := range through(t, e, varied) {
						if keys[ev.Key] {
							t.Errorf("vary %s: key %s again", sample.Type, ev.Key)
						}
						keys[ev.Key] = true
					}
				}
			}
		})
	}
}

// What each sample is read as is on record in its provider's folder.
func TestEveryProviderHasGoldenSamples(t *testing.T) {
	t.Parallel()
	for _, p := range all.All() {
		file := filepath.Join("..", p.Name(), "testdata", "samples.golden")
		if info, err := os.Stat(file); err != nil || info.Size() == 0 {
			t.Errorf("%s: %v", p.Name(), err)
		}
	}
}
